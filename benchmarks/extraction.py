"""Main text of HTML pages and records of WARC files: text kept and CPU time beside trafilatura, fastwarc and warcio.

    python -m benchmarks.extraction --peers-python PEERS/bin/python    # 400 pages, about three minutes
    python -m benchmarks.extraction --peers-python PEERS/bin/python --pages 20   # seconds: a smoke test

    python -m venv PEERS && PEERS/bin/pip install trafilatura==2.3.1 lxml_html_clean warcio==1.8.1 fastwarc==2.0.1

Pages are the HTML documentation of Debian packages (apt-get install python3-doc postgresql-doc sqlite3-doc nodejs-doc
debian-handbook), as many of each. SITES tells where the main text of a page stands, which gives the words that an
extractor should keep. Recall is the share of these words that it keeps, precision the share of its words that are
among them. `--show FILE` writes what each extractor gave, to read.
"""

import glob
import gzip
import hashlib
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks import harness

SITES = {
    "python": ("/usr/share/doc/python3*/html/**/*.html", "div[role=main]", ""),
    "postgresql": ("/usr/share/doc/postgresql-doc-*/html/*.html", "body", ".navheader, .navfooter"),
    "sqlite": ("/usr/share/doc/sqlite3/**/*.html", "body", ".nosearch, .fancy_toc, #toc_header, #toc_sub"),
    "nodejs": ("/usr/share/doc/nodejs/api/*.html", "#apicontent", ".toc"),
    "handbook": ("/usr/share/doc/debian-handbook/html/*/*.html", "body", "#banner, .docnav, #title"),
}
"""{site: (glob, selector of the main text, selector of menus within it)}"""

SMALLEST = 2000  # bytes of a page
WORD = re.compile(r"\w+")


def choose(count):
    """Return [(site, path)] of about `count` pages, as many of each site that is installed."""
    sites = {}
    for site, (pattern, _, _) in SITES.items():
        paths = [path for path in glob.glob(pattern, recursive=True) if Path(path).stat().st_size >= SMALLEST]
        sites[site] = sorted(paths, key=lambda path: hashlib.sha256(path.encode()).digest())
    installed = [site for site, paths in sites.items() if paths]
    return [(site, path) for site in installed for path in sites[site][: count // len(installed)]]


def main_words(site, html):
    """Return the words of the main text of a page, by the selectors of its site; None if the page has none."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    _, main, others = SITES[site]
    tree = HTMLTree.parse(html)
    for node in tree.document.query_selector_all(others) if others else []:
        node.decompose()
    found = tree.document.query_selector(main)
    return found and WORD.findall(extract_plain_text(HTMLTree.parse(found.html)))


def write_warc(path, pages):
    """Write responses of HTML, a gzip member each, with the request before each that crawlers write."""
    with open(path, "wb") as file:
        for number, page in enumerate(pages):
            body = page.encode()
            http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + body
            for kind, block in (("request", b"GET / HTTP/1.1\r\n\r\n"), ("response", http)):
                head = (
                    f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: https://host/{number}\r\n"
                    f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\n"
                    "WARC-Date: 2026-01-01T00:00:00Z\r\n"
                    f"Content-Type: application/http; msgtype={kind}\r\nContent-Length: {len(block)}\r\n\r\n"
                )
                file.write(gzip.compress(head.encode() + block + b"\r\n\r\n"))


def measured(function):
    """Return {"cpu_seconds", "result"} of a function."""
    begun = harness.cpu_seconds()
    result = function()
    return {"cpu_seconds": harness.cpu_seconds() - begun, "result": result}


def peers(directory):
    """Return {name: measured} of the peers, in their own environment; results are texts, or numbers of records."""
    import trafilatura
    from fastwarc.warc import ArchiveIterator, WarcRecordType
    from warcio.archiveiterator import ArchiveIterator as WarcioIterator

    directory = Path(directory)
    pages = [path.read_text() for path in sorted((directory / "pages").iterdir())]
    trafilatura.extract(pages[0])

    def by_fastwarc():
        with open(directory / "web.warc.gz", "rb") as file:
            return sum(
                bool(record.reader.read()) for record in ArchiveIterator(file, record_types=WarcRecordType.response)
            )

    def by_warcio():
        with open(directory / "web.warc.gz", "rb") as file:
            return sum(
                bool(record.content_stream().read()) for record in WarcioIterator(file) if record.rec_type == "response"
            )

    functions = {
        "trafilatura": lambda: [trafilatura.extract(page) or "" for page in pages],
        "fastwarc": by_fastwarc,
        "warcio": by_warcio,
    }
    return {name: measured(function) for name, function in functions.items()}


def ours(directory):
    """Return {name: measured} of our kinds: texts of `html`, of `warc`, and the number of its records alone."""
    from stages.lib.sources import documents, spans
    from stages.lib.sources.kinds.registry import KINDS
    from stages.lib.sources.source import SourceRecipe

    paths = sorted(map(str, (directory / "pages").iterdir()))
    warc = str(directory / "web.warc.gz")

    def texts(kind, names):
        return [
            entry.text or ""
            for entry in documents.read(SourceRecipe(kind=kind, paths=names), spans.whole(names), names)
        ]

    return {
        "html": measured(lambda: texts("html", paths)),
        "warc": measured(lambda: texts("warc", [warc])),
        "records": measured(lambda: sum(1 for _ in KINDS["warc"].pages(spans.Span(warc)))),
    }


def quality(texts, sites, expected):
    """Return {site or "all": {"pages", "recall", "precision", "empty"}}; means over pages."""
    rows = {}
    for text, site, words in zip(texts, sites, expected, strict=True):
        kept, wanted = Counter(WORD.findall(text)), Counter(words)
        common = (kept & wanted).total()
        row = (common / wanted.total(), common / max(1, kept.total()), not text.strip())
        for name in (site, "all"):
            rows.setdefault(name, []).append(row)
    return {
        name: {"pages": len(some)}
        | {what: sum(row[at] for row in some) / len(some) for at, what in enumerate(("recall", "precision"))}
        | {"empty": sum(row[2] for row in some)}
        for name, some in rows.items()
    }


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "extraction")
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument(
        "--peers-python", type=Path, default=Path(sys.executable), help="the interpreter with the peers"
    )
    parser.add_argument("--show", type=Path, help="file for what each extractor gave")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "pages").mkdir()
        sites, pages, expected, shown = [], [], [], []
        for site, path in choose(arguments.pages):
            html = Path(path).read_text(errors="replace")
            if words := main_words(site, html):
                (directory / "pages" / f"{len(pages):05d}.html").write_text(html)
                sites, pages = [*sites, site], [*pages, html]
                expected, shown = [*expected, words], [*shown, {"path": path, "main": " ".join(words)}]
        if not pages:
            parser.error("no page is installed: apt-get install python3-doc postgresql-doc sqlite3-doc debian-handbook")
        write_warc(directory / "web.warc.gz", pages)
        results = ours(directory) | harness.call("extraction", "peers", directory, python=arguments.peers_python)
        command = [arguments.peers_python.with_name("trafilatura"), "--parallel", 1]
        command += ["--input-dir", directory / "pages", "--output-dir", directory / "out"]
        results["trafilatura's command"] = harness.timed(command)
    assert results["html"]["result"] == results["warc"]["result"]
    assert {results[name]["result"] for name in ("records", "fastwarc", "warcio")} == {len(pages)}
    rates = {name: len(pages) / row["cpu_seconds"] for name, row in results.items()}
    extractors = {"resiliparse": results["html"]["result"], "trafilatura": results["trafilatura"]["result"]}
    qualities = {name: quality(texts, sites, expected) for name, texts in extractors.items()}
    for name, rate in rates.items():
        print(f"{name}: {rate:.0f} pages per CPU-second")
    for name, rows in qualities.items():
        for site, row in rows.items():
            print(f"{name}, {site}: recall {row['recall']:.3f}, precision {row['precision']:.3f}")
    if arguments.show:
        rows = zip(shown, *extractors.values(), strict=True)
        lines = [json.dumps(page | dict(zip(extractors, texts, strict=True))) for page, *texts in rows]
        arguments.show.write_text("\n".join(lines) + "\n")
    figures = {
        "pages": len(pages),
        "html_bytes": sum(len(page.encode()) for page in pages),
        "pages_per_cpu_second": rates,
        "text": qualities,
    }
    harness.write(arguments.output, "extraction", ("resiliparse", "fastwarc"), figures)


if __name__ == "__main__":
    main()

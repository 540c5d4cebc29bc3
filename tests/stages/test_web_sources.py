"""Pages of the web as sources: WARC, WET and HTML files, damaged ones and bombs among them."""

import contextlib
import gzip
import json
import zlib

import brotli
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import tokenize
from stages.lib.errors import UserError
from stages.lib.sources import documents, source, spans
from stages.lib.sources.entries import Document, Filtered, Malformed
from stages.lib.sources.kinds import html_text, web
from stages.lib.sources.source import SourceRecipe
from tests.helpers.data_fixtures import entries_of, listed, part_of, refused, texts
from tests.helpers.faults import flip_bit
from tests.helpers.manifests import filtered_of

MENU = "<nav><ul>" + "<li><a href=/x>Home page</a>" * 9 + "</ul></nav>"
TEXTS = [" ".join(text.split()) for text in texts("a", 30) if len(text) > 60]


def page(text, head=""):
    return f"<!DOCTYPE html><html><head>{head}</head><body>{MENU}<main><p>{text}</p></main></body></html>"


def record(block, kind="response", url="http://a.org/1", media="application/http; msgtype=response", **headers):
    """A WARC record."""
    head = {"WARC-Type": kind, "WARC-Target-URI": url, "WARC-Date": "2026-01-01T00:00:00Z", "Content-Type": media}
    head |= {"Content-Length": len(block)} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + block + b"\r\n\r\n"


def http(body, *headers, status="200 OK", media="text/html; charset=utf-8"):
    body = body.encode() if isinstance(body, str) else body
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {media}", *headers, "", ""]).encode() + body


def response(text, number=1, **options):
    return record(http(page(text)), url=f"http://a.org/{number}", **options)


def wet(text):
    return record(text, "conversion", media="text/plain")


RECORDS = [response(text, number) for number, text in enumerate(TEXTS)]


def of_records(directory, *records, name="a.warc.gz"):
    """The entries of a WARC file of some records, a gzip member each."""
    path = directory / name
    path.write_bytes(b"".join(gzip.compress(each) for each in records))
    return entries_of(path, "warc")


def zstd(data):
    return pa.compress(data, "zstd", asbytes=True)


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz", "a.warc.zst", "one.warc.gz"])
def test_the_documents_are_the_main_texts_and_their_ids_the_urls(tmp_path, name):
    around = [record(b"software: x\r\n", "warcinfo"), record(b"GET / HTTP/1.1\r\n\r\n", "request")]
    every = [*around, *RECORDS, record(b"{}", "metadata")]
    joined = b"".join(every)
    write = {"a.warc": joined, "a.warc.zst": zstd(joined), "one.warc.gz": gzip.compress(joined)}
    (tmp_path / name).write_bytes(write.get(name) or b"".join(map(gzip.compress, every)))
    found = entries_of(tmp_path / name, "warc")
    assert [entry.text for entry in found] == TEXTS
    assert [entry.id for entry in found] == [f"http://a.org/{number}" for number in range(len(TEXTS))]


def test_a_wet_file_has_its_texts_as_they_are(tmp_path):
    made = [wet(b"one\n <b>\n"), wet("zw\u00f6lf".encode()), wet(b"\xff")]
    found = of_records(tmp_path, record(b"", "warcinfo"), *made, name="a.warc.wet.gz")
    assert [entry.text for entry in found] == ["one\n <b>\n", "zw\u00f6lf", None]
    assert found[2].reason == "not UTF-8"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (record(http("x", status="404 Not Found")), "status not 200"),
        (record(http("x", status="301")), "status not 200"),
        (record(http("%PDF", media="application/pdf")), "not html"),
        (record(b"1.2.3.4", url="dns:a.org", media="text/dns"), "not html"),
        (record(http(""), "revisit"), "revisit"),
        (record(b"\x89PNG", "resource", media="image/png"), "not html"),
    ],
)
def test_what_is_no_page_is_filtered_and_not_malformed(tmp_path, made, reason):
    found = of_records(tmp_path, made, RECORDS[0])
    assert isinstance(found[0], Filtered) and found[0].reason == reason
    assert found[1].text == TEXTS[0]


def test_resources_plain_text_and_xhtml_are_documents(tmp_path):
    found = of_records(
        tmp_path,
        record(page("one").encode(), "resource", media="text/html"),
        record(http("two\n<three>", media="text/plain")),
        record(http(page("four"), media="Application/XHTML+xml")),
    )
    assert [entry.text for entry in found] == ["one", "two\n<three>", "four"]


def chunked(data):
    parts = [data[at : at + 100] for at in range(0, len(data), 100)]
    return b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def raw_deflate(data):
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


CODINGS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd}
CODINGS["br"] = brotli.compress


@pytest.mark.parametrize(
    ("headers", "coding"),
    [([f"Content-Encoding: {name}"], function) for name, function in CODINGS.items()]
    + [
        (["content-encoding: DEFLATE"], raw_deflate),
        (["Transfer-Encoding: chunked"], chunked),
        (["Transfer-Encoding: gzip, chunked"], lambda data: chunked(gzip.compress(data))),
        (["Content-Encoding: deflate, gzip"], lambda data: gzip.compress(zlib.compress(data))),
        (["Transfer-Encoding: chunked", "Content-Encoding: br"], lambda data: chunked(brotli.compress(data))),
        (["Content-Encoding: gzip", "Transfer-Encoding: chunked"], lambda data: data),  # decoded by the crawler
        (["Content-Encoding: identity"], lambda data: data),
    ],
)
def test_codings_of_http_are_undone(tmp_path, headers, coding):
    made = record(http(coding(page(TEXTS[0]).encode()), *headers))
    assert [entry.text for entry in of_records(tmp_path, made)] == [TEXTS[0]]


def test_a_body_that_is_not_of_its_coding_is_malformed_with_file_and_position(tmp_path):
    made = [record(http(b"\xff" * 9, f"Content-Encoding: {name}")) for name in (*CODINGS, "foo")]
    made += [record(http(b"\xff" * 9, "Transfer-Encoding: chunked")), record(b"no header")]
    found = of_records(tmp_path, RECORDS[0], *made)
    begins = [0]
    for each in (RECORDS[0], *made):
        begins.append(begins[-1] + len(gzip.compress(each)))
    assert [entry.id for entry in found[1:]] == [f"{tmp_path}/a.warc.gz@{begin}" for begin in begins[1:-1]]
    names = [*CODINGS, "foo", "chunked"]
    expected = [f"a body that is not {name}, as its header says" for name in names]
    assert [entry.reason for entry in found[1:-1]] == expected
    assert found[-1].reason == "no HTTP header"


RUSSIAN = (
    "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0435 \u044d\u0442\u0438\u0445 "
    "\u043c\u044f\u0433\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a "
)


@pytest.mark.parametrize(
    ("encoding", "charset", "head"),
    [
        ("utf-8-sig", "windows-1251", "<meta charset=koi8-r>"),  # the byte order mark counts first
        ("utf-16", None, ""),
        ("windows-1251", "windows-1251", "<meta charset=koi8-r>"),  # then the header
        ("windows-1251", "bogus", "<meta charset=windows-1251>"),  # of which a name that nobody knows does not count
        ("koi8-r", None, "<meta http-equiv=Content-Type content='text/html; charset=koi8-r'>"),
        ("utf-8", None, "<meta charset=utf-16>"),
        ("utf-8", None, ""),
        ("windows-1251", None, ""),  # detected
        ("utf-8", '"UTF-8"', ""),
    ],
)
def test_pages_are_decoded_as_browsers_do(tmp_path, encoding, charset, head):
    text = RUSSIAN * 9
    media = f"text/html; charset={charset}" if charset else "text/html"
    (entry,) = of_records(tmp_path, record(http(page(text, head).encode(encoding), media=media)))
    assert entry.text == text.strip()


@given(size=st.integers(1, 12), parts=st.integers(1, 9), is_whole=st.booleans(), padding=st.integers(0, 3))
@settings(deadline=None, max_examples=25)
def test_each_record_is_in_one_part_wherever_the_cuts_fall(size, parts, is_whole, padding, tmp_path_factory):
    """Records of a member each, of two members each (padding > 0), and of one member for the file."""
    path = tmp_path_factory.mktemp("warc") / "a.warc.gz"
    made = [wet(f"text {n} ".encode() * n) for n in range(1, size + 1)]
    if is_whole:
        path.write_bytes(gzip.compress(b"".join(made)))
    else:
        halves = [(each[:60], each[60:]) if padding else (each,) for each in made]
        path.write_bytes(b"".join(gzip.compress(half) for pair in halves for half in pair) + b"\0" * padding)
    recipe, files = SourceRecipe(kind="warc", paths=["*"]), [{"name": str(path), "bytes": path.stat().st_size}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "WHOLE_BYTES", 64)
        patch.setattr(web, "BLOCK_BYTES", 50)
        patch.setattr(web, "READ_BYTES", 7)
        chosen = [source.spans_of_part(recipe, files, part, parts) for part in range(parts)]
        found = [list(documents.read(recipe, some, [])) for some in chosen]
        extents = [web.Warc().extent(span) for some in chosen for span in some]
    assert [entry.text for part in found for entry in part] == [f"text {n} " * n for n in range(1, size + 1)]
    assert sum((files[0]["bytes"] if end is None else end) - first for first, end in extents) == files[0]["bytes"]


@pytest.mark.parametrize("member", ["each", "one", "none"])
def test_of_a_file_cut_anywhere_the_records_before_the_cut_are_read(tmp_path, member):
    every = b"".join(RECORDS[:3])
    pack = {"each": b"".join(map(gzip.compress, RECORDS[:3])), "one": gzip.compress(every), "none": every}[member]
    path = tmp_path / ("a.warc" if member == "none" else "a.warc.gz")
    sizes = [len(gzip.compress(each) if member == "each" else each) for each in RECORDS[:3]]
    borders = [sum(sizes[:number]) for number in range(4)]
    cuts = {*range(1, len(pack), len(pack) // 60), *(border + 3 for border in borders)}
    for cut in cuts:
        if cut >= len(pack) or (member == "none" and any(border - 4 <= cut <= border for border in borders)):
            continue
        path.write_bytes(pack[:cut])
        *whole, last = entries_of(path, "warc")
        assert isinstance(last, Malformed) and last.reason == "the file ends within the record"
        assert [entry.text for entry in whole] == TEXTS[: len(whole)]
        if member == "each":
            assert len(whole) == max(number for number in range(3) if borders[number] <= cut)
            assert last.id == f"{path}@{borders[len(whole)]}"


@pytest.mark.parametrize("at", [0.02, 0.5, 0.98])
def test_a_damaged_record_costs_no_other(tmp_path, at):
    members = [gzip.compress(each) for each in RECORDS[:4]]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(members))
    flip_bit(path, at=len(members[0]) + int(len(members[1]) * at))
    found = entries_of(path, "warc")
    texts = [entry.text for entry in found if isinstance(entry, Document)]
    assert [entry.id for entry in found if isinstance(entry, Malformed)] in ([f"{path}@{len(members[0])}"], [])
    assert texts in ([TEXTS[0], *TEXTS[2:4]], TEXTS[:4])  # a flipped bit of the header's time or name changes nothing


@pytest.mark.parametrize("length", [-1, 10, 10**12, "", "x"])
def test_a_wrong_length_costs_one_record_of_its_own_member_and_else_names_the_file(tmp_path, length):
    wrong = response(TEXTS[1], Content_Length=length)
    found = of_records(tmp_path, RECORDS[0], wrong, RECORDS[2])
    assert [entry.text for entry in found] == [TEXTS[0], None, TEXTS[2]]
    path = tmp_path / "a.warc"
    path.write_bytes(RECORDS[0] + wrong + RECORDS[2])
    if length == 10**12:
        assert [type(entry) for entry in entries_of(path, "warc")] == [Document, Malformed]
    else:
        with pytest.raises(UserError, match=f"^{path} cannot be read to its end: record 2 is damaged"):
            entries_of(path, "warc")


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz", "a.warc.zst", "a.warc.bz2"])
def test_what_is_no_warc_is_named(tmp_path, tokenizer, capsys, name):
    (tmp_path / name).write_bytes(b"hello\n" * 99)
    made = listed(tmp_path, "a", {"kind": "warc", "paths": [str(tmp_path / name)]})
    line = refused(capsys, tokenize, list=made, tokenizer=tokenizer, part=0, output=tmp_path / "t/00000.json")
    assert line.startswith(f"tokenize: {tmp_path / name} cannot be read to its end: ")


DEEP, ATTRIBUTES = "<div>" * 100_000, "<p " + " ".join(f"a{number}" for number in range(300_000)) + ">"
ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><p>fine &b;'
BOMBS = {
    "depth": (DEEP, html_text.TOO_DEEP),
    "depth of formatting": ("<b>" * 100_000, html_text.TOO_DEEP),
    "attributes": (ATTRIBUTES, html_text.TOO_SLOW),
    "100 MB": ("<p>x</p>" * 12_500_000, html_text.TOO_LONG),
    "200 MB": ("<p>x</p>" * 25_000_000, web.TOO_LONG_RECORD),
}


def test_no_page_crashes_the_process_or_takes_long(tmp_path, monkeypatch):
    """Each bomb is one malformed record with the limit's name, and the pages after it are read."""
    monkeypatch.setattr(html_text, "HTML_CPU_SECONDS", 3)  # depth takes 0.1, the attributes minutes
    made = []
    for name, (body, _) in BOMBS.items():
        made += [record(http(body), url=f"http://bomb/{name}"), RECORDS[0]]
    made.append(record(http(gzip.compress(b"<p>x</p>" * 3_000_000, 1), "Content-Encoding: gzip")))
    made.append(record(http(brotli.compress(b"a" * 200_000_000, quality=1), "Content-Encoding: br")))
    made.append(record(http(ENTITIES)))
    path = tmp_path / "a.warc.gz"
    with open(path, "wb") as file:
        for each in made:
            file.write(gzip.compress(each, 1))
    found = entries_of(path, "warc", max_malformed=1)
    reasons = [getattr(entry, "reason", None) for entry in found]
    assert reasons[: 2 * len(BOMBS) : 2] == [reason for _, reason in BOMBS.values()]
    assert reasons[1 : 2 * len(BOMBS) : 2] == [None] * len(BOMBS)
    assert reasons[-3:] == [html_text.TOO_LONG] * 2 + [None]
    assert "aaaaaaaaaa" not in found[-1].text and "fine" in found[-1].text


def test_a_parser_that_crashes_is_a_malformed_page(tmp_path, monkeypatch):
    script = tmp_path / "crash.py"
    script.write_text("import marshal, os, sys; marshal.load(sys.stdin.buffer); os.kill(os.getpid(), 11)")
    with contextlib.closing(html_text.Extractor()) as extractor:
        monkeypatch.setattr(html_text, "__file__", str(script))
        with pytest.raises(ValueError, match="HTML that ends its parser by signal 11"):
            extractor.extract(b"<p>x</p>", None)
        monkeypatch.undo()
        assert extractor.extract(b"<p>x</p>", None)[0] == "x"


def test_blank_lines_and_headers_without_end_are_damage(tmp_path):
    for spoilt in (RECORDS[0] + b"\r\n" * 2000 + RECORDS[1], b"WARC/1.0\r\n" + b"a: b\r\n" * 20_000 + b"\r\n"):
        found = of_records(tmp_path, RECORDS[2], spoilt, RECORDS[3])
        assert [entry.text for entry in found] == [TEXTS[2], None, TEXTS[3]]


def test_a_record_that_is_too_long_takes_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(web, "RECORD_BYTES", 1000)
    found = of_records(tmp_path, wet(b"x" * 1001), wet(b"y" * 1000))
    assert [getattr(entry, "reason", None) for entry in found] == [web.TOO_LONG_RECORD, None]


def test_html_files_are_documents_with_path_and_canonical_url(tmp_path, tokenizer):
    folder = tmp_path / "site"
    folder.mkdir()
    for number, text in enumerate(TEXTS[:8]):
        head = f"<link rel=canonical href=https://host{number % 2}.org/{number}>"
        (folder / f"{number}.html").write_text(page(text, head))
    (folder / "9.htm.gz").write_bytes(gzip.compress(page("gzip").encode()))
    (folder / "style.css").write_text("a {}")
    recipe = {"kind": "html", "paths": [str(folder)], "max_malformed": 0.2, "split_field": "host"}
    part = part_of(tmp_path, tokenizer, **recipe)
    assert filtered_of(part) == {"no text or whole number in host": 1}
    found = entries_of(folder / "3.html", "html")
    assert (found[0].id, found[0].text) == (str(folder / "3.html"), TEXTS[3])
    same_host = [folder / f"{number}.html" for number in (0, 2, 4, 6)]
    assert len({entries_of(path, "html", split_field="host", validation=0.5)[0].split for path in same_host}) == 1
    whole = entries_of(folder / "3.html", "html", main_content=False)[0].text
    assert "Home page" in whole and TEXTS[3] in whole


def test_the_reasons_are_counted_in_the_manifest(tmp_path, tokenizer, capsys):
    path = tmp_path / "a.warc.gz"
    made = [*RECORDS[:5], record(http("x", status="404")), record(http("x", media="image/gif")), record(b"x")]
    path.write_bytes(b"".join(map(gzip.compress, made)) + gzip.compress(RECORDS[6])[:100])
    recipe = {"kind": "warc", "paths": [str(path)], "validation": 0.2}
    part = part_of(tmp_path, tokenizer, max_malformed=0.25, **recipe)
    counts = {"no HTTP header": 1, "the file ends within the record": 1, "not html": 1, "status not 200": 1}
    assert filtered_of(part) == counts
    record_ = json.loads(part.read_text())["record"]
    assert (record_["records"], record_["malformed"]) == (9, 2)
    made = listed(tmp_path, "b", recipe)
    line = refused(capsys, tokenize, list=made, tokenizer=tokenizer, part=0, output=tmp_path / "t/00000.json")
    assert "sources.b.max_malformed must be at least the share of malformed records, 2 of 9" in line

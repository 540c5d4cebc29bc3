"""Text that is on every machine, as jsonl: code, prose and other languages, a third of the bytes each.

Code is the Python files of the standard library and of installed packages; prose is manual pages, /usr/share/doc, and
text files of the packages; other languages are the translations in gettext's catalogs. Files are read in the order of
their paths' hashes, so that a machine gives the same text each time. Duplicates are skipped. If a kind has too little
text, all of it is taken.
"""

import contextlib
import gettext
import gzip
import hashlib
import json
import site
import sysconfig
from pathlib import Path

SMALLEST, LARGEST = 200, 2_000_000  # bytes of a document
CATALOGUE_BYTES = 16_000  # translations are short: neighbors are joined to documents of this size
CONTROLS = ("<s>", "</s>", "<unk>")
"""Documents that contain these are skipped: tokenizers of some peers read them as control tokens."""

SHARE = Path("/usr/share")


def build(directory, megabytes, files):
    """Write `files` jsonl files of about `megabytes` in all; returns their paths and {"documents", "text_bytes", ...}.

    Files of an earlier call with the same arguments are kept.
    """
    described = directory / "texts.json"
    paths = [directory / f"{number:02d}.jsonl" for number in range(files)]
    wanted = {"megabytes": megabytes, "files": files}
    if described.exists() and (content := json.loads(described.read_text()))["wanted"] == wanted:
        return paths, content
    directory.mkdir(parents=True, exist_ok=True)
    written, kinds, documents = [0] * files, {}, 0
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(open(path, "w", encoding="utf-8")) for path in paths]
        for kind, text, size in _documents(megabytes * 1e6):
            smallest = written.index(min(written))
            outputs[smallest].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            written[smallest] += size
            kinds[kind] = kinds.get(kind, 0) + size
            documents += 1
    content = {"wanted": wanted, "documents": documents, "text_bytes": sum(written), "kinds": kinds}
    described.write_text(json.dumps(content))
    return paths, content


def _documents(limit):
    """Yield (kind, text, bytes) up to `limit` bytes, always of the kind with the fewest bytes so far."""
    plain = (".txt", ".md", ".rst", "README", "copyright", ".txt.gz", ".md.gz")
    prose = _files([SHARE / "man"], (".gz",)) + _files([SHARE / "doc", *_packages()], plain)
    left = {"code": _texts(_files(_packages(), (".py",))), "prose": _texts(prose), "languages": _languages()}
    taken, seen = dict.fromkeys(left, 0), set()
    share = limit / len(left)
    while left:
        kind = min(left, key=taken.__getitem__)
        text = next(left[kind], None)
        if text is None or taken[kind] >= share:
            del left[kind]
            continue
        data = text.encode()
        digest = hashlib.sha256(data).digest()
        if SMALLEST <= len(data) <= LARGEST and digest not in seen and not any(name in text for name in CONTROLS):
            seen.add(digest)
            taken[kind] += len(data)
            yield kind, text, len(data)


def _files(roots, suffixes):
    """Return the files below `roots` with one of these suffixes, in the order of their paths' hashes."""
    found = {path for root in roots for path in root.rglob("*") if path.name.endswith(suffixes)}
    return sorted(found, key=lambda path: hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).digest())


def _packages():
    return [Path(sysconfig.get_path("stdlib")), *map(Path, site.getsitepackages()), Path("/usr/lib/python3")]


def _languages():
    for path in _files([SHARE / "locale"], (".mo",)):
        catalog = {}
        with contextlib.suppress(OSError, ValueError, IndexError), open(path, "rb") as file:  # a malformed catalog
            catalog = gettext.GNUTranslations(file)._catalog
        lines, size = [], 0
        for line in catalog.values():
            lines.append(line)
            size += len(line.encode())
            if size >= CATALOGUE_BYTES:
                yield "\n".join(lines)
                lines, size = [], 0
        yield "\n".join(lines)


def _texts(paths):
    """Yield the texts of files; files that cannot be read or are not UTF-8 are skipped."""
    for path in paths:
        with contextlib.suppress(OSError, EOFError, UnicodeDecodeError):
            data = path.read_bytes()
            yield (gzip.decompress(data) if path.suffix == ".gz" else data).decode()

"""The kinds `warc` and `html`: pages of the web, of which a document is the main text.

A WARC file is read record by record. Where each record is a gzip member of its own, as crawlers write them, a file is
cut between members: a span has the records whose member begins in it.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from stages.lib.errors import UserError
from stages.lib.sources import reading, storage
from stages.lib.sources.entries import Document, Filtered, Malformed
from stages.lib.sources.kinds.html_text import HTML_BYTES, Extractor
from stages.lib.sources.kinds.kind import DOCUMENT_FIELDS, SourceFields, SourceKind, document_of_fields
from stages.lib.sources.spans import Span
from stages.lib.sources.storage import Status

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

RECORD_BYTES = reading.LINE_BYTES
"""The longest block of a WARC record that is read: a longer one takes no memory."""

HEADER_BYTES = 64 << 10  # of a record's or a response's header
BLOCK_BYTES, READ_BYTES = 1 << 20, 64 << 10
MAX_BLANK = 1000  # line ends between two records: there should be two
PROBE_BYTES = 4096  # of a gzip member, from which its first bytes of text are decompressed
MEMBER = b"\x1f\x8b\x08"
VERSION = b"WARC/"

TOO_LONG_RECORD = f"a record longer than the limit record_bytes, {RECORD_BYTES >> 20} MiB"
CUT = "the file ends within the record"

HTML_TYPES = ("text/html", "application/xhtml+xml")
Headers = dict[str, str]


@dataclass(frozen=True)
class Page:
    """A page before its text is extracted, or with its text as `body`. `place`: file and position.

    `fields`: what `split_field` may name. `charset`: by the HTTP header.
    """

    id: str
    place: str
    body: bytes | str
    charset: str | None
    is_html: bool
    fields: Mapping[str, str | None]


class WebKind(SourceKind):
    """A kind whose documents are extracted from pages."""

    fields = ("main_content", "split_field", *DOCUMENT_FIELDS)

    def pages(self, span: Span) -> Iterator[Page | Malformed | Filtered]:
        """Yield the pages of a span, and other records with the reason why they are not documents."""
        raise NotImplementedError(self.name)

    def documents(
        self, recipe: SourceFields, chosen: Sequence[Span], every_name: Sequence[str], before: Mapping[str, Status]
    ) -> Iterator[Document | Malformed | Filtered]:
        """Yield the documents of the spans `chosen`; arguments as of `documents.read`."""
        with contextlib.closing(Extractor(recipe.main_content)) as extractor:
            for span in chosen:
                begun = before.get(span.name) or storage.status(span.name)
                for page in self.pages(span):
                    yield _document(recipe, page, extractor) if isinstance(page, Page) else page
                storage.check_unchanged({span.name: begun})


def _document(recipe: SourceFields, page: Page, extractor: Extractor) -> Document | Malformed:
    text, canonical = page.body, None
    if isinstance(text, bytes):
        try:
            text, canonical = extractor.extract(text, page.charset, page.is_html)
        except ValueError as error:
            return Malformed(page.place, str(error))
    url = page.fields.get("url") or (canonical if _host_of(canonical) else None)
    record = {**page.fields, "text": text, "url": url, "host": _host_of(url)}
    return document_of_fields(recipe, page.id, record)


def _host_of(url: str | None) -> str | None:
    """Return the host of a URL; None without one."""
    try:
        return urlsplit(url).hostname if url else None
    except ValueError:  # no IPv6 address in brackets
        return None


class Html(WebKind):
    """A document is the main text of a file."""

    name = "html"
    endings = (".html", ".htm", ".xhtml")
    is_readable = True

    def pages(self, span: Span) -> Iterator[Page]:
        """Yield the page of a file."""
        with reading.open_binary(span.name) as file:
            body = file.read(HTML_BYTES + 1)
        yield Page(span.name, span.name, body, None, True, {"file": span.name})


class Warc(WebKind):
    """A document is the main text of a response or resource of HTML, or a text of a WET file."""

    name = "warc"
    endings = (".warc", ".wet")

    def can_be_cut(self, name: str) -> bool:
        """Return True for a file of gzip members."""
        return storage.without_query(name).endswith(".gz")

    def cut_positions(self, name: str, size: int) -> list[int] | None:
        """Return None, any byte, for a file of gzip members."""
        return None if self.can_be_cut(name) else [0]

    def extent(self, span: Span) -> tuple[int, int | None]:
        """Return the bytes of the records whose gzip members begin in a span."""
        if span.end is None:
            return 0, None
        with storage.open_binary(span.name) as file:
            first, end = (_first_member(file, bound) for bound in (span.first, span.end))
        if first is None:  # the last member began before
            return span.end, span.end
        return first, end

    def pages(self, span: Span) -> Iterator[Page | Malformed | Filtered]:
        """Yield the pages of the records of a span; other records of responses are filtered or malformed."""
        if not self.can_be_cut(span.name):
            with reading.open_binary(span.name) as file:
                yield from _pages_of_stream(span.name, file)
            return
        with storage.open_binary(span.name) as file:
            yield from _pages_of_members(span.name, file, span)


def _first_member(file: BinaryIO, first: int) -> int | None:
    """Return the position of the first gzip member with a record's beginning that begins at `first` or after it.

    None after the last one. The first member of a file counts, whatever begins in it.
    """
    if not first:
        return 0
    position, data = file.seek(first), b""  # data: bytes of the file from `position` on
    while True:
        block = file.read(BLOCK_BYTES)
        data += block
        at = data.find(MEMBER)
        while at >= 0 and (at + PROBE_BYTES <= len(data) or not block):
            if _begins_record(data[at : at + PROBE_BYTES]):
                return position + at
            at = data.find(MEMBER, at + 1)
        if not block:
            return None
        keep = at if at >= 0 else max(0, len(data) - len(MEMBER) + 1)
        position, data = position + keep, data[keep:]


def _begins_record(member: bytes) -> bool:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(member, len(VERSION)) == VERSION
    except zlib.error:
        return False


class _DamagedError(Exception):
    """No record can be read from here on. `is_end`: the file ends here, so that nothing else is lost."""

    def __init__(self, reason: str, is_end: bool = False) -> None:
        super().__init__(reason)
        self.is_end = is_end


class _Members(io.RawIOBase):
    """The decompressed bytes of a file's gzip members, from one at which a record begins to the next such one.

    `begin`: the position of the first of the two; `advance` moves to the second.
    """

    def __init__(self, file: BinaryIO, begin: int) -> None:
        self._file = file
        self.seek_member(begin)

    def seek_member(self, begin: int | None) -> None:
        """Go to the member at a position of the file; None for its end."""
        self.begin = begin
        self._position = self._file.seek(begin or 0)  # behind `_compressed`
        self._compressed, self._ready, self._ended = b"", b"", False
        self._following: int | None = None
        self._error: _DamagedError | None = None  # of the beginning of the member at `_following`
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def advance(self) -> None:
        """Go to the next member at which a record begins, once all bytes before it are read."""
        self.begin, self._following, self._ended = self._following, None, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        while not self._ready and not self._ended:
            if self._error is not None:
                raise self._error
            if self._member.eof:
                self._next_member()
            else:
                self._ready = self._decompress(len(view))
        if self._ended:
            return 0
        count = min(len(view), len(self._ready))
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _decompress(self, size: int) -> bytes:
        """Return up to `size` bytes more of a member; b"" at its end. Raises _DamagedError."""
        while not self._member.eof:
            if not self._compressed and not self._read():
                raise _DamagedError(CUT, is_end=True)
            try:
                data = self._member.decompress(self._compressed, size)
            except zlib.error as error:
                raise _DamagedError(f"damaged gzip data: {error}") from None
            self._compressed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if data:
                return data
        return b""

    def _read(self) -> bool:
        self._compressed = self._file.read(READ_BYTES)
        self._position += len(self._compressed)
        return bool(self._compressed)

    def _next_member(self) -> None:
        """Begin the next member; the bytes end if a record begins with it, or at the end of the file."""
        while not self._compressed.strip(b"\0"):  # zeros are padding
            if not self._read():
                self._ended = True
                return
        begin = self._position - len(self._compressed)
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            while len(self._ready) < len(VERSION) and not self._member.eof:
                self._ready += self._decompress(len(VERSION))
        except _DamagedError as error:
            self._error = error
        if self._ready.startswith(VERSION) or self._error is not None:
            self._following, self._ended = begin, True


def _pages_of_members(name: str, file: BinaryIO, span: Span) -> Iterator[Page | Malformed | Filtered]:
    """Yield the pages of the records whose members begin in a span.

    Raises UserError if records behind a damaged one in its member cannot be found.
    """
    if (first := _first_member(file, span.first)) is None:
        return
    members = _Members(file, first)
    while members.begin is not None and members.begin in span:
        number, place = 0, f"{name}@{members.begin}"
        stream = io.BufferedReader(members, READ_BYTES)
        try:
            for record in _records(stream):
                if (page := _page_of(f"{place}#{number}" if number else place, *record)) is not None:
                    yield page
                number += 1
            members.advance()
        except _DamagedError as error:
            begin, reason = members.begin, str(error)
            if error.is_end:
                members.advance()
                reason = reason if members.begin is None else "the record is shorter than its Content-Length"
            else:
                following = _first_member(file, begin + 1)
                if number or (begin == 0 and following is None):
                    raise UserError(
                        f"{name} cannot be read to its end: record {number + 1} of the gzip member at byte {begin} is "
                        f"damaged ({reason}), and the records after it in this member cannot be found"
                    ) from None
                members.seek_member(following)
            yield Malformed(f"{place}#{number}" if number else place, reason)
        finally:
            stream.detach()


def _pages_of_stream(name: str, file: BinaryIO) -> Iterator[Page | Malformed | Filtered]:
    """Yield the pages of a file that is not of gzip members. Raises UserError if it is damaged before its end."""
    number = 0
    try:
        for record in _records(file):
            number += 1
            if (page := _page_of(f"{name}:{number}", *record)) is not None:
                yield page
    except _DamagedError as error:
        if not error.is_end:
            raise UserError(f"{name} cannot be read to its end: record {number + 1} is damaged ({error})") from None
        yield Malformed(f"{name}:{number + 1}", str(error))


def _records(stream: io.BufferedReader | BinaryIO) -> Iterator[tuple[Headers, bytes | None]]:
    """Yield (headers, block) of each record of a stream; the block is None if it is too long or of no interest.

    A record is yielded once the next one has begun, so that its length and checksum are known to be right.
    Raises _DamagedError.
    """
    line = stream.readline(HEADER_BYTES)
    while line:
        if not line.startswith(VERSION):
            is_end = len(line) < HEADER_BYTES and not line.endswith(b"\n")
            raise _DamagedError(CUT if is_end else "no WARC header where a record should begin", is_end)
        headers = _headers_of(stream)
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            raise _DamagedError(f"no Content-Length, but {length[:20]!r}")
        left, pieces = int(length), []
        is_read = left <= RECORD_BYTES and headers.get("warc-type", "").lower() in TYPES
        while left and (piece := stream.read(min(left, BLOCK_BYTES))):
            left -= len(piece)
            if is_read:
                pieces.append(piece)
        if left:
            raise _DamagedError(CUT, is_end=True)
        for _ in range(MAX_BLANK):
            line = stream.readline(HEADER_BYTES)
            if line.strip(b"\r\n") or not line:
                break
        if line and not VERSION.startswith(line[: len(VERSION)]):
            raise _DamagedError("the record does not end where its Content-Length says")
        yield headers, b"".join(pieces) if is_read else None


def _headers_of(stream: io.BufferedReader | BinaryIO | io.BytesIO) -> Headers:
    """Return {name in lower case: value} up to a blank line. Raises _DamagedError."""
    headers: Headers = {}
    left, name = HEADER_BYTES, ""
    while (line := stream.readline(left)).strip(b"\r\n"):
        left -= len(line)
        if not line.endswith(b"\n"):
            raise _DamagedError(CUT if left else f"a header longer than {HEADER_BYTES >> 10} KiB", is_end=bool(left))
        text = line.decode("utf-8", "replace")
        if text[0] in " \t" and name:
            headers[name] += f" {text.strip()}"
            continue
        key, _, value = text.partition(":")
        name = key.strip().lower()
        headers.setdefault(name, value.strip())
    if not line:
        raise _DamagedError(CUT if left else f"a header longer than {HEADER_BYTES >> 10} KiB", is_end=bool(left))
    return headers


TYPES = ("response", "resource", "conversion")
"""Types of records that hold documents."""

WITHOUT_CONTENT = ("revisit", "continuation")
"""Types of records whose content, or part of it, is in another record: they are filtered."""


def _page_of(identifier: str, headers: Headers, block: bytes | None) -> Page | Malformed | Filtered | None:
    """Return the page of a record; None for a record that describes others, such as a request."""
    kind, url = headers.get("warc-type", "").lower(), headers.get("warc-target-uri", "").strip("<>") or None
    if kind in WITHOUT_CONTENT:
        return Filtered(url or identifier, kind, "")
    if kind not in TYPES:
        return None
    if block is None:
        return Malformed(identifier, TOO_LONG_RECORD)
    fields = {"url": url, "date": headers.get("warc-date")}
    named, body, codings = headers.get("content-type", ""), block, []
    if kind == "response" and named.partition(";")[0].strip().lower() == "application/http":
        try:
            stream = io.BytesIO(block)
            status = stream.readline(HEADER_BYTES).split(None, 2)
            http = _headers_of(stream)
        except _DamagedError:
            return Malformed(identifier, "no HTTP header")
        if len(status) < 2 or not status[0].startswith(b"HTTP/"):
            return Malformed(identifier, "no HTTP header")
        if status[1] != b"200":
            return Filtered(url or identifier, "status not 200", "")
        named, body = http.get("content-type", ""), stream.read()
        for header in ("transfer-encoding", "content-encoding"):
            codings += [name.strip().lower() for name in reversed(http.get(header, "").split(","))]
    media_type, charset = _media_type(named)
    if media_type not in (*HTML_TYPES, "text/plain"):
        return Filtered(url or identifier, "not html", "")
    content: bytes | str
    try:
        content = body.decode("utf-8-sig") if kind == "conversion" else _decoded(body, codings)
    except UnicodeDecodeError:
        return Malformed(identifier, "not UTF-8")
    except ValueError as error:
        return Malformed(identifier, str(error))
    return Page(url or identifier, identifier, content, charset, media_type in HTML_TYPES, fields)


def _media_type(header: str) -> tuple[str, str | None]:
    """Return (type in lower case, charset or None) of a Content-Type."""
    media_type, *parameters = header.split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return media_type.strip().lower(), value.strip("\"' \t") or None
    return media_type.strip().lower(), None


def _decoded(body: bytes, codings: Sequence[str]) -> bytes:
    """Return a body without its transfer and content codings, given from the outermost on; at most HTML_BYTES + 1.

    Raises ValueError if it is not of a coding. A body that begins as HTML was decoded by the crawler, which kept the
    header.
    """
    for coding in codings:
        if coding in ("", "identity") or body[:100].lstrip().startswith(b"<"):
            continue
        try:
            body = _without(coding, body)
        except (zlib.error, OSError, ValueError):
            raise ValueError(f"a body that is not {coding[:20]}, as its header says") from None
    return body


def _without(coding: str, body: bytes) -> bytes:
    limit = HTML_BYTES + 1
    if coding == "chunked":
        return _without_chunks(body)
    if coding in ("gzip", "x-gzip"):
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body, limit)
    if coding == "deflate":  # zlib's format by the standard, but some servers send it without header
        try:
            return zlib.decompressobj().decompress(body, limit)
        except zlib.error:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, limit)
    if coding == "zstd":
        import pyarrow

        return pyarrow.CompressedInputStream(pyarrow.BufferReader(body), "zstd").read(limit)
    if coding == "br":
        import brotli

        try:
            return brotli.Decompressor().process(body, output_buffer_limit=limit)
        except brotli.error as error:
            raise ValueError(str(error)) from None
    raise ValueError(coding)


def _without_chunks(body: bytes) -> bytes:
    """Return a body without the sizes of its chunks; of one that was cut, what is there."""
    chunks: list[bytes] = []
    at = size = 0
    while at < len(body) and size <= HTML_BYTES:
        end = body.find(b"\n", at)
        if end < 0 and chunks:
            break
        length = int(body[at:end].partition(b";")[0], 16)
        if length < 0:
            raise ValueError("a negative size")
        if not length:
            break
        chunks.append(body[end + 1 : end + 1 + length])
        size += length
        at = end + 1 + length + (2 if body[end + 1 + length : end + 3 + length] == b"\r\n" else 1)
    return b"".join(chunks)

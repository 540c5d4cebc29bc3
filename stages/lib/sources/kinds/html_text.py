"""The text of HTML pages, extracted in a process of its own: this file, run as a script, is that process.

The parser (resiliparse) is compiled code. A page may crash it, or take it hours: an element's attributes and a list's
options cost the square of their number. Such a page ends the process, and is malformed; the next one gets a new
process. A page costs 50 us for the way to the process and back, and milliseconds to parse.
"""

from __future__ import annotations

import importlib.util
import marshal
import resource
import signal
import subprocess
import sys
from typing import IO, Any

HTML_BYTES = 16 << 20
"""The longest page, decoded. Common Crawl cuts pages at 5 MiB."""

HTML_DEPTH = 512
"""The most levels of elements, as in Chrome, which moves deeper ones up. Extraction takes their square."""

HTML_CPU_SECONDS = 30
"""CPU time for a page, which needs milliseconds. Longer take, for example, 100,000 attributes in one tag."""

HTML_MEMORY = 3 << 30
"""Address space of the process, in bytes."""

TOO_LONG = f"HTML longer than the limit html_bytes, {HTML_BYTES >> 20} MiB"
TOO_DEEP = f"HTML nested deeper than the limit html_depth, {HTML_DEPTH} levels"
TOO_SLOW = f"HTML that takes longer than the limit html_cpu_seconds, {HTML_CPU_SECONDS}"
TOO_LARGE = f"HTML that needs more than the limit html_memory, {HTML_MEMORY >> 30} GiB"

DEEPER = " > ".join("*" * (HTML_DEPTH + 1))  # a selector that matches an element below HTML_DEPTH others
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class Extractor:
    """Extracts text from pages, one at a time; `close` ends the process.

    `main_content`: False for all text of a page, menus included.
    """

    def __init__(self, main_content: bool = True) -> None:
        self._main_content = main_content
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def extract(self, page: bytes, charset: str | None, is_html: bool = True) -> tuple[str, str | None]:
        """Return (text, URL of the page's `rel=canonical` or None). `charset`: that of the HTTP header.

        Raises ValueError with the reason for which the page is malformed. A page that is not HTML is only decoded.
        """
        if len(page) > HTML_BYTES:
            raise ValueError(TOO_LONG)
        if self._process is None:
            from stages.lib.errors import UserError

            if importlib.util.find_spec("resiliparse") is None:
                raise UserError(
                    "the package resiliparse, which reads HTML, is missing: pip install -r requirements.txt"
                )
            # -P: the names of the modules beside this one are not those of packages
            command = [sys.executable, "-P", __file__, str(HTML_CPU_SECONDS)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            marshal.dump((page, charset, is_html, self._main_content), process.stdin)
            process.stdin.flush()
            reason, text, url = marshal.load(process.stdout)  # noqa: S302 (of our own process)
        except (OSError, EOFError, ValueError):
            process.kill()  # it has ended already; if not, its answer cannot be read
            process.communicate()
            self._process = None
            code = process.returncode
            if code > 0:
                raise RuntimeError(f"the process that reads HTML ended with {code}") from None
            reason = {-signal.SIGPROF: TOO_SLOW, -signal.SIGABRT: TOO_LARGE}.get(
                code, f"HTML that ends its parser by signal {-code}"
            )
            raise ValueError(reason) from None
        if reason is not None:
            raise ValueError(reason)
        return text, url


def decoded(page: bytes, charset: str | None, is_html: bool = True) -> str:
    """Return the text of a page as browsers decode it: by the byte order mark, else the charset of the HTTP header,
    else the page's `<meta>`, else by detection. Bytes that are not of the encoding are U+FFFD.
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    for mark, encoding in BYTE_ORDER_MARKS.items():
        if page.startswith(mark):
            return page[len(mark) :].decode(encoding, "replace")
    named = map_encoding_to_html5(charset.strip("\"' "), False) if charset else None
    if named is None:
        named = detect_encoding(page, from_html_meta=is_html) or "utf-8"
        if named.startswith("utf-16") and b"\0" not in page[:1024]:  # a <meta> in ASCII that says UTF-16
            named = "utf-8"
    return page.decode(named, "replace")


def _extracted(page: bytes, charset: str | None, is_html: bool, main_content: bool) -> tuple[Any, ...]:
    """Return (reason or None, text, canonical URL or None)."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    text = decoded(page, charset, is_html)
    if not is_html:
        return None, text, None
    tree = HTMLTree.parse(text)
    document = tree.document
    if document is None:
        return None, "", None
    if document.query_selector(DEEPER) is not None:
        return TOO_DEEP, None, None
    link = document.query_selector("link[rel~=canonical][href]")
    return None, extract_plain_text(tree, main_content=main_content), link.getattr("href") if link else None


def _serve(requests: IO[bytes], answers: IO[bytes], cpu_seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (HTML_MEMORY, HTML_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, which the stage handles
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while True:
        try:
            request = marshal.load(requests)  # noqa: S302 (of the stage that started this process)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            answer = _extracted(*request)
        except MemoryError:
            answer = TOO_LARGE, None, None
        signal.setitimer(signal.ITIMER_PROF, 0)
        marshal.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))

"""The Jinja environment of chat templates, as transformers has it: a sandbox, with the same options and functions.

A template is code of unknown origin. It sees plain data, cannot change it, and is stopped at LIMIT_SECONDS and at
LIMIT_BYTES. `strftime_now` is missing: with it the training data would change from day to day.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

LIMIT_SECONDS = 5.0  # of CPU per rendering; a template needs microseconds per message
LIMIT_BYTES = 1 << 30  # of memory per rendering
LIMIT_BITS = 1 << 16  # of a whole number: a signal cannot stop Python while it computes a larger one


class TooMuch(BaseException):
    """A template needs more than a limit. It is no Exception: Jinja's compiler catches these."""


class Generation(Extension):
    """The tag `{% generation %}`, with which templates mark the text of the assistant; here it only renders it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return a call block: what is set inside does not leave it, as in transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("rendered"), [], [], body).set_lineno(line)

    def rendered(self, caller: Callable[[], str]) -> str:
        """Return the text between the tags."""
        return caller()


class Namespace(jinja2.utils.Namespace):
    """`namespace()` of a template. An attribute that begins with an underscore could leave the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N805 (so that `namespace(self=1)` works)
        self, *more = args
        values = dict(*more, **kwargs)
        for name in values:
            _check_attribute(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set an attribute."""
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"an attribute of a namespace must not begin with _, got {name!r}")


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which no whole number is larger than LIMIT_BITS."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > LIMIT_BITS:
                raise OverflowError(f"a whole number has more than {LIMIT_BITS} bits")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment() -> Environment:
    """Return a new environment."""
    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = _tojson
    made.globals |= {"raise_exception": _raise_exception, "namespace": Namespace}
    return made


@contextlib.contextmanager
def limits(seconds: float = LIMIT_SECONDS) -> Iterator[None]:
    """Raise TooMuch if the block takes more CPU time, or more than LIMIT_BYTES.

    Signals reach the main thread alone: others have no limit of time.
    """
    with _time_limit(seconds), _memory_limit():
        try:
            yield
        except MemoryError:
            raise TooMuch(f"it takes more than {LIMIT_BYTES >> 30} GiB of memory") from None


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> NoReturn:
        raise TooMuch(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def _memory_limit() -> Iterator[None]:
    """Limit the addresses of the process to LIMIT_BYTES more than it has, where the system tells these (Linux)."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except OSError:
        yield
        return
    allowed = min([used + LIMIT_BYTES, *(limit for limit in before if limit != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_AS, (allowed, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

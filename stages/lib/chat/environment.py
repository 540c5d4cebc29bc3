"""The Jinja environment of chat templates, as transformers has it: a sandbox, with the same options and functions.

A template is code of unknown origin. It sees plain data, cannot change it, and is stopped after LIMIT_SECONDS.
`strftime_now` is missing: with it the training data would change from day to day.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LIMIT_SECONDS = 5.0  # of CPU per rendering; a template needs microseconds per message


class TooLong(Exception):
    """A template took more than LIMIT_SECONDS."""


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


def environment() -> ImmutableSandboxedEnvironment:
    """Return a new environment."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = _tojson
    made.globals |= {"raise_exception": _raise_exception, "namespace": Namespace}
    return made


@contextlib.contextmanager
def time_limit(seconds: float = LIMIT_SECONDS) -> Iterator[None]:
    """Raise TooLong if the block takes more CPU time. Signals reach the main thread alone: others have no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> NoReturn:
        raise TooLong(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)

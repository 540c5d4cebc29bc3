"""The Jinja environment of chat templates, as transformers has it, in a process of its own: a program.

    python environment.py SECONDS BYTES

A template is code of unknown origin. It sees plain data and cannot change it, and a rendering that takes more than
SECONDS of CPU or BYTES of memory ends this process, which nothing else needs: inside a comparison, a search or a sort
of Python's own C code no signal handler runs, so a limit within the caller's process could be passed. Jinja is all
that this file imports.

Requests and answers are those of `template.Sandbox`: a pickled (text, [variables]) on standard input; a line of JSON on
standard output, {"texts": [...]} or {"error": reason} with "line" if the text is not a template.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LIMIT = signal.SIGPROF
"""The signal by which a process ends that took more than its time."""


class Generation(Extension):
    """The tag `{% generation %}`, with which templates mark the text of the assistant; here it only renders it."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

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

    def __init__(*args: Any, **kwargs: Any) -> None:
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


class Dict:
    """`dict` of a template: its two functions, and no attribute of Python's own."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Return a mapping."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Return a mapping of keys to one value."""
        return dict.fromkeys(*args, **kwargs)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment() -> jinja2.Environment:
    """Return a new environment."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = _tojson
    made.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    made.globals |= {"namespace": Namespace, "dict": Dict()}
    return made


@functools.lru_cache(maxsize=8)
def compiled(text: str) -> jinja2.Template:
    """Return the template of a text."""
    return environment().from_string(text)


def answer(text: str, variables: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the texts of a template with each of `variables`; none only compiles it, which evaluates constants."""
    texts = []
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        template = compiled(text)
        for data in variables:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            texts.append(template.render(data))
        return {"texts": texts}
    except jinja2.TemplateSyntaxError as error:
        return {"error": error.message, "line": error.lineno}
    except MemoryError:
        raise
    except Exception as error:  # a template is a program: it may raise anything
        return {"error": (" ".join(str(error).split()) or type(error).__name__)[:300]}


def main(seconds: float, num_bytes: int) -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(LIMIT, signal.SIG_DFL)  # ends the process, whatever it computes
    with contextlib.suppress(OSError, ValueError):  # a system that does not tell or limit the size of a process
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, hard))
    with contextlib.suppress(EOFError):
        while True:
            text, variables = pickle.load(sys.stdin.buffer)  # noqa: S301  # of the process that started this one
            try:
                line = json.dumps(answer(text, variables, seconds))
            except MemoryError:
                line = json.dumps({"limit": f"it takes more than {num_bytes >> 30} GiB of memory"})
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))

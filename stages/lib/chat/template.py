"""A chat template: a Jinja text that renders messages, as the tokenizers of Hugging Face have it.

`chatml` and `tulu` are in templates/; any other is a file of the user's. Their text becomes chat_template.jinja of an
export, and `tokenizer.apply_chat_template` renders it there.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from stages.lib import files
from stages.lib.chat import environment
from stages.lib.chat.messages import ASSISTANT, Message
from stages.lib.errors import UserError

DIRECTORY = Path(__file__).parent / "templates"
FILE = "chat_template.jinja"
"""Name of a template's file beside a tokenizer."""

SHIPPED = ("chatml", "tulu")


def text_of(template: str, where: str) -> str:
    """Return the text of a template by its name or path. `where`: the key that names it.

    Raises UserError unless it is one of SHIPPED, or a file of UTF-8.
    """
    path = DIRECTORY / f"{template}.jinja" if template in SHIPPED else Path(template)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where} must be a text file of UTF-8, and {path} is not") from None
    except OSError as error:
        known = ", ".join(SHIPPED)
        raise UserError(f"{where} must be {known} or a file, and {path} cannot be read: {error.strerror}") from None


def text_beside(directory: Path) -> str | None:
    """Return the text of the template in the directory of a Hugging Face tokenizer; None if it has none."""
    if (path := directory / FILE).is_file():
        return text_of(str(path), str(path))
    config = directory / "tokenizer_config.json"
    found = files.read_json_object(config).get("chat_template") if config.is_file() else None
    if isinstance(found, list):  # several by their names, as older versions of transformers wrote them
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found if isinstance(found, str) else None


Tools = Sequence[Mapping[str, Any]] | None
"""The descriptions of the tools that a conversation may call, as JSON schemas; None without any."""


class LimitError(UserError):
    """A template took more time or memory than a rendering may."""


class _TemplateError(Exception):
    """A template is not valid (`line`), or failed."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Sandbox:
    """The process that renders all chat templates of this one, see `environment`. It starts with the first of them, and
    again after one that it did not survive.

    Its limits hold per rendering: seconds of CPU, and bytes of memory, where the system tells these (Linux).
    """

    SECONDS = 5.0  # a template needs microseconds per message
    BYTES = 1 << 30

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._lock = os.getpid(), threading.Lock()

    def texts(self, template: str, variables: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the text of a template with each of `variables`; without any, it is compiled alone.

        Raises _TemplateError if it is not valid or fails, LimitError with the limit that it reached.
        """
        if self._owner != os.getpid():  # after a fork the process answers to the parent
            self.__init__()  # type: ignore[misc]
        with self._lock:
            line = self._ask(pickle.dumps((template, list(variables))))
        answer = json.loads(line)
        if "limit" in answer:
            raise LimitError(answer["limit"])
        if "error" in answer:
            raise _TemplateError(answer["error"], answer.get("line"))
        texts: list[str] = answer["texts"]
        return texts

    def _ask(self, request: bytes) -> bytes:
        """Return the line with which the process answers a request. Raises LimitError if it ends."""
        if self._process is None:
            limits = (f"{self.SECONDS:g}", str(self.BYTES))
            self._process = subprocess.Popen(  # its signals are its own: Ctrl-C ends an answer, not this process
                [sys.executable, "-P", environment.__file__, *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            atexit.register(self.stop)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        line = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
        if not line.endswith(b"\n"):
            self.stop()
            time_is_up = process.returncode == -environment.LIMIT
            reason = f"takes more than {self.SECONDS:g} s" if time_is_up else "ends the process that renders it"
            raise LimitError(f"it {reason}")
        return line

    def stop(self) -> None:
        """End the process, unless it is that of a process that this one was forked from."""
        if self._process is None or self._owner != os.getpid():
            return
        process, self._process = self._process, None
        atexit.unregister(self.stop)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # the process ends with its input
        process.wait()


SANDBOX = Sandbox()


class ChatTemplate:
    """A compiled template. `special_tokens`: {"bos_token": text, ...}, which it may write. `name`: for messages.

    `same_text_always`: refuse one that may write the date. Raises UserError, with the line, for a text that is not a
    template.
    """

    def __init__(
        self, text: str, special_tokens: Mapping[str, str], name: str, *, same_text_always: bool = True
    ) -> None:
        self.text, self.special_tokens, self.name = text, dict(special_tokens), name
        if same_text_always and "strftime_now" in text:
            raise UserError(f"the chat template {name} must not use strftime_now: its text would change every day")
        try:
            SANDBOX.texts(text, [])
        except _TemplateError as error:  # invalid, or with too many nested blocks or brackets for Python
            if error.line is None:
                raise UserError(f"the chat template {name} cannot be compiled: {error}") from None
            raise UserError(f"the chat template {name}, line {error.line}, is not valid: {error}") from None
        except LimitError as error:
            raise LimitError(f"the chat template {name} cannot be compiled: {error}") from None

    def render(
        self, messages: Sequence[Message], where: str, generation_prompt: bool = False, tools: Tools = None
    ) -> str:
        """Return the text of messages. `generation_prompt`: add what comes before an answer of the assistant.

        `tools`: that may be called. `where`: the conversation, for messages. Raises UserError if the template fails, as
        by raise_exception.
        """
        return self.render_each([(messages, generation_prompt)], where, tools)[0]

    def render_each(
        self, chats: Sequence[tuple[Sequence[Message], bool]], where: str, tools: Tools = None
    ) -> list[str]:
        """Return the text of each (messages, generation prompt) of one conversation; arguments as of `render`."""
        variables = [
            {"messages": list(messages), "tools": tools, "documents": None, "add_generation_prompt": generation_prompt}
            | self.special_tokens
            for messages, generation_prompt in chats
        ]
        try:
            return SANDBOX.texts(self.text, variables)
        except (_TemplateError, LimitError) as error:
            kind = LimitError if isinstance(error, LimitError) else UserError
            raise kind(f"{where} cannot be rendered by the chat template {self.name}: {error}") from None


class _OfTransformers:
    """A compiled template as transformers calls it: what the sandbox renders."""

    def __init__(self, text: str) -> None:
        self.text = text

    def render(self, **variables: Any) -> str:
        """Return the text. Raises jinja2.TemplateError if the template fails, LimitError at a limit."""
        try:
            return SANDBOX.texts(self.text, [variables])[0]
        except _TemplateError as error:
            raise jinja2.TemplateError(str(error)) from None
        except LimitError as error:
            raise LimitError(f"the model's chat template cannot render a question: {error}") from None


@contextlib.contextmanager
def guarded_transformers() -> Iterator[None]:
    """Let `apply_chat_template` of transformers render in the sandbox, with its limits."""
    from transformers.utils import chat_template_utils

    theirs, chat_template_utils._compile_jinja_template = chat_template_utils._compile_jinja_template, _OfTransformers
    try:
        yield
    finally:
        chat_template_utils._compile_jinja_template = theirs


Span = tuple[int, int]
"""Characters [begin, end) of a text."""


def assistant_spans(
    template: ChatTemplate, messages: Sequence[Message], where: str, first: int = 0, tools: Tools = None
) -> tuple[str, list[Span]]:
    """Return the text of a conversation, and the span of each turn of the assistant from message `first` on.

    A turn is what the messages up to it have more than those before it with the generation prompt: what the model must
    write after that prompt, markers included. Raises UserError if these texts do not begin with each other, or a turn
    has no text but EOS.
    """
    eos = template.special_tokens["eos_token"]
    turns = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT and number >= first]
    parts = [part for turn in turns for part in ((messages[:turn], True), (messages[: turn + 1], False))]
    text, *texts = template.render_each([(messages, False), *parts], where, tools)
    found = []
    for number, before, after in zip(turns, texts[::2], texts[1::2], strict=True):
        if not (after.startswith(before) and text.startswith(after)):
            raise UserError(
                f"the chat template {template.name} must render the messages up to a turn of the assistant as the "
                f"beginning of the conversation, and before it with the generation prompt; it does not for message "
                f"{number} of {where}"
            )
        if not after[len(before) :].replace(eos, "").strip():
            raise UserError(
                f"the chat template {template.name} must render each turn of the assistant as text, and renders "
                f"nothing for message {number} of {where}"
            )
        found.append((len(before), len(after)))
    return text, found

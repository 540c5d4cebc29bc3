"""A chat template: a Jinja text that renders messages, as the tokenizers of Hugging Face have it.

`chatml` and `tulu` are in templates/; any other is a file of the user's. Their text becomes chat_template.jinja of an
export, and `tokenizer.apply_chat_template` renders it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from stages.lib import files
from stages.lib.chat.environment import TooMuch, environment, limits
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


class ChatTemplate:
    """A compiled template. `special_tokens`: {"bos_token": text, ...}, which it may write. `name`: for messages.

    Raises UserError, with the line, for a text that is not a template.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str], name: str) -> None:
        self.text, self.special_tokens, self.name = text, dict(special_tokens), name
        if "strftime_now" in text:
            raise UserError(f"the chat template {name} must not use strftime_now: its text would change every day")
        try:
            with limits():  # the compiler evaluates constant expressions
                self._compiled = environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"the chat template {name}, line {error.lineno}, is not valid: {error.message}") from None
        except (Exception, TooMuch) as error:  # too many nested blocks, or brackets, for Python
            raise UserError(f"the chat template {name} cannot be compiled: {_reason(error)}") from None

    def render(self, messages: Sequence[Message], where: str, generation_prompt: bool = False) -> str:
        """Return the text of messages. `generation_prompt`: add what comes before an answer of the assistant.

        `where`: the conversation, for messages. Raises UserError if the template fails, as by raise_exception.
        """
        data = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": generation_prompt}
        try:
            with limits():
                return self._compiled.render(data | self.special_tokens)
        except (Exception, TooMuch) as error:  # a template is a program: it may raise anything
            raise UserError(f"{where} cannot be rendered by the chat template {self.name}: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


Span = tuple[int, int]
"""Characters [begin, end) of a text."""


def assistant_spans(
    template: ChatTemplate, messages: Sequence[Message], where: str, first: int = 0
) -> tuple[str, list[Span]]:
    """Return the text of a conversation, and the span of each turn of the assistant from message `first` on.

    A turn is what the messages up to it have more than those before it with the generation prompt: what the model must
    write after that prompt, markers included. Raises UserError if these texts do not begin with each other, or a turn
    has no text but EOS.
    """
    eos = template.special_tokens["eos_token"]
    text, found = template.render(messages, where), []
    for number, message in enumerate(messages):
        if message["role"] != ASSISTANT or number < first:
            continue
        before = template.render(messages[:number], where, generation_prompt=True)
        after = template.render(messages[: number + 1], where)
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

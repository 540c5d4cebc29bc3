"""The messages of a conversation, as Hugging Face and OpenAI write them: mappings with a role and a content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stages.lib.errors import UserError

ASSISTANT = "assistant"
ROLES = ("system", "user", ASSISTANT, "tool")

Message = dict[str, Any]
"""`role`, `content`, and what else a template reads (`name`, `tool_calls`, ...)."""


def checked(value: Any, where: str) -> list[Message]:
    """Return the messages of a record, without the keys whose value is None, as transformers leaves them out.

    `where`: the record and its field, for messages. Raises UserError for what is not a conversation.
    """
    if not isinstance(value, (list, tuple)) or not value:
        raise UserError(f"{where} must be a list of messages, got {value!r:.60}")
    messages = [_checked_message(message, f"{where}[{number}]") for number, message in enumerate(value)]
    if all(message["role"] != ASSISTANT for message in messages):
        raise UserError(f"{where} must have a message of the assistant, got {_roles(messages)} alone")
    return messages


def _checked_message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a mapping with role and content, got {value!r:.60}")
    message = {key: item for key, item in value.items() if item is not None}
    if message.get("role") not in ROLES:
        raise UserError(f"{where}.role must be one of {', '.join(ROLES)}, got {message.get('role')!r:.60}")
    content = message.get("content", "")
    if not isinstance(content, str):
        raise UserError(f"{where}.content must be text, got {content!r:.60}")
    if not content.strip() and not message.get("tool_calls"):  # a call of a tool needs no text
        raise UserError(f"{where}.content must not be empty, got {message.get('content')!r:.60}")
    return message


def _roles(messages: Sequence[Message]) -> str:
    return " and ".join(dict.fromkeys(message["role"] for message in messages))


def text_of(messages: Sequence[Message]) -> str:
    """Return the contents of all messages, a line end after each: what filters measure."""
    return "".join(f"{message.get('content', '')}\n" for message in messages)


def prompt_of(messages: Sequence[Message]) -> str:
    """Return the messages before the assistant's first, as text: conversations with equal prompts share a split."""
    first = next(number for number, message in enumerate(messages) if message["role"] == ASSISTANT)
    return key_of(messages[:first])


def key_of(messages: Sequence[Message]) -> str:
    """Return messages as text that equal messages share."""
    return json.dumps(messages, sort_keys=True, default=str)

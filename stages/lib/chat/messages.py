"""The messages of a conversation, as Hugging Face and OpenAI write them: mappings with a role and a content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.lib.errors import UserError

ASSISTANT = "assistant"
ROLES = ("system", "user", ASSISTANT, "tool")
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the text that the assistant thinks. Transformers gives it to a template by the first two of them."""

Message = dict[str, Any]
"""`role`, `content`, and what else a template reads (`name`, `tool_calls`, ...)."""


def checked(value: Any, where: str) -> list[Message]:
    """Return the messages of a record as transformers gives them to a template: without the keys whose value is None,
    and with the names of REASONING.

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
    calls = message.get("tool_calls", [])
    if not isinstance(calls, (list, tuple)) or not all(isinstance(call, Mapping) for call in calls):
        raise UserError(f"{where}.tool_calls must be a list of mappings, got {calls!r:.60}")
    if not content.strip() and not (calls and message["role"] == ASSISTANT):  # a call of a tool needs no text
        raise UserError(f"{where}.content must not be empty, got {message.get('content')!r:.60}")
    reasoning = next((message[name] for name in REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _roles(messages: Sequence[Message]) -> str:
    return " and ".join(dict.fromkeys(message["role"] for message in messages))


def text_of(messages: Sequence[Message]) -> str:
    """Return the contents of all messages, a line end after each: what filters measure."""
    return "".join(f"{message.get('content', '')}\n" for message in messages)


def strings_of(messages: Sequence[Message]) -> Iterator[str]:
    """Yield all texts of messages, also those of keys and of calls of tools."""
    rest: list[Any] = [*messages]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            rest += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            rest += value


def prompt_of(messages: Sequence[Message]) -> str:
    """Return the messages before the assistant's first answer, as text: conversations with equal prompts share a split.

    A greeting of the assistant is no answer: one begins all conversations of some sources.
    """
    roles = [message["role"] for message in messages]
    asked = next((number for number, role in enumerate(roles) if role not in ("system", ASSISTANT)), len(roles))
    return key_of(messages[: roles.index(ASSISTANT, asked) if ASSISTANT in roles[asked:] else len(roles)])


def key_of(messages: Sequence[Message]) -> str:
    """Return messages as text that equal messages share."""
    return json.dumps(messages, sort_keys=True, default=str)

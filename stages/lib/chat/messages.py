"""The messages of a conversation, as Hugging Face and OpenAI write them: mappings with a role and a content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.lib.errors import UserError

ASSISTANT = "assistant"
ROLES = ("system", "user", ASSISTANT, "tool")
MAY_BE_EMPTY = ("system", "tool")  # a command without output is a result
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the text that the assistant thinks. Transformers gives it to a template by the first two of them."""

Message = dict[str, Any]
"""`role`, `content`, and what else a template reads (`name`, `tool_calls`, ...)."""


TOOLS = "tools"
"""The field of a record with the tools that a conversation may call, as TRL reads it."""

NOT_READ = ("system", "functions", "documents", "chat_template_kwargs")
"""Other fields of a record that some programs give to a chat template. None reaches one here."""


def plain(value: Any) -> Any:
    """Return data without the keys whose value is None, and with mappings for Arrow's lists of pairs.

    A column of a parquet file has every key that one of its rows has, so that a record's missing keys are None there;
    TRL drops them likewise.
    """
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        value = dict(value)  # Arrow's maps; JSON has no tuples
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def checked_tools(value: Any, where: str) -> list[dict[str, Any]] | None:
    """Return the tools of a record, a list of mappings or its JSON text; None without any.

    Raises UserError for anything else.
    """
    found = value
    if isinstance(value, str) and value.strip():
        try:
            found = json.loads(value)
        except ValueError:
            raise UserError(f"{where} must be a list of tools or its JSON text, got {value!r:.60}") from None
    if not found:
        return None
    if not isinstance(found, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in found):
        raise UserError(f"{where} must be a list of mappings, one per tool, got {value!r:.60}")
    tools: list[dict[str, Any]] = plain(found)
    return tools


def checked(value: Any, where: str) -> list[Message]:
    """Return the messages of a record as a template reads them: `plain`, with the names of REASONING, and with the
    arguments of calls as mappings, which OpenAI writes as JSON text.

    `where`: the record and its field, for messages. Raises UserError for what is not a conversation.
    """
    if not isinstance(value, (list, tuple)) or not value:
        raise UserError(f"{where} must be a list of messages, got {value!r:.60}")
    messages = [_checked_message(message, f"{where}[{number}]") for number, message in enumerate(value)]
    if all(message["role"] != ASSISTANT for message in messages):
        roles = " and ".join(dict.fromkeys(message["role"] for message in messages))
        raise UserError(f"{where} must have a message of the assistant, got {roles} alone")
    return messages


def _checked_message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a mapping with role and content, got {value!r:.60}")
    message: Message = plain(value)
    if message.get("role") not in ROLES:
        raise UserError(f"{where}.role must be one of {', '.join(ROLES)}, got {message.get('role')!r:.60}")
    content = message.get("content", "")
    if not isinstance(content, str):
        raise UserError(f"{where}.content must be text, got {content!r:.60}")
    calls = message.get("tool_calls", [])
    if not isinstance(calls, (list, tuple)) or not all(isinstance(call, Mapping) for call in calls):
        raise UserError(f"{where}.tool_calls must be a list of mappings, got {calls!r:.60}")
    if message["role"] in MAY_BE_EMPTY:
        message["content"] = content
    elif not content.strip() and not (calls and message["role"] == ASSISTANT):  # a call of a tool needs no text
        raise UserError(f"{where}.content must not be empty, got {message.get('content')!r:.60}")
    if calls:
        message["tool_calls"] = [_with_arguments(call) for call in calls]
    reasoning = next((message[name] for name in REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a tool, or the function in it, with the mapping that the JSON text of its arguments holds.

    Empty text, and the empty list as which Arrow has an empty map, are no arguments: {}. Text that is no JSON object
    stays as it is.
    """
    if isinstance(call.get("function"), dict):
        return call | {"function": _with_arguments(call["function"])}
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            return call
    elif arguments != []:
        return call
    return call | {"arguments": plain(arguments or {})} if isinstance(arguments, dict) or not arguments else call


def arguments_of(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as `checked` returns them; None without any."""
    inner = call.get("function")
    return (inner if isinstance(inner, dict) else call).get("arguments")


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

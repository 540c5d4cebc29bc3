"""The kind `chat`: records with the messages of a conversation, to fine-tune on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from stages.lib.chat import messages as chat_messages
from stages.lib.chat.messages import TOOLS
from stages.lib.errors import UserError
from stages.lib.sources.entries import field_of
from stages.lib.sources.kinds import example_files
from stages.lib.sources.kinds.example_files import ExampleKind
from stages.lib.sources.kinds.kind import ConversationRecord

if TYPE_CHECKING:
    from stages.lib.sources.source_fields import SourceFields

SHAREGPT = "conversations"
"""The field of the turns in ShareGPT's files."""


class Chat(ExampleKind):
    """A conversation is a line that holds a JSON object, or a row of a parquet file."""

    name = "chat"
    fields = ("messages_field", "split_field", "filters")
    is_chat = True

    def conversations(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[ConversationRecord]:
        """Yield (id, split key, messages, tools) of each record."""
        field, own = recipe.messages_field, recipe.split_field
        for identifier, where, entry in example_files.records(names, (field, own), optional=(TOOLS,)):
            value = field_of(entry, field, None)
            given = entry.get(SHAREGPT) if value is None else value
            if isinstance(given, (list, tuple)) and given and isinstance(given[0], Mapping) and "from" in given[0]:
                raise UserError(
                    f"{where} has turns in ShareGPT's form, with from and value: rewrite each as role (human is user, "
                    f"gpt is assistant) and content, in {field}, or in another field that messages_field names"
                )
            found = chat_messages.checked(example_files.value_of(entry, field, where), f"{where}: {field}")
            key = chat_messages.prompt_of(found) if own is None else example_files.split_key(entry, own, where)
            yield identifier, key, found, chat_messages.checked_tools(entry.get(TOOLS), f"{where}: {TOOLS}")

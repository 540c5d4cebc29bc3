"""The registry of the kinds of sources. No other module compares names of kinds.

To add a kind:

1. Write `kinds/NAME.py` with a subclass of SourceKind. Set its `name`, the `fields` of the recipe that it reads and the
   `endings` of its files. Implement `records`, which reads a span of a file as a stream; or `pairs` if it holds
   prompt-completion data (`is_prompt_completion = True`), or `conversations` if it holds chats (`is_chat = True`). If a
   file can be read from its middle, also implement `can_be_cut`, `cut_positions` and `extent`: parts, and samples of
   `tools.inspect`, then read spans of it. jsonl.py is a short example, parquet.py one with columns.
2. Add an instance to KINDS below.
3. Describe the kind in the docstring of `SourceRecipe.kind` (sources/source.py). The names of the kinds of
   prompt-completion data, preferences and chats also stand in workflow/scripts/config/references.py; a test compares
   them.
4. Test it with a file through `stages.list` and `stages.tokenize`, as tests/stages/test_source_fields.py does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stages.lib.sources.kinds.arrow import Arrow
from stages.lib.sources.kinds.chat import Chat
from stages.lib.sources.kinds.jsonl import Jsonl
from stages.lib.sources.kinds.kind import SourceKind
from stages.lib.sources.kinds.parquet import Parquet
from stages.lib.sources.kinds.preference import Preference
from stages.lib.sources.kinds.prompt_completion import PromptCompletion
from stages.lib.sources.kinds.python_code import PythonCode
from stages.lib.sources.kinds.python_prose import PythonProse
from stages.lib.sources.kinds.python_statements import PythonStatements
from stages.lib.sources.kinds.text import Text

if TYPE_CHECKING:
    from stages.lib.sources.source import SourceRecipe

KINDS: dict[str, SourceKind] = {
    kind.name: kind
    for kind in (
        Text(),
        Jsonl(),
        Parquet(),
        Arrow(),
        PythonCode(),
        PythonProse(),
        PromptCompletion(),
        PythonStatements(),
        Chat(),
        Preference(),
    )
}
"""The kinds by name, in the order in which messages and the schema list them."""

DOCUMENT_KINDS = tuple(name for name, kind in KINDS.items() if kind.has_documents)
PROMPT_COMPLETION_KINDS = tuple(name for name, kind in KINDS.items() if kind.is_prompt_completion)
CHAT_KINDS = tuple(name for name, kind in KINDS.items() if kind.is_chat)
PREFERENCE_KINDS = tuple(name for name, kind in KINDS.items() if kind.is_preference)
FIELDS_OF_SOME_KINDS = frozenset(field for kind in KINDS.values() for field in kind.fields)


def kind_of(recipe: SourceRecipe) -> SourceKind:
    """Return the kind of a source."""
    return KINDS[recipe.kind]


def foreign_endings(kind: SourceKind) -> tuple[str, ...]:
    """Return the endings that belong to other kinds alone."""
    return tuple(
        ending
        for other in KINDS.values()
        if other.owns_endings
        for ending in other.endings
        if ending not in kind.endings
    )

"""The registry of the kinds of sources. No other module of stages compares names of kinds.

docs/extend/source_kind.md has the steps to add one. Kinds with which parts, and samples of `tools.inspect`, read spans
of a file implement `can_be_cut`, `cut_positions` and `extent`.
"""

from __future__ import annotations

from stages.lib.sources.kinds.datasets import Datatrove, Dolma, NemoCurator
from stages.lib.sources.kinds.example_kinds import Chat, Preference, PromptCompletion
from stages.lib.sources.kinds.kind import SourceFields, SourceKind
from stages.lib.sources.kinds.lines import Jsonl, Text
from stages.lib.sources.kinds.python_kinds import PythonCode, PythonProse, PythonStatements
from stages.lib.sources.kinds.tables import Arrow, Parquet
from stages.lib.sources.kinds.web import Html, Warc

KINDS: dict[str, SourceKind] = {
    kind.name: kind
    for kind in (
        Text(),
        Jsonl(),
        Parquet(),
        Arrow(),
        Warc(),
        Html(),
        Datatrove(),
        Dolma(),
        NemoCurator(),
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
PROMPT_COMPLETION_KINDS = tuple(name for name, kind in KINDS.items() if "pairs" in kind.yields)
CHAT_KINDS = tuple(name for name, kind in KINDS.items() if "conversations" in kind.yields)
PREFERENCE_KINDS = tuple(name for name, kind in KINDS.items() if "preferences" in kind.yields)
FIELDS_OF_SOME_KINDS = frozenset(field for kind in KINDS.values() for field in kind.fields)


def kind_of(recipe: SourceFields) -> SourceKind:
    """Return the kind of a source."""
    return KINDS[recipe.kind]

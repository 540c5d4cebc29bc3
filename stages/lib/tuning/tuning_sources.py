"""The sources of a fine-tuning, read by their lists, and checked against the recipe."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib.chat import template as chat_templates
from stages.lib.chat.template import ChatTemplate
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import documents, examples, source, spans
from stages.lib.sources.documents import FilterCounts
from stages.lib.sources.entries import Document
from stages.lib.sources.examples import ExampleSource
from stages.lib.sources.kinds.kind import SourceKind
from stages.lib.sources.kinds.registry import DOCUMENT_KINDS, PREFERENCE_KINDS, kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
from stages.lib.tuning import records
from stages.lib.tuning.tuning_data import ExampleSources, PreferenceSources, TuningSources


def read_texts(path: Path | str) -> ExampleSource[Document]:
    """Read the documents of a source; arguments as of `prompt_completion.read`.

    Raises UserError if its documents are token ids, more records are malformed than `max_malformed` allows, or a file
    is not as it was listed.
    """
    _, name, _ = source.read_list(path)
    return examples.read(path, DOCUMENT_KINDS, "documents", functools.partial(_text_records, name))


def _text_records(name: str, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Document]:
    """Yield the documents of the files `names` that are neither malformed nor filtered."""
    if recipe.token_ids_field is not None:
        raise UserError(f"sources.{name}.token_ids_field must be left out to fine-tune on it: only text is read")
    counts = FilterCounts(name, recipe.max_malformed)
    for entry in documents.read(recipe, spans.whole(names), names):
        if (kept := counts.keep(entry)) is not None:
            yield kept
    counts.check()
    counts.check_rest()


def template_of(recipe: Any, initial: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the chat template that a FinetuneRecipe names, or else that of the initial model; None without both.

    `initial`: text of the initial model's. Raises UserError if the named one is not valid. If the initial model's is
    not, a warning is logged: only conversations need one.
    """
    special = special_tokens(tokenizer.manifest)
    if recipe.template is not None:
        return ChatTemplate(chat_templates.text_of(recipe.template, "finetune.template"), special, recipe.template)
    try:
        return None if initial is None else ChatTemplate(initial, special, "of the initial model")
    except UserError as error:
        logger.warning("the initial model's chat template is not used: %s", error)
        return None


def read(lists: Iterable[Path], recipe: Any, template: ChatTemplate | None) -> TuningSources:
    """Read the sources of a fine-tuning. `lists`: the manifests of stages.list. `recipe`: a FinetuneRecipe.

    Raises UserError if they are not those of `finetune.weights`, conversations come without a template or the recipe's
    template without conversations, or `finetune.dpo` comes without preferences.
    """
    paths = {source.read_list(path)[1]: path for path in lists}
    if sorted(paths) != sorted(recipe.weights):
        expected, found = (", ".join(sorted(names)) for names in (recipe.weights, paths))
        raise UserError(f"--sources must be the lists of the sources of finetune.weights ({expected}), got {found}")
    kinds = {name: kind_of(source.read_list(path)[2]) for name, path in sorted(paths.items())}
    if recipe.dpo is not None:
        return _preferences(paths, kinds, recipe, template)
    _check_template(recipe, template, [name for name, kind in kinds.items() if "conversations" in kind.yields])
    return ExampleSources(sources={name: _reader(kind)(paths[name]) for name, kind in kinds.items()}, template=template)


def _preferences(
    paths: Mapping[str, Path], kinds: Mapping[str, SourceKind], recipe: Any, template: ChatTemplate | None
) -> PreferenceSources:
    for name, kind in kinds.items():
        if "preferences" not in kind.yields:
            expected = " or ".join(PREFERENCE_KINDS)
            raise UserError(f"sources.{name}.kind must be {expected} for finetune.dpo, got {kind.name}")
    found = {name: records.read_preferences(path) for name, path in paths.items()}
    _check_template(recipe, template, [name for name, one in found.items() if records.has_conversations(one)])
    return PreferenceSources(sources=found, template=template)


def _check_template(recipe: Any, template: ChatTemplate | None, of_conversations: Sequence[str]) -> None:
    """Raise UserError if a template is missing, or has no effect. `of_conversations`: names of such sources."""
    if of_conversations and template is None:
        raise UserError(
            f"finetune.template is missing: source {of_conversations[0]} has conversations, and the initial model has "
            "no chat template that can be used"
        )
    if recipe.template is not None and not of_conversations:
        raise UserError("finetune.template must be left out: no source of finetune.weights has conversations")


def _reader(kind: SourceKind) -> Callable[[Path], ExampleSource[Any]]:
    if "conversations" in kind.yields:
        return records.read_chats
    return examples.read_pairs if "pairs" in kind.yields else read_texts

"""The sources of a fine-tuning, read by their lists, and checked against the recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stages.lib.chat import template as chat_templates
from stages.lib.chat.template import ChatTemplate
from stages.lib.errors import UserError
from stages.lib.sources import prompt_completion, source
from stages.lib.sources.examples import ExampleSource
from stages.lib.sources.kinds.kind import SourceKind
from stages.lib.sources.kinds.registry import PREFERENCE_KINDS, kind_of
from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
from stages.lib.tuning import chats, preferences, texts
from stages.lib.tuning.tuning_data import ExampleSources, PreferenceSources, TuningSources


def read(lists: Iterable[Path], recipe: Any, tokenizer: Tokenizer, template_text: str | None = None) -> TuningSources:
    """Read the sources of a fine-tuning. `lists`: the manifests of stages.list. `recipe`: a FinetuneRecipe.

    `template_text`: of the template that the recipe names, if it is known.

    Raises UserError if they are not those of `finetune.weights`, conversations and `finetune.template` do not come
    together, or `finetune.dpo` comes without preferences.
    """
    paths = {source.read_list(path)[1]: path for path in lists}
    if sorted(paths) != sorted(recipe.weights):
        expected, found = (", ".join(sorted(names)) for names in (recipe.weights, paths))
        raise UserError(f"--sources must be the lists of the sources of finetune.weights ({expected}), got {found}")
    if recipe.dpo is not None:
        return _preferences(paths)
    kinds = {name: kind_of(source.read_list(path)[2]) for name, path in sorted(paths.items())}
    of_chats = [name for name, kind in kinds.items() if kind.is_chat]
    if of_chats and recipe.template is None:
        raise UserError(f"finetune.template is missing: source {of_chats[0]} has conversations (kind chat)")
    if recipe.template is not None and not of_chats:
        raise UserError(
            "finetune.template must be left out: no source of finetune.weights has conversations (kind chat)"
        )
    template = _template(recipe.template, tokenizer, template_text) if recipe.template is not None else None
    return ExampleSources(sources={name: _reader(kind)(paths[name]) for name, kind in kinds.items()}, template=template)


def _preferences(paths: dict[str, Path]) -> PreferenceSources:
    for name, path in paths.items():
        kind = kind_of(source.read_list(path)[2])
        if not kind.is_preference:
            expected = " or ".join(PREFERENCE_KINDS)
            raise UserError(f"sources.{name}.kind must be {expected} for finetune.dpo, got {kind.name}")
    return PreferenceSources(sources={name: preferences.read(path) for name, path in paths.items()})


def _template(name: str, tokenizer: Tokenizer, text: str | None) -> ChatTemplate:
    text = chat_templates.text_of(name, "finetune.template") if text is None else text
    return ChatTemplate(text, special_tokens(tokenizer.manifest), name)


def _reader(kind: SourceKind) -> Callable[[Path], ExampleSource[Any]]:
    if kind.is_chat:
        return chats.read
    return prompt_completion.read if kind.is_prompt_completion else texts.read

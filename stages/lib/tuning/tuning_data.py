"""The sources of a fine-tuning: read by their lists, checked against the recipe, and encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.chat import template as chat_templates
from stages.lib.chat.template import ChatTemplate
from stages.lib.errors import UserError
from stages.lib.sources import prompt_completion, source
from stages.lib.sources.examples import ExampleSource
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
from stages.lib.tuning import chats, texts, tuning_samples
from stages.lib.tuning.encoded_examples import Encoded, ExampleEncoder
from stages.lib.tuning.tuning_samples import TuningSamples


@dataclass(frozen=True, kw_only=True)
class EncodedSources:
    """The examples of each source, none longer than a sample. `end`: the id that separates the examples of a sample."""

    train: dict[str, list[Encoded]]
    validation: dict[str, list[Encoded]]
    end: int


@dataclass(frozen=True, kw_only=True)
class TuningSources:
    """The sources by name. `template`: the chat template of conversations, None without any."""

    sources: dict[str, ExampleSource[Any]]
    template: ChatTemplate | None

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each source."""
        return {name: found.digest for name, found in sorted(self.sources.items())}

    def encoded(self, tokenizer: Tokenizer, bos: bool, recipe: Any) -> EncodedSources:
        """Return the encoded examples. `bos`: documents of the corpus begin with BOS. `recipe`: a
        FinetuneRecipe.

        Raises UserError if a split of a source has no example that fits a sample.
        """
        encoder = ExampleEncoder(tokenizer=tokenizer, bos=bos, template=self.template, loss_on=recipe.loss_on)
        splits: dict[str, dict[str, list[Encoded]]] = {"training": {}, "validation": {}}
        for name, found in self.sources.items():
            for split, examples in (("training", found.train), ("validation", found.validation)):
                where = f"the {split} split of source {name}"
                splits[split][name] = tuning_samples.fitted(
                    encoder.encode(examples), recipe.seq_len, where, recipe.too_long, tokenizer
                )
        every = [encoded for split in splits.values() for encoded in split.values()]
        end = tuning_samples.separator(every, tokenizer.eos, tokenizer.vocab_size)
        return EncodedSources(train=splits["training"], validation=splits["validation"], end=end)


def read(lists: Iterable[Path], recipe: Any, tokenizer: Tokenizer, template_text: str | None = None) -> TuningSources:
    """Read the sources of a fine-tuning. `lists`: the manifests of stages.list. `recipe`: a FinetuneRecipe.

    `template_text`: of the template that the recipe names, if it is known.

    Raises UserError if they are not those of `finetune.weights`, or conversations and `finetune.template` do not come
    together.
    """
    paths = {source.read_list(path)[1]: path for path in lists}
    if sorted(paths) != sorted(recipe.weights):
        expected, found = (", ".join(sorted(names)) for names in (recipe.weights, paths))
        raise UserError(f"--sources must be the lists of the sources of finetune.weights ({expected}), got {found}")
    kinds = {name: kind_of(source.read_list(path)[2]) for name, path in sorted(paths.items())}
    of_chats = [name for name, kind in kinds.items() if kind.is_chat]
    if of_chats and recipe.template is None:
        raise UserError(f"finetune.template is missing: source {of_chats[0]} has conversations (kind chat)")
    if recipe.template is not None and not of_chats:
        raise UserError(
            "finetune.template must be left out: no source of finetune.weights has conversations (kind chat)"
        )
    template = _template(recipe.template, tokenizer, template_text) if recipe.template is not None else None
    return TuningSources(sources={name: _reader(kind)(paths[name]) for name, kind in kinds.items()}, template=template)


def _template(name: str, tokenizer: Tokenizer, text: str | None) -> ChatTemplate:
    text = chat_templates.text_of(name, "finetune.template") if text is None else text
    return ChatTemplate(text, special_tokens(tokenizer.manifest), name)


def _reader(kind: Any) -> Callable[[Path], ExampleSource[Any]]:
    if kind.is_chat:
        return chats.read
    return prompt_completion.read if kind.is_prompt_completion else texts.read


def samples(encoded: EncodedSources, recipe: Any) -> TuningSamples:
    """Return the training samples of a FinetuneRecipe."""
    return TuningSamples(encoded.train, recipe.weights, recipe.seq_len, recipe.seed, encoded.end, recipe.packing)

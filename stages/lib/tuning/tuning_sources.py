"""The sources of a fine-tuning, read by their lists and checked against the recipe, and the data made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib.chat import template as chat_templates
from stages.lib.chat.template import ChatTemplate
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import examples, source
from stages.lib.sources.examples import Conversation, ExampleSource
from stages.lib.sources.kinds.registry import PREFERENCE_KINDS, kind_of
from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
from stages.lib.tuning import preference_samples, tuning_samples
from stages.lib.tuning.encoded_examples import Encoded, ExampleEncoder
from stages.lib.tuning.preference_samples import PreferenceSamples
from stages.lib.tuning.tuning_samples import MixedSamples, TuningSamples


@dataclass(frozen=True, kw_only=True)
class TuningData:
    """`validation`, `num_bytes`: by source, see `training.validation.Validation`."""

    samples: MixedSamples[Any]
    validation: dict[str, tuple[np.ndarray, ...]]
    num_bytes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class TuningSources:
    """The sources by name. `template`: the chat template of conversations, and of the exports; None without one."""

    sources: dict[str, ExampleSource[Any]]
    template: ChatTemplate | None = None

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each source."""
        return {name: found.digest for name, found in sorted(self.sources.items())}

    def data(self, tokenizer: Tokenizer, bos: bool, recipe: Any, validation_tokens: Callable[[int], int]) -> TuningData:
        """Return samples and validation rows. `recipe`: a FinetuneRecipe. `bos`: documents of the corpus begin with it.

        `validation_tokens`: those of each source by the samples of an epoch, see `chosen_for_validation`. Raises
        UserError if a split of a source has no example that fits a sample.
        """
        make = self._rows if recipe.dpo is None else self._pairs
        return make(tokenizer, bos, recipe, validation_tokens)

    def _rows(
        self, tokenizer: Tokenizer, bos: bool, recipe: Any, validation_tokens: Callable[[int], int]
    ) -> TuningData:
        """Return rows of whole examples, of which a model learns next tokens."""
        encoder = ExampleEncoder(tokenizer=tokenizer, bos=bos, template=self.template, loss_on=recipe.loss_on)
        train: dict[str, list[Encoded]] = {}
        others: dict[str, list[Encoded]] = {}
        for name, one in self.sources.items():
            for split, members, fitted in (("training", one.train, train), ("validation", one.validation, others)):
                where, encoded = f"the {split} split of source {name}", encoder.encode(members)
                if members and not encoded:
                    raise UserError(f"{where} has only conversations with the text of a special token")
                fitted[name] = tuning_samples.fitted(encoded, recipe.seq_len, where, recipe.too_long, tokenizer)
        end = tuning_samples.separator([*train.values(), *others.values()], tokenizer.eos, tokenizer.vocab_size)
        samples = TuningSamples(train, recipe.weights, recipe.seq_len, recipe.seed, end, recipe.packing)
        tokens = validation_tokens(samples.samples_per_epoch)
        rows: dict[str, tuple[np.ndarray, ...]] = {}
        num_bytes = {}
        for name, encoded in others.items():
            found = tuning_samples.validation(encoded, recipe.seq_len, end, tokens, recipe.packing)
            rows[name], num_bytes[name] = found
        return TuningData(samples=samples, validation=rows, num_bytes=num_bytes)

    def _pairs(
        self, tokenizer: Tokenizer, bos: bool, recipe: Any, validation_tokens: Callable[[int], int]
    ) -> TuningData:
        """Return pairs of rows of the one source, of preferences."""
        encoder = ExampleEncoder(tokenizer=tokenizer, bos=bos, template=self.template)
        ((name, one),) = self.sources.items()
        (train, filtered), (validation, _) = (
            preference_samples.usable(preference_samples.encode(split, encoder), recipe.seq_len, where)
            for split, where in (
                (one.train, f"the training split of source {name}"),
                (one.validation, f"the validation split of source {name}"),
            )
        )
        samples = PreferenceSamples(
            recipe.weights, train, validation, recipe.seq_len, recipe.seed, tokenizer.eos, filtered
        )
        rows = samples.validation(validation_tokens(samples.samples_per_epoch))
        return TuningData(samples=samples, validation={name: rows}, num_bytes={})


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
        expected, listed = (", ".join(sorted(names)) for names in (recipe.weights, paths))
        raise UserError(f"--sources must be the lists of the sources of finetune.weights ({expected}), got {listed}")
    kinds = {name: kind_of(source.read_list(path)[2]) for name, path in sorted(paths.items())}
    found: dict[str, ExampleSource[Any]] = {}
    if recipe.dpo is not None:
        for name, kind in kinds.items():
            if "preferences" not in kind.yields:
                expected = " or ".join(PREFERENCE_KINDS)
                raise UserError(f"sources.{name}.kind must be {expected} for finetune.dpo, got {kind.name}")
            found[name] = examples.read_preferences(paths[name])
        of_messages = [
            name
            for name, one in found.items()
            if any(isinstance(preference.chosen, Conversation) for preference in (*one.train, *one.validation))
        ]
        _check_template(recipe, template, of_messages)
        return TuningSources(sources=found, template=template)
    _check_template(recipe, template, [name for name, kind in kinds.items() if "conversations" in kind.yields])
    for name, kind in kinds.items():
        if "conversations" in kind.yields:
            found[name] = examples.read_chats(paths[name])
        else:
            found[name] = (examples.read_pairs if "pairs" in kind.yields else examples.read_texts)(paths[name])
    return TuningSources(sources=found, template=template)


def _check_template(recipe: Any, template: ChatTemplate | None, of_conversations: Sequence[str]) -> None:
    """Raise UserError if a template is missing, or has no effect. `of_conversations`: names of such sources."""
    if of_conversations and template is None:
        raise UserError(
            f"finetune.template is missing: source {of_conversations[0]} has conversations, and the initial model has "
            "no chat template that can be used"
        )
    if recipe.template is not None and not of_conversations:
        raise UserError("finetune.template must be left out: no source of finetune.weights has conversations")

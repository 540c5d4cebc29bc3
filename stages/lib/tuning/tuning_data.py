"""The data of a fine-tuning, made of the sources that it reads: its samples, and the rows of its validation split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.lib.chat.template import ChatTemplate
from stages.lib.errors import UserError
from stages.lib.sources.examples import ExampleSource
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tuning import preference_samples, tuning_samples
from stages.lib.tuning.encoded_examples import Encoded, ExampleEncoder
from stages.lib.tuning.mixed_samples import MixedSamples
from stages.lib.tuning.preference_samples import PreferenceSamples
from stages.lib.tuning.tuning_samples import TuningSamples


@dataclass(frozen=True, kw_only=True)
class TuningData:
    """`validation`, `num_bytes`: by source, see `training.validation.Validation`."""

    samples: MixedSamples[Any]
    validation: dict[str, tuple[np.ndarray, ...]]
    num_bytes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class TuningSources(ABC):
    """The sources by name. `template`: the chat template of conversations, and of the exports; None without one."""

    sources: dict[str, ExampleSource[Any]]
    template: ChatTemplate | None = None

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each source."""
        return {name: found.digest for name, found in sorted(self.sources.items())}

    @abstractmethod
    def data(self, tokenizer: Tokenizer, bos: bool, recipe: Any, validation_tokens: Callable[[int], int]) -> TuningData:
        """Return samples and validation rows. `recipe`: a FinetuneRecipe. `bos`: documents of the corpus begin with it.

        `validation_tokens`: those of each source by the samples of an epoch, see `chosen_for_validation`. Raises
        UserError if a split of a source has no example that fits a sample.
        """


class ExampleSources(TuningSources):
    """Sources of examples, of which a model learns next tokens."""

    def data(self, tokenizer: Tokenizer, bos: bool, recipe: Any, validation_tokens: Callable[[int], int]) -> TuningData:
        """Return rows of whole examples."""
        train, others = self._encoded(tokenizer, bos, recipe)
        end = tuning_samples.separator([*train.values(), *others.values()], tokenizer.eos, tokenizer.vocab_size)
        samples = TuningSamples(train, recipe.weights, recipe.seq_len, recipe.seed, end, recipe.packing)
        tokens = validation_tokens(samples.samples_per_epoch)
        rows: dict[str, tuple[np.ndarray, ...]] = {}
        num_bytes = {}
        for name, examples in others.items():
            rows[name], num_bytes[name] = tuning_samples.validation(
                examples, recipe.seq_len, end, tokens, recipe.packing
            )
        return TuningData(samples=samples, validation=rows, num_bytes=num_bytes)

    def _encoded(
        self, tokenizer: Tokenizer, bos: bool, recipe: Any
    ) -> tuple[dict[str, list[Encoded]], dict[str, list[Encoded]]]:
        """Return the examples of the training and of the validation split, none longer than a sample, by source."""
        encoder = ExampleEncoder(tokenizer=tokenizer, bos=bos, template=self.template, loss_on=recipe.loss_on)
        splits: dict[str, dict[str, list[Encoded]]] = {"training": {}, "validation": {}}
        for name, found in self.sources.items():
            for split, examples in (("training", found.train), ("validation", found.validation)):
                where, encoded = f"the {split} split of source {name}", encoder.encode(examples)
                if examples and not encoded:
                    raise UserError(f"{where} has only conversations with the text of a special token")
                splits[split][name] = tuning_samples.fitted(encoded, recipe.seq_len, where, recipe.too_long, tokenizer)
        return splits["training"], splits["validation"]


class PreferenceSources(TuningSources):
    """One source of preferences."""

    def data(self, tokenizer: Tokenizer, bos: bool, recipe: Any, validation_tokens: Callable[[int], int]) -> TuningData:
        """Return pairs of rows."""
        encoder = ExampleEncoder(tokenizer=tokenizer, bos=bos, template=self.template)
        ((name, source),) = self.sources.items()
        (train, filtered), (validation, _) = (
            preference_samples.usable(preference_samples.encode(split, encoder), recipe.seq_len, where)
            for split, where in (
                (source.train, f"the training split of source {name}"),
                (source.validation, f"the validation split of source {name}"),
            )
        )
        samples = PreferenceSamples(
            recipe.weights, train, validation, recipe.seq_len, recipe.seed, tokenizer.eos, filtered
        )
        rows = samples.validation(validation_tokens(samples.samples_per_epoch))
        return TuningData(samples=samples, validation={name: rows}, num_bytes={})

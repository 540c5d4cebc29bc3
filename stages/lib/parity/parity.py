"""Parity of a whole exported model with ours: logits and greedy text, compared with those of transformers.

Both run in float32 on the CPU with the weights as exported: correct code then differs by less than 1e-5 at logits of
standard deviation 1, while in bfloat16 it differs by 0.06, which can hide a mistake. Both are held in memory.

Rounding is told from mistakes by the same result in float64. Correct code differs by 1e-6 of a result's standard
deviation. But sharp attention amplifies rounding: with weights of a standard deviation of 0.2 and 2,048 tokens, correct
logits differ by 1e-4. So a difference above the tolerance is a mistake only if theirs is also further from float64 than
`FACTOR` times ours.

transformers 5 joins the experts of a layer when it loads them, and takes them apart when it saves them. Both are done
here by its own functions, those of `from_pretrained` and `save_pretrained`: the keys are transformers' word, not ours.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stages.lib.log import logger
from stages.lib.model.experts import choice_margins
from stages.lib.model.transformer import Transformer

if TYPE_CHECKING:
    from stages.lib.tokens.corpus import Corpus

FACTOR = 4.0
"""Both round as often, in another order: with weights of a standard deviation of 0.02 to 0.5, three seeds each, correct
code had at most 1.8 times our error at 2,048 tokens. A mistake has a hundred times as much and more."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest absolute difference of two results."""

    largest: float
    allowed: float

    passed: bool
    """True if it is at most `allowed`, or rounding."""

    @property
    def is_rounding(self) -> bool:
        """True if it is larger than `allowed`, and passed in comparison with float64."""
        return self.passed and not self.largest <= self.allowed


def compare_rounding(
    ours: torch.Tensor, theirs: torch.Tensor, allowed: float, exact: Callable[[], torch.Tensor]
) -> Difference:
    """Compare two float32 tensors of one shape. `exact`: computes ours in float64, called if they differ by more."""
    largest = largest_difference(ours, theirs)
    passed = largest <= allowed  # NaN is not
    if not passed:
        reference = exact()
        error = largest_difference(reference, theirs)
        passed = error <= allowed or error <= FACTOR * largest_difference(reference, ours)
    return Difference(largest=largest, allowed=allowed, passed=passed)


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest absolute difference; NaN if one is NaN."""
    return float((a - b).abs().max())


class LogitFigures:
    """Sums over logits that come in rows."""

    def __init__(self) -> None:
        self.differences: list[float] = []
        self.tokens = self.agreed = 0
        self.total = self.squares = 0.0

    def add(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Add logits [..., V] of the same tokens."""
        self.differences.append(largest_difference(ours, theirs))
        agreed = ours.argmax(-1) == theirs.argmax(-1)
        self.agreed += int(agreed.sum())
        self.tokens += agreed.numel()
        self.total += float(ours.double().mean(-1).sum())
        self.squares += float(ours.double().square().mean(-1).sum())

    def of(self, tolerance: float) -> dict[str, Any]:
        """Return the entry of parity.json. `tolerance`: the largest difference at a standard deviation of 1 or less.

        It grows in proportion to a larger one.
        """
        std = max(self.squares / self.tokens - (self.total / self.tokens) ** 2, 0.0) ** 0.5
        return {
            "tokens": self.tokens,
            "max_difference": float(torch.tensor(self.differences).max()),  # Python's max() can lose a NaN
            "allowed": tolerance * max(1.0, std),
            "std": std,
            "argmax_agreement": self.agreed / self.tokens,
        }


def config_of(directory: Path) -> Any:
    """The config of an export, for models that multiply by one expert after the other.

    transformers' grouped product on the CPU refuses matrices whose rows are no multiple of 16 bytes.
    """
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(directory, experts_implementation="eager")


def stored_weights(model: Any, module: str = "") -> dict[str, torch.Tensor]:
    """{Hugging Face key: tensor} of a module of a model, by default of all."""
    from transformers.core_model_loading import revert_weight_conversion

    prefix = f"{module}." if module else ""
    state = {prefix + name: tensor for name, tensor in model.get_submodule(module).state_dict().items()}
    return revert_weight_conversion(model, state)


def fill(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give some modules of a model their weights, in CPU memory and the model's dtype. `tensors`: by Hugging Face key.

    All experts of a layer are given together.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    mapping = get_model_conversion_mapping(model, add_legacy=False)
    loaded, _ = convert_and_load_state_dict_in_model(model, dict(tensors), LoadStateDictConfig(weight_mapping=mapping))
    del model._weight_conversions  # of these tensors only, and `stored_weights` would use no others
    assert not (loaded.unexpected_keys or loaded.mismatched_keys or loaded.conversion_errors), loaded


def owners(model: Any, module: str) -> dict[str, str]:
    """{Hugging Face key: name of the module directly in `module` that has the tensor}."""
    children = [name for name, _ in model.get_submodule(module).named_children()]
    return {key: child for child in children for key in stored_weights(model, f"{module}.{child}")}


NEW_TOKENS = 32

TIE = 1e-5
"""Margin of a router's choice that rounding may turn round; rounding of all layers before it adds up."""


class ParityError(Exception):
    """The exported model or tokenizer differs from the trained one; the export must not be used."""


def load_exported(directory: Path) -> Any:
    """The export as transformers loads it, in float32. Raises ParityError if a weight is missing or does not fit.

    transformers itself only warns about a missing weight, and fills it with random numbers.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    load: Any = AutoModelForCausalLM.from_pretrained  # its type ignores output_loading_info
    model, info = load(directory, config=config_of(directory), dtype=torch.float32, output_loading_info=True)
    wrong = {name: sorted(map(str, keys)) for name, keys in info.items() if keys}
    if wrong:
        raise ParityError(f"the weights of {directory} must be complete, transformers reports {json.dumps(wrong)}")
    return model.eval()


@torch.inference_mode()
def compare_logits(ours: Transformer, theirs: Any, batch: Sequence[torch.Tensor], tolerance: float) -> dict[str, Any]:
    """Compare the logits of our model and transformers' on a batch of rows; returns the entry of parity.json.

    `tolerance`: see LogitFigures. Raises ParityError if they differ by more, and not by rounding.
    """
    figures = LogitFigures()
    for tokens in batch:
        figures.add(ours.logits(tokens), theirs(tokens).logits)
    found = figures.of(tolerance)
    if not found["max_difference"] <= found["allowed"]:  # NaN is not less
        exact = copy.deepcopy(ours).double()
        for tokens in batch:
            kept = before_ties(ours, tokens)
            a, b = ours.logits(tokens)[kept], theirs(tokens).logits[kept]
            reference = functools.partial(_kept_logits, exact, tokens, kept)
            if kept.any() and not compare_rounding(a, b, found["allowed"], reference).passed:
                raise ParityError(
                    "logits differ by {max_difference:.3g}, allowed {allowed:.3g}: the whole model".format(**found)
                )
    return found


def _kept_logits(model: Transformer, tokens: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return model.logits(tokens)[kept]


def before_ties(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """True for the tokens of a row before the first one whose experts rounding decides: bool [B, L], int64 [B, L].

    Another choice changes that token and those after it by more than rounding. In a dense model all are True.
    """
    if model.recipe.router is None:
        return torch.ones(tokens.shape, dtype=torch.bool)
    margins = [choice_margins(p, model.recipe.router.experts_per_token) for p in model.base_model(tokens)[1]]
    is_tie = torch.stack(margins).amin(0) <= TIE  # NaN is none
    return (~is_tie).cumprod(-1).bool()


@torch.inference_mode()
def compare_text(ours: Transformer, theirs: Any, prompts: torch.Tensor, allowed: float) -> torch.Tensor:
    """Continue `prompts` [B, L] greedily by transformers with its cache, and by ours; returns [B, L + NEW_TOKENS].

    Ours computes all tokens in one forward pass. `allowed`: the largest difference of logits; two tokens whose logits
    lie within twice of it are equally likely. Raises ParityError if ours would choose another token.
    """
    from transformers import GenerationConfig

    theirs.generation_config.eos_token_id = None  # no end of text, so that all rows have one length
    theirs.generation_config.suppress_tokens = None  # the most probable of all rows, as ours
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    generated = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
    length = prompts.shape[1]
    logits = ours.logits(generated[:, :-1])[:, length - 1 :]
    chosen = logits.gather(-1, generated[:, length:, None]).squeeze(-1)
    gaps = (logits.amax(-1) - chosen) * before_ties(ours, generated[:, :-1])[:, length - 1 :]
    if not gaps.max() <= 2 * allowed:
        row, at = (~(gaps <= 2 * allowed)).nonzero()[0].tolist()
        raise ParityError(
            f"greedy text of prompt {row} diverges after {at} tokens, with logits {float(gaps[row, at]):.3g} apart"
        )
    if num_ties := int((gaps > 0).sum()):
        logger.info("greedy text has %d ties of two tokens", num_ties)
    return generated


# The tokens on which an export and its model are compared: validation tokens, or training tokens without them.
ROWS, ROW_TOKENS = 4, 32
"""Through all blocks. A wrong conversion is wrong at each token, and tokens are most of the time of a large model."""

LONGEST = 8192
"""The longest row, in tokens, as long as the model's context if that is shorter. Angles of RoPE differ at its end."""

PROMPT_TOKENS = 16


def rows(corpus: Corpus, max_position_embeddings: int) -> torch.Tensor:
    """Rows spread over the sources: int64 [ROWS, at most ROW_TOKENS]."""
    return _spread(corpus, min(ROW_TOKENS, max_position_embeddings))


def prompts(corpus: Corpus, max_position_embeddings: int, new_tokens: int) -> torch.Tensor:
    """Prompts with room for `new_tokens` after them: int64 [ROWS, at most PROMPT_TOKENS]."""
    return _spread(corpus, max(1, min(PROMPT_TOKENS, max_position_embeddings - new_tokens)))


def long_row(corpus: Corpus, max_position_embeddings: int) -> torch.Tensor:
    """One row as long as the context: int64 [1, at most LONGEST]. A corpus with fewer tokens is repeated."""
    length, found = min(LONGEST, max_position_embeddings), np.empty(0, np.int64)
    for stream in _streams(corpus):
        found = np.concatenate([found, stream.read(0, length - len(found)).astype(np.int64)])
        stream.close()
    return torch.from_numpy(np.resize(found, length)).unsqueeze(0)


def _spread(corpus: Corpus, length: int) -> torch.Tensor:
    streams = _streams(corpus)
    length = min(length, *(len(stream) for stream in streams))
    found = []
    for number in range(ROWS):
        stream = streams[number % len(streams)]
        found.append(stream.read(number * (len(stream) - length) // ROWS, length).astype(np.int64))
    for stream in streams:
        stream.close()
    return torch.from_numpy(np.stack(found))


def _streams(corpus: Corpus) -> list[Any]:
    streams = [corpus.stream(source, "validation") for source in sorted(corpus.sources)]
    streams = [stream for stream in streams if len(stream)]
    return streams or [corpus.stream(source) for source in sorted(corpus.sources)]

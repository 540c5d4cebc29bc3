"""Parity of an exported model with ours: logits and greedy text, compared with those of transformers.

Both run in float32 on the CPU with the weights as exported: correct code then differs by less than 1e-5 at logits of
standard deviation 1, while in bfloat16 it differs by 0.06, which can hide a mistake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.huggingface import weight_files
from stages.lib.log import logger
from stages.lib.model.keys import KeyTable
from stages.lib.model.llama import Llama

if TYPE_CHECKING:
    from pathlib import Path

    from stages.lib.tokens.corpus import Corpus

LENGTHS = (1, 17, 128, 512)  # tokens of the validation sequences
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 16, 32


class ParityError(Exception):
    """The exported model or tokenizer differs from the trained one; the export must not be used."""


def validation_batch(corpus: Corpus, max_position_embeddings: int) -> list[torch.Tensor]:
    """Validation tokens at several lengths: a list of int64 [1, L]. Training tokens if the corpus has no others."""
    batch = []
    for stream in _streams(corpus):
        at = 0
        for length in LENGTHS:
            tokens = stream.read(at, min(length, max_position_embeddings))
            at += len(tokens)
            if len(tokens):
                batch.append(torch.from_numpy(tokens.astype("int64")).unsqueeze(0))
        stream.close()
    return batch


def validation_prompts(corpus: Corpus, max_position_embeddings: int) -> torch.Tensor:
    """Prompts for greedy text: int64 [PROMPTS, at most PROMPT_TOKENS], spread over the validation streams."""
    streams = _streams(corpus)
    length = min(PROMPT_TOKENS, max_position_embeddings - NEW_TOKENS, *(len(stream) for stream in streams))
    rows = []
    for number in range(PROMPTS):
        stream = streams[number % len(streams)]
        rows.append(stream.read(number * (len(stream) - length) // PROMPTS, length).astype("int64"))
    for stream in streams:
        stream.close()
    return torch.stack([torch.from_numpy(row) for row in rows])


def _streams(corpus: Corpus) -> list[Any]:
    streams = [corpus.stream(source, "validation") for source in sorted(corpus.sources)]
    streams = [stream for stream in streams if len(stream)]
    return streams or [corpus.stream(source) for source in sorted(corpus.sources)]


def load_exported(directory: Path) -> Any:
    """The export as transformers loads it, in float32. Raises ParityError if a weight is missing or does not fit.

    transformers itself only warns about a missing weight, and fills it with random numbers.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    load: Any = AutoModelForCausalLM.from_pretrained  # its type ignores output_loading_info
    model, info = load(directory, dtype=torch.float32, output_loading_info=True)
    wrong = {name: sorted(map(str, keys)) for name, keys in info.items() if keys}
    if wrong:
        raise ParityError(f"the weights of {directory} must be complete, transformers reports {json.dumps(wrong)}")
    return model.eval()


def compare_files(directory: Path, expected: Mapping[str, Mapping[str, Any]], table: KeyTable) -> None:
    """Raise ParityError unless files have the expected content, {name: content}, and tensors the names and shapes."""
    for name, content in expected.items():
        found = files.read_json_object(directory / name)
        for key in sorted(content.keys() | found.keys()):
            if (key in found, found.get(key)) != (key in content, content.get(key)):
                raise ParityError(f"{name}: {key} must be {content.get(key)!r}, found {found.get(key)!r}")
    try:
        weight_files.check(directory, weight_files.file_of_tensors(directory), table.shapes())
    except UserError as error:
        raise ParityError(str(error)) from None


def compare_loaded_ids(theirs: Any, config: Mapping[str, Any]) -> None:
    """Raise ParityError unless transformers loaded the model with the special tokens of config.json's content."""
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        for found in (getattr(theirs.config, key), getattr(theirs.generation_config, key)):
            if found != config[key]:
                raise ParityError(f"transformers must load {key} as {config[key]}, and loads {found}")


def compare_embedding_and_head(ours: Llama, theirs: Any) -> None:
    """Raise ParityError unless embedding and head have the same bits: few of their rows are seen in few tokens."""
    pairs = (
        ("the embedding", ours.base_model.embedding.weight, theirs.get_input_embeddings().weight),
        ("the head", ours.head.weight, theirs.get_output_embeddings().weight),
    )
    for name, a, b in pairs:
        if a.shape != b.shape:
            raise ParityError(f"{name} must have the shape {list(a.shape)}, found {list(b.shape)}")
        rows = (a != b).any(-1).nonzero().flatten()
        if len(rows):
            raise ParityError(
                f"{name} must have the trained bits; {len(rows)} rows differ, the first is {int(rows[0])}"
            )


@torch.inference_mode()
def compare_logits(ours: Llama, theirs: Any, batch: Sequence[torch.Tensor], tolerance: float) -> dict[str, Any]:
    """Compare the logits of our model and transformers' on a batch; returns the entry of parity.json.

    `tolerance`: largest absolute difference at logits of standard deviation 1 or less; it grows in proportion to a
    larger one. Raises ParityError naming the first layer whose output differs.
    """
    differences: list[float] = []
    agreed, count, squares, total = 0, 0, 0.0, 0.0
    for tokens in batch:
        a, b = ours.logits(tokens), theirs(tokens).logits
        differences.append(_difference(a, b))
        agreed += int((a.argmax(-1) == b.argmax(-1)).sum())
        count += tokens.numel()
        squares += float(a.double().square().mean(-1).sum())
        total += float(a.double().mean(-1).sum())
    std = max(squares / count - (total / count) ** 2, 0.0) ** 0.5
    difference = float(torch.tensor(differences).max())  # Python's max() can lose a NaN
    allowed = tolerance * max(1.0, std)
    figures = {
        "tokens": count,
        "max_difference": difference,
        "allowed": allowed,
        "std": std,
        "argmax_agreement": agreed / count,
    }
    if not difference <= allowed:  # NaN is not less
        place = first_difference(ours, theirs, batch[-1], tolerance)
        raise ParityError(f"logits differ by {difference:.3g}, allowed {allowed:.3g}; the first to differ is {place}")
    return figures


@torch.inference_mode()
def first_difference(ours: Llama, theirs: Any, tokens: torch.Tensor, tolerance: float) -> str:
    """The name of the first module whose output on `tokens` differs."""
    own = list(ours.base_model.hidden_states(tokens))
    own.append(ours.base_model.dec_norm(own[-1]))
    modules = _modules(ours.recipe.key_table(ours.vocab_size))
    others = _hidden_states(theirs, list(modules.values()), tokens)
    for name, a, b in zip(modules, own, others, strict=True):
        if not _difference(a, b) <= tolerance * max(1.0, float(a.std())):
            return f"{name} (by {_difference(a, b):.3g})"
    return "the head"


def _modules(table: KeyTable) -> dict[str, str]:
    """{name in messages: module in transformers} of the modules whose outputs are the hidden states."""
    (embedding,), (norm,) = (weight.part_shapes() for weight in (table.embedding, table.final_norm))
    return {
        "the embedding": embedding.removesuffix(".weight"),
        **{f"layer {number}": module for number, module in enumerate(table.layer_modules)},
        "the last norm": norm.removesuffix(".weight"),
    }


def _hidden_states(model: Any, modules: Sequence[str], tokens: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of some modules of a transformers model."""
    seen: list[torch.Tensor] = []
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out)
        )
        for name in modules
    ]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@torch.inference_mode()
def compare_text(ours: Llama, theirs: Any, prompts: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Continue `prompts` [B, L] greedily by both, ours by full forwards, theirs with its cache; returns [B, L + new].

    Raises ParityError if they diverge, unless our logits of the two tokens lie within twice the tolerance there.
    """
    from transformers import GenerationConfig

    theirs.generation_config.eos_token_id = None  # no end of text, so that all rows have one length
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    generated = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
    length = prompts.shape[1]
    tokens = prompts
    for _ in range(NEW_TOKENS):
        tokens = torch.cat([tokens, ours.logits(tokens)[:, -1:].argmax(-1)], 1)
    for number, (a, b) in enumerate(zip(tokens, generated, strict=True)):
        different = (a != b).nonzero()
        if not len(different):
            continue
        at = int(different[0])
        logits = ours.logits(a[None, :at])[0, -1]
        gap = float(logits[a[at]] - logits[b[at]])
        if not gap <= 2 * tolerance * max(1.0, float(logits.std())):
            raise ParityError(
                f"greedy text of prompt {number} diverges after {at - length} tokens, with logits {gap:.3g} apart"
            )
        logger.info("greedy text of prompt %d diverges after %d tokens at a tie", number, at - length)
    return generated

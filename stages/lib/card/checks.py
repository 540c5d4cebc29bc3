"""The part of a card by which its claims can be checked: the parity of the export, digests, versions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from stages.lib.card.inputs import CardInputs
from stages.lib.card.markdown import code, escaped, table
from stages.lib.run_directory import journal

WEIGHTS_ENDING = ".safetensors"


def lines(inputs: CardInputs) -> list[str]:
    """Return the lines of the sections on parity and digests."""
    parity = ["## Parity", "", *_parity(inputs.parity), ""]
    digests = ["## Digests", *table(("what", "sha256"), _digests(inputs)), *_versions(inputs), ""]
    return parity + digests


def _parity(report: dict[str, Any]) -> Iterator[str]:
    yield "Before any score, this directory was loaded with transformers and compared with the model that was trained:"
    yield ""
    logits, greedy = _numbers(report.get("logits")), _numbers(report.get("greedy"))
    blocks, checks = _numbers(report.get("blocks")), report.get("checks")
    if {"layers", "tokens", "max_difference"} <= blocks.keys():
        yield (
            "- all tensors have the checkpoint's bits, rounded to their dtype; the outputs of each of "
            f"{blocks['layers']} layers differ by at most {blocks['max_difference']:.1e} of their standard deviation "
            f"over {blocks['tokens']:,} tokens;"
        )
    if "max_difference" in logits and (not isinstance(checks, list) or "whole model" in checks):
        over = f" over {logits['tokens']:,} tokens" if "tokens" in logits else ""
        allowed = f"; {logits['allowed']:.1e} is allowed" if "allowed" in logits else ""
        if logits["max_difference"] > logits.get("allowed", math.inf):
            allowed += ", and this is rounding by a comparison with float64"
        yield f"- the largest difference of float32 logits is {logits['max_difference']:.1e}{over}{allowed};"
    if greedy.get("prompts"):
        yield f"- the greedy continuation of {greedy['prompts']} prompts is the same;"
    texts = report.get("tokenizer")
    tokens = sum(_numbers(found).get("tokens", 0) for found in texts.values()) if isinstance(texts, dict) else 0
    if tokens:
        yield f"- {tokens:,} tokens of validation text and edge cases have the same ids."
    yield ""
    yield "`parity.json` has the details."


def _numbers(data: Any) -> dict[str, float]:
    """Return the numbers in a part of parity.json, which no digest protects."""
    return {name: value for name, value in data.items() if journal.is_number(value)} if isinstance(data, dict) else {}


def _digests(inputs: CardInputs) -> Iterator[tuple[str, str]]:
    outputs = inputs.export.identity["outputs"]
    for name in sorted(outputs):
        if name.endswith(WEIGHTS_ENDING):
            yield code(name), code(outputs[name]["sha256"])
    yield "manifest of the export", code(inputs.export.digest)
    yield "manifest of the trained model", code(inputs.model.digest)
    yield "manifest of the corpus", code(inputs.corpus.digest)
    yield "manifest of the tokenizer", code(inputs.export.identity["tokenizer"])
    for suite, made in inputs.evaluations.items():
        yield f"scores of suite {code(suite)}", code(made.digest)


def _versions(inputs: CardInputs) -> Iterator[str]:
    yield (
        "The digest of a manifest is the sha256 of its `identity`; `manifest.json` here lists every file with its own. "
        "Made with Caravan:"
    )
    yield ""
    for title, made in (("training", inputs.model), ("export", inputs.export)):
        commit = made.record.get("commit")
        versions = made.record.get("versions", {})
        names = [name for name in ("torch", "transformers", "tokenizers") if name in versions]
        facts = [f"commit {code(commit)}"] if commit else []
        facts += [f"{name} {escaped(versions[name])}" for name in names]
        if facts:
            yield f"- {title}: {', '.join(facts)}"

"""The score of one generated completion, called by lm-evaluation-harness: a copy of this file lies beside the YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

END = "\N{SYMBOL FOR END OF TEXT}"
"""Stands after a text that the model ended by EOS; `harness_model` writes it for local tasks."""


def score(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return {"exact_match": x, "stopped": y}, 0 or 1 each. `results`: the text that was generated."""
    (text,) = results
    return {"exact_match": float(text.removesuffix(END) == doc["completion"]), "stopped": float(text.endswith(END))}

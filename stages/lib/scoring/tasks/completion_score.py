"""The score of one completion, called by lm-evaluation-harness: a copy of this file lies beside the task's YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def score(doc: Mapping[str, Any], results: Sequence[tuple[float, Any]]) -> dict[str, float]:
    """Return {"bits_per_byte": x} of `doc["completion"]`. `results`: one pair (log-likelihood in nats, ...)."""
    ((loglikelihood, _),) = results
    return {"bits_per_byte": -loglikelihood / math.log(2) / len(doc["completion"].encode())}

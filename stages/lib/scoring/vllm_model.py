"""An export as vLLM runs it, by lm-evaluation-harness's class for it. vLLM is not one of the project's requirements.

vLLM forms its own batches, and sums round differently in them: scores agree with those of transformers to the last
digits of the dtype, not to the bit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stages.lib.errors import UserError
from stages.lib.scoring.encoding import Encoding, Request, prefix_of

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when it is imported
try:
    from lm_eval.models.vllm_causallms import VLLM
except ImportError as error:
    raise UserError(f"evaluate.backend: vllm needs an installed vLLM, which cannot be imported: {error}") from None

BEHIND = 2
"""Places that an input of log-likelihoods needs: for its last token, which is only predicted, and one generated."""


class Model(Encoding, VLLM):
    """An export as the harness calls it."""

    window_of_engine: int
    """Tokens that the engine has room for: BEHIND more than `window`."""

    _max_length: int | None

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        pairs = self.fitted(requests)
        distinct = [*dict.fromkeys(pairs)]
        window, self._max_length = self._max_length, self.window_of_engine
        try:
            values = super()._loglikelihood_tokens([(None, [*context], [*answer]) for context, answer in distinct])
        finally:
            self._max_length = window
        found = dict(zip(distinct, values, strict=True))
        return [found[pair] for pair in pairs]


def load_model(
    directory: Path,
    tokenizer: Mapping[str, Any],
    *,
    window: int,
    positions: int,
    dtype: str = "float32",
    seed: int = 0,
) -> Model:
    """Load an export into vLLM, over all accelerators of this process.

    `tokenizer`, `window`: as in harness_model. `positions`: the longest input that the model can have; a window as
    long is BEHIND tokens shorter for log-likelihoods. Raises UserError if there are several processes.
    """
    if dist.get_world_size() > 1:
        raise UserError("with evaluate.backend: vllm one process scores with all accelerators (ranks: 1), got several")
    logging.getLogger("lm_eval.models.vllm_causallms").setLevel(logging.ERROR)
    engine = min(window + BEHIND, positions)
    model = Model(
        pretrained=str(directory),
        dtype=dtype,
        max_model_len=engine,
        tensor_parallel_size=max(1, torch.cuda.device_count()),
        add_bos_token=tokenizer["bos_added"],
        prefix_token_id=prefix_of(tokenizer),
        seed=seed,
    )
    model._max_length, model.window, model.window_of_engine = window, engine - BEHIND, engine
    return model

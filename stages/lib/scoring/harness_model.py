"""An export as a model of lm-evaluation-harness: its ids, its log-likelihoods, and batches divided among ranks.

All ranks go through the same requests; each passes its share of the batches through the model. The batches do not
depend on the number of ranks, so the scores have the same bits on any.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import torch
import torch.distributed as dist
from lm_eval.models.huggingface import HFLM

from stages.lib import vector_math
from stages.lib.distributed import collectives
from stages.lib.log import logger
from stages.lib.render.terminal import track
from stages.lib.scoring import loglikelihood
from stages.lib.scoring.encoding import Encoding, Request, TaskError, prefix_of
from stages.lib.scoring.loglikelihood import Ids, Row, Score
from stages.lib.scoring.tasks.generation_score import END

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


@torch.inference_mode()
def continuations(model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos: int) -> list[list[int]]:
    """Return the ids that follow each prompt, at most `max_new_tokens`; EOS is the last one of those that ended."""
    longest = max(map(len, prompts))
    padded = [[eos] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    seen = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    made = model.generate(
        input_ids=torch.tensor(padded, device=model.device),
        attention_mask=torch.tensor(seen, device=model.device),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    rows = (row[longest:] for row in made.tolist())
    return [ids[: ids.index(eos) + 1] if eos in ids else ids for ids in rows]


MOST_LOGITS = 1 << 30
"""Logits of a batch in memory at a time, of a model whose head is not known: 4 GB in float32."""

LARGEST_BATCH = 64
BATCH_WITHOUT_ACCELERATOR = 16

Item = TypeVar("Item")
Result = TypeVar("Result")

vector_math.choose_kernels()


class Model(Encoding, HFLM):
    """An export, or another model of transformers, as the harness calls it."""

    terminal: TextIO
    """The display of progress: the harness's own bars go nowhere."""

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        pairs = self.fitted(requests)
        shared, size = loglikelihood.shares(self.model), self.batch_size
        if not shared:  # all logits of a batch are in memory
            size = max(1, min(size, MOST_LOGITS // (self.window * self.vocab_size)))
        found: dict[tuple[Ids, Ids], Score] = {}
        rows = loglikelihood.rows_of(pairs, self.window, shared)
        for scores in self._map(lambda _, some: loglikelihood.score(self.model, some), _chunks(rows, size), pairs):
            found |= scores
        return [(found[pair].loglikelihood, found[pair].is_greedy) for pair in pairs]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text that the model generates after each context, up to its stop words."""
        batches: dict[str, list[int]] = {}
        contexts = [request.args[0] for request in requests]
        lengths = [len(self.tok_encode(context)) for context in contexts]
        for number in sorted(range(len(requests)), key=lambda number: (-lengths[number], contexts[number])):
            batches.setdefault(repr(requests[number].args[1]), []).append(number)
        chunks = [chunk for alike in batches.values() for chunk in _chunks(alike, self.batch_size)]
        generate, seed = super().generate_until, torch.initial_seed()

        def texts(number: int, chunk: Sequence[int]) -> dict[int, str]:
            some = [requests[number] for number in chunk]
            torch.manual_seed(seed + number)  # samples of a batch are the same on whatever rank
            made = self._greedy_texts(some) if self.separate else generate(some, disable_tqdm=True)
            return dict(zip(chunk, made, strict=True))

        found: dict[int, str] = {}
        for made in self._map(texts, chunks, [request.args for request in requests]):
            found |= made
        return [found[number] for number in range(len(requests))]

    def _greedy_texts(self, requests: Sequence[Instance]) -> list[str]:
        """Return the most probable text after each context, with END if the model ended it by EOS."""
        limit, eos = min(requests[0].args[1]["max_gen_toks"], self.max_length - 1), self.eot_token_id
        prompts = [self.tok_encode(request.args[0], add_special_tokens=self.add_bos_token) for request in requests]
        prompts = [prompt[limit - self.max_length :] or [self.prefix_token_id] for prompt in prompts]
        found = continuations(self.model, prompts, limit, eos)
        return [self.tok_decode([id for id in ids if id != eos]) + END * (eos in ids) for ids in found]

    def _map(
        self, work: Callable[[int, Sequence[Item]], Result], batches: Sequence[Sequence[Item]], requests: Any
    ) -> list[Result]:
        """Call work(number, batch) on one rank each; every rank returns all results, in the order of batches.

        Raises TaskError unless all ranks have the same `requests`.
        """
        digest = hashlib.sha256(repr(requests).encode(errors="replace")).hexdigest()
        if len(set(collectives.all_gather_object(digest))) > 1:
            raise TaskError("each process has other questions: score the task with one (ranks: 1)")
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        own_numbers = range(rank, len(batches), num_ranks)
        shown = track("batches", own_numbers, self.terminal) if rank == 0 else own_numbers
        with collectives.raise_on_all_ranks():
            own = {number: work(number, batches[number]) for number in shown}
        found: dict[int, Result] = {}
        for of_rank in collectives.all_gather_object(own):
            found |= of_rank
        return [found[number] for number in range(len(batches))]


def _chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def load_model(
    directory: Path,
    tokenizer: Mapping[str, Any],
    *,
    batch_size: int | Literal["auto"],
    window: int,
    device: torch.device,
    dtype: str = "float32",
) -> Model:
    """Load an export as the harness's model.

    `tokenizer`: as of a ScoredModel. `window`: the longest context in tokens.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # it warns of each context that is cut to the window, and of a model that it has not loaded itself
    logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)
    # on the CPU transformers' grouped product refuses matrices whose rows are no multiple of 16 bytes
    experts = {"experts_implementation": "eager"} if device.type == "cpu" else {}
    config = AutoConfig.from_pretrained(directory, **experts)
    # a mask of our own needs attention that takes a boolean one, whatever config.json says
    attention = {"attn_implementation": "sdpa"} if config.model_type in loglikelihood.SHARING else {}
    loaded = AutoModelForCausalLM.from_pretrained(
        directory, config=config, dtype=dtype, use_safetensors=True, **attention
    )
    model = Model(
        pretrained=loaded.to(device),
        # a longer text is cut to the window: a warning of its length would mean nothing
        tokenizer=AutoTokenizer.from_pretrained(directory, model_max_length=int(1e30)),
        batch_size=1 if batch_size == "auto" else batch_size,
        max_length=window,
        add_bos_token=tokenizer["bos_added"],
        prefix_token_id=prefix_of(tokenizer),
    )
    model.window, model.terminal = window, sys.stderr
    if batch_size == "auto":
        model.batch_size_per_gpu = largest_batch(model, window) if device.type != "cpu" else BATCH_WITHOUT_ACCELERATOR
        logger.info("batch_size: auto is %d", model.batch_size)
    return model


def largest_batch(model: Model, window: int) -> int:
    """Return the largest power of two whose batch fits the memory of every rank's accelerator, up to LARGEST_BATCH.

    A batch is tried only if its `least_bytes` are free.
    """
    free, _ = torch.cuda.mem_get_info()
    size = LARGEST_BATCH
    while size > 1 and least_bytes(model.model, size, window) > free:
        size //= 2
    while size > 1:
        try:
            _try_batch(model, size, window)
            break
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            size //= 2
    return min(collectives.all_gather_object(size))


def least_bytes(model: Any, size: int, window: int) -> int:
    """Return the bytes that `_try_batch` takes at least beside the weights; 0 for a model not of loglikelihood.SHARING.

    To fill a cache takes the keys and values of all layers and the widest activations of one, to score takes a chunk of
    logits and their log-probabilities, both in float32.
    """
    config, width = model.config, model.dtype.itemsize
    if config.model_type not in loglikelihood.SHARING:
        return 0
    activations = (2 * config.hidden_size + 3 * config.intermediate_size) * width
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * width
    scored = 2 * size * max(1, window // 4)
    logits = min(scored, loglikelihood.HEAD_ROWS) * config.vocab_size * (4 + 4)
    return max(size * window * (activations + cached), scored * config.hidden_size * width + logits)


@torch.inference_mode()
def _try_batch(model: Model, size: int, window: int) -> None:
    """Run what a batch needs at most: rows with two continuations, and the keys and values of whole windows."""
    length = max(1, window // 4)
    row = Row((0,) * max(1, window - 2 * (length - 1)), ((0,) * length, (1,) * length))
    loglikelihood.score(model.model, [row] * size)
    tokens = torch.zeros(size, window, dtype=torch.long, device=model.device)
    model.model.base_model(input_ids=tokens, use_cache=True)

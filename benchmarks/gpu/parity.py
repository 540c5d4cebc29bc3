"""Loss parity of what a GPU can do faster: float8 against bfloat16, and CUDA graphs against the same kernels without.

Both sides train the same tiny model on the same batches. Where the hardware lacks an option, its step is left out with
the reason.
"""

import functools
from dataclasses import dataclass, field

from benchmarks.gpu import correctness
from benchmarks.gpu.session import Skipped, Step, StepError
from stages.lib import recipe
from stages.lib.errors import UserError
from stages.pretrain import PretrainRecipe


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two trainings whose losses are compared: with keys of the recipe or of its operation, and without them.

    `start`: largest relative difference of the loss of the first step, before any update. `first`, `last`: of the first
    steps, and of the mean of the last ones.
    """

    recipe: dict = field(default_factory=dict)
    operation: dict = field(default_factory=dict)
    shared: dict = field(default_factory=dict)
    """Operation keys of both."""

    start: float
    first: float
    last: float


FLOAT8, GRAPHS = {"float8": True}, {"cuda_graphs": True}
COMPILED = {"compile": True}
SELECTIVE = {"activation_checkpointing": {"mode": "selective"}}
# rounding of a product in float8 is 2^-4 per value, and averages out over thousands of tokens: 1e-5 in the first step
# and 1e-3 within the first five, on a CPU
CAST = {"start": 2e-3, "first": 0.01, "last": 0.03}
# the same kernels on the same numbers: equal bits, unless cuBLAS or the compiler choose others outside of FSDP
REPLAYED = {"start": 1e-4, "first": 1e-3, "last": 0.01}
PAIRS = {
    "float8 against bfloat16": Pair(recipe=FLOAT8, **CAST),
    "float8 against bfloat16, compiled, selective": Pair(recipe=FLOAT8, shared=COMPILED | SELECTIVE, **CAST),
    "CUDA graphs against none": Pair(operation=GRAPHS, **REPLAYED),
    "CUDA graphs against none, compiled": Pair(operation=GRAPHS, shared=COMPILED, **REPLAYED),
    "CUDA graphs against none, compiled, selective": Pair(operation=GRAPHS, shared=COMPILED | SELECTIVE, **REPLAYED),
    "float8 and CUDA graphs against float8": Pair(operation=GRAPHS, shared=COMPILED, **REPLAYED),
}
IN_FLOAT8 = ("float8 and CUDA graphs against float8",)
"""Pairs of which both trainings are in float8."""


def steps(session):
    """Yield the steps."""
    yield correctness.corpus_step(session)
    for name, pair in PAIRS.items():
        yield Step(name=name, take=functools.partial(_take, session, name, pair), minutes=5, alone=False)


def keys_of(name, pair, has_option):
    """Return (recipe, operation) of one side of a pair."""
    base = correctness.HALF | (FLOAT8 if name in IN_FLOAT8 else {})
    return (base | pair.recipe, pair.shared | pair.operation) if has_option else (base, pair.shared)


def check_hardware(keys, operation, device):
    """Raise Skipped if the device cannot train with these keys. `device`: a torch.device."""
    from stages.lib.training.settings import requirements

    data = {"steps": correctness.STEPS, "micro_batch_size": 4} | correctness.RECIPE | keys | operation
    try:
        requirements.check_device(recipe.load(PretrainRecipe, data, "pretrain"), "pretrain", device)
    except UserError as error:
        raise Skipped(str(error)) from None


def compare(pair, losses, expected):
    """Return the line of result and the figures of two lists of losses. Raises StepError if they differ too much."""
    first, last = correctness.difference(losses, expected)
    start = abs(losses[0] / expected[0] - 1)
    figures = {"start": start, "first": first, "last": last, "losses": losses, "losses_without": expected}
    if losses == expected:
        return f"{len(losses)} equal losses", figures
    line = (
        f"losses differ by {start:.1e} in the first step, {first:.1e} in the first {correctness.FIRST}, {last:.1e} in "
        f"the last {correctness.FIRST}"
    )
    if not (start <= pair.start and first <= pair.first and last <= pair.last):
        bounds = f"at most {pair.start:.0e}, {pair.first:.0e} and {pair.last:.0e} are expected"
        raise StepError(f"{line}; {bounds}", figures)
    return line, figures


def _take(session, name, pair):
    import torch

    device = torch.device("cpu" if session.dry else "cuda")
    check_hardware(*keys_of(name, pair, has_option=True), device)
    losses = []
    for has_option in (True, False):
        keys, operation = keys_of(name, pair, has_option)
        run = f"{name} {'with' if has_option else 'without'}"
        losses.append(correctness.losses_of(correctness.train(session, name, run, keys, operation)))
    return compare(pair, *losses)

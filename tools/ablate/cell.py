"""One cell: steps of training on random tokens, in the processes that `tools.ablate` starts for it.

    workflow/launch 2 -m tools.ablate.cell --recipe JSON --output FILE

The step is that of training: forward and backward passes over the micro-batches, clipping and the update. Nothing is
read or saved. The first steps, which allocate and compile, are not measured.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stages.lib import files, stage
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.key_table import LoraRecipe
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import identity
from stages.lib.training.settings import requirements
from stages.lib.training.settings.recipe import TrainRecipe

if TYPE_CHECKING:
    import torch

    from stages.lib.training.initial import Initial

WARM_UP = 2
DOCUMENT_END = 0
"""The id that ends a document if attention stays within documents: one of `vocab_size` tokens."""


@dataclass(frozen=True, kw_only=True)
class CellRecipe(TrainRecipe):
    """A training of `steps` measured steps."""

    model: ModelRecipe = identity(variants=ARCHITECTURES)
    """The model's configuration."""

    vocab_size: int = identity(minimum=1)
    """Number of token ids."""

    lora: LoraRecipe | None = identity(None)
    """LoRA: adapters beside frozen weights, which are random."""

    document_mask: bool = identity(False)
    """Restrict attention to the tokens of the same document."""

    def check(self, where: str) -> None:
        """Raise UserError if keys do not fit each other."""
        super().check(where)
        self.check_requirements(where)

    def check_requirements(self, where: str) -> None:
        """Raise UserError if the optimizer is not one for LoRA, or float8, CUDA graphs or a dtype do not fit."""
        has_lora = self.lora is not None
        requirements.check(self, where, self.model, has_lora=has_lora, has_document_mask=self.document_mask)
        if has_lora:
            self.optimizer.check_lora(f"{where}.optimizer")


def run(arguments: argparse.Namespace, recipe: CellRecipe) -> None:
    """Measure, and write the figures as JSON."""
    import torch.distributed as dist

    from stages.lib.distributed import collectives
    from stages.lib.distributed.process_group import process_group
    from stages.lib.training import parallelize

    with process_group() as device:
        with collectives.raise_on_all_ranks():
            recipe.check_ranks(dist.get_world_size(), arguments.stage_name)
            parallelize.check(recipe, arguments.stage_name, device)
            requirements.check_device(recipe, arguments.stage_name, device)
        figures = measure(recipe, device)
        with collectives.raise_on_all_ranks():
            if collectives.is_first_rank():
                files.write_json(arguments.output, figures)


def measure(recipe: CellRecipe, device: torch.device) -> dict[str, Any]:
    """Return the median duration of a step, tokens per second, MFU, and the peak memory of the rank that has most."""
    import torch.distributed as dist

    from stages.lib.distributed import collectives
    from stages.lib.training.state import State
    from stages.lib.training.step import Stepper
    from stages.lib.training.step_metrics import Throughput, peak_memory_mb

    state = State(recipe, recipe.model, recipe.vocab_size, device, recipe.lora)
    state.init_weights(None if recipe.lora is None else cast("Initial", RandomBase()))
    stepper = Stepper(recipe, state, device, DOCUMENT_END if recipe.document_mask else None)
    seconds = [timed_step(stepper, recipe, step) for step in range(WARM_UP + recipe.steps)][WARM_UP:]
    checkpointing, world_size = recipe.activation_checkpointing, dist.get_world_size()
    throughput = Throughput(
        recipe.model,
        recipe.vocab_size,
        recipe.seq_len,
        world_size,
        device,
        (checkpointing.mode, checkpointing.ratio),
        None if recipe.lora is None else state.num_trained(),
    )
    median = statistics.median(seconds)
    figures = throughput.step(seconds=median, data_wait=0, tokens=recipe.global_batch_size * recipe.seq_len)
    return {
        "gradient_accumulation_steps": recipe.global_batch_size // world_size // recipe.micro_batch_size,
        "step_seconds": median,
        "tokens_per_second": figures["tokens_per_second"],
        "mfu": figures["mfu"],
        "peak_memory_mb": max(collectives.all_gather_object(peak_memory_mb(device))),
        "device": throughput.device_name,
    }


class RandomBase:
    """In place of the initial model of LoRA: random weights."""

    def load_frozen(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill the parameters beside which adapters are trained, (FMS key, tensor), sharded or whole."""
        from stages.lib.model.initialize import fill

        for name, parameter in parameters:
            if parameter.dim() == 1:  # RMSNorm
                parameter.detach().fill_(1)
            else:
                fill(name, parameter.detach(), 0.02, seed=0)


def timed_step(stepper: Any, recipe: CellRecipe, step: int) -> float:
    """Take a step on this rank's share of a random batch; return its seconds, until all ranks have ended it."""
    import numpy as np
    import torch.distributed as dist

    generator = np.random.Generator(np.random.PCG64([recipe.seed, step, dist.get_rank()]))
    shape = (recipe.global_batch_size // dist.get_world_size(), recipe.seq_len + 1)
    rows = generator.integers(recipe.vocab_size, size=shape, dtype=np.int32)
    dist.barrier()
    begun = time.perf_counter()
    stepper.take(step, rows[:, :-1], rows[:, 1:]).tolist()  # waits for the device
    dist.barrier()
    return time.perf_counter() - begun


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("tools.ablate.cell", __doc__, CellRecipe)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the figures, as JSON")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

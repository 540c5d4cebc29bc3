"""What every training has, whatever its data."""

from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.recipe import horizon, identity, operation
from stages.lib.training.heldout import HeldoutRecipe
from stages.lib.training.optimizer import OptimizerRecipe
from stages.lib.training.schedule import ScheduleRecipe


@dataclass(frozen=True, kw_only=True)
class CheckpointRecipe:
    """When checkpoints are written, and which are kept."""

    every: int = operation(500, minimum=1)
    """Steps between two checkpoints; each milestone has one as well."""

    keep: int = operation(2, minimum=1)
    """How many of the newest checkpoints stay on the disk; those of milestones stay for ever."""


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """What every training has, whatever its data."""

    steps: int = horizon(minimum=1)
    """Optimizer steps of the whole run: the learning-rate schedule ends here."""

    seq_len: int = identity(minimum=2)
    """Tokens a sample."""

    global_batch: int = identity(minimum=1)
    """Samples a step, over all ranks; micro_batch x ranks x accumulation."""

    seed: int = identity(0, minimum=0)
    """Seed of the initial weights and of the order of the data."""

    dtype: str = identity("bfloat16", choices=("float32", "bfloat16", "float64"))
    """Precision of the forward and backward pass. With bfloat16 the weights, their gradients' sum over the ranks and
    the optimizer stay float32; float64 is for tests."""

    optimizer: OptimizerRecipe = identity(OptimizerRecipe())
    """The optimizer."""

    schedule: ScheduleRecipe = identity(ScheduleRecipe())
    """The learning rate over the steps."""

    micro_batch: int = operation(1, minimum=1)
    """Samples a rank and forward pass: as many as fit into memory."""

    checkpoint: CheckpointRecipe = operation(CheckpointRecipe())
    """Checkpoints."""

    heldout: HeldoutRecipe = operation(HeldoutRecipe())
    """Evaluation on the validation split."""

    def check_ranks(self, world_size, where):
        """Raise UserError when the global batch cannot be shared by so many ranks, saying what would divide it."""
        if self.global_batch % world_size:
            fitting = ", ".join(str(n) for n in range(1, self.global_batch + 1) if self.global_batch % n == 0)
            raise UserError(
                f"{where}.global_batch must be divisible by the number of ranks ({world_size}), "
                f"got {self.global_batch}; it can be shared by {fitting} ranks"
            )
        share = self.global_batch // world_size
        if share % self.micro_batch:
            fitting = ", ".join(str(n) for n in range(1, share + 1) if share % n == 0)
            raise UserError(
                f"{where}.micro_batch must divide the {share} samples a rank ({where}.global_batch {self.global_batch} "
                f"over {world_size} ranks), got {self.micro_batch}; {fitting} would"
            )

"""What every training has, whatever its data."""

from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.recipe import horizon, identity, operation
from stages.lib.training import sharding
from stages.lib.training.activation_checkpointing import ActivationCheckpointingRecipe
from stages.lib.training.faults.loss_guard import LossGuardRecipe
from stages.lib.training.faults.watchdog import WatchdogRecipe
from stages.lib.training.metrics.trackers import TrackerRecipe
from stages.lib.training.optimizer import OptimizerRecipe
from stages.lib.training.schedule import ScheduleRecipe
from stages.lib.training.validation import ValidationRecipe


@dataclass(frozen=True, kw_only=True)
class CheckpointRecipe:
    """When checkpoints are written, and which are kept."""

    every: int = operation(500, minimum=1)
    """Steps between two checkpoints; each milestone has one as well."""

    keep: int = operation(2, minimum=1)
    """How many of the newest checkpoints stay on the disk; those of milestones stay for ever."""

    asynchronous: bool = operation(True)
    """Whether training goes on while a checkpoint is written. It takes a copy of the state in the CPU's memory."""


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """What every training has, whatever its data."""

    steps: int = horizon(minimum=1)
    """Optimizer steps of the whole run: the learning-rate schedule ends here."""

    seq_len: int = identity(minimum=2)
    """Tokens a sample."""

    global_batch_size: int = identity(minimum=1)
    """Samples a step, over all ranks; micro_batch_size x ranks x accumulation."""

    seed: int = identity(0, minimum=0)
    """Seed of the initial weights and of the order of the data."""

    dtype: str = identity("bfloat16", choices=("float32", "bfloat16", "float64"))
    """Precision of the forward and backward pass. With bfloat16 the weights, their gradients' sum over the ranks and
    the optimizer stay float32; float64 is for tests."""

    optimizer: OptimizerRecipe = identity(OptimizerRecipe())
    """The optimizer."""

    schedule: ScheduleRecipe = identity(ScheduleRecipe())
    """The learning rate over the steps."""

    z_loss: float = identity(0.0, minimum=0)
    """Weight of the square of the logits' logsumexp, added to the loss (PaLM, arXiv 2204.02311, uses 1e-4)."""

    loss_guard: LossGuardRecipe = identity(LossGuardRecipe())
    """Steps that are skipped."""

    micro_batch_size: int = operation(1, minimum=1)
    """Samples a rank and forward pass: as many as fit into memory."""

    sharding: str = operation("full", choices=sharding.KINDS)
    """What is cut over the ranks. full: parameters, gradients and optimizer. grad: the same, but gathered parameters
    stay until the backward pass is through: faster, larger. hybrid-full, hybrid-grad: the same within groups of
    `shard_degree`, which are replicas of each other. none: nothing but the batch."""

    shard_degree: int | None = operation(None, minimum=2)
    """Ranks of a group of the hybrid shardings. Default: those of a node."""

    cpu_offload: bool = operation(False)
    """Whether parameters, gradients and optimizer live in the CPU's memory, and the GPU holds a block at a time."""

    activation_checkpointing: ActivationCheckpointingRecipe = operation(ActivationCheckpointingRecipe())
    """What the backward pass keeps in memory."""

    compile: bool = operation(False)
    """Whether each block is compiled by torch.compile. It takes minutes at the start, and rounds differently."""

    deterministic: bool = operation(False)
    """Whether a GPU uses deterministic kernels alone: the same bits in each run of the same ranks, for some speed."""

    checkpoint: CheckpointRecipe = operation(CheckpointRecipe())
    """When checkpoints are written, and which are kept."""

    validation: ValidationRecipe = operation(ValidationRecipe())
    """Evaluation on the validation split."""

    watchdog: WatchdogRecipe = operation(WatchdogRecipe())
    """After how many minutes without progress a hang ends the training."""

    trackers: TrackerRecipe = operation(TrackerRecipe())
    """Where metrics are shown, beside metrics.jsonl."""

    def check(self, where):
        """Raise UserError where the schedule does not fit into the steps."""
        self.schedule.check_steps(self.steps, f"{where}.schedule")

    def check_ranks(self, world_size, where):
        """Raise UserError when the global batch cannot be shared by so many ranks, saying what would divide it."""
        if self.global_batch_size % world_size:
            fitting = ", ".join(str(n) for n in range(1, self.global_batch_size + 1) if self.global_batch_size % n == 0)
            raise UserError(
                f"{where}.global_batch_size must be divisible by the number of ranks ({world_size}), "
                f"got {self.global_batch_size}; it can be shared by {fitting} ranks"
            )
        share = self.global_batch_size // world_size
        if share % self.micro_batch_size:
            fitting = ", ".join(str(n) for n in range(1, share + 1) if share % n == 0)
            raise UserError(
                f"{where}.micro_batch_size must divide the {share} samples per rank ({where}.global_batch_size "
                f"{self.global_batch_size} over {world_size} ranks), got {self.micro_batch_size}; {fitting} would"
            )

"""The recipe keys of a training. Imports no torch: the workflow checks them before the first job."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stages.lib.errors import UserError
from stages.lib.recipe import Reader, fields_of, hints_of, horizon, identity, operation
from stages.lib.training.metrics.trackers import TrackerRecipe
from stages.lib.training.optimizers.recipe import OptimizerRecipe
from stages.lib.training.optimizers.schedule import ScheduleRecipe

MODES = ("none", "ratio", "selective", "full", "offload")
"""Modes of activation checkpointing."""

VALIDATION_TOKENS = 1 << 20
"""Tokens of each source's validation split on which the loss is measured by default, at most."""

VALIDATION_SHARE = 0.1
"""Time of all evaluations as a share of that of the steps, by default at most."""

FORWARD_SHARE = 1 / 3
"""Time of a forward pass as a share of that of a step, per token."""

RANKS_WITHOUT_GPUS = 2
"""Ranks of a training on a machine without GPUs, so that a laptop runs what a cluster runs."""

SHARDINGS = ("full", "grad", "hybrid-full", "hybrid-grad", "none")


if TYPE_CHECKING:  # a recipe that was read has a number, see `TrainRecipe.written_out`
    SamplesPerStep = int
else:
    SamplesPerStep = int | Literal["auto"]


def auto_batch_size(steps: int, seq_len: int) -> int:
    """Return the samples per step that suit a training of so many steps: a power of two.

    The Step Law (arXiv 2503.04715) was fitted to 3,700 models: on D tokens, 0.58 x D^0.571 tokens per step are best,
    whatever the size of the model. D is steps x tokens per step, so both follow from the steps.
    """
    tokens = (0.58 * steps**0.571) ** (1 / (1 - 0.571))
    return 1 << max(0, round(math.log2(tokens / seq_len)))


def ranks_that_fit(global_batch_size: int, micro_batch_size: int, most: int) -> int:
    """Return the largest number of ranks up to `most` that divides the global batch into micro-batches; at least 1."""
    fitting = (n for n in range(most, 1, -1) if global_batch_size % (n * micro_batch_size) == 0)
    return next(fitting, 1)


@dataclass(frozen=True, kw_only=True)
class CheckpointRecipe:
    """Frequency of checkpoints, and number of those that are kept."""

    every: int = operation(500, minimum=1)
    """Steps between two checkpoints; each milestone has one as well."""

    keep: int = operation(2, minimum=1)
    """Number of the newest checkpoints that are kept; those of milestones are always kept."""

    asynchronous: bool = operation(True)
    """Write checkpoints while training continues. It needs CPU memory for a copy of the state."""


@dataclass(frozen=True, kw_only=True)
class InitialRecipe:
    """State that a training takes from its initial model besides the weights."""

    optimizer: str = identity(choices=("keep", "reset"))
    """keep: the optimizer's moments. reset: they start at zero."""

    schedule: str = identity(choices=("continue", "reset"))
    """continue: the learning-rate schedule resumes where it was, and `steps` are added to the steps before. reset: a
    new schedule of `steps` steps."""

    data: str = identity(choices=("continue", "reset"))
    """continue: from the first sample that the model was not trained on. It requires the same seq_len, packing and
    seed, and a corpus that has all sources of the earlier one with the same text; weights may differ, and sources may
    be added. Each source resumes where it was, and a new one begins at its start. reset: from the first sample."""


@dataclass(frozen=True, kw_only=True)
class ActivationCheckpointingRecipe:
    """Activations that are kept for the backward pass; the others are recomputed."""

    mode: str = operation("none", choices=MODES)
    """none: all are kept. ratio: a share of the blocks keeps only its input. selective: each block keeps its input, the
    result of attention, and every second matrix product. full: each block keeps only its input. offload: as full, with
    the inputs in CPU memory."""

    ratio: float | None = operation(None, above=0, maximum=1)
    """Share of the blocks that are recomputed, evenly spread; for mode ratio only."""

    def check(self, where: str) -> None:
        """Raise UserError if a ratio is missing, or has no effect."""
        if self.mode == "ratio" and self.ratio is None:
            raise UserError(f"{where}.ratio is missing: for mode ratio it must be greater than 0 and at most 1")
        if self.mode != "ratio" and self.ratio is not None:
            raise UserError(
                f"{where}.ratio must be left out except for mode ratio, got {self.ratio} with mode {self.mode}"
            )


@dataclass(frozen=True, kw_only=True)
class ValidationRecipe:
    """Evaluation on the validation split during training."""

    every: int = operation(500, minimum=1)
    """Steps between two evaluations; each milestone is evaluated as well."""

    tokens: int | None = operation(None, minimum=1)
    """Maximum number of tokens of each source's validation split, in windows that are spread over it by a fixed seed.
    Losses of another number of tokens are those of other text: they are drawn as another curve. Default: 1,048,576, and
    less if all evaluations would take more than a tenth of the time of the steps: a power of two."""


@dataclass(frozen=True, kw_only=True)
class LossGuardRecipe:
    """Detection of bad steps, and the reaction to many of them. A bad step changes no weights; its batch is skipped."""

    spike: float | None = identity(None, above=0)
    """A loss is a spike if it is more than this number of standard deviations above the mean of the last `window` good
    losses; 6 is usual. Default: only a loss or gradient that is not finite is bad."""

    window: int = identity(128, minimum=8)
    """Number of losses for the mean and the deviation; no loss is a spike before half as many are known."""

    bad_steps: int = identity(10, minimum=1)
    """Number of consecutive bad steps after which `on_repeated` applies."""

    on_repeated: str = identity("stop", choices=("stop", "rollback"))
    """stop: end with an error. rollback: load the newest checkpoint before the bad steps, and skip all samples since
    then."""

    max_rollbacks: int = identity(3, minimum=1)
    """Number of rollbacks of a run; after them it stops."""


@dataclass(frozen=True, kw_only=True)
class WatchdogRecipe:
    """Minutes without progress after which a training ends, to be started again; null: never."""

    start: float | None = operation(30.0, above=0)
    """Minutes from the start of training to the end of its first step, loading and compiling included."""

    step: float | None = operation(10.0, above=0)
    """Maximum minutes per step."""

    save: float | None = operation(30.0, above=0)
    """Maximum minutes per save, and per forward pass of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """The keys of a training, whatever its data."""

    steps: int = horizon(minimum=1)
    """Optimizer steps of the whole run: the learning-rate schedule ends here."""

    milestones: list[int] = horizon([])
    """Milestones: steps (or epochs) whose checkpoints are kept, exported and scored. Increasing, at most `steps` (or
    `epochs`); one job each. Appending one resumes from the last. Default: the last step."""

    seq_len: int = identity(minimum=2)
    """Tokens per sample."""

    global_batch_size: SamplesPerStep = identity(minimum=1)
    """Samples per step, over all ranks: micro_batch_size x ranks x gradient accumulation steps. auto: by the Step Law
    (arXiv 2503.04715), 0.58 x tokens of the run^0.571 tokens, as a power of two of samples; other steps may then give
    another number, and so another model. It requires `steps`."""

    seed: int = identity(0, minimum=0)
    """Seed of the initial weights and of the order of the data."""

    dtype: str = identity("bfloat16", choices=("float32", "bfloat16", "float64"))
    """Precision of the forward and backward passes. With bfloat16 the weights, the reduction of gradients over the
    ranks and the optimizer stay float32, unless their own keys say otherwise; float64 is for tests. On a CPU without
    AMX or AVX512-BF16 use float32: products in bfloat16 are several times slower there."""

    weights_dtype: str = identity("float32", choices=("float32", "bfloat16"))
    """Precision of the weights that are trained, and of their gradients. float32: that of the passes if it is float64.
    bfloat16: half of the bytes, 8 per parameter in all with optimizer.state_dtype bfloat16; new weights are rounded up
    or down by chance, so that small updates count on average. It requires dtype bfloat16 and AdamW. Not for LoRA."""

    float8: bool = identity(False)
    """Multiply the matrices of the blocks in float8, forward and backward, with one dynamic scale per tensor. It
    requires dtype bfloat16, an NVIDIA GPU of compute capability 8.9 or higher, and sizes that are multiples of 16. Not
    for LoRA and experts."""

    optimizer: OptimizerRecipe = identity(OptimizerRecipe())
    """The optimizer."""

    schedule: ScheduleRecipe = identity(ScheduleRecipe())
    """The learning-rate schedule."""

    z_loss: float = identity(0.0, minimum=0)
    """Weight of the squared logsumexp of the logits, which is added to the loss (PaLM, arXiv 2204.02311: 1e-4)."""

    loss_guard: LossGuardRecipe = identity(LossGuardRecipe())
    """Conditions under which a step is skipped, and the reaction to many of them."""

    micro_batch_size: int = operation(1, minimum=1)
    """Samples per rank and forward pass: as many as fit into memory."""

    sharding: str = operation("full", choices=SHARDINGS)
    """Sharding over the ranks. full (FSDP's FULL_SHARD): parameters, gradients and optimizer state. grad
    (SHARD_GRAD_OP): the same, but gathered parameters stay until the backward pass used them: faster, more memory.
    hybrid-full (HYBRID_SHARD), hybrid-grad (_HYBRID_SHARD_ZERO2): the same within groups of `shard_degree` ranks, which
    are replicas of each other. none (NO_SHARD): only the batch."""

    shard_degree: int | None = operation(None, minimum=2)
    """Ranks per group of the hybrid shardings. Default: the ranks of a node."""

    cpu_offload: bool = operation(False)
    """Keep parameters, gradients and optimizer state in CPU memory, and one block at a time on the GPU."""

    activation_checkpointing: ActivationCheckpointingRecipe = operation(ActivationCheckpointingRecipe())
    """Activations that are kept for the backward pass; the others are recomputed."""

    compile: bool = operation(False)
    """Compile each block with torch.compile. It takes minutes at the start, and rounds differently."""

    cuda_graphs: bool = operation(False)
    """Launch the passes of a micro-batch as one CUDA graph, for models so small that the GPU waits for the host. It
    requires one rank on an NVIDIA GPU. Not with document_mask, in fine-tuning, with a sliding window, experts or
    offloading."""

    deterministic: bool = operation(False)
    """Use only deterministic kernels on a GPU: slower, and the same bits in each run on the same ranks."""

    checkpoint: CheckpointRecipe = operation(CheckpointRecipe())
    """Frequency of checkpoints, and number of those that are kept."""

    validation: ValidationRecipe = operation(ValidationRecipe())
    """Evaluation on the validation split."""

    watchdog: WatchdogRecipe = operation(WatchdogRecipe())
    """Minutes without progress after which a training counts as hung and ends."""

    trackers: TrackerRecipe = operation(TrackerRecipe())
    """Experiment trackers that receive the metrics, beside metrics.jsonl."""

    @staticmethod
    def written_out(keys: dict[str, Any], where: str) -> dict[str, Any]:
        """Return the keys of a training, as read or as written, with a number in place of a batch size of `auto`.

        `where`: their dotted key, for errors. Raises UserError if `steps` or `seq_len` is missing or not valid.
        """
        if keys.get("global_batch_size") != "auto":
            return keys
        if keys.get("steps") is None:
            raise UserError(
                f"{where}.global_batch_size must be a number without {where}.steps, got auto, which is computed from "
                "steps; set a number of samples, or steps in place of epochs"
            )
        hints, fields = hints_of(TrainRecipe), fields_of(TrainRecipe)
        steps, seq_len = (
            Reader().value(hints[key], keys.get(key), f"{where}.{key}", fields[key].metadata)
            for key in ("steps", "seq_len")
        )
        return keys | {"global_batch_size": auto_batch_size(steps, seq_len)}

    @property
    def objective(self) -> str:
        """Name of the objective, see `step.OBJECTIVES`."""
        return "next_token"

    def validation_tokens(self, num_sources: int, milestones: Collection[int], steps: int | None = None) -> int:
        """Return the number of tokens of each source's validation split that an evaluation reads, at most.

        `milestones`: of the run, in steps or epochs. `steps`: those of the run, if the recipe has epochs.
        """
        if self.validation.tokens is not None:
            return self.validation.tokens
        steps = self.steps or steps or 1
        trained = steps * self.global_batch_size * self.seq_len
        tokens = VALIDATION_SHARE / FORWARD_SHARE * trained / self.num_evaluations(milestones, steps) / num_sources
        return max(self.seq_len, 1 << int(math.log2(min(VALIDATION_TOKENS, max(1, tokens)))))  # at least a window

    def num_evaluations(self, milestones: Collection[int], steps: int) -> int:
        """Return how often the validation loss is measured; without `milestones` the last of the `steps` is one."""
        return len({*range(self.validation.every, steps + 1, self.validation.every), *(milestones or [steps])})

    def validation_share(self, tokens: int, milestones: Collection[int]) -> float:
        """Return the time of all evaluations, each on a number of tokens, as a share of that of all steps."""
        trained = self.steps * self.global_batch_size * self.seq_len
        return FORWARD_SHARE * self.num_evaluations(milestones, self.steps) * tokens / trained

    def check(self, where: str) -> None:
        """Raise UserError if the schedule does not fit into the steps."""
        self.schedule.check_steps(self.steps, f"{where}.schedule")

    def check_ranks(self, world_size: int, where: str) -> None:
        """Raise UserError, with the sizes that fit, if the global batch cannot be divided among the ranks."""
        if self.cuda_graphs and world_size > 1:  # FSDP gathers weights to addresses that change
            raise UserError(f"{where}.cuda_graphs requires a training on one rank, got {world_size} ranks")
        if self.global_batch_size % world_size:
            fitting = ", ".join(str(n) for n in range(1, self.global_batch_size + 1) if self.global_batch_size % n == 0)
            raise UserError(
                f"{where}.global_batch_size must be divisible by the number of ranks ({world_size}), "
                f"got {self.global_batch_size}, which fits {fitting} ranks"
            )
        share = self.global_batch_size // world_size
        if share % self.micro_batch_size:
            fitting = ", ".join(str(n) for n in range(1, share + 1) if share % n == 0)
            raise UserError(
                f"{where}.micro_batch_size must divide the {share} samples per rank ({where}.global_batch_size "
                f"{self.global_batch_size} over {world_size} ranks), got {self.micro_batch_size}; {fitting} fit"
            )


@dataclass(frozen=True, kw_only=True)
class DpoRecipe:
    """Direct preference optimization (arXiv 2305.18290)."""

    beta: float = identity(above=0)
    """Strength of the pull to the initial model: a reward is beta times the log-ratio of the two models' probabilities.
    0.1 is common; smaller values let the model move further away."""

    label_smoothing: float = identity(0.0, minimum=0, maximum=0.5)
    """Probability that a preference is noted the wrong way round (conservative DPO)."""

"""Speed: training steps of 1 and 8 billion parameters at 4,096 tokens over a small grid.

Each is beside its plan: the peak of memory, and the speed that the ceilings of this card allow (`tools/plan/bound.py`).
"""

import dataclasses
import functools
from dataclasses import dataclass

from benchmarks import train_gpu
from benchmarks.gpu import ceilings
from benchmarks.gpu.session import GIB, Skipped, Step, StepError, memory_of_gpu
from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.model import flops
from tools.plan import bound, devices, memory, subject

GPU = 80 * GIB
"""Bytes of the GPU that is planned for: one with more has chunks of the loss as large."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of the grid: options of `benchmarks.train_gpu`."""

    shape: str
    seq_len: int = 4096
    micro_batch_size: int = 1
    mode: str = "none"
    accumulation: int = 1
    state_dtype: str = "float32"
    weights_dtype: str = "float32"
    float8: bool = False
    cuda_graphs: bool = False
    document_length: int | None = None
    """Mean number of tokens of a document, to which attention is kept; None: a row is one document."""

    more: tuple[str, ...] = ()
    """Options of one lever: they change kernels, not the plan."""

    @property
    def name(self):
        """The cell in words."""
        words = [self.shape, f"micro-batch {self.micro_batch_size}", self.mode]
        words += [f"{self.accumulation} micro-batches"] * (self.accumulation > 1)
        words += ["bfloat16 moments"] * (self.state_dtype == "bfloat16")
        words += ["bfloat16 weights"] * (self.weights_dtype == "bfloat16")
        words += ["float8"] * self.float8 + ["CUDA graphs"] * self.cuda_graphs
        words += [f"{self.seq_len:,} tokens"] * (self.seq_len not in (64, 4096))
        words += [] if self.document_length is None else [f"documents of {self.document_length:,}"]
        return ", ".join([*words, *(word.lstrip("-") for word in self.more)])

    def options(self):
        """Return the options of benchmarks.train_gpu."""
        return [
            *(self.shape, "--seq-len", self.seq_len, "--micro-batch-size", self.micro_batch_size),
            *("--accumulation", self.accumulation, "--activation-checkpointing", self.mode, *self.more),
            *("--state-dtype", self.state_dtype, "--weights-dtype", self.weights_dtype),
            *("--steps", max(3, 10 // self.accumulation)),
            *(["--float8"] * self.float8 + ["--cuda-graphs"] * self.cuda_graphs),
            *([] if self.document_length is None else ["--document-length", self.document_length]),
        ]


IN_BFLOAT16 = {"state_dtype": "bfloat16", "weights_dtype": "bfloat16"}
HALF = {"shape": "llama3-8b"} | IN_BFLOAT16
"""8B as peers train it on one card."""

EQUAL = {
    "llama3-1b": (Cell(shape="llama3-1b", micro_batch_size=8), Cell(shape="llama3-1b", micro_batch_size=4)),
    "llama3-8b": (Cell(**HALF, micro_batch_size=2), Cell(**HALF, micro_batch_size=2, mode="full")),
}
"""{shape: cells at whose settings transformers is measured, too: the first that fits the card}"""

LEVERS = (
    {"float8": True},
    {"cuda_graphs": True},
    {"document_length": 1024},
    *({"more": (option,)} for option in ("--attention=flash", "--attention=cudnn", "--attention=fa3", "--no-compile")),
)
"""Changes of one cell of 1B, one at a time."""

GRID = (
    *EQUAL["llama3-1b"],
    Cell(shape="llama3-1b", micro_batch_size=8, accumulation=4),
    *EQUAL["llama3-8b"],
    Cell(**HALF, micro_batch_size=4, accumulation=2, mode="full"),  # KempnerForge's: 32,768 tokens per step
    Cell(**HALF, micro_batch_size=1, accumulation=8, mode="selective"),  # as many, for 80 GB
    Cell(**HALF, micro_batch_size=4, accumulation=2, mode="selective"),  # as many, for 139 GiB
    Cell(shape="llama3-8b", micro_batch_size=2, accumulation=4, mode="selective", state_dtype="bfloat16"),
    Cell(**HALF, micro_batch_size=2, document_length=1024),
    Cell(**HALF, micro_batch_size=2, float8=True),
    *(dataclasses.replace(EQUAL["llama3-1b"][0], **lever) for lever in LEVERS),
    Cell(shape="llama3-1b", seq_len=8192, micro_batch_size=4),
    Cell(shape="llama3-1b", seq_len=8192, micro_batch_size=4, document_length=1024),  # as config/llama3-1b.yaml
    Cell(shape="llama3-1b", micro_batch_size=1, mode="selective"),
    Cell(shape="llama3-1b", micro_batch_size=1, mode="selective", cuda_graphs=True),
    Cell(shape="llama3-1b", micro_batch_size=4, mode="selective"),
)
DRY_GRID = (
    Cell(shape="tiny", seq_len=64, micro_batch_size=2, more=("--no-compile", "--attention=math")),
    Cell(shape="llama3-8b", micro_batch_size=2),
    Cell(shape="tiny", seq_len=64, micro_batch_size=2, float8=True, more=("--no-compile",)),
)
DRY_MEMORY = 8 * GIB

PROFILES = {
    "llama3-1b": EQUAL["llama3-1b"],
    "llama3-8b": (Cell(**HALF, micro_batch_size=1, mode="selective"), EQUAL["llama3-8b"][1]),
}
DRY_PROFILES = {"tiny": (Cell(shape="tiny", seq_len=64, micro_batch_size=2, more=("--no-compile",)),)}


def steps(session):
    """Yield a step per cell, the most telling first."""
    for cell in DRY_GRID if session.dry else GRID:
        yield Step(name=cell.name, take=functools.partial(_take, session, cell), minutes=3)
    for shape, cells in (DRY_PROFILES if session.dry else PROFILES).items():
        yield Step(name=f"profile, {shape}", take=functools.partial(_profile, session, shape, cells), minutes=3)


def plans_step(session):
    """Return the step that plans the memory of all cells, and keeps it in --work."""

    def take():
        peaks = {cell.name: planned_bytes(cell, session) for cell in GRID}
        return f"{len(peaks)} cells are planned", {"planned_bytes": peaks}

    return Step(name="plans", take=take, minutes=5)


def check_memory(session, total):
    """Raise UserError if a card of `total` bytes has too little memory for any cell."""
    least = min(planned_bytes(cell, session) for cell in GRID) + devices.RESERVED
    if least > total:
        raise UserError(
            f"the smallest cell of speed needs {least / GIB:.1f} GiB by its plan, and the card has {total / GIB:.1f}: "
            "leave speed out of --groups"
        )


def subject_of(cell):
    """Return the training whose step a cell takes."""
    model, vocab_size = train_gpu.shape_of(cell.shape)
    keys = train_gpu.keys_of(cell, 10, cell.mode, "--no-compile" not in cell.more)
    keys["document_mask"] = cell.document_length is not None
    return subject.Subject(subject.load("pretrain", keys, model, vocab_size, cell.shape), 1, 1)


def planned_bytes(cell, session):
    """Return the planned peak memory of a cell's step on a GPU; `--prepare` may have planned it with another torch."""
    return memory.cached_memory_of(subject_of(cell), GPU, session.work, ignore_torch_version=True).peak


def bound_of(cell, session):
    """Return the ceilings, the least seconds of a cell's step by part, its speed.

    {} without ceilings of the card, and with several documents per row, of whose attention the bound counts too much.
    """
    path, name = session.made / ceilings.FILE, session.device or ""
    known = devices.ceilings_of(name, flops.peak_flops(name))
    if path.exists():
        rates = files.read_json_object(path)
        known = bound.Ceilings(rates["copy_gb_per_second"] * 1e9, rates["matrix_tflops"] * 1e12, "measured")
    if known is None or cell.document_length is not None:
        return {}
    planned = subject_of(cell)
    seconds = bound.seconds_of(planned, known, GPU)
    rate = planned.recipe.global_batch_size * cell.seq_len / sum(seconds.values())
    return dataclasses.asdict(known) | {"seconds": seconds, "tokens_per_second": rate}


def fitting(session, *cells):
    """Return the first cell whose plan fits the card, and its planned bytes. Raises Skipped if none does."""
    room = DRY_MEMORY if session.dry else memory_of_gpu()
    for cell in cells:
        planned = planned_bytes(cell, session)
        if planned + devices.RESERVED <= room:
            return cell, planned
    raise Skipped(f"its plan needs {planned / GIB:.1f} GiB, and the card has {room / GIB:.1f}")


def train(session, name, module, options, output):
    """Run a training of `module` in the step `name`; return its figures. Raises Skipped if the card cannot take it."""
    output.parent.mkdir(exist_ok=True)
    try:
        session.command(name, module, *options)
    except StepError as error:
        if error.code == train_gpu.UNAVAILABLE:
            raise Skipped(str(error)) from None
        raise
    return files.read_json_object(output)


def _train(session, cell, name, *options):
    """Train a cell with more options, in the step `name`; return its figures."""
    output = session.made / f"speed/{name.replace(' ', '_').replace(',', '')}.json"
    options = [*cell.options(), "--output", output, *options]
    return train(session, name, "benchmarks.train_gpu", options, output)


def _profile(session, shape, cells):
    prefix = session.made / f"profiles/{shape}"
    cell, _ = fitting(session, *cells)
    figures = _train(session, cell, f"profile, {shape}", "--profile", prefix)
    return f"{cell.name}: kernels in {prefix}.txt, trace in {prefix}.json.gz", figures


def _take(session, cell):
    _, planned = fitting(session, cell)
    figures = _train(session, cell, cell.name)
    rate, mfu, measured = figures["tokens_per_second"], figures["mfu"], figures["peak_memory_mb"] * 1e6
    line = f"{rate:,.0f} tokens/s, MFU {f'{mfu:.1%}' if isinstance(mfu, float) else mfu}, "
    if least := bound_of(cell, session):
        most, seconds = least["tokens_per_second"], least["seconds"]
        shares = ", ".join(f"{part} {share / sum(seconds.values()):.0%}" for part, share in seconds.items())
        of_mfu = f", MFU {mfu * most / rate:.1%}" if isinstance(mfu, float) else ""
        line += f"at most {most:,.0f}{of_mfu} by {least['source']} ceilings ({shares}), "
    line += f"peak {measured / GIB:.1f} GiB (plan {planned / GIB:.1f})"
    return line, {"planned_bytes": planned, "measured_bytes": measured, "bound": least} | figures

"""Speed: training steps of 1 and 8 billion parameters at 4,096 tokens over a small grid.

Each is beside its plan: the peak of memory, and the speed that the ceilings of this card allow (`tools/plan/bound.py`).
"""

import dataclasses
import functools
from dataclasses import dataclass

from benchmarks import train_gpu
from benchmarks.gpu import ceilings
from benchmarks.gpu.session import GIB, Skipped, Step, StepError
from stages.lib import files
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
    state_dtype: str = "float32"
    float8: bool = False
    cuda_graphs: bool = False
    more: tuple[str, ...] = ()
    """Options of one lever: they change kernels, not the plan."""

    @property
    def name(self):
        """The cell in words."""
        words = [self.shape, f"micro-batch {self.micro_batch_size}", self.mode]
        words += ["bfloat16 moments"] * (self.state_dtype == "bfloat16")
        words += ["float8"] * self.float8 + ["CUDA graphs"] * self.cuda_graphs
        return ", ".join([*words, *(word.lstrip("-") for word in self.more)])

    def options(self):
        """Return the options of benchmarks.train_gpu."""
        return [
            *(self.shape, "--seq-len", self.seq_len, "--micro-batch-size", self.micro_batch_size),
            *("--activation-checkpointing", self.mode, "--state-dtype", self.state_dtype, "--steps", 10, *self.more),
            *(["--float8"] * self.float8 + ["--cuda-graphs"] * self.cuda_graphs),
        ]


GRID = (
    Cell(shape="llama3-1b", micro_batch_size=4, mode="selective"),
    Cell(shape="llama3-1b", micro_batch_size=4),
    Cell(shape="llama3-8b", micro_batch_size=2, mode="full", state_dtype="bfloat16"),
    Cell(shape="llama3-8b", micro_batch_size=2, mode="selective", state_dtype="bfloat16"),
    Cell(shape="llama3-8b", micro_batch_size=2, state_dtype="bfloat16"),
    Cell(shape="llama3-1b", micro_batch_size=4, mode="selective", float8=True),
    Cell(shape="llama3-8b", micro_batch_size=2, mode="selective", state_dtype="bfloat16", float8=True),
    Cell(shape="llama3-1b", micro_batch_size=1, mode="selective"),
    Cell(shape="llama3-1b", micro_batch_size=1, mode="selective", cuda_graphs=True),
    Cell(shape="llama3-1b", micro_batch_size=4, mode="selective", float8=True, cuda_graphs=True),
    Cell(shape="llama3-1b", micro_batch_size=8, mode="selective"),
    Cell(shape="llama3-1b", micro_batch_size=4, mode="selective", more=("--attention=cudnn",)),
    Cell(shape="llama3-1b", micro_batch_size=4, mode="selective", more=("--attention=fa3",)),
    Cell(shape="llama3-1b", micro_batch_size=4, mode="selective", more=("--no-compile",)),
)
DRY_GRID = (
    Cell(shape="tiny", seq_len=64, micro_batch_size=2, more=("--no-compile", "--attention=math")),
    Cell(shape="llama3-8b", micro_batch_size=2),
    Cell(shape="tiny", seq_len=64, micro_batch_size=2, float8=True, more=("--no-compile",)),
)
DRY_MEMORY = 8 * GIB


def steps(session):
    """Yield a step per cell, the most telling first."""
    for cell in DRY_GRID if session.dry else GRID:
        yield Step(name=cell.name, take=functools.partial(_take, session, cell), minutes=3)


def subject_of(cell):
    """Return the training whose step a cell takes."""
    model, vocab_size = train_gpu.shape_of(cell.shape)
    keys = {
        "steps": 10,
        "seq_len": cell.seq_len,
        "global_batch_size": cell.micro_batch_size,
        "micro_batch_size": cell.micro_batch_size,
        "optimizer": {"state_dtype": cell.state_dtype},
        "activation_checkpointing": {"mode": cell.mode},
        "float8": cell.float8,
        "cuda_graphs": cell.cuda_graphs,
    }
    return subject.Subject(subject.load("pretrain", keys, model, vocab_size, cell.shape), 1, 1)


def planned_bytes(cell):
    """Return the planned peak memory of a cell's step on a GPU."""
    return memory.memory_of(subject_of(cell), gpu=GPU).peak


def bound_of(cell, session):
    """Return the ceilings and the least seconds of a cell's step by part: {} if neither is measured or known."""
    path, name = session.made / ceilings.FILE, session.device or ""
    known = devices.ceilings_of(name, flops.peak_flops(name))
    if path.exists():
        rates = files.read_json_object(path)
        known = bound.Ceilings(rates["copy_gb_per_second"] * 1e9, rates["matrix_tflops"] * 1e12, "measured")
    if known is None:
        return {}
    return dataclasses.asdict(known) | {"seconds": bound.seconds_of(subject_of(cell), known, GPU)}


def _take(session, cell):
    import torch

    planned, room = planned_bytes(cell), DRY_MEMORY if session.dry else torch.cuda.mem_get_info()[1]
    if planned + devices.RESERVED > room:
        raise Skipped(f"its plan needs {planned / GIB:.1f} GiB, and the card has {room / GIB:.1f}")
    output = session.made / f"speed/{cell.name.replace(' ', '_').replace(',', '')}.json"
    try:
        session.command(cell.name, "benchmarks.train_gpu", *cell.options(), "--output", output)
    except StepError as error:
        if error.code == train_gpu.UNAVAILABLE:
            raise Skipped(str(error)) from None
        raise
    figures = files.read_json_object(output)
    rate, mfu, measured = figures["tokens_per_second"], figures["mfu"], figures["peak_memory_mb"] * 1e6
    line = f"{rate:,.0f} tokens/s, MFU {f'{mfu:.1%}' if isinstance(mfu, float) else mfu}, "
    if least := bound_of(cell, session):
        seconds = sum(least["seconds"].values())
        most = cell.micro_batch_size * cell.seq_len / seconds
        shares = ", ".join(f"{part} {share / seconds:.0%}" for part, share in least["seconds"].items())
        of_mfu = f", MFU {mfu * most / rate:.1%}" if isinstance(mfu, float) else ""
        line += f"at most {most:,.0f}{of_mfu} by {least['source']} ceilings ({shares}), "
    line += f"peak {measured / GIB:.1f} GiB (plan {planned / GIB:.1f})"
    return line, {"planned_bytes": planned, "measured_bytes": measured, "bound": least} | figures

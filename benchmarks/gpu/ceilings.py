"""Ceilings of the card: copies within its memory, and products of bfloat16 matrices.

    python -m benchmarks.gpu.ceilings OUTPUT [SIZE]

It is a step of benchmarks.gpu, in a process of its own.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.gpu.session import Step
from stages.lib import files

SIZE, DRY_SIZE = 8192, 256
REPEATS = 20
FILE = "ceilings.json"


def steps(session):
    """Yield the step."""

    def take():
        output = session.made / FILE
        session.command("ceilings", "benchmarks.gpu.ceilings", output, DRY_SIZE if session.dry else SIZE)
        rates = files.read_json_object(output)
        line = f"copies {rates['copy_gb_per_second']:,.0f} GB/s"
        return f"{line}, bfloat16 products {rates['matrix_tflops']:,.1f} TFLOP/s", rates

    yield Step(name="ceilings", take=take, minutes=2)


def measure(size):
    """Return the figures. `size`: rows and columns of a matrix; a copy has 16 times its bytes."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def seconds_of(function):
        best = float("inf")
        for _ in range(3):
            for count in (1, REPEATS):  # the first call is warm-up
                begun = time.perf_counter()
                for _ in range(count):
                    function()
                if device.type == "cuda":
                    torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - begun) / REPEATS)
        return best

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(16 * size * size, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    product, copy = seconds_of(lambda: a @ b), seconds_of(lambda: target.copy_(source))
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "size": size,
        "matrix_tflops": 2 * size**3 / product / 1e12,
        "copy_gb_per_second": 2 * source.nbytes / copy / 1e9,  # read and written
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(measure(int(sys.argv[2]) if len(sys.argv) > 2 else SIZE)), encoding="utf-8")

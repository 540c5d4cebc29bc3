"""The GPUs that are known by name: their memory, its bandwidth and peak FLOP/s. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.model import flops
from tools.plan.bound import Ceilings

GIB = 1 << 30

MEMORY_AND_BANDWIDTH = {
    "H100 80GB HBM3": (79.1, 3.35e12),
    "H100 PCIe": (79.1, 2.0e12),
    "H100 NVL": (93.0, 3.9e12),
    "H200": (139.7, 4.8e12),
    "H200 NVL": (139.7, 4.8e12),
    "GH200 480GB": (94.5, 4.0e12),
    "B200": (178.3, 8.0e12),
    "A100-SXM4-40GB": (39.3, 1.555e12),
    "A100-SXM4-80GB": (79.1, 2.039e12),
    "A100-PCIE-40GB": (39.3, 1.555e12),
    "A100 80GB PCIe": (79.1, 1.935e12),
    "A40": (44.3, 0.696e12),
    "A30": (23.5, 0.933e12),
    "A10": (22.0, 0.6e12),
    "L40S": (44.3, 0.864e12),
    "L4": (21.9, 0.3e12),
}
"""{torch's name of a GPU: (memory that torch can allocate in GiB, bytes per second of it in NVIDIA's datasheets)}

The memory is rounded down: less than the name says, with ECC and the driver's share.
"""

SHORT = {
    "H100": "H100 80GB HBM3",
    "A100": "A100-SXM4-80GB",
    "A100-80GB": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "GH200": "GH200 480GB",
}
"""Other names for the most common ones."""

WITHOUT_FLOAT8 = {
    "A100-SXM4-40GB": (8, 0),
    "A100-SXM4-80GB": (8, 0),
    "A100-PCIE-40GB": (8, 0),
    "A100 80GB PCIe": (8, 0),
    "A40": (8, 6),
    "A30": (8, 0),
    "A10": (8, 6),
}
"""{GPU that does not multiply in float8: its compute capability}"""

REACHED = 0.9
"""Share of a datasheet's figures that large copies and products reach: an assumption."""

RESERVED = 2 * GIB
"""Bytes of a GPU for the CUDA context, cuBLAS and NCCL: an assumption."""

FRAGMENTATION = 1.05
"""Memory that the caching allocator holds, as a multiple of what is allocated at the peak: an assumption."""


@dataclass(frozen=True)
class Device:
    """A GPU. `name`: for people. `peak`: dense bfloat16 FLOP/s; None if it is not known."""

    name: str
    memory: int
    peak: float | None
    ceilings: Ceilings | None = None
    """The rates of its copies and products; None if they are not known."""

    def needed(self, peak_memory: int) -> int:
        """Return the bytes of a GPU that a training needs. `peak_memory`: bytes that are allocated at its peak."""
        return int(peak_memory * FRAGMENTATION) + RESERVED


def find(name: str | None, memory_gb: float | None, peak_tflops: float | None) -> Device | None:
    """Return the device of a name, or of the numbers that are given for it; None if nothing is given.

    `memory_gb`: GiB of one GPU. Raises UserError for a name that is not known, unless its memory is given.
    """
    if name is None and memory_gb is None:
        return None
    full = None if name is None else SHORT.get(name, name.removeprefix("NVIDIA "))
    memory = memory_gb
    if memory is None and full in MEMORY_AND_BANDWIDTH:
        memory, _ = MEMORY_AND_BANDWIDTH[full]
    if memory is None:
        known = ", ".join([*SHORT, *MEMORY_AND_BANDWIDTH])
        raise UserError(
            f"the GPU must be one of {known}, or have its --memory-gb and --peak-tflops (device_memory_gb and "
            f"device_peak_tflops in a profile), got {name!r}"
        )
    peak = flops.PEAKS.get(full or "") if peak_tflops is None else peak_tflops * 1e12
    return Device(full or f"GPU of {memory:g} GiB", int(memory * GIB), peak, ceilings_of(full or "", peak))


def ceilings_of(name: str, peak: float | None) -> Ceilings | None:
    """Return the ceilings of a GPU by torch's name of it and its peak, by its datasheet; None if it is not known."""
    _, bandwidth = MEMORY_AND_BANDWIDTH.get(name.removeprefix("NVIDIA "), (None, None))
    if bandwidth is None or peak is None:
        return None
    return Ceilings(REACHED * bandwidth, REACHED * peak, f"{REACHED:.0%} of the datasheet's")

"""The ranks of a stage that `mpiexec` started, in the variables that torchrun would set.

`mpiexec -n 8 python -m stages.pretrain ...` needs no torchrun. distributed/process_group.py finds the address at which
the ranks meet.
"""

from __future__ import annotations

import os

STARTED = "CARAVAN_MPI"
"""Name of a variable, of ranks that mpiexec started: the one that has the number of the rank."""

# Rank, number of ranks, and the same of this node, as each launcher names them. Slurm's own variables are not here,
# because they are also set in the shell of a job, which is not a rank.
FAMILIES = (
    # Open MPI, Spectrum MPI
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # MPICH, Intel MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # Cray's PALS, as on Polaris and Aurora
    ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
)
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def adopt_ranks() -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE if this process is one of several that mpiexec started.

    Changes nothing under torchrun, and for a single process. Must be called before torch is imported: like torchrun,
    it sets OMP_NUM_THREADS to 1 unless the environment sets it.
    """
    if "RANK" in os.environ:
        return
    for family in FAMILIES:
        numbers = [os.environ.get(name, "") for name in family]
        if all(number.isdecimal() for number in numbers) and int(numbers[1]) > 1:
            os.environ |= dict(zip(NAMES, numbers, strict=True)) | {STARTED: family[0]}
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            return


def is_started() -> bool:
    """Return whether mpiexec started this process as one of several ranks."""
    return STARTED in os.environ and "RANK" in os.environ

"""Start modules with the real `mpiexec` of Open MPI or MPICH."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers.training import environment

# Open MPI refuses root, and more ranks than cores; MPICH does not read these.
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def require():
    """Skip if mpiexec is not installed; fail instead if CARAVAN_REQUIRE_MPI is set."""
    if shutil.which("mpiexec") is None:
        reason = "not installed (Debian's openmpi-bin or mpich): mpiexec not found"
        (pytest.fail if os.environ.get("CARAVAN_REQUIRE_MPI") else pytest.skip)(reason)


def start(ranks, command, variables=None, **keywords):
    """Start a command on ranks of this machine; return the running mpiexec, whose stderr is a pipe."""
    return subprocess.Popen(
        ["mpiexec", "-n", str(ranks), *map(str, command)],
        env=environment() | ALLOWED | (variables or {}),
        stderr=subprocess.PIPE,
        text=True,
        **keywords,
    )


def run(ranks, module, arguments, variables=None):
    """Run `python -m module` on ranks; return (exit code of mpiexec, stderr of all)."""
    process = start(ranks, [sys.executable, "-m", module, *arguments], variables)
    _, printed = process.communicate(timeout=200)
    return process.returncode, printed

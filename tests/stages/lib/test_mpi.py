"""Ranks in the variables of each mpiexec."""

import os

import pytest

from stages.lib import mpi

STARTED_BY = {
    "Open MPI": {
        **{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
        **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    },
    "MPICH": {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
    "PALS with PMI": {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"},
    "PALS": {"PALS_RANKID": "3", "PMI_SIZE": "4", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"},
}
RANK_3_OF_4 = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture
def environment(monkeypatch):
    """The environment of this process, without what a launcher sets; a function that adds to it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "OMP_NUM_THREADS")}
    monkeypatch.setattr(os, "environ", kept)
    return kept.update


def adopted():
    """Return the variables after adoption."""
    mpi.adopt_ranks()
    return {name: os.environ.get(name) for name in mpi.NAMES if name in os.environ}


@pytest.mark.parametrize("launcher", STARTED_BY)
def test_ranks_of_mpiexec_are_adopted_with_one_thread_each(environment, launcher):
    environment(STARTED_BY[launcher])
    assert adopted() == RANK_3_OF_4
    assert mpi.is_started()
    assert os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"},
        {"PBS_JOBID": "7.server", "PBS_NODEFILE": "/nodes", "PBS_TASKNUM": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "4"},
    ],
)
def test_shell_of_a_job_and_a_single_process_stay_alone(environment, variables):
    environment(variables)
    assert not adopted() and not mpi.is_started()


def test_numbers_of_torchrun_under_mpiexec_and_a_given_number_of_threads_are_kept(environment):
    environment(STARTED_BY["Open MPI"] | {"RANK": "5", "OMP_NUM_THREADS": "3"})
    assert adopted() == {"RANK": "5"}
    assert not mpi.is_started()
    del os.environ["RANK"]
    assert adopted() == RANK_3_OF_4 and os.environ["OMP_NUM_THREADS"] == "3"

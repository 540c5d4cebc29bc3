"""The address at which ranks meet that mpiexec started, and the sentence if it cannot be known."""

import os
import socket

import pytest

from stages.lib.distributed import process_group
from stages.lib.errors import RankLocalError

FIRST_OF_TWO_NODES = {
    **{"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
    **{"CARAVAN_MPI": "PMI_RANK", "PMI_RANK": "0"},
}


@pytest.fixture
def ranks(monkeypatch):
    """A function that joins with these variables, and returns the address."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER", "CARAVAN", "PBS"))}

    def meet(**variables):
        monkeypatch.setattr(os, "environ", kept | FIRST_OF_TWO_NODES | variables)
        with process_group.rendezvous():
            return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    return meet


@pytest.fixture
def nodes(tmp_path):
    """A function that writes a node file, and returns its path."""
    path = tmp_path / "nodes"

    def write(*names):
        path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        return str(path)

    return write


def test_first_node_of_the_node_file_is_the_head_and_the_port_is_that_of_the_job(ranks, nodes):
    path = nodes("localhost", "localhost", "node2", "node2")
    found = {ranks(PBS_NODEFILE=path, PBS_JOBID="71.server", RANK=rank) for rank in "0123"}
    assert len(found) == 1
    assert {(host, 20_000 <= port < 30_000) for host, port in found} == {("localhost", True)}
    assert found != {ranks(PBS_NODEFILE=path, PBS_JOBID="72.server")}


def test_given_address_is_used(ranks):
    assert ranks(MASTER_ADDR="node1", MASTER_PORT="4000") == ("node1", 4000)
    assert ranks(CARAVAN_HEAD="localhost", CARAVAN_PORT="24000") == ("localhost", 24000)


def test_node_file_that_does_not_match_the_ranks_or_the_first_of_them_is_one_sentence(ranks, nodes):
    with pytest.raises(RankLocalError, match="the first rank must run on 192.0.2.77, the first node of the job, but"):
        ranks(PBS_NODEFILE=nodes("192.0.2.77", "node2"), PBS_JOBID="71.server")
    path = nodes("node1", "node1")
    with pytest.raises(RankLocalError) as error:
        ranks(PBS_NODEFILE=path, PBS_JOBID="71.server")
    own = socket.gethostname()
    assert str(error.value) == (
        f"PBS_NODEFILE must name 2 nodes, for 4 ranks, of which 2 run on {own}, got 1 in {path}"
    )


def test_unknown_head_and_unknown_port_are_one_sentence(ranks):
    with pytest.raises(RankLocalError, match="MASTER_ADDR must name the node of the first rank: there are 4 ranks"):
        ranks()
    own = dict.fromkeys(process_group.JOBS, "")
    with pytest.raises(RankLocalError, match="MASTER_PORT must be a free port of the first node: none of "):
        ranks(MASTER_ADDR="localhost", **own)


def test_port_in_use_is_one_sentence(ranks):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(RankLocalError, match=f"port {port} of 127.0.0.1 is in use: set MASTER_PORT of all ranks"):
            ranks(CARAVAN_HEAD="127.0.0.1", CARAVAN_PORT=str(port))


def test_ranks_of_one_machine_find_the_port_in_a_file_that_is_deleted(monkeypatch, tmp_path, ranks):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "environ", os.environ | FIRST_OF_TWO_NODES | {"LOCAL_WORLD_SIZE": "4"})
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    with process_group.rendezvous():
        port = os.environ.pop("MASTER_PORT")
        (file,) = tmp_path.iterdir()
        monkeypatch.setenv("RANK", "3")
        with process_group.rendezvous():
            assert os.environ["MASTER_PORT"] == port
    assert not file.exists()

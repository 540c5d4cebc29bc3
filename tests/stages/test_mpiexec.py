"""Stages under the real mpiexec, without torchrun: same bits, exit codes, one message."""

import signal

import pytest

from tests.helpers import mpi
from tests.helpers.data_fixtures import tiny_corpus
from tests.helpers.training import RECIPE, events_of, launch, options, steps_of, wait_until, weights_of

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module", autouse=True)
def _mpiexec():
    mpi.require()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


def reason(printed):
    """Return the lines of the stage; mpiexec frames its own."""
    return [line for line in printed.splitlines() if line.startswith("pretrain: ")]


def train(ranks, *arguments, variables=None, **keywords):
    """Run pretrain under mpiexec."""
    return mpi.run(ranks, "stages.pretrain", options(*arguments, **keywords), variables)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_mpiexec_and_torchrun_end_in_the_same_bits(corpus, tmp_path, ranks):
    code, printed = train(ranks, corpus, tmp_path / "mpiexec", 10, micro_batch_size=1)
    assert (code, reason(printed)) == (0, []), printed
    torchrun = launch(ranks, options(corpus, tmp_path / "torchrun", 10, micro_batch_size=1))
    assert torchrun.communicate(timeout=120)[1] == "" and torchrun.returncode == 0
    made, expected = (weights_of(tmp_path / name, 10) for name in ("mpiexec", "torchrun"))
    assert made == expected and len(made) == ranks


@pytest.mark.long
def test_mistake_is_printed_once_with_exit_code_2(corpus, tmp_path):
    code, printed = train(2, corpus, tmp_path, 10, recipe=RECIPE | {"global_batch_size": 13})
    assert (code, len(reason(printed))) == (2, 1), printed
    assert "global_batch_size must be divisible by the number of ranks (2)" in reason(printed)[0]


@pytest.mark.long
def test_usr1_lets_the_ranks_save_and_mpiexec_exit_with_75(corpus, tmp_path):
    process = mpi.start(2, ["python", "-m", "stages.pretrain", *options(corpus, tmp_path, 30, steps=30)])
    wait_until(lambda: steps_of(tmp_path), process)
    process.send_signal(signal.SIGUSR1)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 75, printed
    asked, line = reason(printed)
    assert "finishes its step" in asked and "stopped by SIGUSR1" in line, printed
    assert events_of(tmp_path)[-1]["event"] == "stop"

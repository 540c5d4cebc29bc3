"""The launcher starts ranks, passes on their exit code, and leaves no process behind when it is stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.processes import is_alive
from tests.workflow.checkout import HOME, wait_for_ranks

LAUNCH = HOME / "workflow/launch"
WORKER = """
import os, signal, sys, time
from pathlib import Path

rank, behaviour = os.environ["RANK"], sys.argv[sys.argv.index("--log") + 1]
Path(f"rank{rank}").write_text(f"{os.getpid()} {os.environ['WORLD_SIZE']} {os.environ['OMP_NUM_THREADS']}")
if behaviour == "time is up" and rank == "0":
    Path(os.environ["CARAVAN_EXIT_FILE"]).write_text("75")
if behaviour == "crash" and rank == "1":
    while not Path("rank0").exists() or not Path("rank0").read_text():
        time.sleep(0.05)
    sys.exit(9)
if behaviour == "save":
    signal.signal(signal.SIGTERM, lambda *_: (Path(os.environ["CARAVAN_EXIT_FILE"]).write_text("75"), sys.exit(0)))
if behaviour.startswith("grace"):
    Path(os.environ["CARAVAN_GRACE_FILE"]).write_text(behaviour.split()[1])
    signal.signal(signal.SIGTERM, lambda *_: None)
while behaviour in ("crash", "save", "sleep") or behaviour.startswith("grace"):
    time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")
    return tmp_path


def start(folder, *arguments, before=()):
    """Start the launcher, by the command `before` if it is given; its log goes to a file."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(folder)}
    environment.pop("SLURM_JOB_ID", None)
    command = [*before, LAUNCH, *arguments]
    with open(folder / "said", "w", encoding="utf-8") as said:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said, start_new_session=True)


def test_ranks_start_with_the_given_threads_and_the_exit_code_is_the_one_that_a_rank_wrote(folder):
    assert start(folder, "--threads", "3", "2", "-m", "worker", "--log", "end").wait(60) == 0
    assert [(folder / f"rank{rank}").read_text().split()[1:] for rank in (0, 1)] == [["2", "3"]] * 2
    assert (folder / "said").read_text() == ""
    assert start(folder, "2", "-m", "worker", "--log", "time is up").wait(60) == 75
    assert "Traceback" not in (folder / "said").read_text()


def test_crash_of_one_rank_ends_the_others_with_exit_code_1(folder):
    launch = start(folder, "2", "-m", "worker", "--log", "crash")
    ranks = wait_for_ranks(folder)
    assert launch.wait(60) == 1
    assert not any(map(is_alive, ranks))


ISOLATED = ["unshare", "--user", "--map-root-user", "--net"]
"""Starts a command in a network namespace, whose loopback interface is down."""


@pytest.mark.skipif(
    subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode != 0,
    reason="unshare may not create namespaces here",
)
def test_a_machine_whose_loopback_interface_is_down_is_one_sentence(folder):
    assert start(folder, "2", "-m", "worker", "--log", "end", before=ISOLATED).wait(60) == 2
    said = (folder / "said").read_text()
    assert said.startswith("launch: processes of this machine cannot connect to each other at 127.0.0.1 (Network is ")
    assert said.count("\n") == 1 and not (folder / "rank0").exists()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_leaves_no_rank_behind(folder, sent, code):
    launch = start(folder, "2", "-m", "worker", "--log", "sleep")
    ranks = wait_for_ranks(folder)
    launch.send_signal(sent)
    assert launch.wait(60) == code
    assert not any(map(is_alive, ranks))


def test_ctrl_c_reaches_all_ranks_and_their_exit_code_is_passed_on(folder):
    launch = start(folder, "2", "-m", "worker", "--log", "save")
    ranks = wait_for_ranks(folder)
    time.sleep(0.5)  # ranks install their handlers after they write their files
    os.killpg(launch.pid, signal.SIGINT)
    assert launch.wait(60) == 75
    assert not any(map(is_alive, ranks))


def test_preemption_signals_all_processes_and_leaves_no_traceback(folder):
    launch = start(folder, "2", "-m", "worker", "--log", "save")
    ranks = wait_for_ranks(folder)
    time.sleep(0.5)
    agent = int(Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")[2].split()[1])
    for process in {launch.pid, agent, *ranks}:
        os.kill(process, signal.SIGTERM)
    assert launch.wait(60) == 75
    assert not any(map(is_alive, ranks))
    said = (folder / "said").read_text()
    assert "Traceback" not in said and "Terminated" not in said, said


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_grace_that_a_training_asked_for_ends_in_one_sentence(folder, ranks):
    launch = start(folder, ranks, "-m", "worker", "--log", "grace 4")
    processes = wait_for_ranks(folder, int(ranks))
    time.sleep(0.5)
    before = time.monotonic()
    launch.send_signal(signal.SIGTERM)
    assert launch.wait(60) == 143
    assert 3 < time.monotonic() - before < 20
    assert not any(map(is_alive, processes))
    assert (folder / "said").read_text() == (
        "launch: no end within 4 seconds of the request to stop: the processes were killed; a training resumes from "
        "its newest checkpoint\n"
    )


def test_second_ctrl_c_ends_a_training_at_once(folder):
    launch = start(folder, "2", "-m", "worker", "--log", "grace 600")
    ranks = wait_for_ranks(folder)
    time.sleep(0.5)
    os.killpg(launch.pid, signal.SIGINT)
    time.sleep(0.5)
    os.killpg(launch.pid, signal.SIGINT)  # within a second of the first: it is the same
    time.sleep(3)
    assert all(map(is_alive, ranks))
    os.killpg(launch.pid, signal.SIGINT)
    assert launch.wait(60) == 130
    assert not any(map(is_alive, ranks))
    first, last = (folder / "said").read_text().splitlines()
    assert first == "launch: Ctrl-C again would end the training without a save"
    assert last.startswith("launch: a second Ctrl-C: the processes were killed")


def test_wrong_option_is_one_sentence(folder):
    for words, sentence in (
        ("-m worker", "RANKS must be auto or a whole number, at least 1, got '-m'"),
        ("0 -m worker", "RANKS must be auto or a whole number, at least 1, got '0'"),
        ("2 worker.py", "RANKS must be followed by -m and a module, got 'worker.py'"),
        ("--threads many 2 -m worker", "--threads must be a whole number, at least 1, got 'many'"),
        ("--rank 2 -m worker", "--rank is not a known option; known: --nodes, --cpus, --threads"),
        ("--nodes 2 auto -m worker", "RANKS must be the number of GPUs per node with --nodes 2, got 'auto'"),
        ("--nodes 2 2 -m worker", "--nodes 2 needs a job of Slurm, PBS, LSF or Flux; --nodes 0 uses only this machine"),
    ):
        assert start(folder, *words.split()).wait(60) == 2
        assert (folder / "said").read_text() == f"launch: {sentence}\n"

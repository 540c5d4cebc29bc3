"""The lease between processes. test_run_directory.py tests it around a training."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.run_directory import lease
from tests.helpers.training import HOME

ELSEWHERE = {"host": "elsewhere", "pid": 1, "started": 1, "job": None, "token": "other"}

RACE = """
import json, multiprocessing, sys
from pathlib import Path
from stages.lib.errors import UserError
from stages.lib.run_directory.lease import Lease

def contend(directory, barrier, results):
    barrier.wait()
    try:
        held = Lease(directory)
    except UserError:
        held = None
    barrier.wait()
    if held:
        held.check()
    results.put("won" if held else "refused")
    barrier.wait()

processes = multiprocessing.get_context("fork")
stale = {"host": "elsewhere", "pid": 1, "started": 1, "job": None, "heartbeat": 0, "token": "stale"}
outcomes = []
for number in range(30):
    directory = Path(sys.argv[1]) / str(number)
    directory.mkdir()
    (directory / "lease.json").write_text(json.dumps(stale))
    barrier, results = processes.Barrier(2), processes.SimpleQueue()
    started = [processes.Process(target=contend, args=(directory, barrier, results)) for _ in range(2)]
    for process in started:
        process.start()
    outcomes.append(sorted(results.get() for _ in started))
    for process in started:
        process.join()
print(json.dumps(outcomes))
"""


def test_exactly_one_of_two_processes_wins_a_race_for_a_stale_lease(tmp_path):
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == [["refused", "won"]] * 30


def test_lease_taken_over_by_another_process_fails_its_check_and_is_not_deleted(tmp_path):
    held = lease.Lease(tmp_path)
    held.check()
    (tmp_path / "lease.json").write_text(json.dumps(ELSEWHERE | {"heartbeat": time.time()}))
    with pytest.raises(UserError, match="taken over"):
        held.check()
    held.release()
    assert str(lease.holder(tmp_path)) == "process 1 on elsewhere"


def test_heartbeat_is_renewed_while_the_lease_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.02)
    held = lease.Lease(tmp_path)
    path = tmp_path / "lease.json"
    first = json.loads(path.read_text())
    deadline = time.monotonic() + 20
    while json.loads(path.read_text()) == first and time.monotonic() < deadline:
        time.sleep(0.01)
    later = json.loads(path.read_text())
    held.release()
    assert later.pop("heartbeat") > first.pop("heartbeat")
    assert later == first
    assert list(tmp_path.iterdir()) == []


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers())


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A directory, and what a lease of this process in it holds."""
    directory = tmp_path_factory.mktemp("mine")
    held = lease.Lease(directory)
    content = json.loads((directory / "lease.json").read_text())
    held.release()
    return directory, content


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["pid", "started", "heartbeat", "restarts", "host", "job", "boot_id", "token"]), VALUES)
def test_any_value_in_a_lease_is_held_or_stale_or_refused(mine, key, value):
    directory, held = mine
    (directory / "lease.json").write_text(json.dumps(held | {key: value}))
    try:
        lease.Lease(directory).release()
    except UserError as error:
        assert "lease.json is " in str(error)
    (directory / "lease.json").unlink(missing_ok=True)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"host": ', "[" * 100_000, '"host"', "1", "\udcff"])
def test_invalid_lease_file_or_missing_directory_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "lease.json").write_text(content, errors="surrogateescape")
    with pytest.raises(UserError, match="lease.json is not a valid lease"):
        lease.Lease(tmp_path)
    with pytest.raises(UserError, match="lease.json could not be created: No such file"):
        lease.Lease(tmp_path / "gone")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A function that sets squeue's answer, a shell command, and the Slurm job of this process."""
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    for name in ("SLURM_RESTART_COUNT", "CARAVAN_JOB_RESTARTS"):
        monkeypatch.delenv(name, raising=False)

    def answer(command, **environment):
        squeue.write_text(f"#!/bin/sh\n{command}\n")
        squeue.chmod(0o755)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return answer


def is_dead(directory, seconds, **holder):
    """Return whether a lease may be taken over whose last heartbeat was some seconds ago."""
    held = ELSEWHERE | {"heartbeat": time.time() - seconds} | holder
    (directory / "lease.json").write_text(json.dumps(held))
    return lease.holder(directory) is None


FRESH, LATE, STALE = 0, 60, 400


def test_heartbeat_of_a_wrong_clock_does_not_hold_the_lease_for_ever(tmp_path):
    assert [is_dead(tmp_path, -age) for age in (FRESH, LATE, STALE, 1e6)] == [False, False, True, True]
    lease.Lease(tmp_path).release()


@pytest.mark.parametrize(
    ("answer", "knows"),
    [
        ("echo RUNNING", False),
        ("echo PENDING", False),
        ("echo COMPLETED", True),
        ("echo NODE_FAIL", True),
        ("true", False),  # PrivateData=jobs: the job of another user is not shown
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", False),
    ],
)
def test_only_a_job_that_slurm_knows_to_have_ended_shortens_the_wait_for_a_heartbeat(tmp_path, slurm, answer, knows):
    slurm(answer, SLURM_CLUSTER_NAME="alpha")
    ages = (FRESH, LATE, STALE)
    assert [is_dead(tmp_path, age, job="7", cluster="alpha") for age in ages] == [False, knows, True]
    assert [is_dead(tmp_path, age, job="7", cluster="beta") for age in ages] == [False, False, True]
    assert [is_dead(tmp_path, age, job="7") for age in ages] == [False, False, True]


def test_requeued_job_recognizes_its_own_late_lease(tmp_path, slurm):
    slurm("exit 1", SLURM_JOB_ID="7", SLURM_CLUSTER_NAME="alpha", CARAVAN_JOB_RESTARTS="2")
    own = {"job": "7", "cluster": "alpha", "restarts": 1}
    assert [is_dead(tmp_path, age, **own) for age in (FRESH, LATE, STALE)] == [False, True, True]
    for other in ({"restarts": 2}, {"job": "8"}, {"cluster": "beta"}):  # another step of the job, other jobs
        assert not is_dead(tmp_path, LATE, **own | other)
    assert is_dead(tmp_path, LATE, **own)
    held = lease.Lease(tmp_path)
    assert json.loads((tmp_path / "lease.json").read_text())["restarts"] == 2
    held.release()


def test_slurms_own_variable_counts_restarts_without_the_launcher(tmp_path, slurm):
    slurm("exit 1", SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1")
    assert is_dead(tmp_path, LATE, job="7")
    slurm("exit 1", CARAVAN_JOB_RESTARTS="")
    assert is_dead(tmp_path, LATE, job="7")


def test_process_of_the_same_kernel_and_pid_namespace_is_judged_by_proc_alone(tmp_path, mine):
    with subprocess.Popen(["sleep", "60"]) as other:
        _, held = mine
        started = int(Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19])
        here = {key: held[key] for key in ("host", "boot_id", "pid_namespace")} | {"pid": other.pid}
        assert not is_dead(tmp_path, STALE, **here, started=started)  # it may be suspended
        assert is_dead(tmp_path, FRESH, **here, started=started - 1)  # a later process got its pid
        for elsewhere in ({"boot_id": "another"}, {"pid_namespace": "pid:[1]"}, {"boot_id": None}):
            place = here | elsewhere
            assert [is_dead(tmp_path, age, **place, started=1) for age in (FRESH, LATE, STALE)] == [False, False, True]
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(tmp_path, FRESH, **here, started=started)  # a zombie
    assert is_dead(tmp_path, FRESH, **here, started=started)


CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
HOLD = """
import sys
from stages.lib.run_directory.lease import Lease
held = Lease(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
held.check()
"""


def test_containers_with_one_host_name_do_not_take_each_others_lease(tmp_path):
    if subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system allows no PID namespaces")
    command = [*CONTAINER, sys.executable, "-c", HOLD, str(tmp_path)]
    options = {"cwd": HOME, "text": True} | dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **options) as first:
        assert first.stdout.readline() == "held\n"
        # the shell is process 1 of the second namespace, so that the pids differ
        second = subprocess.run(
            [*CONTAINER, "sh", "-c", '"$@"; exit $?', "sh", *command[len(CONTAINER) :]],
            **options | {"stdin": subprocess.DEVNULL},
            check=False,
            timeout=60,
        )
        assert "is held by a live trainer (process 1 on" in second.stderr
        _, error = first.communicate()
    assert (first.returncode, error) == (0, "")


def test_lease_that_is_renewed_while_another_process_takes_it_over_is_restored(tmp_path, monkeypatch):
    path = tmp_path / "lease.json"
    rename = os.rename

    def renew(source, target):
        path.write_text(json.dumps(ELSEWHERE | {"heartbeat": time.time()}))
        rename(source, target)

    path.write_text(json.dumps(ELSEWHERE | {"heartbeat": 0}))
    monkeypatch.setattr(os, "rename", renew)
    with pytest.raises(UserError, match="held by a live trainer .process 1 on elsewhere"):
        lease.Lease(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"]

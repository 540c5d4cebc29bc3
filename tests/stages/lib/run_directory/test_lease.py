"""The lease between processes. test_run_directory.py tests it around a training."""

import json
import subprocess
import sys
import time

import pytest

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
    assert lease.holder(tmp_path) == "process 1 on elsewhere"


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


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"host": '])
def test_invalid_lease_file_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "lease.json").write_text(content)
    with pytest.raises(UserError, match="lease.json is not a valid lease"):
        lease.Lease(tmp_path)


def test_missing_directory_is_named_in_the_error(tmp_path):
    with pytest.raises(UserError, match="lease.json could not be created: No such file"):
        lease.Lease(tmp_path / "gone")


def test_requeued_slurm_job_acquires_its_own_lease_at_once(tmp_path, monkeypatch):
    held = ELSEWHERE | {"job": "7", "restart": None, "heartbeat": time.time()}
    (tmp_path / "lease.json").write_text(json.dumps(held))
    monkeypatch.setenv("PATH", str(tmp_path))  # no squeue
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(UserError, match="held by a live trainer .process 1 on elsewhere, job 7."):
        lease.Lease(tmp_path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    lease.Lease(tmp_path).release()


@pytest.mark.parametrize(
    ("answer", "stale"),
    [
        ("echo RUNNING", False),
        ("echo PENDING", False),
        ("echo COMPLETED", True),
        ("true", True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", False),
    ],
)
def test_lease_of_another_job_is_stale_if_slurm_reports_that_it_ended(tmp_path, monkeypatch, answer, stale):
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\n{answer}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    held = ELSEWHERE | {"job": "7", "heartbeat": time.time()}
    (tmp_path / "lease.json").write_text(json.dumps(held))
    assert (lease.holder(tmp_path) is None) == stale

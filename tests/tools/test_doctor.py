"""The doctor prints one line per check, and exits with 2 if the machines are not fit for a run."""

import errno
import importlib.metadata
import os
import resource
import subprocess
import time

import pytest

from tests.helpers import training
from tools.doctor import __main__ as doctor
from tools.doctor import hosts
from tools.doctor.filesystem import DISK_SPACE, FILESYSTEM
from tools.doctor.hosts import HOST, VERSIONS
from tools.doctor.network import CLOCKS

NAMES = ["nodes", "cores", "versions", "code", "gpus", "temp_dir", "limits", "filesystem", "disk_space", "clocks"]
NAMES += ["collectives", "slurm"]


@pytest.fixture
def run_checks(monkeypatch, tmp_path, capsys):
    """A function that runs the given checks, or all, on this machine: (exit code, lines on stdout, stderr)."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # whatever Slurm this machine has
    for name in ("SLURM_JOB_ID", "SLURM_GPUS_ON_NODE", "TMPDIR", "RANK"):
        monkeypatch.delenv(name, raising=False)

    def run(*checks, options=()):
        if checks:
            monkeypatch.setattr(doctor, "CHECKS", checks)
        code = doctor.main(["--directory", str(tmp_path / "runs"), *options])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return run


def test_a_fit_machine_has_a_line_for_each_check_and_nothing_is_left_behind(run_checks, tmp_path):
    code, lines, error = run_checks()
    assert (code, error) == (0, "")
    assert [line.split()[1] for line in lines[:-1]] == NAMES
    assert not [line for line in lines if line.startswith("FAIL")]
    assert lines[-1].startswith("fit for a run: 12 checks in ")
    assert not list((tmp_path / "runs").iterdir())


def test_nearest_existing_directory_is_checked_if_the_directory_does_not_exist(run_checks, tmp_path):
    missing = tmp_path / "runs/new/results"
    code, lines, _ = run_checks(FILESYSTEM, DISK_SPACE, options=["--directory", str(missing)])
    assert code == 0
    assert lines[0].endswith(f"({missing} does not exist yet)")
    assert not list((tmp_path / "runs").iterdir())


def test_bad_input_is_one_sentence(run_checks):
    sentence = f"doctor: --directory must be a directory, got the file {__file__}\n"
    assert run_checks(options=["--directory", __file__]) == (2, [], sentence)
    assert run_checks(options=["--need", "0"]) == (2, [], "doctor: --need must be a number of GB above 0, got 0\n")


def test_directories_without_room_or_that_cannot_be_written_fail(run_checks, monkeypatch):
    code, lines, error = run_checks(DISK_SPACE, options=["--need", "1e9"])
    assert code == 2
    assert lines[0].startswith("FAIL     disk_space   the run needs 1000000.0 TB in ")
    assert error == "doctor: not fit for a run: 1 check failed (disk_space)\n"
    monkeypatch.setenv("TMPDIR", "/nowhere")
    code, lines, _ = run_checks(HOST, FILESYSTEM, options=["--directory", "/proc"])
    assert code == 2
    assert lines[0].startswith("FAIL     temp_dir     /nowhere is not writable on ")
    assert lines[2].startswith("FAIL     filesystem   /proc must be a writable directory: ")


def test_few_open_files_and_small_files_are_a_warning(run_checks):
    before = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)}
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[resource.RLIMIT_NOFILE][1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * 10**9, before[resource.RLIMIT_FSIZE][1]))
        code, lines, _ = run_checks(HOST)
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)
    assert code == 0
    assert lines[1].startswith("warning  limits       `ulimit -n` must be at least 4096, is 1000 on ")
    assert "`ulimit -f` limits files to 5.0 GB on " in lines[1]
    assert lines[-1].endswith("; 1 warning (limits)")


def test_another_version_is_a_warning_and_a_missing_package_fails(run_checks, monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2" if name == "pyarrow" else real(name))
    code, lines, _ = run_checks(VERSIONS)
    assert code == 0
    assert lines[0].startswith("warning  versions     not as pinned: ")
    assert "pyarrow 1.2 instead of 26.0.1: pip install" in lines[0]
    monkeypatch.setattr(hosts, "PACKAGES", ("torch", "not-there-at-all"))
    code, lines, _ = run_checks(VERSIONS)
    assert code == 2
    assert lines[0].startswith("FAIL     versions     not-there-at-all not installed on ")


def test_a_directory_without_hard_links_fails(run_checks, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    code, lines, _ = run_checks(FILESYSTEM)
    assert code == 2
    assert "does not support hard links on " in lines[0]
    assert "(Operation not permitted), which leases need" in lines[0]


def test_internal_error_of_a_check_is_a_line_and_the_next_check_runs(run_checks, monkeypatch):
    monkeypatch.setattr(DISK_SPACE, "collect", lambda *_: 1 / 0)
    monkeypatch.setattr(FILESYSTEM, "lines", {"filesystem": lambda reports, _: reports[7]})
    code, lines, error = run_checks(DISK_SPACE, FILESYSTEM, CLOCKS)
    assert code == 2
    assert lines[0].startswith("FAIL     disk_space   ZeroDivisionError: division by zero (rank 0 on ")
    assert lines[1] == "FAIL     filesystem   internal error: KeyError: 7"
    assert lines[2].startswith("ok       clocks ")
    assert error == "doctor: not fit for a run: 2 checks failed (disk_space, filesystem)\n"


def test_a_check_that_hangs_is_a_line(run_checks, monkeypatch):
    monkeypatch.setattr(CLOCKS, "collect", lambda *_: time.sleep(60))
    monkeypatch.setattr(CLOCKS, "timeout_seconds", 0.1)
    begun = time.monotonic()
    code, lines, _ = run_checks(CLOCKS)
    assert code == 2
    assert lines[0].startswith("FAIL     clocks       timed out after 0 s")
    assert time.monotonic() - begun < 10


def test_two_ranks_behind_the_launcher_print_once(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, "tools.doctor")
    assert code == 0, lines + [error]
    assert [line.split()[1] for line in lines[: len(NAMES)]] == NAMES
    assert text_of(lines, "nodes").startswith("2 ranks on 1 host: ")
    assert text_of(lines, "collectives").startswith("all-reduce of ")
    assert lines[-1].startswith("fit for a run: ")
    assert not list((tmp_path / "runs").iterdir())


def test_differences_between_hosts_are_found_and_the_host_is_named(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, FAULTS, "clock,code,package,unseen,deaf,wrong_sum")
    assert code == 2, lines + [error]
    assert text_of(lines, "nodes") == "2 ranks on 2 hosts: node1, node2"
    assert text_of(lines, "clocks").startswith("node2 is 100.0 s ahead of node1: ")
    assert text_of(lines, "code") == "stages/ on node2 differs from the first rank's: use the same checkout"
    assert "sentencepiece 0.2.3 on node1, 0.1 on node2" in text_of(lines, "versions")
    assert "of node1 is not visible on node2: " in text_of(lines, "filesystem")
    assert text_of(lines, "collectives").startswith("an all-reduce with ")
    assert "returned a wrong sum on node2" in text_of(lines, "collectives")
    assert text_of(lines, "network").startswith("node1 cannot connect to node2 at ")
    assert "(timed out): check for a firewall" in text_of(lines, "network")
    failed = "versions, code, filesystem, clocks, network, collectives"
    assert error.startswith(f"doctor: not fit for a run: 6 checks failed ({failed})")
    assert error.count("\n") == 1
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.long
def test_a_rank_that_hangs_in_a_collective_fails_the_check_and_the_doctor_continues(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, FAULTS, "hang")
    assert code == 2, lines + [error]
    assert text_of(lines, "collectives").startswith(
        "timed out after 5 s at the first all-reduce (rank 0 on node1, rank 1 on node2)"
    )
    assert lines[-1].split()[1] in ("slurm", "requeue")
    assert "Traceback" not in error


@pytest.mark.long
def test_a_rank_that_does_not_join_is_named_and_ended(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, FAULTS, "gone")
    assert code == 2
    assert text_of(lines, "nodes") == "no answer from rank 1: check these hosts"
    assert text_of(lines, "collectives").startswith("skipped: ranks are missing")
    assert "doctor: not fit for a run: 2 checks failed (nodes, collectives)" in error


@pytest.mark.long  # torchrun leaves a process 30 s to end by itself
def test_a_rank_that_stops_answering_is_named_and_later_checks_do_not_wait_for_it(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, FAULTS, "stopped")
    assert code == 2
    assert "visible on all hosts after " in text_of(lines, "filesystem")
    assert text_of(lines, "clocks") == "no answer from rank 1 on node2: check these hosts"
    assert text_of(lines, "collectives").startswith("skipped: ranks are missing")
    assert "doctor: not fit for a run: 2 checks failed (clocks, collectives)" in error


FAULTS = "tests.helpers.doctor_with_faults"


def on_two_ranks(tmp_path, module, *arguments):
    """Run a module as two ranks: (exit code, lines on stdout, stderr)."""
    (tmp_path / "runs").mkdir()
    command = [training.HOME / "workflow/launch", "2", "-m", module, *arguments, "--directory", str(tmp_path / "runs")]
    environment = {name: value for name, value in training.environment().items() if not name.startswith("SLURM")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def text_of(lines, name):
    """The text of the only line of a check."""
    (text,) = [line.split(maxsplit=2)[2] for line in lines if line.split()[1] == name]
    return text

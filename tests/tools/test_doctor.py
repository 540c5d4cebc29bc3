"""The doctor says in one line a check whether machines are fit for a run, and ends with 2 where they are not."""

import errno
import importlib.metadata
import os
import resource
import subprocess
import sys
import time

import pytest

from stages.lib.doctor import clocks, directory, host, nodes, room, versions
from tests.helpers import training
from tools import doctor

NAMES = ["nodes", "cores", "versions", "code", "gpus", "temporary", "limits", "directory", "room", "clocks"]
NAMES += ["collectives", "slurm"]


@pytest.fixture
def examine(monkeypatch, tmp_path, capsys):
    """A function that does the named checks, or all, on this machine: (exit code, lines on stdout, stderr)."""
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


def test_a_fit_machine_has_a_line_for_each_check_and_nothing_is_left_behind(examine, tmp_path):
    code, lines, error = examine()
    assert (code, error) == (0, "")
    assert [line.split()[1] for line in lines[:-1]] == NAMES
    assert not [line for line in lines if line.startswith("FAIL")]
    assert lines[-1].startswith("fit for a run: 12 checks in ")
    assert not list((tmp_path / "runs").iterdir())


def test_a_directory_that_is_not_there_yet_is_looked_at_where_it_will_be(examine, tmp_path):
    missing = tmp_path / "runs/new/results"
    code, lines, _ = examine(directory, room, options=["--directory", str(missing)])
    assert code == 0
    assert lines[0].endswith(f"({missing} is not there yet)")
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--directory", __file__], f"doctor: --directory must be a directory, got the file {__file__}\n"),
        (["--need", "0"], "doctor: --need must be a number of GB above 0, got 0\n"),
        (["--need", "nan"], "doctor: --need must be a number of GB above 0, got nan\n"),
        (["--partition", ""], "doctor: --partition must be a name of Slurm's, got nothing\n"),
    ],
)
def test_bad_input_is_one_sentence(examine, options, sentence):
    assert examine(options=options) == (2, [], sentence)


def test_an_option_that_is_no_number_is_one_line():
    command = [sys.executable, "-m", "tools.doctor", "--need", "much"]
    done = subprocess.run(command, env=training.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "python -m tools.doctor: argument --need: invalid float value: 'much' (see --help)\n"


def test_too_little_room_fails(examine):
    code, lines, error = examine(room, options=["--need", "1e9"])
    assert code == 2
    assert lines[0].startswith("FAIL     room         the run needs 1000000.0 TB in ")
    assert error == "doctor: not fit for a run: 1 check failed (room)\n"


def test_a_temporary_directory_that_cannot_be_written_fails(examine, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nowhere")
    code, lines, _ = examine(host)
    assert code == 2
    assert lines[0].startswith("FAIL     temporary    /nowhere cannot be written on ")


def test_few_open_files_and_small_files_are_a_warning(examine):
    before = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)}
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[resource.RLIMIT_NOFILE][1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * 10**9, before[resource.RLIMIT_FSIZE][1]))
        code, lines, _ = examine(host)
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)
    assert code == 0
    assert lines[1].startswith("warning  limits       `ulimit -n` is 1000 on ")
    assert "`ulimit -f` ends files at 5.0 GB on " in lines[1]
    assert lines[-1].endswith("; 1 warning (limits)")


def test_more_threads_than_cores_are_a_warning(examine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    code, lines, _ = examine(nodes)
    assert code == 0
    assert lines[1].startswith("warning  cores        ranks get in each other's way, 1 x 4096 threads on ")


def test_another_version_is_a_warning_and_names_both(examine, monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2" if name == "pyarrow" else real(name))
    code, lines, _ = examine(versions)
    assert code == 0
    assert lines[0].startswith("warning  versions     not what was tested: pyarrow 1.2 for 26.0.1: pip install")


def test_a_missing_package_fails(examine, monkeypatch):
    monkeypatch.setattr(versions, "PACKAGES", ("torch", "not-there-at-all"))
    code, lines, _ = examine(versions)
    assert code == 2
    assert lines[0].startswith("FAIL     versions     not-there-at-all not installed on ")


def test_a_directory_without_hard_links_fails(examine, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    code, lines, _ = examine(directory)
    assert code == 2
    assert "makes no hard links on " in lines[0]
    assert "(Operation not permitted), which a lease needs" in lines[0]


def test_a_directory_that_cannot_be_written_fails(examine):
    code, lines, _ = examine(directory, options=["--directory", "/proc"])
    assert code == 2
    assert lines[0].startswith("FAIL     directory    /proc must be a directory that can be written: ")


def test_a_check_that_breaks_is_a_line_and_the_next_one_is_done(examine, monkeypatch):
    monkeypatch.setattr(room, "look", lambda *_: 1 / 0)
    monkeypatch.setattr(directory, "judge", lambda facts, _: facts[7])
    code, lines, error = examine(room, directory, clocks)
    assert code == 2
    assert lines[0].startswith("FAIL     room         ZeroDivisionError: division by zero (rank 0 on ")
    assert lines[1] == "FAIL     directory    the check broke: KeyError: 7"
    assert lines[2].startswith("ok       clocks ")
    assert error == "doctor: not fit for a run: 2 checks failed (room, directory)\n"


def test_a_check_that_hangs_is_a_line(examine, monkeypatch):
    monkeypatch.setattr(clocks, "look", lambda *_: time.sleep(60))
    monkeypatch.setattr(clocks, "SECONDS", 0.1)
    begun = time.monotonic()
    code, lines, _ = examine(clocks)
    assert code == 2
    assert lines[0].startswith("FAIL     clocks       no end within 0 s")
    assert time.monotonic() - begun < 10


def test_two_ranks_behind_the_launcher_print_once(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, "tools.doctor")
    assert code == 0, lines + [error]
    assert [line.split()[1] for line in lines[: len(NAMES)]] == NAMES
    assert text_of(lines, "nodes").startswith("2 ranks on 1 host: ")
    assert text_of(lines, "collectives").startswith("all-reduce of ")
    assert lines[-1].startswith("fit for a run: ")
    assert not list((tmp_path / "runs").iterdir())


def test_what_differs_between_hosts_is_found_and_the_host_is_named(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, FAULTS, "clock,code,package,unseen,deaf,wrong_sum")
    assert code == 2, lines + [error]
    assert text_of(lines, "nodes") == "2 ranks on 2 hosts: node1, node2"
    assert text_of(lines, "clocks").startswith("node2 is 100.0 s ahead of node1: ")
    assert text_of(lines, "code") == "stages/ is not the same on all hosts: another than the first rank's on node2"
    assert "sentencepiece 0.2.3 on node1, 0.1 on node2" in text_of(lines, "versions")
    assert "of node1 is not seen by node2: " in text_of(lines, "directory")
    assert text_of(lines, "collectives").startswith("an all-reduce by ")
    assert "gave a wrong sum on node2" in text_of(lines, "collectives")
    assert text_of(lines, "network").startswith("node1 does not reach node2 at ")
    assert "(timed out): is it a firewall" in text_of(lines, "network")
    failed = "versions, code, directory, clocks, network, collectives"
    assert error.startswith(f"doctor: not fit for a run: 6 checks failed ({failed})")
    assert error.count("\n") == 1
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.long
def test_a_rank_that_hangs_in_a_collective_ends_the_check_and_not_the_doctor(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, FAULTS, "hang")
    assert code == 2, lines + [error]
    assert text_of(lines, "collectives").startswith(
        "no end within 5 s of the first sum (rank 0 on node1, rank 1 on node2)"
    )
    assert lines[-1].split()[1] in ("slurm", "requeue")
    assert "Traceback" not in error


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named_and_ended(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, FAULTS, "gone")
    assert code == 2
    assert text_of(lines, "nodes") == "no answer from rank 1: look at these hosts"
    assert text_of(lines, "collectives").startswith("not tried, since ranks are missing")
    assert "doctor: not fit for a run: 2 checks failed (nodes, collectives)" in error


@pytest.mark.long  # torchrun leaves a process 30 s to end by itself
def test_a_rank_that_falls_silent_is_named_and_waited_for_no_more(tmp_path):
    code, lines, error = on_two_ranks(tmp_path, FAULTS, "stopped")
    assert code == 2
    assert "seen by all hosts after " in text_of(lines, "directory")
    assert text_of(lines, "clocks") == "no answer from rank 1 on node2: look at these hosts"
    assert text_of(lines, "collectives").startswith("not tried, since ranks are missing")
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
    """What the one line of a check says."""
    (text,) = [line.split(maxsplit=2)[2] for line in lines if line.split()[1] == name]
    return text

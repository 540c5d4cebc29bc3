"""The screen of all runs, refreshed until Ctrl-C."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from stages.lib.render.terminal import ASCII
from stages.lib.run_directory import lease
from tools.status import __main__ as status
from tools.status.page import Job, lines_of
from tools.status.state import Reader

HOME = Path(__file__).resolve().parents[2]


def append(path, *entries):
    with open(path, "a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def add_run(root, name, done, total, *events):
    """A run with `done` of `total` steps, whose loss falls from 9 to 2."""
    made = root / "runs" / name / "train" / "0123456789abcdef"
    made.mkdir(parents=True)
    now = time.time()
    for step in range(1, done + 1):
        entry = {"step": step, "tokens": step * 1000, "loss": 9 - 7 * step / total, "tokens_per_second": 500.0}
        append(made / "metrics.jsonl", entry | {"time": now - done + step})
    append(made / "events.jsonl", {"event": "start", "step": 0, "steps": total, "time": now - done}, *events)
    return made


def event(kind, step, **more):
    return {"event": kind, "step": step, "time": time.time(), **more}


def screen(root, *, jobs=(), columns=80, height=24, reader=None):
    return lines_of("results", (reader or Reader()).read_all(root), jobs, columns, height, ASCII)


def test_runs_of_a_sweep_are_told_apart_on_a_narrow_screen(tmp_path):
    for rate in ("0.001", "0.003"):
        for seed in (0, 1):
            add_run(tmp_path, f"lr-learning_rate_{rate}-num_hidden_layers_2-seed_{seed}", 2, 4)
    add_run(tmp_path, "a-run-with-a-long-name", 2, 4)
    names = [line.split()[0] for line in screen(tmp_path)[2:]]
    assert names == ["a-run-with-a-~", "lr-0.001-0", "lr-0.001-1", "lr-0.003-0", "lr-0.003-1"]


@pytest.fixture
def runs(tmp_path):
    """One run of each kind: done, stopped, killed, at its milestone, in training."""
    add_run(tmp_path, "a-done", 40, 40, event("finish", 40))
    add_run(tmp_path, "b-stopped", 20, 40, event("stop", 20, reason="ValueError: bad"))
    add_run(tmp_path, "c-killed", 20, 40, event("save", 20))
    add_run(tmp_path, "d-milestone", 20, 40, event("finish", 20))
    held = lease.Lease(add_run(tmp_path, "e-trains", 10, 40, event("save", 10)))
    yield tmp_path
    held.release()


def test_runs_that_train_come_first_then_those_that_wait_then_those_that_are_done(runs):
    title, head, *rows = screen(runs)
    assert re.fullmatch(r"[\d:]{8}  1 training, 3 waiting, 1 done  .*results", title)
    assert head.split() == ["run", "progress", "left", "tok/s", "loss", "curve", "last"]
    assert [row.split()[0] for row in rows] == ["e-trains", "b-stopped", "c-killed", "d-milestone", "a-done"]
    assert re.fullmatch(r"e-trains +##------ +25% +1:00 +500 +7\.250 #\*\+=~-\._ saved 0:0\d ago", rows[0])
    assert rows[1].endswith(" ValueError: bad") and rows[3].endswith(" at its milestone")
    assert re.search(r"####---- +50% .* killed 0:0\d ago$", rows[2])
    assert re.search(r"######## 100% .* 2\.000 .* done 0:0\d ago$", rows[4])


def test_no_line_is_wider_or_higher_than_the_terminal_and_what_does_not_fit_is_counted(runs):
    for number in range(100):
        add_run(runs, f"f-with-a-very-long-name-{number}", 1, 2, event("finish", 2))
    jobs = [Job(str(number), "evaluate_base", "pending", "0:00", "1:00", "(Priority)") for number in range(50)]
    for columns, height in ((80, 24), (200, 50), (40, 10)):
        lines = screen(runs, jobs=jobs, columns=columns, height=height)
        assert len(lines) == height and max(map(len, lines)) <= columns
        assert "e-trains" in lines[2]
    lines = screen(runs, height=24)
    assert lines[-1] == "and 84 more: 83 waiting, 1 done"
    assert screen(runs, jobs=jobs, columns=100)[-6].startswith("queue of Slurm: 50 pending (45 not listed)")


def test_a_run_that_waits_shows_its_own_job_in_the_queue(runs):
    jobs = [
        Job("7", "pretrain_d-milestone_00000040", "pending", "0:00", "1:00", "(Priority)"),
        Job("8", "pretrain_d-milestone-2_00000040", "running", "0:10", "1:00", "node1"),
    ]
    lines = screen(runs, jobs=jobs, columns=120)
    assert next(line for line in lines if line.startswith("d-milestone")).endswith("job 7 pending (Priority)")
    assert lines[-3] == "queue of Slurm: 1 pending, 1 running"
    assert lines[-2].split()[:3] == ["8", "pretrain_d-milestone-2_00000040:", "running,"]


def test_only_files_that_changed_are_read_again(runs, monkeypatch):
    reader = Reader()
    before = screen(runs, reader=reader)
    opened = []
    own = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *rest, **more: opened.append(str(path)) or own(path, *rest, **more)
    )
    append(runs / "runs/e-trains/train/0123456789abcdef/metrics.jsonl", {"step": 11, "tokens": 11000, "loss": 1.5})
    opened.clear()
    after = screen(runs, reader=reader)
    read = {path for path in opened if path.endswith(".jsonl")}
    assert read and all("/e-trains/" in path for path in read)
    assert "27%" in after[2] and " 1.500 " in after[2] and before[3:] == after[3:]


def test_the_curve_is_of_the_whole_run_and_without_steps_that_a_rollback_discarded(tmp_path):
    made = add_run(tmp_path, "base", 2000, 4000)
    samples = {"samples": [20_000, 20_010]}
    bad = [{"step": 2000 + n, "tokens": 1, "loss": 900.0, "time": time.time() - 5, **samples} for n in range(1, 500)]
    append(made / "metrics.jsonl", *bad)
    append(made / "events.jsonl", event("rollback", 2000, samples=[20_000, 30_000]))
    (overview,) = Reader().read_all(tmp_path)
    assert overview.step == 2000 and len(overview.losses) >= 30
    assert overview.losses[0] > 8.9 and overview.losses[-1] < 6 and max(overview.losses) < 9
    assert list(overview.losses) == sorted(overview.losses, reverse=True)


def test_seconds_must_be_a_number_from_one_on(tmp_path, capsys):
    for text in ("0", "fast", "nan", "-3"):
        with pytest.raises(SystemExit, match="^2$"):
            status.main(["--results", str(tmp_path), f"--watch={text}"])
        assert f"the seconds between two screens must be 1 to 86400, got {text}" in capsys.readouterr().err


def watch(root, **options):
    command = [sys.executable, "-m", "tools.status", "--results", str(root), "--watch", "1"]
    environment = os.environ | {"PYTHONPATH": str(HOME), "PYTHONIOENCODING": "utf-8", "COLUMNS": "", "LINES": ""}
    return subprocess.Popen(command, env=environment, **options)


def test_into_a_pipe_screens_follow_each_other_without_control_characters_until_ctrl_c(runs):
    watching = watch(runs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines = [watching.stdout.readline().decode() for _ in range(8)]
    assert all("  1 training, 3 waiting, 1 done  " in lines[number] for number in (0, 7))
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", "".join(lines))
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=20)
    assert (watching.returncode, errors) == (0, b"")


def test_on_a_terminal_the_screen_is_refreshed_in_place(runs):
    (runs / "runs/c-killed/train/0123456789abcdef/metrics.jsonl").open("a").write("damaged\n")
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 90, 0, 0))
    watching = watch(runs, stdout=other, stderr=other)
    seen = b""
    while seen.count(b"\x1b[J") < 3:
        seen += os.read(terminal, 1 << 16)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 0
    os.close(other)
    os.close(terminal)
    first, second, *_ = seen.decode().split("\x1b[J")
    assert second.startswith("\x1b[7A\r") and first.count("\n") == second.count("\n") == 7
    assert "damaged" not in seen.decode() and "skipping" not in seen.decode()

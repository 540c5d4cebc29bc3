"""status: where runs stand, on whatever there is of them."""

import json
import os
import socket
import time

import pytest

from stages import status
from stages.lib import lease, manifest


@pytest.fixture
def directory(tmp_path):
    """A run directory with 50 of 100 steps, a complete checkpoint and a torn one."""
    made = tmp_path / "runs" / "base" / "train" / "0123456789abcdef"
    for step, complete in ((20, True), (40, False)):
        checkpoint = made / "checkpoints" / f"{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "__0_0.distcp").write_bytes(b"12345")
        commit = {"format": 1, "files": {"__0_0.distcp": {"bytes": 5 if complete else 6, "sha256": ""}}}
        (checkpoint / "commit.json").write_text(json.dumps(commit))
    lines = [
        {"step": step, "tokens": step * 1000, "loss": 5.0, "tokens_per_second": 500.0, "grad_norm": 1.0}
        for step in range(1, 51)
    ]
    (made / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 51, "to')
    write_events(made, {"event": "start", "step": 0, "steps": 100})
    return made


def write_events(directory, *events):
    with open(directory / "events.jsonl", "a") as file:
        file.writelines(json.dumps({"time": time.time(), **event}) + "\n" for event in events)


def shown(capsys, root, *options):
    """What status prints."""
    assert status.main(["--results", str(root), *options]) == 0
    return capsys.readouterr().out


def test_an_empty_directory_says_so(tmp_path, capsys):
    assert "no run has begun" in shown(capsys, tmp_path)


def test_a_missing_directory_is_refused(tmp_path, capsys):
    assert status.main(["--results", str(tmp_path / "none")]) == 2
    assert "--results" in capsys.readouterr().err


def test_step_speed_time_left_and_last_complete_checkpoint(directory, tmp_path, capsys):
    text = shown(capsys, tmp_path)
    assert "50 of 100 (50%), 50,000 tokens, loss 5.0000" in text
    assert "500 tokens/s, 1:40 left" in text
    assert "checkpoints/00000020" in text
    assert "checkpoints/00000040" not in text


def test_a_live_trainer_is_named(directory, tmp_path, capsys):
    held = lease.Lease(directory)
    try:
        assert f"training now: process {os.getpid()} on {socket.gethostname()}" in shown(capsys, tmp_path)
    finally:
        held.release()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "stop", "step": 50, "reason": "OutOfTime: 3 minutes left"}, "stopped at step 50: OutOfTime: 3 min"),
        ({"event": "finish", "step": 100}, "reached its milestone, step 100"),
        ({"event": "save", "step": 40}, "died after its last word, save at step 40"),
    ],
)
def test_why_a_run_stopped(directory, tmp_path, capsys, event, words):
    write_events(directory, event)
    assert words in shown(capsys, tmp_path)


def test_a_run_that_made_its_directory_only(tmp_path, capsys):
    (tmp_path / "runs" / "base" / "train" / "00").mkdir(parents=True)
    text = shown(capsys, tmp_path)
    assert "none yet" in text
    assert "not begun" in text


def add_milestone(directory, step):
    """A model manifest that refers to the run directory, and its scores."""
    home = directory.parents[1]
    path = home / "models" / f"{step:08d}.json"
    path.parent.mkdir(exist_ok=True)
    record = {"run_directory": f"../train/{directory.name}", "horizon": {"steps": 100}}
    manifest.write(path, {"step": step, "tokens": step * 1000}, record)
    scores = home / "eval" / f"{step:08d}" / "heldout.json"
    scores.parent.mkdir(parents=True)
    results = {"next_line": {"acc": {"value": 0.4, "stderr": 0.1}}, "bits": {"bits_per_byte": {"value": None}}}
    manifest.write(scores, {"results": results}, {})
    return scores


def test_milestones_and_scores_are_listed_and_a_half_written_score_hurts_nobody(directory, tmp_path, capsys):
    assert "no milestone yet" in shown(capsys, tmp_path)
    add_milestone(directory, 20)
    add_milestone(directory, 50).write_text('{"identity": {"res')
    text = shown(capsys, tmp_path)
    assert "milestones   20, 50" in text
    assert "heldout: next_line acc 0.400, bits ?" in text
    assert "heldout: not readable" in text


def test_unused_run_directories_are_listed_with_their_size_and_stay(directory, tmp_path, capsys):
    text = shown(capsys, tmp_path, "--unused")
    assert str(directory) in text
    assert "MB" in text
    assert directory.exists()
    assert str(directory) not in shown(capsys, tmp_path, "--unused", "--keep", directory.name + "0" * 48)
    add_milestone(directory, 20)
    assert str(directory) not in shown(capsys, tmp_path, "--unused")


def test_a_directory_that_is_trained_in_is_in_use(directory, tmp_path, capsys):
    held = lease.Lease(directory)
    try:
        assert str(directory) not in shown(capsys, tmp_path, "--unused")
    finally:
        held.release()

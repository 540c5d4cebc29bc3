"""The resume gauntlet: mistakes of the user, what it counts, and our training under its kills."""

import argparse
import json
import sys

import pytest

from benchmarks import resume


def refused(capsys, *words):
    """Run a command line that must be refused; return its one line."""
    assert resume.main(list(map(str, words))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--systems", "torchtune"], "--systems must be of caravan, litgpt, nanochat, torchtitan, transformers, got"),
        (["--systems", "litgpt"], "litgpt needs --environments DIR with its environment DIR/litgpt"),
        (["--steps", "6"], "--steps must be at least 12 and --batch a multiple of 16 samples (two ranks of 8), got 6"),
        (["--batch", "8"], "--steps must be at least 12 and --batch a multiple of 16 samples (two ranks of 8), got 60"),
        (["--steps", "600"], "--steps x --batch must be below 8192 samples, got 19200"),
    ],
)
def test_a_mistake_is_one_sentence(words, message, capsys):
    assert message in refused(capsys, *words)


def test_a_missing_environment_or_checkout_is_one_sentence(tmp_path, capsys):
    place = tmp_path / "torchtitan/bin/python"
    words = ["--systems", "torchtitan", "--environments", tmp_path]
    for _ in ("no Python", "a Python without the package"):
        line = refused(capsys, *words)
        assert line.startswith(f"resume: {place} has no torchtitan and datasets: make the environment of torchtitan by")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.exists() or place.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        place.chmod(0o755)
    place = tmp_path / "nanochat/bin/python"
    place.parent.mkdir(parents=True)
    place.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    place.chmod(0o755)
    line = refused(capsys, "--systems", "nanochat", "--environments", tmp_path)
    assert line == f"resume: {tmp_path}/nanochat/checkout must be a checkout of https://github.com/karpathy/nanochat"


def test_samples_that_are_repeated_and_lost_are_counted():
    undisturbed = {"samples": [1, 2, 3, 4, 5, 6], "loss": 2.0}
    starts = [{"killed_after": 2}, {"resumed_from": 1}]
    row = resume.compare({"samples": [1, 2, 1, 2, 2, 7], "loss": 1.5, "steps": 3, "starts": starts}, undisturbed)
    assert row["repeated"] == 3 and row["lost"] == 4 and row["difference"] == 0.5
    row = resume.compare({"samples": [1], "starts": [*starts, {"refused": "ValueError: no"}]}, undisturbed)
    assert resume.text_of(row) == "refused: ValueError: no"


def test_records_of_all_ranks_are_read(tmp_path):
    lines = [{"step": 3, "samples": [5, 9]}, {"killed_after": 3}]
    (tmp_path / "samples-1-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "samples-1-1.jsonl").write_text(json.dumps({"step": 3, "samples": [7]}) + "\n")
    assert resume.samples_of(tmp_path, 1) == ({3: [5, 9, 7]}, 3)


def test_the_reason_of_a_refusal_is_the_last_error():
    output = "[rank1]: ValueError: no shard of rank 1\ntorch.distributed.elastic.ChildFailedError: \nsignal 9"
    assert resume.reason_of(output) == "ValueError: no shard of rank 1"
    assert resume.reason_of("pretrain: the corpus differs\n") == "pretrain: the corpus differs"


def test_a_training_that_ends_before_its_kill_is_not_started_again(tmp_path, monkeypatch):
    gauntlet = resume.Gauntlet(argparse.Namespace(steps=12, batch=16, environments=None), tmp_path)
    started = []

    def start(system, directory, number, settings, kill_after):
        started.append(kill_after)
        steps = {0: range(1, 6), 1: range(5, 9)}[number]
        lines = [json.dumps({"step": step, "samples": [step]}) for step in steps]
        lines += [json.dumps({"killed_after": kill_after})] if number == 0 else []
        (directory / f"samples-{number}-0.jsonl").write_text("\n".join(lines))
        (directory / "loss.json").write_text("2.5")
        return -9 if number == 0 else 0, ""

    monkeypatch.setattr(gauntlet, "start", start)
    found = gauntlet.run("litgpt", "the same")
    assert started == [5, 9] and found["steps"] == 8 and found["loss"] == 2.5
    assert found["samples"] == list(range(1, 9)) and found["starts"][1]["ended_after"] == 8


@pytest.mark.long
def test_ours_repeats_and_loses_no_sample(tmp_path, capsys):
    output = tmp_path / "out.json"
    assert resume.main(["--steps", "12", "--batch", "16", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]["caravan"]
    assert set(rows) == set(resume.SCENARIOS) - {"undisturbed"}
    for name, row in rows.items():
        first, second, third = row["starts"]
        assert (first["killed_after"], second["killed_after"]) == (5, 9), name
        assert (second["resumed_from"], third["resumed_from"], third["ended_after"]) == (4, 8, 12), name
        assert row["samples"] == 192 and row["repeated"] == row["lost"] == 0, name
        assert row["difference"] < 1e-4, name
    assert rows["the same"]["difference"] == 0
    assert "caravan, the same: 12 steps, 0 samples repeated, 0 lost, final loss differs by 0" in capsys.readouterr().out

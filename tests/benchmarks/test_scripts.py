"""Smoke tests of the benchmarks that need a GPU, or minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import evaluations

HOME = Path(__file__).resolve().parents[2]


def run(*arguments):
    """Run a benchmark; returns its stdout."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=HOME, check=True, capture_output=True, text=True)
    return done.stdout


def test_training_on_a_gpu_runs_without_one(tmp_path):
    options = [
        "--steps",
        "2",
        "--activation-checkpointing",
        "full",
        "--state-dtype",
        "bfloat16",
        "--output",
        str(tmp_path / "out.json"),
    ]
    printed = run("benchmarks.train_gpu", "tiny", *options)
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["steps"]) == 2
    assert 5 < found["steps"][0]["loss"] < 7
    assert f"{found['tokens_per_second']:,.0f} tokens/s, MFU {found['mfu']}" in printed


@pytest.mark.long
def test_the_search_for_items_finds_all_that_are_planted(tmp_path):
    output = tmp_path / "out.json"
    run("benchmarks.contamination", "--megabytes", "0.5", "--items", "40", "--output", str(output))
    found = json.loads(output.read_text())
    assert found["planted_items_found"]["caravan"] == found["items_planted"] == 20
    assert found["other_items_found"]["caravan"] == 0
    assert found["tokens_per_cpu_second"]["caravan"] > found["tokens_per_cpu_second"]["janitor"] > 0


def test_saves_are_measured_beside_each_other(tmp_path):
    run("benchmarks.save", "--megabytes", "4", "--repeats", "2", "--output", str(tmp_path / "out.json"))
    found = json.loads((tmp_path / "out.json").read_text())
    assert 3e6 < found["state_bytes"] < 5e6
    assert found["ratio"] > 0
    assert len(found["repeats"]["synchronous"]) == len(found["repeats"]["asynchronous"]) == 2


@pytest.mark.long
def test_evaluation_is_measured_beside_the_harness(tmp_path):
    options = evaluations.export(tmp_path)
    words = ["--export", options["--export"], "--corpus", options["--corpus"], "--examples", 8, "--repeats", 1]
    run("benchmarks.evaluate", *map(str, words), "--output", str(tmp_path / "out.json"))
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["ratio"]["cpu_seconds"] > 0
    assert found["turns"][0].keys() == {"caravan", "harness"}

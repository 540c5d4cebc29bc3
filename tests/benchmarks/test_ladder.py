"""Smoke test of the benchmark of ladders."""

import json
import subprocess
import sys

import pytest

from tests.helpers.training import HOME, environment


@pytest.mark.long  # it makes the corpus of the embedded default
def test_the_benchmark_sets_the_prediction_beside_what_came_out(tmp_path):
    output = tmp_path / "ladder.json"
    command = [sys.executable, "-m", "benchmarks.ladder", "--seeds", 5, "--sizes", 18e3, 26e3, 36e3]
    command += ["--ratios", 0.3, 0.6, 1, "--target-ratio", 0.1, "--output", output]
    subprocess.run([str(word) for word in command], cwd=HOME, env=environment(), check=True, capture_output=True)
    (found,) = json.loads(output.read_text())["runs"]
    row = found["rows"]["loss"]
    assert len(found["points"]) == 9
    assert row["low"] < row["value"] < row["high"]
    assert row["error"] == pytest.approx(row["value"] / row["measured"] - 1)
    assert row["inside"] == (row["low"] <= row["measured"] <= row["high"])

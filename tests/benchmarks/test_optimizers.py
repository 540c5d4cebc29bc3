"""Smoke test of the benchmark of optimizers."""

import json
import subprocess
import sys

import pytest
import yaml

from tests.helpers.training import HOME, OPERATION, RECIPE, environment


@pytest.mark.long  # each training imports torch
def test_the_benchmark_compares_both_at_their_best_learning_rate(corpus, tmp_path):
    config, output = tmp_path / "config.yaml", tmp_path / "optimizers.json"
    pretrain = {key: value for key, value in RECIPE.items() if key != "model"} | OPERATION | {"milestones": [30]}
    config.write_text(yaml.safe_dump({"runs": {"tiny": {"model": RECIPE["model"], "pretrain": pretrain}}}))
    command = [sys.executable, "-m", "benchmarks.optimizers", "--corpus", corpus, "--config", config, "--run", "tiny"]
    command += ["--steps", 3, "--seeds", 5, "--learning-rates", 1e-6, 1e-2, "--threads", 1, "--output", output]
    subprocess.run([str(word) for word in command], cwd=HOME, env=environment(), check=True, capture_output=True)
    found = json.loads(output.read_text())
    runs = {(run["optimizer"], run["learning_rate"]): run for run in found["runs"]}
    assert len(runs) == 4
    for optimizer, best in found["summary"].items():
        assert best["learning_rate"] == 1e-2
        assert (
            best["loss_bits_per_byte"]
            == runs[optimizer, 1e-2]["loss_bits_per_byte"]
            < runs[optimizer, 1e-6]["loss_bits_per_byte"]
        )
    first = {run["training_loss"][0] for run in runs.values()}
    assert len(first) == 1, "the same initial weights and data"
    assert len({run["loss_bits_per_byte"] for run in runs.values()}) == 4

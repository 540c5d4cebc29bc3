"""Smoke test of the benchmark of LoRA's memory."""

import json
import subprocess
import sys

import pytest

from tests.helpers.training import HOME, environment


@pytest.mark.long  # each training imports torch
def test_the_benchmark_writes_both_trainings_and_their_ratio(tmp_path):
    output = tmp_path / "lora.json"
    command = [sys.executable, "-m", "benchmarks.lora", "--shape", "tiny", "--output", str(output)]
    subprocess.run(command, cwd=HOME, env=environment(), check=True, capture_output=True)
    found = json.loads(output.read_text())
    full, lora = (found["runs"][kind] for kind in ("full", "lora"))
    assert full["parameters"] == full["trained_parameters"] < lora["parameters"]
    assert lora["trained_parameters"] == lora["parameters"] - full["parameters"]
    assert found["ratio"] == pytest.approx(lora["peak_mb"] / full["peak_mb"])

"""Smoke test of the benchmark of conversion."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_writing_parity_and_memory_are_measured(tmp_path):
    options = ["--shape", "tiny", "--repeats", "1", "--work", str(tmp_path / "work")]
    command = [sys.executable, "-m", "benchmarks.convert", *options, "--output", str(tmp_path / "out.json")]
    printed = subprocess.run(command, cwd=HOME, check=True, capture_output=True, text=True).stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["command"] == "python -m benchmarks.convert --shape tiny --repeats 1"
    assert set(found["turns"]) == {"4", "2"}
    assert all(turn["writing"] > 0 and turn["parity"] > 0 and turn["copy"] > 0 for turn in found["turns"]["4"])
    assert 100 < found["peak_mb"]["4"] < 1500
    assert f"peak_of_depths: {found['peak_of_depths']}" in printed

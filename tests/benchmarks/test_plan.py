"""Smoke test of the benchmark of planned memory."""

import json
import subprocess
import sys

import pytest

from tests.helpers.training import HOME, environment


@pytest.mark.long  # two ranks, and torch's profiler
def test_the_benchmark_plans_and_measures_a_case_within_a_tenth(tmp_path):
    output = tmp_path / "plan.json"
    command = [sys.executable, "-m", "benchmarks.plan", "--cases", "tiny", "--output", str(output)]
    subprocess.run(command, cwd=HOME, env=environment(), check=True, capture_output=True)
    case = json.loads(output.read_text())["cases"]["tiny"]
    assert sum(case["parts"].values()) == case["planned"]
    assert case["ratio"] == case["planned"] / case["measured"] == pytest.approx(1, abs=0.1)

"""Smoke test of the benchmark of training on the CPU."""

import json
import subprocess
import sys

import pytest

from tests.helpers.training import HOME, environment


@pytest.mark.long  # each peer imports its own libraries
def test_the_benchmark_writes_every_repeat_and_the_ratios(tmp_path):
    output = tmp_path / "train_cpu.json"
    options = ["--shape", "tiny", "--repeats", "2", "--threads", "1", "--output", str(output)]
    command = [sys.executable, "-m", "benchmarks.train_cpu", *options]
    subprocess.run(command, cwd=HOME, env=environment(), check=True, capture_output=True)
    found = json.loads(output.read_text())
    ours, theirs = (
        [entry for entry in found["repeats"] if entry["peer"] == peer] for peer in ("caravan", "transformers")
    )
    assert [entry["repeat"] for entry in ours] == [entry["repeat"] for entry in theirs] == [0, 1]
    pairs = [our["seconds"] / their["seconds"] for our, their in zip(ours, theirs, strict=True)]
    assert found["ratios"]["transformers"]["tokens_per_second"] == pytest.approx(sum(1 / pair for pair in pairs) / 2)
    memory = [found["sizes"][peer]["peak_mb"] for peer in ("caravan", "transformers")]
    assert min(memory) > 0
    assert found["ratios"]["transformers"]["peak_mb"] == pytest.approx(memory[0] / memory[1])
    assert set(found["versions"]) >= {"python", "torch", "transformers"}
    assert found["shape"]["vocab_size"] == 300 and found["hardware"]["cores"] >= 1

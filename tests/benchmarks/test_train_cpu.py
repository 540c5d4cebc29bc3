"""The benchmark of training on the CPU, at a size that measures nothing."""

import json
import subprocess
import sys

import pytest

from tests.stages.training import HOME, environment


@pytest.mark.long  # each peer imports its own libraries
def test_the_benchmark_writes_every_repeat_and_the_ratios(tmp_path):
    output = tmp_path / "train_cpu.json"
    options = ["--shape", "tiny", "--repeats", "2", "--steps", "1", "--threads", "1", "--output", str(output)]
    command = [sys.executable, "-m", "benchmarks.train_cpu", *options]
    subprocess.run(command, cwd=HOME, env=environment(), check=True, capture_output=True)
    found = json.loads(output.read_text())
    ours, theirs = (
        [entry for entry in found["repeats"] if entry["peer"] == peer] for peer in ("caravan", "transformers")
    )
    assert [entry["repeat"] for entry in ours] == [entry["repeat"] for entry in theirs] == [0, 1]
    assert all(entry["tokens_per_second"] > 0 and entry["peak_mb"] > 0 for entry in ours + theirs)
    pairs = [our["peak_mb"] / their["peak_mb"] for our, their in zip(ours, theirs, strict=True)]
    assert found["ratios"]["transformers"]["peak_mb"] == pytest.approx(sum(pairs) / 2)
    assert set(found["versions"]) >= {"python", "torch", "transformers"}
    assert found["shape"]["vocabulary"] == 300 and found["hardware"]["cores"] >= 1

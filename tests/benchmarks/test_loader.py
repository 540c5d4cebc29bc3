"""Smoke test of the benchmark of the loader."""

import json
import statistics

import pytest

from benchmarks import loader
from tests.benchmarks.test_scripts import run


@pytest.mark.parametrize(
    "readers",
    [["caravan chunk", "memcpy", "file copy"], pytest.param(list(loader.READERS), marks=pytest.mark.long)],
    ids=["few", "all"],  # the others import their libraries
)
def test_the_loader_is_measured_beside_its_peers(tmp_path, readers):
    options = ["--tokens", "60000", "--turn", "4000", "--repeats", "2", "--output", str(tmp_path / "out.json")]
    printed = run("benchmarks.loader", *options, "--readers", *readers)
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found["missing"]) <= {"datasets", "litdata"}
    for length in loader.LENGTHS:
        assert set(found["figures"][str(length)]) == set(readers) - set(found["missing"])
        turns = {
            reader: [
                turn["tokens_per_cpu_second"]
                for turn in found["turns"]
                if (turn["reader"], turn["length"]) == (reader, length)
            ]
            for reader in ("caravan chunk", "memcpy")
        }
        shares = [ours / theirs for ours, theirs in zip(*turns.values(), strict=True)]
        assert found["figures"][str(length)]["caravan chunk"]["of_memcpy"] == statistics.median(shares)
    assert f"L={loader.LENGTHS[0]:<5} caravan chunk" in printed

"""The journals of a training, and its log lines."""

import json

import pytest

from stages.lib import log
from stages.lib.training.metrics.callback import MetricsWriter
from stages.lib.training.step_metrics import slowest_rank


@pytest.fixture
def writer(tmp_path):
    log.to(tmp_path / "log")
    return MetricsWriter(tmp_path, world_size=4)


def logged(tmp_path):
    """The lines of the log, without their time."""
    return [line.partition(" ")[2] for line in (tmp_path / "log").read_text().splitlines()]


def test_evaluation_is_logged_with_its_losses(writer, tmp_path):
    results = {"web": {"loss": 3.46, "loss_bits_per_byte": 2.1}, "books": {"loss": 3.5, "loss_bits_per_byte": 2}}
    writer.metrics({"step": 20, "tokens": 640, "validation": results, "validation_seconds": 7.26})
    assert logged(tmp_path)[-1] == "INFO validation loss at step 20, in 7.3 s: web 3.4600, books 3.5000"


def test_event_is_logged_without_the_facts_for_programs_and_a_rollback_is_shown(writer, tmp_path, capsys):
    log.to(tmp_path / "log")  # once more: pytest changed stderr since
    writer.event("start", 0, {"steps": 60, "formula": "MFU = ...", "peak_flops": "n/a", "device": "cpu"})
    writer.event("finish", 60, {})
    assert logged(tmp_path)[-2:] == ["INFO start at step 0: steps 60, device cpu", "INFO finish at step 60"]
    writer.event("stop", 61, {"reason": "stopped by SIGTERM", "preempted": True})  # which the stage logs
    writer.event("rollback", 8, {"left": 13, "samples": [96, 156]})
    assert logged(tmp_path)[-1] == "WARNING rollback at step 8: left 13, samples [96, 156]"
    assert not [line for line in logged(tmp_path) if "SIGTERM" in line]
    first, _, stop, _ = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (stop["reason"], stop["preempted"]) == ("stopped by SIGTERM", True)
    assert (first["formula"], first["peak_flops"], first["world_size"]) == ("MFU = ...", "n/a", 4)
    assert capsys.readouterr().err == "rollback at step 8: left 13, samples [96, 156]\n"


@pytest.mark.parametrize(
    ("seconds", "median"), [([1.0, 3.0], 2.0), ([1.0, 5.0, 1.5, 2.5], 2.0), ([2.0, 9.0, 1.0], 2.0)]
)
def test_slowest_rank_is_compared_with_the_median(seconds, median):
    hosts = ["node1", "node2", "node3", "node4"]
    slowest = f"node{seconds.index(max(seconds)) + 1}"
    assert slowest_rank(hosts, seconds) == {"max": max(seconds), "median": median, "slowest": slowest}

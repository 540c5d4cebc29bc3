"""The journals of a training, and its log lines."""

import json

import pytest

from stages.lib import log
from stages.lib.training.metrics.writer import MetricsWriter
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


def test_event_is_logged_without_the_facts_for_programs(writer, tmp_path, capsys):
    writer.event("start", 0, {"steps": 60, "formula": "MFU = ...", "peak_flops": "n/a", "device": "cpu"})
    writer.event("finish", 60, {})
    assert logged(tmp_path)[-2:] == ["INFO start at step 0: steps 60, device cpu", "INFO finish at step 60"]
    first = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert (first["formula"], first["peak_flops"], first["world_size"]) == ("MFU = ...", "n/a", 4)
    assert capsys.readouterr().err.count("at step") == 0


def test_rollback_reaches_the_terminal(writer, tmp_path, capsys):
    log.to(tmp_path / "log")  # once more: pytest changed stderr since
    writer.event("skip", 11, {"samples": [120, 132], "loss": "nan"})
    writer.event("rollback", 8, {"left": 13, "samples": [96, 156]})
    assert capsys.readouterr().err == "rollback at step 8: left 13, samples [96, 156]\n"


def test_stop_is_an_event_and_not_logged_twice(writer, tmp_path):
    writer.event("stop", 11, {"reason": "stopped by SIGTERM", "preempted": True})
    assert not [line for line in logged(tmp_path) if "SIGTERM" in line]
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["reason"], event["preempted"]) == ("stopped by SIGTERM", True)


@pytest.mark.parametrize(
    ("seconds", "median"), [([1.0, 3.0], 2.0), ([1.0, 5.0, 1.5, 2.5], 2.0), ([2.0, 9.0, 1.0], 2.0)]
)
def test_slowest_rank_is_compared_with_the_median(seconds, median):
    hosts = ["node1", "node2", "node3", "node4"]
    slowest = f"node{seconds.index(max(seconds)) + 1}"
    assert slowest_rank(hosts, seconds) == {"max": max(seconds), "median": median, "slowest": slowest}

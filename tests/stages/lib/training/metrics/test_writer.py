"""What a training tells: lines for programs, and lines for people."""

import json

import pytest

from stages.lib import log
from stages.lib.distributed import collectives
from stages.lib.training.metrics.writer import MetricsWriter


@pytest.fixture
def records(tmp_path):
    log.to(tmp_path / "log")
    with collectives.ranks():
        yield MetricsWriter(tmp_path, ["node1", "node2", "node3", "node4"])


def said(tmp_path):
    """The lines of the log, without their time."""
    return [line.partition(" ")[2] for line in (tmp_path / "log").read_text().splitlines()]


def test_evaluation_is_said_with_its_losses(records, tmp_path):
    records.validation(
        20, 640, {"web": {"loss": 3.46, "bits_per_byte": 2.1}, "books": {"loss": 3.5, "bits_per_byte": 2}}
    )
    assert said(tmp_path)[-1] == "INFO held out at step 20: web 3.4600, books 3.5000"


def test_event_is_said_without_what_is_for_programs(records, tmp_path, capsys):
    records.event("start", 0, steps=60, formula="MFU = ...", peak_flops="n/a", device="cpu")
    records.event("finish", 60)
    assert said(tmp_path)[-2:] == ["INFO start at step 0: steps 60, device cpu", "INFO finish at step 60"]
    first = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert (first["formula"], first["peak_flops"], first["world_size"]) == ("MFU = ...", "n/a", 4)
    assert capsys.readouterr().err.count("at step") == 0


def test_rollback_reaches_the_terminal(records, tmp_path, capsys):
    log.to(tmp_path / "log")  # once more: pytest changed stderr since
    records.event("skip", 11, samples=[120, 132], loss="nan")
    records.event("rollback", 8, left=13, samples=[96, 156])
    assert capsys.readouterr().err == "rollback at step 8: left 13, samples [96, 156]\n"


def test_stop_is_an_event_and_not_said_twice(records, tmp_path):
    records.event("stop", 11, reason="Preempted: x")
    assert not [line for line in said(tmp_path) if "Preempted" in line]
    assert json.loads((tmp_path / "events.jsonl").read_text())["reason"] == "Preempted: x"


@pytest.mark.parametrize(
    ("seconds", "median"), [([1.0, 3.0], 2.0), ([1.0, 5.0, 1.5, 2.5], 2.0), ([2.0, 9.0, 1.0], 2.0)]
)
def test_slowest_rank_is_compared_with_the_median(records, seconds, median):
    slowest = f"node{seconds.index(max(seconds)) + 1}"
    assert records.ranks(seconds) == {"max": max(seconds), "median": median, "slowest": slowest}

"""The journals of a training, and its log lines."""

import json

import pytest
import torch

from stages.lib import log
from stages.lib.model import flops
from stages.lib.model.architectures.llama import LlamaRecipe
from stages.lib.training.metrics.throughput import Throughput
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


MODEL = LlamaRecipe(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    tie_word_embeddings=True,
    max_position_embeddings=64,
)
H100 = "NVIDIA H100 80GB HBM3"


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def throughput(clock, world_size=1, **keywords):
    return Throughput(MODEL, 320, 32, world_size, torch.device("cpu"), clock=clock, **keywords)


def on_gpu(monkeypatch, clock, world_size=1, **keywords):
    """A meter that takes this machine for one with a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: H100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3_000_000_000)
    return Throughput(MODEL, 320, 32, world_size, torch.device("cuda", 0), clock=clock, **keywords)


def test_speed_of_the_step_and_overall_without_the_first_but_with_what_lies_between(clock):
    measured = throughput(clock)
    first = measured.step(seconds=50.0, data_wait=1.0, tokens=1000)
    assert first["tokens_per_second"] == first["tokens_per_second_overall"] == 20
    for seconds_passed, overall in ((10, 100), (30, 50)):  # the third step after an evaluation of 20 seconds
        clock.now += seconds_passed
        entry = measured.step(seconds=10.0, data_wait=0.0, tokens=1000)
        assert entry["tokens_per_second"] == 100
        assert entry["tokens_per_second_overall"] == overall
        assert entry["tokens_per_day"] == overall * 86_400
    assert entry["seconds"] == 10


def test_overall_speed_is_never_more_than_the_steps_had(clock):
    measured = throughput(clock)
    for _ in range(2):  # the clock stands still: figures were read late
        entry = measured.step(seconds=10.0, data_wait=0.0, tokens=1000)
    assert entry["tokens_per_second_overall"] == 100


def test_utilization_is_of_one_device_of_all(monkeypatch, clock):
    entry = on_gpu(monkeypatch, clock, world_size=4).step(seconds=2.0, data_wait=0.0, tokens=8_000_000)
    expected = 1_000_000 * flops.flops_per_token(MODEL, 320, 32) / 989e12
    assert entry["mfu"] == entry["hfu"] == pytest.approx(expected, rel=1e-12)
    assert entry["memory_mb"] == 3000


def test_hardware_utilization_counts_what_is_computed_again(monkeypatch, clock):
    measured = on_gpu(monkeypatch, clock, activation_checkpointing=("full", None))
    entry = measured.step(seconds=1.0, data_wait=0.0, tokens=1000)
    facts = measured.facts()
    assert entry["hfu"] / entry["mfu"] == pytest.approx(
        facts["hardware_flops_per_token"] / facts["model_flops_per_token"]
    )
    assert entry["hfu"] > entry["mfu"]


def test_a_device_whose_peak_is_not_known_has_no_utilization(clock):
    measured = throughput(clock)
    entry = measured.step(seconds=1.0, data_wait=0.0, tokens=1000)
    assert entry["mfu"] == entry["hfu"] == measured.facts()["peak_flops"] == "n/a"
    assert entry["memory_mb"] > 10


def test_the_formula_the_peak_and_the_device_are_facts(monkeypatch, clock):
    facts = on_gpu(monkeypatch, clock).facts()
    assert (facts["device"], facts["peak_flops"], facts["formula"]) == (H100, 989e12, flops.FORMULA)


def test_percentiles_of_the_wait_are_over_the_last_256_steps(clock):
    measured = throughput(clock)
    for number in range(1, 101):
        entry = measured.step(seconds=1.0, data_wait=number / 100, tokens=1)
    assert (entry["data_wait"], entry["data_wait_p50"], entry["data_wait_p99"]) == (1.0, 0.5, 0.99)
    for _ in range(255):
        entry = measured.step(seconds=1.0, data_wait=0.0, tokens=1)
    assert (entry["data_wait_p50"], entry["data_wait_p99"]) == (0.0, 0.0)

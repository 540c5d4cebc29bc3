"""The figures of a step, worked out by hand."""

import pytest
import torch

from stages.lib.model import flops
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.training.step_metrics import Throughput
from tests.helpers import training

MODEL = LlamaRecipe(**training.MODEL)
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
    measured = throughput(clock)
    for _ in range(2):  # the clock stands still: figures were read late
        entry = measured.step(seconds=10.0, data_wait=0.0, tokens=1000)
    assert entry["tokens_per_second_overall"] == 100  # never more than the steps had


def test_utilization_is_of_one_device_of_all(monkeypatch, clock):
    measured = on_gpu(monkeypatch, clock, world_size=4)
    facts = measured.facts()
    assert (facts["device"], facts["peak_flops"], facts["formula"]) == (H100, 989e12, flops.FORMULA)
    entry = measured.step(seconds=2.0, data_wait=0.0, tokens=8_000_000)
    expected = 1_000_000 * flops.flops_per_token(MODEL, 320, 32) / 989e12
    assert entry["mfu"] == entry["hfu"] == pytest.approx(expected, rel=1e-12)
    assert entry["memory_mb"] == 3000


def test_hardware_utilization_counts_what_is_computed_again(monkeypatch, clock):
    measured = on_gpu(monkeypatch, clock, activation_checkpointing=("full", None))
    entry = measured.step(seconds=1.0, data_wait=0.0, tokens=1000)
    facts = measured.facts()
    expected = facts["hardware_flops_per_token"] / facts["model_flops_per_token"]
    assert entry["hfu"] / entry["mfu"] == pytest.approx(expected)
    assert entry["hfu"] > entry["mfu"]


def test_a_device_whose_peak_is_not_known_has_no_utilization(clock):
    measured = throughput(clock)
    entry = measured.step(seconds=1.0, data_wait=0.0, tokens=1000)
    assert entry["mfu"] == entry["hfu"] == measured.facts()["peak_flops"] == "n/a"
    assert entry["memory_mb"] > 10


def test_percentiles_of_the_wait_are_over_the_last_256_steps(clock):
    measured = throughput(clock)
    for number in range(1, 101):
        entry = measured.step(seconds=1.0, data_wait=number / 100, tokens=1)
    assert (entry["data_wait"], entry["data_wait_p50"], entry["data_wait_p99"]) == (1.0, 0.5, 0.99)
    for _ in range(255):
        entry = measured.step(seconds=1.0, data_wait=0.0, tokens=1)
    assert (entry["data_wait_p50"], entry["data_wait_p99"]) == (0.0, 0.0)

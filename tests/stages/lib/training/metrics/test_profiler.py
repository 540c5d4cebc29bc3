"""Steps of a profile, and the content of its files."""

import gzip
import json

import pytest
import torch

from stages.lib import log
from stages.lib.errors import UserError
from stages.lib.training.metrics.profiler import Profiler
from stages.lib.training.settings.options import parse_steps

CPU = torch.device("cpu")


def run(profiler, steps):
    """The training loop, with a matrix product for a step; the step's number is the size."""
    for step in steps:
        profiler.before_step(step)
        with torch.profiler.record_function(f"the work of {step}"):
            torch.ones(step, step) @ torch.ones(step, step)
        profiler.after_step(step)


def traced(path):
    """The steps whose work is in a trace."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {int(event["name"].split()[-1]) for event in events if event["name"].startswith("the work of")}


@pytest.mark.parametrize("text", ["", "5", "5:", "a:b", "5:4", "0:3", "-1:3", "1:2:3", "1.5:2"])
def test_a_range_is_parsed_or_refused(text):
    assert (parse_steps("20:24"), parse_steps("3:3")) == ((20, 24), (3, 3))
    with pytest.raises(UserError) as raised:
        parse_steps(text)
    assert str(raised.value) == f"--profile-steps must be A:B, two steps with 1 <= A <= B, got {text!r}"


@pytest.mark.parametrize(("first", "profiled"), [(1, {3, 4, 5}), (5, {5})])
def test_steps_of_the_range_are_in_the_trace_also_after_a_resume_within_it(tmp_path, first, profiled):
    run(Profiler(tmp_path, (3, 5), False, CPU), range(first, 9))
    assert traced(tmp_path / "profile" / "rank0-steps3-5.json.gz") == profiled
    assert "aten::mm" in (tmp_path / "profile" / "rank0-steps3-5.txt").read_text()


def test_nothing_is_written_outside_of_a_range_and_within_it_what_was_recorded_until_the_end(tmp_path):
    for steps in (None, (20, 24), (3, 5)):
        profiler = Profiler(tmp_path, steps, False, CPU)
        run(profiler, range(1, 5))
        assert list(tmp_path.iterdir()) == []
        profiler.close()
    assert traced(tmp_path / "profile" / "rank0-steps3-5.json.gz") == {3, 4}


def test_a_full_disk_does_not_stop_the_training(tmp_path):
    log.to(tmp_path / "log")
    (tmp_path / "profile").write_text("a file where the directory should be")
    run(Profiler(tmp_path, (1, 1), False, CPU), range(1, 3))
    assert "the profile could not be written" in (tmp_path / "log").read_text()


def test_a_snapshot_of_memory_needs_a_gpu_and_a_range(tmp_path):
    with pytest.raises(UserError, match="^--memory-snapshot requires a GPU, got a training on the cpu$"):
        Profiler(tmp_path, (1, 2), True, CPU)
    with pytest.raises(UserError, match="^--memory-snapshot requires --profile-steps A:B, the steps that it records$"):
        Profiler(tmp_path, None, True, CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_snapshot_of_memory_is_written(tmp_path):
    device = torch.device("cuda", 0)
    profiler = Profiler(tmp_path, (1, 2), True, device)
    for step in (1, 2, 3):
        profiler.before_step(step)
        torch.ones(1 << 20, device=device) * step
        profiler.after_step(step)
    snapshot = tmp_path / "profile" / "rank0-steps1-2.pickle"
    assert b"test_profiler.py" in snapshot.read_bytes()
    assert "CUDA" in (tmp_path / "profile" / "rank0-steps1-2.txt").read_text()

"""The learning rate at steps whose value can be worked out by hand, and what holds for all schedules."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib import recipe
from stages.lib.errors import UserError
from stages.lib.training.optimizers.schedule import ScheduleRecipe, learning_rate


def rates(made, steps, peak=1.0):
    return [learning_rate(made, peak, step, steps) for step in range(steps)]


def load(**keys):
    return recipe.load(ScheduleRecipe, keys, "pretrain.schedule")


def test_run_shorter_than_its_warm_up_only_rises():
    assert rates(ScheduleRecipe(warmup_steps=100), 10) == [(step + 1) / 101 for step in range(10)]


QUARTER = 0.8535533905932737  # of a cosine from 1 to 0
PINNED = {
    "cosine": ({"warmup_steps": 1, "min_lr_ratio": 0.2}, [0.5, 1.0, 0.2 + 0.8 * QUARTER, 0.6, 1 - 0.8 * QUARTER]),
    "linear": ({"kind": "linear", "warmup_steps": 1, "min_lr_ratio": 0.2}, [0.5, 1.0, 0.8, 0.6, 0.4]),
    "wsd": ({"kind": "wsd", "warmup_steps": 1, "decay_steps": 2, "min_lr_ratio": 0.0}, [0.5, 1.0, 1.0, 1.0, 0.5]),
    "wsd-sqrt": (
        {"kind": "wsd", "warmup_steps": 0, "decay_steps": 4, "decay": "sqrt", "min_lr_ratio": 0.2},
        [1.0, 1.0, 0.6, 0.2 + 0.8 * (1 - math.sqrt(0.5)), 0.2 + 0.8 * (1 - math.sqrt(0.75))],
    ),
    "constant": ({"kind": "constant", "warmup_steps": 3, "min_lr_ratio": 1}, [0.25, 0.5, 0.75, 1.0, 1.0]),
    "annealing": ({"kind": "linear", "warmup_steps": 0, "min_lr_ratio": 0.0}, [1.0, 0.8, 0.6, 0.4, 0.2]),
    "parabolic": (
        {"kind": "constant", "warmup_steps": 3, "warmup": "parabolic", "min_lr_ratio": 1},
        [1 - 0.75**2, 1 - 0.5**2, 1 - 0.25**2, 1.0, 1.0],
    ),
}


@pytest.mark.parametrize(("keys", "expected"), PINNED.values(), ids=PINNED)
def test_five_steps_of_each_schedule(keys, expected):
    assert rates(load(**keys), 5) == pytest.approx(expected, abs=1e-15)


def test_a_longer_horizon_moves_the_decay_of_wsd_and_nothing_before_it():
    made = load(kind="wsd", warmup_steps=5, decay_steps=10)
    assert rates(made, 100)[:40] == rates(made, 50)[:40]
    assert rates(made, 100)[90:] == rates(made, 50)[40:]


MISTAKES = [
    ({"kind": "wsd"}, "decay_steps is missing: kind wsd needs the number of steps over which it decays"),
    ({"decay_steps": 5}, "decay_steps must be left out for kind cosine, got 5; it is for wsd only"),
    ({"kind": "linear", "decay": "sqrt"}, "decay must be left out for kind linear, got sqrt; it is for wsd only"),
    ({"kind": "constant"}, "min_lr_ratio must be 1 for kind constant, which stays at the peak, got 0.1"),
    ({"warmup_steps": 0, "warmup": "parabolic"}, "warmup must be left out if warmup_steps is 0, got parabolic"),
]


@pytest.mark.parametrize(("keys", "sentence"), MISTAKES, ids=[str(keys) for keys, _ in MISTAKES])
def test_a_schedule_that_makes_no_sense_is_refused(keys, sentence):
    with pytest.raises(UserError) as raised:
        load(**keys)
    assert str(raised.value) == f"pretrain.schedule.{sentence}"


def test_a_run_that_is_too_short_for_its_decay_is_refused():
    made = load(kind="wsd", warmup_steps=10, decay_steps=20)
    made.check_steps(30, "pretrain.schedule")
    with pytest.raises(UserError, match=r"decay_steps must be at most steps - warmup_steps \(29 - 10\), got 20"):
        made.check_steps(29, "pretrain.schedule")
    ScheduleRecipe().check_steps(1, "pretrain.schedule")


peaks, floors = st.floats(1e-6, 1.0), st.floats(0, 1)
relaxed = settings(deadline=None)  # a busy machine is no mistake


@st.composite
def schedules(draw):
    """A schedule that holds, and the steps of a run that is long enough for it."""
    kind = draw(st.sampled_from(("cosine", "wsd", "linear", "constant")))
    warmup_steps = draw(st.integers(0, 40))
    keys = {"kind": kind, "warmup_steps": warmup_steps, "min_lr_ratio": 1.0 if kind == "constant" else draw(floors)}
    if warmup_steps:
        keys["warmup"] = draw(st.sampled_from(("linear", "parabolic")))
    if kind == "wsd":
        keys |= {"decay_steps": draw(st.integers(1, 40)), "decay": draw(st.sampled_from(("linear", "sqrt")))}
    steps = warmup_steps + keys.get("decay_steps", 1) + draw(st.integers(0, 100))
    made = load(**keys)
    made.check_steps(steps, "pretrain.schedule")
    return made, steps


@relaxed
@given(schedules(), peaks)
def test_it_rises_to_the_peak_then_never_rises_and_ends_at_the_floor(schedule, peak):
    made, steps = schedule
    found = [learning_rate(made, peak, step, steps) for step in range(steps + 2)]
    rising, falling = found[: made.warmup_steps], found[made.warmup_steps :]
    assert all(0 < earlier < later for earlier, later in itertools.pairwise(rising))
    assert falling[0] == peak
    # each value is rounded three times, so equal neighbours may differ by their last bits
    assert all(later <= earlier * (1 + 1e-15) for earlier, later in itertools.pairwise(falling))
    assert all(rate <= peak for rate in found)
    assert all(rate >= made.min_lr_ratio * peak * (1 - 1e-15) for rate in falling)
    assert found[steps] == found[steps + 1] == pytest.approx(made.min_lr_ratio * peak, rel=1e-12)


@relaxed
@given(schedules())
def test_neighbours_are_near_each_other_also_where_two_pieces_join(schedule):
    made, steps = schedule
    found = [learning_rate(made, 1.0, step, steps) for step in range(steps + 1)]
    fall = made.decay_steps or steps - made.warmup_steps
    warmup_jump = 2 / (made.warmup_steps + 1)  # a parabola begins at twice the slope of a line
    # a cosine is at most pi / 2 times as steep as a line; sqrt falls by 1 / sqrt(n) at its first step
    fall_jump = 1 / math.sqrt(fall) if made.decay == "sqrt" else math.pi / 2 / fall
    jumps = [abs(later - earlier) for earlier, later in itertools.pairwise(found)]
    assert max(jumps[: made.warmup_steps], default=0) <= warmup_jump + 1e-12
    assert max(jumps[made.warmup_steps :]) <= fall_jump + 1e-12

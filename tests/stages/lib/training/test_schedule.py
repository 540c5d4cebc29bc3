"""The learning rate at steps whose value can be worked out by hand."""

import pytest

from stages.lib.training.schedule import ScheduleRecipe, learning_rate


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 1.0 / 5),
        (3, 4.0 / 5),
        (4, 1.0),
        (54, 0.2 + 0.8 * 0.8535533905932737),  # a quarter of the cosine
        (104, 0.6),
        (204, 0.2),
        (999, 0.2),
    ],
)
def test_warm_up_then_cosine_to_the_floor(step, expected):
    recipe = ScheduleRecipe(warmup_steps=4, floor=0.2)
    assert learning_rate(recipe, 1.0, step, 204) == pytest.approx(expected, abs=1e-15)
    assert learning_rate(recipe, 3e-4, step, 204) == pytest.approx(3e-4 * expected, rel=1e-14)


def test_without_warm_up_the_first_step_has_the_peak():
    assert learning_rate(ScheduleRecipe(warmup_steps=0), 2.0, 0, 10) == 2.0


def test_run_shorter_than_its_warm_up_only_rises():
    recipe = ScheduleRecipe(warmup_steps=100)
    rates = [learning_rate(recipe, 1.0, step, 10) for step in range(10)]
    assert rates == [(step + 1) / 101 for step in range(10)]

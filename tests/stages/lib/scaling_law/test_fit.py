"""The fit on the published table of Chinchilla's models, and on points of a known law."""

import csv
from pathlib import Path

import numpy as np
import pytest

from stages.lib.errors import UserError
from stages.lib.scaling_law.law import Law, Objective, Points, Prediction, fit, held_out_errors

TABLE = Path(__file__).parent / "chinchilla.csv"
PUBLISHED = Law(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)  # Besiroglu et al. 2024, arXiv 2404.10102
KNOWN = Law(E=1.8, A=30.0, B=60.0, alpha=0.3, beta=0.32)
SIZES, RATIOS = (3e4, 5e4, 8e4, 13e4), (1, 2, 4)


def published_points():
    rows = list(csv.DictReader(line for line in TABLE.read_text().splitlines() if not line.startswith("#")))
    columns = [np.array([float(row[name]) for row in rows]) for name in rows[0]]
    parameters, flops = columns[0] * 1e6, columns[1] * 1e18
    points = Points(parameters, flops / (6 * parameters), columns[2])
    return points, points.take(points.loss < np.sort(points.loss)[-5])


def points_of(law, scatter=0.0, seed=0):
    noise = np.random.default_rng(seed)
    rows = [(n, n * ratio) for n in SIZES for ratio in RATIOS]
    return Points.of((n, d, law.loss(n, d) * np.exp(scatter * noise.standard_normal())) for n, d in rows)


@pytest.fixture(scope="module")
def published():
    return published_points()


def test_the_table_is_the_published_one(published):
    points, fitted = published
    assert (len(points), len(fitted)) == (245, 240)
    # as its authors' notebook describes it
    assert points.loss.std(ddof=1) == pytest.approx(0.36438696456, rel=1e-6)
    assert points.tokens.std(ddof=1) == pytest.approx(38025506115.7, rel=1e-5)


def test_the_fit_has_the_published_constants_and_predictions_within_1_percent(published):
    _, points = published
    law = fit(points)
    for name in ("E", "A", "alpha", "beta"):
        assert getattr(law, name) == pytest.approx(getattr(PUBLISHED, name), rel=0.01), name
    targets = [(points.parameters, points.tokens), (70e9, 1.4e12), (280e9, 300e9), (7e9, 2e12)]
    for parameters, tokens in targets:  # of the fit itself, and beyond it: Chinchilla, Gopher, a Llama 2 7B
        assert law.loss(parameters, tokens) == pytest.approx(PUBLISHED.loss(parameters, tokens), rel=0.01)
    objective = Objective(points)
    ours, theirs = (objective.values(objective.theta(each)) for each in (law, PUBLISHED))
    assert ours <= theirs, "the published constants are no better minimum"


def test_a_known_law_is_found_again_and_an_outlier_moves_it_little():
    law = fit(points_of(KNOWN))
    assert law.loss(22e4, 88e4) == pytest.approx(KNOWN.loss(22e4, 88e4), rel=1e-4)
    points = points_of(KNOWN)
    points.loss[5] *= 1.2
    assert fit(points).loss(22e4, 88e4) == pytest.approx(KNOWN.loss(22e4, 88e4), rel=0.01)


def test_errors_at_points_that_are_left_out_are_those_of_fits_without_them():
    exact = held_out_errors(points_of(KNOWN), KNOWN)
    assert exact["leave_one_out"] < 1e-3 and exact["largest_out"] < 1e-2
    points = points_of(KNOWN, scatter=0.01)
    errors = held_out_errors(points, fit(points))
    largest = points.parameters == max(SIZES)
    found = fit(points.take(~largest)).loss(points.parameters[largest], points.tokens[largest])
    assert errors["largest_out"] == pytest.approx(np.abs(found / points.loss[largest] - 1).mean(), rel=0.05)
    assert 0.003 < errors["leave_one_out"] < 0.05
    few = points.take(points.parameters < max(SIZES))
    assert held_out_errors(few, fit(few))["largest_out"] is None  # two sizes are left, which tell no power of N


def test_the_gradient_is_that_of_the_objective():
    objective = Objective(points_of(KNOWN, scatter=0.001))
    theta = objective.theta(Law(E=1.7, A=28.0, B=65.0, alpha=0.31, beta=0.33))
    steps = 1e-6 * np.eye(5)
    slopes = [(objective(theta + step)[0] - objective(theta - step)[0]) / 2e-6 for step in steps]
    assert objective(theta)[1] == pytest.approx(np.array(slopes), rel=1e-4)


@pytest.mark.long
def test_the_interval_covers_the_scatter_of_models_about_the_law():
    inside = []
    for seed in range(12):
        points, noise = points_of(KNOWN, 0.005, seed), np.random.default_rng(1000 + seed)
        interval = Prediction(points, num_resamples=30).of(22e4, 88e4)
        target = KNOWN.loss(22e4, 88e4) * np.exp(0.005 * noise.standard_normal())
        inside.append(interval.low[0] <= target <= interval.high[0])
        assert (interval.high - interval.low)[0] > 2 * 0.005 * target
    assert sum(inside) >= 10  # 95% of 12 are 11.4; 9 or fewer have a probability of 0.002


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([(n, n * 20, 3.0) for n in SIZES], "got 4 with 4 and 4"),
        ([(n, d, 3.0) for n in SIZES[:2] for d in (1e5, 2e5, 3e5, 4e5)], "got 8 with 2 and 4"),
    ],
)
def test_too_few_points_and_a_loss_that_is_no_number_are_one_sentence(rows, found):
    with pytest.raises(UserError, match="--models must be at least 7 trained models") as error:
        Points.of(rows).check("--models")
    assert found in str(error.value)
    points = points_of(KNOWN)
    points.loss[0] = np.nan
    with pytest.raises(UserError, match="finite loss greater than 0"):
        points.check("--models")

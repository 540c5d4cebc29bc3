"""The best run of a sweep is the one with the best mean score, and another run starts from it."""

import json

import pytest

from stages import pretrain, select_best
from stages.lib import manifest
from stages.lib.checkpoints import model_files
from tests.helpers.training import RECIPE, milestone, options, run_directory, train, weights_of

RESET = {"optimizer": "reset", "schedule": "reset", "data": "reset"}
SCORES = {"lr-a": (2.5, 2.1), "lr-b": (2.4, 2.0), "lr-c": (2.0, 2.6)}
"""Of each run the bits per byte of two tasks."""


@pytest.fixture(scope="module")
def sweep(corpus, tmp_path_factory):
    """Results of two trainings; of lr-c only the scores."""
    root = tmp_path_factory.mktemp("sweep")
    for seed, name in enumerate(("lr-a", "lr-b")):
        assert train(corpus, root / "runs" / name, 2, recipe=RECIPE | {"seed": seed}, steps=2) == 0
    for name, (code, prose) in SCORES.items():
        results = {"bits_code": {"bits_per_byte": {"value": code, "stderr": 0.1}}}
        results |= {"bits_prose": {"bits_per_byte": {"value": prose, "stderr": 0.1}}, "line": {"acc": {"value": code}}}
        path = root / "runs" / name / "eval/00000002/suite.json"
        manifest.write(path, "evaluate", {"recipe": {}, "step": 2, "results": results, "outputs": {}}, {})
    return root


def select(root, *names, **recipe):
    """Run the stage on some runs; return its exit code."""
    names = names or ("lr-a", "lr-b")
    argv = ["--models", *(str(milestone(root / "runs" / name, 2)) for name in names)]
    argv += ["--evaluations", *(str(root / "runs" / name / "eval/00000002/suite.json") for name in names)]
    recipe = {"metric": "bits_per_byte", "mode": "min"} | recipe
    return select_best.main([*argv, "--recipe", json.dumps(recipe), "--output", str(root / "sweeps/lr/best.json")])


def best(root):
    return manifest.read(root / "sweeps/lr/best.json").identity


def test_a_run_that_starts_from_the_best_equals_one_that_names_it(corpus, sweep):
    assert select(sweep) == 0
    assert best(sweep)["run"] == "lr-b"
    assert best(sweep)["scores"] == {"lr-a": pytest.approx(2.3), "lr-b": pytest.approx(2.2)}
    first = (sweep / "sweeps/lr/best.json").read_bytes()
    assert select(sweep) == 0 and (sweep / "sweeps/lr/best.json").read_bytes() == first
    found = {"named": milestone(sweep / "runs/lr-b", 2), "selected": sweep / "sweeps/lr/best.json"}
    for name, path in found.items():
        given = options(corpus, sweep / name, 2, recipe=RECIPE | {"initial": RESET}, steps=2)
        assert pretrain.main([*given, "--initial", str(path)]) == 0
    assert run_directory(sweep / "named").name == run_directory(sweep / "selected").name
    assert weights_of(sweep / "named", 2) == weights_of(sweep / "selected", 2)
    assert model_files.digest_of(found["named"], "") == model_files.digest_of(found["selected"], "")


@pytest.mark.parametrize(
    ("recipe", "run"),
    [({"mode": "max"}, "lr-a"), ({"task": "bits_code"}, "lr-b"), ({"metric": "acc", "mode": "max"}, "lr-a")],
)
def test_mode_task_and_metric_say_what_is_better(sweep, recipe, run):
    assert select(sweep, **recipe) == 0
    assert best(sweep)["run"] == run
    assert select_best.best_of({"b": 1.0, "a": 1.0, "c": 2.0}, "min") == "a", "of equal runs the first by name"


def test_an_unknown_metric_or_task_lists_the_known_ones_and_a_run_without_the_score_is_named(sweep, capsys):
    listed = "(bits_code bits_per_byte, bits_prose bits_per_byte, line acc)"
    for recipe, got in (({"metric": "bits"}, "bits"), ({"task": "line"}, "bits_per_byte of line")):
        assert select(sweep, **recipe) == 2
        expected = f"select_best: best must name a metric and task of the runs' scores {listed}, got {got}\n"
        assert capsys.readouterr().err == expected
    path = sweep / "runs/lr-d/eval/00000002/suite.json"
    results = {"bits_code": {"bits_per_byte": {"value": None}}}
    manifest.write(path, "evaluate", {"recipe": {}, "step": 2, "results": results, "outputs": {}}, {})
    assert select(sweep, "lr-a", "lr-d", task="bits_code") == 2
    expected = "compares bits_per_byte of bits_code, and run lr-d has no such score of suite/bits_code\n"
    assert capsys.readouterr().err.endswith(expected)

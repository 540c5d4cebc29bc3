"""The suites that are shipped: their keys are valid, and lm-evaluation-harness has their tasks."""

from pathlib import Path

import pytest
import yaml

from stages.evaluate import EvaluateRecipe
from stages.lib import recipe
from tools.check import known_tasks

SUITES = Path(__file__).resolve().parents[2] / "config/suites"


@pytest.mark.long  # the harness takes seconds to list its tasks
def test_shipped_suites_are_valid(tmp_path, monkeypatch):
    suites = {}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/core").mkdir(parents=True)  # which tools.core_tasks makes, see its tests
    for path in SUITES.glob("*.yaml"):
        for name, keys in yaml.safe_load(path.read_text(encoding="utf-8"))["suites"].items():
            suites[name] = recipe.load(EvaluateRecipe, keys, f"suites.{name}")
    assert {"benchmarks", "benchmarks-cheap"} <= suites.keys()
    known_tasks.check({name: (suite.tasks, None) for name, suite in suites.items() if name != "core"}, tmp_path)

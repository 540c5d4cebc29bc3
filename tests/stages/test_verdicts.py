"""Two models have one verdict, in summary.txt, card.html, the model card and tools.compare."""

import html
import re

import pytest

from stages import describe, summarize
from stages.lib import manifest
from tests.helpers import card_fixtures
from tests.helpers.card_fixtures import SUITE, words, write_list
from tests.helpers.summary_fixtures import rewrite
from tests.tools.test_compare import accuracy, run_compare, write_logs, write_run

BASE, TUNED = [1] * 20 + [0] * 20, [1] * 30 + [0] * 10
"""Answers of which ten became right: that is no chance, although the two errors alone do not tell."""


def write_tuned(root, tasks):
    """Write a run that was tuned from base; returns the options of describe."""
    options = card_fixtures.write_inputs(root, run="tuned", stage="finetune")
    base = manifest.read(root / "runs/base/models/00000300.json")
    model = rewrite(options["--model"][0], initial=manifest.checkpoint_digest(base), outputs={})
    export = rewrite(options["--export"][0], model=model.digest)
    scores = options["--evaluations"][0]
    outputs = write_logs(scores.parent, SUITE, tasks)
    results = {task: of_task for task, (of_task, _) in tasks.items()}
    rewrite(scores, export=export.digest, results=results, outputs=outputs, tokens=768)
    options["--lists"].append(write_list(root, "statements", {"kind": "python-statements"}))
    return options


@pytest.mark.parametrize(
    ("with_logs", "verdict", "rule"),
    [
        (True, "better", r"paired over 40 documents, p 0\.0\d\d"),
        (False, "not significant", r"2\.4 independent standard errors"),
    ],
)
def test_two_models_have_one_verdict_wherever_they_are_compared(tmp_path, capsys, with_logs, verdict, rule):
    tasks = [{"arc_easy": (scores, log if with_logs else None)} for scores, log in map(accuracy, (BASE, TUNED))]
    before = write_run(tmp_path, "base", tasks[0], suite=SUITE)
    options = write_tuned(tmp_path, tasks[1])
    assert describe.main(words(options, **{"--baselines": [before]})) == 0
    assert summarize.main(["--results", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run_compare(tmp_path, "base", "tuned") == 0
    texts = {
        "summary": (tmp_path / "so_far/summary.txt").read_text(),
        "page": html.unescape((tmp_path / "so_far/card.html").read_text()),
        "card": options["--export"][0].with_name("README.md").read_text(),
        "comparison": capsys.readouterr().out,
    }
    rules = {name: set(re.findall(r"paired over \d+ documents, p [\d.]+|[\d.]+ independent standard errors", text))
             for name, text in texts.items()}  # fmt: skip
    assert len(set.union(*rules.values())) == 1 and all(rules.values())
    assert re.fullmatch(rule, rules["summary"].pop())
    said = "is better than base" if with_logs else "is not significantly different from base"
    assert [f"tuned {said}" in texts[name] for name in ("summary", "page", "card")] == [True] * 3
    assert re.search(rf"\| \W*{verdict}\W* (?:{rule}) \|", texts["comparison"])


def test_a_log_that_was_deleted_leaves_the_summary_the_standard_errors(tmp_path):
    tasks = [{"arc_easy": accuracy(values)} for values in (BASE, TUNED)]
    write_run(tmp_path, "base", tasks[0], suite=SUITE)
    write_tuned(tmp_path, tasks[1])
    next(tmp_path.glob("runs/tuned/eval/*/*/samples/*")).unlink()
    assert summarize.main(["--results", str(tmp_path)]) == 0
    assert "(2.4 independent standard errors)" in (tmp_path / "so_far/summary.txt").read_text()

"""summarize: a tuned run beside the model before, with one verdict wherever two models are compared."""

import html
import json
import re

import pytest

from stages import describe, summarize
from stages.lib import manifest
from tests.helpers import card_fixtures
from tests.helpers.card_fixtures import SUITE, words, write_list
from tests.helpers.manifests import rewrite
from tests.helpers.summary_fixtures import EXPECT, MODEL, lines, options_of, refused, results
from tests.tools.test_compare import accuracy, run_compare, write_logs, write_run

__all__ = ["lines", "results"]

TUNED = {"seq_len": 64, "global_batch_size": 4}


@pytest.fixture
def tuned(results):
    """Options with a second run, tuned from the last milestone of the first, and with scores of both by one suite."""
    base = results / "runs" / "base"
    path = base / "models" / "00000300.json"
    at = "../train/0123456789abcdef/checkpoints/00000300"
    outputs = {f"{at}/{name}": {"bytes": 1, "sha256": name} for name in ("__0_0.distcp", "commit.json")}
    made = rewrite(path, checkpoint=at, outputs=outputs)
    export = rewrite(base / "export/00000300/manifest.json", model=made.digest)
    rewrite(base / "eval/00000300/validation.json", export=export.digest)
    write_scores(base, 300, export.path, 2.5, 0.28)
    run = results / "runs" / "tuned"
    model = run / "models" / "00000040.json"
    initial = manifest.digest_of({"__0_0.distcp": {"bytes": 1, "sha256": "__0_0.distcp"}})
    identity = {"recipe": TUNED | {"model": MODEL}, "tuned_on": {"statements": "d"}, "initial": initial}
    identity |= {"step": 40, "tokens": 10240}
    record = {"run_directory": "../train/fedcba9876543210", "code": "f1"}
    manifest.write(model, "finetune", identity | {"outputs": {}}, record)
    train = run / "train" / "fedcba9876543210"
    train.mkdir(parents=True)
    (train / "metrics.jsonl").write_text(json.dumps({"step": 40, "tokens": 10240, "loss": 3.0}) + "\n")
    export = run / "export" / "00000040" / "manifest.json"
    identity = {"recipe": {}, "model": manifest.read(model).digest, "step": 40, "outputs": {}}
    manifest.write(export, "convert", identity, {"parameters": 4_200_000})
    write_scores(run, 40, export, 2.1, 0.30)
    expect = json.loads(json.dumps(EXPECT))
    expect["runs"]["tuned"] = {
        "finetune": TUNED,
        "convert": {},
        "milestones": ["00000040"],
        "suites": {"pairs": {"tasks": ["completion_bits"]}},
        "initial": {"run": "base", "step": 300, "model": "base/models/00000300.json"},
    }
    argv = options_of(results, expect)
    for option, pattern in (("models", "models/*.json"), ("exports", "export/*/manifest.json")):
        argv.insert(argv.index(f"--{option}") + 1, str(next(run.glob(pattern))))
    for path in results.glob("runs/*/eval/*/pairs.json"):
        argv.insert(argv.index("--evaluations") + 1, str(path))
    return argv


def test_averaged_weights_are_refused_if_a_milestone_was_made_again(results, lines, capsys):
    base, mean = results / "runs/base/models", results / "runs/mean/models/00000300.json"
    one = manifest.read(base / "00000300.json")
    models = {step: manifest.read(base / f"{step}.json").digest for step in ("00000100", "00000300")}
    identity = {**one.identity, "models": models}
    identity["recipe"] = {**one.identity["recipe"], "average_weights": {"num_milestones": 2}}
    manifest.write(mean, "average_weights", identity, {**one.record, "code": ""})
    run = {"average_weights": {"num_milestones": 2}, "convert": {}, "milestones": [], "suites": {}}
    expect = {**EXPECT, "runs": {**EXPECT["runs"], "mean": run | {"initial": {"run": "base", "step": 300}}}}
    argv = options_of(results, expect)
    argv.insert(argv.index("--models") + 1, str(mean))
    assert summarize.main(argv) == 0
    assert "Run mean: 76,800 training tokens in 300 steps, the mean of the weights at the steps 100, 300" in (
        (results / "summary.txt").read_text()
    )
    rewrite(mean, models=models | {"00000100": "0"})
    refused(argv, capsys, "runs/mean/models/00000300.json is the mean of other weights than", "00000100.json has now")


def change_tuned(results, *, record=None, **keys):
    """Change the manifest of the tuned model, and link export and scores to it again; return its path."""
    run = results / "runs/tuned"
    model = rewrite(run / "models/00000040.json", record=record, **keys)
    export = rewrite(run / "export/00000040/manifest.json", model=model.digest)
    rewrite(run / "eval/00000040/pairs.json", export=export.digest)
    return model.path


def write_scores(run, step, export, bits, accuracy):
    scores = {
        "completion_bits": {"bits_per_byte": {"value": bits, "stderr": 0.03}},
        "completion_choice": {"acc_mutual_info": {"value": accuracy, "stderr": 0.02}},
    }
    identity = {"recipe": {"tasks": ["completion_bits"]}, "export": manifest.read(export).digest, "results": scores}
    identity |= {"step": step, "tokens": 256 * step, "outputs": {}}
    manifest.write(run / "eval" / f"{step:08d}" / "pairs.json", "evaluate", identity, {"code": "e1"})


def test_a_tuned_run_is_shown_beside_the_model_before_and_its_curve_begins_at_the_tokens_of_it(results, tuned, lines):
    assert summarize.main(tuned) == 0
    assert lines["tuned, training"] == [(76800 + 10240, 3.0)]
    assert lines["tuned, completion_bits"] == [(76800 + 10240, 2.1)]
    assert lines["base, completion_bits"] == [(76800, 2.5)]
    text = (results / "summary.txt").read_text()
    assert text.count("completion_bits") == text.count("completion_choice") == 2
    assert "Run tuned: 10,240 training tokens in 40 steps, fine-tuned from base at step 300, 4.2M parameters" in text
    for line in (
        "                           base 300        tuned 40",
        "  completion_bits    2.500 +- 0.030  2.100 +- 0.030",
        "  completion_choice  0.280 +- 0.020  0.300 +- 0.020",
        "  completion_bits: tuned is better than base by 0.400 (9.4 independent standard errors)",
        "  completion_choice: tuned is not significantly different from base: +0.020 (0.7 independent standard errors)",
    ):
        assert line in text.splitlines()


def test_text_tells_how_a_model_at_a_path_was_tuned_and_its_validation_loss(results, tuned):
    losses = {"chats": {"loss": 0.8787, "loss_bits_per_byte": 0.304}}
    record = {"initial": "models/CodeLlama-7b-hf", "validation": losses}
    recipe = TUNED | {"model": MODEL, "lora": {"rank": 8}}
    change_tuned(results, record=record, initial="0" * 64, recipe=recipe)
    tuned[tuned.index("--expect") + 1] = "{}"
    assert summarize.main(tuned) == 0
    text = (results / "summary.txt").read_text()
    assert "in 40 steps, fine-tuned from models/CodeLlama-7b-hf by LoRA of rank 8, 4.2M parameters" in text
    assert "  validation chats: loss 0.879\n" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": TUNED | {"seq_len": 32}}, ["models/00000040.json", "seq_len = 32", "64"]),
        (
            {"initial": "0" * 64},
            ["models/00000040.json", "was trained from another model than", "models/00000300.json"],
        ),
    ],
)
def test_a_tuned_model_of_another_recipe_or_model_is_refused(results, tuned, capsys, change, words):
    path = results / "runs/base/eval/00000300/pairs.json"  # the suite is compared with the scores before, too
    before = manifest.read(path).identity["recipe"]
    rewrite(path, recipe={"tasks": ["completion_choice"]})
    refused(tuned, capsys, str(path), "tasks")
    rewrite(path, recipe=before)
    path = change_tuned(results, **change)
    refused(tuned, capsys, *words, f"delete {path}")


def test_a_run_that_is_tuned_now_and_was_not_before_is_refused(results, capsys):
    expect = json.loads(json.dumps(EXPECT))
    expect["runs"]["base"]["finetune"] = expect["runs"]["base"].pop("pretrain")
    refused(options_of(results, expect), capsys, "was made by stages.pretrain, and the config names another stage")


BEFORE, AFTER = [1] * 20 + [0] * 20, [1] * 30 + [0] * 10
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
    tasks = [{"arc_easy": (scores, log if with_logs else None)} for scores, log in map(accuracy, (BEFORE, AFTER))]
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
    tasks = [{"arc_easy": accuracy(values)} for values in (BEFORE, AFTER)]
    write_run(tmp_path, "base", tasks[0], suite=SUITE)
    write_tuned(tmp_path, tasks[1])
    next(tmp_path.glob("runs/tuned/eval/*/*/samples/*")).unlink()
    assert summarize.main(["--results", str(tmp_path)]) == 0
    assert "(2.4 independent standard errors)" in (tmp_path / "so_far/summary.txt").read_text()

"""summarize: a tuned run beside the model before."""

import json

import pytest

from stages import summarize
from stages.lib import manifest
from tests.helpers.summary_fixtures import EXPECT, MODEL, lines, options_of, refused, results, write

__all__ = ["lines", "results"]

TUNED = {"seq_len": 64, "global_batch_size": 4}


@pytest.fixture
def tuned(results):
    """Options with a second run, tuned from the last milestone of the first, and with scores of both by one suite."""
    base = results / "runs" / "base"
    path = base / "models" / "00000300.json"
    identity = manifest.read(path).identity | {
        "checkpoint": "../train/0123456789abcdef/checkpoints/00000300",
        "outputs": {
            f"../train/0123456789abcdef/checkpoints/00000300/{name}": {"bytes": 1, "sha256": name}
            for name in ("__0_0.distcp", "commit.json")
        },
    }
    manifest.write(path, "pretrain", identity, manifest.read(path).record)
    export = base / "export" / "00000300" / "manifest.json"
    relink(export, "model", path)
    relink(base / "eval" / "00000300" / "validation.json", "export", export)
    write_scores(base, 300, export, 2.5, 0.28)
    run = results / "runs" / "tuned"
    model = run / "models" / "00000040.json"
    initial = manifest.digest_of({"__0_0.distcp": {"bytes": 1, "sha256": "__0_0.distcp"}})
    identity = {
        "recipe": TUNED | {"model": MODEL},
        "tuned_on": {"statements": "d"},
        "initial": initial,
        "step": 40,
        "tokens": 10240,
    }
    write(model, "finetune", identity | {"outputs": {}}, {"run_directory": "../train/fedcba9876543210", "code": "f1"})
    train = run / "train" / "fedcba9876543210"
    train.mkdir(parents=True)
    (train / "metrics.jsonl").write_text(json.dumps({"step": 40, "tokens": 10240, "loss": 3.0}) + "\n")
    export = run / "export" / "00000040" / "manifest.json"
    write(
        export,
        "convert",
        {"recipe": {}, "model": manifest.read(model).digest, "step": 40, "outputs": {}},
        {"parameters": 4_200_000},
    )
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


def relink(path, key, source):
    made = manifest.read(path)
    manifest.write(path, made.stage, made.identity | {key: manifest.read(source).digest}, made.record)


def write_scores(run, step, export, bits, accuracy):
    scores = {
        "completion_bits": {"bits_per_byte": {"value": bits, "stderr": 0.03}},
        "completion_choice": {"acc_mutual_info": {"value": accuracy, "stderr": 0.02}},
    }
    identity = {"recipe": {"tasks": ["completion_bits"]}, "export": manifest.read(export).digest, "results": scores}
    write(
        run / "eval" / f"{step:08d}" / "pairs.json",
        "evaluate",
        identity | {"step": step, "tokens": 256 * step, "outputs": {}},
        {"code": "e1"},
    )


def test_text_shows_a_tuned_run_beside_the_model_before(results, tuned):
    assert summarize.main(tuned) == 0
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
    path = results / "runs/tuned/models/00000040.json"
    made = manifest.read(path)
    identity = made.identity | {"initial": "0" * 64, "recipe": TUNED | {"model": MODEL, "lora": {"rank": 8}}}
    record = {
        "initial": "models/CodeLlama-7b-hf",
        "validation": {"chats": {"loss": 0.8787, "loss_bits_per_byte": 0.304}},
    }
    manifest.write(path, made.stage, identity, made.record | record)
    relink(results / "runs/tuned/export/00000040/manifest.json", "model", path)
    relink(results / "runs/tuned/eval/00000040/pairs.json", "export", path.parents[1] / "export/00000040/manifest.json")
    tuned[tuned.index("--expect") + 1] = "{}"
    assert summarize.main(tuned) == 0
    text = (results / "summary.txt").read_text()
    assert "in 40 steps, fine-tuned from models/CodeLlama-7b-hf by LoRA of rank 8, 4.2M parameters" in text
    assert "  validation chats: loss 0.879\n" in text


def test_curve_of_a_tuned_run_begins_at_the_tokens_of_its_initial_model(tuned, lines):
    assert summarize.main(tuned) == 0
    assert lines["tuned, training"] == [(76800 + 10240, 3.0)]
    assert lines["tuned, completion_bits"] == [(76800 + 10240, 2.1)]
    assert lines["base, completion_bits"] == [(76800, 2.5)]


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
    path = results / "runs/tuned/models/00000040.json"
    made = manifest.read(path)
    manifest.write(path, made.stage, made.identity | change, made.record)
    relink(results / "runs/tuned/export/00000040/manifest.json", "model", path)
    export = results / "runs/tuned/export/00000040/manifest.json"
    relink(results / "runs/tuned/eval/00000040/pairs.json", "export", export)
    refused(tuned, capsys, *words, f"delete {path}")


def test_suite_of_the_tuned_run_is_compared_with_the_scores_before_too(results, tuned, capsys):
    path = results / "runs/base/eval/00000300/pairs.json"
    made = manifest.read(path)
    manifest.write(path, made.stage, made.identity | {"recipe": {"tasks": ["completion_choice"]}}, made.record)
    refused(tuned, capsys, str(path), "tasks")


def test_a_run_that_is_tuned_now_and_was_not_before_is_refused(results, capsys):
    expect = json.loads(json.dumps(EXPECT))
    expect["runs"]["base"]["finetune"] = expect["runs"]["base"].pop("pretrain")
    refused(options_of(results, expect), capsys, "was made by stages.pretrain, and the config names another stage")

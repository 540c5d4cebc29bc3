"""summarize: the table, the figures and the summary's text, from manifests; stale ones are refused."""

import csv
import json

import pytest

from stages import summarize
from stages.lib import manifest
from stages.lib.report import figures
from tests.helpers.export_fixtures import argv_of

MODEL = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
PRETRAIN = {"model": MODEL, "weights": {"code": 1.0}, "seq_len": 64, "global_batch_size": 4, "optimizer": {"peak": 2}}
SUITE = {"tasks": ["bits_per_byte", "next_line"], "num_examples": 64}
EXPECT = {
    "runs": {
        "base": {
            # identities, as the workflow gives them: no defaults
            "pretrain": {"model": MODEL, "weights": {"code": 1}, "seq_len": 64, "global_batch_size": 4},
            "convert": {},
            "milestones": ["00000100", "00000300"],
            "steps": 300,
            "suites": {"validation": SUITE},
        }
    },
    "code": {"pretrain": "p1", "convert": "c1", "evaluate": "e1"},
}


@pytest.fixture
def results(tmp_path):
    """A run of two milestones, converted and scored."""
    root = tmp_path / "results"
    run = root / "runs" / "base"
    curve = []
    for step in range(10, 310, 10):
        curve.append({"step": step, "tokens": step * 256, "loss": 8 - step / 100, "tokens_per_second": 1000.0})
    curve.append({"step": 300, "tokens": 76800, "validation": {"code": {"loss": 5.2, "bits_per_byte": 2.5}}})
    train = run / "train" / "0123456789abcdef"
    train.mkdir(parents=True)
    (train / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in curve))
    for step, bits, accuracy in ((100, 3.0, 0.35), (300, 2.5, 0.45)):
        write_milestone(run, step, bits, accuracy)
    return root


def write_milestone(run, step, bits, accuracy):
    recipe = {key: value for key, value in PRETRAIN.items() if key != "optimizer"}
    models = run / "models" / f"{step:08d}.json"
    identity = {"recipe": recipe, "step": step, "tokens": step * 256, "outputs": {}}
    write(
        models,
        "pretrain",
        identity,
        {"run_directory": "../train/0123456789abcdef", "horizon": {"steps": 300}, "code": "p1"},
    )
    export = run / "export" / f"{step:08d}" / "manifest.json"
    identity = {"recipe": {}, "model": manifest.read(models).digest, "step": step, "tokens": step * 256, "outputs": {}}
    write(export, "convert", identity, {"parameters": 4_200_000, "vocab_size": 4096, "code": "c1"})
    scores = {
        "next_line": {"acc_mutual_info": {"value": accuracy, "stderr": 0.03, "n": 64}},
        "bits_per_byte_code": {"bits_per_byte": {"value": bits, "stderr": None}},
    }
    identity = {"recipe": SUITE, "suite": "validation", "export": manifest.read(export).digest, "step": step}
    identity |= {"tokens": step * 256, "results": scores, "outputs": {}}
    write(run / "eval" / f"{step:08d}" / "validation.json", "evaluate", identity, {"code": "e1"})


def write(path, stage, identity, record):
    path.parent.mkdir(parents=True, exist_ok=True)
    manifest.write(path, stage, identity, record)


def options_of(root, expect=EXPECT):
    run = root / "runs" / "base"
    steps = [f"{step:08d}" for step in (100, 300)]
    argv = ["--models", *(run / "models" / f"{step}.json" for step in steps)]
    argv += ["--exports", *(run / "export" / step / "manifest.json" for step in steps)]
    argv += ["--evaluations", *(run / "eval" / step / "validation.json" for step in steps)]
    more = {"--scores": root / "scores.csv", "--figures": root / "figures", "--output": root / "summary.json"}
    return [str(word) for word in argv] + argv_of(more, **{"--expect": json.dumps(expect)})


def test_the_table_has_all_scores_in_order(results):
    assert summarize.main(options_of(results)) == 0
    rows = list(csv.reader((results / "scores.csv").read_text().splitlines()))
    assert rows == [
        [
            *("run", "step", "tokens", "task", "metric", "value", "stderr", "n"),
            *("contaminated", "clean", "clean_stderr", "clean_n"),
        ],
        ["base", "100", "25600", "bits_per_byte_code", "bits_per_byte", "3.0", "", "", "", "", "", ""],
        ["base", "100", "25600", "next_line", "acc_mutual_info", "0.35", "0.03", "64", "", "", "", ""],
        ["base", "300", "76800", "bits_per_byte_code", "bits_per_byte", "2.5", "", "", "", "", "", ""],
        ["base", "300", "76800", "next_line", "acc_mutual_info", "0.45", "0.03", "64", "", "", "", ""],
    ]


def test_text_names_runs_scores_and_paths(results):
    summarize.main(options_of(results))
    text = (results / "summary.txt").read_text()
    for words in (
        "76,800 training tokens in 300 steps, 4.2 M parameters, a vocabulary of 4,096 tokens",
        str(results / "runs/base/export/00000300"),
        "bits_per_byte_code fell from 3.000 to 2.500",
        "0.450 +- 0.030, 6.7 standard errors above chance (0.25)",
        f"See {results / 'card.html'}, {results / 'scores.csv'}, {results / 'figures'}",
    ):
        assert words in text
    assert "Missing" not in text


@pytest.mark.parametrize(
    "place", ["models/00000300.json", "export/00000300/manifest.json", "eval/00000300/validation.json"]
)
def test_an_edited_count_or_score_is_refused(results, capsys, place):
    path = results / "runs/base" / place
    path.write_text(path.read_text().replace("76800", "76801").replace("2.5", "2.4"))
    assert summarize.main(options_of(results)) == 2
    assert f"summarize: {path} changed since it was written" in capsys.readouterr().err
    assert not (results / "scores.csv").exists()


def test_scores_that_are_not_those_that_evaluate_kept_are_refused(results, capsys):
    path = results / "runs/base/eval/00000300/validation.json"
    made = manifest.read(path)
    kept = path.with_suffix("") / "manifest.json"
    write(kept, made.stage, made.identity, made.record | {"host": "another"})
    assert summarize.main(options_of(results)) == 0
    scores = made.identity["results"] | {"next_line": {"acc_mutual_info": {"value": 0.9, "stderr": 0.03}}}
    write(path, made.stage, made.identity | {"results": scores}, made.record)
    assert summarize.main(options_of(results)) == 2
    expected = f"summarize: {path} has other scores than {kept}; delete {path} and run the workflow again\n"
    assert capsys.readouterr().err.endswith(expected)


def test_figures_are_the_same_bytes_twice(results):
    summarize.main(options_of(results))
    names = ["accuracy.svg", "bits_per_byte.svg", "loss.svg"]
    first = {path.name: path.read_bytes() for path in (results / "figures").iterdir()}
    summarize.main(options_of(results))
    assert sorted(first) == names
    assert first == {path.name: path.read_bytes() for path in (results / "figures").iterdir()}
    assert b"base, validation code" in first["loss.svg"]
    assert b"chance (0.25)" in first["accuracy.svg"]


def test_a_missing_branch_is_listed(results, capsys):
    (results / "runs/base/eval/00000300/validation.json").unlink()
    (results / "runs/base/export/00000300/manifest.json").unlink()
    assert summarize.main(options_of(results)) == 0
    text = (results / "summary.txt").read_text()
    assert "runs/base/eval/00000300/validation.json" in text
    assert "runs/base/export/00000300/manifest.json" in text
    assert manifest.read(results / "summary.json").identity["missing"]
    assert len((results / "scores.csv").read_text().splitlines()) == 3


def test_expected_milestone_without_a_path_is_listed(results):
    expect = {**EXPECT, "runs": {"base": {**EXPECT["runs"]["base"], "milestones": ["00000100", "00000600"]}}}
    assert summarize.main(options_of(results, expect)) == 0
    assert "base/models/00000600.json" in (results / "summary.txt").read_text()


def test_report_without_results(tmp_path):
    more = {
        "--scores": tmp_path / "scores.csv",
        "--figures": tmp_path / "figures",
        "--output": tmp_path / "summary.json",
    }
    assert summarize.main(argv_of(more)) == 0
    assert "There are no results yet." in (tmp_path / "summary.txt").read_text()
    assert b"no results yet" in (tmp_path / "figures" / "loss.svg").read_bytes()


def test_missing_metrics_leave_out_only_the_curve(results, capsys):
    (results / "runs/base/train/0123456789abcdef/metrics.jsonl").unlink()
    assert summarize.main(options_of(results)) == 0
    assert "metrics.jsonl" in capsys.readouterr().err


def test_later_entry_of_a_repeated_step_counts(results):
    path = results / "runs/base/train/0123456789abcdef/metrics.jsonl"
    first = path.read_text()
    summarize.main(options_of(results))
    drawn = (results / "figures" / "loss.svg").read_bytes()
    path.write_text(json.dumps({"step": 10, "tokens": 2560, "loss": 99.0}) + "\n" + first + '{"step": 310, "los')
    summarize.main(options_of(results))
    assert (results / "figures" / "loss.svg").read_bytes() == drawn


@pytest.fixture
def lines(monkeypatch):
    """The lines of all figures after `summarize.main`: {label: [(tokens, value), ...]}."""
    drawn = {}

    def draw(path, title, y_label, lines, chance_levels=()):
        drawn.update({line.label: [point[:2] for point in line.points] for line in lines})
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")

    monkeypatch.setattr(figures, "draw", draw)
    return drawn


def append(results, name, *entries):
    """Append JSON lines to a file of the run directory; returns its path."""
    path = results / f"runs/base/train/0123456789abcdef/{name}.jsonl"
    with open(path, "a") as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def entry_of(step, loss, samples=0, **more):
    facts = {"step": step, "tokens": step * 256, "loss": loss, "samples": [samples, samples + 4], "time": step}
    return facts | more


def test_skipped_steps_have_no_point_in_the_curve(results, lines):
    append(results, "metrics", entry_of(310, None, skipped=True), entry_of(320, 99.0, skipped=True), entry_of(330, 4.5))
    assert summarize.main(options_of(results)) == 0
    assert [tokens // 256 for tokens, _ in lines["base, training"]] == [*range(10, 310, 10), 330]
    assert lines["base, training"][-1] == (330 * 256, 4.5)


def test_curve_after_a_kill_and_a_rollback_has_the_last_entry_of_each_step(results, lines):
    killed = [entry_of(step, 4.0, step) for step in (310, 320)]
    again = [entry_of(310, 3.9, 310), {**entry_of(320, None, 320), "skipped": True}]
    scores = {"code": {"loss": 99.0, "bits_per_byte": 50.0}}
    append(results, "metrics", *killed, *again, {"step": 320, "tokens": 320 * 256, "validation": scores, "time": 320})
    append(results, "events", {"event": "rollback", "step": 300, "left": 320, "samples": [302, 324], "time": 325})
    append(results, "metrics", entry_of(310, 3.8, 324, time=330))
    assert summarize.main(options_of(results)) == 0
    curve = lines["base, training"]
    assert [tokens for tokens, _ in curve] == sorted({tokens for tokens, _ in curve})
    assert curve[-2:] == [(300 * 256, 5.0), (310 * 256, 3.8)]
    assert lines["base, validation code"] == [(76800, 5.2)]


def test_step_that_was_bad_when_it_was_taken_again_loses_its_point(results, lines):
    append(results, "metrics", entry_of(310, 4.0), entry_of(310, None, skipped=True))
    assert summarize.main(options_of(results)) == 0
    assert lines["base, training"][-1][0] == 300 * 256


@pytest.mark.parametrize(("share", "warned"), [(0.07, False), (0.05, True)])
def test_text_warns_of_experts_without_work(results, share, warned):
    loads = [[[0.4, 0.1, 0.25, 0.25], [share + change, 0.5 - share - change, 0.25, 0.25]] for change in (-0.02, 0.02)]
    append(results, "metrics", *(entry_of(310 + n, 4.0, expert_load=load) for n, load in enumerate(loads)))
    assert summarize.main(options_of(results)) == 0
    sentence = "less than 0.25 of an equal share of the tokens in the last 2 steps, expert 0 of layer 1 0.20"
    assert (sentence in (results / "summary.txt").read_text()) == warned


def test_text_lists_skipped_steps_rollbacks_and_hangs(results):
    skip = {"event": "skip", "step": 20, "samples": [76, 80], "time": 0}
    rollback = {"event": "rollback", "step": 10, "samples": [40, 80], "time": 0}
    hang = {"event": "hang", "step": 30, "time": 0, "stamp": "1", "seconds": 9, "rank": 0, "host": "node1"}
    path = append(results, "events", skip, rollback, hang)
    assert summarize.main(options_of(results)) == 0
    text = (results / "summary.txt").read_text()
    assert f"  run base: 1 step skipped, 1 rollback, 1 hang; see {path}\n" in text
    path.write_text("")
    summarize.main(options_of(results))
    assert "Warnings:" not in (results / "summary.txt").read_text()


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (["pretrain", "seq_len"], 128, ["models/00000100.json", "seq_len = 64", "128"]),
        (["pretrain", "model", "hidden_size"], 16, ["models/00000100.json", "model.hidden_size = 8", "16"]),
        (["pretrain", "weights", "code"], 3, ["models/00000100.json", "weights.code = 1.0", "3"]),
        (["pretrain", "optimizer"], {"weight_decay": "0.7"}, ["models/00000100.json", "optimizer", "0.7"]),
        (["convert", "dtype"], "float32", ["export/00000100/manifest.json", "dtype = its default", "float32"]),
        (["suites", "validation", "num_examples"], 99, ["eval/00000100/validation.json", "num_examples = 64", "99"]),
    ],
)
def test_a_result_of_another_recipe_is_refused(results, capsys, keys, value, words):
    expect = json.loads(json.dumps(EXPECT))
    inner = expect["runs"]["base"]
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    refused(options_of(results, expect), capsys, *words, "delete", "run the workflow again")
    assert not (results / "scores.csv").exists()


def refused(argv, capsys, *words):
    """Check that the stage exits with 2 and its last line has all the words."""
    assert summarize.main(argv) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    for word in words:
        assert word in line


def test_shape_of_a_config_json_is_compared_as_the_manifest_holds_it(results, tmp_path):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4096, "rms_norm_eps": 1e-5}
    config |= {"max_position_embeddings": 4096, **MODEL, "num_attention_heads": 4, "num_key_value_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expect = json.loads(json.dumps(EXPECT))
    expect["runs"]["base"]["pretrain"]["model"] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    expect["runs"]["base"]["model_config"] = str(tmp_path)
    for path in (results / "runs/base/models").glob("*.json"):
        made = manifest.read(path)
        model = made.identity["recipe"]["model"] | {"num_key_value_heads": 2}
        manifest.write(
            path, made.stage, made.identity | {"recipe": made.identity["recipe"] | {"model": model}}, made.record
        )
        export = results / f"runs/base/export/{path.stem}/manifest.json"
        exported = manifest.read(export)
        manifest.write(
            export, exported.stage, exported.identity | {"model": manifest.read(path).digest}, exported.record
        )
        scores = results / f"runs/base/eval/{path.stem}/validation.json"
        scored = manifest.read(scores)
        manifest.write(scores, scored.stage, scored.identity | {"export": manifest.read(export).digest}, scored.record)
    assert summarize.main(options_of(results, expect)) == 0


def test_an_export_of_another_model_is_refused(results, capsys):
    path = results / "runs/base/export/00000300/manifest.json"
    made = manifest.read(path)
    manifest.write(path, made.stage, {**made.identity, "model": "0" * 64}, made.record)
    refused(options_of(results), capsys, str(path), "another model", f"delete {path}")


def test_an_evaluation_of_another_export_is_refused(results, capsys):
    path = results / "runs/base/eval/00000300/validation.json"
    made = manifest.read(path)
    manifest.write(path, made.stage, {**made.identity, "export": "0" * 64}, made.record)
    refused(options_of(results), capsys, str(path), "another export")


def test_another_version_of_the_code_is_a_warning(results, capsys):
    expect = {**EXPECT, "code": {**EXPECT["code"], "pretrain": "p2"}}
    assert summarize.main(options_of(results, expect)) == 0
    assert "another version of stages.pretrain" in capsys.readouterr().err


def test_a_task_of_two_suites_is_named_by_its_suite(results):
    path = results / "runs/base/eval/00000300/validation.json"
    made = manifest.read(path)
    manifest.write(path.with_name("more.json"), made.stage, {**made.identity, "suite": "more"}, made.record)
    argv = options_of(results, {})
    argv.insert(argv.index("--evaluations") + 1, str(path.with_name("more.json")))
    assert summarize.main(argv) == 0
    tasks = {
        row["task"] for row in csv.DictReader((results / "scores.csv").read_text().splitlines()) if row["step"] == "300"
    }
    assert {"validation/next_line", "more/next_line"} <= tasks


def test_expect_that_is_not_json_is_refused(results, capsys):
    argv = options_of(results)
    argv[-1] = "{runs"
    refused(argv, capsys, "--expect", "JSON")


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
    assert "Run tuned: 10,240 training tokens in 40 steps, fine-tuned from base at step 300, 4.2 M parameters" in text
    for line in (
        "                             base 300          tuned 40",
        "  completion_bits      2.500 +- 0.030    2.100 +- 0.030",
        "  completion_choice    0.280 +- 0.020    0.300 +- 0.020",
        "  completion_bits is better than before tuning, by 9.4 standard errors",
        "  completion_choice did not change significantly: 0.7 standard errors better than before tuning",
    ):
        assert line in text.splitlines()


def test_text_tells_how_a_model_at_a_path_was_tuned_and_its_validation_loss(results, tuned):
    path = results / "runs/tuned/models/00000040.json"
    made = manifest.read(path)
    identity = made.identity | {"initial": "0" * 64, "recipe": TUNED | {"model": MODEL, "lora": {"rank": 8}}}
    record = {"initial": "models/CodeLlama-7b-hf", "validation": {"chats": {"loss": 0.8787, "bits_per_byte": 0.304}}}
    manifest.write(path, made.stage, identity, made.record | record)
    relink(results / "runs/tuned/export/00000040/manifest.json", "model", path)
    relink(results / "runs/tuned/eval/00000040/pairs.json", "export", path.parents[1] / "export/00000040/manifest.json")
    tuned[tuned.index("--expect") + 1] = "{}"
    assert summarize.main(tuned) == 0
    text = (results / "summary.txt").read_text()
    assert "in 40 steps, fine-tuned from models/CodeLlama-7b-hf by LoRA of rank 8, 4.2 M parameters" in text
    assert "  validation chats: loss 0.879\n" in text


def test_worse_score_is_called_worse(results, tuned):
    write_scores(results / "runs" / "tuned", 40, results / "runs/tuned/export/00000040/manifest.json", 2.7, 0.24)
    assert summarize.main(tuned) == 0
    text = (results / "summary.txt").read_text()
    assert "completion_bits is worse than before tuning, by 4.7 standard errors" in text
    assert "completion_choice did not change significantly: 1.4 standard errors worse than before tuning" in text


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


def write_references(root):
    """Write a baseline's scores, and trivial readers into the run's; returns the baseline's manifest."""
    for step in (100, 300):
        path = root / "runs" / "base" / "eval" / f"{step:08d}" / "validation.json"
        made = manifest.read(path)
        readers = {
            "indent": {"value": 0.427, "stderr": 0.02, "n": 64},
            "first": {"value": 0.25, "stderr": 0.05, "n": 64},
        }
        trivial = {"next_line": readers}
        manifest.write(path, "evaluate", made.identity | {"corpus": "c", "trivial": trivial}, made.record)
    scores = {
        "next_line": {"acc_mutual_info": {"value": 0.6, "stderr": 0.03, "n": 64}},
        "bits_per_byte_code": {"bits_per_byte": {"value": 2.25, "stderr": 0.1, "n": 20}},
    }
    identity = {
        "recipe": SUITE,
        "suite": "validation",
        "baseline": "b",
        "corpus": "c",
        "results": scores,
        "outputs": {},
    }
    path = root / "baselines" / "big" / "main" / "validation.json"
    write(path, "evaluate", identity, {"code": "e1"})
    return path


def test_baselines_and_trivial_readers_stand_beside_the_scores(results):
    argv = [*options_of(results), "--baselines", str(write_references(results))]
    assert summarize.main(argv) == 0
    text = (results / "summary.txt").read_text()
    assert "baseline big      2.250 +- 0.100    0.600 +- 0.030\n" in text
    assert "    the best rule without a model reaches less: indent 0.427\n" in text
    with open(results / "scores.csv", newline="") as file:
        rows = {(row["run"], row["task"]): row for row in csv.DictReader(file)}
    assert rows["baseline big", "next_line"]["value"] == "0.6"
    assert rows["trivial first", "next_line"] | {"n": "64"} == rows["trivial first", "next_line"]
    assert rows["trivial first", "next_line"]["step"] == ""
    figure = (results / "figures" / "accuracy.svg").read_text()
    assert "baseline big, next_line" in figure
    assert "trivial indent, next_line" in figure
    assert "trivial first" not in figure


def test_rules_that_reach_a_score_are_named(results):
    argv = [*options_of(results), "--baselines", str(write_references(results))]
    path = results / "runs" / "base" / "eval" / "00000300" / "validation.json"
    made = manifest.read(path)
    made.identity["results"]["next_line"]["acc_mutual_info"]["value"] = 0.4
    manifest.write(path, "evaluate", made.identity, made.record)
    assert summarize.main(argv) == 0
    assert "    rules without a model reach as much: indent 0.427\n" in (results / "summary.txt").read_text()


def test_a_baseline_of_another_suite_is_refused(results, capsys):
    path = write_references(results)
    made = manifest.read(path)
    manifest.write(path, "evaluate", made.identity | {"recipe": SUITE | {"num_examples": 8}}, made.record)
    assert summarize.main([*options_of(results), "--baselines", str(path)]) == 2
    assert f"{path} was made with num_examples = 8, and the config has 64" in capsys.readouterr().err

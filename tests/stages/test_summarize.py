"""summarize: the table, the figures, the curves and the summary's text, from manifests; stale ones are refused."""

import csv
import json
import re
import shutil

import pytest

from stages import summarize
from stages.lib import manifest
from tests.helpers.manifests import rewrite
from tests.helpers.summary_fixtures import EXPECT, MODEL, SUITE, lines, options_of, refused, results

__all__ = ["lines", "results"]

AVERAGED = {**EXPECT, "runs": {"base": {**EXPECT["runs"]["base"], "average": 2}}}


def test_the_table_has_all_scores_in_order_and_the_text_names_runs_scores_and_paths(results, lines):
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
    text = (results / "summary.txt").read_text()
    for words in (
        "76,800 training tokens in 300 steps, 4.2M parameters, a vocabulary of 4,096 tokens",
        str(results / "runs/base/export/00000300"),
        "bits_per_byte_code fell from 3.000 to 2.500",
        "0.450 +- 0.030, 6.7 standard errors above chance (0.25)",
        f"See {results / 'card.html'}, {results / 'scores.csv'}, {results / 'figures'}",
    ):
        assert words in text
    assert "Missing" not in text


AVERAGED = {**EXPECT, "runs": {"base": {**EXPECT["runs"]["base"], "average": 2}}}


def rows_of(results):
    """The rows of the table of scores."""
    return [*csv.DictReader((results / "scores.csv").read_text().splitlines())]


def test_tables_have_the_means_over_the_last_milestones_and_the_csv_has_both(results, lines):
    assert summarize.main(options_of(results, AVERAGED)) == 0
    rows = [(row["run"], row["step"], row["metric"], row["value"], row["stderr"]) for row in rows_of(results)]
    assert rows[2:] == [
        ("base", "300", "bits_per_byte", "2.5", ""),
        ("base", "300", "acc_mutual_info", "0.45", "0.03"),
        ("averaged base", "", "bits_per_byte", "2.75", ""),
        ("averaged base", "", "acc_mutual_info", "0.4", "0.03"),
    ]
    text = (results / "summary.txt").read_text()
    assert re.search(r"300 +76,800 +2.500 +0.450 .*\n +mean of 2 +2.750 +0.400", text)
    assert "bits_per_byte_code fell from 3.000 to 2.500" in text
    assert re.search(r"mean of 2, next_line .*accuracy 0.400 \+- 0.030, 5.0 standard errors above chance", text)
    assert "means of 2 milestones" in (results / "card.html").read_text()


def test_a_run_with_too_few_scored_milestones_is_not_averaged_and_a_warning_says_so(results, lines, capsys):
    (results / "runs/base/eval/00000100/validation.json").unlink()
    assert summarize.main(options_of(results, AVERAGED)) == 0
    text = (results / "summary.txt").read_text()
    sentence = (
        "run base is not averaged at step 300: the suite validation must have scores of 2 milestones up to there, and "
        "has 300"
    )
    assert f"Warnings:\n  {sentence}\n" in text
    assert "mean of" not in text


def test_a_score_that_is_not_finite_at_a_milestone_has_no_mean(results, lines):
    path = results / "runs/base/eval/00000100/validation.json"
    scores = manifest.read(path).identity["results"] | {
        "next_line": {"acc_mutual_info": {"value": None, "stderr": None}}
    }
    rewrite(path, results=scores)
    assert summarize.main(options_of(results, AVERAGED)) == 0
    text = (results / "summary.txt").read_text()
    assert re.search(r"300 +76,800 +2.500 +0.450 .*\n +mean of 2 +2.750 +-\n", text)
    assert "  next_line (" in text and "mean of 2, next_line" not in text


def test_scores_of_a_suite_of_a_tuned_run_do_not_hinder_the_means_of_the_others(results, lines):
    evaluation = results / "runs/base/eval/00000300/validation.json"
    other = shutil.copyfile(evaluation, evaluation.with_name("statements.json"))
    rewrite(other, suite="statements", results={"completion_bits": {"bits_per_byte": {"value": 3.5, "stderr": None}}})
    argv = options_of(results, AVERAGED)
    argv.insert(argv.index("--evaluations") + 1, str(other))
    assert summarize.main(argv) == 0
    text = (results / "summary.txt").read_text()
    assert re.search(r"mean of 2 +2.750 +0.400", text) and "Warnings" not in text


def test_a_milestone_that_is_expected_is_missing_though_that_of_a_run_with_a_longer_name_is_too(results, lines):
    of_base = EXPECT["runs"]["base"]
    expect = {"runs": {"base": of_base | {"milestones": [*of_base["milestones"], "00000500"]}}}
    argv = options_of(results, expect)
    argv.insert(argv.index("--exports"), str(results / "runs/mybase/models/00000500.json"))
    assert summarize.main(argv) == 0
    missing = manifest.read(results / "summary.json").identity["missing"]
    assert str(results / "runs/mybase/models/00000500.json") in missing and "base/models/00000500.json" in missing


def test_scores_that_are_not_those_that_evaluate_kept_are_refused(results, lines, capsys):
    path = results / "runs/base/eval/00000300/validation.json"
    made = manifest.read(path)
    kept = path.with_suffix("") / "manifest.json"
    manifest.write(kept, made.stage, made.identity, made.record | {"host": "another"})
    assert summarize.main(options_of(results)) == 0
    scores = made.identity["results"] | {"next_line": {"acc_mutual_info": {"value": 0.9, "stderr": 0.03}}}
    manifest.write(path, made.stage, made.identity | {"results": scores}, made.record)
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


def test_a_missing_branch_is_listed_and_another_version_of_the_code_is_a_warning(results, lines, capsys):
    (results / "runs/base/eval/00000300/validation.json").unlink()
    (results / "runs/base/export/00000300/manifest.json").unlink()
    expect = {**EXPECT, "code": {**EXPECT["code"], "pretrain": "p2"}}
    assert summarize.main(options_of(results, expect)) == 0
    assert "another version of stages.pretrain" in capsys.readouterr().err
    text = (results / "summary.txt").read_text()
    assert "runs/base/eval/00000300/validation.json" in text
    assert "runs/base/export/00000300/manifest.json" in text
    assert manifest.read(results / "summary.json").identity["missing"]
    assert len((results / "scores.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (["pretrain", "model", "hidden_size"], 16, ["models/00000100.json", "model.hidden_size = 8", "16"]),
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


@pytest.mark.parametrize(
    ("place", "key"), [("export/00000300/manifest.json", "model"), ("eval/00000300/validation.json", "export")]
)
def test_results_of_another_model_or_export_and_edited_ones_are_refused(results, capsys, place, key):
    path = results / "runs/base" / place
    rewrite(path, **{key: "0" * 64})
    refused(options_of(results), capsys, str(path), f"another {key}", f"delete {path}")
    path.write_text(path.read_text().replace("76800", "76801"))
    refused(options_of(results), capsys, f"summarize: {path} changed since it was written")
    assert not (results / "scores.csv").exists()


def test_shape_of_a_config_json_is_compared_as_the_manifest_holds_it(results, lines, tmp_path):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4096, "rms_norm_eps": 1e-5}
    config |= {"max_position_embeddings": 4096, **MODEL, "num_attention_heads": 4, "num_key_value_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expect = json.loads(json.dumps(EXPECT))
    expect["runs"]["base"]["pretrain"]["model"] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    expect["runs"]["base"]["model_config"] = str(tmp_path)
    for path in (results / "runs/base/models").glob("*.json"):
        recipe = manifest.read(path).identity["recipe"]
        model = rewrite(path, recipe=recipe | {"model": recipe["model"] | {"num_key_value_heads": 2}})
        export = rewrite(results / f"runs/base/export/{path.stem}/manifest.json", model=model.digest)
        rewrite(results / f"runs/base/eval/{path.stem}/validation.json", export=export.digest)
    assert summarize.main(options_of(results, expect)) == 0


def test_a_task_of_two_suites_is_named_by_its_suite(results, lines):
    path = results / "runs/base/eval/00000300/validation.json"
    more = shutil.copyfile(path, path.with_name("more.json"))
    rewrite(more, suite="more")
    argv = options_of(results, {})
    argv.insert(argv.index("--evaluations") + 1, str(more))
    assert summarize.main(argv) == 0
    tasks = {row["task"] for row in rows_of(results) if row["step"] == "300"}
    assert {"validation/next_line", "more/next_line"} <= tasks


def test_baselines_of_the_suite_and_trivial_readers_stand_beside_the_scores(results, capsys):
    readers = {"indent": {"value": 0.427, "stderr": 0.02, "n": 64}, "first": {"value": 0.25, "stderr": 0.05, "n": 64}}
    for step in (100, 300):
        rewrite(results / f"runs/base/eval/{step:08d}/validation.json", corpus="c", trivial={"next_line": readers})
    scores = {"next_line": {"acc_mutual_info": {"value": 0.6, "stderr": 0.03, "n": 64}}}
    scores |= {"bits_per_byte_code": {"bits_per_byte": {"value": 2.25, "stderr": 0.1, "n": 20}}}
    identity = {"recipe": SUITE, "suite": "validation", "baseline": "b", "corpus": "c", "results": scores}
    baseline = results / "baselines/big/main/validation.json"
    manifest.write(baseline, "evaluate", identity | {"outputs": {}}, {"code": "e1"})
    argv = [*options_of(results), "--baselines", str(baseline)]
    assert summarize.main(argv) == 0
    text = (results / "summary.txt").read_text()
    assert re.search(r"baseline big +2.250 \+- 0.100  0.600 \+- 0.030\n", text)
    assert "    the best trivial baseline does worse: indent 0.427\n" in text
    rows = {(row["run"], row["task"]): row for row in rows_of(results)}
    assert rows["baseline big", "next_line"]["value"] == "0.6"
    assert rows["trivial first", "next_line"] | {"n": "64"} == rows["trivial first", "next_line"]
    assert rows["trivial first", "next_line"]["step"] == ""
    figure = (results / "figures" / "accuracy.svg").read_text()
    assert "baseline big, next_line" in figure
    assert "trivial indent, next_line" in figure
    assert "trivial first" not in figure

    path = results / "runs/base/eval/00000300/validation.json"
    rewrite(path, results={"next_line": {"acc_mutual_info": {"value": 0.4, "stderr": 0.03, "n": 64}}})
    assert summarize.main(argv) == 0
    assert "    trivial baselines that do at least as well: indent 0.427\n" in (results / "summary.txt").read_text()
    rewrite(baseline, recipe=SUITE | {"num_examples": 8})
    refused(argv, capsys, f"{baseline} was made with num_examples = 8, and the config has 64")


@pytest.mark.parametrize(
    ("value", "words"), [(0.25, "worse by 0.150"), (0.35, "not clearly worse, so the questions may")]
)
def test_scores_with_exchanged_contexts_stand_beside_those_of_the_run(results, value, words):
    path = results / "runs" / "base" / "eval" / "00000300" / "validation.json"
    scores = {"acc_mutual_info": {"value": 0.4, "stderr": 0.03, "n": 64}, "bpb": {"value": 1.5, "stderr": 0.1, "n": 64}}
    control = {"acc_mutual_info": {"value": value, "stderr": 0.03, "n": 64}}
    rewrite(path, results={"next_line": scores}, exchanged_contexts={"next_line": control})
    assert summarize.main(options_of(results)) == 0
    text = (results / "summary.txt").read_text()
    assert f"    with the contexts of other questions {value:.3f}: {words}" in text
    cells = re.sub(r"(<[^>]*>|\s)+", "", (results / "card.html").read_text())
    assert f"base,contextsexchanged-{value:.3f}" in cells
    assert "next_line,bpb\u2193" in cells
    rows = {(row["run"], row["task"], row["metric"]): row["value"] for row in rows_of(results)}
    assert rows["exchanged base", "next_line", "acc_mutual_info"] == str(value)


def append(results, name, *entries):
    """Append JSON lines to a file of the run directory; returns its path."""
    path = results / f"runs/base/train/0123456789abcdef/{name}.jsonl"
    with open(path, "a") as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def entry_of(step, loss, samples=0, **more):
    facts = {"step": step, "tokens": step * 256, "loss": loss, "samples": [samples, samples + 4], "time": step}
    return facts | more


def test_missing_metrics_leave_out_only_the_curve(results, lines, capsys):
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


def test_skipped_steps_have_no_point_in_the_curve(results, lines):
    append(results, "metrics", entry_of(310, None, skipped=True), entry_of(320, 99.0, skipped=True), entry_of(330, 4.5))
    assert summarize.main(options_of(results)) == 0
    assert [tokens // 256 for tokens, _ in lines["base, training"]] == [*range(10, 310, 10), 330]
    assert lines["base, training"][-1] == (330 * 256, 4.5)


def test_curve_after_a_kill_and_a_rollback_has_the_last_entry_of_each_step(results, lines):
    killed = [entry_of(step, 4.0, step) for step in (310, 320)]
    again = [entry_of(310, 3.9, 310), {**entry_of(320, None, 320), "skipped": True}]
    scores = {"code": {"loss": 99.0, "loss_bits_per_byte": 50.0}}
    append(results, "metrics", *killed, *again, {"step": 320, "tokens": 320 * 256, "validation": scores, "time": 320})
    append(results, "events", {"event": "rollback", "step": 300, "left": 320, "samples": [302, 324], "time": 325})
    append(results, "metrics", entry_of(310, 3.8, 324, time=330))
    assert summarize.main(options_of(results)) == 0
    curve = lines["base, training"]
    assert [tokens for tokens, _ in curve] == sorted({tokens for tokens, _ in curve})
    assert curve[-2:] == [(300 * 256, 5.0), (310 * 256, 3.8)]
    assert lines["base, validation code"] == [(76800, 5.2)]


def test_validation_losses_of_different_text_are_not_joined(results, lines):
    texts = {310: "b", 320: "a", 330: "b", 340: "b"}
    for step, text in texts.items():
        scores = {"code": {"loss": 4.0, "text": text}}
        append(results, "metrics", {"step": step, "tokens": step * 256, "validation": scores, "time": step})
    assert summarize.main(options_of(results)) == 0
    curves = {
        label: [tokens // 256 for tokens, _ in points] for label, points in lines.items() if "validation" in label
    }
    assert curves == {
        "base, validation code, text 1": [300],
        "base, validation code, text 2": [310, 330, 340],
        "base, validation code, text 3": [320],
    }


@pytest.mark.parametrize(("share", "warned"), [(0.07, False), (0.05, True)])
def test_text_warns_of_experts_without_work(results, lines, share, warned):
    loads = [[[0.4, 0.1, 0.25, 0.25], [share + change, 0.5 - share - change, 0.25, 0.25]] for change in (-0.02, 0.02)]
    append(results, "metrics", *(entry_of(310 + n, 4.0, expert_load=load) for n, load in enumerate(loads)))
    assert summarize.main(options_of(results)) == 0
    sentence = "less than 0.25 of an equal share of the tokens in the last 2 steps, expert 0 of layer 1 0.20"
    assert (sentence in (results / "summary.txt").read_text()) == warned


def test_text_lists_skipped_steps_rollbacks_and_hangs(results, lines):
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


def test_all_that_exists_is_summarized_without_a_list_and_into_its_own_folder(results):
    run = results / "runs/base"
    (run / "eval/00000300/validation.json").unlink()  # it is scored now
    (run / "models/.00000400.json.partial.json").write_text("{")
    append(results, "metrics", {"step": 310, "tokens": 310 * 256, "loss": 4.9, "tokens_per_second": 1000.0})
    assert summarize.main(["--results", str(results)]) == 0
    assert {row["step"] for row in rows_of(results / "so_far") if row["run"] == "base"} == {"100"}
    assert "base" in (results / "so_far/summary.txt").read_text()
    assert (results / "so_far/figures/loss.svg").stat().st_size > 1000
    assert not (results / "scores.csv").exists() and not (results / "summary.json").exists()
    assert summarize.main(["--results", str(results), "--scores", str(results / "mine.csv")]) == 0
    assert (results / "mine.csv").exists()  # another output is named


def test_results_without_any_and_a_missing_directory(tmp_path, capsys):
    assert summarize.main([f"--results={tmp_path}"]) == 0
    for name in ("summary.txt", "card.html"):
        assert "There are no results yet." in (tmp_path / "so_far" / name).read_text()
    assert b"no results yet" in (tmp_path / "so_far/figures/loss.svg").read_bytes()
    with pytest.raises(SystemExit) as end:
        summarize.main(["--results", str(tmp_path / "none")])
    assert end.value.code == 2
    assert f"--results must be a directory, got {tmp_path / 'none'}" in capsys.readouterr().err

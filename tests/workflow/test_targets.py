"""Targets by name and by file, and the error if a target does not exist."""

import pytest

UP_TO = {
    "tokenizers": {"list", "train_tokenizer"},
    "tokens": {"list", "train_tokenizer", "tokenize", "index"},
    "models": {"list", "train_tokenizer", "tokenize", "index", "pretrain"},
    "exports": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "convert"},
    "scores": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "convert", "evaluate"},
    "report": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "convert", "evaluate", "summarize"},
    "tuned": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "finetune", "convert", "evaluate"},
    "cards": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "convert", "evaluate", "describe"},
    "all": {
        *("list", "train_tokenizer", "tokenize", "index", "pretrain", "convert", "evaluate", "describe", "summarize"),
    },
}


@pytest.mark.parametrize("target", UP_TO)
def test_a_target_plans_exactly_its_rules(pretending, target):
    assert set(pretending.plan(target).values()) == UP_TO[target] | {target}


def test_all_is_the_default_target(pretending):
    assert pretending.plan("--cores", 1) == pretending.plan("all")


def test_one_file_plans_itself_and_its_inputs(pretending):
    first = pretending.default_config["runs"]["base"]["pretrain"]["milestones"][0]
    wanted = f"results/runs/base/eval/{first:08d}/validation.json"
    plan = pretending.plan(wanted)
    assert plan[wanted] == "evaluate"
    assert list(plan.values()).count("pretrain") == 1


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("results/runs/base/models/00000007.json", "run base has no milestone 7; its milestones: "),
        ("results/runs/base/export/00000007/manifest.json", "run base has no milestone 7; its milestones: "),
        ("results/runs/statements/models/00000007.json", "run statements has no milestone 7; its milestones: "),
        ("results/runs/wide/models/00000100.json", "the config has no runs.wide; runs: base, statements"),
        ("results/tokenizers/other/manifest.json", "the config has no tokenizers.other; tokenizers: main"),
        ("results/tokens/main/code/00099.json", "corpus main has no part 99"),
        ("results/tokens/main/web/00000.json", "corpus main has no source web"),
        ("toknes", "the target toknes must be one of all, report, plan, tokenizers, tokens, models, exports, scores,"),
        ("results/sources/web/list.json", "the config has no sources.web; sources: code, prose, statements"),
    ],
)
def test_a_target_missing_in_the_config_is_named(pretending, wanted, sentence):
    done = pretending.dry_run(wanted, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"config: {sentence}")
    assert "Traceback" not in done.stdout + done.stderr and "Error" not in done.stderr


def test_a_suite_missing_in_the_run_is_named(pretending):
    first = pretending.default_config["runs"]["base"]["pretrain"]["milestones"][0]
    done = pretending.dry_run(f"results/runs/base/eval/{first:08d}/exam.json", check=False)
    assert "run base has no suite exam" in done.stdout + done.stderr


def test_an_initial_model_is_scored_by_the_suites_of_its_finetuned_run(pretending):
    first, last = pretending.default_config["runs"]["base"]["pretrain"]["milestones"]
    assert pretending.plan(f"results/runs/base/eval/{last:08d}/statements.json")
    done = pretending.dry_run(f"results/runs/base/eval/{first:08d}/statements.json", check=False)
    assert "run base has no suite statements" in done.stdout + done.stderr


def test_tuned_without_a_finetuned_run_is_an_error(pretending, config):
    del config["runs"]["statements"]
    done = pretending.dry_run("tuned", "--configfile", pretending.write_config(config), check=False)
    assert "the config has no tuned run (a run with finetune in place of pretrain)" in done.stdout + done.stderr


def test_a_source_that_matches_nothing_is_named_before_its_list_is_made(finished, config):
    config["sources"]["code"] = {"kind": "text", "paths": ["nowhere/*.txt"]}
    given = ["--configfile", finished.write_config(config)]
    assert finished.dry_run("all", *given).returncode == 0, "a list that exists is not made again by itself"
    (finished.path / "results/sources/code/list.json").unlink()
    done = finished.dry_run("all", *given, check=False)
    sentence = "config: sources.code.paths: nowhere/*.txt matches no file\n"
    assert done.returncode == 1 and done.stderr.endswith(sentence)
    config["sources"]["code"]["paths"] = ["s3://nowhere/*.txt"]  # no URL is opened for a plan
    assert finished.plan(config=config)

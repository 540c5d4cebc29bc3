"""What can be asked for by name or by file, and what is said when there is no such thing."""

import pytest

UP_TO = {
    "tokenizers": {"list", "train_tokenizer"},
    "tokens": {"list", "train_tokenizer", "tokenize", "index"},
    "models": {"list", "train_tokenizer", "tokenize", "index", "pretrain"},
    "exports": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "convert"},
    "scores": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "convert", "evaluate"},
    "report": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "convert", "evaluate", "summarize"},
    "tuned": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "finetune", "convert", "evaluate"},
    "all": {"list", "train_tokenizer", "tokenize", "index", "pretrain", "convert", "evaluate", "summarize"},
}


@pytest.mark.parametrize("target", UP_TO)
def test_a_target_makes_what_it_names_and_no_more(pretending, target):
    assert set(pretending.plan(target).values()) == UP_TO[target] | {target}


def test_nothing_said_is_all(pretending):
    assert pretending.plan("--cores", 1) == pretending.plan("all")


def test_one_file_is_made_with_what_it_needs(pretending):
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
        ("results/runs/docstrings/models/00000007.json", "run docstrings has no milestone 7; its milestones: "),
        ("results/runs/wide/models/00000100.json", "the config has no runs.wide; runs: base, docstrings"),
        ("results/tokenizers/other/manifest.json", "the config has no tokenizers.other; tokenizers: main"),
        ("results/tokens/main/code/00099.json", "corpus main has no part 99"),
        ("results/tokens/main/web/00000.json", "corpus main has no source web"),
        ("results/sources/web/list.json", "the config has no sources.web; sources: code, docstrings, prose"),
    ],
)
def test_what_the_config_does_not_hold_is_named(pretending, wanted, sentence):
    done = pretending.snakemake("-n", wanted, check=False)
    assert done.returncode == 1
    assert sentence in done.stdout + done.stderr
    assert "KeyError" not in done.stdout + done.stderr


def test_a_suite_that_the_run_does_not_name_is_named(pretending):
    first = pretending.default_config["runs"]["base"]["pretrain"]["milestones"][0]
    done = pretending.snakemake("-n", f"results/runs/base/eval/{first:08d}/exam.json", check=False)
    assert "run base has no suite exam" in done.stdout + done.stderr


def test_a_model_that_is_tuned_is_scored_by_the_suites_of_its_tuned_run(pretending):
    first, last = pretending.default_config["runs"]["base"]["pretrain"]["milestones"]
    assert pretending.plan(f"results/runs/base/eval/{last:08d}/docstrings.json")
    done = pretending.snakemake("-n", f"results/runs/base/eval/{first:08d}/docstrings.json", check=False)
    assert "run base has no suite docstrings" in done.stdout + done.stderr


def test_tuned_says_that_there_is_no_tuned_run(pretending, config):
    del config["runs"]["docstrings"]
    done = pretending.snakemake("-n", "tuned", "--configfile", pretending.write_config(config), check=False)
    assert "the config has no tuned run: one with finetune in the place of pretrain" in done.stdout + done.stderr


def test_the_workflow_is_parsed_without_looking_at_a_source(pretending, config):
    config["sources"]["code"] = {"kind": "text", "paths": ["/nowhere/*.txt"]}
    assert pretending.plan(config=config)

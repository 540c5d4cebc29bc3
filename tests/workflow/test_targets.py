"""Targets by name and by file, and the error if a target does not exist."""

import json

TOKENS = {"list", "train_tokenizer", "tokenize", "index"}
SCORES = {*TOKENS, "pretrain", "convert", "evaluate"}
UP_TO = {
    "tokenizers": {"list", "train_tokenizer"},
    "tokens": TOKENS,
    "models": {*TOKENS, "pretrain"},
    "exports": {*TOKENS, "pretrain", "convert"},
    "scores": SCORES,
    "report": {*SCORES, "summarize"},
    "tuned": {*SCORES, "finetune"},
    "cards": {*SCORES, "describe"},
    "all": {*SCORES, "describe", "summarize"},
}


def test_a_target_plans_exactly_its_rules_and_all_is_the_default(pretending):
    plans = {target: pretending.plan(target) for target in UP_TO}
    assert {target: set(plan.values()) - {target} for target, plan in plans.items()} == UP_TO
    assert pretending.plan("--cores", 1) == plans["all"]


def test_one_file_plans_itself_and_its_inputs(pretending):
    first = pretending.default_config["runs"]["base"]["pretrain"]["milestones"][0]
    wanted = f"results/runs/base/eval/{first:08d}/validation.json"
    plan = pretending.plan(wanted)
    assert plan[wanted] == "evaluate"
    assert list(plan.values()).count("pretrain") == 1


MISSING = [
    ("runs/base/models/00000007.json", "run base has no milestone 7; its milestones: "),
    ("runs/base/export/00000007/manifest.json", "run base has no milestone 7; its milestones: "),
    ("runs/statements/models/00000007.json", "run statements has no milestone 7; its milestones: "),
    ("runs/wide/models/00000100.json", "the config has no runs.wide; runs: base, statements"),
    ("runs/base/eval/00000100/exam.json", "run base has no suite exam"),
    ("runs/base/eval/00000100/statements.json", "run base has no suite statements"),  # the last milestone is tuned
    ("tokenizers/other/manifest.json", "the config has no tokenizers.other; tokenizers: main"),
    ("tokens/main/code/00099.json", "corpus main has no part 99"),
    ("tokens/main/web/00000.json", "corpus main has no source web"),
    ("sources/web/list.json", "the config has no sources.web; sources: code, prose, statements"),
    ("baselines/big/main/validation.json", "the config has no baselines.big; baselines: none"),
    ("", "the target toknes must be one of all, report, plan, tokenizers, tokens, models, exports, scores, cards,"),
]


def test_a_target_missing_in_the_config_is_named(pretending):
    for path, sentence in MISSING:
        assert pretending.refusal(f"results/{path}" if path else "toknes").startswith(f"config: {sentence}")


def test_tuned_scores_its_initial_model_and_is_an_error_without_a_finetuned_run(pretending, config):
    last = config["runs"]["base"]["pretrain"]["milestones"][-1]
    assert pretending.plan(f"results/runs/base/eval/{last:08d}/statements.json")
    del config["runs"]["statements"]
    sentence = "the config has no tuned run (a run with finetune in place of pretrain)"
    assert sentence in pretending.refusal("tuned", config=config)


def test_a_source_that_matches_nothing_is_named_before_its_list_is_made(finished, config):
    config["sources"]["code"] = {"kind": "text", "paths": ["nowhere/*.txt"]}
    finished.plan(config=config)  # a list that exists is not made again by itself
    (finished.path / "results/sources/code/list.json").unlink()
    assert finished.refusal("all", config=config) == "config: sources.code.paths: nowhere/*.txt matches no file"
    config["sources"]["code"]["paths"] = ["s3://nowhere/*.txt"]  # no URL is opened for a plan
    assert finished.plan(config=config)


def test_the_config_json_of_a_model_is_an_input_of_pretraining_and_one_that_does_not_exist_is_named(finished, config):
    config["runs"]["base"]["model"] = {"from": "shapes/llama"}
    sentence = "config: runs.base.model.from must be a config.json or its directory, got shapes/llama"
    assert finished.refusal("models", config=config).startswith(sentence)
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"vocab_size": 4096, "max_position_embeddings": 256}
    (finished.path / "shapes/llama").mkdir(parents=True)
    (finished.path / "shapes/llama/config.json").write_text(json.dumps(shape))
    given = ("models", "--configfile", finished.write_config(config))
    assert "shapes/llama/config.json" in finished.dry_run(*given).stdout

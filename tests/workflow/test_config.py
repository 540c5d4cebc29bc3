"""A mistake in the config is one sentence; a user's config holds nothing of the default."""

import copy

import pytest

from config_check import ConfigError, checked, load_schema
from tests.workflow.checkout import HOME

SCHEMA = load_schema(HOME / "workflow/schemas/config.schema.yaml")


def change(config, key, value):
    """Set a key whose parents are parted by slashes, or delete it where `value` is DELETED."""
    *parents, last = key.split("/")
    for parent in parents:
        config = config[parent]
    if value is DELETED:
        del config[last]
    else:
        config[last] = value


DELETED = object()
MISTAKES = [
    ("runn", {}, "runn is not a known key; known here: corpora, rerun_on_code, runs, sources, suites, tokenizers"),
    ("runs/base/pretrain/lr", 1, "runs.base.pretrain.lr is not a known key; known here: "),
    ("runs/base/model/layer", 1, "runs.base.model.layer is not a known key; known here: "),
    ("suites/heldout/task", "x", "suites.heldout.task is not a known key; known here: "),
    ("runs/base/corpus", DELETED, "runs.base.corpus is missing: it must be text"),
    ("runs/base/pretrain/steps", DELETED, "runs.base.pretrain.steps is missing: it must be a whole number at least 1"),
    ("sources", DELETED, "sources is missing: it must be a mapping of keys to values with at least one entry"),
    ("runs/base/pretrain/steps", "many", "runs.base.pretrain.steps must be a whole number at least 1, got 'many'"),
    ("runs/base/pretrain/steps", 300.0, "runs.base.pretrain.steps must be a whole number at least 1, got 300.0"),
    ("runs/base/pretrain/steps", True, "runs.base.pretrain.steps must be a whole number at least 1, got True"),
    ("runs/base/pretrain/steps", 0, "runs.base.pretrain.steps must be a whole number at least 1, got 0"),
    (
        "runs/base/pretrain/optimizer/learning_rate",
        "fast",
        "runs.base.pretrain.optimizer.learning_rate must be a number, got 'fast'",
    ),
    (
        "runs/base/pretrain/optimizer/learning_rate",
        "nan",
        "runs.base.pretrain.optimizer.learning_rate must be a finite number, got 'nan'",
    ),
    ("runs/base/pretrain", None, "runs.base.pretrain must be a mapping of keys to values, got nothing"),
    (
        "runs/base/suites",
        "heldout",
        "runs.base.suites must be a list with at least one entry and none of them",
    ),
    ("runs/base/suites", [], "runs.base.suites must be a list with at least one entry and none of them"),
    (
        "corpora/main/sources",
        ["code", "code"],
        "corpora.main.sources must be a list with at least one entry and none of",
    ),
    ("runs", {}, "runs must be a mapping of keys to values with at least one entry, got {}"),
    ("runs/base/convert/dtype", "int3", "runs.base.convert.dtype must be one of bfloat16, float32, got 'int3'"),
    ("suites/heldout/questions", 1, "suites.heldout.questions must be a whole number at least 4, got 1"),
    ("suites/heldout/tasks", [1], "suites.heldout.tasks[0] must be text, got 1"),
    ("runs/a b", {}, "runs.a b must be a name of letters, digits, dots, dashes and underscores"),
    ("runs/..", {}, "runs... must be a name of letters, digits, dots, dashes and underscores"),
    ("rerun_on_code", "yes", "rerun_on_code must be true or false, got 'yes'"),
    ("runs/base/corpus", "big", "runs.base.corpus must be one of the config's corpora (main), got 'big'"),
    ("runs/base/suites", ["x"], "runs.base.suites must be one of the config's suites (heldout), got 'x'"),
    ("corpora/main/tokenizer", "x", "corpora.main.tokenizer must be one of the config's tokenizers (main), got 'x'"),
    ("corpora/main/sources", ["x"], "corpora.main.sources must be one of the config's sources (code, prose), got 'x'"),
    (
        "tokenizers/main/sample",
        {"x": 1},
        "tokenizers.main.sample must be one of the config's sources (code, prose), got 'x'",
    ),
    (
        "runs/base/pretrain/weights",
        {"x": 1},
        "runs.base.pretrain.weights must name sources of corpus main (code, prose), got 'x'",
    ),
    ("runs/base/pretrain/milestones", [2, 2], "runs.base.pretrain.milestones must increase, got 2 after 2"),
    ("runs/base/pretrain/milestones", [3, 2], "runs.base.pretrain.milestones must increase, got 2 after 3"),
    (
        "runs/base/pretrain/milestones",
        [0, 2],
        "runs.base.pretrain.milestones[0] must be a whole number at least 1, got 0",
    ),
    (
        "runs/base/pretrain/milestones",
        [10**7],
        "runs.base.pretrain.milestones must be at most steps (300), got 10000000",
    ),
]


@pytest.mark.parametrize(("key", "value", "sentence"), MISTAKES, ids=[f"{key}={value}" for key, value, _ in MISTAKES])
def test_a_mistake_is_one_sentence(config, key, value, sentence):
    config["runs"]["base"]["pretrain"] |= {"steps": 300, "milestones": [100, 300]}
    change(config, key, value)
    with pytest.raises(ConfigError) as raised:
        checked(config, SCHEMA)
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)


def test_a_key_that_yaml_reads_as_a_truth_value_is_named(config):
    config["runs"][True] = config["runs"].pop("base")
    with pytest.raises(ConfigError, match="runs has the key True, which YAML does not read as text: quote it"):
        checked(config, SCHEMA)


def test_a_number_written_as_text_is_a_number(config):
    config["runs"]["base"]["pretrain"]["optimizer"]["learning_rate"] = "1e-3"
    assert checked(config, SCHEMA)["runs"]["base"]["pretrain"]["optimizer"]["learning_rate"] == 0.001


def test_only_what_the_user_wrote_is_kept(config):
    written = copy.deepcopy(config)
    made = checked(config, SCHEMA)
    assert config == written
    assert _keys(made) == _keys(written)


def _keys(data):
    return {key: _keys(value) for key, value in data.items()} if isinstance(data, dict) else None


def test_snakemake_ends_with_the_sentence_and_no_traceback(finished, config):
    config["runs"]["base"]["pretrain"]["steps"] = "many"
    done = finished.snakemake("-n", "--configfile", finished.write_config(config), check=False)
    assert done.returncode == 1
    assert done.stdout + done.stderr.strip() == (
        "config: runs.base.pretrain.steps must be a whole number at least 1, got 'many'"
    )


def test_a_users_config_holds_nothing_of_the_default(finished, config):
    mine = {
        "sources": {"books": config["sources"]["prose"]},
        "tokenizers": {"small": {**config["tokenizers"]["main"], "sample": {"books": 1}}},
        "corpora": {"library": {"tokenizer": "small", "sources": ["books"]}},
        "suites": {"exam": config["suites"]["heldout"]},
        "runs": {"first": {**config["runs"]["base"], "corpus": "library", "suites": ["exam"]}},
    }
    mine["runs"]["first"]["pretrain"]["weights"] = {"books": 1}
    planned = [output for output in finished.plan(config=mine) if "/" in output]
    shared = ("results/scores.csv", "results/summary", "results/figures/")
    names = ("/books/", "/small/", "/library/", "/first/")
    assert all(output.startswith(shared) or any(name in output for name in names) for output in planned)
    assert not any("base" in output or "main" in output for output in planned)


def test_one_key_on_the_command_line_keeps_the_default(finished):
    assert finished.plan("all", "--config", "rerun_on_code=False") == {}

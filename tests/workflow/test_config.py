"""A mistake in the config is one sentence; a user's config holds nothing of the default."""

import copy
import dataclasses
import functools

import jsonschema
import pytest
import yaml

from scripts.config.keys import FOREIGN, KeysReader
from scripts.config.references import milestones_of
from scripts.config.sections import Config
from scripts.config_check import check_twice, checked
from stages.lib.errors import UserError
from stages.lib.recipe import below, default_of, fields_of, groups_of, hints_of
from stages.lib.scoring.tasks import local_tasks
from tests.workflow.checkout import HOME


def change(config, key, value):
    """Set a key whose parents are parted by slashes, or delete it where `value` is DELETED."""
    *parents, last = key.split("/")
    for parent in parents:
        config = config[parent]
    if value == DELETED:
        del config[last]
    else:
        config[last] = value


DELETED = "(deleted)"
MISTAKES = [
    ("baselines", {"a": {"revision": "main"}}, "baselines.a.path is missing: it must be text"),
    (
        "baselines",
        {"a": {"path": "/nowhere"}},
        "baselines.a.path must be a directory, or a repository of the Hub (ORG/",
    ),
    (
        "baselines",
        {"a": {"path": "/", "revision": "b"}},
        "baselines.a.revision must be omitted: baselines.a.path is a d",
    ),
    (
        "runn",
        {},
        "unknown key runn; did you mean runs? known here: "
        "baselines, contamination, corpora, ladders, rerun_on_code, results, runs, sources, suites, sweeps, "
        "tokenizers, tune",
    ),
    (
        "runs/base/model/rope_scaling",
        {"factor": 8, "low_freq": 1},
        "unknown key runs.base.model.rope_scaling.low_freq; did you mean runs.base.model.rope_scaling.low_freq_factor?",
    ),
    (
        "suites/validation/task",
        "x",
        "unknown key suites.validation.task; did you mean suites.validation.tasks? known here: ",
    ),
    ("runs/base/pretrain/steps", DELETED, "runs.base.pretrain.steps is missing: it must be a whole number at least 1"),
    ("sources", DELETED, "sources is missing: it must be a mapping of keys to values with at least one entry"),
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
    ("runs/base/pretrain", None, "runs.base.pretrain must be a mapping of keys to values, got null"),
    ("runs/base/suites", [], "runs.base.suites must be a list with at least one entry and none of them"),
    (
        "corpora/main/sources",
        ["code", "code"],
        "corpora.main.sources must be a list with at least one entry and none of",
    ),
    ("runs", {}, "runs must be a mapping of keys to values with at least one entry, got {}"),
    ("runs/base/convert/dtype", "int3", "runs.base.convert.dtype must be one of bfloat16, float32, got 'int3'"),
    (
        "runs/base/convert/merge",
        False,
        "runs.base.convert.merge must be true without runs.base.finetune.lora, got false",
    ),
    ("suites/validation/tasks", [1], "suites.validation.tasks[0] must be text, got 1"),
    ("runs/..", {}, "runs... must be a name of up to 100 letters, digits, dots, dashes and underscores"),
    ("runs/base\n", {}, "runs.base\\n must be a name of up to 100 letters"),
    ("sources/" + "a" * 300, {}, f"sources.{'a' * 192} must be a name of up to 100 letters"),
    (
        "tokenizers/main",
        {"path": "a{b}.json", "bos": "<s>", "eos": "</s>"},
        "tokenizers.main.path must be a path of printable characters without braces, got 'a{b}.json'",
    ),
    ("runs/base/model/from", "a\0b", "runs.base.model.from must be text of Unicode characters without NUL, got 'a"),
    ("runs/base/model/from", "a\nb", "runs.base.model.from must be a path of printable characters without braces"),
    ("rerun_on_code", "yes", "rerun_on_code must be true or false, got 'yes'"),
    ("runs/base/corpus", "big", "runs.base.corpus must be one of the config's corpora (main), got 'big'"),
    (
        "runs/base/suites",
        ["x"],
        "runs.base.suites must be one of the config's suites (statements, validation), got 'x'",
    ),
    ("corpora/main/tokenizer", "x", "corpora.main.tokenizer must be one of the config's tokenizers (main), got 'x'"),
    (
        "corpora/main/sources",
        ["x"],
        "corpora.main.sources must be one of the config's sources (code, prose, statements), got 'x'",
    ),
    (
        "tokenizers/main",
        {"path": "mine.json", "bos": "<s>"},
        "tokenizers.main.eos is missing: it must be text",
    ),
    ("tokenizers/main/vocab_size", 9, "tokenizers.main.vocab_size must be a whole number at least 260 and at most"),
    (
        "runs/base/pretrain/weights",
        {"x": 1},
        "runs.base.pretrain.weights must name sources of corpus main (code, prose), got 'x'",
    ),
    (
        "runs/base/pretrain/data_stages",
        [{"step": 2, "weights": {"code": 1}}, {"step": 3, "weights": {"prose": 1, "x": 1}}],
        "runs.base.pretrain.data_stages[1].weights must name sources of corpus main (code, prose), got 'x'",
    ),
    ("runs/base/pretrain/milestones", [2, 2], "runs.base.pretrain.milestones must increase, got 2 after 2"),
    (
        "runs/base/pretrain/milestones",
        [0, 2],
        "runs.base.pretrain.milestones[0] must be a whole number at least 1, got 0",
    ),
    (
        "runs/base/pretrain/milestones",
        [10**7],
        "runs.base.pretrain.milestones must be at most steps (120), got 10000000",
    ),
    (
        "corpora/main/sources",
        ["code", "statements"],
        "corpora.main.sources must be a source of text, got 'statements' of the kind python-statements",
    ),
    (
        "suites/statements/prompt_completion",
        "prose",
        "suites.statements.prompt_completion must be a source of prompt-completion data (kind prompt_completion or "
        "python-statements or preference), got 'prose' of the kind python-prose",
    ),
    (
        "suites/statements/prompt_completion",
        DELETED,
        "suites.statements.prompt_completion is missing: it must be the prompt-completion source that completion_match "
        "reads",
    ),
    (
        "suites/validation/prompt_completion",
        "statements",
        f"suites.validation.tasks must have {' or '.join(local_tasks.OF_PROMPT_COMPLETION)}: no other task "
        "reads suites.validation.prompt_completion",
    ),
    (
        "suites/validation/sources",
        ["statements"],
        "suites.validation.sources must be a source of text, got 'statements' of the kind python-statements",
    ),
    ("runs/base/pretrain", DELETED, "runs.base must have pretrain, or finetune for a tuned run, got neither"),
    ("runs/base/model", DELETED, "runs.base.model is missing: it must be a mapping of keys to values"),
    ("runs/statements/finetune/weights", DELETED, "runs.statements.finetune.weights is missing: it must be a mapping"),
    (
        "runs/statements/finetune/weights",
        {"docstring": 1},
        "runs.statements.finetune.weights must be one of the config's sources (code, prose, statements), got ",
    ),
    (
        "runs/statements/finetune/template",
        "chatml",
        "runs.statements.finetune.template must be omitted: no source of runs.statements.finetune.weights has ",
    ),
    (
        "sources/statements",
        {"kind": "chat", "paths": ["a.jsonl"]},
        "suites.statements.prompt_completion must be a source of prompt-completion data",
    ),
    (
        "sources/prose",
        {"kind": "chat", "paths": ["a.jsonl"]},
        "tokenizers.main.sample must be a source of text, got 'prose' of the kind chat",
    ),
    ("runs/statements/initial", DELETED, "runs.statements.initial is missing: it must be a mapping of keys to values"),
    ("runs/statements/initial", {}, "runs.statements.initial must have run and step, or sweep, or path, got nothing"),
    (
        "runs/statements/initial/run",
        "wide",
        "runs.statements.initial.run must be one of the config's runs (base, statements), got 'wide'",
    ),
    (
        "runs/statements/initial/step",
        250,
        "runs.statements.initial.step must be a milestone of run base (40, 120), got 250",
    ),
    (
        "runs/statements/initial/run",
        "statements",
        "runs.statements.initial must not form a cycle, got runs.statements again",
    ),
    (
        "runs/statements/initial",
        {"path": "llama"},
        "runs.statements.corpus is missing: it must be the corpus that scores runs.statements.initial.path",
    ),
    (
        "runs/statements/initial",
        {"run": "base", "step": 120, "config": "config.json"},
        "runs.statements.initial.config must be omitted: runs.statements.initial.run has its config",
    ),
    (
        "runs/base/initial",
        {"path": "llama", "config": "config.json"},
        "runs.base.initial.config must be omitted: a run with pretrain has the config in model",
    ),
    (
        "runs/statements/corpus",
        "main",
        "runs.statements.corpus must be omitted: a tuned run has the corpus of its initial run",
    ),
    (
        "runs/statements/model",
        {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8},
        "runs.statements.model must be omitted: a tuned run has the model of its initial run",
    ),
    (
        "runs/base/initial",
        {"path": "llama"},
        "runs.base.pretrain.initial is missing: runs.base.initial makes the training start from another model",
    ),
    (
        "runs/base/pretrain/initial",
        {"optimizer": "reset", "schedule": "reset", "data": "reset"},
        "runs.base.initial is missing: runs.base.pretrain.initial makes the training start from another model",
    ),
]


@pytest.mark.parametrize(("key", "value", "sentence"), MISTAKES, ids=[f"{key}={value}" for key, value, _ in MISTAKES])
def test_a_mistake_is_one_sentence(config, key, value, sentence):
    config["runs"]["base"]["pretrain"] |= {"steps": 120, "milestones": [40, 120]}
    change(config, key, value)
    with pytest.raises(UserError) as raised:
        checked(config)
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)


SIX_LINES = """
sources: {mine: {kind: text, paths: [texts/*.txt], validation: 0.05}}
tokenizers: {main: {vocab_size: 4096}}
corpora: {main: {}}
suites: {validation: {tasks: [bits_per_byte, next_line]}}
runs: {base: {model: {num_hidden_layers: 4, hidden_size: 256, num_attention_heads: 4, intermediate_size: 688},
  pretrain: {steps: 120, seq_len: 256, global_batch_size: 8}}}
"""


def test_six_lines_are_a_config():
    found = checked(yaml.safe_load(SIX_LINES))
    assert found["tokenizers"]["main"] == {"vocab_size": 4096, "sample": {"mine": 1.0}}
    assert found["corpora"]["main"] == {"tokenizer": "main", "sources": ["mine"]}
    base = found["runs"]["base"]
    assert (base["corpus"], base["suites"], base["pretrain"]["weights"]) == ("main", ["validation"], {"mine": 1.0})


def test_a_key_that_is_left_out_is_that_of_the_full_config(config):
    config["suites"] = {"validation": config["suites"]["validation"]}
    del config["runs"]["statements"], config["sources"]["statements"]
    short = copy.deepcopy(config)
    for key in ("tokenizers/main/sample", "corpora/main/tokenizer", "corpora/main/sources", "runs/base/corpus"):
        change(short, key, DELETED)
    for key in ("runs/base/suites", "runs/base/pretrain/weights"):
        change(short, key, DELETED)
    assert checked(short) == checked(config)


LEFT_OUT = [
    ("tokenizers/other", {"vocab_size": 300}, "corpora/main/tokenizer", "several tokenizers (main, other)"),
    ("corpora/other", {}, "runs/base/corpus", "several corpora (main, other)"),
    ("suites/other", {"tasks": ["next_line"]}, "runs/base/suites", "several suites (other, statements, validation)"),
]


@pytest.mark.parametrize(("entry", "keys", "key", "words"), LEFT_OUT)
def test_a_key_that_could_name_several_entries_is_missing(config, entry, keys, key, words):
    change(config, entry, keys)
    change(config, key, DELETED)
    with pytest.raises(UserError) as raised:
        checked(config)
    assert str(raised.value) == f"{key.replace('/', '.')} is missing: the config has {words}"


def test_a_config_without_text_names_what_it_lacks(config):
    config["sources"] = {"statements": config["sources"]["statements"]}
    for key, value in (("tokenizers/main/sample", DELETED), ("corpora/main/sources", DELETED)):
        change(config, key, value)
        with pytest.raises(UserError, match=f"{key.replace('/', '.')} is missing: the config has no source of text"):
            checked(config)
        change(config, key, {"statements": 1})


GOING_ON = {"optimizer": "keep", "schedule": "continue", "data": "reset"}


def test_runs_that_go_on_from_each_other_are_refused(config):
    config["runs"]["base"] |= {"initial": {"run": "statements", "step": 100}}
    config["runs"]["base"]["pretrain"] |= {"initial": GOING_ON}
    with pytest.raises(UserError, match=r"^runs.base.initial must not form a cycle, got runs.base again$"):
        checked(config)


def test_a_run_that_goes_on_with_another_tokenizer_is_refused(config):
    config["tokenizers"]["other"] = config["tokenizers"]["main"]
    config["corpora"]["other"] = config["corpora"]["main"] | {"tokenizer": "other"}
    more = config["runs"]["base"] | {"corpus": "other", "initial": {"run": "statements", "step": 100}}
    config["runs"]["more"] = more | {"pretrain": config["runs"]["base"]["pretrain"] | {"initial": GOING_ON}}
    sentence = "^runs.more.corpus must have the tokenizer of its initial run \\(main\\), got other$"
    with pytest.raises(UserError, match=sentence):
        checked(config)
    config["runs"]["more"]["corpus"] = "main"
    assert checked(config)["runs"]["more"]["initial"]["run"] == "statements"


@pytest.mark.parametrize(("source", "user"), [("code", "corpora.main"), ("statements", "runs.statements.finetune")])
def test_a_source_to_train_on_needs_a_validation_split(config, source, user):
    config["sources"][source]["validation"] = 0
    with pytest.raises(UserError, match=rf"^sources.{source}.validation must be greater than 0 for {user}, got 0$"):
        checked(config)


@pytest.mark.parametrize(("group", "key"), [("dpo", "beta"), ("lora", "rank")])
def test_an_empty_group_names_the_key_that_it_must_have(config, group, key):
    config["runs"]["statements"]["finetune"][group] = {}
    with pytest.raises(UserError, match=rf"^runs.statements.finetune.{group}.{key} is missing: it must be a "):
        checked(config)


def test_dpo_needs_one_source_of_preferences(config):
    finetune = config["runs"]["statements"]["finetune"]
    finetune["dpo"] = {"beta": 0.1}
    sentence = (
        "^runs.statements.finetune.weights must name one source of the kind preference beside "
        r"runs.statements.finetune.dpo, got {}$"
    )
    with pytest.raises(UserError, match=sentence.format(r"statements \(python-statements\)")):
        checked(config)
    config["sources"] |= {name: {"kind": "preference", "paths": ["a.jsonl"]} for name in ("choices", "more")}
    finetune["weights"] = {"choices": 1, "more": 1}
    with pytest.raises(UserError, match=sentence.format(r"choices \(preference\), more \(preference\)")):
        checked(config)
    finetune["weights"] = {"choices": 1}
    assert checked(config)["runs"]["statements"]["finetune"]["dpo"] == {"beta": 0.1}


@pytest.mark.parametrize(("keys", "found"), [({"epochs": 2}, "both"), ({"steps": None}, "neither")])
def test_a_tuned_run_has_steps_or_epochs(config, keys, found):
    runs = config["runs"]
    runs["more"] = {"initial": {"run": "statements", "step": 1}} | {
        key: runs["statements"][key] for key in ("finetune", "suites")
    }
    wrong = {key: value for key, value in (runs["statements"]["finetune"] | keys).items() if value is not None}
    runs["statements"] = runs["statements"] | {"finetune": wrong}
    with pytest.raises(UserError, match=f"^runs.statements.finetune must have steps or epochs, got {found}$"):
        checked(config)


def test_conversations_need_a_template_of_the_run_or_of_the_model_before(config):
    runs, chats = config["runs"], {"weights": {"chats": 1}}
    config["sources"]["chats"] = {"kind": "chat", "paths": ["a.jsonl"]}
    runs["statements"]["finetune"] |= chats
    sentence = "^runs.statements.finetune.template is missing: the source chats has conversations .*, and the initial "
    with pytest.raises(UserError, match=sentence):
        checked(config)
    runs["statements"]["finetune"]["template"] = "tulu"
    step = milestones_of(runs["statements"])[-1]
    runs["more"] = runs["statements"] | {
        "initial": {"run": "statements", "step": step},
        "finetune": {key: value for key, value in runs["statements"]["finetune"].items() if key != "template"},
    }
    assert checked(config)["runs"]["more"]
    del runs["statements"]["finetune"]["template"]
    runs["statements"] |= {"initial": {"path": "llama"}, "corpus": "main"}
    assert checked(config)["runs"]["more"]


def test_a_suite_is_made_from_sources_of_the_corpora_that_it_scores(config):
    config["suites"]["validation"]["sources"] = ["prose"]
    assert checked(config)["suites"]["validation"]["sources"] == ["prose"]
    config["corpora"]["main"]["sources"] = ["code"]
    config["runs"]["base"]["pretrain"]["weights"] = {"code": 1}
    sentence = r"^suites.validation.sources must name sources of corpus main \(code\), with which runs.base is scored"
    with pytest.raises(UserError, match=sentence):
        checked(config)


def test_decontaminate_names_suites_with_items(config):
    tokenize = config["corpora"]["main"]["tokenize"]
    tokenize["decontaminate"] = ["no_such"]
    sentence = "^corpora.main.tokenize.decontaminate must be one of the config's suites \\(.*\\), got 'no_such'$"
    with pytest.raises(UserError, match=sentence):
        checked(config)
    tokenize["decontaminate"] = ["validation"]
    sentence = "^corpora.main.tokenize.decontaminate must name suites with other tasks than .*, got 'validation'$"
    with pytest.raises(UserError, match=sentence):
        checked(config)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rule": "gpt4"}, "contamination.rule must be one of gpt3, palm, got 'gpt4'"),
        ({"n": 3}, "contamination.n must be a whole number at least 4 and at most 100"),
        ({"ngram": 8}, "unknown key contamination.ngram"),
        (None, "contamination must be a mapping"),
    ],
)
def test_a_mistake_in_contamination_is_named(config, keys, words):
    config["contamination"] = keys
    with pytest.raises(UserError, match=f"^{words}"):
        checked(config)


def test_a_key_that_yaml_reads_as_a_truth_value_is_named(config):
    config["runs"][True] = config["runs"].pop("base")
    with pytest.raises(UserError, match="runs has the key True, which YAML reads as another type than text: quote it"):
        checked(config)


def test_a_number_written_as_text_is_a_number(config):
    config["runs"]["base"]["pretrain"]["optimizer"]["learning_rate"] = "1e-3"
    assert checked(config)["runs"]["base"]["pretrain"]["optimizer"]["learning_rate"] == 0.001


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_a_truth_value_of_the_command_line_is_one(config, text, value):
    assert checked(config | {"tune": text})["tune"] is value


def test_numbers_of_the_command_line_are_numbers(config):
    plain, pretrain = copy.deepcopy(config), config["runs"]["base"]["pretrain"]
    pretrain |= {"steps": "120", "milestones": ["40", "120"], "shard_degree": "null", "deterministic": "false"}
    pretrain |= {"loss_guard": {"spike": "null"}}
    plain["runs"]["base"]["pretrain"] |= {"shard_degree": None, "deterministic": False, "loss_guard": {"spike": None}}
    assert checked(config) == checked(plain)


TWICE = [
    ("runs:\n  a: 1\n  b: 2\n  a: 3\n", "runs.a must stand once, got it on line 2 and on line 4"),
    ("x: [{y: 1, y: 2}]\n", "x[0].y must stand once, got it on line 1 and on line 1"),
    ('{"x": {"y": 1},\n "x": 2}', "x must stand once, got it on line 1 and on line 2"),
]


def test_a_key_that_stands_twice_is_named_with_both_lines(tmp_path):
    path = tmp_path / "mine.yaml"
    for text, sentence in TWICE:
        path.write_text(text)
        with pytest.raises(UserError) as raised:
            check_twice([path])
        assert str(raised.value) == f"{path}: {sentence}"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: {<<: *a, <<: *a}\n")
    check_twice([path, HOME / "config/config.yaml"])


def test_a_key_that_stands_twice_ends_a_plan(finished):
    finished.append("config/config.yaml", "\nsuites: {}\n")
    done = finished.dry_run("all", "--configfile", finished.path / "config/config.yaml", check=False)
    assert done.returncode == 1
    assert "suites must stand once, got it on line" in done.stderr.splitlines()[-1]


def test_only_what_the_user_wrote_is_kept(config):
    written = copy.deepcopy(config)
    made = checked(config)
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
        "suites": {"exam": config["suites"]["validation"]},
        "runs": {"first": {**config["runs"]["base"], "corpus": "library", "suites": ["exam"]}},
    }
    mine["runs"]["first"]["pretrain"]["weights"] = {"books": 1}
    planned = [output for output in finished.plan(config=mine) if "/" in output]
    shared = ("results/scores.csv", "results/summary", "results/figures/", "results/card.html", "results/pages/")
    names = ("/books/", "/small/", "/library/", "/first/")
    assert all(output.startswith(shared) or any(name in output for name in names) for output in planned)
    assert not any("base" in output or "main" in output for output in planned)


def test_one_key_on_the_command_line_keeps_the_default(finished):
    assert finished.plan("all", "--config", "rerun_on_code=False") == {}


def test_anchors_that_repeat_anchors_are_refused(config):
    laughs = ["x", "x"]
    for _ in range(60):
        laughs = [laughs, laughs]
    endless = {}
    endless["again"] = endless
    for value in (laughs, endless):
        with pytest.raises(UserError, match="the config must have at most 1,000,000 entries, got more"):
            checked(config | {"runs": value})


FOREIGN_KEYS = [
    ("runs/base/pretrain", "lr", "optimizer.learning_rate"),
    ("runs/base/pretrain", "bf16", "dtype"),
    ("runs/statements/finetune", "num_train_epochs", "epochs"),
    ("runs/statements/finetune", "warmup_steps", "schedule.warmup_steps"),
    ("runs/base/model", "n_layer", "num_hidden_layers"),
    ("sources/code", "data_files", "paths"),
    ("runs/base/pretrain/optimizer", "max_lr", "learning_rate"),
    ("runs/statements/finetune/schedule", "warmup_ratio", "warmup_steps"),
]


@pytest.mark.parametrize(("group", "name", "meant"), FOREIGN_KEYS)
def test_a_key_of_another_library_is_mapped(config, group, name, meant):
    change(config, f"{group}/{name}", 1)
    where = group.replace("/", ".")
    with pytest.raises(UserError, match=f"^unknown key {where}.{name}; did you mean {where}.{meant}\\?"):
        checked(config)


def test_every_key_that_a_name_of_another_library_maps_to_exists():
    for group, keys in FOREIGN.items():
        names = group.split(".")
        for key in keys:
            assert type_at([*names, *key.split(".")]), f"{group}.{key}"
            (own,) = groups_of(type_at(names))
            assert not {*keys[key].split()} & {*hints_of(own)} - {key}


@pytest.mark.parametrize(
    ("group", "name", "other"),
    [("runs/base/pretrain", "weights", "weihgts"), ("runs/base/model", "hidden_size", "hiden_size")],
)
def test_a_misspelled_required_key_is_unknown_and_not_missing(config, group, name, other):
    required = config
    for part in group.split("/"):
        required = required[part]
    required[other] = required.pop(name)
    where = group.replace("/", ".")
    with pytest.raises(UserError, match=f"^unknown key {where}.{other}; did you mean {where}.{name}\\?"):
        checked(config)


def test_whole_numbers_may_have_an_exponent(config):
    config["runs"]["base"]["pretrain"] |= {"steps": "1.2e2", "global_batch_size": "1e1"}
    pretrain = checked(config)["runs"]["base"]["pretrain"]
    assert (pretrain["steps"], pretrain["global_batch_size"]) == (120, 10)
    config["runs"]["base"]["pretrain"]["steps"] = "1.25e1"
    with pytest.raises(UserError, match="steps must be a whole number at least 1, got '1.25e1'"):
        checked(config)


def type_at(path):
    """The type of the key at a path; None for an unknown one."""
    return functools.reduce(below, path, Config)


def default_at(path):
    """The default of the key at a path; None without one."""
    *parents, key = path
    found = [default_of(fields_of(group)[key]) for group in groups_of(type_at(parents))]
    return next((default for default in found if default is not dataclasses.MISSING), None)


def paths_of(value, path=()):
    """Yield the path of each key that a group of the config may have."""
    known = [key for group in groups_of(type_at(path)) for key in hints_of(group)]
    for key in dict.fromkeys([*value, *known]) if isinstance(value, dict) else ():
        yield (*path, key)
        yield from paths_of(value.get(key), (*path, key))


def test_null_for_any_key_is_a_sentence_or_the_default(config):
    for path in list(paths_of(config)):
        changed = copy.deepcopy(config)
        try:
            change(changed, "/".join(path), None)
            found = checked(changed)
        except UserError:
            continue
        if default_at(path) is None and path[-1] != "sample":
            for part in path[:-1]:
                found = found[part]
            assert path[-1] not in found, path
    config["tokenizers"]["main"]["sample"] = None
    assert checked(config)["tokenizers"]["main"]["sample"] == {"code": 1, "prose": 1}


SCHEMA = yaml.safe_load((HOME / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted((HOME / "config").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_takes_each_shipped_config(path):
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_schema_takes_what_is_checked(config):
    ladder = {"target": "base", "sizes": [1e5, {"hidden_size": 64, "num_hidden_layers": 2}, "2e5", 3e5]}
    config["ladders"] = {"small": ladder | {"tokens_per_parameter": [1, "2"]}}
    config["sweeps"] = {"lr": {"base": "base", "grid": {"seed": [1, 2]}, "best": {"metric": "acc", "mode": "max"}}}
    config["runs"]["mine"] = {"from": "base", "model": {"num_hidden_layers": 2}, "pretrain": {"checkpoint": None}}
    config["runs"]["base"]["pretrain"] |= {"loss_guard": {"spike": None}, "shard_degree": None, "z_loss": "1e-4"}
    KeysReader(is_partial=True).group(Config, config, "")
    jsonschema.validate(config)

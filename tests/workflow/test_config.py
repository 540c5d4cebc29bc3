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
from tests.workflow.configs import DELETED, change, mistake_in

READERS = " or ".join(local_tasks.OF_PROMPT_COMPLETION)
CHAT = {"kind": "chat", "paths": ["a.jsonl"]}
FILE, SHAPE = {"path": "llama"}, {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
MEAN = {"initial": {"run": "base", "step": 300}, "average_weights": {"num_milestones": 2}, "suites": ["validation"]}
RESET = {"optimizer": "reset", "schedule": "reset", "data": "reset"}
MISTAKES = [
    ("baselines", {"a": {"revision": "main"}}, ".a.path is missing: it must be text"),
    ("baselines", {"a": {"path": "/nowhere"}}, ".a.path must be a directory, or a repository of the Hub (ORG/"),
    ("baselines", {"a": {"path": "/", "revision": "b"}}, ".a.revision must be omitted: baselines.a.path is a"),
    ("runn", {}, "unknown key runn; did you mean runs? known here: baselines, classifiers, contamination, corpora,"),
    ("runs/base/pretrain/steps", DELETED, " is missing: it must be a whole number at least 1"),
    ("sources", DELETED, " is missing: it must be a mapping of keys to values with at least one entry"),
    ("runs/base/pretrain", None, " must be a mapping of keys to values, got null"),
    ("runs/base/suites", [], " must be a list with at least one entry and none of them"),
    ("runs", {}, " must be a mapping of keys to values with at least one entry, got {}"),
    ("runs/base/convert/merge", False, " must be true without runs.base.finetune.lora, got false"),
    ("runs/..", {}, " must be a name of up to 100 letters, digits, dots, dashes and underscores"),
    ("runs/base\n", {}, "runs.base\\n must be a name of up to 100 letters"),
    ("sources/" + "a" * 300, {}, f"sources.{'a' * 192} must be a name of up to 100 letters"),
    ("tokenizers/main", {"path": "a{b}.json", "bos": "<s>", "eos": "</s>"}, ".path must be a path of printable char"),
    ("runs/base/model", {}, ".num_hidden_layers is missing: it must be a whole number at least 1 (or set model.from)"),
    ("runs/base/model/from", "a\nb", " must be a path of printable characters without braces"),
    ("runs/base/corpus", "big", " must be one of the config's corpora (main), got 'big'"),
    ("runs/base/suites", ["x"], " must be one of the config's suites (statements, validation), got 'x'"),
    ("corpora/main/tokenizer", "x", " must be one of the config's tokenizers (main), got 'x'"),
    ("corpora/main/sources", ["x"], " must be one of the config's sources (code, prose, statements), got 'x'"),
    ("corpora/main/tokenize/decontaminate", ["x"], " must be one of the config's suites (statements, validation), got"),
    ("corpora/main/tokenize/decontaminate", ["validation"], " must name suites with other tasks than "),
    ("tokenizers/main", {"path": "mine.json", "bos": "<s>"}, ".eos is missing: it must be text"),
    ("runs/base/pretrain/weights", {"x": 1}, " must name sources of corpus main (code, prose), got 'x'"),
    ("runs/base/pretrain/data_stages", [{"step": 2, "weights": {"x": 1}}], "[0].weights must name sources of corpus"),
    ("runs/base/pretrain/milestones", [2, 2], " must increase, got 2 after 2"),
    ("runs/base/average", 3, " must be at most the number of its milestones (2), got 3"),
    ("runs/base/pretrain/milestones", [10**7], " must be at most steps (300), got 10000000"),
    ("corpora/main/sources", ["statements"], " must be a source of text, got 'statements' of the kind"),
    ("suites/statements/prompt_completion", "prose", " must be a source of prompt-completion data (kind prompt_comple"),
    ("suites/statements/prompt_completion", DELETED, " is missing: it must be the prompt-completion source that compl"),
    ("suites/validation/prompt_completion", "statements", f"suites.validation.tasks must have {READERS}: no other"),
    ("suites/validation/sources", ["statements"], " must be a source of text, got 'statements' of the kind python-st"),
    ("runs/base/pretrain", DELETED, "runs.base must have pretrain, finetune for a tuned run, or average_weights for a"),
    ("runs/base/model", DELETED, " is missing: it must be a mapping of keys to values"),
    ("runs/statements/finetune/weights", DELETED, " is missing: it must be a mapping"),
    ("runs/statements/finetune/weights", {"docstring": 1}, " must be one of the config's sources (code, prose, statem"),
    ("runs/statements/finetune/template", "chatml", " must be omitted: no source of runs.statements.finetune.weights"),
    ("runs/statements/finetune/dpo", {}, ".beta is missing: it must be a "),
    ("runs/statements/finetune/lora", {}, ".rank is missing: it must be a "),
    ("sources/statements", CHAT, "suites.statements.prompt_completion must be a source of prompt-completion data"),
    ("sources/prose", CHAT, "tokenizers.main.sample must be a source of text, got 'prose' of the kind chat"),
    ("sources/code/validation", 0, " must be greater than 0 for corpora.main, got 0"),
    ("sources/statements/validation", 0, " must be greater than 0 for runs.statements.finetune, got 0"),
    ("runs/statements/initial", DELETED, " is missing: it must be a mapping of keys to values"),
    ("runs/statements/initial", {}, " must have run and step, or sweep, or path, got nothing"),
    ("runs/statements/initial/run", "wide", " must be one of the config's runs (base, statements), got 'wide'"),
    ("runs/statements/initial/step", 250, " must be a milestone of run base (100, 300), got 250"),
    ("runs/statements/initial/run", "statements", "runs.statements.initial must not form a cycle, got runs.statements"),
    ("runs/statements/initial", FILE, "runs.statements.corpus is missing: it must be the corpus that scores runs.stat"),
    ("runs/statements/initial/config", "config.json", " must be omitted: runs.statements.initial.run has its config"),
    ("runs/base/initial", FILE | {"config": "c"}, ".config must be omitted: a run with pretrain has the config in"),
    ("runs/statements/corpus", "main", " must be omitted: a tuned run has the corpus of its initial run"),
    ("runs/statements/model", SHAPE | {"intermediate_size": 8}, " must be omitted: a tuned run has the model of its"),
    ("runs/base/initial", FILE, "runs.base.pretrain.initial is missing: runs.base.initial makes the training"),
    ("runs/base/pretrain/initial", RESET, "runs.base.initial is missing: runs.base.pretrain.initial makes the trainin"),
    ("runs/base/average_weights", {"num_milestones": 2}, "runs.base.initial is missing: it must be a mapping of keys"),
    ("contamination", {"ngram": 8}, "unknown key contamination.ngram"),
    ("contamination", None, " must be a mapping"),
    # names of other libraries, and misspelled ones
    ("runs/base/pretrain/lr", 1, " did you mean runs.base.pretrain.optimizer.learning_rate?"),
    ("runs/statements/finetune/num_train_epochs", 1, " did you mean runs.statements.finetune.epochs?"),
    ("runs/statements/finetune/warmup_steps", 1, " did you mean runs.statements.finetune.schedule.warmup_steps?"),
    ("runs/base/pretrain/optimizer/max_lr", 1, " did you mean runs.base.pretrain.optimizer.learning_rate?"),
    ("runs/statements/finetune/schedule/warmup_ratio", 1, " did you mean runs.statements.finetune.schedule.warmup_ste"),
    ("runs/base/model/rope_scaling", {"factor": 8, "low_freq": 1}, "unknown key runs.base.model.rope_scaling.low_f"),
    ("suites/validation/task", "x", " did you mean suites.validation.tasks? known here: "),
]
OF_MEAN = [
    ({"average_weights": {"num_milestones": 3}}, "average_weights.num_milestones must be at most the "),
    ({"initial": {"run": "base", "step": 200}}, "initial.step must be a milestone of run base (100"),
    ({"initial": {"run": "wide", "step": 300}}, "initial.run must be one of the config's runs (base,"),
    ({"initial": FILE}, "initial must have run and step beside average_weights, got path"),
    ({"corpus": "main"}, "corpus must be omitted: averaged weights have the corpus of their init"),
    ({"seeds": [0, 1]}, "seeds must be omitted: averaged weights have the seed of their initial r"),
]
MISTAKES += [("runs/mean", MEAN | changes, f".{words}") for changes, words in OF_MEAN]


@pytest.mark.parametrize(("key", "value", "words"), MISTAKES, ids=[f"{key}={value}" for key, value, _ in MISTAKES])
def test_a_mistake_is_one_sentence(config, key, value, words):
    """`words`: how the sentence begins, or goes on after the key."""
    config["runs"]["base"]["pretrain"] |= {"steps": 300, "milestones": [100, 300]}
    change(config, key, value)
    dotted = key.replace("/", ".")
    start = f"unknown key {dotted};" if words.startswith(" did you mean") else dotted
    assert mistake_in(config).startswith(words if words[0].isalpha() else start + words)


def test_what_averaged_weights_do_not_have_is_refused_in_runs_and_sweeps_of_them(config):
    base = config["runs"]["base"]
    config["runs"]["mean"] = MEAN | {"initial": {"run": "base", "step": base["pretrain"]["milestones"][-1]}}
    further = base | {"initial": {"run": "mean", "step": base["pretrain"]["milestones"][-1]}}
    further["pretrain"] = base["pretrain"] | {"initial": RESET | {"optimizer": "keep"}}
    config["runs"]["further"] = further
    assert mistake_in(config).startswith("runs.further.pretrain.initial.optimizer must be reset for averaged weights")
    further["pretrain"]["initial"] = RESET
    checked(config)
    config["sweeps"] = {"seeds": {"base": "mean", "grid": {"seed": [0, 1]}}}
    assert mistake_in(config).startswith("sweeps.seeds.grid.seed must be omitted: averaged weights have that of their")


SIX_LINES = """
sources: {mine: {kind: text, paths: [texts/*.txt], validation: 0.05}}
tokenizers: {main: {vocab_size: 4096}}
corpora: {main: {}}
suites: {validation: {tasks: [bits_per_byte, next_line]}}
runs: {base: {model: {num_hidden_layers: 2, hidden_size: 128, num_attention_heads: 4, intermediate_size: 344},
  pretrain: {steps: 300, seq_len: 256, global_batch_size: 8}}}
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
    ("sources", {"statements": {"kind": "python-statements"}}, "tokenizers/main/sample", "no source of text"),
]


@pytest.mark.parametrize(("entry", "keys", "key", "words"), LEFT_OUT)
def test_a_key_that_could_name_several_entries_or_none_is_missing(config, entry, keys, key, words):
    change(config, entry, keys)
    change(config, key, DELETED)
    assert mistake_in(config).startswith(f"{key.replace('/', '.')} is missing: the config has {words}")
    if entry == "sources":
        change(config, key, {"statements": 1})
        change(config, "corpora/main/sources", DELETED)
        assert mistake_in(config).startswith("corpora.main.sources is missing: the config has no source of text")


GOING_ON = {"optimizer": "keep", "schedule": "continue", "data": "reset"}


def test_runs_that_go_on_from_each_other_or_with_another_tokenizer_are_refused(config):
    cycle = copy.deepcopy(config)
    cycle["runs"]["base"]["initial"] = {"run": "statements", "step": 100}
    cycle["runs"]["base"]["pretrain"]["initial"] = GOING_ON
    assert mistake_in(cycle) == "runs.base.initial must not form a cycle, got runs.base again"
    config["tokenizers"]["other"] = config["tokenizers"]["main"]
    config["corpora"]["other"] = config["corpora"]["main"] | {"tokenizer": "other"}
    more = config["runs"]["base"] | {"corpus": "other", "initial": {"run": "statements", "step": 100}}
    config["runs"]["more"] = more | {"pretrain": config["runs"]["base"]["pretrain"] | {"initial": GOING_ON}}
    sentence = "runs.more.corpus must have the tokenizer of its initial run (main), got other"
    assert mistake_in(config) == sentence
    config["runs"]["more"]["corpus"] = "main"
    assert checked(config)["runs"]["more"]["initial"]["run"] == "statements"


def test_dpo_needs_one_source_of_preferences(config):
    finetune = config["runs"]["statements"]["finetune"]
    finetune["dpo"] = {"beta": 0.1}
    assert mistake_in(config) == (
        "runs.statements.finetune.weights must name one source of the kind preference beside "
        "runs.statements.finetune.dpo, got statements (python-statements)"
    )
    config["sources"] |= {name: {"kind": "preference", "paths": ["a.jsonl"]} for name in ("choices", "more")}
    finetune["weights"] = {"choices": 1, "more": 1}
    assert mistake_in(config).endswith("got choices (preference), more (preference)")
    finetune["weights"] = {"choices": 1}
    assert checked(config)["runs"]["statements"]["finetune"]["dpo"] == {"beta": 0.1}


def test_a_tuned_run_has_steps_or_epochs(config):
    runs, finetune = config["runs"], config["runs"]["statements"]["finetune"]
    runs["more"] = runs["statements"] | {"initial": {"run": "statements", "step": 1}}
    for keys, found in ((finetune | {"epochs": 2}, "both"), ({**finetune}, "neither")):
        if found == "neither":
            del keys["steps"]
        runs["statements"] = runs["statements"] | {"finetune": keys}
        assert mistake_in(config) == f"runs.statements.finetune must have steps or epochs, got {found}"


def test_a_batch_of_auto_is_a_number_from_the_steps_before_anything_reads_it(config):
    config["runs"]["base"]["pretrain"] |= {"global_batch_size": "auto", "steps": "1e3"}
    config["runs"]["base"]["model"]["num_hidden_layers"] = 16
    config["ladders"] = {"tiny": {"target": "base", "sizes": [7e5, 1e6, 2e6], "tokens_per_parameter": [1, 2, 4]}}
    runs = checked(config)["runs"]
    assert runs["base"]["pretrain"]["global_batch_size"] == 8
    of_ladder = {run["pretrain"]["global_batch_size"] for name, run in runs.items() if name.startswith("tiny-")}
    assert of_ladder <= {1, 2, 4, 8}


def test_a_batch_of_auto_requires_steps(config):
    finetune = config["runs"]["statements"]["finetune"]
    del finetune["steps"]
    finetune |= {"epochs": 2, "global_batch_size": "auto"}
    assert mistake_in(config).startswith(
        "runs.statements.finetune.global_batch_size must be a number without runs.statements.finetune.steps, got auto"
    )


def test_conversations_need_a_template_of_the_run_or_of_the_model_before(config):
    runs, chats = config["runs"], {"weights": {"chats": 1}}
    config["sources"]["chats"] = {"kind": "chat", "paths": ["a.jsonl"]}
    runs["statements"]["finetune"] |= chats
    words = "runs.statements.finetune.template is missing: the source chats has conversations "
    assert mistake_in(config).startswith(words) and ", and the initial " in mistake_in(config)
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
    sentence = "suites.validation.sources must name sources of corpus main (code), with which runs.base is scored"
    assert mistake_in(config).startswith(sentence)


def test_a_key_that_yaml_reads_as_a_truth_value_is_named(config):
    config["runs"][True] = config["runs"].pop("base")
    assert mistake_in(config).startswith("runs has the key True, which YAML reads as another type than text: quote it")


def test_texts_of_the_command_line_are_what_their_keys_hold(config):
    plain, pretrain = copy.deepcopy(config), config["runs"]["base"]["pretrain"]
    pretrain |= {"steps": "3e2", "milestones": ["100", "300"], "shard_degree": "null", "deterministic": "false"}
    pretrain |= {"loss_guard": {"spike": "null"}, "optimizer": {"learning_rate": "1e-3"}}
    plain["runs"]["base"]["pretrain"] |= {"shard_degree": None, "deterministic": False, "loss_guard": {"spike": None}}
    plain["runs"]["base"]["pretrain"] |= {"steps": 300, "milestones": [100, 300], "optimizer": {"learning_rate": 0.001}}
    assert checked(config | {"tune": "true"}) == checked(plain | {"tune": True})
    pretrain["steps"] = "1.25e1"
    assert mistake_in(config).endswith("steps must be a whole number at least 1, got '1.25e1'")


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


def test_only_what_the_user_wrote_is_kept(config):
    written = copy.deepcopy(config)
    made = checked(config)
    assert config == written
    assert _keys(made) == _keys(written)


def _keys(data):
    return {key: _keys(value) for key, value in data.items()} if isinstance(data, dict) else None


def test_snakemake_ends_with_the_sentence_and_no_traceback(finished, config):
    config["runs"]["base"]["pretrain"]["steps"] = "many"
    done = finished.dry_run("--configfile", finished.write_config(config), check=False)
    assert done.returncode == 1
    assert done.stdout + done.stderr.strip() == (
        "config: runs.base.pretrain.steps must be a whole number at least 1, got 'many'"
    )
    finished.append("config/config.yaml", "\nsuites: {}\n")
    twice = finished.refusal("all", "--configfile", finished.path / "config/config.yaml")
    assert "suites must stand once, got it on line" in twice


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
        assert mistake_in(config | {"runs": value}).startswith(
            "the config must have at most 1,000,000 entries, got more"
        )


def test_every_key_that_a_name_of_another_library_maps_to_exists():
    for group, keys in FOREIGN.items():
        names = group.split(".")
        for key in keys:
            assert type_at([*names, *key.split(".")]), f"{group}.{key}"
            (own,) = groups_of(type_at(names))
            assert not {*keys[key].split()} & {*hints_of(own)} - {key}


@pytest.mark.parametrize(("group", "name"), [("pretrain", "weights"), ("model", "hidden_size")])
def test_a_misspelled_required_key_is_unknown_and_not_missing(config, group, name):
    required, where = config["runs"]["base"][group], f"runs.base.{group}"
    required[f"{name[:-1]}"] = required.pop(name)
    assert mistake_in(config).startswith(f"unknown key {where}.{name[:-1]}; did you mean {where}.{name}?")


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
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), SCHEMA)


def test_the_schema_takes_what_is_checked(config):
    ladder = {"target": "base", "sizes": [1e5, {"hidden_size": 64, "num_hidden_layers": 2}, "2e5", 3e5]}
    config["ladders"] = {"small": ladder | {"tokens_per_parameter": [1, "2"]}}
    config["sweeps"] = {"lr": {"base": "base", "grid": {"seed": [1, 2]}, "best": {"metric": "acc", "mode": "max"}}}
    config["runs"]["mine"] = {"from": "base", "model": {"num_hidden_layers": 2}, "pretrain": {"checkpoint": None}}
    config["runs"]["base"]["pretrain"] |= {"loss_guard": {"spike": None}, "shard_degree": None, "z_loss": "1e-4"}
    KeysReader(is_partial=True).group(Config, config, "")
    jsonschema.validate(config, SCHEMA)

"""Single values by `--config set=KEY=VALUE`, and a second config file whose values replace those of the first."""

import copy

import pytest

from scripts.config.values import with_overrides
from scripts.config_check import checked
from stages.lib.errors import UserError

BASE = "runs.base.pretrain"


def applied(config, given):
    return checked(with_overrides(config | {"set": given}))


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (f"{BASE}.steps=600", 600),
        (f"{BASE}.milestones=[100, 300, 600]", [100, 300, 600]),
        (f"{BASE}.optimizer.learning_rate=1e-3", 0.001),
        (f"{BASE}.schedule.kind=wsd", "wsd"),
        (f"{BASE}.loss_guard.spike=null", None),
        (f"{BASE}.deterministic=true", True),
        (f'{BASE}.weights={{"code": 3}}', {"code": 3}),
        (f"{BASE}.weights.code=3", 3.0),
        ("runs.base.card.description=a = b c", "a = b c"),
        ("suites.validation.tasks=[bits_per_byte]", ["bits_per_byte"]),
        ("tune=true", True),
    ],
)
def test_value_is_of_the_type_that_its_key_has(config, given, value):
    config["runs"]["base"]["pretrain"] |= {"steps": 900, "milestones": [100, 300]}
    found = applied(config, [given])
    for name in given.partition("=")[0].split("."):
        found = found.get(name)  # null is as if left out
    assert found == value and type(found) is type(value)


def test_one_text_holds_several_and_nothing_else_changes(config):
    made = applied(config, f"{BASE}.steps=600 tune=true  {BASE}.milestones=[300, 600]\n{BASE}.seed=3")
    pretrain = made["runs"]["base"]["pretrain"]
    assert (pretrain["steps"], pretrain["milestones"], pretrain["seed"], made["tune"]) == (600, [300, 600], 3, True)
    config["runs"]["twin"] = config["runs"]["base"]  # as an anchor of YAML shares it
    config["runs"]["llama-3.1"] = copy.deepcopy(config["runs"]["base"])
    before = copy.deepcopy(config)
    made = applied(config, f"{BASE}.seed=3 runs.llama-3.1.pretrain.seed=3")
    assert config == before and "seed" not in made["runs"]["twin"]["pretrain"]
    for run in ("base", "llama-3.1"):
        assert made["runs"][run]["pretrain"].pop("seed") == 3
    assert made == checked(before)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("runs.base.pretrian.steps=3", "unknown key runs.base.pretrian; did you mean runs.base.pretrain?"),
        ("tun=true", "unknown key tun; did you mean tune?"),
        ("runs.bse.pretrain.steps=3", "the config has no runs.bse; did you mean runs.base? runs: base, statements"),
        ("suites.x.tasks=[a]", "the config has no suites.x; suites: statements, validation"),
        (f"{BASE}.steps=many", f"{BASE}.steps must be a whole number"),
        ("runs.base.corpus.x=1", "runs.base.corpus must be a mapping of keys to values to have x, and is 'main'"),
        (f"{BASE}.steps", f"set must be KEY=VALUE, as runs.base.pretrain.steps=100, got '{BASE}.steps'"),
        ("=3", "set must be KEY=VALUE"),
        (7, "set must be KEY=VALUE, as runs.base.pretrain.steps=100, got 7"),
        (f"{BASE}.milestones=[1", f"{BASE}.milestones must be given as YAML, got '[1'"),
    ],
)
def test_mistake_is_one_sentence(config, given, sentence):
    with pytest.raises(UserError) as refused:
        applied(config, given)
    assert str(refused.value).startswith(sentence)


def test_command_line_replaces_a_value(finished_checkout):
    planned = finished_checkout.plan("all", "--config", "set=suites.validation.num_examples=400")
    assert set(planned.values()) == {"evaluate", "describe", "summarize", "all"}
    refusal = finished_checkout.refusal("all", "--config", f"set={BASE}.stepz=3")
    assert refusal.startswith(f"config: unknown key {BASE}.stepz; did you mean {BASE}.steps?")


def test_second_file_replaces_values_of_the_first_and_keeps_its_runs(pretending):
    first, second = pretending.default_config, {"suites": {"validation": {"num_examples": 9}}, "results": "second"}
    second["runs"] = {"base": {"pretrain": {"milestones": [300]}}, "wide": first["runs"]["base"]}
    files = [pretending.write_config(first, "a.yaml"), pretending.write_config(second, "b.yaml")]
    planned = pretending.jobs(pretending.dry_run("models", "--configfile", *files).stdout)
    models = {path for path, rule in planned.items() if rule == "pretrain"}
    wide = {f"second/runs/wide/models/{step:08d}.json" for step in (100, 300)}
    assert models == {"second/runs/base/models/00000300.json", *wide}
    again = pretending.jobs(pretending.dry_run("models", "--configfile", *reversed(files)).stdout)
    assert sum(rule == "pretrain" for rule in again.values()) == 4  # the milestones of the last file count

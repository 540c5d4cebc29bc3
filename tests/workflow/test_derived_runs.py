"""A run `from` another is that run with differences, as if it were written out."""

import copy

import pytest

from scripts.config_check import checked
from tests.workflow.configs import mistake_in


def runs_with(config, **runs):
    """The checked runs of a config with more runs."""
    config["runs"] |= runs
    return checked(config)["runs"]


def test_a_derived_run_equals_the_run_in_full(config):
    full = copy.deepcopy(config["runs"]["base"])
    full["pretrain"]["optimizer"] |= {"learning_rate": "1e-3", "eps": 1e-9}
    full["pretrain"]["milestones"] = [300]
    full["model"]["num_hidden_layers"] = 8
    del full["pretrain"]["checkpoint"]["keep"], full["convert"]
    differences = {
        "optimizer": {"learning_rate": "1e-3", "eps": 1e-9},
        "milestones": [300],
        "checkpoint": {"keep": None},
    }
    mine = {"from": "base", "model": {"num_hidden_layers": 8}, "pretrain": differences, "convert": None}
    runs = runs_with(config, mine=mine, full=full)
    assert runs["mine"] == runs["full"]


def test_runs_form_chains_in_any_order(config):
    first = {"from": "second", "pretrain": {"seed": 2}}
    second = {"from": "third", "pretrain": {"seed": 1, "optimizer": {"learning_rate": 1e-3}}}
    runs = runs_with(config, first=first, second=second, third={"from": "base", "suites": ["statements"]})
    base = runs["base"]["pretrain"]
    optimizer = base["optimizer"] | {"learning_rate": 1e-3}
    assert runs["first"]["pretrain"] == base | {"seed": 2, "optimizer": optimizer}
    assert runs["first"]["suites"] == ["statements"]


def test_a_run_may_replace_how_it_is_trained_and_a_key_by_null(config):
    config["runs"]["base"]["pretrain"]["watchdog"] = {"step": 5.0}
    runs = runs_with(copy.deepcopy(config), mine={"from": "base", "pretrain": {"watchdog": {"step": None}}})
    assert runs["mine"]["pretrain"]["watchdog"] == {"step": None}
    tune = config["runs"]["statements"]["finetune"]
    mine = {"from": "base", "corpus": None, "model": None, "pretrain": None, "convert": None, "finetune": tune}
    runs = runs_with(config, mine=mine | {"initial": {"run": "base", "step": 300}, "suites": ["statements"]})
    assert runs["mine"] == runs["statements"]


MISTAKES = [
    ({"from": "bsae"}, "runs.mine.from must be one of the config's runs (b, base, c, mine, statements), got 'bsae'"),
    ({"from": "mine"}, "runs.mine.from must not form a cycle, got runs.mine again"),
    ({"from": "b"}, "runs.mine.from must not form a cycle, got runs.mine again"),  # of three runs
    ({"from": ["base"]}, "runs.mine.from must be text, got ['base']"),
    ({"from": "base", "pretrain": {"stps": None}}, "unknown key runs.mine.pretrain.stps; did you mean runs.mine.pret"),
    ({"from": "base", "pretrain": {"z_loss": None}}, "runs.mine.pretrain.z_loss must be a number"),
    ({"from": "base", "pretrain": {"steps": "many"}}, "runs.mine.pretrain.steps must be a whole number at least 1,"),
    ({"from": "base", "pretrain": 3}, "runs.mine.pretrain must be a mapping of keys to values, got 3"),
]


@pytest.mark.parametrize(("run", "sentence"), MISTAKES, ids=[sentence for _, sentence in MISTAKES])
def test_a_mistake_is_one_sentence(config, run, sentence):
    config["runs"] |= {"mine": run, "b": {"from": "c"}, "c": {"from": "mine"}}
    assert mistake_in(config).startswith(sentence)


def test_a_mistake_that_a_derived_run_takes_over_is_named_where_it_stands(config):
    config["runs"]["base"]["pretrain"]["steps"] = 0
    config["runs"]["a"] = {"from": "base"}
    assert mistake_in(config) == "runs.base.pretrain.steps must be a whole number at least 1, got 0"

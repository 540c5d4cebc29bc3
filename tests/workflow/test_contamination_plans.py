"""Jobs that Snakemake plans for contamination, and changes that plan them."""

import copy
import json
import shutil

import pytest

from tests.workflow.checkout import HOME, Checkout, copy_project, outputs_of, rules_of

SEARCH = {"list_items", "find_overlaps", "find_contamination"}
PARTS = [f"{source}/{part:05d}" for source in ("code", "prose") for part in range(2)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkout with all outputs, and its config: the embedded default, whose corpus is searched for own tasks."""
    place = tmp_path_factory.mktemp("made")
    checkout, tasks = copy_project(place / "checkout"), place / "tasks"
    tasks.mkdir()
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "a.jsonl"}}, "test_split": "test"}
    for name in ("mine", "another"):
        task = {"task": name, **data, "output_type": "generate_until", "doc_to_text": "a", "doc_to_target": "b"}
        (tasks / f"{name}.yaml").write_text(json.dumps(task))
    config = Checkout(HOME).default_config | {"contamination": {}}
    config["suites"] |= {f"own_{name}": {"tasks": [name], "include_path": str(tasks)} for name in ("mine", "another")}
    config["runs"]["base"]["suites"] = ["validation", "own_mine"]
    checkout.pretend_all_is_made(config)
    return checkout, config


@pytest.fixture
def finished(made):
    """The checkout; read-only."""
    return made[0]


@pytest.fixture
def searched(made):
    """Its config, for one test to change."""
    return copy.deepcopy(made[1])


def test_nothing_is_planned_again_and_without_the_key_nothing_is_searched(finished, searched):
    assert finished.plan(config=searched) == {}
    del searched["contamination"]
    assert rules_of(finished.plan("report", "contamination", config=searched)).isdisjoint(SEARCH)


def test_the_search_is_planned_alone_for_suites_with_items(finished, searched, tmp_path):
    place = Checkout(shutil.copytree(finished.path, tmp_path / "copy", symlinks=True))
    for name in ("contamination", "overlaps", "suites"):
        shutil.rmtree(place.path / "results" / name)
    plan = place.plan("contamination", config=searched)
    assert rules_of(plan) == {*SEARCH, "contamination"}
    assert outputs_of(plan, "list_items") == ["results/suites/own_mine/items.json"]
    assert outputs_of(plan, "find_overlaps") == [f"results/overlaps/main/own_mine/{part}.json" for part in PARTS]
    assert outputs_of(plan, "find_contamination") == ["results/contamination/main/own_mine.json"]


def test_another_rule_and_an_added_suite_plan_only_their_search_and_evaluation_keys_none(finished, searched):
    planned = {"find_overlaps", "find_contamination", "describe", "summarize", "all"}
    assert rules_of(finished.plan(config=searched | {"contamination": {"rule": "palm"}})) == planned
    searched["runs"]["base"]["suites"].append("own_another")
    searched["suites"]["own_mine"] |= {"num_fewshot": 3, "limit": 10, "batch_size": 2}
    plan = finished.plan(config=searched)
    assert rules_of(plan) == {*SEARCH, "evaluate", "describe", "summarize", "all"}
    own = outputs_of(plan, *SEARCH)
    assert len(own) == 1 + len(PARTS) + 1 and all("own_another" in output for output in own)
    assert len(outputs_of(plan, "evaluate")) == 2 * 2


def test_decontaminate_plans_tokens_and_after_with_the_items_that_are_there(finished, searched):
    searched["corpora"]["main"]["tokenize"]["decontaminate"] = ["own_mine"]
    assert rules_of(finished.plan("tokens", config=searched)) == {"tokenize", "index", "tokens"}
    searched["suites"]["own_mine"]["tasks"] = ["another"]
    assert {"list_items", "tokenize", "index", "pretrain"} <= rules_of(finished.plan(config=searched))


def test_a_suite_of_local_tasks_cannot_be_searched_for(finished, searched):
    refusal = finished.refusal("results/contamination/main/validation.json", config=searched)
    assert "suite validation has no items: its tasks are made from the validation" in refusal

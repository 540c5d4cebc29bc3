"""The line by which each rule is submitted under profiles/slurm: all that a cluster gives to it stands there.

The stages only pretend, but Slurm takes the lines, and starts the jobs.
"""

import json

import pytest
import yaml

from stages.registry import STAGES
from tests.slurm.place import Place
from tests.workflow.checkout import copy_project

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OF_ONE_TASK = {
    "train_tokenizer": ("main", "-t 60 --mem 8000 --ntasks=1 --cpus-per-task=1", ""),
    "tokenize": ("main_code_00000", "-t 60 --mem 8000 --ntasks=1 --cpus-per-task=1", ""),
    "convert": ("base_00000002", "-t 60 --mem 32000 --ntasks=1 --cpus-per-task=4 --nice=100", ""),
    "evaluate": ("base_00000002_validation", "-t 120 --mem 32000 --cpus-per-task=4 --nice=100", "--gres=gpu:1"),
}
"""{rule: (wildcards, resources, what stands at the end)}."""

OF_ONE_LAUNCHER_A_NODE = {"pretrain": ("base_00000002", 720), "finetune": ("statements_00000002", 240)}
"""{rule: (wildcards, minutes)}."""


def expected(rule, of, resources, end):
    """A line without what differs between submissions, from job name to working directory."""
    logs = f"PLACE/results/logs/slurm/rule_{rule}/{of}/%j.log"
    start = (
        f"--parsable --job-name {rule}_{of} --output {logs} --export=ALL --comment rule_{rule}_wildcards_{of} -p all"
    )
    return f"{start} {resources} -D PLACE {end}".rstrip()


def submitted(place, rule, of, which=0):
    """A line by which a rule was submitted for the wildcards `of`, in the words of `expected`, without its script."""
    calls = [call for call in place.submitted(rule) if f"rule_{rule}_wildcards_{of}" in call]
    text = " ".join(argument for argument in calls[which] if not argument.startswith("--wrap="))
    return text.replace(str(place.path), "PLACE")


@pytest.fixture(scope="module")
def place(cluster, tmp_path_factory):
    """A checkout of pretending stages where all was made under profiles/slurm as it is, each rule at least once."""
    checkout = copy_project(tmp_path_factory.mktemp("pretending"))
    checkout.pretend(*STAGES.values())
    config = checkout.default_config
    config["corpora"]["main"] |= {"sources": ["code"], "tokenize": {"parts": 1}}
    config["tokenizers"]["main"]["sample"] = {"code": 1}
    config["runs"]["base"]["pretrain"] |= {"steps": 2, "milestones": [2], "weights": {"code": 1}}
    config["runs"]["statements"]["initial"]["step"] = 2
    config["runs"]["statements"]["finetune"] |= {"steps": 2, "milestones": [2]}
    checkout.write_config(config | {"tune": True}, "my.yaml")
    return Place(checkout.path, cluster, checkout.path).make("all", profile="profiles/slurm")


@pytest.fixture(scope="module")
def on_two_nodes(place):
    """The same, after both models were made again on two nodes of four GPUs."""
    path = place.path / "profiles/slurm/profile.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    for rule in OF_ONE_LAUNCHER_A_NODE:
        settings["set-resources"][rule] |= {"nodes": 2, "gres": "'gpu:4'", "ranks": 4}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return place.make("tuned", "--until", "finetune", "-R", "pretrain", profile="profiles/slurm")


def test_rules_of_one_task(place):
    for rule, words in OF_ONE_TASK.items():
        assert submitted(place, rule, words[0]) == expected(rule, *words)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (2, 4)])
def test_training_has_a_launcher_per_node(request, place, nodes, gpus):
    if nodes == 2:
        request.getfixturevalue("on_two_nodes")
    for rule, (of, minutes) in OF_ONE_LAUNCHER_A_NODE.items():
        launchers = "--cpus-per-task=8 --ntasks-per-node=1 --requeue --open-mode=append"
        line = expected(rule, of, f"-t {minutes} --mem 64000 --nodes={nodes} {launchers}", f"--gres=gpu:{gpus}")
        assert submitted(place, rule, of, which=nodes - 1) == line


def test_two_nodes_of_four_gpus_run_eight_ranks(on_two_nodes):
    for model in ("base/models/00000002.json", "statements/models/00000002.json"):
        said = json.loads((on_two_nodes.path / "results/runs" / model).read_text(encoding="utf-8"))
        assert said["ranks"] == "8"


def test_the_rest_runs_where_the_driver_does(place):
    assert not [rule for rule in ("list", "index", "summarize") if place.submitted(rule)]

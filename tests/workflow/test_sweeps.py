"""A sweep is one run per combination of its grid's values; its mistakes are one sentence each."""

import collections
import re

import pytest
import yaml

from scripts.config.references import corpus_of
from scripts.config_check import checked
from stages.lib.errors import UserError
from tests.workflow.checkout import HOME

RATE = "pretrain.optimizer.learning_rate"


def runs_of(config, grid, base="base"):
    """The checked runs of a config with a sweep `lr`."""
    config["sweeps"] = {"lr": {"base": base, "grid": grid}}
    return checked(config)["runs"]


def names_of(config, grid):
    """Names of the runs of a sweep `lr`, without those of the config."""
    return [name for name in runs_of(config, grid) if name not in config["runs"]]


def test_a_grid_makes_a_run_per_combination(config):
    runs = runs_of(config, {RATE: ["1e-3", 3e-5], "seed": [0, "1"]})
    *_, last = names = [name for name in runs if name not in config["runs"]]
    assert names == [f"lr-learning_rate_{rate}-seed_{seed}" for rate in ("0.001", "3e-05") for seed in (0, 1)]
    base = runs["base"]["pretrain"]
    optimizer = base["optimizer"] | {"learning_rate": 3e-5}
    assert runs[last] == runs["base"] | {"pretrain": base | {"seed": 1, "optimizer": optimizer}}


def test_a_key_is_named_by_its_last_part_that_no_other_has(config):
    grid = {
        "pretrain.optimizer.muon.momentum": [0.9],
        "pretrain.checkpoint.every": [5],
        "pretrain.validation.every": [7],
    }
    assert names_of(config, grid) == ["lr-momentum_0.9-checkpoint.every_5-validation.every_7"]


def test_values_of_any_kind_make_legal_names(config):
    weights = {"pretrain.weights": [{"code": 1, "prose": 2.5}, {"prose": None}], "pretrain.milestones": [[40, 120]]}
    assert names_of(config, weights) == [
        "lr-weights_code-1-prose-2.5-milestones_40-120",
        "lr-weights_prose-null-milestones_40-120",
    ]
    described, *_ = names_of(config, {"card.description": ["Made by the best of us: a Llama."]})
    assert described.startswith("lr-description_Made-by-the-best-of--")
    many = {f"pretrain.{key}": [2] for key in ("global_batch_size", "micro_batch_size", "seq_len", "validation.tokens")}
    (long,) = names_of(config, many | {"pretrain.checkpoint.every": [1], RATE: [3e-4], "seed": [1234567]})
    assert len(long) == 100


def test_the_base_may_be_derived_or_tuned(config):
    config["runs"]["small"] = {"from": "base", "model": {"num_hidden_layers": 2}}
    runs = runs_of(config, {"seed": [5]}, base="small")
    assert runs["lr-seed_5"]["model"]["num_hidden_layers"] == 2
    assert runs_of(config, {"seed": [5]}, base="statements")["lr-seed_5"]["finetune"]["seed"] == 5


def test_another_run_may_be_from_a_run_of_a_sweep(config):
    config["runs"]["long"] = {"from": "lr-seed_5", "pretrain": {"steps": 400}}
    assert runs_of(config, {"seed": [5]})["long"]["pretrain"]["seed"] == 5


def test_a_sweep_tokenizes_nothing_and_keeps_the_runs_that_exist(finished, config):
    config["sweeps"] = {"lr": {"base": "base", "grid": {RATE: [1e-3, 3e-3, 1e-2], "seed": [0, 1]}}}
    outputs = collections.Counter(finished.plan(config=config).values())
    per_milestone = dict.fromkeys(("pretrain", "convert", "evaluate", "describe"), 2 * 6)
    assert outputs == per_milestone | {"summarize": 12, "all": 1}


def test_the_example_of_the_docs_is_planned(finished, config):
    (example,) = re.findall(r"```yaml\n(.*?)```", (HOME / "docs/sweeps.md").read_text(encoding="utf-8"), re.DOTALL)
    mine = yaml.safe_load(example)
    plan = finished.plan(config=config | {"runs": config["runs"] | mine["runs"], "sweeps": mine["sweeps"]})
    trained = {path.split("/")[2] for path, rule in plan.items() if rule == "pretrain"}
    assert trained == {"small", *(f"lr-learning_rate_{rate}-seed_{seed}" for rate in (0.001, 0.003) for seed in (0, 1))}


def with_final(config, best, run, **initial):
    """A config with a sweep `lr` of `best`, and a run `final` that starts from it."""
    config["sweeps"] = {"lr": {"base": "base", "grid": {"seed": [1, 2]}, **({"best": best} if best else {})}}
    config["runs"]["final"] = run | {"initial": {"sweep": "lr"} | initial}
    return config


BEST = {"metric": "bits_per_byte", "mode": "min"}
LONGER = {"from": "base", "pretrain": {"initial": {"optimizer": "reset", "schedule": "reset", "data": "reset"}}}


def test_a_run_may_start_from_the_best_of_a_sweep(finished, config):
    given = ("--configfile", finished.write_config(with_final(config, BEST, LONGER)))
    printed = finished.dry_run("results/runs/final/models/00000040.json", *given).stdout
    ends = [f"results/runs/lr-seed_{seed}/{{}}/00000120" for seed in (1, 2)]
    models, scores = [f"{end.format('models')}.json" for end in ends], [f"{end.format('eval')}/" for end in ends]
    (before,) = re.findall(r"rule select_best:\n    input: (.*)\n    output: results/sweeps/lr/best.json\n", printed)
    assert before.split(", ") == [*models, *(f"{score}validation.json" for score in scores)]
    (inputs,) = re.findall(r"rule pretrain:\n    input: (.*)\n    output: results/runs/final/models/00000040", printed)
    assert inputs.endswith("results/sweeps/lr/best.json")
    assert finished.jobs(printed)["results/sweeps/lr/best.json"] == "select_best"


def test_a_tuned_run_has_the_corpus_of_the_sweep(config):
    tuned = {key: value for key, value in config["runs"]["statements"].items() if key != "initial"}
    runs = checked(with_final(config, BEST, tuned))["runs"]
    assert corpus_of(runs, "final") == "main"


@pytest.mark.parametrize(
    ("best", "initial", "sentence"),
    [
        (BEST, {"step": 3}, "runs.final.initial must have sweep, or run and step, or path, got sweep and step"),
        (None, {}, "runs.final.initial.sweep must be one of the config's sweeps with best (none), got 'lr'"),
        (BEST, {"sweep": "rl"}, "runs.final.initial.sweep must be one of the config's sweeps with best (lr), got 'rl'"),
        ({"metric": "acc"}, {}, "sweeps.lr.best.mode is missing: it must be one of min, max"),
        (BEST | {"metric": "nope"}, {}, "sweeps.lr.best.metric must be a metric of the suites (acc_mutual_info, "),
        (
            BEST | {"task": "nope"},
            {},
            "sweeps.lr.best.task must be a task of the runs' suites (bits_per_byte, next_line",
        ),
        (
            BEST | {"task": "next_line"},
            {},
            "sweeps.lr.best.metric must be a metric of next_line (acc_mutual_info), got 'bits_per_byte'",
        ),
        (BEST | {"mode": "least"}, {}, "sweeps.lr.best.mode must be one of min, max, got 'least'"),
    ],
)
def test_a_mistake_in_the_best_is_one_sentence(config, best, initial, sentence):
    with pytest.raises(UserError) as raised:
        checked(with_final(config, best, LONGER, **initial))
    assert str(raised.value).startswith(sentence)


def test_a_sweep_cannot_start_from_its_own_best(config):
    config["sweeps"] = {"lr": {"base": "again", "grid": {"seed": [1, 2]}, "best": BEST}}
    config["runs"]["again"] = LONGER | {"initial": {"sweep": "lr"}}
    with pytest.raises(UserError, match=r"initial must not form a cycle, got runs\.lr-seed_1 again$"):
        checked(config)


def test_the_runs_of_a_sweep_to_start_from_have_one_tokenizer(config):
    config["tokenizers"]["other"] = config["tokenizers"]["main"]
    config["corpora"]["other"] = config["corpora"]["main"] | {"tokenizer": "other"}
    config = with_final(config, BEST, LONGER)
    config["sweeps"]["lr"]["grid"] = {"corpus": ["main", "other"]}
    sentence = (
        "runs.final.initial.sweep must be a sweep whose runs have the same tokenizer, got main of lr-corpus_main and "
        "other of lr-corpus_other"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        checked(config)


MISTAKES = [
    ({}, "sweeps.lr.grid must be a mapping of keys to lists with at least one entry, got {}"),
    ({"seed": []}, "sweeps.lr.grid.seed must be a list with at least one entry, got []"),
    ({"seed": 3}, "sweeps.lr.grid.seed must be a list with at least one entry, got 3"),
    (
        {"pretrain.optimizer.learning_rat": [1]},
        "sweeps.lr.grid.pretrain.optimizer.learning_rat must be a key of a run, as pretrain.optimizer.learning_rate, "
        "or seed; did you mean pretrain.optimizer.learning_rate?",
    ),
    (
        {"learning_rate": [1]},
        "sweeps.lr.grid.learning_rate must be a key of a run, as pretrain.optimizer.learning_rate, or seed; "
        "did you mean pretrain.optimizer.learning_rate?",
    ),
    ({"from": ["base"]}, "sweeps.lr.grid.from must be a key of a run"),
    ({"pretrain.steps.a": [1]}, "sweeps.lr.grid.pretrain.steps.a must be a key of a run"),
    ({RATE: [1e-3, "1e-3"]}, f"sweeps.lr.grid.{RATE} must have each value once, got 0.001 twice: it makes equal runs"),
    ({RATE: ["fast"]}, f"sweeps.lr.grid.{RATE}[0] must be a number, got 'fast'"),
    ({RATE: [-1]}, f"runs.lr-learning_rate_-1.{RATE} must be a number greater than 0, got -1"),
    (
        {"pretrain.micro_batch_size": [2, 4]},
        "sweeps.lr.grid must make runs that differ, got equal runs lr-micro_batch_size_2 and lr-micro_batch_size_4: no "
        "key between them changes the model or its scores",
    ),
    ({"pretrain.z_loss": [0, None]}, "runs.lr-z_loss_null.pretrain.z_loss must be a number"),
    ({"pretrain.beta": [{}]}, "sweeps.lr.grid.pretrain.beta must be a key of a run"),
    (
        {"seed": list(range(40)), RATE: [i + 1 for i in range(30)]},
        "sweeps.lr.grid must make at most 1,000 runs, got 1,200",
    ),
    (
        {"seed": [1], "pretrain.seed": [2]},
        "sweeps.lr.grid.pretrain.seed must not stand beside sweeps.lr.grid.seed, which",
    ),
    (
        {"pretrain.optimizer": [{"eps": 1}], RATE: [1e-3]},
        f"sweeps.lr.grid.{RATE} must not stand beside sweeps.lr.grid.pretrain.optimizer, which sets it too",
    ),
]


@pytest.mark.parametrize(("grid", "sentence"), MISTAKES, ids=[sentence for _, sentence in MISTAKES])
def test_a_mistake_is_one_sentence(config, grid, sentence):
    with pytest.raises(UserError) as raised:
        runs_of(config, grid)
    assert str(raised.value).startswith(sentence)


def test_a_name_that_exists_is_refused(config):
    config["runs"]["lr-seed_5"] = config["runs"]["base"]
    with pytest.raises(UserError, match=r"^sweeps\.lr makes the run lr-seed_5, and runs has one of that name: rename"):
        runs_of(config, {"seed": [5]})


def test_an_unknown_base_is_named(config):
    with pytest.raises(
        UserError, match=r"^sweeps\.lr\.base must be one of the config's runs \(base, statements\), got"
    ):
        runs_of(config, {"seed": [5]}, base="bsae")


def test_1000_runs_are_checked_within_seconds(config):
    runs = runs_of(config, {"seed": list(range(1000))})
    assert len(runs) == 1002

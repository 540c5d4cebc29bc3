"""A sweep is one run per combination of its grid's values; its mistakes are one sentence each."""

import collections
import re

import pytest
import yaml

from scripts.config.references import corpus_of
from scripts.config_check import checked
from tests.workflow.checkout import HOME, Checkout
from tests.workflow.configs import mistake_in

RATE = "pretrain.optimizer.learning_rate"


def runs_of(config, grid, base="base"):
    """The checked runs of a config with a sweep `lr`."""
    config["sweeps"] = {"lr": {"base": base, "grid": grid}}
    return checked(config)["runs"]


def names_of(config, grid):
    """Names of the runs of a sweep `lr`, without those of the config."""
    return [name for name in runs_of(config, grid) if name not in config["runs"]]


def test_a_run_with_seeds_is_a_run_per_seed(config):
    config["runs"]["tuned"] = {"from": "statements", "seeds": [3, 5]}
    config["runs"]["base"]["seeds"] = ["7", 0, 1]
    config["runs"]["longer"] = {"from": "base"}
    runs = runs_of(config, {RATE: [1e-3]}, base="base-seed_1")
    base = runs["base"]
    assert base["pretrain"]["seed"] == 7
    for seed in (0, 1):
        assert runs[f"base-seed_{seed}"] == base | {"pretrain": base["pretrain"] | {"seed": seed}}
    assert [runs[name]["finetune"]["seed"] for name in ("tuned", "tuned-seed_5")] == [3, 5]
    assert runs["lr-learning_rate_0.001"]["pretrain"]["seed"] == 1
    assert not any("seeds" in run or name.startswith("longer-") for name, run in runs.items())


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ({"seeds": [0, 1, 0]}, "runs.again.seeds must be a list with at least two entries and none of them twice, got"),
        ({"seeds": [0]}, "runs.again.seeds must be a list with at least two entries"),
        ({"seeds": [0, "a"]}, "runs.again.seeds[1] must be a whole number"),
        ({"seeds": [0, 1], "pretrain": {"seed": 4}}, "runs.again.pretrain.seed must not stand beside runs.again.seeds"),
    ],
)
def test_a_mistake_in_seeds_is_one_sentence(config, run, sentence):
    config["runs"]["again"] = {"from": "base", **run}
    assert mistake_in(config).startswith(sentence)


def test_seeds_that_make_a_run_which_exists_are_refused(config):
    config["runs"]["base"]["seeds"] = [0, 1]
    config["runs"]["base-seed_1"] = {"from": "base"}
    assert mistake_in(config).startswith("runs.base.seeds makes the run base-seed_1, which exists")


def test_a_grid_makes_a_run_per_combination(config):
    runs = runs_of(config, {RATE: ["1e-3", 3e-5], "seed": [0, "1"]})
    *_, last = names = [name for name in runs if name not in config["runs"]]
    assert names == [f"lr-learning_rate_{rate}-seed_{seed}" for rate in ("0.001", "3e-05") for seed in (0, 1)]
    base = runs["base"]["pretrain"]
    optimizer = base["optimizer"] | {"learning_rate": 3e-5}
    assert runs[last] == runs["base"] | {"pretrain": base | {"seed": 1, "optimizer": optimizer}}


def test_a_run_is_named_by_the_last_parts_of_keys_and_legal_forms_of_values(config):
    keys = ("pretrain.optimizer.muon.momentum", "pretrain.checkpoint.every", "pretrain.validation.every")
    grid = {key: [value] for key, value in zip(keys, (0.9, 5, 7), strict=True)}
    assert names_of(config, grid) == ["lr-momentum_0.9-checkpoint.every_5-validation.every_7"]
    weights = {"pretrain.weights": [{"code": 1, "prose": 2.5}, {"prose": None}], "pretrain.milestones": [[100, 300]]}
    names = ("code-1-prose-2.5", "prose-null")
    assert names_of(config, weights) == [f"lr-weights_{name}-milestones_100-300" for name in names]
    described, *_ = names_of(config, {"card.description": ["Made by the best of us: a Llama."]})
    assert described.startswith("lr-description_Made-by-the-best-of--")
    many = {f"pretrain.{key}": [2] for key in ("global_batch_size", "micro_batch_size", "seq_len", "validation.tokens")}
    (long,) = names_of(config, many | {"pretrain.checkpoint.every": [1], RATE: [3e-4], "seed": [1234567]})
    assert len(long) == 100


def test_the_base_may_be_derived_or_tuned_and_another_run_may_be_from_a_run_of_a_sweep(config):
    config["runs"]["small"] = {"from": "base", "model": {"num_hidden_layers": 2}}
    runs = runs_of(config, {"seed": [5]}, base="small")
    assert runs["lr-seed_5"]["model"]["num_hidden_layers"] == 2
    assert runs_of(config, {"seed": [5]}, base="statements")["lr-seed_5"]["finetune"]["seed"] == 5
    config["runs"]["long"] = {"from": "lr-seed_5", "pretrain": {"steps": 400}}
    assert runs_of(config, {"seed": [5]})["long"]["pretrain"]["seed"] == 5


def test_a_sweep_tokenizes_nothing_and_keeps_the_runs_that_exist(finished_checkout, config):
    (example,) = re.findall(r"```yaml\n(.*?)```", (HOME / "docs/sweeps.md").read_text(encoding="utf-8"), re.DOTALL)
    mine = yaml.safe_load(example)
    config["runs"] |= mine["runs"]
    config["sweeps"] = mine["sweeps"] | {"mine": {"base": "base", "grid": {RATE: [1e-3, 3e-3, 1e-2], "seed": [0, 1]}}}
    plan = finished_checkout.plan(config=config)
    outputs = collections.Counter(rule for path, rule in plan.items() if path.startswith("results/runs/mine-"))
    assert outputs == dict.fromkeys(("pretrain", "convert", "evaluate", "describe"), 2 * 6)
    trained = {path.split("/")[2] for path, rule in plan.items() if rule == "pretrain" and "/mine-" not in path}
    assert trained == {"small", *(f"lr-learning_rate_{rate}-seed_{seed}" for rate in (0.001, 0.003) for seed in (0, 1))}
    assert {*plan.values()} == {*outputs, "summarize", "all"}


def with_final(config, best, run, **initial):
    """A config with a sweep `lr` of `best`, and a run `final` that starts from it."""
    config["sweeps"] = {"lr": {"base": "base", "grid": {"seed": [1, 2]}, **({"best": best} if best else {})}}
    config["runs"]["final"] = run | {"initial": {"sweep": "lr"} | initial}
    return config


BEST = {"metric": "bits_per_byte", "mode": "min"}
LONGER = {"from": "base", "pretrain": {"initial": {"optimizer": "reset", "schedule": "reset", "data": "reset"}}}


def test_a_run_may_start_from_the_best_of_a_sweep(finished_checkout, config):
    given = ("--configfile", finished_checkout.write_config(with_final(config, BEST, LONGER)))
    printed = finished_checkout.dry_run("results/runs/final/models/00000100.json", *given).stdout
    ends = [f"results/runs/lr-seed_{seed}/{{}}/00000300" for seed in (1, 2)]
    models, scores = [f"{end.format('models')}.json" for end in ends], [f"{end.format('eval')}/" for end in ends]
    (before,) = re.findall(r"rule select_best:\n    input: (.*)\n    output: results/sweeps/lr/best.json\n", printed)
    assert before.split(", ") == [*models, *(f"{score}validation.json" for score in scores)]
    (inputs,) = re.findall(r"rule pretrain:\n    input: (.*)\n    output: results/runs/final/models/00000100", printed)
    assert inputs.endswith("results/sweeps/lr/best.json")
    assert Checkout.jobs(printed)["results/sweeps/lr/best.json"] == "select_best"


def test_a_tuned_run_has_the_corpus_of_the_sweep(config):
    tuned = {key: value for key, value in config["runs"]["statements"].items() if key != "initial"}
    runs = checked(with_final(config, BEST, tuned))["runs"]
    assert corpus_of(runs, "final") == "main"


OF_BEST = [
    (BEST, {"step": 3}, "final.initial must have sweep, or run and step, or path, got sweep and step"),
    (None, {}, "final.initial.sweep must be one of the config's sweeps with best (none), got 'lr'"),
    (BEST, {"sweep": "rl"}, "final.initial.sweep must be one of the config's sweeps with best (lr), got 'rl'"),
    ({"metric": "acc"}, {}, "lr.best.mode is missing: it must be one of min, max"),
    (BEST | {"metric": "nope"}, {}, "lr.best.metric must be a metric of the suites (acc_mutual_info, "),
    (BEST | {"task": "nope"}, {}, "lr.best.task must be a task of the runs' suites (bits_per_byte, next_line"),
    (BEST | {"task": "next_line"}, {}, "lr.best.metric must be a metric of next_line (acc_mutual_info, bpb), got"),
    (BEST | {"mode": "least"}, {}, "lr.best.mode must be one of min, max, got 'least'"),
]


@pytest.mark.parametrize(("best", "initial", "sentence"), OF_BEST)
def test_a_mistake_in_the_best_is_one_sentence(config, best, initial, sentence):
    part = "runs" if sentence.startswith("final") else "sweeps"
    assert mistake_in(with_final(config, best, LONGER, **initial)).startswith(f"{part}.{sentence}")


def test_a_sweep_cannot_start_from_its_own_best(config):
    config["sweeps"] = {"lr": {"base": "again", "grid": {"seed": [1, 2]}, "best": BEST}}
    config["runs"]["again"] = LONGER | {"initial": {"sweep": "lr"}}
    assert mistake_in(config).endswith("initial must not form a cycle, got runs.lr-seed_1 again")


def test_the_runs_of_a_sweep_to_start_from_have_one_tokenizer(config):
    config["tokenizers"]["other"] = config["tokenizers"]["main"]
    config["corpora"]["other"] = config["corpora"]["main"] | {"tokenizer": "other"}
    config = with_final(config, BEST, LONGER)
    config["sweeps"]["lr"]["grid"] = {"corpus": ["main", "other"]}
    assert mistake_in(config) == (
        "runs.final.initial.sweep must be a sweep whose runs have the same tokenizer, got main of lr-corpus_main and "
        "other of lr-corpus_other"
    )


SWEEPABLE = " must be a key of a run, as pretrain.optimizer.learning_rate, or seed"
MISTAKES = [
    # words after sweeps.lr.grid, or runs of another sentence
    ({}, " must be a mapping of keys to lists with at least one entry, got {}"),
    ({"seed": []}, ".seed must be a list with at least one entry, got []"),
    ({"learning_rate": [1]}, f".learning_rate{SWEEPABLE}; did you mean {RATE}?"),
    ({"pretrain.optimizer.learning_rat": [1]}, f".pretrain.optimizer.learning_rat{SWEEPABLE}; did you mean {RATE}?"),
    ({"from": ["base"]}, f".from{SWEEPABLE}"),
    ({"pretrain.steps.a": [1]}, f".pretrain.steps.a{SWEEPABLE}"),
    ({"pretrain.beta": [{}]}, f".pretrain.beta{SWEEPABLE}"),
    ({RATE: [1e-3, "1e-3"]}, f".{RATE} must have each value once, got 0.001 twice: it makes equal runs"),
    ({RATE: ["fast"]}, f".{RATE}[0] must be a number, got 'fast'"),
    ({RATE: [-1]}, f"runs.lr-learning_rate_-1.{RATE} must be a number greater than 0, got -1"),
    ({"pretrain.z_loss": [0, None]}, "runs.lr-z_loss_null.pretrain.z_loss must be a number"),
    ({"pretrain.micro_batch_size": [2, 4]}, " must make runs that differ, got equal runs lr-micro_batch_size_2 and"),
    ({"seed": list(range(40)), RATE: [i + 1 for i in range(30)]}, " must make at most 1,000 runs, got 1,200"),
    ({"seed": [1], "pretrain.seed": [2]}, ".pretrain.seed must not stand beside sweeps.lr.grid.seed, which"),
    ({"pretrain.optimizer": [{"eps": 1}], RATE: [1e-3]}, f".{RATE} must not stand beside sweeps.lr.grid.pretrain.opti"),
]


@pytest.mark.parametrize(("grid", "sentence"), MISTAKES, ids=[sentence for _, sentence in MISTAKES])
def test_a_mistake_is_one_sentence(config, grid, sentence):
    config["sweeps"] = {"lr": {"base": "base", "grid": grid}}
    assert mistake_in(config).startswith(sentence if sentence.startswith("runs") else f"sweeps.lr.grid{sentence}")


def test_a_name_that_exists_and_an_unknown_base_are_named(config):
    config["sweeps"] = {"lr": {"base": "bsae", "grid": {"seed": [5]}}}
    assert mistake_in(config).startswith("sweeps.lr.base must be one of the config's runs (base, statements), got")
    config["sweeps"]["lr"]["base"] = "base"
    config["runs"]["lr-seed_5"] = config["runs"]["base"]
    assert mistake_in(config).startswith("sweeps.lr makes the run lr-seed_5, and runs has one of that name: rename")


def test_1000_runs_are_checked_within_seconds(config):
    runs = runs_of(config, {"seed": list(range(1000))})
    assert len(runs) == 1002

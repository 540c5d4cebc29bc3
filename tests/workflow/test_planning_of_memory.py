"""The target plan, and the refusal of a training that cannot fit the GPU of the profile."""

import json
import re

import pytest

LIST = "results/sources/code/list.json"


def resources(**values):
    """Options that give pretrain these resources."""
    return ["--set-resources", *(f"pretrain:{name}={value}" for name, value in values.items())]


def test_plan_writes_all_runs_of_all_and_makes_nothing_else(pretending):
    given = resources(ranks=2, device="H100", mfu="0.5", gpu_hour_price=2, runtime="2h")
    done = pretending.snakemake("plan", "--cores", 1, *given)
    plans = json.loads((pretending.path / "results/plan.json").read_text())["runs"]
    assert list(plans) == ["base"]
    assert plans["base"]["batch"]["ranks"] == 2
    request = json.loads((pretending.path / "results/logs/plan.log.request").read_text())
    assert request["runs"]["base"]["hardware"]["minutes"] == 120
    assert plans["base"]["time"]["cost"] > 0 and plans["base"]["memory"]["fits"]
    assert (pretending.path / "results/plan.txt").read_text() in done.stdout + done.stderr
    assert not (pretending.path / LIST).exists()


def test_a_training_that_cannot_fit_is_refused_before_any_job_with_a_change_that_fits(pretending):
    model, pretrain = "runs.base.model", "runs.base.pretrain"
    larger = f"{model}.num_hidden_layers=4 {model}.hidden_size=256 {model}.intermediate_size=688 "
    larger += f"{pretrain}.global_batch_size=8 {pretrain}.micro_batch_size=4"
    small = [*resources(device="L4", device_memory_gb="2.1"), "--config", f"set={larger}"]
    for dry in (["-n"], []):
        error = pretending.snakemake("models", "--cores", 1, *dry, *small, check=False).stderr.strip().splitlines()[-1]
        words = r"config: runs\.base\.pretrain needs 2\.[34] GB on each GPU, and the L4 has 2\.3 GB: it fits with "
        assert re.match(words, error)
        assert not (pretending.path / LIST).exists()
    pretending.snakemake("tokenizers", "--cores", 1, "-n", *small)  # only what is trained needs the memory


@pytest.mark.long  # it also looks for a change that fits
def test_what_was_planned_is_kept(pretending):
    given = ["models", "--cores", 1, "-n", *resources(device="H100")]
    pretending.snakemake(*given)
    (kept,) = pretending.path.rglob(".snakemake/caravan/planned_memory.json")
    (key,) = json.loads(kept.read_text())
    poisoned = json.loads(kept.read_text())
    poisoned[key]["parts"]["weights"] = 1 << 50  # shows that nothing is computed again
    kept.write_text(json.dumps(poisoned))
    assert "runs.base.pretrain needs" in pretending.snakemake(*given, check=False).stderr


def test_a_mistake_in_the_profile_is_one_sentence(pretending):
    for given, sentence in (
        ({"device": "H300"}, "the GPU must be one of H100, A100,"),
        ({"device_memory_gb": "much"}, "the resource device_memory_gb of pretrain must be a number, got 'much'"),
    ):
        assert pretending.refusal("models", "--cores", 1, *resources(**given)).startswith(f"config: {sentence}")

"""Time that Snakemake takes to plan a large config: many runs, milestones, parts and files."""

import ast
import collections
import pstats
import resource
import shutil
from pathlib import Path

import pytest

from tests.workflow.checkout import Checkout, copy_project

PLAIN = """
RUNS = [f"run{number:03d}" for number in range(50)]
STEPS = [100, 200, 300, 400, 500]
PARTS = [f"{source}/{number:03d}" for source in ("mine", "prose") for number in range(100)]

rule all:
    input: "summary.json"

rule tokenize:
    output: "tokens/{part}.json"
    shell: "tokenize {output}"

rule pretrain:
    input:
        lambda wildcards: expand("tokens/{part}.json", part=PARTS) if int(wildcards.step) == 100
        else f"{wildcards.run}/{int(wildcards.step) - 100}/model.json",
    output: "{run}/{step}/model.json"
    shell: "pretrain {input} {output}"

rule convert:
    input: "{run}/{step}/model.json"
    output: "{run}/{step}/export.json"
    shell: "convert {input} {output}"

rule evaluate:
    input: "{run}/{step}/export.json"
    output: "{run}/{step}/scores.json"
    shell: "evaluate {input} {output}"

rule summarize:
    input: expand("{run}/{step}/scores.json", run=RUNS, step=STEPS)
    output: "summary.json"
    shell: "summarize {input} {output}"
"""
"""The least that Snakemake does for the jobs of `large`: no recipe, resource, check, log or message."""

TIMES_PLAIN = 2
"""Limit of the CPU time of a plan, as a multiple of the plan of PLAIN: 1.3 at present."""

CALLS = 90
"""Limit of the calls of functions about runs, and of the rules, per job: 64 at present; a scan of 100 runs is 100."""

COUNT = """
import cProfile, sys
import snakemake.cli  # its time does not count
profile = cProfile.Profile()
try:
    profile.runcall(snakemake.cli.main, sys.argv[2:])
finally:
    profile.dump_stats(sys.argv[1])
"""


def many_runs(config, runs, milestones, parts=1):
    """A config of many runs that differ in their learning rates."""
    config["sources"]["mine"] = {"kind": "text", "paths": ["texts/*.txt"], "validation": 0.05}
    config["tokenizers"]["main"]["sample"] = {"mine": 1, "prose": 1}
    config["corpora"]["main"] |= {"sources": ["mine", "prose"], "tokenize": {"parts": parts}}
    base = config["runs"]["base"]
    for number in range(runs):
        pretrain = base["pretrain"] | {
            "weights": {"mine": 1, "prose": 1},
            "optimizer": {"learning_rate": f"{number + 1}e-6"},
            "steps": 100 * milestones,
            "milestones": [100 * count for count in range(1, milestones + 1)],
        }
        config["runs"][f"run{number:03d}"] = base | {"pretrain": pretrain}
    del config["runs"]["base"], config["runs"]["statements"]
    return config


def calls_of_plan(checkout, config, path):
    """Count the calls of each function in a dry run: `{(file, function): calls}`."""
    given = ["-n", "-q", "--cores", 1, "all", "--configfile", checkout.write_config(config)]
    checkout.python("-c", COUNT, path, *given)
    calls = collections.Counter()
    for (file, _, function), made in pstats.Stats(str(path)).stats.items():
        calls[Path(file), function] += made[0]
    return calls


def test_calls_per_job_and_per_module_do_not_grow_with_the_number_of_runs(tmp_path):
    checkout, runs = copy_project(tmp_path), 100
    (tmp_path / "texts").mkdir()
    for number in range(400):  # some of them are validation text
        (tmp_path / f"texts/{number}.txt").write_text(f"Text {number}.", encoding="utf-8")
    config = many_runs(checkout.default_config, runs, milestones=1)
    shutil.rmtree(checkout.path / "stages/__pycache__", ignore_errors=True)  # fingerprints of another plan
    calls = calls_of_plan(checkout, config, tmp_path / "calls")
    workflow = checkout.path / "workflow"
    about_jobs = sum(
        made for (file, _), made in calls.items() if workflow / "rules" in file.parents or file.name == "config_runs.py"
    )
    assert 4 * runs < about_jobs < CALLS * 4 * runs  # model, export, scores, card
    modules = len([*(checkout.path / "stages").rglob("*.py")])
    assert modules / 2 < calls[Path(ast.__file__), "parse"] <= modules


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkout of 10,000 files, and its config: 50 runs of 5 milestones, two sources of 100 parts."""
    made = copy_project(tmp_path_factory.mktemp("large"))
    (made.path / "texts").mkdir()
    for number in range(10_000):
        (made.path / f"texts/{number:05d}.txt").write_text(f"Text {number}.", encoding="utf-8")
    return made, many_runs(made.default_config, 50, milestones=5, parts=100)


def plan_and_seconds(checkout, *arguments):
    """Return the sorted rules of the jobs of a dry run, and its CPU time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    plan = checkout.jobs(checkout.python("-m", "snakemake", "-n", "all", *arguments).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sorted(plan.values()), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.long
@pytest.mark.timeout(900)
def test_10000_files_and_50_runs_of_5_milestones_plan_in_twice_the_time_of_a_plain_workflow(large, tmp_path):
    checkout, config = large
    (tmp_path / "Snakefile").write_text(PLAIN, encoding="utf-8")
    plain, plain_seconds = plan_and_seconds(Checkout(tmp_path), "--cores", 1)

    def planned(config):
        given = ["--profile", "profiles/local", "--configfile", checkout.write_config(config)]
        rules, seconds = plan_and_seconds(checkout, *given)
        if seconds > TIMES_PLAIN * plain_seconds:  # other load slowed this one more
            plain_again = plan_and_seconds(Checkout(tmp_path), "--cores", 1)[1]
            assert plan_and_seconds(checkout, *given)[1] < TIMES_PLAIN * plain_again
        return rules

    fresh = planned(config)
    assert collections.Counter(plain) <= collections.Counter(fresh)
    checkout.snakemake("results/sources/mine/list.json", "--cores", 1, "--configfile", checkout.write_config(config))
    checkout.pretend_all_is_made(config)
    assert planned(config) == []
    config["runs"]["run025"]["pretrain"]["milestones"].append(600)
    config["runs"]["run025"]["pretrain"]["steps"] = 600
    more = set(planned(config))
    assert more == {"pretrain", "convert", "evaluate", "describe", "summarize", "all"}

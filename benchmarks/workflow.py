"""Seconds of the workflow itself: plans of the default, of 10,000 files, 200 runs and many jobs; the demo by stage.

    python -m benchmarks.workflow                              # about 10 minutes on 2 cores, half of them the demo
    python -m benchmarks.workflow --files 20 --runs 4 --jobs 40 --no-demo --repeats 1   # a smoke test

A plan is `snakemake -n all`, in an empty directory. 10,000 files are those of one source; 200 runs are a sweep; the
jobs are those that prepare a corpus of many parts without its near duplicates. The demo is `snakemake all` of the
embedded default; its seconds by stage are those of the manifests, and what is left is Snakemake and the start of
processes. After it, `snakemake all` has nothing to do.
"""

import argparse
import collections
import json
import tempfile
from pathlib import Path

import yaml

from benchmarks import harness
from benchmarks.harness import HOME

PROFILE = ("--profile", HOME / "profiles/local")


def default_config():
    """Return the embedded default."""
    return yaml.safe_load((HOME / "config/config.yaml").read_text(encoding="utf-8"))


def of_files(place, number):
    """Return the default with a source of many files."""
    folder = place / "files"
    folder.mkdir()
    for name in range(number):
        (folder / f"{name:05d}.txt").write_text(f"text {name}\n", encoding="utf-8")
    config = default_config()
    config["sources"]["code"] = {"kind": "text", "paths": [str(folder)], "validation": 0.1}
    return config


def of_runs(_, number):
    """Return the default with a sweep of its run."""
    rates = [round(1e-4 * (index + 1), 6) for index in range(number // 2)]
    grid = {"pretrain.optimizer.learning_rate": rates, "seed": [0, 1]}
    return default_config() | {"sweeps": {"grid": {"base": "base", "grid": grid}}}


def of_jobs(_, number):
    """Return the default in so many parts that its corpus takes `number` jobs, those of near duplicates included."""
    config = default_config()
    corpus = config["corpora"]["main"]
    corpus["tokenize"] = {"parts": number // (4 * len(corpus["sources"])), "duplicates": "drop"}
    corpus["near_duplicates"] = {}
    return config


def plan(config):
    """Return the times of a plan; `config`: None for the default."""
    with tempfile.TemporaryDirectory() as place:
        path = None
        if config is not None:
            path = Path(place, "config.yaml")
            path.write_text(yaml.safe_dump(config), encoding="utf-8")
        words = (*PROFILE, "-n", "--quiet", "rules", "all")
        return harness.timed(harness.snakemake(place, *words, config=path))


def demo():
    """Return the times of the demo, of its stages by their manifests, and of a run with nothing to do."""
    with tempfile.TemporaryDirectory() as place:
        command = harness.snakemake(place, *PROFILE, "all")
        whole = harness.timed(command)
        return {"whole": whole, "stages": stages_of(Path(place, "results")), "again": harness.timed(command)}


def stages_of(results):
    """Return {stage: jobs, seconds, CPU-seconds} by the manifests, each once; of a training those of its first rank."""
    stages = collections.defaultdict(lambda: {"jobs": 0, "seconds": 0.0, "cpu_seconds": 0.0})
    seen = set()
    for path in sorted(results.rglob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if not {"stage", "record"} <= result.keys() or result["sha256"] in seen:  # a copy is kept beside the outputs
            continue
        seen.add(result["sha256"])
        of_stage = stages[result["stage"]]
        of_stage["jobs"] += 1
        for name in ("seconds", "cpu_seconds"):
            of_stage[name] += result["record"].get(name, 0.0)
    return dict(stages)


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "workflow")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, nargs="*", default=[1_000, 6_000, 20_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--demo", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        configs = {
            "default": None,
            f"{arguments.files:,} files": of_files(Path(place), arguments.files),
            f"{arguments.runs:,} runs": of_runs(place, arguments.runs),
        }
        configs |= {f"{jobs:,} jobs": of_jobs(place, jobs) for jobs in arguments.jobs}
        turns = [{name: plan(config) for name, config in configs.items()} for _ in range(arguments.repeats)]
    plans = harness.medians(turns)
    figures = {"plans": plans, "turns": turns} | ({"demo": demo()} if arguments.demo else {})
    for name, times in plans.items():
        print("plan of {0}: {seconds:.1f} s, {cpu_seconds:.1f} CPU-seconds".format(name, **times))
    for name in ("whole", "again") if arguments.demo else ():
        print("demo, {0}: {seconds:.1f} s, {cpu_seconds:.1f} CPU-seconds".format(name, **figures["demo"][name]))
    harness.write(arguments.output, "workflow", ("snakemake",), figures)


if __name__ == "__main__":
    main()

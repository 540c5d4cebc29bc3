"""Validation loss in bits per byte of the demo's model, trained by AdamW and by Muon on the demo's budget.

    make demo && python -m benchmarks.optimizers                       # 18 trainings of a minute or two
    python -m benchmarks.optimizers --steps 4 --seeds 0 --learning-rates 2e-3 --validation-tokens 2048   # a smoke test

Each training is the stage `pretrain` on the corpus of the demo: model, batch, schedule and steps are those of the run
`base` in config/config.yaml. Only the optimizer, its peak learning rate and the seed (initial weights and order of the
data) differ; all combinations are trained. The validation loss is that after the last step, the mean of both sources.
An optimizer is compared at the learning rate at which its mean over the seeds is best. Step time is the median over the
steps of all trainings, one at a time. A call that was cut off goes on with the training that it did not end.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks import harness
from benchmarks.harness import HOME

CORPUS = "results/tokens/main/manifest.json"
OPTIMIZERS = ("adamw", "muon")


def recipe_of(arguments, optimizer, learning_rate, seed):
    """Return the recipe of a training: that of the demo, with other keys of the optimizer."""
    run = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))["runs"][arguments.run]
    recipe = {key: value for key, value in run["pretrain"].items() if key != "milestones"}
    steps = arguments.steps or recipe["steps"]
    return recipe | {
        "model": run["model"],
        "steps": steps,
        "seed": seed,
        "optimizer": {"name": optimizer, "learning_rate": learning_rate},
        "schedule": recipe["schedule"] | {"warmup_steps": min(recipe["schedule"]["warmup_steps"], steps - 1)},
        "checkpoint": {"every": steps, "keep": 1, "asynchronous": False},
        "validation": {"every": steps, "tokens": arguments.validation_tokens},
    }


def train(arguments, optimizer, learning_rate, seed):
    """Train once in a process of its own; return its figures."""
    recipe = recipe_of(arguments, optimizer, learning_rate, seed)
    with tempfile.TemporaryDirectory(prefix="caravan-optimizers-") as made:
        results, begun = Path(made), time.perf_counter()
        output = results / "milestone.json"
        command = [sys.executable, "-m", "stages.pretrain", "--corpus", str(arguments.corpus.resolve())]
        command += ["--until", str(recipe["steps"]), "--train-dir", str(results / "train"), "--output", str(output)]
        command += ["--log", str(results / "log"), "--recipe", json.dumps(recipe)]
        environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
        subprocess.run(command, cwd=HOME, env=environment, check=True, stderr=subprocess.DEVNULL)
        found = json.loads(output.read_text())
        (metrics,) = (results / "train").glob("*/metrics.jsonl")
        entries = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [entry for entry in entries if "loss" in entry]
    validation = found["record"]["validation"]
    by_source = {source: scores["loss_bits_per_byte"] for source, scores in validation.items()}
    return {
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "seed": seed,
        "loss_bits_per_byte": statistics.mean(by_source.values()),
        "by_source": by_source,
        "training_loss": [round(entry["loss"], 4) for entry in steps[:: max(1, len(steps) // 30)]],
        "step_seconds": statistics.median(entry["seconds"] for entry in steps),
        "seconds": time.perf_counter() - begun,
        "load": os.getloadavg()[0],
    }


def summary(found):
    """Return {optimizer: its best learning rate, with the validation loss of all seeds there and at the others}."""
    summaries = {}
    for optimizer in OPTIMIZERS:
        own = [run for run in found if run["optimizer"] == optimizer]
        by_rate = {}
        for run in own:
            by_rate.setdefault(run["learning_rate"], []).append(run["loss_bits_per_byte"])
        best = min(by_rate, key=lambda rate: statistics.mean(by_rate[rate]))
        summaries[optimizer] = {
            "learning_rate": best,
            "loss_bits_per_byte": statistics.mean(by_rate[best]),
            "seeds": by_rate[best],
            "mean_by_learning_rate": {str(rate): statistics.mean(values) for rate, values in by_rate.items()},
            "step_seconds": statistics.median(run["step_seconds"] for run in own),
        }
    return summaries


def main():
    """Train all, and write the JSON file."""
    parser = harness.parser_of(__doc__, "optimizers")
    parser.add_argument("--corpus", type=Path, default=Path(CORPUS), help=f"manifest (default: {CORPUS})")
    parser.add_argument("--config", type=Path, default=HOME / "config/config.yaml", help="default: the demo's")
    parser.add_argument("--run", default="base", help="the run of the config")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3], help="peaks")
    parser.add_argument("--steps", type=int, help="default: those of the demo")
    parser.add_argument("--validation-tokens", type=int, default=1 << 16, help="per source, at most")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    found = []
    ended = arguments.output.with_suffix(".partial.jsonl")  # of a call that was cut off: an hour is long
    lines = ended.read_text(encoding="utf-8").splitlines() if ended.exists() else []
    before = dict(map(json.loads, lines))
    for seed, rate, optimizer in itertools.product(arguments.seeds, arguments.learning_rates, OPTIMIZERS):
        made = json.dumps([recipe_of(arguments, optimizer, rate, seed), arguments.threads, str(arguments.corpus)])
        run = before.get(made) or train(arguments, optimizer, rate, seed)
        if made not in before:
            with open(ended, "a", encoding="utf-8") as file:
                file.write(json.dumps([made, run]) + "\n")
        found.append(run)
        print(f"{optimizer:6} {rate:g} seed {seed}: {run['loss_bits_per_byte']:.4f} bits per byte", flush=True)
    summaries = summary(found)
    for optimizer, best in summaries.items():
        seeds = ", ".join(f"{value:.4f}" for value in best["seeds"])
        print(f"{optimizer:6} {best['loss_bits_per_byte']:.4f} bits per byte at {best['learning_rate']:g} ({seeds})")
    recipe = recipe_of(arguments, *("adamw", arguments.learning_rates[0], arguments.seeds[0]))
    figures = {
        "run": arguments.run,
        "threads": arguments.threads,
        "recipe": recipe,
        "summary": summaries,
        "runs": found,
    }
    harness.write(arguments.output, "optimizers", ("torch",), figures)
    ended.unlink()


if __name__ == "__main__":
    main()

"""Seeds as the noise of a run: how often models that differ by their seed alone are called different, and others found.

    python -m benchmarks.noise_of_a_run --work DIR               # about 10 CPU-minutes; DIR keeps the results
    python -m benchmarks.noise_of_a_run --seeds 3 --draws 4      # a smoke test

The workflow trains a small model on the demo's source `code` with many seeds, and the same model for fewer steps. All
are scored. Then groups of runs are drawn, without a run in both, and compared as `tools.compare` does: of one model, of
both models, and, as it was before seeds counted, single runs by the documents alone. A comparison is a false alarm if
it calls any task better or worse.
"""

import json
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import HOME

MODEL = {
    **{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 172},
    **{"tie_word_embeddings": True, "max_position_embeddings": 128},
}
STEPS = {"whole": 60, "shorter": 58}
"""Steps of the two models."""


def config_of(seeds):
    """Return the config of both models, each with all seeds."""
    runs = {
        name: {
            "model": MODEL,
            "pretrain": {
                **{"steps": steps, "milestones": [steps], "seq_len": 128, "global_batch_size": 16, "dtype": "float32"},
                **{"optimizer": {"name": "muon", "learning_rate": 4e-3}, "schedule": {"warmup_steps": 5}},
                **{"micro_batch_size": 16, "checkpoint": {"every": steps, "keep": 1}},
            },
            "seeds": seeds,
        }
        for name, steps in STEPS.items()
    }
    return {
        "sources": {"code": {"kind": "python-code", "validation": 0.15}},
        "tokenizers": {"main": {"vocab_size": 1024, "sample_mb": 4}},
        "corpora": {"main": {}},
        "suites": {"validation": {"tasks": ["bits_per_byte", "next_line"]}},
        "runs": runs,
    }


def trained(work, seeds):
    """Train and score all runs below a directory; return {model: its evaluations, one per seed}."""
    from stages.lib.results.manifests import Results

    path = work / "config.json"
    path.write_text(json.dumps(config_of(seeds)))
    command = harness.snakemake(work, "scores", "--profile", HOME / "profiles/local", config=path)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    results = Results((), (), sorted(work.glob("results/runs/*/eval/*/*.json")))
    of_models = {name: {} for name in STEPS}
    for (run, _, suite), evaluation in results.evaluations.items():
        of_models[run.partition("-seed_")[0]].setdefault(run, {})[suite] = evaluation
    return {name: list(runs.values()) for name, runs in of_models.items()}


def found(reference, other, with_seeds=True):
    """Return {task, metric: verdict} of two groups of runs; without seeds, of the first run of each."""
    from stages.lib.results.differences import Replicas, compare

    replicas = Replicas(reference, other, [reference, other]) if with_seeds else None
    return {row.label: row.verdict for row in compare(reference[0], other[0], replicas)[0]}


def main():
    """Train, compare, and write the JSON file."""
    parser = harness.parser_of(__doc__, "noise_of_a_run")
    parser.add_argument("--work", type=Path, help="a directory that keeps the results")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--draws", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="caravan-noise-") as made:
        work = (arguments.work or Path(made)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        models = trained(work, list(range(arguments.seeds)))
        scores = {
            name: {
                f"{task}, {metric}": [run["validation"].identity["results"][task][metric]["value"] for run in runs]
                for task, metrics in runs[0]["validation"].identity["results"].items()
                for metric in metrics
            }
            for name, runs in models.items()
        }
        whole, shorter = (models[name] for name in STEPS)
        rng, verdicts = np.random.default_rng(0), {}

        def draw(name, size, pair, with_seeds=True):
            drawn = []
            for _ in range(arguments.draws):
                order = rng.permutation(arguments.seeds)
                first, second = order[:size], order[size : 2 * size]
                drawn.append(found([pair[0][at] for at in first], [pair[1][at] for at in second], with_seeds))
            verdicts[name] = {
                "runs": size,
                "any_task_differs": sum(any(one in ("better", "worse") for one in of.values()) for of in drawn),
                "by_task": {task: sum(of[task] in ("better", "worse") for of in drawn) for task in drawn[0]},
            }

        sizes = [size for size in (3, 6) if 2 * size <= arguments.seeds] or [1]
        draw("one model, single runs by documents alone", 1, (whole, whole), with_seeds=False)
        for size in sizes:
            draw(f"one model, {size} and {size} seeds", size, (whole, whole))
            draw(f"two models, {size} and {size} seeds", size, (whole, shorter))
    effects = {}
    for task, values in scores["whole"].items():
        others = scores["shorter"][task]
        deviation = np.sqrt((statistics.variance(values) + statistics.variance(others)) / 2)
        effects[task] = {"deviation": deviation, "difference_in_deviations": float(np.mean(others) - np.mean(values))
                         / deviation if deviation else None}  # fmt: skip
    for name, verdict in verdicts.items():
        by_task = ", ".join(f"{task} {count}" for task, count in verdict["by_task"].items())
        print(f"{name}: {verdict['any_task_differs']} of {arguments.draws} differ in a task ({by_task})")
    harness.write(
        arguments.output,
        "noise_of_a_run",
        ("torch",),
        {"steps": STEPS, "seeds": arguments.seeds, "draws": arguments.draws, "effects": effects, "verdicts": verdicts,
         "cpu_seconds": harness.cpu_seconds(), "scores": scores},
    )  # fmt: skip


if __name__ == "__main__":
    main()

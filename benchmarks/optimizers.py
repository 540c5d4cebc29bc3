"""Validation loss in bits per byte of the demo's model, trained by AdamW, Muon and NorMuon.

    make demo && python -m benchmarks.optimizers          # about 40 trainings of a minute
    python -m benchmarks.optimizers --size 4x256 --steps 60 --output second.json
    python -m benchmarks.optimizers --steps 4 --seeds 0 --learning-rates 2e-3 --validation-tokens 2048   # a smoke test

Each training is the stage `pretrain` on the corpus of the demo: model, batch, schedule and steps are those of the run
`base` in config/config.yaml, of another size with `--size`. Only the optimizer, its peak learning rate and the seed
(initial weights and order of the data) differ; all combinations are trained. The rate is that of the layers' matrices:
beside Muon and NorMuon, embedding and norms have AdamW with the demo's keys, and AdamW alone has one rate for all. The
validation loss is that after the last step, the mean of both sources.

An optimizer is compared at the learning rate at which its mean over the seeds is best: after equal steps, and after
equal CPU-seconds, for which the cheaper ones are trained again with as many more steps as their steps are cheaper.
CPU-seconds are those of the stage, on one thread. A call that was cut off resumes with the trainings that did not end.
"""

import concurrent.futures
import itertools
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks import harness

RATES = {"adamw": (1e-3, 2e-3, 4e-3), "muon": (4e-3, 8e-3, 16e-3), "normuon": (4e-3, 8e-3, 16e-3)}
"""Peak learning rates by optimizer. On the demo the best of Muon and NorMuon lies inside, and AdamW's is the lowest."""


def recipe_of(arguments, optimizer, learning_rate, seed, steps):
    """Return the recipe of a training: that of the demo, with other keys of the optimizer."""
    recipe = harness.recipe_of(arguments, seed, steps, steps, arguments.validation_tokens)
    keys, model = recipe["optimizer"], recipe["model"]
    named = keys.get("name", "adamw")
    own = {"learning_rate": learning_rate}
    if optimizer != "adamw":
        of_matrices = keys.get(named) or {}
        shared = {key: value for key, value in of_matrices.items() if key != "beta2"}
        own = {"learning_rate": float(keys["learning_rate"]), optimizer: shared | own}
    kept = {key: value for key, value in keys.items() if key not in (named, "name", "learning_rate")}
    if arguments.size:
        layers, width = map(int, arguments.size.split("x"))
        model = model | {
            "num_hidden_layers": layers,
            "hidden_size": width,
            "intermediate_size": width * 8 // 3 // 8 * 8,
        }
    return recipe | {"model": model, "optimizer": kept | {"name": optimizer} | own}


def train(corpus, recipe):
    """Train once in a process of its own; return its figures."""
    with tempfile.TemporaryDirectory(prefix="caravan-optimizers-") as made:
        results = Path(made)
        words = harness.training_words(corpus.resolve(), results, recipe)
        harness.run_stage("pretrain", *words, OMP_NUM_THREADS="1")
        found = json.loads((results / "milestone.json").read_text())["record"]
    by_source = {source: scores["loss_bits_per_byte"] for source, scores in found["validation"].items()}
    return {"loss_bits_per_byte": statistics.mean(by_source.values()), "cpu_seconds": found["cpu_seconds"]} | by_source


def train_all(arguments, ended, trainings):
    """Return the figures of trainings, (optimizer, learning rate, seed, steps)."""

    def figures_of(training):
        recipe = recipe_of(arguments, *training)
        figures = dict(zip(("optimizer", "learning_rate", "seed", "steps"), training, strict=True))
        figures |= ended.figures_of([recipe, str(arguments.corpus)], train, arguments.corpus, recipe)
        print("{optimizer:8} {learning_rate:g} seed {seed}, {steps} steps: {loss_bits_per_byte:.4f}".format(**figures))
        return figures

    with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        return list(pool.map(figures_of, trainings))


def mean_of(runs, key="loss_bits_per_byte"):
    """Return the mean of a figure."""
    return statistics.mean(run[key] for run in runs)


def summary_of(runs):
    """Return the figures of one optimizer at one learning rate, its seeds in their order."""
    return {
        **{"learning_rate": runs[0]["learning_rate"], "steps": runs[0]["steps"]},
        **{"loss_bits_per_byte": mean_of(runs), "seeds": [run["loss_bits_per_byte"] for run in runs]},
        "cpu_seconds": mean_of(runs, "cpu_seconds"),
    }


def main():
    """Train all, and write the JSON file."""
    parser = harness.training_parser_of(__doc__, "optimizers")
    parser.add_argument("--size", metavar="LAYERSxWIDTH", help="another size of the model (default: the run's)")
    parser.add_argument("--learning-rates", type=float, nargs="+", help="peaks of all (default: three of each)")
    parser.add_argument("--steps", type=int, help="default: those of the demo")
    parser.add_argument("--processes", type=int, default=1, help="trainings that run at the same time")
    arguments = parser.parse_args()
    steps = arguments.steps or harness.run_of(arguments)["pretrain"]["steps"]
    ended = harness.EndedRuns(arguments.output)
    rates = {name: tuple(arguments.learning_rates or given) for name, given in RATES.items()}
    in_turns = [
        (name, rate) for group in zip(*rates.values(), strict=True) for name, rate in zip(rates, group, strict=True)
    ]
    wanted = itertools.product(arguments.seeds, in_turns)
    found = train_all(arguments, ended, [(name, rate, seed, steps) for seed, (name, rate) in wanted])
    equal_steps, by_rate = {}, {}
    for name, tried in rates.items():
        own = [run for run in found if run["optimizer"] == name]
        at_rates = [[run for run in own if run["learning_rate"] == rate] for rate in tried]
        equal_steps[name] = summary_of(min(at_rates, key=mean_of))
        by_rate[name] = {str(runs[0]["learning_rate"]): mean_of(runs) for runs in at_rates}
    most = max(one["cpu_seconds"] for one in equal_steps.values())
    equal_cpu = {}
    for name, one in equal_steps.items():
        more = max(steps, round(steps * most / one["cpu_seconds"]))
        runs = train_all(arguments, ended, [(name, one["learning_rate"], seed, more) for seed in arguments.seeds])
        found += runs if more != steps else []
        equal_cpu[name] = summary_of(runs)
    for title, summary in (("steps", equal_steps), ("CPU-seconds", equal_cpu)):
        print(f"after equal {title}, at the best learning rate")
        for name, one in summary.items():
            line = "{loss_bits_per_byte:.4f} bits per byte at {learning_rate:g}, {steps} steps, {cpu_seconds:.1f} CPU-s"
            print(f"  {name:8} {line.format(**one)}")
    figures = {"run": arguments.run, "recipe": recipe_of(arguments, "muon", rates["muon"][0], 0, steps)}
    figures |= {"equal_steps": equal_steps, "equal_cpu_seconds": equal_cpu, "by_learning_rate": by_rate, "runs": found}
    ended.write("optimizers", ("torch",), figures)


if __name__ == "__main__":
    main()

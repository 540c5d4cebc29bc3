"""One ladder past the plateau of token frequencies, with and without the correction of learning rates by the horizon.

    python -m benchmarks.ladder_past_plateau --directory DIR    # hours: 24 small trainings and the target; resumable

The data are those of the embedded default, with a tokenizer of few tokens. Both ladders have the same target; that with
`horizon_exponent: 0.3` lowers the peak learning rate of longer trainings. The workflow in DIR trains them, and writes
both predictions, with the errors of the law on the points that it was not fitted to; then it trains the target. The
predictions are repeated with ten seeds of the bootstrap.
"""

import os
import subprocess
from pathlib import Path

import yaml

from benchmarks import harness

SIZES = [
    {"hidden_size": 48, "num_hidden_layers": 1},
    {"hidden_size": 48, "num_hidden_layers": 2},
    {"hidden_size": 64, "num_hidden_layers": 2},
    {"hidden_size": 80, "num_hidden_layers": 2},
]
LADDER = {"target": "base", "sizes": SIZES, "tokens_per_parameter": [10, 20, 40]}
LADDERS = {"plain": LADDER, "horizon": LADDER | {"horizon_exponent": 0.3}}
MODEL = {"num_hidden_layers": 3, "hidden_size": 112, "num_attention_heads": 7, "intermediate_size": 304}
RATES = {"learning_rate": 1.6e-2, "beta1": 0.8, "beta2": 0.99, "normuon": {"learning_rate": 4e-3, "momentum": 0.9}}
PRETRAIN = {
    "steps": 5010,  # 20 tokens per parameter
    "weights": {"code": 1, "prose": 1},
    "seq_len": 256,
    "global_batch_size": 8,
    "dtype": "float32",
    "optimizer": {"name": "normuon", **RATES},
    "schedule": {"warmup_steps": 100},
    "micro_batch_size": 8,
    "checkpoint": {"every": 1000, "keep": 1},
    "validation": {"every": 1_000_000, "tokens": 131_072},
}
CONFIG = {
    "sources": {name: {"kind": f"python-{name}", "validation": 0.15} for name in ("code", "prose")},
    "tokenizers": {"main": {"vocab_size": 512, "sample": {"code": 1, "prose": 1}}},
    "corpora": {"main": {"tokenizer": "main", "sources": ["code", "prose"], "tokenize": {"parts": 2}}},
    "suites": {"validation": {"tasks": ["bits_per_byte"], "num_examples": 500}},
    "runs": {
        "base": {
            "model": MODEL | {"tie_word_embeddings": True, "max_position_embeddings": 256},
            "pretrain": PRETRAIN,
        }
    },
    "ladders": LADDERS,
}
SEEDS = 10


def made(directory, cores):
    """Let the workflow train and predict in a directory; return the manifests of both predictions and of the target."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    command = harness.snakemake(directory, "--cores", cores, config=directory / "config.yaml")
    target = f"results/runs/base/models/{PRETRAIN['steps']:08d}.json"
    for targets in (["ladders"], [target]):  # a forecast is there before its target is trained
        subprocess.run([*command, "--rerun-incomplete", "--", *targets], check=True)
    return {name: directory / f"results/ladders/{name}.json" for name in LADDERS}, directory / target


def figures_of(prediction, target):
    """Return the points, the law, the outcome, and the predictions by further seeds of the bootstrap."""
    from stages.lib import manifest
    from stages.lib.scaling_law import outcome
    from stages.lib.scaling_law.law import Points, Prediction

    forecast, model = manifest.read(prediction, "predict"), manifest.read(target, "pretrain")
    measured = outcome.measured(forecast, {("base", model.identity["step"]): model})
    row = next(row for row in outcome.rows(forecast, measured) if row["measure"] == "loss")
    identity = forecast.identity
    result = identity["results"]["loss"]
    points = Points.of((point["parameters"], point["tokens"], point["loss"]) for point in identity["points"])
    bootstraps = []
    for seed in range(SEEDS):
        interval = Prediction(points, seed).of(identity["parameters"], identity["recipe"]["tokens"])
        bootstraps.append([float(f"{bound[0]:.6g}") for bound in (interval.low, interval.high)])
    return {
        "digest": forecast.digest,
        "predicted": forecast.record["started"],
        "target_started": model.record["started"],
        "loss": {key: row[key] for key in ("value", "low", "high", "measured", "error", "inside")},
        "law": result["law"],
        "scatter": result["scatter"],
        "held_out": result["held_out"],
        "bootstraps": bootstraps,
        "points": [[point["run"], point["parameters"], point["tokens"], point["loss"]] for point in identity["points"]],
    }


def main():
    """Train, predict, and write the JSON file."""
    parser = harness.parser_of(__doc__, "ladder_past_plateau")
    parser.add_argument("--directory", type=Path, required=True, help="of the workflow; a further call resumes there")
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    predictions, target = made(arguments.directory, arguments.cores)
    ladders = {name: figures_of(path, target) for name, path in predictions.items()}
    for name, of in ladders.items():
        loss, held_out = of["loss"], of["held_out"]
        print(
            f"{name}: {loss['value']:.4f} predicted ({loss['low']:.4f} to {loss['high']:.4f}), {loss['measured']:.4f} "
            f"measured, off by {loss['error']:+.2%}; largest out {held_out['largest_out']:.2%}, leave one out "
            f"{held_out['leave_one_out']:.2%}"
        )
    harness.write(arguments.output, "ladder_past_plateau", ("torch", "scipy"), {"config": CONFIG, "ladders": ladders})


if __name__ == "__main__":
    main()

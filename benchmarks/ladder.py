"""The loss of a model, predicted by a ladder of four smaller sizes before it is trained; once per seed.

    python -m benchmarks.ladder                       # 10 seeds, each 12 small trainings and the target
    python -m benchmarks.ladder --seeds 5 --sizes 18e3 26e3 36e3 --ratios 0.3 0.6 1 --target-ratio 0.1   # a smoke test

The data are those of the embedded default, with a tokenizer of few tokens, so that most parameters are not those of the
embedding. The workflow makes the corpus and expands the ladder; `stages.pretrain` and `stages.predict` run in this
process. A seed is that of the initial weights and of the order of the data, of ladder and target alike.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import yaml

from benchmarks import harness
from benchmarks.harness import HOME

sys.path.append(str(HOME / "workflow"))

TARGET = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 176}
PRETRAIN = {
    "weights": {"code": 1, "prose": 1},
    "seq_len": 128,
    "global_batch_size": 8,
    "dtype": "float32",
    "optimizer": {"learning_rate": 4e-3},
    "micro_batch_size": 8,
    "validation": {"every": 1_000_000, "tokens": 32768},
}


def config_of(arguments, seed):
    """Return the config of a seed with the runs of its ladder: the default's data, a target and a ladder."""
    from scripts.config_check import checked
    from scripts.sweeps.ladders import num_parameters
    from stages.lib.model.architectures import LlamaRecipe

    config = yaml.safe_load((HOME / "config/config.yaml").read_text(encoding="utf-8"))
    config["tokenizers"]["main"]["vocab_size"] = arguments.vocab_size
    model = TARGET | {"tie_word_embeddings": True, "max_position_embeddings": PRETRAIN["seq_len"]}
    tokens = arguments.target_ratio * num_parameters(LlamaRecipe(**model), arguments.vocab_size)
    steps = round(tokens / (PRETRAIN["seq_len"] * PRETRAIN["global_batch_size"]))
    recipe = PRETRAIN | {"steps": steps, "seed": seed, "schedule": {"warmup_steps": max(1, steps // 10)}}
    recipe["checkpoint"] = {"every": 1_000_000, "keep": 1, "asynchronous": False}
    config["runs"] = {"target": {"corpus": "main", "model": model, "pretrain": recipe, "suites": ["validation"]}}
    config["suites"].pop("statements")
    ladder = {"target": "target", "sizes": arguments.sizes, "tokens_per_parameter": arguments.ratios}
    config["ladders"] = {"ladder": ladder}
    return config, checked(config)


def make_corpus(arguments, place):
    """Let the workflow make the corpus below `place`; return its manifest."""
    config = place / "config.yaml"
    config.write_text(yaml.safe_dump(config_of(arguments, 0)[0]), encoding="utf-8")
    command = harness.snakemake(place, "tokens", "--cores", 2, "--quiet", "all", config=config)
    subprocess.run(command, check=True, stdout=sys.stderr)
    return place / "results/tokens/main/manifest.json"


def train(run, name, corpus, place):
    """Train a run in this process; return its manifest's path."""
    from stages import pretrain

    recipe = run["pretrain"] | {"model": run["model"]}
    output = place / f"runs/{name}/models/{recipe['steps']:08d}.json"
    options = {"corpus": corpus, "until": recipe["steps"], "train-dir": output.parents[1] / "train", "output": output}
    options |= {"recipe": json.dumps(recipe), "log": place / "log"}
    code = pretrain.main([word for key, value in options.items() for word in (f"--{key}", str(value))])
    assert code == 0, (place / "log").read_text()
    shutil.rmtree(output.parents[1] / "train")
    return output


def predicted(arguments, seed, corpus, place):
    """Train the ladder of a seed, predict, and train the target; return the prediction beside what came out."""
    begun = time.process_time()
    from scripts.sweeps.ladders import planned_tokens
    from stages import predict
    from stages.lib import manifest
    from stages.lib.scaling_law import outcome

    config = config_of(arguments, seed)[1]
    runs, target, output = config["runs"], config["runs"]["target"], place / "ladder.json"
    models = [train(runs[name], name, corpus, place) for name in config["ladders"]["ladder"]["runs"]]
    recipe = {"target": "target", "model": target["model"], "weights": target["pretrain"]["weights"]}
    recipe |= {"tokens": planned_tokens(target)}
    options = ["--corpus", str(corpus), "--recipe", json.dumps(recipe), "--output", str(output)]
    assert predict.main(["--models", *map(str, models), *options, "--log", str(place / "log")]) == 0
    made = train(target, "target", corpus, place)
    prediction = manifest.read(output, "predict")
    found = outcome.measured(prediction, {("target", 0): manifest.read(made)})
    rows = {row["measure"]: row for row in outcome.rows(prediction, found)}
    identity = prediction.identity
    points = [
        {key: value for key, value in point.items() if key != "loss_bits_per_byte"} for point in identity["points"]
    ]
    target = {"parameters": identity["parameters"], "tokens": recipe["tokens"]}
    laws = {name: {key: result[key] for key in ("law", "scatter")} for name, result in identity["results"].items()}
    seconds = {"cpu_seconds": round(time.process_time() - begun, 1)}
    return {"seed": seed, **target, "rows": rows, "fits": laws, "points": points, **seconds}


def shown(result):
    """Print the prediction of the loss of a seed; return the result."""
    row = result["rows"]["loss"]
    print(
        f"seed {result['seed']}: {row['value']:.4f} predicted ({row['low']:.4f} to {row['high']:.4f}), "
        f"{row['measured']:.4f} measured, off by {row['error']:+.2%}, inside: {row['inside']}",
        flush=True,
    )
    return result


def main():
    """Predict and train for each seed, and write the JSON file."""
    parser = harness.parser_of(__doc__, "ladder")
    parser.add_argument("--corpus", type=Path, help="manifest of a corpus with this vocabulary (default: it is made)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--sizes", type=float, nargs="+", default=[42e3, 60e3, 82e3, 112e3], help="parameters")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 1, 2], help="tokens per parameter")
    parser.add_argument("--target-ratio", type=float, default=1, help="tokens per parameter of the target")
    parser.add_argument("--processes", type=int, default=1, help="seeds that run at the same time")
    parser.add_argument("--vocab-size", type=int, default=512)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="caravan-ladder-") as made:
        corpus = (arguments.corpus or make_corpus(arguments, Path(made))).resolve()
        with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
            jobs = [pool.submit(predicted, arguments, seed, corpus, Path(made, str(seed))) for seed in arguments.seeds]
            found = [shown(job.result()) for job in jobs]
    inside = {name: sum(one["rows"][name]["inside"] for one in found) for name in ("loss", "loss_bits_per_byte")}
    print(f"inside the interval: {inside} of {len(found)} seeds")
    figures = {"target": TARGET, "pretrain": PRETRAIN, "seeds": len(found), "inside": inside, "runs": found}
    figures["cpu_seconds"] = round(sum(one["cpu_seconds"] for one in found))
    harness.write(arguments.output, "ladder", ("torch", "scipy"), figures)


if __name__ == "__main__":
    main()

"""CPU-seconds of the stage `evaluate`, beside lm-evaluation-harness' own command line on the same tasks.

    make demo && python -m benchmarks.evaluate          # the demo's model and its suite, some minutes

Both score `bits_per_byte` and `next_line`, from the start of the process to its end. The harness reads the task files
that the stage writes, and scores each choice after a context of its own.
"""

import json
import sys
import tempfile
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import CORPUS
from stages.lib import manifest

EXPORT = "results/runs/base/export/00000300/manifest.json"
"""The last model of the demo."""


def harness_command(arguments, output):
    """Return the command line of the harness, for the tasks that the stage wrote."""
    export = manifest.read(arguments.export)
    model = {"pretrained": export.directory, "dtype": "float32", "max_length": export.identity["seq_len"]}
    model["add_bos_token"] = False
    words = ",".join(f"{name}={value}" for name, value in model.items())
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", words, "--device", "cpu"]
    tasks = ",".join(sorted(manifest.read(output).identity["results"]))
    command += ["--tasks", tasks, "--include_path", str(output.with_suffix("")), "--batch_size", "16"]
    return [*command, "--output_path", str(output.parent / "harness")]


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "evaluate")
    parser.add_argument("--export", type=Path, default=Path(EXPORT), help=f"manifest (default: {EXPORT})")
    parser.add_argument("--corpus", type=Path, default=Path(CORPUS), help=f"manifest (default: {CORPUS})")
    parser.add_argument("--examples", type=int, default=500, help="questions of next_line")
    parser.add_argument("--repeats", type=int, default=2, help="turns of both")
    arguments = parser.parse_args()
    turns, recipe = [], {"tasks": ["bits_per_byte", "next_line"], "num_examples": arguments.examples}
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "suite.json"
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": scratch}
        for _ in range(arguments.repeats):
            words = ["--export", arguments.export, "--corpus", arguments.corpus, "--output", output]
            own = harness.timed(harness.stage("evaluate", *words, "--recipe", json.dumps(recipe)), **offline)
            turns.append({"caravan": own, "harness": harness.timed(harness_command(arguments, output), **offline)})
    best = {
        name: {unit: min(turn[name][unit] for turn in turns) for unit in ("seconds", "cpu_seconds")}
        for name in ("caravan", "harness")
    }
    ratio = {unit: best["caravan"][unit] / best["harness"][unit] for unit in ("seconds", "cpu_seconds")}
    print(f"caravan {best['caravan']['cpu_seconds']:.1f} CPU-seconds, {ratio['cpu_seconds']:.2f} x the harness")
    figures = {"examples": arguments.examples, "best": best, "ratio": ratio, "turns": turns}
    harness.write(arguments.output, "evaluate", ("lm_eval", "torch", "transformers"), figures)


if __name__ == "__main__":
    main()

"""Plan each run before anything is trained: memory, FLOPs, data, disk, time and cost.

    python -m tools.plan config/llama2-7b.yaml --gpu A100-80GB --ranks 8 --nodes 16 --mfu 0.55 --price 2.5
    python -m tools.plan my.yaml --run base --gpu H100 --ranks 8 --fit
    python -m tools.plan < request.json

Without CONFIG it reads a request as JSON (tools/plan/request.py), which the target `plan` makes from the
config and the profile. Memory is that of the training step itself, run without a GPU, memory or other ranks: a shape or
sharding that does not work is found as well. The exit code is 2 if a run does not fit its GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib import files, stage
from stages.lib.errors import UserError
from stages.lib.manifest import AVERAGE, PLAN_FORMAT
from tools.ablate import setting
from tools.plan import estimate, fit, plan_text, request
from tools.plan.request import Asked

PROPOSALS = 3
"""Number of settings that --fit prints."""

EXPANDED = ("sweeps", "ladders")
"""Sections from which only the workflow makes runs."""


def runs_of(path: Path, only: str | None, vocab_size: int | None, results: Path) -> dict[str, Any]:
    """Return the runs of a request, see `request.py`, without hardware. `only`: the name of one run.

    Raises UserError if the run is missing, or is not written in full.
    """
    config = setting.load(path, only)
    runs = config["runs"]
    for section in EXPANDED:
        if section in config:
            raise UserError(
                f"{path} has {section}, which only the workflow expands: "
                f"`snakemake --profile profiles/local plan --configfile {path}`"
            )
    requests: dict[str, Any] = {}
    for name in [only] if only else runs:
        run = runs[name]
        stage = setting.stage_of(run)
        if stage is None and isinstance(run, dict) and AVERAGE in run:  # nothing is trained
            continue
        if stage is None:
            raise UserError(
                f"runs.{name} must have pretrain or finetune to be read without the workflow; "
                f"`snakemake --profile profiles/local plan --configfile FILE` reads every config"
            )
        keys = {key: value for key, value in run[stage].items() if key != "milestones"}
        model, own_size = setting.model_of(config, name)
        requests[name] = {"stage": stage, "keys": keys, "model": model}
        requests[name]["milestones"] = run[stage].get("milestones", [keys["steps"]] if "steps" in keys else [])
        size = vocab_size or own_size or setting.tokenizer_size(config, name)
        if size is not None:
            requests[name]["vocab_size"] = size
        corpus = run.get("corpus")
        if isinstance(corpus, str):
            tokenizer = (config.get("corpora") or {}).get(corpus, {}).get("tokenizer")
            requests[name]["corpus"] = str(results / f"tokens/{corpus}/manifest.json")
            requests[name]["tokenizer"] = {"manifest": str(results / f"tokenizers/{tokenizer}/manifest.json")}
    return requests


def run(arguments: argparse.Namespace) -> None:
    """Print the plans, write them, and refuse what does not fit."""
    asked_for = request_of(arguments)
    reached = estimate.mfu_by_device(Path(asked_for["results"]))
    plans: dict[str, Any] = {}
    paragraphs: dict[str, str] = {}
    fitting = []
    for name, asked_run in asked_for["runs"].items():
        asked = request.read(name, asked_run)
        if isinstance(asked, str):
            plans[name], text = {"unknown": asked}, f"  no plan: {asked}"
        else:
            plans[name] = estimate.plan_of(asked, reached, arguments.cache)
            text = plan_text.of_run(plans[name])
            fitting.append(asked)
            if arguments.fit:
                text += "\n" + proposals(asked, arguments.cache)
        paragraphs[name] = text
    text = plan_text.of_runs(paragraphs, plans)
    print(text, end="")
    if arguments.text is not None:
        with files.atomic(arguments.text, "w") as file:
            file.write(text)
    if arguments.json is not None:
        files.write_json(arguments.json, {"format": PLAN_FORMAT, "runs": plans})
    if not arguments.fit:
        for asked in fitting:
            fit.check(asked, arguments.cache)


def request_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the request: of the config with the options, or of stdin."""
    if arguments.config is None:
        keys: Any = {}
        with contextlib.suppress(ValueError):
            keys = files.parse_json(sys.stdin.read())
        keys = keys if isinstance(keys, dict) else {}
        if not (isinstance(keys.get("results"), str) and isinstance(keys.get("runs"), dict)):
            raise UserError(
                "without CONFIG, stdin must hold a request with results and runs, see tools/plan/request.py"
            )
        return keys
    fields = {field.name for field in dataclasses.fields(request.Hardware)}
    hardware = {name: value for name, value in vars(arguments).items() if name in fields and value is not None}
    runs = runs_of(arguments.config, arguments.run, arguments.vocab_size, arguments.results)
    planned = {name: run | {"hardware": hardware} for name, run in runs.items()}
    return {"results": str(arguments.results), "runs": planned}


def proposals(asked: Asked, cache: Path | None) -> str:
    """Return the settings that fit, one per line, the fastest first. Raises UserError if no GPU is named."""
    gpu = asked.hardware.gpu()
    if gpu is None:
        raise UserError("--fit needs --gpu, or --memory-gb: the GPU that the run must fit")
    proposed = list(itertools.islice(fit.proposals(asked.subject, gpu, cache), PROPOSALS))
    if not proposed and (more := fit.more_ranks(asked.subject, gpu, cache)) is not None:
        proposed = [more]
    lines = [fit.sentence(asked.subject, subject) for subject in proposed]
    return "  " + "\n  ".join([f"fits with {line}" if line else "fits as it is" for line in lines] or ["nothing fits"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("tools.plan", __doc__)
    add = parser.add_argument
    add("config", type=Path, nargs="?", metavar="CONFIG", help="a config (default: a request on stdin)")
    add("--run", metavar="NAME", help="plan this run only")
    add("--gpu", dest="device", metavar="NAME", help="the GPU, for example H100 or A100-40GB")
    add("--memory-gb", dest="device_memory_gb", type=float, metavar="N", help="GiB of one GPU")
    add("--peak-tflops", dest="device_peak_tflops", type=float, metavar="N", help="its dense bfloat16 peak")
    add(
        "--copy-gb-per-second",
        type=float,
        metavar="N",
        help="its copies, measured, with --matrix-tflops: for the bound",
    )
    add("--matrix-tflops", type=float, metavar="N", help="its bfloat16 products, measured by benchmarks.gpu.ceilings")
    add("--ranks", type=int, default=1, metavar="N", help="GPUs per node (default: 1)")
    add("--nodes", type=int, default=1, metavar="N", help="nodes (default: 1)")
    add("--mfu", type=float, metavar="SHARE", help="for example 0.4 (default: that of earlier runs of these results)")
    add("--tokens-per-second", type=float, metavar="N", help="per GPU, in place of an MFU")
    add("--price", type=float, metavar="N", help="price of one GPU for an hour")
    add("--limit", dest="minutes", type=float, metavar="MINUTES", help="time limit of a job")
    add("--vocab-size", type=int, metavar="N", help="number of token ids (default: that of the config)")
    add("--fit", action="store_true", help="print settings that fit, the fastest first")
    add("--results", type=Path, default=Path("results"), metavar="DIR", help="results directory (default: results)")
    add("--cache", type=Path, metavar="DIR", help="keep computed memory here")
    add("--text", type=Path, metavar="FILE", help="write the text here, too")
    add("--json", type=Path, metavar="FILE", help="write all figures here")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

"""Print the state of every run: step, speed, time left, last checkpoint, why it stopped, milestones and scores.

Jobs of the same workflow that run or wait in the queue of Slurm follow.

    python -m tools.status --results results
    python -m tools.status --results results --watch
    python -m tools.status --results results --unused

--watch shows one screen with one line per run, and refreshes it every 5 s, or every SECONDS, until Ctrl-C: runs that
train, then those that wait, then those that are done; if there are more than fit on the screen, the others are counted.
The curve is the loss of the whole run. Into a file or a pipe the screens go one after the other, with all runs.

--unused lists the run directories that no milestone refers to, with their sizes; it deletes nothing. A run that has not
reached its first milestone is among them: exclude its digest with --keep.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest, ModelManifest
from stages.lib.render import numbers
from stages.lib.results.scores import main_metric
from stages.lib.run_directory import lease
from stages.lib.space import amount
from tools.status import page
from tools.status.page import jobs_of
from tools.status.state import describe


def run(arguments: argparse.Namespace) -> None:
    """Print the state of all runs, or the unused run directories; or show one line per run until Ctrl-C."""
    if not arguments.results.is_dir():
        raise UserError(f"--results must be a directory, got {arguments.results}")
    if arguments.watch is not None:
        page.watch(arguments.results, arguments.watch)
        return
    directories = sorted(path for path in arguments.results.glob("runs/*/train/*") if path.is_dir())
    if arguments.unused:
        print_unused(directories, arguments.keep)
        return
    for name in sorted(path.name for path in arguments.results.glob("runs/*") if path.is_dir()):
        own = [path for path in directories if path.parents[1].name == name]
        print_run(arguments.results / "runs" / name, own)
    if not directories:
        print(f"no run has started in {arguments.results}")
    if jobs := jobs_of(arguments.results.resolve().parent):
        print("in the queue of Slurm")
        for job in jobs:
            print(f"  {job}")


def seconds_of(text: str) -> float:
    """Read the seconds of --watch. Raises argparse's error unless they are a number from 1 on."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"the seconds between two screens must be 1 to 86400, got {text}")
    return seconds


def print_run(home: Path, directories: Sequence[Path]) -> None:
    """Print the state of each run directory of a run, then the scores of its milestones."""
    models = [model for path in sorted(home.glob("models/*.json")) if (model := _read(path, *manifest.MODELS))]
    for model in models:
        if model.stage == manifest.AVERAGE:
            steps = ", ".join(f"{int(step):,}" for step in model.identity.get("models", ()))
            print(f"{home.name} in {model.path}: the mean of the weights at the steps {steps} of another run")
    for directory in directories:
        own = [model for model in models if _run_directory_name(model) == directory.name]
        note = "" if own else " (no milestone yet)"
        print(f"{home.name} in {directory}{note}")
        for label, text in describe(directory, own):
            print(f"  {label:<12} {text}")
    for name in sorted(path.name for path in home.glob("eval/*") if path.is_dir()):
        label = f"scores {name.lstrip('0')}"
        for path in sorted(home.glob(f"eval/{name}/*.json")):
            metrics = {}
            evaluation = _read(path, "evaluate")
            for task, scores in evaluation.identity["results"].items() if evaluation else ():
                metric = main_metric(scores)
                metrics[task if metric == "bits_per_byte" else f"{task} {metric}"] = scores[metric]["value"]
            text = ", ".join(f"{task} {numbers.score(value)}" for task, value in metrics.items())
            print(f"  {label:<12} {path.stem}: {text if evaluation else 'not readable'}")


def print_unused(directories: Sequence[Path], keep: Sequence[str]) -> None:
    """List run directories that no milestone refers to, without those in training and those of the digests `keep`."""
    total = 0
    for directory in directories:
        models = (_read(path, *manifest.MODELS) for path in directory.parents[1].glob("models/*.json"))
        used = {_run_directory_name(model) for model in models if model}
        is_excluded = any(digest.startswith(directory.name) for digest in keep)
        if directory.name in used or is_excluded or lease.holder(directory):
            continue
        size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        total += size
        print(f"{amount(size):>12}  {directory}")
    print(f"{amount(total):>12}  in run directories that no milestone refers to")


def _run_directory_name(model: ModelManifest) -> str:
    return Path(model.record.get("run_directory", "")).name


def _read(path: Path, *stages: str) -> Manifest | None:
    """Return the manifest of one of `stages`; None if it vanished, as may happen during a run, or is not JSON.

    Raises UserError if it is another manifest, or changed since it was written.
    """
    try:
        data = files.read_json(path)
    except UserError:
        return None
    return manifest.parse(path, data, *stages)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.status", __doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--watch",
        type=seconds_of,
        nargs="?",
        const=page.SECONDS,
        metavar="SECONDS",
        help=f"show one screen for all runs, every {page.SECONDS} s",
    )
    only.add_argument("--unused", action="store_true", help="list run directories that no milestone refers to")
    parser.add_argument("--keep", nargs="*", default=[], metavar="DIGEST", help="with --unused: exclude these")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

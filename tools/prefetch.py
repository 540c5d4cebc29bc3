"""Download evaluation data from the Hugging Face Hub into the cache, for jobs on nodes without internet.

    python -m tools.prefetch --tasks hellaswag arc_easy
    snakemake --profile profiles/slurm prefetch          # all tasks of the config's suites

The cache is HF_HOME, which must be on the shared file system; jobs then need HF_HUB_OFFLINE=1 (see
profiles/slurm/environment.sh). Cached data is not downloaded again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import stage
from stages.lib.errors import UserError
from stages.lib.scoring import harness, local_tasks, task_code

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


def run(arguments: argparse.Namespace) -> None:
    """Load each task once, which stores its data in the cache."""
    tasks = [task for task in dict.fromkeys(arguments.tasks) if task not in local_tasks.NAMES]
    if not tasks:
        print("nothing to download: all tasks are made from the validation split")
        return
    for path in arguments.include_path:
        task_code.check(Path(path), arguments.trust_task_code, "--trust-task-code")
    harness.settle_environment(alone=False)
    if arguments.include_path and not arguments.trust_task_code:
        task_code.guard_templates()
    known = ", ".join(["an --include-path", *local_tasks.NAMES])
    manager = harness.task_manager(arguments.include_path, tasks, known)
    for task in tasks:
        print(f"{task}: {download(task, manager):,} documents", flush=True)
    import datasets

    print(f"stored in {datasets.config.HF_DATASETS_CACHE}")


def download(task: str, manager: TaskManager) -> int:
    """Load a task or a group of tasks; return its number of documents. Raises UserError if that fails."""
    from lm_eval.tasks import get_task_dict

    try:
        return _num_documents(get_task_dict([task], manager))
    except Exception as error:  # of datasets, huggingface_hub, requests, or a task's own code
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"--tasks {task} could not be downloaded: {reason}") from error


def _num_documents(loaded: Any) -> int:
    if isinstance(loaded, dict):
        return sum(_num_documents(inner) for inner in loaded.values())
    return len(loaded.eval_docs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.prefetch", __doc__)
    parser.add_argument("--tasks", nargs="*", default=[], help="tasks of lm-evaluation-harness")
    parser.add_argument("--include-path", nargs="*", default=[], metavar="DIR", help="directories of more task files")
    parser.add_argument("--trust-task-code", action="store_true", help="run the Python code that these files name")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Download evaluation data from the Hugging Face Hub into the cache, for jobs on nodes without internet.

    python -m tools.prefetch --tasks hellaswag arc_easy
    snakemake --profile profiles/slurm prefetch          # all tasks of the config's suites

The cache is HF_HOME, which must be on the shared file system; jobs then need HF_HUB_OFFLINE=1 (see
profiles/slurm/environment.sh). Cached data is not downloaded again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stages.lib import stage
from stages.lib.scoring import harness, scored_model, task_code
from stages.lib.scoring.tasks import local_tasks


def run(arguments: argparse.Namespace) -> None:
    """Load each task once, which stores its data in the cache, and download the baselines."""
    tasks = [task for task in dict.fromkeys(arguments.tasks) if task not in local_tasks.NAMES]
    if not tasks and not arguments.baselines:
        print("nothing to download: all tasks are made from the validation split")
        return
    trust = task_code.Trust(trusted=arguments.trust_task_code, setting="--trust-task-code")
    for path in arguments.include_path:
        task_code.check(Path(path), trust)
    harness.settle_environment(offline=False)
    for baseline in arguments.baselines:
        name, _, revision = baseline.partition("@")
        print(f"{baseline}: {scored_model.downloaded(name, revision or None)}", flush=True)
    if not tasks:
        return
    if arguments.include_path and not trust.trusted:
        task_code.guard_templates()
    known = ", ".join(["an --include-path", *local_tasks.NAMES])
    manager = harness.task_manager(arguments.include_path, tasks, known, "--tasks", trust=trust)
    for task in tasks:
        loaded = manager.load([task])["tasks"].values()
        print(f"{task}: {sum(len(each.eval_docs) for each in loaded):,} documents", flush=True)
    import datasets

    print(f"stored in {datasets.config.HF_DATASETS_CACHE}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.prefetch", __doc__)
    parser.add_argument("--tasks", nargs="*", default=[], help="tasks of lm-evaluation-harness")
    parser.add_argument("--baselines", nargs="*", default=[], metavar="ID[@REVISION]", help="repositories of the Hub")
    parser.add_argument("--include-path", nargs="*", default=[], metavar="DIR", help="directories of more task files")
    parser.add_argument("--trust-task-code", action="store_true", help="run the Python code that task files name")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

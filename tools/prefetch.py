"""Bring what evaluation reads from the Hugging Face Hub into the cache, for jobs on nodes without internet.

    python -m tools.prefetch --tasks hellaswag arc_easy
    snakemake --profile profiles/slurm prefetch          # all tasks of the config's suites

The cache is that of HF_HOME, which must lie on the shared file system; jobs then want HF_HUB_OFFLINE=1 (see
profiles/slurm/environment.sh). What is there already is not brought again.
"""

import sys

from stages.lib import stage
from stages.lib.errors import UserError
from stages.lib.scoring import harness, local_tasks


def run(arguments):
    """Load each task once, which leaves its data in the cache."""
    wanted = [task for task in dict.fromkeys(arguments.tasks) if task not in local_tasks.NAMES]
    if not wanted:
        print("nothing to bring: all tasks are made from what is held out")
        return
    harness.settle_environment(alone=False)
    known = ", ".join(["an --include-path", *local_tasks.NAMES])
    manager = harness.task_manager(arguments.include_path, wanted, known)
    for task in wanted:
        print(f"{task}: {bring(task, manager):,} documents", flush=True)
    import datasets

    print(f"They are in {datasets.config.HF_DATASETS_CACHE}")


def bring(task, manager):
    """Load a task or a group of tasks; returns its number of documents. Raises UserError where that fails."""
    from lm_eval.tasks import get_task_dict

    try:
        return _documents(get_task_dict([task], manager))
    except Exception as error:  # of datasets, huggingface_hub, requests, or a task's own code
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"--tasks {task} could not be brought: {reason}") from error


def _documents(loaded):
    if isinstance(loaded, dict):
        return sum(_documents(inner) for inner in loaded.values())
    return len(loaded.eval_docs)


def main(argv=None):
    """Run the stage; returns its exit code."""
    parser = stage.parser("tools.prefetch", __doc__)
    parser.add_argument("--tasks", nargs="*", default=[], help="tasks of lm-evaluation-harness")
    parser.add_argument("--include-path", nargs="*", default=[], metavar="DIRECTORY", help="where more task files lie")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())

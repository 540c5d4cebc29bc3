"""The registry of local tasks, and their files. They need no network, and exist for every corpus.

bits_per_byte_SOURCE   log-likelihood of validation text: metrics bits_per_byte and byte_perplexity
next_line              which of four lines comes next in validation text: metric acc_mutual_info, chance 0.25
completion_choice      which of four completions belongs to a validation prompt: acc_mutual_info, chance 0.25
completion_bits        bits per byte of validation completions given their prompts: metric bits_per_byte
completion_match       exact match of generated completions: metrics exact_match, and stopped by EOS
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.manifest import CorpusManifest
from stages.lib.scoring.aggregations import BITS_OF_ANSWER
from stages.lib.scoring.tasks import task_files, text_pieces
from stages.lib.scoring.tasks.choices import NextLine
from stages.lib.scoring.tasks.completions import CompletionBits, CompletionChoice, CompletionMatch
from stages.lib.scoring.tasks.task import LocalTask, PromptCompletionTask, ReaderScores, Row, TaskOptions, TextTask
from stages.lib.scoring.tasks.text_pieces import BitsPerByte
from stages.lib.sources.examples import PairSource

TASKS: tuple[LocalTask, ...] = (BitsPerByte(), NextLine(), CompletionChoice(), CompletionBits(), CompletionMatch())
"""All local tasks, in the order of tables."""

NAMES = tuple(task.name for task in TASKS)
OF_TEXT = tuple(task.name for task in TASKS if isinstance(task, TextTask))
OF_PROMPT_COMPLETION = tuple(task.name for task in TASKS if isinstance(task, PromptCompletionTask))
METRICS = {
    task.name: [metric["metric"] for metric in task.format.config["metric_list"]]
    + [BITS_OF_ANSWER] * (task.format.config["output_type"] == "multiple_choice")
    for task in TASKS
}
GENERATING = tuple(task.name for task in TASKS if task.format.config["output_type"] == "generate_until")


def find(name: str) -> LocalTask | None:
    """Return the local task that wrote a task of the harness, given as TASK or SUITE/TASK; None if none did."""
    harness_task = name.rpartition("/")[2]
    return next((task for task in TASKS if task.matches(harness_task)), None)


def chance_of(name: str, metric: str) -> float | None:
    """Return what guessing scores in a local task, by its main metric; None for all others."""
    task = find(name)
    return task.chance if task is not None and task.metric == metric else None


def write(
    directory: Path, names: Collection[str], corpus: CorpusManifest, pairs: PairSource | None, options: TaskOptions
) -> dict[str, ReaderScores]:
    """Write the files of the local tasks `names`; returns {name for the harness: scores of trivial readers}.

    `pairs` may be None if no task is of prompts and completions. Raises UserError if the validation data is missing or
    too small.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tasks = [task for task in TASKS if task.name in names]
    of_text = [task for task in tasks if isinstance(task, TextTask)]
    if of_text:
        num_bytes = max(task.pool_bytes(options) for task in of_text)
        text = text_pieces.read(corpus, options.seed, num_bytes, options.sources)
        if not text.pools:
            listed = ", ".join(task.name for task in of_text)
            raise UserError(f"{corpus.path} must have validation text for {listed}, but no source of it has any")
    written: dict[str, ReaderScores] = {}
    for task in tasks:
        rows: dict[str, list[Row]] = {}
        if isinstance(task, TextTask):
            rows = task.rows(text, options)
        elif isinstance(task, PromptCompletionTask):
            assert pairs is not None
            rows = task.rows(pairs, options)
        for name, of_task in rows.items():
            task_files.write(directory, name, task.format, of_task)
            written[name] = task.format.trivial(of_task)
    return written


def files_of(directory: Path) -> list[Path]:
    """Return the files of all local tasks in a directory."""
    return sorted(path for name in NAMES for path in directory.glob(f"{name}*"))

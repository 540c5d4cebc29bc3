"""Tasks of lm-evaluation-harness as files: NAME.yaml beside NAME.jsonl, which its own command line reads too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.scoring.tasks import completion_score, generation_score, trivial_readers
from stages.lib.scoring.tasks.task import HarnessFormat, Row

MAX_NEW_TOKENS = 64
"""Tokens that a model generates at most, EOS included: a model that never stops generates all of them."""


def _metric(name: str, aggregation: str, higher_is_better: bool) -> dict[str, Any]:
    return {"metric": name, "aggregation": aggregation, "higher_is_better": higher_is_better}


ROLLING = HarnessFormat(
    config={
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [
            _metric("bits_per_byte", "bits_per_byte", higher_is_better=False),
            _metric("byte_perplexity", "weighted_perplexity", higher_is_better=False),
        ],
    },
    trivial=trivial_readers.bits_of_texts,
)
"""The log-likelihood of all of each row's `text`."""

MULTIPLE_CHOICE = HarnessFormat(
    config={
        "output_type": "multiple_choice",
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [_metric("acc_mutual_info", "mean", higher_is_better=True)],
    },
    trivial=trivial_readers.accuracies,
)
"""Questions: `context`, `choices`, and `answer`, the index of the right choice.

The predicted choice is the one whose log p(choice | context) - log p(choice) is highest. The wrong choices are right
ones of other questions, so a model that has not read the context expects each with p(choice); by Bayes' rule the odds
that a choice is right are then p(choice | context) / p(choice). A model of 5 M parameters after 0.5 M tokens was right
in 0.52 of 400 questions of next_line by this rule, and in 0.29 by log p(choice | context) alone, which mostly measures
how common a line is.
"""

COMPLETION = HarnessFormat(
    config={
        "output_type": "loglikelihood",
        "doc_to_text": "context",
        "doc_to_target": "completion",
        "target_delimiter": "",
        "metric_list": [_metric("bits_per_byte", "mean", higher_is_better=False)],
    },
    trivial=trivial_readers.bits_of_completions,
    score_file=Path(completion_score.__file__),
)
"""The log-likelihood of each row's `completion` after its `context`."""

GENERATION = HarnessFormat(
    config={
        "output_type": "generate_until",
        "doc_to_text": "context",
        "doc_to_target": "completion",
        "target_delimiter": "",
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": MAX_NEW_TOKENS},
        "metric_list": [_metric(name, "mean", higher_is_better=True) for name in ("exact_match", "stopped")],
    },
    trivial=trivial_readers.exact_matches,
    score_file=Path(generation_score.__file__),
)
"""The text that a model generates after each row's `context`, which must be its `completion`."""


def write(directory: Path, name: str, task_format: HarnessFormat, rows: Sequence[Row]) -> None:
    """Write a task. The path of NAME.jsonl in NAME.yaml is absolute: `datasets` resolves it in the working directory.

    NAME.py is a copy of the format's score file, which the harness imports from beside the YAML file.
    """
    import yaml

    data = directory / f"{name}.jsonl"
    with files.atomic(data, "w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if task_format.score_file is not None:
        shutil.copyfile(task_format.score_file, directory / f"{name}.py")
    head = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
            "test_split": "test"}  # fmt: skip
    config = {**head, **task_format.config, "metadata": {"version": 1}}
    with files.atomic(directory / f"{name}.yaml", "w") as file:
        yaml.safe_dump(config, file, sort_keys=False, allow_unicode=True)
        if task_format.score_file is not None:
            file.write(f"process_results: !function {name}.score\n")

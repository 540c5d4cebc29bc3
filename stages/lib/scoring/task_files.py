"""Tasks of lm-evaluation-harness as files: NAME.yaml beside NAME.jsonl, so that its own command line reads them too."""

import json
import shutil

from stages.lib import files
from stages.lib.scoring import completion_score


def write_rolling(directory, name, pieces):
    """Write a task that scores all of each piece's `text`."""
    config = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [
            {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False},
            {"metric": "byte_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False},
        ],
    }
    _write(directory, name, config, pieces)


def write_choice(directory, name, questions):
    """Write a task of questions: `context`, `choices`, and `answer`, the number of the right one."""
    config = {
        "output_type": "multiple_choice",
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc_mutual_info", "aggregation": "mean", "higher_is_better": True}],
    }
    _write(directory, name, config, questions)


def write_completions(directory, name, rows):
    """Write a task that scores each row's `completion` behind its `context`; NAME.py beside it holds the score."""
    config = {
        "output_type": "loglikelihood",
        "doc_to_text": "context",
        "doc_to_target": "completion",
        "target_delimiter": "",
        "metric_list": [{"metric": "bits_per_byte", "aggregation": "mean", "higher_is_better": False}],
    }
    shutil.copyfile(completion_score.__file__, directory / f"{name}.py")
    _write(directory, name, config, rows, f"process_results: !function {name}.score\n")


def _write(directory, name, config, rows, more=""):
    """The path in NAME.yaml is absolute, as `datasets` reads it from where it runs. `more`: lines of YAML."""
    import yaml

    data = directory / f"{name}.jsonl"
    with files.atomic(data, "w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    head = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
            "test_split": "test"}  # fmt: skip
    with files.atomic(directory / f"{name}.yaml", "w") as file:
        yaml.safe_dump({**head, **config, "metadata": {"version": 1}}, file, sort_keys=False, allow_unicode=True)
        file.write(more)

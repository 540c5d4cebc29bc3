"""Items of a suite written by hand, tasks of lm-evaluation-harness in files, and sources with chosen splits."""

import itertools
import json

from stages.lib import manifest
from stages.lib.contamination import items
from stages.lib.sources.entries import split_of
from tests.helpers.data_fixtures import lines_listed, write_jsonl

SHARE = 0.1


def write_items(output, texts, suite="mine"):
    """Write the items of a suite, `{task: texts}`, as stages.list_items does; return the path of the manifest."""
    made = [items.Item(task, number, text) for task, of_task in texts.items() for number, text in enumerate(of_task)]
    directory = output.with_suffix("")
    items.write(directory, made)
    outputs = {f"{directory.name}/{items.FILE}": manifest.describe(directory / items.FILE)}
    identity = {
        "recipe": {"tasks": list(texts)},
        "suite": suite,
        "tasks": {task: len(of) for task, of in texts.items()},
    }
    manifest.write(output, "list_items", identity | {"outputs": outputs}, {"code": None})
    return output


def write_task(directory, name, rows, **keys):
    """Write the files of a task; JSON is YAML."""
    data = {"data_files": {"test": write_jsonl(directory / f"{name}.jsonl", rows)}}
    config = {"task": name, "test_split": "test", "dataset_path": "json", "dataset_kwargs": data, **keys}
    (directory / f"{name}.yaml").write_text(json.dumps(config))


def source_of(root, name, train, validation=("some validation text",)):
    """The list of a source of texts of the training and the validation split."""
    keys = {split: _key(split) for split in ("train", "validation")}
    entries = [{"text": text, "key": keys["train"]} for text in train]
    entries += [{"text": text, "key": keys["validation"]} for text in validation]
    return lines_listed(root, entries, name, split_field="key", validation=SHARE)


def _key(split):
    return next(key for key in map(str, itertools.count()) if split_of(key, SHARE) == split)

"""Write the 22 tasks of DCLM's CORE as task files, from the evaluation bundle that nanochat and others score.

    python -m tools.core_tasks https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip data/core
    snakemake --profile profiles/slurm scores --configfile my.yaml config/suites/core.yaml

The bundle is a directory or a zip file, here or behind a URL, with core.yaml (tasks, numbers of solved examples),
eval_meta_data.csv (the score of a guess) and eval_data/. Each question is written with its solved examples, drawn as
nanochat's core_eval draws them, so the prompts are the same, character for character. The group `core` has the score:
the mean over the tasks of `centered`, which is 0 for a guess and 1 for all answers right.

Sources: Li et al., DataComp-LM, 2024, arXiv:2406.11794; nanochat, core_eval.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stages.lib import files, stage
from stages.lib.errors import UserError

GROUP = "core"
ORDER_SEED, EXAMPLES_SEED = 1337, 1234
"""Seeds of core_eval: of the order of a task's items, and, with the number of an item added, of its examples."""

Item = dict[str, Any]
Prompt = Callable[[Item, Sequence[Item], str], dict[str, Any]]
"""(item, solved examples, delimiter) -> row of the task."""


def choice_row(item: Item, examples: Sequence[Item], delimiter: str) -> dict[str, Any]:
    """Return a question with choices: the choice of the highest mean log-likelihood per token counts."""
    solved = "".join(f"{one['query']}{delimiter}{one['choices'][one['gold']]}\n\n" for one in examples)
    return {"text": f"{solved}{item['query']}{delimiter}", "choices": item["choices"], "answer": item["gold"]}


def schema_row(item: Item, examples: Sequence[Item], delimiter: str) -> dict[str, Any]:
    """Return a question of winograd's form: the context after which the same text is likeliest counts."""
    solved = "".join(f"{one['context_options'][one['gold']]}{delimiter}{one['continuation']}\n\n" for one in examples)
    contexts = [f"{solved}{context}{delimiter}" for context in item["context_options"]]
    return {"answer": item["gold"], "contexts": contexts, "continuation": item["continuation"]}


def text_row(item: Item, examples: Sequence[Item], delimiter: str) -> dict[str, Any]:
    """Return a text to continue: each token of the continuation must be the likeliest one."""
    solved = "".join(f"{one['context'].strip()}{delimiter}{one['continuation']}\n\n" for one in examples)
    context = f"{solved}{item['context'].strip()}{delimiter}".strip()
    whole = f"{solved}{item['context'].strip()}{delimiter}{item['continuation']}".lstrip()
    return {"text": context, "continuation": whole[len(context) :]}


@dataclass(frozen=True)
class Form:
    """A form of task: the fields of its items, the row of an item, and the keys of its task file."""

    fields: tuple[str, ...]
    row: Prompt
    config: Mapping[str, Any]


_ACCURACY = {"metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}
_CHOICES = {"output_type": "multiple_choice", "doc_to_text": "text", "doc_to_choice": "choices"} | _ACCURACY
FORMS = {
    "multiple_choice": Form(("query", "choices", "gold"), choice_row, _CHOICES | {"doc_to_target": "answer"}),
    "schema": Form(
        ("context_options", "continuation", "gold"),
        schema_row,
        _CHOICES | {"doc_to_text": "answer", "doc_to_choice": "contexts", "doc_to_target": "continuation"},
    ),
    "language_modeling": Form(
        ("context", "continuation"),
        text_row,
        {"output_type": "loglikelihood", "doc_to_text": "text", "doc_to_target": "continuation"} | _ACCURACY,
    ),
}


class Bundle:
    """The files of an evaluation bundle, a directory or a zip file, by their names in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.archive = zipfile.ZipFile(path) if path.is_file() else None

    def text(self, name: str) -> str:
        """Return a file's text. Raises UserError if it is missing or no UTF-8."""
        try:
            if self.archive is None:
                return (self.path / name).read_text(encoding="utf-8")
            inside = [entry for entry in self.archive.namelist() if entry == name or entry.endswith(f"/{name}")]
            return self.archive.read(min(inside, key=len)).decode()
        except (OSError, ValueError, KeyError) as error:  # ValueError: no such name, or not UTF-8
            reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "is missing"
            raise UserError(f"{self.path}: {name} {reason}; expected the bundle of core_eval, unchanged") from None


def tasks_of(bundle: Bundle) -> Iterator[tuple[str, Mapping[str, Any], list[dict[str, Any]]]]:
    """Yield (name, task file, rows) of each task. Raises UserError naming what the bundle lacks."""
    try:
        listed = yaml.safe_load(bundle.text("core.yaml"))["icl_tasks"]
        entries = [(one["label"], one["icl_task_type"], one["dataset_uri"], one["num_fewshot"][0],
                    one.get("continuation_delimiter", " ")) for one in listed]  # fmt: skip
        guesses = {row["Eval Task"]: float(row["Random baseline"]) / 100
                   for row in csv.DictReader(io.StringIO(bundle.text("eval_meta_data.csv")))}  # fmt: skip
    except (yaml.YAMLError, KeyError, TypeError, IndexError, ValueError) as error:
        raise UserError(
            f"{bundle.path}: core.yaml and eval_meta_data.csv are not those of core_eval: {error}"
        ) from None
    for label, kind, data, num_examples, delimiter in entries:
        if kind not in FORMS:
            raise UserError(f"{bundle.path}: task {label} has the type {kind}, expected one of {', '.join(FORMS)}")
        if label not in guesses:
            raise UserError(f"{bundle.path}: eval_meta_data.csv has no random baseline of the task {label}")
        form = FORMS[kind]
        items = list(_items(bundle, f"eval_data/{data}", form.fields))
        random.Random(ORDER_SEED).shuffle(items)
        if len(items) <= num_examples:
            raise UserError(f"{bundle.path}: {data} has {len(items)} items, expected more than {num_examples} examples")
        rows = []
        for number, item in enumerate(items):
            others = [other for other in range(len(items)) if other != number]
            drawn = random.Random(EXAMPLES_SEED + number).sample(others, num_examples)
            rows.append(form.row(item, [items[other] for other in drawn], delimiter))
        config = {**form.config, "target_delimiter": "", "num_fewshot": 0}
        yield f"{GROUP}_{label}", config | {"metadata": {"version": 1, "chance": guesses[label]}}, rows


def _items(bundle: Bundle, name: str, fields: Sequence[str]) -> Iterator[Item]:
    for number, line in enumerate(bundle.text(name).split("\n"), 1):
        try:
            item = json.loads(line or "null")
        except json.JSONDecodeError as error:
            raise UserError(f"{bundle.path}: {name} line {number} is not valid JSON: {error}") from None
        if item is None:  # the end of the file
            continue
        missing = [field for field in fields if not isinstance(item, dict) or field not in item]
        if missing:
            raise UserError(f"{bundle.path}: {name} line {number} has no field {missing[0]}")
        yield item


def write(bundle: Bundle, directory: Path) -> list[str]:
    """Write the tasks and their group; return a line per task."""
    tasks = list(tasks_of(bundle))
    directory.mkdir(parents=True, exist_ok=True)
    for name, config, rows in tasks:
        data = directory / f"{name}.jsonl"
        with files.atomic(data, "w") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        where = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": data.as_posix()}},
            "test_split": "test",
        }
        with files.atomic(directory / f"{name}.yaml", "w") as file:
            yaml.safe_dump({"task": name, **where, **config}, file, sort_keys=False, allow_unicode=True)
    with files.atomic(directory / f"{GROUP}.yaml", "w") as file:
        yaml.safe_dump({"group": GROUP, "task": [name for name, _, _ in tasks]}, file, sort_keys=False)
    return [f"{name}: {len(rows):,} documents, chance {config['metadata']['chance']:g}" for name, config, rows in tasks]


def run(arguments: argparse.Namespace) -> None:
    """Write the tasks of the bundle."""
    with tempfile.TemporaryDirectory(prefix="caravan-core-") as temporary:
        path = Path(arguments.bundle)
        if "://" in arguments.bundle:
            path = Path(temporary) / "bundle.zip"
            download(arguments.bundle, path)
        if not path.exists() or (path.is_file() and not zipfile.is_zipfile(path)):
            raise UserError(f"{arguments.bundle} must be the directory or the zip file of the bundle")
        lines = write(Bundle(path), arguments.directory)
    print("\n".join(lines))


def download(url: str, path: Path) -> None:
    """Download a file. Raises UserError if the server does not give it."""
    import fsspec

    try:
        with fsspec.open(url, "rb") as source, files.atomic(path, "wb") as file:
            while block := source.read(1 << 20):
                file.write(block)
    except Exception as error:  # of whichever library the protocol has
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"{url} cannot be downloaded: {reason}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.core_tasks", __doc__)
    parser.add_argument("bundle", metavar="URL|ZIP|DIR", help="the evaluation bundle")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="where the task files are written")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

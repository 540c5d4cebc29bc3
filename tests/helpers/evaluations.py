"""An export with scores, and evaluate's calls: for the tests of evaluate."""

import json
import shutil

from stages import convert, evaluate
from stages.lib import manifest
from tests.helpers import export_fixtures
from tests.helpers.data_fixtures import write_jsonl
from tests.helpers.export_fixtures import STEP, argv_of

RECIPE = {"tasks": ["bits_per_byte", "next_line"], "bytes_per_source": 3000, "num_examples": 12, "batch_size": 4}
LOCAL = ["bits_per_byte_code", "bits_per_byte_prose", "next_line"]


def export(root, **identity):
    """Write an export below `root`; returns evaluate's options for it. `identity`: more keys of its model."""
    options = export_fixtures.write_inputs(root)
    if identity:
        model = manifest.read(options["--model"])
        manifest.write(model.path, model.stage, model.identity | identity, model.record)
    assert convert.main(argv_of(options)) == 0
    output = root / "runs" / "base" / "eval" / f"{STEP:08d}" / "validation.json"
    return {"--export": options["--output"], "--corpus": options["--corpus"], "--output": output, "--code": "e1"}


def scored(options, **recipe):
    """Score under RECIPE with some keys changed; returns the results."""
    assert evaluate.main(with_recipe(options, **recipe)) == 0
    return manifest.read(options["--output"]).identity["results"]


def with_recipe(options, **recipe):
    """Return an argument list with RECIPE, some keys changed."""
    return argv_of(options, **{"--recipe": json.dumps({**RECIPE, **recipe})})


def refused(argv, capsys, *words):
    """Check that the stage exits with 2 and prints one line with all the words."""
    assert evaluate.main(argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    for word in words:
        assert word in line


def own_tasks(directory, texts):
    """Write a user's tasks: `ab`, whose contexts end in a line end, `gen`, and `whole`, the texts of a JSONL file."""
    directory.mkdir()
    questions = [
        {"question": f"def {word}\n", "choices": ["return", "self value"], "answer": number % 2, "text": "value"}
        for number, word in enumerate(("name", "range", "class", "import", "none", "true"))
    ]
    write_jsonl(directory / "questions.jsonl", questions)
    shutil.copyfile(texts, directory / "whole.jsonl")
    choice = {"doc_to_text": "question", "doc_to_choice": "choices", "doc_to_target": "answer"}
    formats = {
        "ab": {"output_type": "multiple_choice", **choice, "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
        "gen": {
            "output_type": "generate_until",
            "doc_to_text": "question",
            "doc_to_target": "text",
            "generation_kwargs": {"until": ["def"], "max_gen_toks": 8, "do_sample": False},
            "metric_list": [{"metric": "exact_match"}],
        },
        "whole": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "text",
            "metric_list": [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}],
        },
    }
    for name, keys in formats.items():
        data = directory / ("whole.jsonl" if name == "whole" else "questions.jsonl")
        config = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        config |= {"test_split": "test", "fewshot_split": "test", **keys}
        (directory / f"{name}.yaml").write_text(json.dumps(config))  # JSON is YAML
    return directory

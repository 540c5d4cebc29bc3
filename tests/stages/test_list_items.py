"""list_items: the documents of tasks as text, in the order of the harness, and the suites that are refused."""

import json
import logging

import pytest

from stages import list_items
from stages.lib import manifest
from stages.lib.contamination import items
from tests.helpers.contamination_fixtures import write_task
from tests.helpers.data_fixtures import make, refused

CHOICES = {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "answer"}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No attempt to reach the Hub, and no handlers of the harness that an evaluation in this process left."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(logging.getLogger("lm_eval"), "handlers", [])


@pytest.fixture
def tasks(tmp_path):
    """Task files: questions with choices, sentences with a choice of beginnings, and answers to generate."""
    rows = [{"question": f"Question {n}?", "choices": ["no", "yes"], "answer": n % 2} for n in range(3)]
    write_task(tmp_path / "tasks", "questions", rows, doc_to_text="Q: {{question}}", **CHOICES)
    rows = [{"choices": ["the cat", "the dog"], "number": 1, "rest": "barks at night"}]
    beginnings = CHOICES | {"doc_to_target": "rest", "doc_to_text": "number"}
    write_task(tmp_path / "tasks", "beginnings", rows, **beginnings)
    rows = [{"question": "How much?", "answers": ["four", "4"]}]
    keys = {"output_type": "generate_until", "doc_to_text": "question", "doc_to_target": "answers"}
    write_task(tmp_path / "tasks", "answers", rows, **keys)
    return tmp_path / "tasks"


def options_of(tmp_path, **recipe):
    return {"suite": "mine", "output": tmp_path / "suites/mine/items.json", "recipe": recipe}


def test_items_are_question_and_right_answer_numbered_as_in_the_harness(tasks, tmp_path):
    names = ["bits_per_byte", "questions", "beginnings", "answers"]
    options = options_of(tmp_path, tasks=names, include_path=str(tasks))
    made = manifest.read(make(list_items, **options), "list_items")
    assert items.read(made) == [
        *(items.Item("questions", number, f"Q: Question {number}? {['no', 'yes'][number % 2]}") for number in range(3)),
        items.Item("beginnings", 0, "the dog barks at night"),
        items.Item("answers", 0, "How much? four 4"),
    ]
    assert made.identity["tasks"] == {"questions": 3, "beginnings": 1, "answers": 1}
    first = options["output"].read_bytes()
    make(list_items, **options)
    assert options["output"].read_bytes() == first, "an unchanged suite gives the same bytes, and plans nothing"
    made = manifest.read(make(list_items, **options_of(tmp_path, tasks=["bits_per_byte", "next_line"])))
    assert items.read(made) == [] and made.identity["tasks"] == {}, "local tasks have no items"


@pytest.mark.long  # the harness reads all its task files
def test_a_task_that_does_not_exist_is_refused(tasks, tmp_path, capsys):
    line = refused(capsys, list_items, **options_of(tmp_path, tasks=["no_such"], include_path=str(tasks)))
    assert "list_items.tasks: no_such must be one of" in line


def test_a_suite_without_items_is_refused(tasks, tmp_path, capsys):
    options = options_of(tmp_path, tasks=["questions"], include_path=str(tasks))
    rows = [{"question": "a", "choices": ["x", "y"], "answer": answer} for answer in (0, 7)]
    write_task(tasks, "questions", rows, doc_to_text="question", **CHOICES)
    assert "questions has a document that cannot be made into text: " in refused(capsys, list_items, **options)
    (tasks / "questions.jsonl").unlink()
    assert "list_items.tasks: questions cannot be loaded: " in refused(capsys, list_items, **options)
    (tasks / "code.yaml").write_text("task: code\ndoc_to_text: !function code.text\n")
    said = "runs Python code (!function): set trust_task_code: true"
    assert said in refused(capsys, list_items, **options)


METRIC = {"aggregation": "mean", "higher_is_better": True}
CODE = "set trust_task_code: true if you trust it"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"metric_list": [{"metric": "EVIL", **METRIC}]}, ["metric", "evil.py of task answers must be one of", CODE]),
        ({"metric_list": [{"metric": "exact_mach", **METRIC}]}, ["metric exact_mach", "(nearest: exact_match)", CODE]),
        ({"metric_list": [{"metric": "f1", "hf_evaluate": True, **METRIC}]}, ["metric f1", CODE]),
        ({"metric_list": [{"metric": "exact_match", "aggregation": "meen"}]}, ["aggregation meen", "(nearest: mean)"]),
        ({"filter_list": [{"name": "a", "filter": [{"function": "regx"}]}]}, ["filter regx", "(nearest: regex)"]),
        (
            {"filter_list": [{"name": "a", "filter": [{"function": "regex", "regex_pattern": "("}]}]},
            ["filter regex of task answers cannot be built: "],
        ),
        ({"generation_kwargs": {"until": [], "custom_generate": "EVIL"}}, ["generation_kwargs.custom_generate", CODE]),
        ({"dataset_path": "EVIL"}, ["dataset_path", "evil.py of task answers is Python code", CODE]),
        ({"use_prompt": "promptsource:a"}, ["use_prompt of task answers", CODE]),
        ({"dataset_path": "webdataset"}, ["dataset_path webdataset is read by webdataset", CODE]),
    ],
)
@pytest.mark.parametrize("place", ["file", "include", "group"])
def test_names_that_nobody_has_and_other_code_are_refused(tasks, tmp_path, capsys, keys, words, place):
    evil, name = tasks / "evil.py", "answers"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    keys = json.loads(json.dumps(keys).replace("EVIL", str(evil)))
    config = json.loads((tasks / "answers.yaml").read_text())
    if place == "file":
        (tasks / "answers.yaml").write_text(json.dumps(config | keys))
    elif place == "include":
        (tmp_path / "base.txt").write_text(json.dumps(config | keys))
        (tasks / "answers.yaml").write_text(json.dumps({"task": "answers", "include": "../base.txt"}))
    else:
        name = "both"
        (tasks / "both.yaml").write_text(json.dumps({"group": "both", "task": [{"task": "answers", **keys}]}))
    line = refused(capsys, list_items, **options_of(tmp_path, tasks=[name], include_path=str(tasks)))
    for word in words:
        assert word in line
    assert not (tmp_path / "ran").exists()


@pytest.mark.long  # it imports the library evaluate
def test_a_trusted_metric_must_exist(tasks, tmp_path, capsys):
    config = json.loads((tasks / "answers.yaml").read_text())
    (tasks / "answers.yaml").write_text(json.dumps(config | {"metric_list": [{"metric": "exact_mach", **METRIC}]}))
    options = options_of(tmp_path, tasks=["answers"], include_path=str(tasks), trust_task_code=True)
    line = refused(capsys, list_items, **options)
    assert "list_items.tasks: metric exact_mach of task answers must be one of lm-evaluation-harness or of" in line

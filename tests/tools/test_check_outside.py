"""tools.check: what results were made from that lies outside the results directory is compared before each plan."""

import json
import os
import sys

import pytest
import yaml

from stages.lib import files, manifest
from stages.lib.checkpoints import model_files
from stages.lib.scoring import inputs, scored_model
from stages.lib.sources import examples
from tests.helpers.data_fixtures import listed, small_tokenizer, texts, tokenized, write_jsonl

SOURCE = {"kind": "text", "paths": ["texts"], "validation": 0.2}


@pytest.fixture
def compared(checked):
    """A function that runs the tool on a plan: (stale manifests, warnings)."""

    def run(recipes, manifests, initial=None):
        lists = [where for where, part in recipes.items() if part["stage"] == "list"]
        code, said = checked(recipes, manifests=manifests, lists=lists, initial=initial or {})
        assert code == 0
        return said["stale"], said["warnings"]

    return run


def test_files_of_a_source_that_differ_from_its_list_are_one_line(compared, tmp_path):
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(texts("a", 6)):
        (tmp_path / f"texts/d{number}.txt").write_text(text)
    tokenizer = small_tokenizer(tmp_path / "other")
    made = os.path.relpath(listed(tmp_path, "mine", SOURCE))
    (part,) = tokenized(tmp_path, "mine", made, tokenizer)
    recipes = {"sources.mine": {"stage": "list", "keys": SOURCE}}
    manifests = {made: {"recipe": "sources.mine"}, str(part): {}}
    assert compared(recipes, manifests) == ({}, [])

    os.utime(tmp_path / "texts/d2.txt", (1, 1))
    assert compared(recipes, manifests) == ({}, []), "the same content with another time is no change"
    same_size = (tmp_path / "texts/d1.txt").read_bytes()
    (tmp_path / "texts/d1.txt").write_bytes(same_size.swapcase())
    (tmp_path / "texts/d3.txt").write_text("more")
    (tmp_path / "texts/d4.txt").rename(tmp_path / "texts/e4.txt")
    stale, warnings = compared(recipes, manifests)
    assert stale == {}
    assert warnings == [
        f"sources.mine: 2 files changed, 1 file new, 1 file missing since {made} was written (texts/d3.txt, "
        "texts/d1.txt, texts/e4.txt, ...): nothing runs again by itself; -R list takes it in"
    ]
    listed(tmp_path, "mine", SOURCE)
    tokenized(tmp_path, "mine", made, tokenizer)
    assert compared(recipes, manifests) == ({}, [])


def test_a_source_of_examples_is_compared_with_what_was_tuned_on_it(compared, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the filter's module is found from the working directory
    (tmp_path / "rules_of_pairs.py").write_text("def keep(text):\n    return True\n")
    keys = {
        "kind": "prompt_completion",
        "paths": [write_jsonl(tmp_path / "p.jsonl", [{"prompt": "a", "completion": "b"}])],
        "filters": {"custom": {"function": "rules_of_pairs.keep", "trust_code": True}},
    }
    made = os.path.relpath(listed(tmp_path, "pairs", keys))
    manifest.write("m.json", "finetune", {"recipe": {}, "tuned_on": {"pairs": examples.read_pairs(made).digest}}, {})
    recipes = {"sources.pairs": {"stage": "list", "keys": keys}}
    manifests = {made: {"recipe": "sources.pairs"}, "m.json": {}}
    os.utime(tmp_path / "p.jsonl", (1, 1))
    assert compared(recipes, manifests) == ({}, [])
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "a", "completion": "c"}) + "\n")
    assert "sources.pairs: 1 file changed since" in compared(recipes, manifests)[1][0]


def test_edited_task_files_and_their_data_make_scores_stale(compared, tmp_path):
    data, included = tmp_path / "data/q.jsonl", tmp_path / "base.yaml"
    write_jsonl(data, [{"question": "a"}])
    included.write_text("output_type: multiple_choice\ndoc_to_target: 0\n")
    task = {"task": "mine", "include": "../base.yaml", "dataset_path": "json"}
    task["dataset_kwargs"] = {"data_files": {"test": "data/*.jsonl"}}
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/mine.yaml").write_text(yaml.safe_dump(task))
    (tmp_path / "tasks/code.yaml").write_text("task: code\ndoc_to_text: !function helpers.text\n")
    keys = {"tasks": ["next_line"], "include_path": "tasks", "trust_task_code": True}
    recipes = {"suites.own": {"stage": "evaluate", "keys": keys}}
    recipes["suites.own.items"] = {"stage": "list_items", "keys": keys}
    parts = {"scores.json": {"recipe": "suites.own"}, "items.json": {"recipe": "suites.own.items"}}
    recipe = {"tasks": ["next_line"], "include_path": "tasks"}
    edits = [
        lambda: data.write_text(json.dumps({"question": "b"})),
        lambda: write_jsonl(tmp_path / "data/more.jsonl", []),
        lambda: included.write_text("output_type: multiple_choice\ndoc_to_target: 1\n"),
        lambda: (tmp_path / "tasks/helpers.py").write_text("text = str"),
        lambda: (tmp_path / "tasks/mine.yaml").write_text(yaml.safe_dump(task | {"doc_to_target": 1})),
    ]
    for edit in edits:
        include = inputs.digest_of_directory(tmp_path / "tasks")
        manifest.write("scores.json", "evaluate", {"recipe": recipe, "include": include}, {})
        manifest.write("items.json", "list_items", {"recipe": recipe, "include": include}, {})
        assert compared(recipes, parts) == ({}, [])
        edit()
        reason = "was made with other task files, or data of tasks, than include_path tasks has now"
        assert compared(recipes, parts) == ({"scores.json": reason, "items.json": reason}, [])


def test_a_directory_with_its_data_inside_keeps_its_digest(tmp_path):
    write_jsonl(tmp_path / "q.jsonl", [{"question": "a"}])
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"dataset_kwargs": {"data_files": str(tmp_path / "q.jsonl")}}))
    lines = [f"{name}\0{files.sha256_file(tmp_path / name)}\n" for name in ("mine.yaml", "q.jsonl")]
    assert inputs.digest_of_directory(tmp_path) == files.sha256_bytes("".join(lines).encode())


def test_an_edited_tokenizer_template_or_baseline_makes_its_manifest_stale(compared, tmp_path, monkeypatch):
    for name in ("tokenizer.json", "chat.jinja", "hf/config.json", "hf/chat_template.jinja", "gpt/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "gpt/model.safetensors").write_bytes(b"weights")
    custom = {"path": "tokenizer.json", "bos": "<s>", "eos": "</s>"}
    tuning = {"steps": 3, "weights": {"a": 1.0}, "seq_len": 64, "global_batch_size": 8}
    recipes = {
        "tokenizers.main": {"stage": "train_tokenizer", "keys": custom},
        "runs.a.finetune": {"stage": "finetune", "keys": tuning | {"template": "chat.jinja"}},
        "runs.b.finetune": {"stage": "finetune", "keys": tuning},
        "suites.s": {"stage": "evaluate", "keys": {"tasks": ["next_line"]}},
    }
    parts = {
        "t.json": {"recipe": "tokenizers.main"},
        "a.json": {"recipe": "runs.a.finetune"},
        "b.json": {"recipe": "runs.b.finetune"},
        "s.json": {"recipe": "suites.s", "baseline": "gpt"},
    }
    taken = {"taken": {"path": "tokenizer.json", "sha256": files.sha256_file(tmp_path / "tokenizer.json")}}
    manifest.write("t.json", "train_tokenizer", {"recipe": {"bos": "<s>", "eos": "</s>"}}, taken)
    recipe = {key: tuning[key] for key in ("weights", "seq_len", "global_batch_size")}
    manifest.write("a.json", "finetune", {"recipe": recipe | {"template": "chat.jinja"}, "template": "{}"}, {})
    manifest.write("b.json", "finetune", {"recipe": recipe, "template": "{}"}, {})
    digest = scored_model.digest_of_files(tmp_path / "gpt")
    manifest.write("s.json", "evaluate", {"recipe": {"tasks": ["next_line"]}, "baseline": digest}, {})

    monkeypatch.setattr(model_files, "digest_of", lambda *_: "d")
    initial = {"b": {"path": "hf", "stage": "finetune"}}
    assert compared(recipes, parts, initial) == ({}, [])
    for name in ("tokenizer.json", "chat.jinja", "hf/chat_template.jinja", "gpt/model.safetensors"):
        (tmp_path / name).write_text("other")
    assert compared(recipes, parts, initial)[0] == {
        "t.json": "was made from another tokenizer than tokenizer.json is now",
        "a.json": "was trained with another chat template than chat.jinja has now",
        "b.json": "was trained with another chat template than hf has now",
        "s.json": "was made with other files than gpt has now",
    }

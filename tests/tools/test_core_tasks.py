"""core_tasks: CORE's questions from an evaluation bundle, and their score beside one computed by transformers alone."""

import json
import math
import random
import statistics
import zipfile

import pytest
import yaml

from stages import evaluate
from stages.lib import manifest
from tests.helpers import evaluations
from tests.helpers.evaluations import scored
from tools import core_tasks

WORDS = ("name", "range", "class", "import", "none", "true", "value", "self")
QUESTIONS = [
    {"query": f"def {word}:", "choices": ["return", "self value", "pass"], "gold": at % 3}
    for at, word in enumerate(WORDS)
]
PRONOUNS = [
    {"context_options": [f"the {word}", f"a {word} of"], "continuation": "is none", "gold": at % 2}
    for at, word in enumerate(WORDS)
]
TEXTS = [{"context": f"{word} and ", "continuation": f"{word}"} for word in WORDS]
TASKS = {
    "copa": ("multiple_choice", QUESTIONS, 0, {}, 50.0),
    "piqa": ("multiple_choice", QUESTIONS, 2, {"continuation_delimiter": "\nAnswer: "}, 100 / 3),
    "winograd": ("schema", PRONOUNS, 1, {}, 50.0),
    "lambada_openai": ("language_modeling", TEXTS, 1, {}, 0.0),
}


@pytest.fixture
def bundle(tmp_path):
    """An evaluation bundle of four small tasks, in the format of the real one."""
    home = tmp_path / "eval_bundle"
    (home / "eval_data/world").mkdir(parents=True)
    listed, guesses = [], ["Eval Task,Task Category,Random baseline"]
    for label, (kind, items, num_examples, more, guess) in TASKS.items():
        data = f"world/{label}.jsonl"
        (home / "eval_data" / data).write_text("".join(json.dumps(item) + "\n" for item in items))
        listed.append(
            {"label": label, "dataset_uri": data, "num_fewshot": [num_examples], "icl_task_type": kind} | more
        )
        guesses.append(f"{label},any,{guess}")
    (home / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": listed}))
    (home / "eval_meta_data.csv").write_text("\n".join(guesses) + "\n")
    return home


def prompts_of(label):
    """Yield (item, text of its solved examples, delimiter) as core_eval makes them."""
    _, items, num_examples, more, _ = TASKS[label]
    delimiter = more.get("continuation_delimiter", " ")
    items = items.copy()
    random.Random(1337).shuffle(items)
    for at, item in enumerate(items):
        drawn = random.Random(1234 + at).sample([n for n in range(len(items)) if n != at], num_examples)
        solved = ""
        for other in (items[n] for n in drawn):
            if "choices" in other:
                solved += other["query"] + delimiter + other["choices"][other["gold"]] + "\n\n"
            elif "context_options" in other:
                solved += other["context_options"][other["gold"]] + delimiter + other["continuation"] + "\n\n"
            else:
                solved += other["context"].strip() + delimiter + other["continuation"] + "\n\n"
        yield item, solved, delimiter


def is_right(label, item, solved, delimiter, losses):
    """Return True if a model answers an item right, by its losses of the tokens of a text after its first words."""
    if label == "lambada_openai":
        return losses(f"{solved}{item['context'].strip()}", f"{delimiter}{item['continuation']}", greedy=True)
    if label == "winograd":
        means = [losses(f"{solved}{option}", delimiter + item["continuation"]) for option in item["context_options"]]
    else:
        context = (solved + item["query"] + delimiter).rstrip()
        rest = (solved + item["query"] + delimiter)[len(context) :]
        means = [losses(context, rest + choice) for choice in item["choices"]]
    return means.index(min(means)) == item["gold"]


def test_the_score_is_that_of_core_eval(bundle, tmp_path, monkeypatch, capsys):
    import torch
    import transformers

    monkeypatch.chdir(tmp_path)
    packed = tmp_path / "bundle.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in bundle.rglob("*.*"):
            archive.write(path, path.relative_to(tmp_path))
    assert core_tasks.main([str(packed), "data/core"]) == 0
    assert "core_piqa: 8 documents, chance 0.333333\n" in capsys.readouterr().out
    assert core_tasks.main([str(bundle), "again"]) == 0
    for path in (tmp_path / "data/core").glob("*.jsonl"):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()

    options = evaluations.export(tmp_path / "results")
    options["--output"] = tmp_path / "core.json"
    scored(options, tasks=["core"], include_path="data/core", exchange_contexts=True)
    results = manifest.read(tmp_path / "core.json").identity["results"]
    export = options["--export"].parent
    model = transformers.AutoModelForCausalLM.from_pretrained(export, dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)

    def losses(context, continuation, greedy=False):
        first = len(tokenizer.encode(context))
        ids = torch.tensor([tokenizer.encode(context + continuation)])
        with torch.inference_mode():
            logits = model(ids).logits[0, first - 1 : -1]
        if greedy:
            return bool((logits.argmax(-1) == ids[0, first:]).all())
        return torch.nn.functional.cross_entropy(logits, ids[0, first:]).item()

    centered, errors = [], []
    for label, (*_, guess) in TASKS.items():
        chance = guess / 100
        right = [is_right(label, *prompt, losses) for prompt in prompts_of(label)]
        values = [(answer - chance) / (1 - chance) for answer in right]
        assert results[f"core_{label}"]["centered"]["value"] == pytest.approx(statistics.fmean(values)), label
        centered.append(statistics.fmean(values))
        errors.append(statistics.stdev(values) / math.sqrt(len(values)))
    error = math.hypot(*errors) / len(TASKS)
    assert results["core"]["centered"] == pytest.approx(
        {"value": statistics.fmean(centered), "stderr": error, "n": len(TASKS) * len(WORDS)}
    )


DAMAGES = [
    # file of the bundle, what is replaced in it and by what, words of the sentence
    ("eval_data/world/copa.jsonl", None, None, "eval_data/world/copa.jsonl is missing"),
    ("core.yaml", "icl_tasks", "tasks", "core.yaml and eval_meta_data.csv are not those"),
    ("eval_meta_data.csv", "piqa,", "pika,", "no random baseline of the task piqa"),
    ("core.yaml", "schema", "cloze", "task winograd has the type cloze, expected one of"),
    ("eval_data/world/piqa.jsonl", '"gold"', '"good"', "piqa.jsonl line 1 has no field gold"),
    ("eval_data/world/piqa.jsonl", "{", "[", "piqa.jsonl line 1 is not valid JSON"),
]


@pytest.mark.parametrize(("name", "old", "new", "words"), DAMAGES)
def test_a_damaged_bundle_is_one_sentence_and_nothing_is_written(bundle, tmp_path, capsys, name, old, new, words):
    text = (bundle / name).read_text()
    (bundle / name).unlink()
    if old is not None:
        assert old in text
        (bundle / name).write_text(text.replace(old, new, 1))
    assert words in refused(capsys, bundle, tmp_path / "core")


def test_a_bundle_that_is_not_there_or_cannot_be_downloaded_is_one_sentence(tmp_path, capsys):
    core = tmp_path / "core"
    assert "must be the directory or the zip file of the bundle" in refused(capsys, tmp_path / "none", core)
    address = "http://127.0.0.1:9/eval_bundle.zip"
    assert f"{address} cannot be downloaded: " in refused(capsys, address, core)


def refused(capsys, bundle, output):
    """The sentence with which nothing is written."""
    assert core_tasks.main([str(bundle), str(output)]) == 2
    line = capsys.readouterr().err
    assert line.startswith("core_tasks: ") and line.count("\n") == 1
    assert not output.exists()
    return line


def test_tasks_that_are_not_made_yet_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = {"--export": "x", "--corpus": "x", "--output": tmp_path / "y.json"}
    assert evaluate.main(evaluations.with_recipe(options, tasks=["core"], include_path="data/core")) == 2
    assert "include_path must be a directory, got data/core" in capsys.readouterr().err

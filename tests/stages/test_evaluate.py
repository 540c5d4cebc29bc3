"""evaluate: scores of exports and baselines by lm-evaluation-harness, and the inputs that are refused."""

import gzip
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from stages import evaluate
from stages.lib import manifest
from stages.lib.scoring import harness, harness_model, suite
from stages.lib.scoring.tasks import local_tasks
from stages.lib.sources import examples
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tuning.encoded_examples import ExampleEncoder
from tests.helpers.data_fixtures import listed, write_jsonl
from tests.helpers.evaluations import LOCAL, RECIPE, refused, scored, with_recipe
from tests.helpers.export_fixtures import STEP, copied
from tests.helpers.faults import flip_bit
from tests.helpers.manifests import rewrite


@pytest.fixture
def inputs(evaluated, tmp_path):
    """A copy of everything, for tests that change something."""
    return copied(evaluated, tmp_path)


def test_every_task_has_its_metrics(evaluated):
    identity = manifest.read(evaluated["--output"]).identity
    results = identity["results"]
    assert sorted(results) == LOCAL
    for task in LOCAL[:2]:
        assert set(results[task]) == {"bits_per_byte", "byte_perplexity"}
        assert 2 < results[task]["bits_per_byte"]["value"] < 16
    assert 0 <= results["next_line"]["acc_mutual_info"]["value"] <= 1
    assert results["next_line"]["acc_mutual_info"]["stderr"] > 0
    assert (identity["suite"], identity["step"], identity["tokens"]) == ("validation", STEP, 768)


def test_the_line_end_between_context_and_next_line_is_scored_whatever_the_tokens(evaluated, tmp_path, monkeypatch):
    """A piece such as `:` with the line end is learned where lines end alike; the harness would lose the line end."""
    load, seen = harness_model.load_model, []

    def load_model(*arguments, **options):
        model = load(*arguments, **options)
        encode = model._encode_pair

        def encode_pair(context, continuation):
            seen.append((context + continuation, model.tok_decode(sum(encode(context, continuation), []))))
            return encode(context, continuation)

        model._encode_pair = encode_pair
        return model

    monkeypatch.setattr(harness_model, "load_model", load_model)
    scored({**evaluated, "--output": tmp_path / "again.json"}, tasks=["next_line"])
    assert len(seen) >= RECIPE["num_examples"] * 4
    assert all(text == decoded.removeprefix("<s>") for text, decoded in seen)


def test_bits_per_byte_are_those_of_our_own_forward(evaluated):
    import torch

    from stages.lib.parity import parity, tokenizer_parity

    directory = evaluated["--export"].parent
    model, tokenizer = parity.load_exported(directory), tokenizer_parity.load_tokenizer(directory)
    bits = size = 0
    with torch.inference_mode():
        for line in (evaluated["--output"].with_suffix("") / "bits_per_byte_code.jsonl").read_text().splitlines():
            text = json.loads(line)["text"]
            size += len(text.encode())
            tokens = tokenizer.encode(text)  # one BOS in front
            for at in range(0, len(tokens) - 1, 128):
                # the harness fills the last window up with context: only what was not scored before counts
                end = min(at + 128, len(tokens) - 1)
                start = max(0, end - 128)
                logits = model(torch.tensor([tokens[start:end]])).logits[0].log_softmax(-1)
                scores = logits[at - start :].gather(1, torch.tensor(tokens[at + 1 : end + 1])[:, None])
                bits -= float(scores.sum()) / 0.6931471805599453
    found = manifest.read(evaluated["--output"]).identity["results"]["bits_per_byte_code"]["bits_per_byte"]["value"]
    assert bits / size == pytest.approx(found, abs=1e-5)


def test_finished_scores_are_written_again_unchanged_and_a_changed_recipe_is_scored_again(inputs, monkeypatch):
    before = inputs["--output"].read_bytes()
    inputs["--output"].unlink()
    with monkeypatch.context() as patch:
        patch.setattr(suite, "score", None)  # a call would fail
        scored(inputs)
    assert inputs["--output"].read_bytes() == before
    results = scored(inputs, tasks=["next_line"], num_examples=8)
    assert list(results) == ["next_line"]
    rows = inputs["--output"].with_suffix("") / "next_line.jsonl"
    assert len(rows.read_text().splitlines()) == 8
    assert not rows.with_name("bits_per_byte_code.jsonl").exists()


def baseline_of(evaluated, directory):
    """Evaluate's options for a copy of the export's model alone, as a model of any origin."""
    copy = shutil.copytree(evaluated["--export"].parent, directory, ignore=shutil.ignore_patterns("*manifest.json"))
    output = directory.with_name("scores.json")
    return {"--baseline": copy, "--corpus": evaluated["--corpus"], "--output": output, "--code": "e1"}


def change_json(path, change):
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_a_baseline_has_the_scores_of_an_export_of_the_same_bytes(evaluated, tmp_path):
    options = baseline_of(evaluated, tmp_path / "model")
    found = scored(options)
    expected, identity = (manifest.read(one["--output"]).identity for one in (evaluated, options))
    assert (found, identity["trivial"]) == (expected["results"], expected["trivial"])
    assert "export" not in identity
    before = options["--output"].read_bytes()
    options["--output"].unlink()
    scored(options)
    assert options["--output"].read_bytes() == before  # cached by content
    change_json(options["--baseline"] / "config.json", lambda config: config | {"rms_norm_eps": 0.1})
    assert scored(options) != found


def test_a_baseline_of_another_architecture_is_scored(evaluated, tmp_path):
    """GPT-2 has learned positions, and no mask of our own reaches its rows: each continuation has a row."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    options = baseline_of(evaluated, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(options["--baseline"])
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=1)
    for part in (GPT2LMHeadModel(config), tokenizer):
        part.save_pretrained(tmp_path / "gpt")
    assert set(scored(options | {"--baseline": tmp_path / "gpt"})) == set(LOCAL)


@pytest.mark.parametrize(
    ("names", "change", "said"),
    [
        (["tokenizer_config.json"], lambda config: config | {"bos_token": None}, "must have a BOS token"),
        (["config.json"], lambda config: config | {"num_hidden_layers": 10**9}, "num_hidden_layers must be at most"),
        (["config.json"], None, "baseline"),
        (["model.safetensors"], None, "baseline"),
        (["tokenizer.json", "tokenizer.model"], None, "baseline"),
    ],
)
def test_a_directory_that_cannot_be_scored_is_refused(evaluated, tmp_path, capsys, names, change, said):
    options = baseline_of(evaluated, tmp_path / "model")
    for path in (options["--baseline"] / name for name in names):
        change_json(path, change) if change else path.unlink()
    assert evaluate.main(with_recipe(options)) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert str(options["--baseline"]) in line and said in line
    assert not options["--output"].exists()


@pytest.mark.long
def test_a_repository_that_cannot_be_reached_is_one_sentence(evaluated, tmp_path):
    options = {"--baseline": "org/model", "--corpus": evaluated["--corpus"], "--output": tmp_path / "out.json"}
    argv = with_recipe(options)
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "stages.evaluate", *argv]
    done = subprocess.run(command, env=os.environ | closed, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 2
    said = "evaluate: baseline org/model must be a directory, or a repository on the Hub or in its cache"
    assert done.stderr.strip().splitlines()[-1].startswith(said)


COLORS = ("red", "green", "blue", "grey", "pink", "white")


def pairs_listed(directory, count=80):
    """Write the list of a source of pairs whose prompts end in a space; returns its path."""
    entries = [
        {"prompt": f"def f_{number}(value): return ", "completion": f"{COLORS[number % 6]}{number} or none"}
        for number in range(count)
    ]
    path = write_jsonl(directory / "pairs.jsonl", entries)
    return listed(directory, "colours", {"kind": "prompt_completion", "paths": [path], "validation": 0.5})


def test_completions_of_validation_pairs_are_chosen_among_others_and_generated(inputs, tmp_path):
    options = {**inputs, "--prompt-completion": pairs_listed(tmp_path)}
    recipe = {"tasks": ["completion_choice", "completion_match"], "num_examples": 8}
    results = scored(options, **recipe)
    assert set(results["completion_choice"]) == {"acc_mutual_info", "bpb"}
    assert 0 <= results["completion_choice"]["acc_mutual_info"]["value"] <= 1
    generated = results["completion_match"]
    assert set(generated) == {"exact_match", "stopped"}
    assert (generated["exact_match"]["value"], generated["exact_match"]["n"]) == (0, 8)
    assert 0 < generated["stopped"]["value"] < 1  # this model ends some texts
    identity = manifest.read(options["--output"]).identity
    assert identity["trivial"]["completion_match"]["most_common"]["n"] == 8
    source = examples.read_pairs(options["--prompt-completion"])
    assert identity["prompt_completion"] == source.digest
    validation = {pair.prompt: pair.completion for pair in source.validation}
    rows = (options["--output"].with_suffix("") / "completion_choice.jsonl").read_text().splitlines()
    for row in map(json.loads, rows):
        assert validation[row["context"]] == row["choices"][row["answer"]]
    before = options["--output"].read_bytes()
    scored(options, **recipe)
    assert options["--output"].read_bytes() == before
    entries = (tmp_path / "pairs.jsonl").read_text()
    (tmp_path / "pairs.jsonl").write_text(entries.replace("or none", "of none"))
    scored(options, **recipe)
    assert manifest.read(options["--output"]).identity["prompt_completion"] != source.digest


def test_bits_of_completions_are_those_of_our_own_forward(inputs, tmp_path):
    import torch

    from stages.lib.parity import parity, tokenizer_parity

    options = {**inputs, "--prompt-completion": pairs_listed(tmp_path)}
    found = scored(options, tasks=["completion_bits"], num_examples=8)["completion_bits"]["bits_per_byte"]
    directory = options["--export"].parent
    model, tokenizer = parity.load_exported(directory), tokenizer_parity.load_tokenizer(directory)
    rows = (options["--output"].with_suffix("") / "completion_bits.jsonl").read_text().splitlines()
    bits = []
    for row in map(json.loads, rows):
        prompt = tokenizer.encode(row["context"])  # one BOS in front
        completion = tokenizer.encode(row["completion"], add_special_tokens=False)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        scores = logits.gather(1, torch.tensor(completion)[:, None])
        bits.append(-float(scores.sum()) / math.log(2) / len(row["completion"].encode()))
    assert len(bits) == 8
    assert found["value"] == pytest.approx(statistics.mean(bits), abs=1e-5)
    assert found["stderr"] == pytest.approx(statistics.stdev(bits) / math.sqrt(8), abs=1e-5)
    assert not list(options["--output"].with_suffix("").rglob("*.pyc"))


def test_a_completion_is_scored_after_the_ids_that_fine_tuning_reads(evaluated, tmp_path):
    import torch

    described = manifest.read(evaluated["--corpus"]).identity["tokenizer"]
    tokenizer = Tokenizer(evaluated["--corpus"].parents[2] / "tokenizers" / "main" / "manifest.json")
    directory, device = evaluated["--export"].parent, torch.device("cpu")
    model = harness_model.load_model(directory, described, batch_size=4, window=128, device=device)
    model.separate = True
    source = examples.read_pairs(pairs_listed(tmp_path))
    encoded = ExampleEncoder(tokenizer=tokenizer, bos=True).encode(source.train)
    for pair, ids in zip(source.train, encoded, strict=True):
        prompt, completion = model._encode_pair(pair.prompt, pair.completion)
        assert [*prompt, *completion, described["eos"]] == ids.ids.tolist()
        assert ids.is_target.tolist() == [False] * len(prompt) + [True] * (len(completion) + 1)
    model.separate = False
    assert any(
        model._encode_pair(pair.prompt, pair.completion)[0] != ids.ids[~ids.is_target].tolist()
        for pair, ids in zip(source.train, encoded, strict=True)
    ), "the harness gives the same ids, so this test shows nothing"


@pytest.mark.long
def test_an_unknown_task_is_refused(inputs, capsys):
    refused(with_recipe(inputs, tasks=["nextline"]), capsys, "nextline", ", ".join(local_tasks.NAMES))
    assert not inputs["--output"].exists()


def test_a_wrong_recipe_is_refused(evaluated, tmp_path, capsys):
    recipe = {"per_task": {"next_line": {"limit": 3}}}
    refused(with_recipe(evaluated, **recipe), capsys, "evaluate.per_task.next_line", "not made here")
    refused(with_recipe(evaluated, include_path="/nowhere"), capsys, "evaluate.include_path", "/nowhere")
    words = ["evaluate.tasks", "completion_choice", "prompt_completion"]
    refused(with_recipe(evaluated, tasks=["completion_choice"]), capsys, *words)
    options = {**evaluated, "--prompt-completion": pairs_listed(tmp_path)}
    capsys.readouterr()
    refused(with_recipe(options, tasks=["next_line"]), capsys, *words[:2], "--prompt-completion")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("parity.json", lambda path: path.write_text('{"passed": false}'), ["{path}", "passed", "delete {export}"]),
        ("parity.json", Path.unlink, ["{path}", "is missing", "delete {export}"]),
        ("model.safetensors", flip_bit, ["{path}", "changed", "delete {export}"]),
        ("model.safetensors", None, ["a different corpus"]),
    ],
)
def test_an_export_that_was_not_proven_or_is_of_another_corpus_is_refused(inputs, capsys, name, change, words):
    path = inputs["--export"].with_name(name)
    if change:
        change(path)
    else:
        rewrite(inputs["--corpus"], recipe={"parts": 2})
    refused(with_recipe(inputs), capsys, *(word.format(path=path, export=inputs["--export"]) for word in words))


def test_the_standard_error_of_a_local_task_is_over_documents_not_their_pieces(evaluated, tmp_path):
    output = tmp_path / "own.json"
    results = scored({**evaluated, "--output": output}, bytes_per_source=30_000, num_examples=60)
    trivial = manifest.read(output).identity["trivial"]["next_line"]["first"]
    for task, metric in (("bits_per_byte_code", "bits_per_byte"), ("next_line", "acc_mutual_info")):
        with gzip.open(tmp_path / "own" / "samples" / f"{task}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        sums, first = {}, {}
        for row in rows:
            value = row["metrics"][metric]
            top, bottom = value if isinstance(value, list) else (value, 1)
            of_document = sums.setdefault(row["doc"]["document"], [0, 0])
            of_document[0] += top
            of_document[1] += bottom
            first.setdefault(row["doc"]["document"], []).append(row["doc"].get("answer") == 0)
        assert 3 < len(sums) < len(rows) == results[task][metric]["n"]
        score = results[task][metric]
        scale = 1 / math.log(2) if metric == "bits_per_byte" else 1
        assert score["stderr"] == pytest.approx(scale * linearized(list(sums.values())), rel=0.05)
    assert trivial["stderr"] == pytest.approx(linearized([(sum(hits), len(hits)) for hits in first.values()]))


def linearized(sums):
    """The standard error of a ratio of sums over documents, by the delta method."""
    top, bottom = (sum(column) for column in zip(*sums, strict=True))
    residuals = [a - top / bottom * b for a, b in sums]
    return math.sqrt(sum(value**2 for value in residuals) * len(sums) / (len(sums) - 1)) / bottom


def test_score_of_a_diverged_model_is_none():
    entries = {"alias": "x", "acc,none": float("nan"), "acc_stderr,none": "N/A", "exact_match,strict": 0.5}
    documents = [{"filter": "none", "acc": float("nan")}, {"filter": "strict", "exact_match": 0}] * 2
    assert harness.metrics_of(entries, documents) == {
        "acc": {"value": None, "stderr": None, "n": 2},
        "exact_match/strict": {"value": 0.5, "stderr": 0.0, "n": 2},
    }

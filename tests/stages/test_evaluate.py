"""evaluate: scores by lm-evaluation-harness, and the inputs that are refused."""

import functools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys

import pytest

from stages import convert, evaluate
from stages.lib import manifest
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.scoring import harness, task_code
from stages.lib.sources import prompt_completion
from stages.lib.tokens import prompt_completion_samples
from tests.helpers import export_fixtures
from tests.helpers.data_fixtures import listed, write_jsonl
from tests.helpers.export_fixtures import STEP, argv_of

RECIPE = {"tasks": ["bits_per_byte", "next_line"], "bytes_per_source": 3000, "num_examples": 12, "batch_size": 4}
LOCAL = ["bits_per_byte_code", "bits_per_byte_prose", "next_line"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An export and its scores, for tests that only read: evaluate's options. The path has a space."""
    root = tmp_path_factory.mktemp("with a space")
    options = export_fixtures.write_inputs(root)
    assert convert.main(argv_of(options)) == 0
    output = root / "runs" / "base" / "eval" / f"{STEP:08d}" / "validation.json"
    options = {"--export": options["--output"], "--corpus": options["--corpus"], "--output": output, "--code": "e1"}
    assert evaluate.main(argv_of(options, **{"--recipe": json.dumps(RECIPE)})) == 0
    return options


@pytest.fixture
def inputs(made, tmp_path):
    """A copy of everything, for tests that change something."""
    root = made["--corpus"].parents[2]
    shutil.copytree(root, tmp_path / "results")
    paths = {name: path for name, path in made.items() if name != "--code"}
    moved = {name: tmp_path / "results" / path.relative_to(root) for name, path in paths.items()}
    return {**moved, "--code": made["--code"]}


def scored(options, **recipe):
    """Score under RECIPE with some keys changed; returns the results."""
    argv = argv_of(options, **{"--recipe": json.dumps({**RECIPE, **recipe})})
    assert evaluate.main(argv) == 0
    return manifest.read(options["--output"]).identity["results"]


def test_every_task_has_its_metrics(made):
    identity = manifest.read(made["--output"]).identity
    results = identity["results"]
    assert sorted(results) == LOCAL
    for task in LOCAL[:2]:
        assert set(results[task]) == {"bits_per_byte", "byte_perplexity"}
        assert 2 < results[task]["bits_per_byte"]["value"] < 16
    assert 0 <= results["next_line"]["acc_mutual_info"]["value"] <= 1
    assert results["next_line"]["acc_mutual_info"]["stderr"] > 0
    assert (identity["suite"], identity["step"], identity["tokens"]) == ("validation", STEP, 768)


@pytest.mark.long
def test_the_command_line_of_the_harness_gives_the_same_scores(made, tmp_path):
    own, output = own_tasks(tmp_path / "own tasks", made), tmp_path / "own.json"
    results = manifest.read(made["--output"]).identity["results"]
    results |= scored({**made, "--output": output}, tasks=["ab", "whole"], include_path=str(own))
    for bos, tasks, names in (
        ("False", made["--output"].with_suffix(""), LOCAL[:2]),
        ("False", own, ["whole"]),
        ("True", own, ["ab"]),
    ):
        export = made["--export"].parent
        arguments = f"pretrained={export},dtype=float32,max_length=128,add_bos_token={bos}"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", arguments]
        command += ["--tasks", ",".join(names), "--include_path", str(tasks), "--batch_size", "4", "--device", "cpu"]
        command += ["--output_path", str(tmp_path / names[0])]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
        subprocess.run(command, check=True, env=environment, capture_output=True, cwd=tmp_path)
        (path,) = (tmp_path / names[0]).rglob("results*.json")
        theirs = json.loads(path.read_text())["results"]
        for name in names:
            assert harness.metrics_of(theirs[name]) == results[name]


def own_tasks(directory, made):
    """A user's task files: `ab`, whose contexts end in a line end, and `whole`, the texts of bits_per_byte_code."""
    directory.mkdir()
    questions = [{"question": f"def {word}\n", "choices": ["return", "self value"], "answer": 0} for word in "abc"]
    write_jsonl(directory / "ab.jsonl", questions)
    shutil.copyfile(made["--output"].with_suffix("") / "bits_per_byte_code.jsonl", directory / "whole.jsonl")
    asked = {"doc_to_text": "question", "doc_to_choice": "choices", "doc_to_target": "answer"}
    metrics = [{"metric": name, "aggregation": name, "higher_is_better": False} for name in ("bits_per_byte",)]
    for name, keys in {
        "ab": {"output_type": "multiple_choice", **asked, "metric_list": [{"metric": "acc"}]},
        "whole": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "text",
            "metric_list": metrics,
        },
    }.items():
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{directory}/{name}.jsonl"}}}
        config = {"task": name, "test_split": "test", **data, **keys}
        (directory / f"{name}.yaml").write_text(json.dumps(config))  # JSON is YAML
    return directory


def test_a_rolling_task_of_the_user_begins_with_one_bos(made, tmp_path):
    own = own_tasks(tmp_path / "own tasks", made)
    (found,) = scored({**made, "--output": tmp_path / "own.json"}, tasks=["whole"], include_path=str(own)).values()
    local = manifest.read(made["--output"]).identity["results"]["bits_per_byte_code"]
    assert found["bits_per_byte"] == local["bits_per_byte"]


def test_the_line_end_between_context_and_next_line_is_scored_whatever_the_tokens(made, tmp_path, monkeypatch):
    """A piece such as `:` with the line end is learned where lines end alike; the harness would lose the line end."""
    load, seen = harness.load_model, []

    def load_model(*arguments):
        model = load(*arguments)
        encode = model._encode_pair

        def encode_pair(context, continuation):
            seen.append((context + continuation, model.tok_decode(sum(encode(context, continuation), []))))
            return encode(context, continuation)

        model._encode_pair = encode_pair
        return model

    monkeypatch.setattr(harness, "load_model", load_model)
    scored({**made, "--output": tmp_path / "again.json"}, tasks=["next_line"])
    assert len(seen) >= RECIPE["num_examples"] * 4
    assert all(text == decoded.removeprefix("<s>") for text, decoded in seen)


def test_bits_per_byte_are_those_of_our_own_forward(made):
    import torch

    from stages.lib.huggingface import parity, tokenizer_parity

    directory = made["--export"].parent
    model, tokenizer = parity.load_exported(directory), tokenizer_parity.load_tokenizer(directory)
    bits = size = 0
    with torch.inference_mode():
        for line in (made["--output"].with_suffix("") / "bits_per_byte_code.jsonl").read_text().splitlines():
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
    found = manifest.read(made["--output"]).identity["results"]["bits_per_byte_code"]["bits_per_byte"]["value"]
    assert bits / size == pytest.approx(found, abs=1e-5)


def test_finished_scores_are_written_again_unchanged(inputs, monkeypatch):
    before = inputs["--output"].read_bytes()
    inputs["--output"].unlink()
    monkeypatch.setattr(evaluate, "score", None)  # a call would fail
    scored(inputs)
    assert inputs["--output"].read_bytes() == before


def test_changed_recipe_is_scored_again(inputs):
    results = scored(inputs, tasks=["next_line"], num_examples=8)
    assert list(results) == ["next_line"]
    rows = inputs["--output"].with_suffix("") / "next_line.jsonl"
    assert len(rows.read_text().splitlines()) == 8
    assert not rows.with_name("bits_per_byte_code.jsonl").exists()


def test_tasks_of_the_users_own_directory_run_beside_local_ones(inputs, tmp_path):
    own = tmp_path / "own tasks"
    own.mkdir()
    (own / "ab.jsonl").write_text('{"question": "a", "choices": ["b", "c"], "answer": 0}\n' * 3)
    (own / "ab.yaml").write_text(
        "task: ab\ndataset_path: json\noutput_type: multiple_choice\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {{test: '{own}/ab.jsonl'}}}}\n"
        "doc_to_text: question\ndoc_to_choice: choices\ndoc_to_target: answer\nmetric_list: [{metric: acc}]\n"
    )
    results = scored(inputs, tasks=["next_line", "ab"], include_path=str(own), num_examples=8)
    assert sorted(results) == ["ab", "next_line"]
    first = manifest.read(inputs["--output"]).identity["include"]
    (own / "ab.jsonl").write_text('{"question": "a", "choices": ["b", "c"], "answer": 1}\n' * 3)
    assert (
        scored(inputs, tasks=["ab"], include_path=str(own))["ab"]["acc"]["value"] == 1 - results["ab"]["acc"]["value"]
    )
    assert manifest.read(inputs["--output"]).identity["include"] != first


def test_a_task_beside_its_own_group_is_refused_before_anything_is_scored(made, tmp_path, capsys, monkeypatch):
    own = own_tasks(tmp_path / "own tasks", made)
    (own / "both.yaml").write_text("group: both\ntask: [ab]\n")
    monkeypatch.setattr(harness, "load_model", None)
    recipe = json.dumps(RECIPE | {"tasks": ["bits_per_byte", "ab", "both"], "include_path": str(own)})
    argv = argv_of({**made, "--output": tmp_path / "own.json", "--recipe": recipe})
    assert evaluate.main(argv) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("evaluate: evaluate.tasks: ab, both cannot be loaded")
    assert "found in both 'ab' and 'both'" in line


@pytest.mark.long
def test_a_task_of_the_hub_without_network_and_cache_is_one_sentence(made, tmp_path):
    recipe = json.dumps(RECIPE | {"tasks": ["bits_per_byte", "piqa"]})
    argv = argv_of({**made, "--output": tmp_path / "own.json", "--recipe": recipe})
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "stages.evaluate", *argv]
    done = subprocess.run(command, env=os.environ | closed, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("evaluate: evaluate.tasks: piqa cannot be loaded: ConnectionError: Couldn't reach")
    assert last.endswith("data must be in the cache: see tools.prefetch")


CODE = "task: ab\nprocess_docs: {} ab.run\n"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"t.yaml": CODE.format("!function")}, "t.yaml"),
        ({"t.yaml": CODE.format("!%66unction")}, "t.yaml"),
        ({"t.yaml": "%TAG !e! !func\n---\n" + CODE.format("!e!tion")}, "t.yaml"),
        ({"deep/t.yaml": "include: [../../other/base, ../a]\n", "../other/base": CODE.format("!function")}, "base"),
    ],
)
def test_task_files_with_code_must_be_trusted(tmp_path, capsys, files, named):
    own = tmp_path / "own"
    for name, content in {"ab.py": f"open({str(tmp_path / 'ran')!r}, 'w')\n", **files}.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(content)
    recipe = json.dumps({"tasks": ["ab"], "include_path": str(own)})
    options = {"--export": "x", "--corpus": "x", "--output": tmp_path / "y.json"}
    assert evaluate.main(argv_of(options, **{"--recipe": recipe})) == 2
    found = next(path.resolve() for path in tmp_path.rglob(named))
    assert capsys.readouterr().err == (
        f"evaluate: {found} runs Python code (!function): set trust_task_code: true if you trust the task files of "
        f"{own}\n"
    )
    assert not (tmp_path / "ran").exists()
    recipes.load(evaluate.EvaluateRecipe, json.loads(recipe) | {"trust_task_code": True}, "evaluate")


def test_task_files_without_code_need_no_trust(tmp_path):
    (tmp_path / "a.yaml").write_text("task: a\ninclude: [a.yaml, missing, 3]\ndoc_to_text: '!function'\n")
    (tmp_path / "empty.yaml").write_text("")
    recipes.load(evaluate.EvaluateRecipe, {"tasks": ["a"], "include_path": str(tmp_path)}, "evaluate")
    (tmp_path / "b.yaml").write_text("a: !!python/name:os.system\n")
    with pytest.raises(UserError, match=r"b\.yaml must be a YAML file of a task: could not determine a constructor"):
        recipes.load(evaluate.EvaluateRecipe, {"tasks": ["a"], "include_path": str(tmp_path)}, "evaluate")


def test_a_template_reaches_no_python_objects(monkeypatch):
    jinja2, utils = pytest.importorskip("jinja2"), pytest.importorskip("lm_eval.utils")
    template = "{{ cycler.__init__.__globals__.os.getpid() }}"
    monkeypatch.setattr(utils, "env", utils.env)
    task_code.guard_templates()
    with pytest.raises(jinja2.exceptions.SecurityError):
        utils.apply_template(template, {})
    assert utils.apply_template("{{ a|regex_replace('b', 'c') }}\n", {"a": "abb"}) == "acc\n"


COLORS = ("red", "green", "blue", "grey", "pink", "white")


def pairs_listed(directory, count=80):
    """Write the list of a source of pairs whose prompts end in a space; returns its path."""
    entries = [
        {"prompt": f"def f_{number}(value): return ", "completion": f"{COLORS[number % 6]}{number} or none"}
        for number in range(count)
    ]
    path = write_jsonl(directory / "pairs.jsonl", entries)
    return listed(directory, "colours", {"kind": "prompt_completion", "paths": [path], "validation": 0.5})


def test_completion_choice_is_made_from_validation_pairs(inputs, tmp_path):
    options = {**inputs, "--prompt-completion": pairs_listed(tmp_path)}
    results = scored(options, tasks=["completion_choice"], num_examples=8)
    assert set(results["completion_choice"]) == {"acc_mutual_info"}
    assert 0 <= results["completion_choice"]["acc_mutual_info"]["value"] <= 1
    identity = manifest.read(options["--output"]).identity
    source = prompt_completion.read(options["--prompt-completion"])
    assert identity["prompt_completion"] == source.digest
    validation = {pair.prompt: pair.completion for pair in source.validation}
    rows = (options["--output"].with_suffix("") / "completion_choice.jsonl").read_text().splitlines()
    for row in map(json.loads, rows):
        assert validation[row["context"]] == row["choices"][row["answer"]]
    before = options["--output"].read_bytes()
    scored(options, tasks=["completion_choice"], num_examples=8)
    assert options["--output"].read_bytes() == before
    entries = (tmp_path / "pairs.jsonl").read_text()
    (tmp_path / "pairs.jsonl").write_text(entries.replace("or none", "of none"))
    scored(options, tasks=["completion_choice"], num_examples=8)
    assert manifest.read(options["--output"]).identity["prompt_completion"] != source.digest


def test_bits_of_completions_are_those_of_our_own_forward(inputs, tmp_path):
    import torch

    from stages.lib.huggingface import parity, tokenizer_parity

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


class Processor:
    """The fixtures' tokenizer."""

    bos, eos = 1, 2

    def __init__(self, path):
        from sentencepiece import SentencePieceProcessor

        self.encode = functools.partial(SentencePieceProcessor(model_file=str(path)).encode, return_type="numpy")


def test_a_completion_is_scored_after_the_ids_that_fine_tuning_reads(made, tmp_path):
    described = manifest.read(made["--corpus"]).identity["tokenizer"]
    tokenizer = Processor(made["--corpus"].parents[2] / "tokenizers" / "main" / "tokenizer.model")
    model = harness.load_model(made["--export"].parent, described, batch_size=4, window=128)
    model.separate = True
    source = prompt_completion.read(pairs_listed(tmp_path))
    encoded = prompt_completion_samples.encode(source.train, tokenizer, bos=True)
    for pair, ids in zip(source.train, encoded, strict=True):
        prompt, completion = model._encode_pair(pair.prompt, pair.completion)
        assert [*prompt, *completion, described["eos"]] == ids.ids.tolist()
        assert len(prompt) == ids.prompt
    model.separate = False
    assert any(
        model._encode_pair(pair.prompt, pair.completion)[0] != ids.ids[: ids.prompt].tolist()
        for pair, ids in zip(source.train, encoded, strict=True)
    ), "the harness gives the same ids, so this test shows nothing"


def refused(argv, capsys, *words):
    """Check that the stage exits with 2 and prints one line with all the words."""
    assert evaluate.main(argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    for word in words:
        assert word in line


def with_recipe(options, **recipe):
    """Return an argument list with RECIPE, some keys changed."""
    return argv_of(options, **{"--recipe": json.dumps({**RECIPE, **recipe})})


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"question": 5}, ["unknown key evaluate.question;"]),
        ({"tasks": []}, ["evaluate.tasks", "at least one"]),
        ({"tasks": ["next_line", "next_line"]}, ["evaluate.tasks", "only once"]),
        ({"num_examples": 3}, ["evaluate.num_examples", "at least 4", "3"]),
        ({"batch_size": "auto"}, ["evaluate.batch_size", "whole number", "auto"]),
        ({"include_path": "/nowhere"}, ["evaluate.include_path", "/nowhere"]),
    ],
)
def test_a_wrong_recipe_is_refused(made, capsys, recipe, words):
    refused(with_recipe(made, **recipe), capsys, *words)


def test_an_unknown_task_is_refused(inputs, capsys):
    known = "bits_per_byte, next_line, completion_choice, completion_bits"
    refused(with_recipe(inputs, tasks=["nextline"]), capsys, "nextline", known)
    assert not inputs["--output"].exists()


def test_prompt_completion_and_a_task_that_reads_it_are_given_together(made, tmp_path, capsys):
    refused(
        with_recipe(made, tasks=["completion_choice"]),
        capsys,
        "evaluate.tasks",
        "completion_choice",
        "prompt_completion",
    )
    options = {**made, "--prompt-completion": pairs_listed(tmp_path)}
    capsys.readouterr()
    refused(
        with_recipe(options, tasks=["next_line"]), capsys, "evaluate.tasks", "completion_choice", "--prompt-completion"
    )


def test_an_export_without_passed_parity_is_refused(inputs, capsys):
    parity = inputs["--export"].with_name("parity.json")
    parity.write_text('{"passed": false}')
    refused(with_recipe(inputs), capsys, str(parity), "passed", f"delete {inputs['--export']}")
    parity.unlink()
    refused(with_recipe(inputs), capsys, str(parity), "is missing", f"delete {inputs['--export']}")


def test_a_changed_export_is_refused(inputs, capsys):
    path = inputs["--export"].with_name("model.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused(with_recipe(inputs), capsys, str(path), "changed", f"delete {inputs['--export']}")


def test_missing_export_file_names_the_remedy(inputs, capsys):
    inputs["--export"].with_name("model.safetensors").unlink()
    refused(with_recipe(inputs), capsys, "is missing, but", f"delete {inputs['--export']} and run the workflow again")


def test_an_export_of_another_corpus_is_refused(inputs, capsys):
    corpus = manifest.read(inputs["--corpus"])
    manifest.write(corpus.path, corpus.stage, {**corpus.identity, "recipe": {"parts": 2}}, {})
    refused(with_recipe(inputs), capsys, "another corpus")


def test_score_of_a_diverged_model_is_none():
    entries = {"alias": "x", "acc,none": float("nan"), "acc_stderr,none": "N/A", "exact_match,strict": 0.5}
    assert harness.metrics_of(entries) == {
        "acc": {"value": None, "stderr": None},
        "exact_match/strict": {"value": 0.5, "stderr": None},
    }

"""evaluate: tasks of the user and of lm-evaluation-harness, scored as its command line scores them."""

import gzip
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys

import pytest

from stages import evaluate
from stages.lib import manifest
from stages.lib import recipe as recipes
from stages.lib.chat import template as chat_template
from stages.lib.errors import UserError
from stages.lib.scoring import harness, harness_model, inputs, task_code
from tests.helpers import evaluations, ranks
from tests.helpers.evaluations import LOCAL, own_tasks, scored, with_recipe
from tests.helpers.export_fixtures import argv_of


@pytest.fixture(scope="module")
def own(evaluated, tmp_path_factory):
    """The directory of a user's tasks."""
    texts = evaluated["--output"].with_suffix("") / "bits_per_byte_code.jsonl"
    return own_tasks(tmp_path_factory.mktemp("own") / "own tasks", texts)


def refusal(evaluated, own, output, capsys, **recipe):
    """The last line of an evaluation of the user's tasks, which must be refused."""
    assert evaluate.main(with_recipe({**evaluated, "--output": output}, include_path=str(own), **recipe)) == 2
    assert not output.exists()
    return capsys.readouterr().err.strip().splitlines()[-1]


def scored_own(evaluated, own, output, **recipe):
    """Score the user's tasks; returns the manifest."""
    scored({**evaluated, "--output": output}, include_path=str(own), **recipe)
    return manifest.read(output)


FEWSHOT = {"ab": {"num_fewshot": 2}, "gen": {"num_fewshot": 2}}


@pytest.mark.long
def test_the_command_line_of_the_harness_gives_the_same_scores(evaluated, own, tmp_path):
    results = manifest.read(evaluated["--output"]).identity["results"]
    scores = scored_own(evaluated, own, tmp_path / "own.json", tasks=["ab", "gen", "whole"], per_task=FEWSHOT)
    results |= scores.identity["results"]
    for bos, tasks, names in (
        ("False", evaluated["--output"].with_suffix(""), LOCAL[:2]),
        ("False", own, ["whole"]),
        ("True", own, ["ab", "gen"]),
    ):
        theirs = of_command_line(evaluated["--export"].parent, bos, tasks, names, tmp_path / names[0])
        for name in names:
            for metric, score in harness.metrics_of(theirs[name], ()).items():
                found = results[name][metric]
                assert found["value"] == pytest.approx(score["value"], rel=1e-6)
                assert score["stderr"] is None or found["stderr"] == pytest.approx(score["stderr"], rel=1e-6)


def of_command_line(export, bos, tasks, names, output):
    """The results of the harness's own command line."""
    arguments = f"pretrained={export},dtype=float32,max_length=128,add_bos_token={bos}"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", arguments]
    command += ["--tasks", ",".join(names), "--include_path", str(tasks), "--batch_size", "4", "--device", "cpu"]
    command += ["--num_fewshot", "2"] if "ab" in names else []
    command += ["--output_path", str(output), "--seed", "0,0,0,0"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(output / "cache")}
    subprocess.run(command, check=True, env=environment, capture_output=True, cwd=output.parent)
    (path,) = output.rglob("results*.json")
    return json.loads(path.read_text())["results"]


@pytest.mark.long
def test_two_processes_give_the_bits_of_one(evaluated, own, tmp_path):
    found = []
    for count in (1, 2):
        output = tmp_path / str(count) / "own.json"
        recipe = {"tasks": ["bits_per_byte", "ab", "gen"], "include_path": str(own), "per_task": FEWSHOT}
        argv = with_recipe({**evaluated, "--output": output}, **recipe)
        code, text = ranks.run_module(count, "stages.evaluate", argv)
        assert code == 0, text
        found.append(manifest.read(output).identity)
    assert found[0] == found[1]
    assert set(found[0]["results"]) == {*LOCAL[:2], "ab", "gen"}


@pytest.mark.long
def test_a_mistake_on_two_processes_is_one_sentence(evaluated, own, tmp_path):
    recipe = {"tasks": ["ab", "abc"], "include_path": str(own)}
    argv = with_recipe({**evaluated, "--output": tmp_path / "own.json"}, **recipe)
    code, text = ranks.run_module(2, "stages.evaluate", argv)
    assert code == 2
    assert "evaluate: evaluate.tasks" in text
    assert "Traceback" not in text


def samples(output, task):
    """The documents of a task's log."""
    with gzip.open(output.with_suffix("") / "samples" / f"{task}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_scores_can_be_computed_again_from_the_logs(evaluated, own, tmp_path):
    found = scored_own(evaluated, own, tmp_path / "own.json", tasks=["bits_per_byte", "ab", "gen", "whole"])
    for task, metrics in found.identity["results"].items():
        documents = samples(found.path, task)
        assert found.output(f"own/samples/{task}.jsonl.gz")
        for metric, score in metrics.items():
            values = [document["metrics"][metric] for document in documents]
            assert score["n"] == len(values)
            if metric == "bits_per_byte":
                nats, num_bytes = map(sum, zip(*values, strict=True))
                assert score["value"] == pytest.approx(-nats / num_bytes / math.log(2))
                assert 0 < score["stderr"] < 1
            elif metric != "byte_perplexity":
                assert score["value"] == pytest.approx(sum(values) / len(values))
    assert samples(found.path, "gen")[0]["arguments"][0][0] == "def name\n"
    own_rolling, local = (found.identity["results"][name]["bits_per_byte"] for name in ("whole", "bits_per_byte_code"))
    assert own_rolling == local, "a rolling task of the user begins with one BOS"


def log_likelihood(model, tokenizer, context, continuation):
    """The log-likelihood of a text after another by transformers alone; BOS begins the context."""
    import torch

    num_context = len(tokenizer.encode(context.rstrip()))  # white space between them counts to the answer
    ids = torch.tensor([tokenizer.encode(context + continuation)])
    with torch.inference_mode():
        logits = model(ids).logits[0].log_softmax(-1)
    return sum(logits[at - 1, ids[0, at]].item() for at in range(num_context, ids.shape[1]))


def test_tasks_with_choices_have_bits_per_byte_of_the_right_answer(evaluated, own, tmp_path):
    import transformers

    forms = {
        "several": {"doc_to_target": "{{ [0, 1] }}"},
        "contexts": {"doc_to_text": "answer", "doc_to_choice": "choices", "doc_to_target": "text"},
        "mutual": {"doc_to_target": "{{ choices[answer] }}", "metric_list": [{"metric": "acc_mutual_info"}]},
        "unknown": {"doc_to_target": "{{ 5 if answer else 0 }}"},
        "stated": {"doc_to_target": "{{ choices[answer] }}", "metadata": {"version": 1, "chance": 0.5}},
    }
    own = changed(own, tmp_path / "forms", "ab", **forms)
    (own / "both.yaml").write_text("group: both\ntask: [ab, several]\naggregate_metric_list: [{metric: acc}]\n")
    scores = scored_own(
        evaluated, own, tmp_path / "own.json", tasks=["both", "contexts", "mutual", "unknown", "stated", "gen"]
    )
    results, export = scores.identity["results"], evaluated["--export"].parent
    model = transformers.AutoModelForCausalLM.from_pretrained(export, dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    questions = [json.loads(line) for line in (own / "questions.jsonl").read_text().splitlines()]

    def bits(context, answer):
        return -log_likelihood(model, tokenizer, context, f" {answer}") / math.log(2) / len(answer.encode())

    of_choices = [[bits(row["question"], choice) for choice in row["choices"]] for row in questions]
    right = [of[row["answer"]] for of, row in zip(of_choices, questions, strict=True)]
    expected = {
        "ab": right,
        "several": [min(of) for of in of_choices],
        "both": right + [min(of) for of in of_choices],
        "contexts": [bits(row["choices"][row["answer"]], row["text"]) for row in questions],
        "mutual": right,
        "unknown": [of[0] for of, row in zip(of_choices, questions, strict=True) if not row["answer"]],
    }
    for task, values in expected.items():
        score = results[task]["bpb"]
        error = statistics.stdev(values) / math.sqrt(len(values))
        assert score == pytest.approx({"value": statistics.fmean(values), "stderr": error, "n": len(values)}, abs=1e-6)
    assert [sample["metrics"].get("bpb") for sample in samples(scores.path, "ab")] == pytest.approx(right, abs=1e-6)
    assert "bpb" not in results["gen"]
    assert results["stated"]["bpb"] == results["ab"]["bpb"]
    assert results["stated"]["centered"]["value"] == pytest.approx(2 * results["stated"]["acc_token"]["value"] - 1)
    assert "centered" not in results["ab"]


def test_answers_are_scored_after_the_contexts_of_other_documents(evaluated, own, tmp_path):
    import transformers

    options = {"tasks": ["ab", "gen", "next_line"], "seed": 3}
    plain = scored_own(evaluated, own, tmp_path / "plain" / "own.json", **options).identity
    both = scored_own(evaluated, own, tmp_path / "own.json", **options, exchange_contexts=True).identity
    assert both["results"] == plain["results"]
    assert "exchanged_contexts" not in plain
    assert set(both["exchanged_contexts"]) == {"ab", "next_line"}

    export = evaluated["--export"].parent
    model = transformers.AutoModelForCausalLM.from_pretrained(export, dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    questions = [json.loads(line) for line in (own / "questions.jsonl").read_text().splitlines()]
    circle = random.Random(3).sample(range(len(questions)), len(questions))
    right, bits = [], []
    for at, number in enumerate(circle):
        context, row = questions[circle[(at + 1) % len(circle)]]["question"], questions[number]
        scores = [log_likelihood(model, tokenizer, context, f" {choice}") for choice in row["choices"]]
        right.append(scores.index(max(scores)) == row["answer"])
        bits.append(-scores[row["answer"]] / math.log(2) / len(row["choices"][row["answer"]].encode()))
    found = both["exchanged_contexts"]["ab"]
    assert found["acc"]["value"] == pytest.approx(statistics.fmean(right))
    error = statistics.stdev(bits) / math.sqrt(len(bits))
    assert found["bpb"] == pytest.approx({"value": statistics.fmean(bits), "stderr": error, "n": 6}, abs=1e-6)


def test_keys_of_a_task_stand_before_those_of_the_suite(evaluated, own, tmp_path):
    keys = {"num_fewshot": 1, "limit": 4, "per_task": {"gen": {"limit": 2, "num_fewshot": 0}}}
    found = scored_own(evaluated, own, tmp_path / "own.json", tasks=["ab", "gen"], **keys)
    assert found.identity["num_fewshot"] == {"ab": 1, "gen": 0}
    counts = {task: {score["n"] for score in of.values()} for task, of in found.identity["results"].items()}
    assert counts == {"ab": {4}, "gen": {2}}
    assert samples(found.path, "ab")[0]["arguments"][0][0].count("def ") == 2


def changed(own, directory, source, **tasks):
    """Copy the user's tasks, and add some that are `source` with other keys."""
    shutil.copytree(own, directory)
    for name, keys in tasks.items():
        config = json.loads((own / f"{source}.yaml").read_text())
        (directory / f"{name}.yaml").write_text(json.dumps(config | {"task": name} | keys))
    return directory


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_fewshot": 6}, ["evaluate.num_fewshot must be at most 5", "that task ab has, each other than", "got 6"]),
        ({"per_task": {"ab": {"num_fewshot": 7}}}, ["evaluate.per_task.ab.num_fewshot must be at most 5", "got 7"]),
        ({"tasks": ["many"]}, ["evaluate.tasks: num_fewshot in the file of many must be at most 5", "got 9"]),
        (
            {"tasks": ["none"], "per_task": {"none": {"num_fewshot": 3}}},
            ["evaluate: evaluate.per_task.none.num_fewshot must be 0, which the task's file fixes, got 3"],
        ),
        (
            {"tasks": ["gen"], "max_length": 8},
            ["gen generates up to 8 tokens, which must be fewer than the context (8)"],
        ),
        ({"tasks": ["ab", "both"]}, ["evaluate: evaluate.tasks: ab is listed twice, in ab and in both"]),
    ],
)
def test_what_cannot_be_scored_is_refused_before_all_else(evaluated, own, tmp_path, capsys, monkeypatch, keys, words):
    monkeypatch.setattr(harness_model, "load_model", None)
    own = changed(own, tmp_path / "few", "ab", many={"num_fewshot": 9}, none={"num_fewshot": 0})
    (own / "both.yaml").write_text("group: both\ntask: [ab]\n")
    keys = {"tasks": ["ab"]} | keys
    line = refusal(evaluated, own, tmp_path / "own.json", capsys, **keys | {"tasks": ["bits_per_byte", *keys["tasks"]]})
    assert all(word in line for word in words), line


def test_tasks_that_fail_are_named_and_the_scores_of_the_others_are_kept(evaluated, own, tmp_path, capsys, monkeypatch):
    texts = {"doc_to_text": "self valu", "doc_to_choice": ["e", "x"], "target_delimiter": ""}
    own = changed(own, tmp_path / "fails", "ab", joined=texts)
    config = json.loads((own / "gen.yaml").read_text())
    metrics = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    (own / "sums.yaml").write_text(json.dumps(config | {"task": "sums", "metric_list": metrics}))
    output = tmp_path / "own.json"
    line = refusal(evaluated, own, output, capsys, tasks=["joined", "ab", "sums", "bits_per_byte"])
    assert "evaluate.tasks: task joined: choice 0 ('e') of document 0 has no token of its own after 'self valu'" in line
    assert "; task sums: metric acc cannot be computed: TypeError" in line
    assert line.endswith(f"are kept in {tmp_path / 'own' / 'scored_tasks.json'}, and a restart scores the rest alone")

    monkeypatch.setattr(harness_model, "load_model", None)  # nothing is left to be scored
    kept = scored_own(evaluated, own, output, tasks=["ab", "bits_per_byte"])
    assert "ab: scored in an earlier attempt" in capsys.readouterr().err
    assert not (tmp_path / "own" / "scored_tasks.json").exists()
    monkeypatch.undo()
    again = scored_own(evaluated, own, tmp_path / "again" / "own.json", tasks=["ab", "bits_per_byte"])
    assert kept.identity == again.identity


def test_a_metric_that_a_group_gives_a_task_is_not_run(evaluated, own, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(harness_model, "load_model", None)
    own = shutil.copytree(own, tmp_path / "copy")
    (own / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    metrics = [{"metric": str(own / "evil.py"), "aggregation": "mean", "higher_is_better": True}]
    (own / "both.yaml").write_text(json.dumps({"group": "both", "task": [{"task": "gen", "metric_list": metrics}]}))
    line = refusal(evaluated, own, tmp_path / "own.json", capsys, tasks=["bits_per_byte", "both"])
    assert f"evaluate.tasks: metric {own / 'evil.py'} of task gen must be one of lm-evaluation-harness" in line
    assert not (tmp_path / "ran").exists()


def test_a_model_without_chat_template_is_asked_in_plain_text_and_its_scores_say_so(evaluated, own, tmp_path, capsys):
    plain = scored_own(evaluated, own, tmp_path / "plain.json", tasks=["ab"])
    asked = scored_own(evaluated, own, tmp_path / "own.json", tasks=["ab"], apply_chat_template=True)
    assert "has no chat template: its questions are plain text" in capsys.readouterr().err
    assert asked.identity["results"] == plain.identity["results"]
    assert asked.identity["chat_template"] is False and "chat_template" not in plain.identity


def test_a_chat_template_is_put_around_the_questions(own, tmp_path, monkeypatch):
    evaluated = evaluations.export(tmp_path / "results", template=chat_template.text_of("chatml", "finetune.template"))
    load, models = harness_model.load_model, []

    def load_model(*arguments, **options):
        models.append(load(*arguments, **options))
        return models[-1]

    monkeypatch.setattr(harness_model, "load_model", load_model)
    found = scored_own(evaluated, own, tmp_path / "own.json", tasks=["ab"], num_fewshot=1, apply_chat_template=True)
    assert found.identity["chat_template"] is True
    (context, _), *_ = samples(found.path, "ab")[0]["arguments"]
    assert context.startswith("<s><|im_start|>user\ndef ")
    assert context.count("<|im_start|>user\n") == context.count("<|im_start|>assistant\n") == 2
    assert context.count("</s>\n") == 3
    ids = models[0].tok_encode(context)
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 1, 3)


@pytest.mark.parametrize(
    ("template", "said"),
    [("{{ 'a' * 2 ** 35 }}", "it takes more than 1 GiB of memory"), ("{{ raise_exception('not this') }}", "not this")],
)
def test_a_template_of_a_baseline_that_fails_is_one_sentence(evaluated, own, tmp_path, capsys, template, said):
    baseline = shutil.copytree(evaluated["--export"].parent, tmp_path / "baseline")
    (baseline / "chat_template.jinja").write_text(template)
    options = {name: value for name, value in evaluated.items() if name != "--export"} | {"--baseline": baseline}
    line = refusal(options, own, tmp_path / "own.json", capsys, tasks=["ab"], apply_chat_template=True)
    assert line == f"evaluate: the model's chat template cannot render a question: {said}"


def test_the_largest_batch_that_fits_is_found(evaluated, own, tmp_path, monkeypatch):
    import torch

    from stages.lib.distributed.process_group import process_group
    from stages.lib.scoring import loglikelihood

    score, sizes = loglikelihood.score, []

    def limited(model, rows):
        sizes.append(len(rows))
        if len(rows) > 10:
            raise torch.OutOfMemoryError
        return score(model, rows)

    monkeypatch.setattr(loglikelihood, "score", limited)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    tokenizer, device = manifest.read(evaluated["--corpus"]).identity["tokenizer"], torch.device("cpu")
    model = harness_model.load_model(evaluated["--export"].parent, tokenizer, batch_size=1, window=16, device=device)
    with process_group():
        assert harness_model.largest_batch(model, 16) == 8
    assert sizes == [64, 32, 16, 8]
    scored_own(evaluated, own, tmp_path / "own.json", tasks=["ab"], batch_size="auto", dtype="bfloat16")


def test_changed_task_files_are_scored_again(evaluated, own, tmp_path):
    own, output = shutil.copytree(own, tmp_path / "copy"), tmp_path / "own.json"
    recipe = {"tasks": ["next_line", "gen"], "num_examples": 8}
    before = scored_own(evaluated, own, output, **recipe).identity
    assert sorted(before["results"]) == ["gen", "next_line"]
    (own / "questions.jsonl").write_text((own / "questions.jsonl").read_text().replace("def n", "class n"))
    assert scored_own(evaluated, own, output, **recipe).identity["include"] != before["include"]


def test_data_that_task_files_name_elsewhere_has_a_digest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("own/inside.jsonl", "data/a.jsonl", "data/b.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    files = {"test": ["data/*.jsonl", str(tmp_path / "own/inside.jsonl"), "none.jsonl"]}
    keys = json.dumps({"data_files": files})
    (tmp_path / "own/t.yaml").write_text(f"dataset_kwargs: {keys}\nscore: !function t.py\n")
    assert [path.name for path in inputs.files_outside(tmp_path / "own")] == ["a.jsonl", "b.jsonl"]


@pytest.mark.long
def test_a_task_of_the_hub_without_network_and_cache_is_one_sentence(evaluated, tmp_path):
    argv = with_recipe({**evaluated, "--output": tmp_path / "own.json"}, tasks=["bits_per_byte", "piqa"])
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

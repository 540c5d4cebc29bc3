"""describe: the model card of an export, from manifests; manifests of different models are refused."""

import json
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import convert, describe
from stages.lib.render import markdown
from tests.helpers import card_fixtures, export_fixtures
from tests.helpers.card_fixtures import words, write_list, write_scores
from tests.helpers.export_fixtures import argv_of
from tests.helpers.manifests import identity_of, rewrite


@pytest.fixture
def inputs(tmp_path):
    """Options of describe for a run."""
    return card_fixtures.write_inputs(tmp_path / "results")


def card_of(options, **more):
    """Write the card, and return its text."""
    assert describe.main(words(options, **more)) == 0
    return options["--output"][0].with_name("README.md").read_text(encoding="utf-8")


def section(card, title):
    """The text of a section of a card."""
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0] + "\n"


def table(card, title):
    """{first cell: {title: cell}} of the first table of a section."""
    rows = re.search(r"(?:^\|.*\|\n)+", section(card, title), re.M)[0].splitlines()
    titles, _, *body = ([cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows)
    assert all(len(cells) == len(titles) for cells in body)
    return {cells[0]: dict(zip(titles, cells, strict=True)) for cells in body}


def metadata(card):
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", card, re.S)[1])


def refused(options, capsys, **more):
    """The sentence with which describe refuses its inputs."""
    assert describe.main(words(options, **more)) == 2
    assert not options["--output"][0].with_name("README.md").exists() and not options["--output"][0].exists()
    return capsys.readouterr().err.splitlines()[-1]


def test_the_data_are_the_shares_that_were_drawn_up_to_the_milestone(inputs):
    card = card_of(inputs, **{"--licenses": ["code=PSF-2.0"]})
    rows = table(card, "Data")
    assert rows["`code`"]["license"] == "PSF-2.0" and rows["`prose`"]["license"] == "not stated"
    assert rows["`code`"]["share of training tokens"] == "75.0%"
    assert rows["`code`"]["tokens drawn"] == "576" and rows["`prose`"]["tokens drawn"] == "192"
    assert rows["`prose`"]["kind"] == "`jsonl`"
    assert rows["`prose`"]["in the training split"] == "8 documents, 1,000 tokens, 4.0 MB"
    assert "; malformed or filtered: 7 filters.min_words; " in section(card, "Data")
    assert "; 15% of it is the validation split." in section(card, "Data")
    (inputs["--model"][0].parents[1] / "train/0123/metrics.jsonl").unlink()
    card = card_of(inputs)
    assert table(card, "Data")["`code`"]["share of training tokens"] == "75.0%", "that of the weights"
    assert table(card, "Data")["`code`"]["tokens drawn"] == "-"
    assert "The run's metrics are not there any more" in section(card, "Training")


def test_the_recipe_the_curve_the_devices_and_the_limits_are_those_of_the_milestone(inputs):
    card = card_of(inputs)
    recipe = table(card, "Training")
    assert recipe["`optimizer.learning_rate`"]["value"] == "`0.002`"
    assert recipe["`optimizer.beta2`"]["value"] == "`0.95`", "a default"
    assert recipe["`steps`"]["value"] == "`10`"
    (curve,) = re.findall(r"^\| 3 \| (.*) \|$", section(card, "Training"), re.M)
    assert curve == "768 | 3.000 | 6.250 | 1.125"
    assert "| 4 |" not in section(card, "Training"), "a later milestone's"
    # three steps of a quarter of an hour on eight devices
    assert "summed over the ranks (8 at the end): 6 hours on NVIDIA H100 80GB HBM3." in section(card, "Training")
    limits = section(card, "Known limits")
    assert "It has 256 positions, and this training had sequences of only 128 tokens." in limits
    assert "It is the milestone at step 3 of 10" in limits
    assert "It was trained on 0.00018 tokens per parameter" in limits
    assert "It read `code` 5.5 times" in limits and "It read `prose`" not in limits
    assert "The license of `code`, `prose` is not stated" in limits
    assert "does not normalize Unicode" in limits
    assert "It is not tuned to follow instructions" in limits


def test_scores_have_errors_examples_chance_and_the_best_rule_without_a_model(inputs):
    card = card_of(inputs)
    rows = section(card, "Scores").splitlines()
    assert "| `validation` | `next_line` | `acc_mutual_info` | 0.438 \u00b1 0.022 | 500 | 0.25 |" in rows
    assert "| `validation` | `hellaswag` | `acc` | 0.287 \u00b1 0.004 | 10,042 | - |" in rows
    assert "| `validation` | `bits_per_byte_code` | `bits_per_byte` | 2.250 \u00b1 0.031 | 12 | - |" in rows
    assert "byte_perplexity" not in card, "of a local task only the metric that tables show"
    assert "- Suite `validation`: lm-evaluation-harness 0.4.13, on cuda, with `num_examples: 500`." in rows
    readers = {"next_line": {"indent": {"value": 0.427}, "first": {"value": 0.25}}}
    readers["bits_per_byte_code"] = {"unigram": {"value": 4.5}}
    rewrite(inputs["--evaluations"][0], trivial=readers)
    card = card_of(inputs)
    assert "| 0.438 \u00b1 0.022 | 500 | 0.25 | 0.427 (`indent`) |" in card
    assert "| 2.250 \u00b1 0.031 | 12 | - | 4.500 (`unigram`) |" in card
    assert "| 0.287 \u00b1 0.004 | 10,042 | - | - |" in card


def test_parity_without_the_whole_model_is_that_of_its_layers(inputs):
    path = inputs["--export"][0].with_name("parity.json")
    report = json.loads(path.read_text())
    blocks = {"layers": 32, "tokens": 128, "max_difference": 4e-6, "num_rounding": 0}
    report |= {"checks": ["tensors", "blocks", "head"], "blocks": blocks, "greedy": {"prompts": 0, "text": []}}
    path.write_text(json.dumps(report))
    parity = section(card_of(inputs), "Parity")
    assert "each of 32 layers differ by at most 4.0e-06 of their standard deviation over 128 tokens;" in parity
    assert "rounded to their dtype" in parity
    assert "logits" not in parity and "greedy" not in parity


def test_baselines_and_contamination_stand_beside_the_scores(inputs, tmp_path):
    theirs = {"hellaswag": {"acc": {"value": 0.3125, "stderr": 0.005, "n": 10042}}}
    baseline = write_scores(tmp_path / "results/baselines/gpt_2/eval/validation.json", results=theirs)
    rates = {"hellaswag": {"n": 10042, "contaminated": 251, "rate": 0.025}}
    searched = tmp_path / "results/contamination/main/validation.json"
    card_fixtures.write(searched, "find_contamination", {"results": rates})
    card = card_of(inputs, **{"--baselines": [baseline], "--contamination": [searched]})
    assert "| score | examples | chance | contaminated | gpt_2 |" in card
    assert "| 0.287 \u00b1 0.004 | 10,042 | - | 2.5% (251 of 10,042) | 0.312 \u00b1 0.005 |" in card
    assert "| 0.438 \u00b1 0.022 | 500 | 0.25 | - | - |" in card
    assert "were not searched for" not in card
    assert "The questions of `hellaswag` were not searched for in the training text." in card_of(inputs)


def test_the_metadata_is_what_the_hub_reads(inputs):
    from huggingface_hub import ModelCard

    card_of(inputs, **{"--recipe": ['{"license": "apache-2.0", "languages": ["en", "de"]}']})
    loaded = ModelCard.load(inputs["--output"][0].with_name("README.md"))
    assert (loaded.data.license, loaded.data.language) == ("apache-2.0", ["en", "de"])
    assert (loaded.data.library_name, loaded.data.pipeline_tag) == ("transformers", "text-generation")
    results = {result.dataset_type: result for result in loaded.data.eval_results}
    assert loaded.data.model_name == "base"
    assert sorted(results) == ["bits_per_byte_code", "hellaswag", "next_line"]
    assert (results["hellaswag"].metric_type, results["hellaswag"].metric_value) == ("acc", 0.2875)
    assert results["hellaswag"].task_type == "text-generation"


def test_a_run_without_scores_has_a_card_that_says_so(inputs):
    card = card_of(inputs, **{"--evaluations": []})
    assert "This model has not been scored." in card and "- It has not been scored." in card
    assert "model-index" not in metadata(card) and "license" not in metadata(card)


def test_the_card_of_a_tuned_run_shows_its_data_and_the_model_before(tmp_path):
    root = tmp_path / "results"
    before = {"initial": "results/runs/base/models/00000300.json"}
    options = card_fixtures.write_inputs(root, run="statements", stage="finetune", **before)
    pairs = write_list(root, "statements", {"kind": "python-statements"}, license="PSF-2.0")
    before = write_scores(root / "runs/base/eval/00000300/validation.json")
    given = {"--lists": [*options["--lists"], pairs], "--baselines": [before]}
    card = card_of(options, **given)
    assert "fine-tuned from `base, step 300` on 768 tokens in 3 steps" in card
    assert "| tuned by | next-token prediction; all weights |" in card
    assert {source: row["license"] for source, row in table(card, "Data").items()} == {"`statements`": "PSF-2.0"}
    assert "| base, step 300 |" in card
    assert "It is tuned on `statements` alone" in card and "tokens per parameter" not in card


def test_the_card_of_a_chat_model_names_its_base_and_renders_a_conversation(tmp_path):
    root = tmp_path / "results"
    chat = {"initial": "/home/me/models/CodeLlama-7b-hf", "template": "{{ messages }}", "lora": {"rank": 8}}
    options = card_fixtures.write_inputs(root, run="dpo", stage="finetune", dpo={"beta": 0.1}, **chat)
    pairs = write_list(root, "statements", {"kind": "preference", "paths": ["p.jsonl"]})
    card = card_of(options, **{"--lists": [*options["--lists"], pairs]})
    assert "| tuned from | `CodeLlama-7b-hf` |" in card and "/home/me" not in card
    method = "direct preference optimization (DPO), beta 0.1; LoRA of rank 8; the adapters are added to these weights"
    assert f"| tuned by | {method} |" in card
    assert "tokenizer.apply_chat_template(messages" in card and "Once upon a time" not in card


def test_local_paths_buckets_and_queries_do_not_get_into_a_card(tmp_path):
    root = tmp_path / "results"
    options = card_fixtures.write_inputs(root)
    paths = [
        "/home/me/p.jsonl",
        "s3://internal/p.jsonl",
        "hf://datasets/team/texts/*.jsonl",
        "https://x.org/p.jsonl?key=${KEY}&page=1",
    ]
    write_list(root, "prose", {"kind": "jsonl", "paths": paths})
    card = card_of(options)
    assert "read from `hf://datasets/team/texts/*.jsonl`, `https://x.org/p.jsonl`;" in card
    assert not any(word in card for word in ("/home/me", "internal", "KEY", "page=1"))
    assert metadata(card)["datasets"] == ["team/texts"]


def test_the_same_inputs_give_the_same_bytes_and_leave_the_export_as_it_is(inputs):
    before = {path.name: path.read_bytes() for path in inputs["--export"][0].parent.iterdir()}
    card = card_of(inputs)
    assert card_of(inputs) == card
    after = {path.name: path.read_bytes() for path in inputs["--export"][0].parent.iterdir()}
    assert set(after) - set(before) == {"README.md", "card.json"}
    assert {name: after[name] for name in before} == before


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1).filter(str.strip))
def test_text_of_users_stays_one_cell(text):
    lines = markdown.markdown_table(("a", "b"), [(markdown.escaped(text), markdown.code(text))])
    assert len(lines) == 5 and all("\n" not in line for line in lines)
    assert len("".join(lines[1:4]).splitlines()) == 1, "no other end of a line"
    assert len(re.split(r"(?<!\\)\|", lines[3])) == 4, "GitHub's parser: a pipe after a backslash ends no cell"


def test_names_are_escaped_and_licenses_come_from_the_corpus_unless_they_are_given(tmp_path):
    licenses = {"code": "a | b\n# c <img>", "prose": "CC0-1.0"}
    options = card_fixtures.write_inputs(tmp_path / "results", licenses=licenses)
    card = card_of(options, **{"--name": ["x: [y]\n--- | #z"], "--licenses": ["prose=CC-BY-4.0"]})
    assert metadata(card)["model-index"][0]["name"] == "x: [y]\n--- | #z"
    assert "\n# x: \\[y\\] --- \\| \\#z, step 3\n" in card
    assert [row["license"] for row in table(card, "Data").values()] == ["a \\| b \\# c \\<img\\>", "CC-BY-4.0"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"--evaluations": ["gone.json"]}, "gone.json cannot be read: No such file or directory"),
        ({"--licenses": ["MIT"]}, "--licenses must be given as SOURCE=LICENSE, got MIT"),
        ({"--lists": []}, "--lists must name the list of each source of "),
        ({"--output": ["a/card.json"]}, "--output a/card.json must be in the directory of the export, "),
        ({"--recipe": ['{"license": "my own"}']}, "describe.license must be a name that the Hub knows"),
        ({"--recipe": ['{"languages": ["English"]}']}, "describe.languages[0] must be an ISO 639 code as the Hub"),
    ],
)
def test_a_mistake_is_one_sentence(inputs, capsys, change, sentence):
    assert f"describe: {sentence}" in refused(inputs, capsys, **change)


def test_manifests_of_another_model_and_an_export_that_failed_its_parity_check_are_refused(inputs, tmp_path, capsys):
    other = card_fixtures.write_inputs(tmp_path / "other", run="wide", seed=7)
    assert "has the scores of another export than --export" in refused(
        inputs, capsys, **{"--evaluations": other["--evaluations"]}
    )
    assert "was made from another model than --model" in refused(inputs, capsys, **{"--model": other["--model"]})
    twice = {"--evaluations": [*inputs["--evaluations"], write_scores(tmp_path / "b/validation.json")]}
    assert "must name each suite once" in refused(inputs, capsys, **twice)
    (inputs["--export"][0].parent / "parity.json").write_text('{"passed": false}')
    assert "does not state that the parity check passed" in refused(inputs, capsys)


@pytest.fixture
def converted(tmp_path):
    """(options of convert, options of describe) of a model that was converted."""
    given = export_fixtures.write_inputs(tmp_path / "results") | {"--code": "c1"}
    recipe = identity_of(given["--model"])["recipe"] | {"seq_len": 128, "global_batch_size": 2}
    rewrite(given["--model"], recipe=recipe)
    assert convert.main(argv_of(given)) == 0
    lists = [write_list(tmp_path, name, {"kind": "python-code"}) for name in ("code", "prose")]
    options = {option: [given[option]] for option in ("--model", "--corpus")} | {"--lists": lists, "--name": ["base"]}
    options |= {"--export": [given["--output"]], "--output": [given["--output"].with_name("card.json")]}
    return given, options


def test_the_code_of_the_card_loads_the_model(converted, capsys, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", card_of(converted[1]), re.S)
    monkeypatch.chdir(converted[0]["--output"].parent)
    capsys.readouterr()
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Once upon a time")


@pytest.mark.long
def test_a_new_export_has_no_card_of_the_one_before(converted):
    given, options = converted
    card_of(options)
    card = options["--output"][0].with_name("README.md")
    assert convert.main(argv_of(given)) == 0 and card.exists(), "an export that is up to date keeps its card"
    with open(card.with_name("model.safetensors"), "ab") as file:
        file.write(b"changed")
    assert convert.main(argv_of(given)) == 0 and not card.exists()

"""inspect: the text of a step is found again, and what is no step is refused."""

import json
import re
import shutil

import numpy as np
import pytest

from stages import pretrain
from stages.lib import recipe_schema
from stages.lib.tokens import loader
from tests.helpers import training
from tests.helpers.data_fixtures import texts, tiny_corpus
from tests.helpers.training import RECIPE
from tools.inspect import step_look

SEQ_LEN, BATCH = RECIPE["seq_len"], RECIPE["global_batch_size"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A corpus, its tokenizer and a training of three steps."""
    directory = tmp_path_factory.mktemp("home")
    corpus = tiny_corpus(directory)
    assert training.train(corpus, directory / "results", 3, steps=3) == 0
    return directory


@pytest.fixture
def run_directory(home, tmp_path):
    """A copy of the run directory, for one test to change."""
    return shutil.copytree(training.run_directory(home / "results"), tmp_path / "run")


def options(home, directory, **more):
    manifests = {name: home / name / "main" / "manifest.json" for name in ("tokens", "tokenizers")}
    return {"corpus": manifests["tokens"], "tokenizer": manifests["tokenizers"], "run": directory, "step": 2} | more


def pieces(text):
    """[(source, [segment of a document])] of each sample that was printed."""
    for part in text.split("\nsample ")[1:]:
        source = re.search(r"source (\w+)", part)[1]
        lines = "\n".join(line[4:] if line.startswith("  | ") else "\0" for line in part.splitlines()[1:])
        yield source, [piece.strip("\n") for piece in lines.split("\0") if piece.strip("\n")]


def test_every_sample_of_the_step_is_shown_with_text_of_its_source(home, run_directory, shown):
    text = shown(**options(home, run_directory, samples=BATCH))
    assert re.match(r"step 2: samples 12 to 23, loss \d\.\d{4}\n", text)
    assert [int(number) for number in re.findall(r"^sample (\d+):", text, re.M)] == list(range(12, 24))
    found = list(pieces(text))
    assert {source for source, _ in found} == {"a", "b"}
    written = {source: "\0".join(texts(source, 200)) for source in ("a", "b")}
    for source, parts in found:
        assert parts
        for part in parts:
            assert part in written[source]
            assert part not in written["b" if source == "a" else "a"]


def test_the_position_is_that_in_the_sources_stream(home, run_directory, shown):
    text = shown(**options(home, run_directory, samples=1))
    source, chunk, begin, end = re.search(
        r"source (\w), epoch 0, chunk ([\d,]+), tokens ([\d,]+) to ([\d,]+)", text
    ).groups()
    begin, end = (int(number.replace(",", "")) for number in (begin, end))
    assert (begin, end) == (int(chunk.replace(",", "")) * SEQ_LEN, begin + SEQ_LEN)
    identity = json.loads((home / "tokens/main/manifest.json").read_text())["identity"]
    (shard,) = identity["sources"][source]["train"]["shards"]
    values = np.fromfile(home / "tokens/main" / shard["path"], np.uint8)[shard["batches"][0]["values_at"] :]
    ids = values[begin * 2 : end * 2 + 2].view("<u2").tolist()
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(home / "tokenizers/main/tokenizer.model"))
    (parts,) = [parts for _, parts in pieces(text)]
    assert "".join(part.replace("\n", "") for part in parts) == processor.decode(ids).replace("\n", "")


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_packed_documents_are_shown_segment_by_segment(home, tmp_path, shown, packing):
    recipe = RECIPE | {"packing": packing, "document_mask": True}
    assert training.train(home / "tokens/main/manifest.json", tmp_path, 3, recipe=recipe, steps=3) == 0
    text = shown(**options(home, training.run_directory(tmp_path), samples=BATCH))
    written = {source: "\0".join(texts(source, 200)) for source in ("a", "b")}
    for source, parts in pieces(text):
        assert parts and all(part in written[source] for part in parts)
    for found in re.findall(r"row [\d,]+, tokens (.*)", text):
        ends = [[int(number.replace(",", "")) for number in piece.split(" to ")] for piece in found.split(", ")]
        held = sum(end - begin + 1 for begin, end in ends)
        assert 1 < held <= SEQ_LEN + 1
        assert held == SEQ_LEN + 1 or packing == "best_fit"


def test_few_samples_are_shown_unless_more_are_asked_for_and_the_last_word_on_a_step_counts(home, run_directory, shown):
    text = shown(**options(home, run_directory))
    assert text.count("\nsample ") == 8
    assert text.endswith("4 more samples; --samples 12 shows all\n")
    with open(run_directory / "metrics.jsonl", "a") as file:
        for entry in ({"samples": [36, 48], "loss": None, "skipped": True}, {"validation": {}}):
            file.write(json.dumps({"step": 2, "tokens": 768} | entry) + "\n")
    text = shown(**options(home, run_directory))
    assert text.startswith("step 2: samples 36 to 47, no finite loss, skipped\n")
    assert "\nsample 36: " in text


def test_control_characters_are_escaped(capsys):
    step_look.print_segment(np.array([1]), 2, lambda _: "red \x1b[31m\ttab\r\nnext")
    assert capsys.readouterr().out.splitlines() == ["  | red \\x1b[31m\ttab\\x0d", "  | next"]


def test_a_missing_step_and_a_directory_without_a_run_are_refused(home, run_directory, tmp_path, refused):
    for step in (0, 4):
        line = refused(**options(home, run_directory, step=step))
        expected = f"must be a step of {run_directory}/metrics.jsonl (1 to 3), got {step}"
        assert line == f"inspect: --step {expected}"
    assert "must be a run directory with metrics.jsonl" in refused(**options(home, tmp_path))
    shutil.rmtree(run_directory / "checkpoints")
    assert "holds no checkpoint" in refused(**options(home, run_directory))


def test_what_it_was_not_trained_with_is_refused(home, run_directory, tmp_path, refused):
    commit = next(run_directory.glob("checkpoints/*/commit.json"))
    said = json.loads(commit.read_text())
    for key, option in (("corpus", "--corpus"), ("tokenizer", "--tokenizer")):
        commit.write_text(json.dumps(said | {key: "f" * 64}))
        line = refused(**options(home, run_directory))
        assert line.startswith(f"inspect: {option} {home}")
        assert f"must be what {run_directory} was trained with (digest ffffffffffffffff), got digest" in line
    commit.write_text(json.dumps(said | {"tuned_on": {"a": "f" * 64}}))
    assert "is of a fine-tuning" in refused(**options(home, run_directory))


def test_the_seed_that_a_checkpoint_leaves_out_is_the_default():
    default = recipe_schema.json_schema(pretrain.PretrainRecipe)["properties"]["seed"]["default"]
    assert default == loader.SEED

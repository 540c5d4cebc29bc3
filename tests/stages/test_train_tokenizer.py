"""Training a tokenizer: deterministic, from training text only, and clear about a vocabulary that does not fit."""

import json
import re

import pytest
import sentencepiece

from stages import train_tokenizer
from tests.helpers.data_fixtures import listed, make, refused, texts, write_jsonl


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """The lists of two small sources."""
    directory = tmp_path_factory.mktemp("lists")
    paths = []
    for name in ("a", "b"):
        entries = [{"text": text + " \u00e9\u4e2d"} for text in texts(name, 60)]
        recipe = {"kind": "jsonl", "paths": [write_jsonl(directory / f"{name}.jsonl", entries)], "validation": 0.2}
        paths.append(listed(directory, name, recipe))
    return paths


def _train(lists, output, **recipe):
    return make(train_tokenizer, lists=lists, recipe={"sample": {"a": 1, "b": 1}, **recipe}, output=output)


def _identity(path):
    return json.loads(path.read_text())["identity"]


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_two_runs_give_the_same_identity(lists, tmp_path, model):
    first = _train(lists, tmp_path / "one" / "manifest.json", vocab_size=320, model=model)
    second = _train([*reversed(lists)], tmp_path / "two" / "deeper" / "manifest.json", vocab_size=320, model=model)
    assert _identity(first) == _identity(second)
    assert _identity(first)["vocab_size"] == 320
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "one/tokenizer.model"))
    special = [tokenizer.id_to_piece(number) for number in range(4)]
    assert special == ["<unk>", "<s>", "</s>", "<0x00>"]  # no other token is reserved


def test_the_sample_decides(lists, tmp_path):
    one = _identity(_train(lists, tmp_path / "one" / "manifest.json", vocab_size=320))
    other = _identity(_train(lists, tmp_path / "two" / "manifest.json", vocab_size=320, sample={"a": 1}))
    assert one["pieces"] != other["pieces"]


def test_a_source_that_cannot_be_read_is_refused_with_what_is_wrong_with_it(tmp_path, capsys):
    path = write_jsonl(tmp_path / "a.jsonl", [{"body": text} for text in texts("a", 20)])
    source = listed(tmp_path, "a", {"kind": "jsonl", "paths": [path]})
    recipe = {"vocab_size": 300, "sample": {"a": 1}}
    line = refused(capsys, train_tokenizer, lists=[source], recipe=recipe, output=tmp_path / "out/manifest.json")
    assert line == (
        "train_tokenizer: sources.a.max_malformed must be at least the share of malformed records, 20 of 20 "
        "(20 no text in text), got 0.05"
    )


def test_validation_documents_are_not_in_the_sample(tmp_path):
    entries = [{"text": "a b c d e " * 20, "key": str(number)} for number in range(40)]
    from stages.lib.sources.entries import VALIDATION, split_of

    for entry in entries:
        if split_of(entry["key"], 0.5) == VALIDATION:
            entry["text"] = "Q" * 50  # so often that it would become a piece
    path = write_jsonl(tmp_path / "a.jsonl", entries)
    source = listed(tmp_path, "a", {"kind": "jsonl", "paths": [path], "split_field": "key", "validation": 0.5})
    output = tmp_path / "tokenizer" / "manifest.json"
    make(train_tokenizer, lists=[source], recipe={"vocab_size": 266, "sample": {"a": 1}}, output=output)
    vocab_size = json.loads((output.parent / "tokenizer.json").read_text())["model"]["vocab"]
    assert "a" in vocab_size
    assert "Q" not in vocab_size


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_a_vocabulary_that_the_text_does_not_support_names_the_largest_that_works(lists, tmp_path, capsys, model):
    output = tmp_path / "manifest.json"
    recipe = {"vocab_size": 50000, "sample": {"a": 1, "b": 1}, "model": model}
    line = refused(capsys, train_tokenizer, lists=lists, recipe=recipe, output=output)
    largest = re.match(r"train_tokenizer: train_tokenizer.vocab_size must be at most (\d+) for .* got 50000$", line)
    assert largest, line
    assert not list(tmp_path.iterdir())
    _train(lists, output, vocab_size=int(largest[1]), model=model)


def test_a_vocabulary_below_the_characters_names_the_smallest_that_works(lists, tmp_path, capsys):
    output = tmp_path / "manifest.json"
    recipe = {"vocab_size": 262, "sample": {"a": 1, "b": 1}}
    line = refused(capsys, train_tokenizer, lists=lists, recipe=recipe, output=output)
    smallest = re.match(r"train_tokenizer: train_tokenizer.vocab_size must be at least (\d+) to hold the char", line)
    assert smallest, line
    _train(lists, output, vocab_size=int(smallest[1]))


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"vocab_size": 259, "sample": {"a": 1}}, "train_tokenizer.vocab_size must be a whole number at least 260"),
        ({"vocab_size": 300, "sample": {"c": 1}}, "train_tokenizer.sample.c must be one of the sources in --lists: a"),
        ({"vocab_size": 300, "sample": {}}, "no source of train_tokenizer.sample has training text"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(lists, tmp_path, capsys, recipe, said):
    line = refused(capsys, train_tokenizer, lists=lists, recipe=recipe, output=tmp_path / "manifest.json")
    assert line.startswith(f"train_tokenizer: {said}")
    assert not list(tmp_path.iterdir())


def test_what_kills_left_beside_the_files_is_cleared(lists, tmp_path):
    names = ["manifest.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"]
    for name in names:
        (tmp_path / f".{name}.abc.tmp").write_text("half")
    output = _train(lists, tmp_path / "manifest.json", vocab_size=300)
    assert sorted(path.name for path in output.parent.iterdir()) == names


def test_a_source_without_training_text_is_named(tmp_path, capsys):
    source = listed(tmp_path, "a", {"kind": "jsonl", "paths": [write_jsonl(tmp_path / "a.jsonl", [{"text": ""}])]})
    recipe = {"vocab_size": 300, "sample": {"a": 1}}
    line = refused(capsys, train_tokenizer, lists=[source], recipe=recipe, output=tmp_path / "t" / "manifest.json")
    assert line == "train_tokenizer: no source of train_tokenizer.sample has training text"

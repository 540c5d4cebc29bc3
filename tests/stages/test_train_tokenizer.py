"""Training a tokenizer: deterministic, from training text only, and clear about a vocabulary that does not fit."""

import json
import re

import pytest
import sentencepiece

from stages import train_tokenizer
from tests.helpers.data_fixtures import lines_listed, listed, make, refused, texts, write_jsonl
from tests.helpers.manifests import identity_of


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


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_two_runs_give_the_same_identity_and_another_sample_another(lists, tmp_path, model):
    first = _train(lists, tmp_path / "one" / "manifest.json", vocab_size=320, model=model)
    second = _train([*reversed(lists)], tmp_path / "two" / "deeper" / "manifest.json", vocab_size=320, model=model)
    assert identity_of(first) == identity_of(second)
    other = _train(lists, tmp_path / "three" / "manifest.json", vocab_size=320, model=model, sample={"a": 1})
    assert identity_of(other)["pieces"] != identity_of(first)["pieces"]
    assert identity_of(first)["vocab_size"] == 320
    names = {path.name for path in first.parent.iterdir()}
    assert names == {"manifest.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"}
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "one/tokenizer.model"))
    special = [tokenizer.id_to_piece(number) for number in range(4)]
    assert special == ["<unk>", "<s>", "</s>", "<0x00>"]  # no other token is reserved


def test_validation_documents_are_not_in_the_sample(tmp_path):
    entries = [{"text": "a b c d e " * 20, "key": str(number)} for number in range(40)]
    from stages.lib.sources.entries import VALIDATION, split_of

    for entry in entries:
        if split_of(entry["key"], 0.5) == VALIDATION:
            entry["text"] = "Q" * 50  # so often that it would become a piece
    source = lines_listed(tmp_path, entries, split_field="key", validation=0.5)
    output = tmp_path / "tokenizer" / "manifest.json"
    make(train_tokenizer, lists=[source], recipe={"vocab_size": 266, "sample": {"a": 1}}, output=output)
    vocab_size = json.loads((output.parent / "tokenizer.json").read_text())["model"]["vocab"]
    assert "a" in vocab_size
    assert "Q" not in vocab_size


@pytest.mark.parametrize(
    ("model", "vocab_size", "said"),
    [
        *((model, 50000, r"at most (\d+) for .* got 50000$") for model in ("bpe", "unigram")),
        ("bpe", 262, r"at least (\d+) to hold the char"),  # fewer than the characters
    ],
)
def test_a_vocabulary_that_does_not_fit_the_text_names_the_nearest_that_does(
    lists, tmp_path, capsys, model, vocab_size, said
):
    output = tmp_path / "manifest.json"
    recipe = {"vocab_size": vocab_size, "sample": {"a": 1, "b": 1}, "model": model}
    line = refused(capsys, train_tokenizer, lists=lists, recipe=recipe, output=output)
    nearest = re.match(f"train_tokenizer: train_tokenizer.vocab_size must be {said}", line)
    assert nearest, line
    assert not list(tmp_path.iterdir())
    _train(lists, output, vocab_size=int(nearest[1]), model=model)


def test_a_sample_of_no_source_or_without_training_text_is_one_sentence_and_writes_nothing(tmp_path, capsys):
    empty, malformed = lines_listed(tmp_path, [""]), lines_listed(tmp_path, [{"body": "x"}] * 20, name="b")
    for name, said in (
        ("a", "no source of train_tokenizer.sample has training text"),
        ("b", "sources.b.max_malformed must be at least the share of malformed records, 20 of 20 (20 no text in"),
        ("c", "train_tokenizer.sample.c must be one of the sources in --lists: a"),
    ):
        options = {"lists": [empty, malformed], "recipe": {"vocab_size": 300, "sample": {name: 1}}}
        line = refused(capsys, train_tokenizer, **options, output=tmp_path / "t" / "manifest.json")
        assert line.startswith(f"train_tokenizer: {said}")
    assert not list(tmp_path.glob("t/*"))

"""The package for transformers gives SentencePiece's ids, on edge cases."""

import argparse
import inspect
import shutil
import textwrap

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.tokenizer.edge_cases import EDGE_CASES
from stages.lib.tokenizer.tokenizer import Tokenizer
from tests.helpers.data_fixtures import lines_listed, trained

HARD = [
    *EDGE_CASES,
    *("   three in front, three   between ", "\n\nlines\r\n\n\rand returns\n", " " * 100 + "\n" * 50),
    *(
        "a\0b\0\0",
        "s\u0323\u0307 o\u0308\u0323",
        "\uffff\U0010ffff",
        "------------====    ====",
        "\u2581 the mark of a space",
    ),
]
alphabet = st.one_of(
    st.sampled_from(" \t\nabdef=-_#01()\"'.:\u00e9\u4e2d\u0301\0"), st.characters(exclude_categories=["Cs"])
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Tokenizers bpe and unigram, trained on a few modules' source code and the edge cases."""
    directory = tmp_path_factory.mktemp("tokenizers")
    entries = [inspect.getsource(module) for module in (argparse, inspect, textwrap)]
    entries += [text.replace("\0", "") for text in HARD * 3]
    source = lines_listed(directory, entries, validation=0)
    for model in ("bpe", "unigram"):
        trained(directory / model, [source], vocab_size=800, sample={"a": 1}, sample_mb=0.2, model=model)
    return directory


def manifest_of(directory, model):
    return directory / model / "tokenizers" / "main" / "manifest.json"


@pytest.fixture(scope="module")
def packages(directory):
    from transformers import AutoTokenizer

    return {model: AutoTokenizer.from_pretrained(manifest_of(directory, model).parent) for model in ("bpe", "unigram")}


@pytest.fixture(scope="module")
def ours(directory):
    """The tokenizers that make a corpus."""
    return {model: Tokenizer(manifest_of(directory, model)) for model in ("bpe", "unigram")}


@pytest.fixture(scope="module")
def processor(directory):
    model = manifest_of(directory, "bpe").parent / "tokenizer.model"
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def ids_of(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    return ids.tolist()


@pytest.mark.parametrize("text", HARD, ids=ascii)
@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_transformers_gives_the_ids_of_the_corpus_on_hard_strings(packages, ours, model, text):
    assert packages[model].encode(text, add_special_tokens=False) == ids_of(ours[model], text)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet, max_size=60))
def test_transformers_gives_sentencepieces_ids_on_any_text(packages, ours, processor, text):
    assert packages["bpe"].encode(text, add_special_tokens=False) == processor.encode(text) == ids_of(ours["bpe"], text)


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_any_text_but_the_mark_of_a_space_comes_back(packages, ours, processor, model):
    for text in HARD:
        expected = text.replace("\u2581", " ")
        ids = ids_of(ours[model], text)
        assert packages[model].decode(ids) == expected
        if model == "bpe":
            assert processor.decode(ids) == expected


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_transformers_adds_one_bos_and_no_eos(packages, ours, model):
    text = "<s> def f(): return 1 </s>"
    assert packages[model](text)["input_ids"] == [ours[model].bos, *ids_of(ours[model], text)]
    assert (packages[model].bos_token_id, packages[model].eos_token_id) == (1, 2)
    assert not {0, 1, 2}.intersection(ids_of(ours[model], text))


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json"])
@pytest.mark.parametrize("spoil", ["change", "cut", "remove"])
def test_a_changed_or_vanished_file_is_named(directory, tmp_path, name, spoil):
    copy = tmp_path / "main"
    shutil.copytree(manifest_of(directory, "bpe").parent, copy)
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data[:-1] if spoil == "cut" else data)
    if spoil == "remove":
        (copy / name).unlink()
    with pytest.raises(UserError, match=f"^{copy / name} "):
        Tokenizer(copy / "manifest.json")

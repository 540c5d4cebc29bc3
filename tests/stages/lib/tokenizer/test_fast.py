"""The fast encoder gives the ids of the tokenizer's own library, and is replaced with a warning if it does not."""

import inspect
import json
import logging
import sys
import textwrap
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.tokenizer import fast
from stages.lib.tokenizer.tokenizer import Tokenizer
from tests.helpers.data_fixtures import lines_listed, trained

PIECES = ["</s>", "<s>", "<unk>", "<0x0A>", "<0xE2>", "\u2581", "\0", "\r\n", " ", "     ", "\t", "\n\n", "\u0301", "1"]
PIECES += ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u4e2d\u6587", "\u05e9\u05dc\u05d5\u05dd", "\u202e", "\ufeff"]
PIECES += [*'.,")', "def ", "return", "a" * 40, "\u00ad", "\ud7ff", "\uffff", "\U0010ffff", "\u2582", "\u00a0"]
hostile = st.lists(st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"])), max_size=60).map(
    "".join
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer trained on a few modules' source code and the hostile pieces."""
    directory = tmp_path_factory.mktemp("tokenizer")
    entries = [inspect.getsource(module) for module in (inspect, textwrap, logging)] + [" ".join(PIECES)] * 20
    source = lines_listed(directory, entries, validation=0)
    return Tokenizer(trained(directory, [source], vocab_size=900, sample={"a": 1}, sample_mb=0.2))


@pytest.fixture
def fast_encoder(tokenizer):
    encoder = fast.Encoder(tokenizer)
    assert encoder.name.startswith("gigatoken ")
    return encoder


def same(fast_encoder, tokenizer, texts):
    ids = fast_encoder.encode(texts)
    assert all(found.dtype == np.int32 for found in ids)
    for text, found, expected in zip(texts, ids, tokenizer.encode(texts), strict=True):
        assert found.tolist() == expected.tolist(), ascii(text[:80])


@pytest.fixture(scope="module")
def warm(tokenizer):
    """An encoder that has seen many texts."""
    return fast.Encoder(tokenizer)


@settings(max_examples=300, deadline=None)
@given(st.lists(hostile, max_size=4))
def test_any_text_has_the_same_ids(warm, tokenizer, texts):
    same(warm, tokenizer, texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " " * 100_000,
        "a" * 1_000_000,
        "".join(chr(97 + (number * number * 7 + number // 3) % 26) for number in range(1_000_000)),
        "\u2581" * 10_000 + " \u2581 a\u2581b",
        "\n" * 10_000 + "\r\n" * 1000,
        "".join(map(chr, range(0x3000))),
        bytes(range(256)).decode("latin-1") * 100,
        "".join(PIECES) * 100,
        "0123456789" * 1000,
    ],
    ids=["empty", "spaces", "letter", "word", "marks", "newlines", "characters", "bytes", "pieces", "digits"],
)
def test_an_extreme_text_has_the_same_ids(fast_encoder, tokenizer, text):
    same(fast_encoder, tokenizer, [text])


def test_one_thread_encodes(fast_encoder):
    if not Path("/proc/self/task").exists():
        pytest.skip("threads are counted in /proc")
    before = len(list(Path("/proc/self/task").iterdir()))
    fast_encoder.encode(["some words " * 1000] * 300)
    assert len(list(Path("/proc/self/task").iterdir())) == before


def test_reloading_changes_nothing(fast_encoder, tokenizer, monkeypatch):
    monkeypatch.setattr(fast, "RELOAD_CHARACTERS", 50)
    fast_encoder.encode(["x" * 200])
    same(fast_encoder, tokenizer, ["def f(a, b):\n    return a </s> 1"] * 9)


def test_a_sample_of_the_documents_is_compared(fast_encoder, monkeypatch):
    monkeypatch.setattr(fast, "CHECK_FIRST", 10)
    monkeypatch.setattr(fast, "CHECK_EVERY", 100)
    for _ in range(5):
        fast_encoder.encode(["a b c"] * 50)
    assert fast_encoder.record == {"encoder": fast_encoder.name, "compared_documents": 12}


@pytest.fixture
def broken(monkeypatch):
    """A gigatoken that, from the text `spoilt` on, gives a wrong id."""
    import gigatoken

    load = gigatoken.Tokenizer.from_json

    class Broken:
        def __init__(self, data):
            self.right = load(data)

        def encode(self, text):
            ids = self.right.encode(text)
            if "spoilt" in text:
                ids[1] += 1
            if "panic" in text:
                raise type("PanicException", (BaseException,), {})("index out of bounds")
            return ids

    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", Broken)


@pytest.mark.parametrize("documents", [["fine", "spoilt", "fine"], ["fine", "x" * 30_000 + "spoilt" + "y" * 30_000]])
def test_a_difference_makes_all_documents_again_by_the_slow_encoder(broken, tokenizer, caplog, documents):
    made = []

    def make(encoder):
        made.append(encoder.name)
        names = [f"a.jsonl:{number}" for number in range(len(documents))]
        return encoder.encode(documents, names=names), encoder.record

    ids, record = fast.encode_exactly(tokenizer, make)
    assert [found.tolist() for found in ids] == [expected.tolist() for expected in tokenizer.encode(documents)]
    assert record == {"encoder": made[1], "compared_documents": 0}
    assert made[0].startswith("gigatoken ") and made[1].startswith("sentencepiece ")
    (warning,) = [line for line in caplog.records if line.levelname == "WARNING"]
    assert warning.message.startswith(f"a.jsonl:1 has other ids by {made[0]} than by sentencepiece, from token 1 on: [")
    assert warning.message.endswith("all documents are encoded again, by sentencepiece alone")


def test_nothing_of_the_first_try_is_in_memory_during_the_second(broken, tokenizer):
    made = []

    class Held:
        """As the writers of the shards, which hold up to a GB."""

    def make(encoder):
        held = Held()
        made.append(weakref.ref(held))
        if len(made) == 2:
            assert made[0]() is None
        return encoder.encode(["fine", "spoilt"])

    fast.encode_exactly(tokenizer, make)
    assert len(made) == 2


def test_a_panic_is_a_difference(broken, tokenizer, caplog):
    (ids,) = fast.encode_exactly(tokenizer, lambda encoder: encoder.encode(["panic"]))
    assert ids.tolist() == tokenizer.encode(["panic"])[0].tolist()
    assert "document 0 cannot be encoded by gigatoken 0.10.0 (index out of bounds)" in caplog.text


def test_without_gigatoken_the_tokenizers_own_library_encodes(tokenizer, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    (ids,) = fast.encode_exactly(tokenizer, lambda encoder: encoder.encode(["a text"]))
    assert ids.tolist() == tokenizer.encode(["a text"])[0].tolist()
    assert [line for line in caplog.messages if line.startswith("gigatoken cannot be imported")]


def test_a_tokenizer_that_gigatoken_cannot_load_is_encoded_by_the_tokenizers_own_library(tmp_path, capsys):
    source = lines_listed(tmp_path, ["some words here " * 99], validation=0)
    made = trained(tmp_path, [source], vocab_size=268, sample={"a": 1}, model="unigram")
    encoder = fast.Encoder(Tokenizer(made))
    assert encoder.name.startswith("tokenizers ")
    assert "\ngigatoken cannot load this tokenizer (" in capsys.readouterr().err


SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}


def split_then_bytes(**split):
    given = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False} | split
    return {"type": "Sequence", "pretokenizers": [given, BYTE_LEVEL | {"use_regex": False}]}


PRE_TOKENIZERS = [BYTE_LEVEL, BYTE_LEVEL | {"add_prefix_space": True}, BYTE_LEVEL | {"use_regex": False}]
PRE_TOKENIZERS += [split_then_bytes(**one) for one in ({}, {"behavior": "Removed"}, {"invert": True})]
PRE_TOKENIZERS += [
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
    None,
]
PRE_TOKENIZERS += [METASPACE | {"prepend_scheme": scheme} for scheme in ("always", "first", "never")]
NORMALIZERS = [None, TO_MARK, {"type": "NFC"}, {"type": "NFKC"}, {"type": "Lowercase"}]
NORMALIZERS += [{"type": "Strip", "strip_left": True, "strip_right": True}]
NORMALIZERS += [{"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, TO_MARK]}]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
ADDED = ["def f", "foo", "fo", " ", "  ", "\u00e9", "e", "\u2581a", "1", "e\u0301"]
added_tokens = st.lists(
    st.fixed_dictionaries({"content": st.sampled_from(ADDED), **dict.fromkeys(FLAGS, st.booleans())}),
    max_size=3,
    unique_by=lambda token: token["content"],
)
words = st.lists(st.sampled_from([*PIECES, *ADDED, "xfoo", "foox", " foo ", "Foo", "'s"]), max_size=12).map("".join)


@pytest.fixture(scope="module")
def packages(tokenizer):
    """A tokenizer.json with bytes as characters, and one with byte_fallback."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers, trainers

    made = Library(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([inspect.getsource(textwrap), " ".join(PIECES)], trainer)
    return json.loads(made.to_str()), json.loads(tokenizer.package.read_text())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_gigatoken_is_used_only_for_what_it_encodes_like_tokenizers(packages, data):
    import gigatoken
    from tokenizers import Tokenizer as Library

    package = dict(data.draw(st.sampled_from(packages)))
    package["normalizer"] = data.draw(st.sampled_from(NORMALIZERS))
    package["pre_tokenizer"] = data.draw(st.sampled_from(PRE_TOKENIZERS))
    first = len(package["model"]["vocab"])
    added = [{"id": first + at, "special": False, **one} for at, one in enumerate(data.draw(added_tokens))]
    vocabulary = package["model"]["vocab"]
    package["added_tokens"] = [one | {"id": vocabulary.get(one["content"], one["id"])} for one in added]
    package["post_processor"] = None
    if fast.foreign_feature(package) is not None:
        return
    try:
        theirs = gigatoken.Tokenizer.from_json(json.dumps(package))
    except Exception:
        return
    ours = Library.from_str(json.dumps(package))
    for text in data.draw(st.lists(words, min_size=1, max_size=8)):
        expected = ours.encode(text, add_special_tokens=False).ids
        assert [int(number) for number in theirs.encode(text)] == expected, (ascii(text), package["added_tokens"])


def test_features_that_gigatoken_ignores_are_named(packages, tokenizer):
    of_bytes, with_fallback = packages
    token = {"id": 0, "content": "foo", "special": False, **dict.fromkeys(FLAGS, False)}
    for change, said in (
        ({"added_tokens": [token | {"single_word": True}]}, "the added token 'foo' (single_word)"),
        ({"pre_tokenizer": BYTE_LEVEL | {"use_regex": False}}, "the pre-tokenizer {"),
        ({"pre_tokenizer": split_then_bytes(behavior="Removed")}, "the pre-tokenizer {"),
        ({"normalizer": {"type": "NFKC"}}, "the normalizer {"),
        ({"model": of_bytes["model"] | {"end_of_word_suffix": "</w>"}}, "model.end_of_word_suffix"),
    ):
        assert fast.foreign_feature(of_bytes | change).startswith(said)
    assert fast.foreign_feature(of_bytes) is None and fast.foreign_feature(with_fallback) is None
    assert fast.Encoder(tokenizer).name.startswith("gigatoken ")

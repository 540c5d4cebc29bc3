"""Long texts are encoded in segments, and their ids are those of the whole text."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer as Theirs
from tokenizers import decoders, models, normalizers, trainers

from stages import index, tokenize
from stages.lib import manifest
from stages.lib.parity import tokenizer_parity as parity
from stages.lib.sources.documents import Document
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import bos_eos, pretokenized
from stages.lib.tokens.corpus import Corpus
from tests.helpers import custom_tokenizers
from tests.helpers.custom_tokenizers import BOS, EOS
from tests.helpers.data_fixtures import lines_listed, listed, make, small_tokenizer, texts, tokenized, trained

SEGMENT, CONTEXT = 300, 60
TEXT = "".join(texts("a", 30))


def with_a_space_in_front(path):
    """A tokenizer.json of Llama 2's kind, which puts a space in front of each text, and pieces in front of words."""
    made = Theirs(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    strip = decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    special = ["<unk>", BOS, EOS, *(f"<0x{number:02X}>" for number in range(256))]
    words = [word for text in texts("a", 20) for word in text.split()]
    made.train_from_iterator(words, trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False))
    package = json.loads(made.to_str())
    package["added_tokens"] = package["added_tokens"][:3]  # a trainer makes the bytes special ones, and Llama 2 none
    return custom_tokenizers.write_package(path, package)


@pytest.fixture(scope="module", params=["trained", "byte-level", "a space in front"])
def tokenizer(request, tmp_path_factory):
    """The manifest of a tokenizer."""
    directory = tmp_path_factory.mktemp("tokenizer")
    if request.param == "trained":
        return small_tokenizer(directory)
    write = custom_tokenizers.write if request.param == "byte-level" else with_a_space_in_front
    return custom_tokenizers.taken(write(directory / "mine" / "tokenizer.json"), directory)


@pytest.fixture
def short_segments(monkeypatch):
    monkeypatch.setattr(bos_eos, "SEGMENT_CHARACTERS", SEGMENT)
    monkeypatch.setattr(bos_eos, "CONTEXT", CONTEXT)


def in_segments(tokenizer, text):
    """The ids of a text, and the number of segments in which it was encoded."""
    whole = []

    def encode(some, _):
        whole.extend(some)
        return tokenizer.encode(some)

    (ids,) = bos_eos.ids_of([Document("a", text, "train")], encode, np.uint16)
    return ids, sum(len(text) > 2 * CONTEXT + 1 for text in whole)


@pytest.mark.parametrize("line_ends", [True, False])
def test_ids_of_segments_are_those_of_the_whole_text(short_segments, tokenizer, line_ends):
    tokenizer = Tokenizer(tokenizer)
    text = TEXT if line_ends else TEXT.replace("\n", " ")
    ids, segments = in_segments(tokenizer, text)
    assert segments > len(text) / SEGMENT
    np.testing.assert_array_equal(ids, tokenizer.encode([text])[0])


@settings(max_examples=60, deadline=None)
@given(text=st.text("ab \n\u00e9\u2003", min_size=SEGMENT, max_size=4 * SEGMENT))
def test_segments_join_to_the_text_but_for_spaces_between(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bos_eos, "SEGMENT_CHARACTERS", SEGMENT)
        for ids_of_text in (lambda text: [text.count("a")], lambda text: [0, *map(ord, text)]):
            at = 0
            for segment in bos_eos._segments(text, ids_of_text):
                at += text.startswith(" " + segment, at) and not text.startswith(segment, at)
                assert 0 < len(segment) <= SEGMENT and text.startswith(segment, at)
                at += len(segment)
            assert at == len(text)


def test_a_text_that_cannot_be_cut_well_is_cut_all_the_same(short_segments, tokenizer):
    tokenizer = Tokenizer(tokenizer)
    ids, _ = in_segments(tokenizer, "\u4e2d" * 3 * SEGMENT)
    assert tokenizer.decode(ids.tolist()).count("\u4e2d") == 3 * SEGMENT


def test_long_validation_documents_are_no_mistake_of_the_export(short_segments, tokenizer, tmp_path):
    """Of the corpus' first validation documents, the export must have the same ids: in the same segments."""
    entries = [{"text": "\u4e2d" * 500 + TEXT[at : at + 4 * SEGMENT]} for at in range(20)]
    source = lines_listed(tmp_path, entries, validation=0.5)
    parts = tokenized(tmp_path, "a", source, tokenizer)
    corpus = Corpus(make(index, tokenizer=tokenizer, parts=parts, output=tmp_path / "tokens" / "manifest.json"))
    exported = parity.load_tokenizer(tokenizer.parent)
    parity.compare_corpus_tokens(exported, corpus)
    exported.add_tokens(["ka"])
    with pytest.raises(parity.ParityError, match="has other tokens in the corpus than here"):
        parity.compare_corpus_tokens(exported, corpus)


def test_ids_of_a_source_need_not_be_those_of_their_text(tokenizer, tmp_path, capsys):
    ends = (Tokenizer(tokenizer).bos, Tokenizer(tokenizer).eos)
    rows = [[one for one in (*range(3, 200), 3 + number) if one not in ends] for number in range(99)]
    ids = pa.array(rows, pa.list_(pa.int32()))
    parquet.write_table(pa.table({"ids": ids}), tmp_path / "a.parquet")
    recipe = {"kind": "parquet", "paths": [str(tmp_path / "a.parquet")], "token_ids_field": "ids", "validation": 0.5}
    (part,) = tokenized(tmp_path, "a", listed(tmp_path, "a", recipe), tokenizer)
    assert json.loads(part.read_text())["record"]["given_ids"] == {"compared": 99, "same": 0}
    said = "the token ids of 99 of 99 compared documents differ from those of the tokenizer: were they made by"
    assert f"source a: {said}" in capsys.readouterr().err
    corpus = make(index, tokenizer=tokenizer, parts=[part], output=tmp_path / "tokens" / "manifest.json")
    parity.compare_corpus_tokens(parity.load_tokenizer(tokenizer.parent), Corpus(corpus))


MIXED = TEXT + "\u4e2d\u6587 \U0001f469 e\u0301\ufffd  " * 300 + TEXT + "\u4e2d" * 900


@pytest.mark.parametrize("length", [1, 2, 7, 64, 5000])
def test_many_ids_are_decoded_in_segments_to_the_text_of_all(tokenizer, monkeypatch, length):
    monkeypatch.setattr(pretokenized, "SEGMENT_IDS", length)
    tokenizer = Tokenizer(tokenizer)
    ids = tokenizer.encode([MIXED])[0].astype(np.uint16)
    document = pretokenized.with_text(Document("a", None, "train", ids), tokenizer)
    assert document.text == tokenizer.decode(ids.tolist())
    np.testing.assert_array_equal(document.ids, ids)


@pytest.mark.parametrize("model", ["bpe", "unigram"])  # decoded by SentencePiece, and by tokenizers
@pytest.mark.parametrize("segment_ids", [50, 1 << 18])
def test_texts_are_those_of_the_source(tmp_path, monkeypatch, model, segment_ids):
    monkeypatch.setattr(pretokenized, "SEGMENT_IDS", segment_ids)
    made = [text for text in texts("a", 30) if text.strip()] + ["</s> \u00e9\u4e2d\U0001f600 x" * 40]
    source = lines_listed(tmp_path, made, validation=0)
    tokenizer = trained(tmp_path, [source], vocab_size=400, sample={"a": 1}, model=model)
    part = make(tokenize, list=source, tokenizer=tokenizer, part=0, output=tmp_path / "tokens/a/00000.json")
    found = list(pretokenized.training_documents(manifest.read(part), Tokenizer(tokenizer)))
    assert [number for number, _ in found] == list(range(len(made)))
    assert sorted(text for _, text in found) == sorted(made)

"""The index finds each n-gram of an item wherever it stands, and nothing else, also when hashes collide."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.contamination import ngram_index
from stages.lib.contamination.items import Item
from stages.lib.contamination.ngram_index import NgramIndex

VOCABULARY = ("the", "Harbour,", "is", "full", "(of", "boats)", "and", "\u00c9clair", "42", "don't", "\u4e2d\u6587")
word = st.sampled_from(VOCABULARY)
text = st.lists(word, max_size=40).map(" ".join)


@pytest.fixture(params=["hashes", "one hash for all"])
def hashing(request, monkeypatch):
    """The hashes as they are, and hashes that all collide."""
    if request.param == "one hash for all":
        monkeypatch.setattr(ngram_index, "window_hashes", lambda values, n: np.zeros(max(0, len(values) - n + 1), "u8"))


@pytest.fixture(params=[7, 1 << 17])
def batch_words(request, monkeypatch):
    """Batches that cut most documents, and batches of many documents."""
    monkeypatch.setattr(ngram_index, "BATCH_WORDS", request.param)
    monkeypatch.setattr(ngram_index, "SEGMENT_CHARACTERS", 3 * request.param)


def found_by_index(items, n, documents):
    """{(number of the item, place of its n-gram, number of the document)}, by the index."""
    index = NgramIndex(items, n)
    batches = index.search(enumerate(documents))
    hits = {hit for ngrams, keys in batches for hit in zip(ngrams.tolist(), keys, strict=True)}
    return {
        (item, place, key)
        for item, ngrams in enumerate(index.of_item)
        for place, ngram in enumerate(ngrams.tolist())
        for found, key in hits
        if found == ngram
    }


def found_by_comparing(items, n, documents):
    """The same, by comparing each n-gram of each item with each run of words of each document."""
    found = set()
    for number, item in enumerate(items):
        of_item = ngram_index.words_of(item.text)
        length = n if len(of_item) >= n else len(of_item)
        if length < min(n, 8):
            continue
        for place in range(len(of_item) - length + 1):
            ngram = of_item[place : place + length]
            for key, document in enumerate(documents):
                of_document = ngram_index.words_of(document)
                runs = (of_document[at : at + length] for at in range(len(of_document) - length + 1))
                if ngram in runs:
                    found.add((number, place, key))
    return found


def test_a_short_question_is_found_without_its_label():
    question = "which gas do all the green plants of the earth give off"
    text = f"Read and answer.\nQuestion: {question.capitalize()}?\nA. oxygen\nB. neon\nAnswer: oxygen"
    hits = found_by_index([Item("a", 0, text)], 13, [f"He asked {question}, and left.", question[:-4]])
    assert {(item, key) for item, _, key in hits} == {(0, 0)}


def test_normal_forms_and_dashes_make_no_difference_and_the_end_of_a_document_ends_a_text():
    text = "la \u00e9t\u00e9 fut longue \u2014 et chaude \u2013 pour les \ufb01lles du village de la mer"
    written = "la e\u0301te\u0301 fut longue\u2014et chaude\u2013pour les filles du village de la mer"
    words = written.split()
    documents = [written, " ".join(words[:6]), " ".join(words[6:])]
    assert {key for _, _, key in found_by_index([Item("a", 0, text)], 13, documents)} == {0}


@pytest.mark.usefixtures("hashing", "batch_words")
@settings(max_examples=60, deadline=None)
@given(st.lists(text, min_size=1, max_size=4), st.lists(text, max_size=4), st.integers(1, 14))
def test_it_finds_what_comparing_all_runs_of_words_finds(texts, documents, n):
    items = [Item("a", number, item) for number, item in enumerate(texts)]
    assert found_by_index(items, n, documents) == found_by_comparing(items, n, documents)


def test_the_template_of_a_task_is_no_ngram_of_its_items():
    template = "answer the following question with a letter and explain briefly in your own words why"
    items = [
        Item("a", number, f"{template} " + " ".join(f"q{number}x{at}" for at in range(13))) for number in range(30)
    ]
    index = NgramIndex(items, 13)
    assert not list(index.search([(0, f"some page with {template} and nothing else")]))
    ((ngrams, _),) = index.search([(0, items[7].text)])
    assert set(ngrams.tolist()) == set(index.of_item[7].tolist())


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_words_have_no_punctuation_and_no_capitals(any_text):
    for each in ngram_index.words_of(any_text):
        assert each == "".join(each.split()) and not any(character in each for character in ".,;:!?'\"()-_$+")
    assert [
        each for segment in ngram_index.segments(any_text) for each in ngram_index.words_of(segment)
    ] == ngram_index.words_of(any_text)

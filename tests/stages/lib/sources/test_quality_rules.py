"""The published rules of quality, compared with their definitions written out word by word."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.recipe import load, written
from stages.lib.sources import filters, quality_rules
from stages.lib.sources.filters import FilterRecipe
from stages.lib.sources.quality_rules import GopherQuality, GopherRepetition

PROSE = (
    "The board of the town met on Monday, and the members that have a seat spoke of the new bridge. It is to be built "
    "with money of the county. Some of them said that a ferry would cost less; others want to wait. The vote is in May."
)
WORDS = ["the", "of", "and", "a", "bb", "ccc", "#", "...", "-", "\u2022", "\u00dcn\u00efcode", "42", "?!", "javascript"]
WORDS += ["word,", "end.", "last?", "lorem ipsum", "{"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=14).map("\n".join)


def reason_of(text, **rules):
    (outcome,) = filters.judged(load(FilterRecipe, rules, "filters"), [text], ["a"])
    return outcome.reason


def repetition_by_hand(text):
    """The rule of table A1 that a text breaks first."""
    for what, parts in (("para", re.split("\n{2,}", text.strip())), ("line", re.split("\n+", text))):
        repeats = [part for number, part in enumerate(parts) if part in parts[:number]]
        if len(repeats) / len(parts) > 0.3:
            return f"dup_{what}_frac"
        if sum(map(len, repeats)) / max(1, len(text)) > 0.2:
            return f"dup_{what}_char_frac"
    words = text.split()
    for length, limit in ((2, 0.2), (3, 0.18), (4, 0.16)):
        ngrams = [" ".join(words[at : at + length]) for at in range(len(words) - length + 1)]
        if ngrams:
            top, count = Counter(ngrams).most_common(1)[0]
            if len(top) * count / len(text) > limit:
                return f"top_{length}_gram"
    for length, limit in zip(range(5, 11), (0.15, 0.14, 0.13, 0.12, 0.11, 0.10), strict=True):
        seen, characters, at = set(), 0, 0
        while at + length <= len(words):
            ngram = tuple(words[at : at + length])
            again = ngram in seen
            seen.add(ngram)
            characters += again * sum(map(len, ngram))
            at += length if again else 1
        if characters / max(1, len(text)) > limit:
            return f"dup_{length}_gram"
    return None


def quality_by_hand(text, limits):
    """The rule of section A.1.1 that a text breaks first; `limits`: of the number of words."""
    words = text.split()
    real = [word for word in words if any(character.isalnum() for character in word)]
    if len(real) < limits[0]:
        return "min_doc_words"
    if len(real) > limits[1]:
        return "max_doc_words"
    mean = sum(map(len, real)) / max(1, len(real))
    if mean < 3:
        return "min_avg_word_length"
    if mean > 10:
        return "max_avg_word_length"
    total = max(1, len(words))
    if text.count("#") / total > 0.1 or (text.count("...") + text.count("…")) / total > 0.1:
        return "max_symbol_word_ratio"
    lines = text.splitlines() or [""]
    if sum(line.strip()[:1] in ("•", "-") and bool(line.strip()) for line in lines) / len(lines) > 0.9:
        return "max_bullet_lines_ratio"
    if sum(line.rstrip().endswith(("...", "…")) for line in lines) / len(lines) > 0.3:
        return "max_ellipsis_lines_ratio"
    if sum(any(character.isalpha() for character in word) for word in words) / total < 0.8:
        return "max_non_alpha_words_ratio"
    if len({"the", "be", "to", "of", "and", "that", "have", "with"} & set(words)) < 2:
        return "min_stop_words"
    return None


@given(st.lists(TEXTS, min_size=1, max_size=5))
@settings(deadline=None)
def test_gophers_rules_are_those_of_the_paper(texts):
    batch = quality_rules.Batch(texts)
    found = quality_rules.gopher_repetition(GopherRepetition(), batch)
    assert found.reasons == [rule and f"gopher_repetition.{rule}" for rule in map(repetition_by_hand, texts)]
    found = quality_rules.gopher_quality(GopherQuality(min_doc_words=3, max_doc_words=40), batch)
    broken = [quality_by_hand(text, (3, 40)) for text in texts]
    assert found.reasons == [rule and f"gopher_quality.{rule}" for rule in broken]


@pytest.mark.parametrize(
    ("rules", "kept", "dropped", "reason"),
    [
        ("gopher_quality", PROSE + PROSE, PROSE[:100], "min_doc_words"),
        ("gopher_quality", PROSE + PROSE, "Wort fuer Wort nur deutsche Woerter ohne Punkt. " * 9, "min_stop_words"),
        ("gopher_repetition", PROSE, "Read more about this. " * 9, "top_2_gram"),
        ("c4_quality", f"{PROSE}\nHome | About\n{PROSE}", f"{PROSE}\nlet x = {{.", "filter_curly_bracket"),
        ("c4_quality", PROSE + PROSE, f"{PROSE}\nLorem ipsum dolor.", "filter_lorem_ipsum"),
        ("c4_quality", PROSE + PROSE, "One. Two three.\nfour five six", "min_num_sentences"),
        ("fineweb_quality", PROSE, f"{PROSE}\n{PROSE}", "char_duplicates_ratio"),
        ("fineweb_quality", f"{PROSE}\n{PROSE[:50]}.", "Home\nAbout\nContact\nImprint", "line_punct_thr"),
        ("fineweb_quality", "Eine Zeile mit mehr als zehn Zeichen\uff1f", "A.\nB.\nC.", "short_line_thr"),
        ("fineweb_quality", PROSE, "\n".join(f"{number} items of it were in the shop." for number in range(9)), None),
    ],
)
def test_each_set_of_rules_names_the_rule_that_a_document_breaks(rules, kept, dropped, reason):
    assert reason_of(kept, **{rules: {}}) is None
    assert reason_of(dropped, **{rules: {}}) == (reason and f"filters.{rules}.{reason}")
    assert reason_of(dropped) is None
    if reason is not None and not reason.startswith("filter"):
        assert reason_of(dropped, **{rules: {reason: None}}) != f"filters.{rules}.{reason}"


def test_c4_removes_lines_and_later_rules_read_what_stays():
    menu = "\n".join(["Home", "About us", "Please accept our privacy policy.", "Enable javascript to read on."])
    text = f"{menu}\n{PROSE}[3]\n{PROSE[:60]}...\n{PROSE[::-1]}.\n"
    recipe = load(FilterRecipe, {"c4_quality": {}, "fineweb_quality": {}}, "filters")
    assert filters.judged(recipe, [text], ["a"]) == [(None, f"{PROSE}\n{PROSE[::-1]}.", None, None)]
    assert reason_of(text, fineweb_quality={"line_punct_thr": 0.7}) == "filters.fineweb_quality.line_punct_thr"


def test_a_set_with_its_published_thresholds_is_part_of_the_identity():
    recipe = {"c4_quality": {}, "fineweb_quality": {"short_line_length": 9}}
    assert written(load(FilterRecipe, recipe, "filters"), "identity") == recipe
    with pytest.raises(UserError, match=r"filters\.gopher_quality\.min_doc_words must be at most"):
        load(FilterRecipe, {"gopher_quality": {"max_doc_words": 9}}, "filters")


def test_of_a_long_text_the_beginning_is_measured(monkeypatch):
    monkeypatch.setattr(quality_rules, "MEASURED_CHARACTERS", len(PROSE))
    assert reason_of(PROSE + "again and again " * 99, gopher_repetition={}) is None

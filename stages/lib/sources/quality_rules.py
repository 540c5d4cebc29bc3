"""Published rules of text quality, with the thresholds of their authors as defaults.

    gopher_repetition   Rae et al., arXiv 2112.11446, table A1
    gopher_quality      the same, section A.1.1
    c4_quality          Raffel et al., arXiv 1910.10683, section 2.2: removes lines, and documents
    fineweb_quality     Penedo et al., arXiv 2406.17557, section 3.6

The thresholds are datatrove's defaults, under its names but for those of n-grams. Its decisions are the same for the
same words. A word is a run of
characters that are not white space, as in the papers; datatrove cuts punctuation and clitics off by a tokenizer of the
language (spaCy), which moves some documents over a threshold. A sentence of c4_quality ends in a mark and white space.

Words and their n-grams are compared as numbers, many documents at once. Only the first 1,048,576 characters of a text
are measured; c4_quality reads all of its lines.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.lib.errors import UserError
from stages.lib.recipe import identity
from stages.lib.sources import shingles

MEASURED_CHARACTERS = 1 << 20
"""Characters of a text that are measured: short lines, or words, take up to a hundred times their size in memory."""

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
END_PUNCTUATION = (".", "?", "!", '"', "'")
BULLETS, ELLIPSES = ("\u2022", "-"), ("...", "\u2026")
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
SENTENCE_END = re.compile(r"[.!?\u2026]+[\"')\]\u201d\u2019]*\s+(?=\S)")


def check_ranges(recipe: Any, where: str, *names: str) -> None:
    """Raise UserError if a recipe's `min_NAME` is above its `max_NAME`."""
    for name in names:
        minimum, maximum = getattr(recipe, f"min_{name}"), getattr(recipe, f"max_{name}")
        if minimum is not None and maximum is not None and minimum > maximum:
            raise UserError(f"{where}.min_{name} must be at most {where}.max_{name} ({maximum}), got {minimum}")


@dataclass(frozen=True, kw_only=True)
class GopherRepetition:
    """Rules of Gopher about text that repeats itself; null turns one off. Shares are of the document's characters."""

    dup_para_frac: float | None = identity(0.3, minimum=0, maximum=1)
    """The maximum share of paragraphs that repeat an earlier one."""

    dup_para_char_frac: float | None = identity(0.2, minimum=0, maximum=1)
    """The maximum share of characters in paragraphs that repeat an earlier one."""

    dup_line_frac: float | None = identity(0.3, minimum=0, maximum=1)
    """The maximum share of lines that repeat an earlier one."""

    dup_line_char_frac: float | None = identity(0.2, minimum=0, maximum=1)
    """The maximum share of characters in lines that repeat an earlier one."""

    top_2_gram: float | None = identity(0.2, minimum=0, maximum=1)
    """The maximum share of characters in the most common pair of words."""

    top_3_gram: float | None = identity(0.18, minimum=0, maximum=1)
    """The maximum share of characters in the most common run of 3 words."""

    top_4_gram: float | None = identity(0.16, minimum=0, maximum=1)
    """The maximum share of characters in the most common run of 4 words."""

    dup_5_gram: float | None = identity(0.15, minimum=0, maximum=1)
    """The maximum share of characters in runs of 5 words that repeat an earlier one."""

    dup_6_gram: float | None = identity(0.14, minimum=0, maximum=1)
    """The maximum share of characters in runs of 6 words that repeat an earlier one."""

    dup_7_gram: float | None = identity(0.13, minimum=0, maximum=1)
    """The maximum share of characters in runs of 7 words that repeat an earlier one."""

    dup_8_gram: float | None = identity(0.12, minimum=0, maximum=1)
    """The maximum share of characters in runs of 8 words that repeat an earlier one."""

    dup_9_gram: float | None = identity(0.11, minimum=0, maximum=1)
    """The maximum share of characters in runs of 9 words that repeat an earlier one."""

    dup_10_gram: float | None = identity(0.1, minimum=0, maximum=1)
    """The maximum share of characters in runs of 10 words that repeat an earlier one."""


@dataclass(frozen=True, kw_only=True)
class GopherQuality:
    """Rules of Gopher about words and lines; null turns one off. The stop words are English."""

    min_doc_words: int | None = identity(50, minimum=1)
    """The minimum number of words that are more than punctuation."""

    max_doc_words: int | None = identity(100_000, minimum=1)
    """The maximum number of words that are more than punctuation."""

    min_avg_word_length: float | None = identity(3.0, minimum=0)
    """The minimum mean length, in characters, of words that are more than punctuation."""

    max_avg_word_length: float | None = identity(10.0, minimum=0)
    """The maximum mean length, in characters, of words that are more than punctuation."""

    max_symbol_word_ratio: float | None = identity(0.1, minimum=0)
    """The maximum number of hash signs per word, and of ellipses per word."""

    max_bullet_lines_ratio: float | None = identity(0.9, minimum=0, maximum=1)
    """The maximum share of lines that begin with a bullet or a dash."""

    max_ellipsis_lines_ratio: float | None = identity(0.3, minimum=0, maximum=1)
    """The maximum share of lines that end with an ellipsis."""

    max_non_alpha_words_ratio: float | None = identity(0.8, minimum=0, maximum=1)
    """The minimum share of words with a letter. (The name is datatrove's.)"""

    min_stop_words: int | None = identity(2, minimum=1, maximum=len(STOP_WORDS))
    """The minimum number of different words among the, be, to, of, and, that, have, with."""

    def check(self, where: str) -> None:
        """Raise UserError if a minimum is above its maximum."""
        check_ranges(self, where, "doc_words", "avg_word_length")


@dataclass(frozen=True, kw_only=True)
class C4Quality:
    """Rules of C4: lines without the form of a sentence are removed, then documents with few sentences are filtered."""

    max_word_length: int | None = identity(1000, minimum=1)
    """Remove lines with a word of more characters."""

    remove_citations: bool = identity(True)
    """Remove Wikipedia's marks of citations: [1], [edit], [citation needed]."""

    filter_no_terminal_punct: bool = identity(True)
    """Remove lines that do not end with a period, question mark, exclamation mark or quotation mark, or end with three
    dots."""

    min_words_per_line: int | None = identity(3, minimum=1)
    """Remove lines with fewer words."""

    filter_lorem_ipsum: bool = identity(True)
    """Filter documents with the words lorem ipsum in a line that stays up to here."""

    filter_javascript: bool = identity(True)
    """Remove lines with the word javascript."""

    filter_curly_bracket: bool = identity(True)
    """Filter documents with an opening curly bracket in a line that stays up to here. Set false for code."""

    filter_policy: bool = identity(True)
    """Remove lines with terms of use, privacy policy, cookie policy, uses cookies, use of cookies or use cookies."""

    min_num_sentences: int | None = identity(5, minimum=1)
    """The minimum number of sentences in the lines that stay."""


@dataclass(frozen=True, kw_only=True)
class FinewebQuality:
    """Rules that FineWeb adds to those of Gopher and C4; null turns one off. Blank lines do not count."""

    line_punct_thr: float | None = identity(0.12, minimum=0, maximum=1)
    """The minimum share of lines that end with a mark that ends sentences, of any script."""

    short_line_thr: float | None = identity(0.67, minimum=0, maximum=1)
    """The maximum share of lines of at most `short_line_length` characters."""

    short_line_length: int = identity(30, minimum=0)
    """The maximum length of a short line, in characters."""

    char_duplicates_ratio: float | None = identity(0.01, minimum=0, maximum=1)
    """The maximum share of characters in lines that repeat an earlier one."""

    new_line_ratio: float | None = identity(0.3, minimum=0)
    """The maximum number of line ends per word."""


class Batch:
    """The measured beginnings of some texts, with what several rules need of them. Shapes: T texts, W words of all."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = [text[:MEASURED_CHARACTERS] for text in texts]

    @functools.cached_property
    def words(self) -> Words:
        """The words of all texts."""
        return Words([text.split() for text in self.texts])

    @functools.cached_property
    def characters(self) -> np.ndarray:
        """The number of characters of each text, [T]; at least 1."""
        return np.maximum(1, [len(text) for text in self.texts])

    def of_each(self, measure: Callable[[str], float]) -> np.ndarray:
        """Return a measure of each text, [T]."""
        return np.array([measure(text) for text in self.texts], dtype=float)


class Words:
    """The words of texts as numbers, equal for equal words: `ids` [W], of the text `owners` [W], `counts` [T]."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        import pyarrow
        import pyarrow.compute as pc

        flat = [word for words in texts for word in words]
        encoded = pyarrow.array(flat, pyarrow.large_string()).dictionary_encode()
        self.texts, self._dictionary = texts, encoded.dictionary
        self.ids = encoded.indices.to_numpy().astype(np.int64)
        self.counts = np.array([len(words) for words in texts], dtype=np.int64)
        self.owners = np.repeat(np.arange(len(texts)), self.counts)
        self.begins = np.cumsum(self.counts) - self.counts
        self.lengths = pc.utf8_length(encoded.dictionary).to_numpy().astype(np.int64)[self.ids]

    @functools.cached_property
    def different(self) -> list[str]:
        """The different words, by their numbers."""
        return self._dictionary.to_pylist()

    def number_with(self, test: Callable[[str], bool]) -> np.ndarray:
        """Return the number of words of each text that pass a test, [T]."""
        return self.sum_over(self.passing(test))

    def passing(self, test: Callable[[str], bool]) -> np.ndarray:
        """Return whether each word passes a test, [W]."""
        return np.fromiter(map(test, self.different), dtype=bool, count=len(self.different))[self.ids]

    def sum_over(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of values [W] over each text, [T]."""
        return np.bincount(self.owners, weights=values, minlength=len(self.counts))

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """The characters of all words before each word, and of all, [W + 1]."""
        return np.r_[0, np.cumsum(self.lengths)]


class Repeats:
    """The n-grams that occur more than once in their text, for n from 1 up. N n-grams.

    `starts` [N]: their first words, in order. `codes` [N]: equal for equal ones of a text, numbered in the order in
    which they first occur. `again` [N]: True for each but the first of equal ones. An n-gram can only occur twice if
    the one without its last word does, so that few remain from n = 3 on.
    """

    def __init__(self, words: Words) -> None:
        self.words, self.length = words, 1
        self.starts = np.arange(len(words.ids))
        self._hashes = _mixed(_mixed(words.owners.astype(np.uint64) + np.uint64(1)) ^ words.ids.astype(np.uint64))
        self._count()

    def grow(self, texts: np.ndarray) -> None:
        """Go on to the n-grams that are one word longer, of some texts alone: `texts` [T], True for these."""
        owners, following = self.words.owners, self.starts + self.length
        inside = following < len(owners)
        inside[inside] &= owners[self.starts[inside]] == owners[following[inside]]
        inside &= texts[owners[self.starts]]
        following, self.starts, self.length = following[inside], self.starts[inside], self.length + 1
        self._hashes = _mixed(self._hashes[inside] ^ self.words.ids[following].astype(np.uint64))
        self._count()

    def _count(self) -> None:
        """Keep the n-grams that occur more than once."""
        import pyarrow

        codes = pyarrow.array(self._hashes).dictionary_encode().indices.to_numpy()
        repeated = np.bincount(codes)[codes] > 1 if len(codes) else np.zeros(0, bool)
        self.starts, self._hashes, self.codes = self.starts[repeated], self._hashes[repeated], codes[repeated]
        highest = np.maximum.accumulate(np.r_[-1, self.codes])[:-1]
        self.again = self.codes <= highest


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return splitmix64 of each number, a bijection of 64 bits."""
    return shingles.mixed(numbers + np.uint64(0x9E3779B97F4A7C15))


class Broken:
    """The first of a set of `rules` that each text breaks, as `PREFIX.RULE`, and what was measured; None if it keeps
    all."""

    def __init__(self, prefix: str, rules: Any, total: int) -> None:
        self.prefix, self.rules = prefix, rules
        self.reasons: list[str | None] = [None] * total
        self.values: list[float | None] = [None] * total

    def add(self, name: str, values: Iterable[float], is_minimum: bool = False) -> None:
        """Note the rule `name` for each text whose value is above its limit, or below a minimum, and no rule before.

        A limit of None turns the rule off.
        """
        limit = getattr(self.rules, name)
        for number, value in enumerate(values) if limit is not None else ():
            if (value < limit if is_minimum else value > limit) and self.reasons[number] is None:
                self.reasons[number], self.values[number] = f"{self.prefix}.{name}", float(value)

    def of_others(self, measure: Callable[[int], float]) -> list[float]:
        """Return a measure of each text by its number; not a number for one that breaks a rule already."""
        return [measure(at) if reason is None else math.nan for at, reason in enumerate(self.reasons)]


def gopher_repetition(rules: GopherRepetition, batch: Batch) -> Broken:
    """Return the first rule that each text breaks."""
    found = Broken("gopher_repetition", rules, len(batch.texts))
    for what, parts_of in (("para", _paragraphs), ("line", _lines)):
        parts = list(map(parts_of, batch.texts))
        again = np.array([_repeats(of_text) for of_text in parts], dtype=float).reshape(-1, 2)
        found.add(f"dup_{what}_frac", again[:, 0] / [len(of_text) for of_text in parts])
        found.add(f"dup_{what}_char_frac", again[:, 1] / batch.characters)
    repeats, every = Repeats(batch.words), np.ones(len(batch.texts), bool)
    for length in (2, 3, 4):
        repeats.grow(every)
        if getattr(rules, f"top_{length}_gram") is not None:
            found.add(f"top_{length}_gram", _characters_of_top(repeats) / batch.characters)
    for length in range(5, 11):
        suspects = np.array([reason is None for reason in found.reasons])
        repeats.grow(suspects)
        limit = getattr(rules, f"dup_{length}_gram")
        if limit is None:
            continue
        # the rule passes over the words of each repeated run; without that it is a bound, which few texts reach
        near = _characters_of_repeated(repeats) / batch.characters > limit
        shares = np.zeros(len(batch.texts))
        for number in np.flatnonzero(near):
            first, end = np.searchsorted(batch.words.owners[repeats.starts], (number, number + 1))
            shares[number] = _repeated_in_order(repeats, first, end)
        found.add(f"dup_{length}_gram", shares / batch.characters)
    return found


def _paragraphs(text: str) -> list[str]:
    """Return the pieces of a text, without white space at its ends, between two or more line ends."""
    parts = text.strip().split("\n\n")
    return [part.lstrip("\n") for part in parts if part not in ("", "\n")] or [""]


def _lines(text: str) -> list[str]:
    """Return the pieces of a text between one or more line ends."""
    first, *parts = text.split("\n")
    return [first, *filter(None, parts[:-1]), *parts[-1:]]


def _repeats(parts: Sequence[str]) -> tuple[int, int]:
    """Return the number, and the characters, of parts that repeat an earlier one."""
    if len(set(parts)) == len(parts):
        return 0, 0
    before: set[str] = set()
    number = characters = 0
    for part in parts:
        if part in before:
            number, characters = number + 1, characters + len(part)
        else:
            before.add(part)
    return number, characters


def _characters_of_top(repeats: Repeats) -> np.ndarray:
    """Return the characters of all occurrences of each text's most common n-gram, the first of equals, [T]."""
    words, length = repeats.words, repeats.length
    result = np.zeros(len(words.counts))
    long = words.counts >= length  # without repeats, its first n-gram is the most common one
    result[long] = words.ends[words.begins[long] + length] - words.ends[words.begins[long]] + length - 1
    if len(repeats.starts):
        places, codes = repeats.starts[~repeats.again], repeats.codes[~repeats.again]
        owners, counts = words.owners[places], np.bincount(repeats.codes)[codes]
        order = np.lexsort((places, -counts, owners))
        tops = order[np.r_[True, np.diff(owners[order]) != 0]]
        characters = words.ends[places[tops] + length] - words.ends[places[tops]] + length - 1  # with spaces between
        result[owners[tops]] = characters * counts[tops]
    return result


def _characters_of_repeated(repeats: Repeats) -> np.ndarray:
    """Return the characters of the words of each text that stand in an n-gram which repeats an earlier one, [T]."""
    words, starts = repeats.words, repeats.starts[repeats.again]
    changes = np.zeros(len(words.ids) + 1, dtype=np.int64)
    changes[starts] += 1
    changes[starts + repeats.length] -= 1
    return words.sum_over(words.lengths * (np.cumsum(changes)[:-1] > 0))


def _repeated_in_order(repeats: Repeats, first: int, end: int) -> int:
    """Return the characters of the n-grams of a text, those from `first` to `end`, that repeat an earlier one, whose
    words are then passed over."""
    before: set[int] = set()
    characters = following = 0
    words, length = repeats.words, repeats.length
    for start, code in zip(repeats.starts[first:end].tolist(), repeats.codes[first:end].tolist(), strict=True):
        if start < following:
            continue
        if code in before:
            characters += int(words.ends[start + length] - words.ends[start])
            following = start + length
        else:
            before.add(code)
    return characters


@functools.cache
def _is_mark(character: str) -> bool:
    """Return True for punctuation, a symbol or a control character."""
    return unicodedata.category(character)[0] in "PSC"


def gopher_quality(rules: GopherQuality, batch: Batch) -> Broken:
    """Return the first rule that each text breaks."""
    found, words = Broken("gopher_quality", rules, len(batch.texts)), batch.words
    is_word = words.passing(lambda word: not all(map(_is_mark, word)))
    number = words.sum_over(is_word)
    found.add("min_doc_words", number, is_minimum=True)
    found.add("max_doc_words", number)
    mean = words.sum_over(words.lengths * is_word) / np.maximum(1, number)
    found.add("min_avg_word_length", mean, is_minimum=True)
    found.add("max_avg_word_length", mean)
    total = np.maximum(1, words.counts)
    if rules.max_symbol_word_ratio is not None:
        hashes = batch.of_each(lambda text: text.count("#"))
        ellipses = batch.of_each(lambda text: sum(map(text.count, ELLIPSES)))
        found.add("max_symbol_word_ratio", np.maximum(hashes, ellipses) / total)
    lines = [text.splitlines() or [""] for text in batch.texts]
    bullets = (sum(line.lstrip().startswith(BULLETS) for line in of_text) / len(of_text) for of_text in lines)
    found.add("max_bullet_lines_ratio", bullets)
    ends = (sum(line.rstrip().endswith(ELLIPSES) for line in of_text) / len(of_text) for of_text in lines)
    found.add("max_ellipsis_lines_ratio", ends)
    if rules.max_non_alpha_words_ratio is not None:
        alphabetic = words.number_with(lambda word: any(map(str.isalpha, word)))
        found.add("max_non_alpha_words_ratio", alphabetic / total, is_minimum=True)
    if rules.min_stop_words is not None:
        has_word = [words.number_with(stop_word.__eq__) > 0 for stop_word in STOP_WORDS]
        found.add("min_stop_words", np.sum(has_word, axis=0), is_minimum=True)
    return found


@functools.cache
def _ends_sentence(character: str) -> bool:
    """Return True for a character that ends sentences, of any script."""
    import regex

    return regex.fullmatch(r"\p{Sentence_Terminal}", character) is not None


def fineweb_quality(rules: FinewebQuality, batch: Batch) -> Broken:
    """Return the first rule that each text breaks."""
    found = Broken("fineweb_quality", rules, len(batch.texts))
    lines = [[line for line in text.split("\n") if line.strip()] or [""] for text in batch.texts]
    is_short = rules.short_line_length.__ge__
    ended = (sum(map(_ends_sentence, [line[-1:] for line in some])) / len(some) for some in lines)
    found.add("line_punct_thr", ended, is_minimum=True)
    if rules.short_line_thr is not None:
        short = found.of_others(lambda at: sum(map(is_short, map(len, lines[at]))) / len(lines[at]))
        found.add("short_line_thr", short)
    if rules.char_duplicates_ratio is not None:
        repeated = found.of_others(lambda at: _repeats(lines[at])[1])
        characters = np.maximum(1, batch.of_each(lambda text: len(text) - text.count("\n")))
        found.add("char_duplicates_ratio", np.array(repeated) / characters)
    if rules.new_line_ratio is not None:
        ends = found.of_others(lambda at: batch.texts[at].count("\n") / max(1, len(batch.texts[at].split())))
        found.add("new_line_ratio", ends)
    return found


def c4_quality(rules: C4Quality, text: str) -> tuple[str | None, str, int | None]:
    """Return the first rule that a text breaks, as `c4_quality.RULE`, or None; the lines of the text that stay; and the
    number of its sentences, if it breaks that rule."""
    lines, num_sentences = [], 0
    for whole in text.splitlines():
        line = whole.strip()
        words = line.split()
        if rules.max_word_length is not None and max(map(len, words), default=0) > rules.max_word_length:
            continue
        if rules.remove_citations:
            line = CITATION.sub("", line)
        if rules.filter_no_terminal_punct and (not line.endswith(END_PUNCTUATION) or line.endswith("...")):
            continue
        if rules.min_words_per_line is not None and len(words) < rules.min_words_per_line:
            continue
        lower = line.lower()
        if rules.filter_lorem_ipsum and "lorem ipsum" in lower:
            return "c4_quality.filter_lorem_ipsum", "", None
        if rules.filter_javascript and "javascript" in lower:
            continue
        if rules.filter_curly_bracket and "{" in line:
            return "c4_quality.filter_curly_bracket", "", None
        if rules.filter_policy and any(policy in lower for policy in POLICIES):
            continue
        lines.append(line)
        num_sentences += 1 + len(SENTENCE_END.findall(line))
    if rules.min_num_sentences is not None and num_sentences < rules.min_num_sentences:
        return "c4_quality.min_num_sentences", "", num_sentences
    return None, "\n".join(lines).strip(), None

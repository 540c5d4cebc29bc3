"""Local tasks over validation pairs: the completion is chosen, predicted, or generated."""

import math

import pytest

from stages.lib.errors import UserError
from stages.lib.scoring.tasks import completion_score, generation_score, task_files
from stages.lib.scoring.tasks.completions import CompletionBits, CompletionChoice, CompletionMatch
from stages.lib.scoring.tasks.task import TaskOptions
from stages.lib.sources.examples import Pair, PairSource


def source_of(completions, train=()):
    """A source with these completions in its validation split."""
    pairs = [Pair(f"{n}", f"What of {n}?", completion, "validation") for n, completion in enumerate(completions)]
    return PairSource("qa", "digest", list(train), pairs)


def rows_of(task, source, count=40, seed=0, longest=128):
    """The rows of a task."""
    options = TaskOptions(bytes_per_source=1, num_examples=count, seed=seed, max_completion_bytes=longest)
    (rows,) = task().rows(source, options).values()
    return rows


def numbered(count):
    """Completions that differ."""
    return [f"The answer to number {number:03d}." for number in range(count)]


@pytest.mark.parametrize("task", [CompletionChoice, CompletionBits, CompletionMatch])
def test_the_same_seed_takes_the_same_and_another_seed_others_of_at_most_this_length(task):
    source = source_of([*numbered(60), *(f"{'long ' * 9}{number}" for number in range(20))])
    first = rows_of(task, source, longest=40)
    assert len(first) == 40 and "long long" not in str(first)
    assert rows_of(task, source, longest=40) == first
    assert rows_of(task, source, longest=40, seed=1) != first


def test_a_question_is_a_prompt_its_completion_and_three_of_other_prompts():
    source = source_of(numbered(60), train=[Pair("t", "What of t?", "The answer to number t.", "train")])
    known = {pair.prompt: pair for pair in source.validation}
    questions = rows_of(CompletionChoice, source)
    assert len(questions) == len({question["id"] for question in questions}) == 40
    for question in questions:
        pair = known[question["context"]]
        assert (pair.id, "qa") == (question["id"], question["source"])
        assert question["choices"][question["answer"]] == pair.completion
        assert len(set(question["choices"])) == 4
        assert set(question["choices"]) <= {other.completion for other in source.validation}
    answers = [question["answer"] for question in questions]
    assert [answers.count(position) for position in range(4)] == [10] * 4


def test_completion_of_an_equal_prompt_is_no_wrong_choice():
    twins = [Pair(f"{n}", f"Prompt {n // 2}", f"Completion number {n:03d}", "validation") for n in range(60)]
    for question in rows_of(CompletionChoice, PairSource("qa", "digest", [], twins), count=60):
        of_prompt = {pair.completion for pair in twins if pair.prompt == question["context"]}
        assert len(of_prompt & set(question["choices"])) == 1


@pytest.mark.parametrize("source", [source_of(numbered(3)), source_of(["yes"] * 40), source_of([])])
def test_too_few_different_completions_are_refused_and_few_are_a_warning(source, caplog):
    with pytest.raises(UserError, match=r"source qa must have 4 different completions of similar length"):
        rows_of(CompletionChoice, source)
    with caplog.at_level("WARNING", "caravan"):
        assert len(rows_of(CompletionChoice, source_of(numbered(20)))) == 20
    assert "completion_choice: source qa gives 20 examples, not 40" in caplog.text


def test_completions_that_cannot_be_generated_are_skipped():
    fits = "x" * (task_files.MAX_NEW_TOKENS - 1)  # EOS follows
    assert [row["completion"] for row in rows_of(CompletionMatch, source_of([fits, fits + "x"]))] == [fits]
    with pytest.raises(UserError, match="source qa must have completions of at most 63 bytes for completion_match"):
        rows_of(CompletionMatch, source_of([fits + "x"]))


@pytest.mark.parametrize(
    ("text", "matched", "stopped"),
    [
        (" a, b" + generation_score.END, 1, 1),
        (" a" + generation_score.END, 0, 1),
        (generation_score.END, 0, 1),
        (" a, b, c", 0, 0),
        (" a, b", 1, 0),  # by the harness's own command line, which does not write END
    ],
)
def test_a_text_matches_and_stops_or_not(text, matched, stopped):
    found = generation_score.score({"completion": " a, b"}, [text])
    assert found == {"exact_match": matched, "stopped": stopped}
    (trivial,) = task_files.exact_matches([{"completion": text} for text in ("x", "y", "x", "z")]).values()
    assert (trivial["value"], trivial["n"]) == (0.5, 4)  # always the most common completion


def test_rows_are_unchanged_validation_pairs():
    source = source_of(numbered(9), train=[Pair("t", "What of t?", "An answer", "train")])
    rows = rows_of(CompletionBits, source, 20)
    assert sorted((row["id"], row["context"], row["completion"]) for row in rows) == [
        (pair.id, pair.prompt, pair.completion) for pair in source.validation
    ]
    assert {row["source"] for row in rows} == {"qa"}
    with pytest.raises(UserError, match=r"source qa must have completions of at most 4 bytes"):
        rows_of(CompletionBits, source, longest=4)


def test_completion_with_probability_one_half_per_byte_has_one_bit_per_byte():
    completion = "\u00e9ven"  # five bytes
    found = completion_score.score({"completion": completion}, [(5 * math.log(0.5), False)])
    assert found == {"bits_per_byte": pytest.approx(1)}

"""Local tasks over validation pairs: the completion is chosen, predicted, or generated."""

import math
import random

import pytest

from stages.lib.errors import UserError
from stages.lib.scoring.tasks import completion_score, generation_score, task_files, trivial_readers
from stages.lib.scoring.tasks.completions import CompletionBits, CompletionChoice, CompletionMatch
from stages.lib.scoring.tasks.task import TaskOptions
from stages.lib.sources.prompt_completion import Pair, PairSource


def source_of(count, completion="The answer to number {:03d}.", train=()):
    pairs = [Pair(f"{n}", f"What of {n}?", completion.format(n), "validation") for n in range(count)]
    return PairSource("qa", "digest", list(train), pairs)


def questions_of(source, count=40, seed=0, longest=128):
    options = TaskOptions(bytes_per_source=1, num_examples=count, seed=seed, max_completion_bytes=longest)
    return CompletionChoice().rows(source, options)["completion_choice"]


def test_a_question_is_a_prompt_its_completion_and_three_of_other_prompts():
    source = source_of(60, train=[Pair("t", "What of t?", "The answer to number t.", "train")])
    known = {pair.prompt: pair for pair in source.validation}
    questions = questions_of(source)
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
    for question in questions_of(PairSource("qa", "digest", [], twins), count=60):
        of_prompt = {pair.completion for pair in twins if pair.prompt == question["context"]}
        assert len(of_prompt & set(question["choices"])) == 1


def test_questions_depend_on_the_seed():
    assert questions_of(source_of(60)) == questions_of(source_of(60))
    assert questions_of(source_of(60)) != questions_of(source_of(60), seed=1)


def test_longer_completions_are_skipped():
    long = [Pair(f"l{n}", f"What of l{n}?", "long " * 9 + str(n), "validation") for n in range(20)]
    source = source_of(40)
    source.validation.extend(long)
    questions = questions_of(source, count=100, longest=40)
    assert max(len(choice) for question in questions for choice in question["choices"]) <= 40


@pytest.mark.parametrize("source", [source_of(3), source_of(40, completion="yes"), source_of(0)])
def test_too_few_different_completions_are_refused(source):
    with pytest.raises(UserError, match=r"source qa must have 4 different completions of similar length"):
        questions_of(source)


def test_few_pairs_give_few_questions_and_a_warning(caplog):
    with caplog.at_level("WARNING", "caravan"):
        assert len(questions_of(source_of(20))) == 20
    assert "completion_choice: source qa gives 20 examples, not 40" in caplog.text


def test_model_without_prompt_is_right_by_chance():
    rng = random.Random(0)
    words = [f"{rng.choice(['Return', 'Set', 'Close'])} {'x' * rng.randint(9, 40)} {n}" for n in range(2000)]
    pairs = [Pair(f"{n}", f"Prompt {n}", word, "validation") for n, word in enumerate(words)]
    questions = questions_of(PairSource("qa", "digest", [], pairs), count=2000)
    for taste in (len, str, lambda text: text.startswith("Return")):
        hits = 0.0
        for question in questions:
            scores = [taste(choice) for choice in question["choices"]]
            best = [number for number, score in enumerate(scores) if score == max(scores)]
            hits += (question["answer"] in best) / len(best)
        assert abs(hits / len(questions) - 0.25) < 3 * (0.25 * 0.75 / len(questions)) ** 0.5


def rows_of(completions, longest=999, num_examples=9):
    pairs = [Pair(f"{n}", f"What of {n}?", completion, "validation") for n, completion in enumerate(completions)]
    options = TaskOptions(bytes_per_source=1, num_examples=num_examples, seed=0, max_completion_bytes=longest)
    return CompletionMatch().rows(PairSource("qa", "digest", [], pairs), options)["completion_match"]


def test_completions_that_cannot_be_generated_are_skipped():
    fits = "x" * (task_files.MAX_NEW_TOKENS - 1)  # EOS follows
    assert [row["completion"] for row in rows_of([fits, fits + "x"])] == [fits]
    assert [row["completion"] for row in rows_of(["one", "three"], longest=3)] == ["one"]
    with pytest.raises(UserError, match="source qa must have completions of at most 63 bytes for completion_match"):
        rows_of([fits + "x"])


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


def test_the_trivial_reader_gives_the_most_common_completion():
    rows = [{"completion": text} for text in ("x", "y", "x", "z")]
    (score,) = trivial_readers.exact_matches(rows).values()
    assert (score["value"], score["n"]) == (0.5, 4)


def source_with(completions):
    pairs = [Pair(f"{n}", f"What of {n}?", completion, "validation") for n, completion in enumerate(completions)]
    return PairSource("qa", "digest", [Pair("t", "What of t?", "An answer", "train")], pairs)


def bits_rows(source, num_examples, seed=0, longest=99):
    options = TaskOptions(bytes_per_source=1, num_examples=num_examples, seed=seed, max_completion_bytes=longest)
    return CompletionBits().rows(source, options)["completion_bits"]


def test_rows_are_unchanged_validation_pairs():
    source = source_with([f"Answer {n}" for n in range(9)])
    rows = bits_rows(source, 20)
    assert sorted((row["id"], row["context"], row["completion"]) for row in rows) == [
        (pair.id, pair.prompt, pair.completion) for pair in source.validation
    ]
    assert {row["source"] for row in rows} == {"qa"}


def test_the_same_seed_takes_the_same_and_another_seed_others():
    source = source_with([f"Answer {n}" for n in range(60)])
    first = bits_rows(source, 20)
    assert len(first) == 20
    assert bits_rows(source, 20) == first
    assert bits_rows(source, 20, seed=1) != first


def test_longer_completions_are_not_scored():
    source = source_with(["short", "\u00e9" * 9, "long enough to be skipped"])
    assert {row["completion"] for row in bits_rows(source, 9, longest=18)} == {"short", "\u00e9" * 9}
    with pytest.raises(UserError, match=r"source qa must have completions of at most 4 bytes"):
        bits_rows(source, 9, longest=4)


def test_completion_with_probability_one_half_per_byte_has_one_bit_per_byte():
    completion = "\u00e9ven"  # five bytes
    found = completion_score.score({"completion": completion}, [(5 * math.log(0.5), False)])
    assert found == {"bits_per_byte": pytest.approx(1)}

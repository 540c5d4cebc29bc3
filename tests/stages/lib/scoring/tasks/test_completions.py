"""The choice of the completion that belongs to a prompt: questions from validation pairs alone."""

import random

import pytest

from stages.lib.errors import UserError
from stages.lib.scoring.tasks.completions import CompletionChoice
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

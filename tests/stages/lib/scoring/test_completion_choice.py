"""Which completion belongs to a prompt: asked of validation pairs alone."""

import random

import pytest

from stages.lib.errors import UserError
from stages.lib.scoring import completion_choice
from stages.lib.sources.prompt_completion import Pair, PairSource


def source_of(count, completion="The answer to number {:03d}.", train=()):
    pairs = [Pair(f"{n}", f"What of {n}?", completion.format(n), "validation") for n in range(count)]
    return PairSource("qa", "digest", list(train), pairs)


def asked(source, count=40, seed=0, longest=128):
    return completion_choice.questions(source, count, seed, longest)


def test_a_question_is_a_prompt_its_completion_and_three_of_other_prompts():
    source = source_of(60, train=[Pair("t", "What of t?", "The answer to number t.", "train")])
    known = {pair.prompt: pair for pair in source.validation}
    questions = asked(source)
    assert len(questions) == len({question["id"] for question in questions}) == 40
    for question in questions:
        pair = known[question["context"]]
        assert (pair.id, "qa") == (question["id"], question["source"])
        assert question["choices"][question["answer"]] == pair.completion
        assert len(set(question["choices"])) == 4
        assert set(question["choices"]) <= {other.completion for other in source.validation}
    answers = [question["answer"] for question in questions]
    assert [answers.count(position) for position in range(4)] == [10] * 4


def test_an_equal_prompts_completion_is_no_wrong_choice():
    twins = [Pair(f"{n}", f"Prompt {n // 2}", f"Completion number {n:03d}", "validation") for n in range(60)]
    for question in asked(PairSource("qa", "digest", [], twins), count=60):
        of_prompt = {pair.completion for pair in twins if pair.prompt == question["context"]}
        assert len(of_prompt & set(question["choices"])) == 1


def test_the_same_seed_asks_the_same_and_another_seed_others():
    assert asked(source_of(60)) == asked(source_of(60))
    assert asked(source_of(60)) != asked(source_of(60), seed=1)


def test_longer_completions_are_not_asked_for():
    long = [Pair(f"l{n}", f"What of l{n}?", "long " * 9 + str(n), "validation") for n in range(20)]
    source = source_of(40)
    source.validation.extend(long)
    questions = asked(source, count=100, longest=40)
    assert max(len(choice) for question in questions for choice in question["choices"]) <= 40


@pytest.mark.parametrize("source", [source_of(3), source_of(40, completion="yes"), source_of(0)])
def test_too_few_different_completions_are_refused(source):
    with pytest.raises(UserError, match=r"source qa must hold out pairs with 4 different completions of like length"):
        asked(source)


def test_few_pairs_give_few_questions_and_say_so(caplog):
    with caplog.at_level("WARNING", "caravan"):
        assert len(asked(source_of(20))) == 20
    assert "completion_choice: source qa gives 20 questions, not 40" in caplog.text


def test_who_knows_no_prompt_is_right_by_chance():
    chance = random.Random(0)
    words = [f"{chance.choice(['Return', 'Set', 'Close'])} {'x' * chance.randint(9, 40)} {n}" for n in range(2000)]
    pairs = [Pair(f"{n}", f"Prompt {n}", word, "validation") for n, word in enumerate(words)]
    questions = asked(PairSource("qa", "digest", [], pairs), count=2000)
    for taste in (len, str, lambda text: text.startswith("Return")):
        hits = 0.0
        for question in questions:
            scores = [taste(choice) for choice in question["choices"]]
            best = [number for number, score in enumerate(scores) if score == max(scores)]
            hits += (question["answer"] in best) / len(best)
        assert abs(hits / len(questions) - 0.25) < 3 * (0.25 * 0.75 / len(questions)) ** 0.5

"""Local tasks made from validation text: their text, their questions, and that both depend on the seed alone."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.scoring.tasks import choices, local_tasks, text_pieces
from stages.lib.scoring.tasks.choices import CHOICES, WIDEST_BIN, Candidate, balanced, draw
from stages.lib.scoring.tasks.task import TaskOptions
from tests.helpers.export_fixtures import documents


def corpus_of(directory, texts):
    """A corpus manifest that has only validation text: {source: [(id, text)]}."""
    sources = {}
    for source, found in texts.items():
        path = directory / source / "validation.jsonl"
        with files.atomic(path, "w") as file:
            file.writelines(json.dumps({"id": name, "text": text}) + "\n" for name, text in found)
        described = {"path": f"{source}/validation.jsonl", **manifest.describe(path)}
        sources[source] = {"validation": {"texts": [described] if found else []}}
    manifest.write(directory / "manifest.json", "index", {"sources": sources}, {})
    return manifest.read(directory / "manifest.json")


def written(directory, corpus, names=("bits_per_byte", "next_line"), **options):
    """Write tasks; returns ({harness task: local task's name}, {harness task: rows})."""
    options = {"bytes_per_source": 5000, "num_examples": 40, "seed": 0, "max_completion_bytes": 128, **options}
    written_by = local_tasks.write(directory, names, corpus, None, TaskOptions(**options))
    tasks = {name: local_tasks.find(name).name for name in written_by}
    return tasks, {task: [json.loads(line) for line in open(directory / f"{task}.jsonl")] for task in tasks}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of two sources."""
    texts = {source: documents(source, count=20, lines=60) for source in ("code", "prose")}
    return corpus_of(tmp_path_factory.mktemp("corpus"), texts)


def test_one_rolling_task_per_source_and_one_task_of_questions(corpus, tmp_path):
    tasks, _ = written(tmp_path, corpus)
    rolling = dict.fromkeys(("bits_per_byte_code", "bits_per_byte_prose"), "bits_per_byte")
    assert tasks == rolling | {"next_line": "next_line"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{task}.{ending}" for task in tasks for ending in ("yaml", "jsonl")
    )


def test_text_is_validation_text_of_the_given_size(corpus, tmp_path):
    _, rows = written(tmp_path, corpus)
    whole = "".join(text for _, text in documents("code", count=20, lines=60))
    pieces = [row["text"] for row in rows["bits_per_byte_code"]]
    assert all(piece in whole and piece.endswith("\n") for piece in pieces)
    assert 5000 <= sum(len(piece.encode()) for piece in pieces) < 5000 + text_pieces.PIECE_BYTES
    assert len({row["id"] for row in rows["bits_per_byte_code"]}) == len(pieces)


def test_questions_can_be_answered_from_the_text_alone(corpus, tmp_path):
    _, rows = written(tmp_path, corpus)
    texts = [text for source in ("code", "prose") for _, text in documents(source, count=20, lines=60)]
    for row in rows["next_line"]:
        offered = row["choices"]
        assert len(offered) == len({choice.strip() for choice in offered}) == 4
        right = offered[row["answer"]]
        assert any(row["context"] + right in text for text in texts)
        assert all(len(choice.encode()) <= choices.WIDEST_BIN * len(right.encode()) for choice in offered)
        assert all(any(choice in text for text in texts) for choice in offered)
    assert Counter(row["answer"] for row in rows["next_line"]) == dict.fromkeys(range(4), 10)
    assert Counter(row["source"] for row in rows["next_line"]) == {"code": 20, "prose": 20}


def test_the_seed_alone_decides_and_not_the_order_of_documents(corpus, tmp_path):
    _, first = written(tmp_path / "a", corpus)
    _, again = written(tmp_path / "b", corpus)
    _, other = written(tmp_path / "c", corpus, seed=1)
    assert first == again
    assert first["next_line"] != other["next_line"]
    assert first["bits_per_byte_code"] != other["bits_per_byte_code"]
    texts = {source: documents(source, count=20, lines=60) for source in ("code", "prose")}
    for found in texts.values():
        random.Random(1).shuffle(found)
    assert written(tmp_path / "d", corpus_of(tmp_path / "corpus", texts))[1] == first


def test_source_without_validation_text_is_skipped_and_a_corpus_of_them_refused(tmp_path):
    corpus = corpus_of(tmp_path / "corpus", {"code": documents("code"), "prose": []})
    tasks, rows = written(tmp_path, corpus)
    assert list(tasks) == ["bits_per_byte_code", "next_line"]
    assert {row["source"] for row in rows["next_line"]} == {"code"}
    with pytest.raises(UserError, match="validation text"):
        written(tmp_path, corpus_of(tmp_path / "empty", {"code": []}))


def test_a_paragraph_that_is_one_line_is_cut(tmp_path):
    texts = ["".join(f"{at} {line} {'ä word ' * 55}\n" for line in range(9)) for at in range(40)]
    corpus = corpus_of(tmp_path / "corpus", {"prose": [(f"d{at}", text) for at, text in enumerate(texts)]})
    _, rows = written(tmp_path, corpus, ["next_line"], bytes_per_source=1 << 20, num_examples=8)
    sizes = {len(choice.encode()) for row in rows["next_line"] for choice in row["choices"]}
    assert len(rows["next_line"]) == 8 and min(sizes) > 396 and max(sizes) <= 400
    assert not any(choice.endswith("\n") for row in rows["next_line"] for choice in row["choices"])


def test_documents_of_one_line_give_no_question_and_the_other_sources_give_all(corpus, tmp_path, caplog):
    lines = [(f"d{number}", f"one document of a single line, the number {number:05d}") for number in range(60)]
    of_lines = corpus_of(tmp_path / "corpus", {"lines": lines, "prose": documents("prose", count=20, lines=60)})
    _, rows = written(tmp_path, of_lines)
    assert {row["source"] for row in rows["next_line"]} == {"prose"} and len(rows["next_line"]) == 40
    assert "source lines gives no question: no document of its validation text has a line of 16" in caplog.text
    with pytest.raises(UserError, match=r"no source \(lines\) gives a question for next_line, since no document"):
        written(tmp_path, of_lines, sources=["lines"])
    assert list(written(tmp_path, of_lines, ["bits_per_byte"], sources=["lines"])[0]) == ["bits_per_byte_lines"]
    few = corpus_of(tmp_path / "few", {"code": [("a", "def f():\n" * 3 + "and another one of them\n")]})
    with pytest.raises(UserError, match="since its validation text has no 4 different lines of similar length"):
        written(tmp_path, few)
    with pytest.raises(UserError, match=r"evaluate\.sources must name sources of .* \(code\), got 'web'"):
        written(tmp_path, few, sources=["web"])


def test_changed_text_is_refused(tmp_path):
    corpus = corpus_of(tmp_path / "corpus", {"code": documents("code")})
    path = tmp_path / "corpus" / "code" / "validation.jsonl"
    path.write_text(path.read_text().replace("return", "revert"))
    with pytest.raises(UserError, match="changed since"):
        written(tmp_path, corpus)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("bits_per_byte_code", "bits_per_byte"),
        ("validation/bits_per_byte_code", "bits_per_byte"),
        ("next_line", "next_line"),
        ("statements/completion_choice", "completion_choice"),
        ("next_lines", None),
        ("hellaswag", None),
    ],
)
def test_task_is_found_by_its_name_in_the_harness(name, task):
    found = local_tasks.find(name)
    assert (found and found.name) == task


def test_every_task_describes_its_score():
    for task in local_tasks.TASKS:
        assert {task.metric, *task.further_metrics} <= {entry["metric"] for entry in task.format.config["metric_list"]}
        assert task.description and (task.chance is None or not task.lower_is_better)


@given(st.text(alphabet="ab\n\r\u2028\u00e9 ", max_size=60), st.integers(1, 20))
def test_pieces_are_the_text_cut_at_line_ends(text, limit):
    pieces = list(text_pieces.cut(text, limit))
    assert "".join(pieces) == text
    assert all(piece.endswith("\n") for piece in pieces[:-1])
    assert all(len(piece.encode()) <= limit or piece.count("\n") <= 1 for piece in pieces)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 200), st.randoms())
def test_a_sample_is_the_shortest_start_of_the_order_that_is_large_enough(sizes, num_bytes, rng):
    pieces = [{"id": str(number), "text": "x" * size} for number, size in enumerate(sizes)]
    whole = text_pieces.sample(pieces, 0, 10**9)
    rng.shuffle(pieces)
    taken = text_pieces.sample(pieces, 0, num_bytes)
    assert taken == whole[: len(taken)]
    size = sum(len(piece["text"]) for piece in taken)
    assert size >= num_bytes or len(taken) == len(whole)
    assert not taken or size - len(taken[-1]["text"]) < num_bytes


BIN = 16
candidates = st.lists(
    st.builds(Candidate, st.text("ab\u00e9 ", max_size=20), st.sampled_from("pqrst"), st.integers()), max_size=60
)


def lines(count):
    """Return different candidates of 20 to 59 characters, each in its own group."""
    return [Candidate(f"{number:04d}" + "x" * (16 + number % 40), str(number), number) for number in range(count)]


@settings(deadline=None)
@given(candidates, st.integers(0, 80), st.randoms(use_true_random=False))
def test_choices_differ_and_come_from_one_bin_and_other_groups(made, count, rng):
    drawn = draw(made, count, rng, BIN)
    assert len(drawn) <= min(count, len(made))
    for right, wrong in drawn:
        texts = [right.text, *wrong]
        assert len({text.strip() for text in texts}) == CHOICES
        assert all(any(other.text == text and other.group != right.group for other in made) for text in wrong)
        sizes = [len(text.encode()) for text in texts]
        assert max(sizes) <= WIDEST_BIN * min(sizes)


def test_no_candidate_is_drawn_twice_and_a_wrong_choice_is_the_right_one_of_another_question():
    drawn = draw(lines(400), 1000, random.Random(0), BIN)
    assert len({right.origin for right, _ in drawn}) == len(drawn) > 350
    assert {text for _, wrong in drawn for text in wrong} <= {right.text for right, _ in drawn}


@pytest.mark.parametrize("preference", [len, lambda text: int(text[:4]), lambda text: -int(text[:4])])
def test_preference_for_some_texts_is_right_by_chance(preference):
    hits, drawn = 0.0, draw(lines(3000), 3000, random.Random(0), BIN)
    for right, wrong in drawn:
        best = max(map(preference, [right.text, *wrong]))
        liked = [text for text in [right.text, *wrong] if preference(text) == best]
        hits += (right.text in liked) / len(liked)
    assert abs(hits / len(drawn) - 0.25) < 3 * (0.25 * 0.75 / len(drawn)) ** 0.5


def test_answers_are_balanced_and_point_at_the_right_choice():
    questions = [{"id": number, "right": f"{number}", "wrong": ["a", "b", "c"]} for number in range(42)]
    made = balanced(questions, random.Random(0))
    assert sorted(question["id"] for question in made) == list(range(42))
    answers = [question["answer"] for question in made]
    assert sorted(answers.count(position) for position in range(4)) == [10, 10, 11, 11]
    for question in made:
        assert question["choices"][question["answer"]] == str(question["id"])
        assert sorted(question["choices"]) == sorted([str(question["id"]), "a", "b", "c"])
        assert not question.keys() & {"right", "wrong"}

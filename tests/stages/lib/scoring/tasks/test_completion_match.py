"""Exact match of generated completions: the pairs that are taken, the score of one, and the trivial reader."""

import pytest

from stages.lib.errors import UserError
from stages.lib.scoring.tasks import generation_score, task_files
from stages.lib.scoring.tasks.completions import CompletionMatch
from stages.lib.scoring.tasks.task import TaskOptions
from stages.lib.sources.examples import Pair, PairSource


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
    (score,) = task_files.exact_matches(rows).values()
    assert (score["value"], score["n"]) == (0.5, 4)

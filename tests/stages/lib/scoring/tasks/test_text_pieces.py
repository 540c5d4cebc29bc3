"""Pieces of validation text: cut at line ends, and chosen by hash."""

from hypothesis import given
from hypothesis import strategies as st

from stages.lib.scoring.tasks import text_pieces


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

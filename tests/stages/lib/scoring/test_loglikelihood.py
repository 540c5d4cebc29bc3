"""loglikelihood: continuations that share a row have the scores of rows of their own."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.lib.scoring import loglikelihood
from stages.lib.scoring.loglikelihood import Row

WINDOW = 12

IDS = st.lists(st.integers(0, 30), min_size=1, max_size=6).map(tuple)
PAIRS = st.lists(st.tuples(st.sampled_from([(1,), (1, 5, 7), (1, 5)]), IDS), min_size=1, max_size=12)


@pytest.fixture(scope="module", params=loglikelihood.SHARING)
def model(request):
    made = made_of(request.param, sliding_window=None)
    assert loglikelihood.shares(made)
    return made


def made_of(model_type, **keys):
    """A small model of transformers with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "head_dim": 8,
    }
    config = AutoConfig.for_model(
        model_type, vocab_size=31, num_key_value_heads=2, initializer_range=0.3, **shape, **keys
    )
    return AutoModelForCausalLM.from_config(config).eval()


def test_a_model_with_a_window_has_a_row_per_continuation():
    assert not loglikelihood.shares(made_of("mistral", sliding_window=4))


@torch.inference_mode()
def alone(model, context, continuation):
    """The log-likelihood by a forward pass of one pair."""
    logits = model(torch.tensor([[*context, *continuation]])).logits[0, len(context) - 1 : -1].log_softmax(-1)
    target = torch.tensor(continuation)
    return float(logits.gather(1, target[:, None]).sum()), bool((logits.argmax(-1) == target).all())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=PAIRS, shared=st.booleans(), size=st.integers(1, 4))
def test_scores_are_those_of_rows_of_their_own(model, pairs, shared, size):
    rows = loglikelihood.rows_of(pairs, WINDOW, shared)
    found = {}
    for start in range(0, len(rows), size):
        found |= loglikelihood.score(model, rows[start : start + size])
    assert found.keys() == set(pairs)
    for (context, continuation), score in found.items():
        value, greedy = alone(model, context, continuation)
        assert score.loglikelihood == pytest.approx(value, abs=1e-4)
        assert score.is_greedy == greedy


@given(pairs=PAIRS, shared=st.booleans())
def test_rows_hold_each_pair_once_within_the_window_and_the_choices_of_a_question_are_one_row(pairs, shared):
    question = tuple(range(1, 8))
    (row,) = loglikelihood.rows_of([(question, (9,)), (question, (10,)), (question, (11, 12))], WINDOW, shared=True)
    assert row == Row(question, ((9,), (10,), (11, 12))) and row.num_tokens == 8
    rows = loglikelihood.rows_of(pairs, WINDOW, shared)
    held = [(row.context, continuation) for row in rows for continuation in row.continuations]
    assert sorted(held) == sorted(set(pairs))
    assert all(row.num_tokens <= WINDOW for row in rows)
    assert [row.num_tokens for row in rows] == sorted((row.num_tokens for row in rows), reverse=True)
    if not shared:
        assert all(len(row.continuations) == 1 for row in rows)


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=WINDOW))
def test_a_long_context_is_cut_from_the_left(context, continuation):
    kept, same = loglikelihood.fit([1, *context], continuation, WINDOW)
    assert list(same) == continuation
    assert list(kept) == [1, *context][len(context) + 1 - len(kept) :]
    assert len(kept) + len(same) - 1 == min(WINDOW, len(context) + len(continuation))

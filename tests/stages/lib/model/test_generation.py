"""Generation with a KV cache, and the sampler; test_architectures.py has the cache against full forward passes."""

from types import SimpleNamespace

import pytest
import torch

from stages.lib.errors import UserError
from stages.lib.model import generation
from stages.lib.model.architectures import LlamaRecipe
from tests.helpers import recorded_graph
from tests.helpers.export_fixtures import random_model
from tests.helpers.recorded_graph import RecordedGraph
from tests.helpers.training import MODEL

VOCABULARY = 70
UNTIED = MODEL | {"tie_word_embeddings": False}
CONFIGS = {"mha": UNTIED | {"num_key_value_heads": 4}, "gqa": UNTIED}
GREEDY = generation.Sampler(0, 1, [])


def model_of(name, dtype=torch.float32):
    return random_model(LlamaRecipe(**CONFIGS[name]), VOCABULARY).to(dtype)


def tokens(rows=3, length=40):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def texts(model, prompt, limit, sampler, ends=(), vocab_size=VOCABULARY):
    """The tokens that each row is continued by, up to its end."""
    steps = list(generation.continuations(model, prompt, limit, sampler, ends, vocab_size))
    return [[token for token in row if token is not None] for row in zip(*steps, strict=True)]


def test_steps_of_one_graph_give_the_logits_and_texts_of_growing_ones(monkeypatch):
    recorded_graph.install(monkeypatch)
    monkeypatch.setattr(generation, "has_static_steps", lambda model: False)
    model, given, limit = model_of("gqa"), tokens(length=7), 20
    expected = texts(model, given, limit, GREEDY)
    drawn = texts(model, given, limit, generation.Sampler(1, 0.9, range(3)))
    monkeypatch.setattr(generation, "has_static_steps", lambda model: True)
    assert texts(model, given, limit, GREEDY) == expected
    assert RecordedGraph.made == 1  # of the first text that is longer than the warm-up
    assert texts(model, given, limit, generation.Sampler(1, 0.9, range(3))) == drawn
    assert texts(model, given, 1 + generation.WARM_UP, GREEDY) == [row[: 1 + generation.WARM_UP] for row in expected]
    assert RecordedGraph.made == 2
    with torch.inference_mode():
        grown, placed = (generation.Cache(model, 3, 40) for _ in range(2))
        for cache in (grown, placed):
            generation.next_logits(model, given, cache)
        steps, row = generation.StaticSteps(model, placed), tokens(length=40)[:, 7:]
        for at in range(33):
            one = row[:, at : at + 1]
            torch.testing.assert_close(steps(one), generation.next_logits(model, one, grown), rtol=0, atol=1e-5)
    assert steps.graph.num_replays == 33 - generation.WARM_UP


@pytest.mark.parametrize(
    ("device", "window", "router", "expected"),
    [("cuda", None, None, True), ("cpu", None, None, False), ("cuda", 8, None, False), ("cuda", None, 2, False)],
)
def test_windows_experts_and_cpus_have_steps_that_grow(device, window, router, expected):
    weight = SimpleNamespace(device=torch.device(device))
    recipe = SimpleNamespace(window=window, router=router)
    assert generation.has_static_steps(SimpleNamespace(head=SimpleNamespace(weight=weight), recipe=recipe)) is expected


def test_rows_stop_before_their_end_while_others_continue():
    model, prompt = model_of("gqa"), tokens(length=5)
    whole = texts(model, prompt, 30, GREEDY)
    end = whole[1][4]
    cut = [row[: row.index(end)] if end in row else row for row in whole]
    assert len({len(row) for row in cut}) > 1
    assert texts(model, prompt, 30, GREEDY, ends={end}) == cut


def test_nothing_is_computed_after_all_rows_have_ended(monkeypatch):
    model, prompt = model_of("gqa"), tokens(rows=1, length=5)
    (whole,) = texts(model, prompt, 30, GREEDY)
    forwards, forward = [], generation.next_logits
    monkeypatch.setattr(generation, "next_logits", lambda *given: forwards.append(1) or forward(*given))
    assert texts(model, prompt, 30, GREEDY, ends={whole[3]}) == [whole[: whole.index(whole[3])]]
    assert len(forwards) == whole.index(whole[3]) + 1


def test_a_text_may_fill_every_position_and_one_token_more():
    model = model_of("mha")
    prompt = tokens(rows=1, length=MODEL["max_position_embeddings"] - 3)
    assert len(texts(model, prompt, 4, GREEDY)[0]) == 4


def test_padding_of_the_vocabulary_is_never_chosen():
    model, prompt = model_of("mha"), tokens(rows=1, length=5)
    with torch.no_grad():
        model.head.weight[-1] = 100 * model.head.weight[0].sign() * torch.ones(32)
        model.head.weight[-2] = -model.head.weight[-1]
    assert max(texts(model, prompt, 20, GREEDY)[0]) >= VOCABULARY - 2
    assert max(texts(model, prompt, 20, GREEDY, vocab_size=VOCABULARY - 2)[0]) < VOCABULARY - 2


def test_logits_that_are_not_finite_are_refused():
    model = model_of("mha")
    with torch.no_grad():
        model.base_model.dec_norm.weight[0] = float("nan")
    with pytest.raises(UserError, match="must be finite numbers"):
        texts(model, tokens(), 3, GREEDY)


@pytest.mark.parametrize(
    ("top_p", "size"), [(0.1, 1), (0.5, 1), (0.5001, 2), (0.75, 2), (0.8, 3), (0.875, 3), (0.9, 4), (1.0, 5)]
)
def test_the_nucleus_is_the_smallest_set_of_at_least_that_mass(top_p, size):
    probabilities = torch.tensor([[0.0625, 0.5, 0.125, 0.0625, 0.25]], dtype=torch.float64)
    kept, ids = generation.nucleus(probabilities, top_p)
    expected = [0.5, 0.25, 0.125, 0.0625, 0.0625]
    assert kept.tolist() == [expected[:size] + [0] * (5 - size)]
    assert ids.tolist() == [[1, 4, 2, 0, 3]]


def test_tokens_are_drawn_from_the_nucleus_by_their_probabilities_at_the_temperature():
    probabilities = torch.tensor([0.5, 0.3, 0.05, 0.15])
    drawn = generation.Sampler(2.0, 0.8, range(4000))(probabilities.log().expand(4000, 4))
    expected = probabilities.sqrt()  # 0.38, 0.29, 0.12, 0.21 of the mass
    expected[2] = 0
    found = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(found, expected / expected.sum(), rtol=0, atol=0.03)
    assert found[2] == 0
    nearly_greedy = generation.Sampler(1e-300, 0.9, [0])
    assert nearly_greedy(torch.tensor([[1e4, 0.0, -1e4]])).tolist() == [0]  # nothing overflows


def test_the_same_seed_gives_the_same_text_whatever_the_other_rows_are():
    model, prompt = model_of("gqa", torch.float64), tokens(rows=1, length=5)
    three = texts(model, prompt.expand(3, -1), 20, generation.Sampler(1.0, 0.95, [7, 8, 7]))
    assert three[0] == three[2] != three[1]
    assert texts(model, prompt, 20, generation.Sampler(1.0, 0.95, [8])) == [three[1]]

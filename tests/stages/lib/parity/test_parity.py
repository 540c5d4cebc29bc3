"""The parity check of whole models: logits and greedy text."""

import contextlib

import pytest
import torch

from stages.lib.huggingface import config_json, export
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.transformer import Transformer
from stages.lib.parity import parity
from stages.lib.tokens.corpus import Corpus
from tests.helpers import export_fixtures
from tests.helpers.export_cases import SMALL, TOKENIZER, VOCABULARY, recipe_of, write_export
from tests.helpers.export_fixtures import random_model, write_settings

TOKENS = torch.arange(40).unsqueeze(0)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """The export of the model of `ours()`, as transformers loads it."""
    directory = tmp_path_factory.mktemp("export")
    write_export(directory, recipe_of("gqa"), ours())
    return parity.load_exported(directory)


def ours():
    """Always the same random model."""
    return random_model(recipe_of("gqa"), VOCABULARY)


def changed(name, change):
    """The model with one weight changed in place."""
    model = ours()
    with torch.no_grad():
        change(model.get_parameter(name))
    return model


@pytest.mark.parametrize(
    "weight", ["base_model.embedding.weight", "base_model.layers.1.ff_sub_layer.w2.weight", "head.weight"]
)
def test_other_logits_fail(theirs, weight):
    with pytest.raises(parity.ParityError, match="logits differ by .*: the whole model"):
        parity.compare_logits(changed(weight, lambda tensor: tensor.mul_(1.1)), theirs, [TOKENS], 1e-4)


@pytest.mark.parametrize("case", ["gqa", "experts"])
def test_a_weight_that_is_not_a_number_differs(tmp_path, case):
    model = random_model(recipe_of(case), VOCABULARY)
    write_export(tmp_path, recipe_of(case), model)
    with torch.no_grad():
        model.base_model.layers[0].ln.weight.fill_(float("nan"))
    with pytest.raises(parity.ParityError, match="logits differ by nan"):
        parity.compare_logits(model, parity.load_exported(tmp_path), [TOKENS], 1e-4)


def test_rounding_of_sharp_attention_passes_and_a_mistake_does_not(tmp_path):
    """The fp32 logits of correct code differ by more than the tolerance here."""
    recipe = LlamaRecipe(**SMALL | {"hidden_size": 256, "num_hidden_layers": 4, "max_position_embeddings": 2048})
    model, generator = Transformer(recipe, VOCABULARY), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1) if weight.dim() == 1 else weight.normal_(0, 0.5, generator=generator)
    write_export(tmp_path, recipe, model)
    tokens = torch.randint(0, VOCABULARY, (1, 1024), generator=generator)
    exported = parity.load_exported(tmp_path)
    figures = parity.compare_logits(model, exported, [tokens], tolerance=1e-4)
    assert figures["max_difference"] > figures["allowed"]
    with torch.no_grad():
        model.base_model.layers[3].ff_ln.weight[7] *= 3
    with pytest.raises(parity.ParityError, match="logits differ"):
        parity.compare_logits(model, exported, [tokens], tolerance=1e-4)


def test_greedy_text_is_the_same_or_its_first_difference_is_named(theirs):
    prompts = TOKENS.view(4, 10)
    text = parity.compare_text(ours(), theirs, prompts, 1e-4)
    assert text.shape == (4, 10 + parity.NEW_TOKENS)
    assert torch.equal(text[:, :10], prompts)
    broken = changed("head.weight", lambda tensor: tensor.copy_(tensor.roll(1, 0)))
    with pytest.raises(parity.ParityError, match="prompt 0 diverges after 0 tokens"):
        parity.compare_text(broken, theirs, prompts, 1e-4)


def test_a_missing_weight_is_refused(tmp_path):
    state, whole = ours().state_dict(), recipe_of("gqa")
    fewer = LlamaRecipe(**{**vars(whole), "num_hidden_layers": 1})
    export.write_weights(tmp_path, fewer, VOCABULARY, lambda keys: {key: state[key] for key in keys}, "float32", 10)
    write_settings(tmp_path, config_json.config_of(whole, TOKENIZER, "float32"))
    with pytest.raises(parity.ParityError, match=r"model\.layers\.1"):
        parity.load_exported(tmp_path)


def test_tokens_from_the_first_router_on_that_rounding_decides_are_not_compared(tmp_path):
    recipe = recipe_of("experts")
    model = random_model(recipe, VOCABULARY)
    gate = model.base_model.layers[1].ff_sub_layer.gate.weight
    torch.manual_seed(0)
    with torch.no_grad():
        gate[1] = gate[0] * (1 + 1e-7 * torch.randn_like(gate[0]))
    write_export(tmp_path, recipe, model)
    exported, tokens = parity.load_exported(tmp_path), torch.randint(VOCABULARY, (1, 200))
    kept = parity.before_ties(model, tokens)
    assert 0 < kept.sum() < 200
    figures = parity.compare_logits(model, exported, [tokens], 1e-4)
    assert figures["max_difference"] > figures["allowed"]  # of the others
    with torch.no_grad():
        model.head.weight.mul_(1.01)
    with pytest.raises(parity.ParityError, match="logits differ by .*: the whole model"):
        parity.compare_logits(model, exported, [tokens], 1e-4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus(export_fixtures.write_corpus(tmp_path_factory.mktemp("rows")))


@pytest.mark.parametrize(("context", "length"), [(100, 100), (4096, 4096), (1 << 17, parity.LONGEST)])
def test_the_long_row_is_as_long_as_the_context_up_to_a_limit(corpus, context, length):
    row = parity.long_row(corpus, context)
    assert row.shape == (1, length)
    with contextlib.closing(corpus.stream("code", "validation")) as stream:
        assert row[0, :100].tolist() == stream.read(0, 100).tolist()
    num_tokens = sum(corpus.sources[source]["validation"]["tokens"] for source in corpus.sources)
    assert torch.equal(row[0, num_tokens:], row[0, : max(0, length - num_tokens)])  # a short corpus is repeated
    assert num_tokens < parity.LONGEST


def test_rows_and_prompts_are_spread_over_the_sources(corpus):
    rows = parity.rows(corpus, 4096)
    assert rows.shape == (parity.ROWS, parity.ROW_TOKENS)
    assert len({tuple(row.tolist()) for row in rows}) == parity.ROWS
    assert parity.rows(corpus, 8).shape == (parity.ROWS, 8)
    assert parity.prompts(corpus, 40, 32).shape == (parity.ROWS, 8)

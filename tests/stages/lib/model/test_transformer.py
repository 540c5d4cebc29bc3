"""The Llama by itself; test_export.py holds its logits against transformers and ibm-fms."""

import pytest
import torch

from stages.lib.model import flops, key_table, transformer
from stages.lib.model.architectures import ARCHITECTURES, LlamaRecipe
from stages.lib.model.transformer import Transformer, documents_of
from tests.helpers import varlen
from tests.helpers.export_fixtures import MODEL, random_model

VOCABULARY = 70
BOS, EOS = 1, 2
LENGTHS = 9, 1, 140, 50  # of documents


def tokens(rows=2, length=12):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def test_tables_of_the_rotation_are_kept_for_rows_of_one_length_and_precision(monkeypatch):
    model, made = random_model(LlamaRecipe(**MODEL), VOCABULARY), []
    frequencies = transformer.rotary_frequencies
    monkeypatch.setattr(transformer, "rotary_frequencies", lambda recipe: made.append(1) or frequencies(recipe))
    given = tokens()
    with torch.inference_mode():
        first = model(given[:, :8], given[:, 1:9])[0]
    again = model(given[:, :8], given[:, 1:9])[0]
    again.backward()  # though the tables were made in inference mode
    assert first == again and len(made) == 1
    assert model(given[:, :11], given[:, 1:])[0] > again and len(made) == 2
    assert model.double()(given[:, :11], given[:, 1:])[0].dtype == torch.float64 and len(made) == 3


@pytest.mark.parametrize("tie", [False, True])
def test_gradient_reaches_every_parameter_and_the_last_row_of_the_vocabulary(tie):
    model = random_model(LlamaRecipe(**MODEL, tie_word_embeddings=tie), VOCABULARY)
    given = tokens()
    given[0, 3] = VOCABULARY - 1
    loss, *_ = model(given[:, :-1], given[:, 1:])
    loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())
    assert model.head.weight.grad[-1].abs().max() > 0
    assert model.base_model.embedding.weight.grad[-1].abs().max() > 0


def test_tied_head_is_one_tensor_under_two_keys():
    tied, untied = (Transformer(LlamaRecipe(**MODEL, tie_word_embeddings=tie), VOCABULARY) for tie in (True, False))
    assert tied.head.weight is tied.base_model.embedding.weight
    assert list(tied.state_dict()) == list(untied.state_dict())


def test_the_matrices_before_a_residual_are_those_of_attention_and_feed_forward():
    layer = key_table.build(LlamaRecipe(**MODEL), VOCABULARY).layers[1]
    names = [weight.key.removeprefix("base_model.layers.1.") for weight in layer if weight.into_residual]
    assert names == ["attn.dense.weight", "ff_sub_layer.w2.weight"]


def packed(dtype):
    """A model, and one row [1, L] of documents that end with EOS, each but the last followed by BOS."""
    model = random_model(LlamaRecipe(**MODEL), VOCABULARY).to(dtype)
    row = torch.randint(3, VOCABULARY, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(2))
    row[0, torch.tensor(LENGTHS).cumsum(0) - 1] = EOS
    return model, row


def loss_and_gradients(model, rows, eos=None):
    """The sum of the losses of some rows, and the gradients of all parameters."""
    model.zero_grad()
    total = 0.0
    for row in rows:
        targets = row.roll(-1).masked_fill(row == EOS, -100)
        loss, *_ = model(row, targets, documents_of(row, eos))
        loss.backward()
        total += loss.item()
    return total, [parameter.grad.clone() for parameter in model.parameters()]


def test_eos_belongs_to_the_document_that_it_ends():
    given = torch.tensor([[BOS, 5, EOS, BOS, EOS, EOS], [EOS, 7, 7, 7, 7, EOS]])
    assert documents_of(given, EOS).tolist() == [[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]]
    assert documents_of(given, None) is None


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-6), (torch.float32, 1e-5)])  # angles are float32
@pytest.mark.parametrize("mask_of", [transformer.exact_mask, transformer.segments])
def test_documents_in_a_row_give_the_loss_and_gradients_of_documents_alone(monkeypatch, mask_of, dtype, tolerance):
    varlen.register()
    monkeypatch.setattr(
        transformer, "mask_of", lambda x, _, documents, __: None if documents is None else mask_of(x, documents)
    )
    model, row = packed(dtype)
    loss, gradients = loss_and_gradients(model, [row], EOS)
    expected_loss, expected = loss_and_gradients(model, row.split(LENGTHS, dim=1))
    assert loss == pytest.approx(expected_loss, rel=tolerance)
    for ours, theirs in zip(gradients, expected, strict=True):
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
    across, _ = loss_and_gradients(model, [row])
    assert abs(across - loss) > 1e-3 * loss


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("name", "architecture"), ARCHITECTURES.types.items(), ids=ARCHITECTURES.types)
def test_keys_shapes_and_number_of_parameters_are_those_of_the_model(name, architecture, tied):
    config = architecture(architecture=name, **MODEL, tie_word_embeddings=tied)
    table = key_table.build(config, VOCABULARY)
    with torch.device("meta"):
        model = Transformer(config, VOCABULARY)
    assert {weight.key: weight.shape for weight in table.weights} == {
        name: list(parameter.shape) for name, parameter in model.named_parameters()
    }
    assert {key: weight.shape for key, weight in table.by_key.items()} == {
        key: list(tensor.shape) for key, tensor in model.state_dict().items()
    }
    assert flops.parameter_count(config, VOCABULARY) == sum(parameter.numel() for parameter in model.parameters())

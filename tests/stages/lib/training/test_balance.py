"""The auxiliary loss of a sparse model in the objectives, and the load of its experts in the metrics."""

import pytest
import torch

from stages.lib.model.architectures import LlamaRecipe, MixtralRecipe
from stages.lib.model.initialize import initialize
from stages.lib.model.loss import IGNORED
from stages.lib.model.transformer import Transformer
from stages.lib.training.objectives.dpo import Dpo
from stages.lib.training.objectives.objective import Balance, NextToken, with_load

SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8}
RECIPE = MixtralRecipe(architecture="mixtral", **SIZES, num_local_experts=4, router_aux_loss_coef=0.5)
LENGTH = 12


@pytest.fixture(scope="module")
def model():
    made = Transformer(RECIPE, 50).double()
    initialize(made, seed=1)
    return made


def rows(count):
    """Inputs and targets; each row has another number of targets, and the last one none."""
    tokens = torch.randint(50, (count, LENGTH), generator=torch.Generator().manual_seed(1))
    targets = tokens.roll(-1, 1)
    for number in range(count):
        targets[number, : LENGTH * number // (count - 1)] = IGNORED
    return tokens, targets


def named(objective, figures):
    return dict(zip(objective.figures, figures.tolist(), strict=True))


def test_the_loss_is_cross_entropy_and_the_weighted_auxiliary_loss(model):
    tokens, targets = rows(4)
    cross_entropy, _, routing = model(tokens, targets)
    objective = NextToken(balance=Balance(RECIPE))
    loss, figures = objective.sums(model, (tokens, targets), None)
    aux_loss = (routing.aux_loss * (targets != IGNORED).sum(1)).sum()
    assert loss.item() == pytest.approx((cross_entropy + 0.5 * aux_loss).item())
    assert named(objective, figures)["loss"] == pytest.approx(cross_entropy.item())
    assert named(objective, figures)["aux_loss"] == pytest.approx(aux_loss.item())


def test_the_division_into_micro_batches_changes_no_sum_and_no_gradient(model):
    tokens, targets = rows(4)
    objective, found = NextToken(balance=Balance(RECIPE)), []
    for size in (4, 2, 1):
        model.zero_grad()
        sums = 0
        for batch in zip(tokens.split(size), targets.split(size), strict=True):
            loss, figures = objective.sums(model, batch, None)
            loss.backward()
            sums = sums + figures
        found.append(torch.cat([sums, *(parameter.grad.flatten() for parameter in model.parameters())]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-10, atol=1e-12)


def test_the_load_is_the_share_of_the_choices_of_all_targets(model):
    tokens, targets = rows(4)
    objective = NextToken(balance=Balance(RECIPE))
    _, figures = objective.sums(model, (tokens, targets), None)
    count = int((targets != IGNORED).sum())
    entry = with_load(named(objective, figures / count), RECIPE.num_hidden_layers)
    choices = model(tokens, targets)[2].load.sum(0) / (2 * count)
    torch.testing.assert_close(torch.tensor(entry["expert_load"]), choices.float(), rtol=0, atol=1e-4)
    assert entry["expert_load_min"] == pytest.approx(4 * choices.min().item())
    assert entry["expert_load_max"] == pytest.approx(4 * choices.max().item())
    assert not [name for name in entry if "/" in name]


def test_a_pair_of_rows_has_the_mean_of_their_auxiliary_losses(model):
    tokens, targets = (array.view(2, 2, LENGTH) for array in rows(4))
    plain, sparse = Dpo(0.1), Dpo(0.1, balance=Balance(RECIPE))
    for objective in (plain, sparse):
        objective.reference = torch.zeros(2, 2, dtype=torch.float64)
    batch = (tokens, targets, torch.arange(2))
    loss, figures = sparse.sums(model, batch, None)
    routing = model.log_probs(tokens.flatten(0, 1), targets.flatten(0, 1))[1]
    expected = routing.aux_loss.sum() / 2
    assert named(sparse, figures)["aux_loss"] == pytest.approx(expected.item())
    assert loss.item() == pytest.approx((plain.sums(model, batch, None)[0] + 0.5 * expected).item())


def test_a_dense_model_has_no_figures_of_experts_and_a_step_that_is_not_finite_no_load():
    assert NextToken(balance=Balance(LlamaRecipe(**SIZES))).figures == ("loss", "z_loss")
    assert with_load({"loss": 1.0}, 2) == {"loss": 1.0}
    assert with_load({"loss": None, "expert_load/0": None, "expert_load/1": 0.5}, 1) == {"loss": None}

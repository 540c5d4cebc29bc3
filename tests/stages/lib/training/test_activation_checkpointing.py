"""Activation checkpointing: the same gradients for every kind, and what each kind keeps."""

import hashlib
import itertools
import json
import weakref
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch._inductor.utils import fresh_cache
from torch.utils._python_dispatch import TorchDispatchMode

from stages.lib import recipe, stage
from stages.lib.distributed import collectives
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.initialize import initialize
from stages.lib.model.transformer import Transformer, documents_of
from stages.lib.training import parallelize
from stages.lib.training.settings.recipe import MODES, ActivationCheckpointingRecipe, TrainRecipe
from tests.helpers.ranks import run_module
from tests.helpers.training import MODEL

LAYERS, PRODUCTS = 4, 4  # matrix products a block
KINDS_THAT_RECOMPUTE = [kind for kind in MODES if kind != "none"]


def model_of(architecture="llama", tied=False):
    keys = {"architecture": architecture, "num_hidden_layers": LAYERS, "tie_word_embeddings": tied}
    return Transformer(recipe.load(ARCHITECTURES, MODEL | keys, "model"), 70)


def checkpoint(model, kind):
    ratio = 0.5 if kind == "ratio" else None
    parallelize.apply_activation_checkpointing(model, ActivationCheckpointingRecipe(mode=kind, ratio=ratio))


def built(kind, dtype=torch.float32, architecture="llama"):
    model = model_of(architecture)
    initialize(model, seed=3)
    model.to(dtype)
    checkpoint(model, kind)
    return model


def loss_of(model, end=None):
    tokens = torch.randint(0, 70, (2, 48), generator=torch.Generator().manual_seed(1))
    loss, penalty, routing = model(tokens, tokens.roll(-1), documents_of(tokens, end), z_loss_weight=1e-2)
    return loss + penalty + (0 if routing is None else 0.1 * routing.aux_loss.sum())


def gradients(model, **options):
    loss_of(model, **options).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class Operators(TorchDispatchMode):
    """Counts what runs in it."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.counts[function.name()] += 1
        return function(*arguments, **(keywords or {}))


def run_again(kind):
    """(attentions, matrix products of the forward pass) that the backward pass computes once more."""
    loss = loss_of(built(kind))
    with Operators() as seen:
        loss.backward()
    attentions = seen.counts["aten::_scaled_dot_product_flash_attention_for_cpu"]
    return attentions, seen.counts["aten::mm"] - LAYERS * PRODUCTS * 2


def inputs_held(kind):
    """Count the inputs of blocks, the first apart, that the forward pass leaves in the device's memory."""
    model, inputs = built(kind), []
    for block in list(model.base_model.layers)[1:]:
        block.register_forward_pre_hook(lambda _, given: inputs.append(weakref.ref(given[0])))
    loss = loss_of(model)
    held = sum(reference() is not None for reference in inputs)
    loss.backward()
    return held


@pytest.mark.parametrize("end", [None, 3], ids=["one document", "documents"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS_THAT_RECOMPUTE)
@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_gradients_have_the_bits_of_a_model_that_keeps_everything(architecture, kind, dtype, end):
    plain, model = (built(mode, dtype, architecture) for mode in ("none", kind))
    assert list(model.state_dict()) == list(plain.state_dict())
    expected = gradients(plain, end=end)
    for name, gradient in gradients(model, end=end).items():
        assert torch.equal(gradient, expected[name]), name


def test_what_the_backward_pass_computes_again():
    assert run_again("none") == (0, 0)
    # the last product of a block is never run again: no backward pass asks for its result
    assert run_again("full") == run_again("offload") == (LAYERS, LAYERS * (PRODUCTS - 1))
    assert run_again("ratio") == (LAYERS // 2, LAYERS // 2 * (PRODUCTS - 1))
    assert run_again("selective") == (0, LAYERS)


def test_offloaded_inputs_leave_the_device():
    assert inputs_held("full") == LAYERS - 1
    assert inputs_held("offload") == 0


@pytest.mark.parametrize("layers", [1, 7, 32])
@pytest.mark.parametrize("ratio", [0.1, 0.25, 1 / 3, 0.5, 0.8, 1.0])
def test_a_ratio_chooses_evenly_spread_blocks(layers, ratio):
    if ratio * layers < 0.5:
        said = f"activation_checkpointing.ratio must choose at least one of the {layers} blocks, got"
        with pytest.raises(UserError, match=said):
            parallelize.chosen(layers, ratio)
        return
    numbers = parallelize.chosen(layers, ratio)
    assert abs(len(numbers) - ratio * layers) <= 0.5
    gaps = {after - before for before, after in itertools.pairwise(numbers)}
    assert len(gaps) <= 2 and max(gaps, default=0) - min(gaps, default=0) <= 1


def test_a_ratio_chooses_the_blocks_that_fms_fsdp_chooses():
    chosen, cut_off = [], 0.5
    for number in range(1, 33):
        if number / 4 >= cut_off:
            cut_off += 1
            chosen.append(number - 1)
    assert parallelize.chosen(32, 1 / 4) == chosen


def test_a_ratio_belongs_to_the_kind_ratio():
    def load(**keys):
        return recipe.load(ActivationCheckpointingRecipe, keys, "ac")

    assert load(mode="ratio", ratio="0.25").ratio == 0.25
    with pytest.raises(UserError, match="ac.ratio is missing: for mode ratio it must be"):
        load(mode="ratio")
    with pytest.raises(UserError, match="ac.ratio must be left out except for mode ratio, got 0.5 with mode full"):
        load(mode="full", ratio=0.5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("llama", "selective"), ("llama", "offload"), *(("mixtral", kind) for kind in ("none", "full", "selective"))],
)
def test_a_compiled_block_has_the_same_gradients(architecture, kind):
    """The loop over experts, of which a GPU has one kernel, stays outside of the graphs."""
    model = built(kind, architecture=architecture)
    for block in model.base_model.layers:
        block.compile()
    counters = torch._dynamo.utils.counters
    counters.clear()
    found, expected = gradients(model, end=3), gradients(built("none", architecture=architecture), end=3)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)
    if architecture == "llama":
        assert counters["stats"]["unique_graphs"] >= 1
        assert not counters["graph_break"]
    torch._dynamo.reset()


@pytest.mark.long
def test_a_compiled_selective_block_is_taken_from_the_cache_after_a_restart():
    caches = torch._dynamo.utils.counters["aot_autograd"]
    with fresh_cache():
        for expected in ({"autograd_cache_miss": 1, "autograd_cache_saved": 1}, {"autograd_cache_hit": 1}):
            torch._dynamo.reset()  # as a restart: only files remain
            caches.clear()
            model = built("selective")
            model.base_model.layers[0].compile()
            gradients(model)
            assert {name: count for name, count in caches.items() if "cache" in name} == expected
    torch._dynamo.reset()


@pytest.mark.long
def test_gradients_are_the_same_bits_on_two_ranks():
    code, printed = run_module(2, "tests.stages.lib.training.test_activation_checkpointing", [])
    assert code == 0, printed
    for rank in json.loads(printed.splitlines()[-1]):
        for kinds in rank.values():
            expected = kinds.pop("none")
            assert expected["forwards"] == LAYERS
            for kind, seen in kinds.items():
                assert seen["gradients"] == expected["gradients"], kind
                assert seen["forwards"] == LAYERS + (LAYERS // 2 if kind == "ratio" else LAYERS), kind


def measured(kind, how, device):
    """{"gradients": a digest of this rank's shards, "forwards": runs of a block in a step of one micro-batch}."""
    with torch.device("meta"):
        model = model_of(tied=True)
    forwards = []
    for block in model.base_model.layers:
        block.forward = counted(block.forward, forwards)
    checkpoint(model, kind)
    keys = {"steps": 1, "seq_len": 48, "global_batch_size": 2, "dtype": "float32", "sharding": how}
    parallelize.shard(model, TrainRecipe(**keys), device)
    initialize(model, seed=3)
    tokens = torch.randint(0, 70, (1, 48), generator=torch.Generator().manual_seed(dist.get_rank()))
    loss, *_ = model(tokens, tokens.roll(-1))
    loss.backward()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(collectives.local_tensor(parameter.grad).numpy().tobytes())
    return {"gradients": digest.hexdigest(), "forwards": len(forwards)}


def counted(forward, calls):
    return lambda *arguments: calls.append(1) or forward(*arguments)


if __name__ == "__main__":
    with process_group() as on_device:
        by_sharding = {how: {kind: measured(kind, how, on_device) for kind in MODES} for how in ("full", "grad")}
        of_all_ranks = collectives.all_gather_object(by_sharding)
        if dist.get_rank() == 0:
            print(json.dumps(of_all_ranks))
    stage.leave(0)

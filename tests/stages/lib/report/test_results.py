"""The comparison of a config with what was made from it."""

import pytest

from stages.lib import recipe, recipe_schema
from stages.lib.report import results
from stages.pretrain import PretrainRecipe

MODEL = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
LEAST = {"model": MODEL, "weights": {"a": 1}, "seq_len": 64, "global_batch_size": 4, "steps": 100}
RESET = {"optimizer": "reset", "schedule": "reset", "data": "reset"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"loss_guard": {"spike": "6", "on_repeated": "rollback"}, "z_loss": "1e-4", "document_mask": True},
        {"schedule": {"kind": "wsd", "decay_steps": 10, "warmup_steps": 5}, "optimizer": {"state_dtype": "bfloat16"}},
        {"initial": RESET},
        {"data_stages": [{"step": 3, "weights": {"a": "1e-3", "b": 2}}], "packing": "best_fit"},
        {"data_stages": [], "packing": "chunk"},
        {"model": {**MODEL, "rope_scaling": {"factor": "8", "low_freq_factor": 1}}},
        # defaults spelled out
        {"loss_guard": {"spike": None, "window": 128}, "schedule": {"warmup_steps": 100}, "initial": None},
        # operation: no result depends on it
        {
            "activation_checkpointing": {"mode": "ratio", "ratio": "0.5"},
            "compile": True,
            "trackers": {"tensorboard": True},
        },
        {
            "sharding": "hybrid-full",
            "shard_degree": 2,
            "watchdog": {"step": None},
            "checkpoint": {"asynchronous": False},
        },
    ],
)
def test_what_the_user_wrote_is_compared_as_a_manifest_holds_it(more):
    plan = recipe.load(PretrainRecipe, LEAST | more, "pretrain")
    asked = results.identity_of(recipe_schema.json_schema(PretrainRecipe), LEAST | more)
    assert asked == recipe.written(plan, "identity")

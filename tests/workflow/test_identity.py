"""The identity of a recipe in the config is the one that its manifest has."""

import pytest

from scripts.config.sections import Model, Pretrain
from scripts.config.values import identity_of
from scripts.config_check import checked
from stages.lib import recipe
from stages.pretrain import PretrainRecipe

MODEL = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
LEAST = {"model": MODEL, "weights": {"code": 1}, "seq_len": 64, "global_batch_size": 4, "steps": 100}
RESET = {"optimizer": "reset", "schedule": "reset", "data": "reset"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"loss_guard": {"spike": "6", "on_repeated": "rollback"}, "z_loss": "1e-4", "document_mask": True},
        {"schedule": {"kind": "wsd", "decay_steps": 10, "warmup_steps": 5}, "optimizer": {"state_dtype": "bfloat16"}},
        {"initial": RESET},
        {"data_stages": [{"step": 3, "weights": {"code": "1e-3", "prose": 2}}], "packing": "best_fit"},
        {"data_stages": [], "packing": "chunk"},
        {"model": {**MODEL, "rope_scaling": {"factor": "8", "low_freq_factor": 1}}},
        # defaults spelled out
        {"loss_guard": {"spike": None, "window": 128}, "schedule": {"warmup_steps": 100}, "initial": None},
        # operation: no result depends on it
        {"activation_checkpointing": {"mode": "ratio", "ratio": "0.5"}, "sharding": "hybrid-full", "shard_degree": 2},
        {"compile": True, "watchdog": {"step": None}, "checkpoint": {"asynchronous": False}},
        {"trackers": {"tensorboard": True}},
    ],
)
def test_recipe_in_the_config_has_the_identity_of_the_manifest(config, more):
    written = LEAST | more
    del config["runs"]["statements"]
    run = config["runs"]["base"]
    run["pretrain"] = {name: value for name, value in written.items() if name != "model"}
    run["model"] = written["model"]
    if written.get("initial"):
        run["initial"] = {"path": "model"}
    run = checked(config)["runs"]["base"]
    found = identity_of(Pretrain, run["pretrain"]) | {"model": identity_of(Model, run["model"])}
    assert found == recipe.written(recipe.load(PretrainRecipe, written, "pretrain"), "identity")

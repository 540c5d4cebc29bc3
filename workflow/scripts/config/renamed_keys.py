"""Old names of config keys and values, so that a config of an earlier version gets one helpful sentence.

docs/renamed_keys.md shows the same table to people; a test keeps both equal. A key is written as its path with `*` for
names that the user chose. `finetune` has the keys of `pretrain`.
"""

from typing import Any

PAGE = "docs/renamed_keys.md"

KEYS = {
    "sources.*.ids_field": "token_ids_field",
    "sources.*.max_unreadable": "max_malformed",
    "tokenizers.*.vocabulary": "vocab_size",
    "suites.*.questions": "num_examples",
    "suites.*.pairs": "prompt_completion",
    "runs.*.pairs": "finetune.weights",
    "runs.*.prompt_completion": "finetune.weights",
    "runs.*.model.layers": "num_hidden_layers",
    "runs.*.model.width": "hidden_size",
    "runs.*.model.hidden": "intermediate_size",
    "runs.*.model.heads": "num_attention_heads",
    "runs.*.model.kv_heads": "num_key_value_heads",
    "runs.*.model.tie": "tie_word_embeddings",
    "runs.*.model.theta": "rope_theta",
    "runs.*.model.norm_eps": "rms_norm_eps",
    "runs.*.model.max_positions": "max_position_embeddings",
    "runs.*.model.initial_std": "initializer_range",
    "runs.*.model.rope_scaling.low_frequency_factor": "low_freq_factor",
    "runs.*.model.rope_scaling.high_frequency_factor": "high_freq_factor",
    "runs.*.model.rope_scaling.original_positions": "original_max_position_embeddings",
    "runs.*.pretrain.global_batch": "global_batch_size",
    "runs.*.pretrain.micro_batch": "micro_batch_size",
    "runs.*.pretrain.shard_ranks": "shard_degree",
    "runs.*.pretrain.activation": "activation_checkpointing",
    "runs.*.pretrain.activation_checkpointing.kind": "mode",
    "runs.*.pretrain.optimizer.epsilon": "eps",
    "runs.*.pretrain.optimizer.clip": "max_grad_norm",
    "runs.*.pretrain.optimizer.moments": "state_dtype",
    "runs.*.pretrain.schedule.floor": "min_lr_ratio",
    "runs.*.pretrain.phases": "data_stages",
    "runs.*.pretrain.heldout": "validation",
    "runs.*.pretrain.guard": "loss_guard",
    "runs.*.pretrain.loss_guard.then": "on_repeated",
    "runs.*.pretrain.loss_guard.rewinds": "max_rollbacks",
    "runs.*.pretrain.monitors": "trackers",
}
"""{path of an old key: its new name, below the same group}"""

VALUES = {
    ("sources.*.kind", "pairs"): "prompt_completion",
    ("sources.*.kind", "python-docstrings"): "python-statements",
    ("runs.*.pretrain.packing", "window"): "chunk",
    ("runs.*.pretrain.packing", "concatenate"): "concat",
    ("runs.*.pretrain.schedule.kind", "anneal"): "linear with warmup_steps: 0",
    ("runs.*.pretrain.loss_guard.on_repeated", "rewind"): "rollback",
}
"""{(path of a key, old value): new value}"""

SECTIONS_OF_NAMES = ("sources", "tokenizers", "corpora", "suites", "runs")


def mistake(config: dict[str, Any]) -> str | None:
    """Return the sentence for the first old key or value of a config; None if it has none."""
    return _mistake(config, [])


def old_names(group: str) -> dict[str, str]:
    """Return {old name: new name} of the keys of a group, which is a dotted path in a config."""
    parent = _pattern(group.split(".")) if group else ""
    parted = ((*path.rpartition("."), new) for path, new in KEYS.items())
    return {old: new for above, _, old, new in parted if above == parent}


def _mistake(value: Any, path: list[str]) -> str | None:
    if not isinstance(value, dict):
        new = VALUES.get((_pattern(path), value)) if isinstance(value, str) else None
        return None if new is None else f"{'.'.join(path)}: the value {value} is now {new}; see {PAGE}"
    for key, item in value.items():
        here = [*path, str(key)]
        new = KEYS.get(_pattern(here))
        if new is not None:
            return f"{'.'.join(here)} is now {'.'.join([*path, new])}; see {PAGE}"
        if found := _mistake(item, here):
            return found
    return None


def _pattern(path: list[str]) -> str:
    parts = ["pretrain" if at == 2 and part == "finetune" else part for at, part in enumerate(path)]
    if len(parts) > 1 and parts[0] in SECTIONS_OF_NAMES:
        parts[1] = "*"
    return ".".join(parts)

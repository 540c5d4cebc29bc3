"""Config keys and values under the names of earlier versions and of other libraries, each answered by one sentence.

docs/renamed_keys.md shows those of earlier versions to people; a test keeps both equal. A key is written as its path
with `*` for names that the user chose. `finetune` has the keys of `pretrain`.
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


FOREIGN = {
    "runs.*.pretrain": {
        "optimizer.learning_rate": "lr learning_rate max_lr",
        "steps": "max_steps max_iters num_train_steps train_steps training_steps num_steps total_steps lr_decay_iters",
        "global_batch_size": "batch_size train_batch_size total_batch_size gradient_accumulation_steps",
        "micro_batch_size": "per_device_train_batch_size device_batch_size per_device_batch_size local_batch_size",
        "dtype": "bf16 fp16 precision mixed_precision torch_dtype",
        "seq_len": "block_size max_seq_length max_seq_len max_length sequence_length seq_length context_length",
        "schedule.warmup_steps": "warmup_steps warmup_iters lr_warmup_steps warmup_ratio lr_warmup_iters",
        "schedule.kind": "lr_scheduler_type lr_scheduler decay_lr lr_decay_style",
        "schedule.min_lr_ratio": "min_lr min_lr_ratio lr_min",
        "optimizer.name": "optim",
        "optimizer.weight_decay": "weight_decay wd",
        "optimizer.beta1": "adam_beta1 beta1",
        "optimizer.beta2": "adam_beta2 beta2",
        "optimizer.eps": "adam_epsilon adam_eps eps",
        "optimizer.max_grad_norm": "max_grad_norm grad_clip max_norm clip_grad gradient_clip_val",
        "activation_checkpointing.mode": "gradient_checkpointing",
        "checkpoint.every": "save_steps save_interval",
        "checkpoint.keep": "save_total_limit",
        "validation.every": "eval_steps eval_interval",
        "sharding": "fsdp fsdp_strategy sharding_strategy",
        "trackers": "report_to wandb_log logger_name",
    },
    "runs.*.finetune": {"epochs": "num_train_epochs num_epochs max_epochs", "lora": "lora_r lora_rank peft_config"},
    "runs.*.finetune.lora": {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout"},
    "runs.*.model": {
        "num_hidden_layers": "n_layer n_layers num_layers depth",
        "num_attention_heads": "n_head n_heads num_heads",
        "num_key_value_heads": "n_query_groups n_kv_heads num_kv_heads num_query_groups",
        "hidden_size": "n_embd dim d_model model_dim",
        "intermediate_size": "hidden_dim ffn_hidden_size ffn_dim",
        "max_position_embeddings": "block_size max_seq_len n_positions n_ctx",
        "rope_theta": "rope_base",
        "rms_norm_eps": "norm_eps layer_norm_eps",
        "head_dim": "head_size",
        "initializer_range": "init_std",
        "tie_word_embeddings": "tie_embeddings weight_tying",
    },
    "sources.*": {
        "paths": "path data_files data_dir files dataset dataset_path",
        "text_field": "text_column text_key content_field",
        "validation": "val_fraction val_split_fraction val_size test_size",
    },
    "tokenizers.*": {"vocab_size": "vocab n_vocab padded_vocab_size", "model": "model_type", "path": "tokenizer_file"},
    "suites.*": {"num_fewshot": "n_shot fewshot"},
}
"""{group: {key here: names of it in Hugging Face, nanoGPT, litgpt, torchtitan and the like}}. `finetune` has the names
of `pretrain` as well."""


def foreign_key(group: str, name: str) -> str | None:
    """Return the key of a group, a dotted path in a config, that other libraries call `name`; None without one."""
    path = group.split(".") if group else []
    own = [*path[:1], "*", *path[2:]] if len(path) > 1 and path[0] in SECTIONS_OF_NAMES else path
    for parts in (own, _pattern(path).split(".")):
        for length in range(len(parts), 1, -1):  # pretrain has the names of optimizer.learning_rate
            inside = "".join(f"{part}." for part in parts[length:])
            for key, names in FOREIGN.get(".".join(parts[:length]), {}).items():
                if name in names.split() and key.startswith(inside):
                    return key.removeprefix(inside)
    return None


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

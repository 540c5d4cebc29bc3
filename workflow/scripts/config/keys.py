"""The keys of a config as plain data: checked, with numbers as numbers, and hints for keys of other libraries."""

from __future__ import annotations

import re
from typing import Any

from stages.lib.recipe import WITH_EXPONENT, Reader, default_of, fields_of, may_be_null, members_of

# Snakemake's `--config tune=true` is text, as are the values of `--config 'runs={base: {pretrain: {steps: 120}}}'`.
TRUTHS = {"true": True, "false": False}
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class KeysReader(Reader):
    """Reads a config as plain data: what the user wrote, with numbers as numbers, and without null for a default.

    Values may be texts, as those of the command line and `1e-3` of YAML are.
    """

    def __init__(self, is_partial: bool = False) -> None:
        """`is_partial`: the data are differences from others, so null stays."""
        self.is_partial = is_partial

    def make(self, recipe_type: type, keys: dict[str, Any], where: str) -> dict[str, Any]:
        """Return the keys. The check of a recipe as a whole is left to `tools.check`: it may read files."""
        if hasattr(recipe_type, "written_out") and not self.is_partial:
            keys = recipe_type.written_out(keys, where)
        fields = {field.name: (key, field) for key, field in fields_of(recipe_type).items()}
        return {
            fields[name][0]: value
            for name, value in keys.items()
            if value is not None or self.is_partial or default_of(fields[name][1]) is not None
        }

    def of_text(self, hint: Any, text: str) -> Any:
        """Return the value that a text stands for by its type."""
        members = members_of(hint)
        if text == "null" and str not in members and may_be_null(hint):
            return None
        if bool in members:
            return TRUTHS.get(text, text)
        if int in members and (WHOLE.fullmatch(text) or (WITH_EXPONENT.fullmatch(text) and float(text).is_integer())):
            return int(text) if WHOLE.fullmatch(text) else int(float(text))
        return text

    def meant(self, recipe_type: type, key: str, where: str) -> str | None:
        """Return the key that an unknown one may be; names of other libraries are known."""
        return foreign_key(where, key) or super().meant(recipe_type, key, where)


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
        "num_hidden_layers": "n_layer n_layers num_layers layer layers depth",
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
    path = ["*" if at == 1 else part for at, part in enumerate(group.split("."))]
    for parts in (path, ["pretrain" if part == "finetune" else part for part in path]):
        for length in range(len(parts), 1, -1):  # pretrain has the names of optimizer.learning_rate
            inside = "".join(f"{part}." for part in parts[length:])
            for key, names in FOREIGN.get(".".join(parts[:length]), {}).items():
                if name in names.split() and key.startswith(inside):
                    return key.removeprefix(inside)
    return None

"""Check of the config: each mistake is one sentence that names the key, what it must be, and what was found."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from yaml.nodes import MappingNode, Node, SequenceNode

from scripts.config.references import ConfigError, check_references
from scripts.config.values import NUMBER, copied, joined, without_nulls
from scripts.config.written_out import check_left_out, is_derived, with_defaults, written_out
from scripts.sweeps.ladders import with_ladders
from scripts.sweeps.runs import check_sweeps, runs_of, with_runs


def check_twice(paths: Iterable[Path | str]) -> None:
    """Raise ConfigError for the first key that stands twice in a mapping of a config file."""
    for path in paths:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=loader)
        except (OSError, ValueError, yaml.YAMLError):  # Snakemake has read it: it may be a template
            continue
        if root is not None:
            _check(root, str(path), "", set())


def _check(node: Node, path: str, where: str, seen: set[int]) -> None:
    if id(node) in seen:  # an alias of a node that is checked already
        return
    seen.add(id(node))
    if isinstance(node, SequenceNode):
        for number, item in enumerate(node.value):
            _check(item, path, f"{where}[{number}]", seen)
    if isinstance(node, MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            here = f"{where}.{name}" if where else name
            if name in lines and name != "<<":
                raise ConfigError(f"{path}: {here} must stand once, got it on line {lines[name]} and on line {line}")
            lines[name] = line
            _check(value, path, here, seen)


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
    path = group.split(".") if group else []
    own = [*path[:1], "*", *path[2:]] if len(path) > 1 and path[0] in SECTIONS_OF_NAMES else path
    for parts in (own, _pattern(path).split(".")):
        for length in range(len(parts), 1, -1):  # pretrain has the names of optimizer.learning_rate
            inside = "".join(f"{part}." for part in parts[length:])
            for key, names in FOREIGN.get(".".join(parts[:length]), {}).items():
                if name in names.split() and key.startswith(inside):
                    return key.removeprefix(inside)
    return None


def _pattern(path: list[str]) -> str:
    parts = ["pretrain" if at == 2 and part == "finetune" else part for at, part in enumerate(path)]
    if len(parts) > 1 and parts[0] in SECTIONS_OF_NAMES:
        parts[1] = "*"
    return ".".join(parts)


# JSON Schema takes 300.0 for an integer; the stages do not.
Validator = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)
MAX_ENTRIES = 1_000_000


def load_schema(path: Path) -> dict[str, Any]:
    """Read the JSON schema of the config."""
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (safe)


def checked(config: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a checked copy of a config, with numbers as numbers: YAML reads `1e-3` as text.

    It holds what the user wrote and what can be nothing else (config/written_out.py): no defaults of the stages. Runs
    `from` others and runs of sweeps and ladders are written out. Raises ConfigError.
    """
    _check_size(config)
    written = copied(config, schema, "")
    config = with_defaults(_expanded(written, schema))
    _validate(config, schema, written.get("runs"))
    config = without_nulls(with_runs(config, schema), schema)
    check_left_out(config)
    check_references(config)
    check_sweeps(config, schema)
    return with_ladders(config, schema)


def _expanded(config: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the config with plain runs only. The check by the schema names what is no mapping here."""
    runs, of_run = config.get("runs"), schema["properties"]["runs"]["additionalProperties"]
    if not isinstance(runs, dict):
        return config
    if "sweeps" in config:
        _validate({"sweeps": config["sweeps"]}, {"properties": {"sweeps": schema["properties"]["sweeps"]}})
    for name, sweep in config.get("sweeps", {}).items():
        runs = runs | runs_of(name, sweep, runs, of_run)
    return config | {"runs": written_out(runs, of_run)}


def _validate(config: dict[str, Any], schema: dict[str, Any], runs: Any = None) -> None:
    """Raise ConfigError for the first mistake. `runs`: as the user wrote them; a mistake is named at a run in full."""
    in_full = [name for name, run in runs.items() if not is_derived(run)] if isinstance(runs, dict) else []

    def order(error: ValidationError) -> tuple[bool, bool, int, bool, list[str]]:
        section, name = [*error.absolute_path, None, None][:2]
        return section != "runs" or name in (None, *in_full), *_order(error)

    error = best_match(Validator(_numbers_only(schema)).iter_errors(config), key=order)
    if error is not None:
        raise ConfigError(_sentence(error))


def _check_size(config: dict[str, Any]) -> None:
    """Raise ConfigError for a config whose anchors refer to anchors, or to themselves, without end."""
    waiting: list[Any] = [config]
    for _ in range(MAX_ENTRIES):
        if not waiting:
            return
        value = waiting.pop()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    raise ConfigError(f"the config must have at most {MAX_ENTRIES:,} entries, got more: do its anchors repeat anchors?")


def _order(error: ValidationError) -> tuple[bool, int, bool, list[str]]:
    is_missing = error.validator in ("required", "dependentRequired")
    is_unknown = error.validator == "additionalProperties"  # perhaps a misspelled one that is missing then
    return is_unknown, -len(error.path), is_missing, [str(key) for key in error.path]


def _numbers_only(schema: Any) -> Any:
    """Return the schema without text as a form of a number: `copied` has converted it."""
    if isinstance(schema, dict):
        return {
            key: "number" if key == "type" and value == NUMBER else _numbers_only(value)
            for key, value in schema.items()
        }
    return [_numbers_only(item) for item in schema] if isinstance(schema, list) else schema


def _path(keys: Iterable[str | int]) -> str:
    return re.sub(r"\.(?=\[)", "", ".".join(f"[{key}]" if isinstance(key, int) else key for key in keys))


def _sentence(error: ValidationError) -> str:
    if error.parent is not None and error.validator == "type" and isinstance(error.instance, dict):
        error = error.parent  # of a group that may also be null, best_match took null
    inner = [part for part in error.context or () if part.path or part.validator != "type"]
    if error.validator == "anyOf" and isinstance(error.instance, dict) and inner:
        return _sentence(max(inner, key=_order))  # in a group that may also be null
    where = _path(error.absolute_path)
    if error.validator == "additionalProperties":
        return _unknown_key(where, error.instance, error.schema["properties"])
    if error.validator in ("required", "dependentRequired"):
        missing = next(key for key in _required(error) if key not in error.instance)
        instead = " (or set model.from)" if where.endswith(".model") else ""
        expected = _expected(error.schema["properties"][missing])
        return f"{joined(where, missing)} is missing: it must be {expected}{instead}"
    if "pattern" in error.schema:
        name = ascii(joined(where, error.instance))[1:-1]
        return f"{name:.200} must be a name of up to 100 letters, digits, dots, dashes and underscores"
    found = "nothing" if error.instance is None else repr(error.instance)
    return f"{where or 'the config'} must be {_expected(error.schema)}, got {found}"


def _unknown_key(where: str, instance: dict[str, Any], known: dict[str, Any]) -> str:
    unknown = sorted(key for key in instance if key not in known)[0]
    nearest = difflib.get_close_matches(unknown, known, n=1)
    below = [f"{group}.{unknown}" for group, keys in known.items() if unknown in _keys_of(keys)]
    meant = foreign_key(where, unknown) or next(iter([*nearest, *below]), None)
    hint = f"did you mean {joined(where, meant)}? " if meant else ""
    return f"unknown key {joined(where, unknown)}; {hint}known here: {', '.join(sorted(known))}"


def _keys_of(schema: dict[str, Any]) -> list[str]:
    """Return the keys of a group, one that may be null included."""
    return [key for part in (schema, *schema.get("anyOf", ())) for key in part.get("properties", ())]


def _required(error: ValidationError) -> list[str]:
    if error.validator == "required":
        return error.validator_value
    return [key for given, needed in error.validator_value.items() if given in error.instance for key in needed]


def _expected(schema: dict[str, Any]) -> str:
    """Return in words what a value must be: the schema carries it beside types and bounds."""
    if "anyOf" in schema:
        return " or ".join(_expected(part) for part in schema["anyOf"])
    return schema["x-expected"]

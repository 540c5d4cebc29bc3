"""The setting of a table: what a run of a config trains, and its step as the config has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.manifest import TRAINING
from stages.lib.recipe import shown
from stages.lib.training.settings.recipe import TrainRecipe

OF_THE_STEP = (
    *("seq_len", "global_batch_size", "dtype", "weights_dtype", "optimizer", "z_loss", "lora", "document_mask"),
    *("micro_batch_size", "sharding", "shard_degree", "cpu_offload", "activation_checkpointing"),
    *("compile", "float8", "cuda_graphs", "deterministic"),
)
"""Keys of a training on which the cost of a step depends."""

OF_THE_DATA = (
    *("milestones", "weights", "data_stages", "packing", "initial"),
    *("epochs", "template", "loss_on", "too_long"),
)
"""Keys of pretrain and finetune that change neither the memory nor the time of a step."""

Config = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A run: its name, the keys of its model, and those of its training that a step depends on."""

    run: str
    model: Config
    vocab_size: int
    training: Config

    def recipe(self) -> Config:
        """Return the recipe of a cell before the grid is applied."""
        return self.training | {"model": self.model, "vocab_size": self.vocab_size}


def read(path: Path, run: str | None, vocab_size: int | None) -> Setting:
    """Read a config. `run`: its name; None if the config has one run. `vocab_size`: overrides that of the config.

    Raises UserError if the run or a size is missing, or a key has an effect on the step that a cell does not show.
    """
    config = load(path, run)
    runs = config["runs"]
    if run is None and len(runs) != 1:
        raise UserError(f"--run is missing: {path} has the runs {', '.join(map(str, runs))}")
    name = run or next(iter(runs))
    stage = stage_of(runs[name])
    if stage is None:
        raise UserError(f"runs.{name} of {path} must have pretrain or finetune")
    training, where = runs[name][stage], f"runs.{name}.{stage}"
    all_keys = {*OF_THE_DATA, *OF_THE_STEP, *(field.name for field in dataclasses.fields(TrainRecipe))}
    for key in training:
        if key not in all_keys:
            raise UserError(f"{where}.{key} must be omitted: the table does not measure its effect")
    model, own_size = model_of(config, name)
    size = vocab_size or own_size or tokenizer_size(config, name)
    if size is None:
        raise UserError(f"--vocab-size is missing: {path} does not have the vocab_size of run {name}")
    for key in ("seq_len", "global_batch_size"):
        if key not in training:
            raise UserError(f"the run {name} of {path} must have {key}")
    training = TrainRecipe.written_out(training, where)  # here, since a cell has fewer steps than the run
    of_step = {key: value for key, value in training.items() if key in OF_THE_STEP}
    # tuning keeps the samples of a row apart
    return Setting(name, model, size, {"document_mask": stage == "finetune"} | of_step)


def stage_of(run: Any) -> str | None:
    """Return the stage that trains a run; None if it has none."""
    return next((stage for stage in TRAINING if isinstance(run, dict) and isinstance(run.get(stage), dict)), None)


def load(path: Path, run: str | None) -> Config:
    """Return a config. Raises UserError if it cannot be read, has no runs, or not the one that is named."""
    import yaml

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"the config {path} cannot be read: {reason:.300}") from None
    if not isinstance(config, dict) or not isinstance(config.get("runs"), dict):
        raise UserError(f"the config {path} must have runs")
    if run is not None and run not in config["runs"]:
        known = ", ".join(map(str, config["runs"]))
        raise UserError(f"--run must be one of the runs of {path} ({known}), got {run!r}")
    return config


def _mapping(parent: Config, key: Any, where: str) -> Config:
    """Return the mapping at a key, {} if it is missing or null. Raises UserError for another value."""
    value = parent.get(key) if isinstance(key, str) else None
    if not isinstance(value, dict | None):
        raise UserError(f"{where}.{key} must be a mapping, got {shown(value)}")
    return value or {}


def _chain(config: Config, name: str) -> Iterator[tuple[str, Config]]:
    """Yield the name and the keys of a run, then of the run that it starts from, and so on."""
    seen: list[str] = []
    asked: Any = name
    while asked is not None:
        name = asked
        if not isinstance(name, str) or name in seen or not isinstance(config["runs"].get(name), dict):
            raise UserError(f"runs.{seen[-1]}.initial.run must be another run of the config, got {shown(name)}")
        seen.append(name)
        run = config["runs"][name]
        yield name, run
        asked = _mapping(run, "initial", f"runs.{name}").get("run")


def model_of(config: Config, name: str) -> tuple[Config, int | None]:
    """Return the keys of a run's model, and its vocab_size if a config.json has it."""
    for owner, run in _chain(config, name):
        name, last = owner, run
        if "model" in run:
            break
    model, initial = (_mapping(last, key, f"runs.{name}") for key in ("model", "initial"))
    source = model.get("from") or (None if model else initial.get("config") or initial.get("path"))
    if source is None and not model:
        raise UserError(f"runs.{name}.model is missing: it must have the model's configuration")
    if not isinstance(source, str | None):
        raise UserError(f"the config.json of runs.{name} must be named by its path, got {shown(source)}")
    keys = {key: value for key, value in model.items() if key != "from"}
    if source is None:
        return keys, None
    from stages.lib.huggingface import config_json

    file = config_json.file_of(source)
    return config_json.model_identity(file, keys), files.read_json_object(file).get("vocab_size")


def tokenizer_size(config: Config, name: str) -> int | None:
    """Return the vocab_size of the tokenizer of a run, if its recipe has one."""
    named = next((run["corpus"] for _, run in _chain(config, name) if "corpus" in run), None)
    corpus = _mapping(_mapping(config, "corpora", "config"), named, "corpora")
    tokenizer = _mapping(_mapping(config, "tokenizers", "config"), corpus.get("tokenizer"), "tokenizers")
    size: int | None = tokenizer.get("vocab_size")
    return size

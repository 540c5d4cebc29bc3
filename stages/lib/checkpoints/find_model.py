"""A trained model by any path that names one: what shape it has, and where its weights lie.

    results/runs/base/models/00000300.json                   a milestone's manifest
    results/runs/base/train/<digest>/checkpoints/00000300    a checkpoint
    results/runs/base/train/<digest>                         a run directory: its newest complete checkpoint
    results/runs/base/export/00000300/manifest.json          an export's manifest
    any directory with config.json and safetensors           an export, or another Hugging Face Llama

A checkpoint's files are compared with commit.json by their sizes; their hashes are `convert`'s affair.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.lib import manifest, recipe
from stages.lib.checkpoints import dcp
from stages.lib.errors import UserError
from stages.lib.huggingface import export, load_hf
from stages.lib.model.llama import Llama, ModelRecipe


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model that can be loaded.

    `read`: as `imported.load_into` asks for it, one key at a time. `commit`: what a checkpoint's commit.json says; None
    for a Hugging Face directory. `tokenizer`: the digest of its tokenizer's manifest, None where nobody says.
    """

    directory: Path
    recipe: ModelRecipe
    vocab_size: int
    read: Callable
    commit: dict | None
    tokenizer: str | None


def find(path, option="--model"):
    """The `Trained` at a path, which `option` gave. Raises UserError where there is none, or it is torn."""
    path = Path(path)
    if path.is_file():
        return _of_manifest(path, option)
    if (path / load_hf.CONFIG).is_file():
        return _of_directory(path)
    if (path / "checkpoints").is_dir():
        steps = dcp.complete_steps(path)
        if not steps:
            raise UserError(f"{path} must hold a complete checkpoint, and has none")
        return _of_checkpoint(dcp.directory_of(path, steps[-1]))
    if path.is_dir() and ((path / dcp.COMMIT).exists() or path.parent.name == "checkpoints"):
        return _of_checkpoint(path)
    raise _none(path, option)


def load(trained, dtype, device):
    """The Llama of a `Trained`, on a device and in a dtype, for inference; one parameter at a time is read."""
    with torch.device("meta"):
        model = Llama(trained.recipe, trained.vocab_size).to(dtype)
    model.to_empty(device=device)
    if trained.recipe.tie_word_embeddings:  # to_empty made two of them
        model.head.weight = model.base_model.embedding.weight
    load_hf.load_into(model, trained.read)
    return model.eval().requires_grad_(False)


def _of_manifest(path, option):
    try:
        made = manifest.read(path)
    except UserError:
        raise _none(path, option) from None
    if "checkpoint" in made.identity:
        name = f"{made.identity['checkpoint']}/{dcp.COMMIT}"
        manifest.check_content(made.output(name), made.identity["outputs"][name], path)
        return _of_checkpoint(made.directory / made.identity["checkpoint"])
    if load_hf.CONFIG in made.identity.get("outputs", ()):
        for name in made.identity["outputs"]:
            made.output(name)
        return _of_directory(made.directory, made.identity.get("tokenizer"))
    raise _none(path, option)


def _of_directory(directory, tokenizer=None):
    found = load_hf.open_directory(directory)
    return Trained(
        directory=directory,
        recipe=found.recipe,
        vocab_size=found.vocab_size,
        read=found.read,
        commit=None,
        tokenizer=tokenizer,
    )


def _of_checkpoint(directory):
    commit = dcp.read_commit(directory)
    for key in ("model", "vocab_size", "tokenizer"):
        if key not in commit:
            raise UserError(f"{directory / dcp.COMMIT} must say the {key}, and does not")
    shape = recipe.load(ModelRecipe, commit["model"], f"{directory / dcp.COMMIT}: model")
    _check_keys(directory, shape)
    return Trained(
        directory=directory,
        recipe=shape,
        vocab_size=commit["vocab_size"],
        read=_by_layers(export.checkpoint_reader(directory)),
        commit=commit,
        tokenizer=commit["tokenizer"],
    )


def _by_layers(read):
    """A `read` of one key that keeps the key's layer, since each read parses a checkpoint's .metadata of all ranks."""
    held = {}

    def read_one(keys):
        (key,) = keys
        if key not in held:
            held.clear()
            in_layer = key.startswith("base_model.layers.")
            held.update(read(export.layer_keys(int(key.split(".")[2])) if in_layer else keys))
        return {key: held[key]}

    return read_one


def _check_keys(directory, shape):
    """Raise UserError where a checkpoint's model has a tensor that a Llama has not: its text would be another's."""
    known = {"model.base_model.embedding.weight", "model.base_model.dec_norm.weight", "model.head.weight"}
    for number in range(shape.num_hidden_layers):
        known |= {f"model.{key}" for key in export.layer_keys(number)}
    for key in dcp.keys_of(directory):
        if key.startswith("model.") and key not in known:
            raise UserError(
                f"{directory} must hold a Llama of {shape.num_hidden_layers} layers and nothing more, found {key}"
            )


def _none(path, option):
    return UserError(
        f"{option} {path} must be a milestone's manifest, a checkpoint, a run directory, an export's manifest or the "
        f"directory of a Hugging Face Llama, and {'is none of these' if path.exists() else 'does not exist'}"
    )

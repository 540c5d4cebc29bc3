"""Find a model by a path: its config, and where its weights lie.

    results/runs/base/models/00000300.json                   a milestone's manifest
    results/runs/base/train/<digest>/checkpoints/00000300    a checkpoint
    results/runs/base/train/<digest>                         a run directory: its newest complete checkpoint
    results/runs/base/export/00000300/manifest.json          an export's manifest
    any directory with config.json and safetensors           an export, or another Hugging Face model
    checkpoints/step_1000_ckp, step_1000_ckp.pth, ...        a checkpoint of ibm-fms or fms-fsdp, see model_files.py

The last does not hold its config, which the caller then gives. The sizes of a checkpoint's files are compared with
commit.json; `convert` compares their hashes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.lib import files, manifest, recipe
from stages.lib.chat import template as chat_template
from stages.lib.checkpoints import adapter, dcp, load_fms, model_files
from stages.lib.checkpoints.adapter import Adapter
from stages.lib.checkpoints.commit import COMMIT, complete_steps, directory_of, read_commit, verify
from stages.lib.errors import UserError
from stages.lib.huggingface import load_hf
from stages.lib.huggingface.export import Read
from stages.lib.huggingface.weight_files import CONFIG
from stages.lib.model import key_table
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.model.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A model that can be loaded."""

    directory: Path
    model_config: ModelRecipe
    vocab_size: int

    read: Read
    """Reads one key at a time, for `load_hf.load_into`."""

    path: Path
    """The file or directory whose content `model_files.digest_of` hashes."""

    kind: str
    """The name of what was found, for messages."""

    commit: dict[str, Any] | None = None
    """The content of a checkpoint's commit.json; None for a model that was not trained here."""

    tokenizer: str | None = None
    """The digest of the tokenizer's manifest; None if it is not known."""

    adapter: Adapter | None = None
    """The adapters of LoRA that `read` adds to their base; None for a model without."""

    @property
    def template(self) -> str | None:
        """Text of the chat template: that of the model's training, or of the tokenizer beside it; None without one."""
        return chat_template.text_beside(self.directory) if self.commit is None else self.commit.get("template")


def find(
    path: Path | str,
    option: str = "--model",
    model_config: ModelRecipe | None = None,
    where: str = "",
    base: Path | None = None,
) -> FoundModel:
    """The model at a path, which the command-line option `option` gave. Raises UserError if there is no whole model.

    `model_config`: the config of a model that does not hold it; `where` stands before a key of it in messages. `base`:
    the model beside which adapters were trained, if it is not where the training found it.
    """
    path = Path(path)
    if model_files.find_fms(path) is not None:
        return _of_fms(path, option, model_config, where)
    if path.is_file():
        return _of_manifest(path, option, base)
    if (path / CONFIG).is_file():
        return _of_hf_directory(path)
    if (path / "checkpoints").is_dir():
        steps = complete_steps(path)
        if not steps:
            raise UserError(f"{path} holds no complete checkpoint")
        return _of_checkpoint(directory_of(path, steps[-1]), base)
    if path.is_dir() and ((path / COMMIT).exists() or path.parent.name == "checkpoints"):
        return _of_checkpoint(path, base)
    raise _not_a_model(path, option)


def load(found: FoundModel, dtype: torch.dtype, device: torch.device | str) -> Transformer:
    """The model on a device and in a dtype, for inference; one parameter at a time is read."""
    with torch.device("meta"):
        model = Transformer(found.model_config, found.vocab_size).to(dtype)
    model.to_empty(device=device)
    if found.model_config.tie_word_embeddings:  # to_empty made two tensors of one
        model.head.weight = model.base_model.embedding.weight
    load_hf.load_into(model.named_parameters(), found.read)
    return model.eval().requires_grad_(False)


def _of_manifest(path: Path, option: str, base: Path | None) -> FoundModel:
    try:
        data = files.read_json(path)
    except UserError:
        raise _not_a_model(path, option) from None
    if not manifest.is_manifest(data):
        raise _not_a_model(path, option)
    made = manifest.parse(path, data)
    if "checkpoint" in made.identity:
        name = f"{made.identity['checkpoint']}/{COMMIT}"
        manifest.check_content(made.output(name), made.identity["outputs"][name], path)
        return _of_checkpoint(made.directory / made.identity["checkpoint"], base)
    if CONFIG in made.identity.get("outputs", ()):
        for name in made.identity["outputs"]:
            made.output(name)
        return _of_hf_directory(made.directory, made.identity.get("tokenizer"))
    raise _not_a_model(path, option)


def _of_hf_directory(directory: Path, tokenizer: str | None = None) -> FoundModel:
    hf_model = load_hf.open_directory(directory)
    return FoundModel(
        directory=directory,
        model_config=hf_model.model_config,
        vocab_size=hf_model.vocab_size,
        read=hf_model.read,
        path=directory,
        kind="Hugging Face model",
        tokenizer=tokenizer,
    )


def _of_fms(path: Path, option: str, model_config: ModelRecipe | None, where: str) -> FoundModel:
    if model_config is None:
        raise UserError(
            f"{option} {path} is a {model_files.KIND}, which does not hold its config: name it (--initial-config of "
            "finetune), or make a Hugging Face directory with python -m tools.import_checkpoint"
        )
    fms_model = load_fms.open_checkpoint(path, model_config, where)
    return FoundModel(
        directory=path if path.is_dir() else path.parent,
        model_config=model_config,
        vocab_size=fms_model.vocab_size,
        read=fms_model.read,
        path=path,
        kind=model_files.KIND,
    )


def _of_checkpoint(directory: Path, base: Path | None) -> FoundModel:
    commit = read_commit(directory)
    for key in ("model", "vocab_size", "tokenizer"):
        if key not in commit:
            raise UserError(f"{directory / COMMIT} must have the key {key}, which is missing")
    model_config = recipe.load(ARCHITECTURES, commit["model"], f"{directory / COMMIT}: model")
    table = key_table.build(model_config, commit["vocab_size"])
    found = None
    if "adapter" in commit:

        def find_base(path: Path, config: Path | None) -> tuple[Path, Read]:
            model = find(path, "--base", None if config is None else model_config, f"{config}: ")
            return model.path, model.read

        found = adapter.find_base(directory, commit, base, find_base)
        adapter.check_keys(directory, table, found)
    else:
        for key in dcp.keys_of(directory):
            if key.startswith("model.") and key.removeprefix("model.") not in table.by_key:
                raise UserError(
                    f"{directory} must hold only the tensors of its model of {len(table.layers)} layers, found {key}"
                )
    return FoundModel(
        directory=directory,
        model_config=model_config,
        vocab_size=commit["vocab_size"],
        read=dcp.model_reader(directory) if found is None else found.merged_reader(table),
        commit=commit,
        path=directory,
        kind="checkpoint",
        tokenizer=commit["tokenizer"],
        adapter=found,
    )


def _not_a_model(path: Path, option: str) -> UserError:
    found = "is another file or directory" if path.exists() else "does not exist"
    return UserError(
        f"{option} {path} must be a milestone's manifest, a checkpoint, a run directory, an export's manifest, the "
        f"directory of a Hugging Face model or a {model_files.KIND}, and {found}"
    )


def read_weights(directory: Path, merge: bool, base: Path | None) -> tuple[Read, Adapter | None]:
    """(reader, adapters) of a checkpoint: with LoRA, the weights of the base with the adapters added.

    `merge`: False if the adapters stay apart as well. `base`: the path of the base, if it was moved. Raises UserError
    if there are no adapters to which these could apply, or a file of the base changed.
    """
    if "adapter" not in read_commit(directory):
        for given, key in ((not merge, "convert.merge must be true"), (base, "--base must be left out")):
            if given:
                raise UserError(f"{key} for a model that was not trained with LoRA, as {directory}")
        return dcp.model_reader(directory), None
    found = find(directory, base=base)
    assert found.adapter is not None
    above: Adapter | None = found.adapter  # the adapters, those of their base, and so on
    while above is not None and (above.base / COMMIT).exists():  # other models were hashed when they were found
        verify(above.base, read_commit(above.base))
        above = find(above.base).adapter
    return found.read, found.adapter

"""Parity of exported LoRA adapters with the trained ones: peft's names and shapes, all bits, whole models' logits.

transformers' model gets the weights of the base as they were frozen, and peft the adapters of the export. Ours has the
adapters beside the frozen matrices, as in training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stages.lib.huggingface import export, weight_files
from stages.lib.huggingface.export import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_config, peft_tensors
from stages.lib.model.lora import adapter_shapes, add_adapters
from stages.lib.model.transformer import Transformer
from stages.lib.parity import parity
from stages.lib.parity.file_parity import compare_contents
from stages.lib.parity.parity import ParityError
from stages.lib.parity.tensor_parity import compare_bits, compare_with_library, empty_exported

if TYPE_CHECKING:
    from stages.lib.checkpoints.adapter import Adapter
    from stages.lib.parity.tensor_parity import Export
    from stages.lib.tokens.corpus import Corpus


def compare(
    exported: Export, folder: Path, adapter: Adapter, corpus: Corpus, tolerance: float, whole: bool
) -> dict[str, Any]:
    """Compare the adapters in a folder with those of the checkpoint; returns the entries of parity.json.

    `exported`: the export of the merged model. `whole`: compare logits, too, which holds both models in memory. Raises
    ParityError naming what differs first.
    """
    compare_contents(folder, {ADAPTER_CONFIG: adapter_config(exported.table, adapter.recipe, adapter.base_name)})
    with weight_files.opened(folder / ADAPTER_WEIGHTS) as file:
        found = {name: file.get_tensor(name) for name in sorted(file.keys())}
    _compare_names({name: list(tensor.shape) for name, tensor in found.items()}, exported.directory, folder)
    for name, tensor in peft_tensors(exported.table, adapter.recipe, adapter.tensors).items():
        compare_bits(f"{ADAPTER_WEIGHTS}: {name}", tensor, found[name])
    if not whole:
        return {"checks": ["config", "tensors"]}
    rows = parity.rows(corpus, exported.model_config.max_position_embeddings)
    logits = parity.compare_logits(_ours(exported, adapter), _theirs(exported, folder, adapter), [rows], tolerance)
    return {"checks": ["config", "tensors", "logits of peft"], "logits": logits}


def _compare_names(found: dict[str, list[int]], directory: Path, folder: Path) -> None:
    """Raise ParityError unless the tensors are those that peft expects, which only warns of a name it does not know."""
    import peft

    config = peft.PeftConfig.from_pretrained(str(folder))
    config.base_model_name_or_path = None  # peft would warn that this model has another name
    empty = peft.get_peft_model(empty_exported(directory), config)
    # otherwise it looks for the config of the base on the Hub
    state = peft.get_peft_model_state_dict(empty, save_embedding_layers=False)
    compare_with_library("peft", {name: list(tensor.shape) for name, tensor in state.items()}, found)


def _ours(exported: Export, adapter: Adapter) -> Transformer:
    """Our model in float32, with the adapters beside its frozen matrices."""
    with torch.device("meta"):
        model = Transformer(exported.model_config, exported.vocab_size)
        add_adapters(model, adapter.recipe)
    table = exported.table
    state: dict[str, torch.Tensor] = {}
    for group in table.groups:
        state |= export.cut(adapter.read_frozen([weight.key for weight in group]), table)
    state |= adapter.tensors(list(adapter_shapes(table, adapter.recipe)))
    state |= {key: state[weight.key] for key, weight in table.by_key.items()}
    model.load_state_dict({key: tensor.float() for key, tensor in state.items()}, assign=True)
    return model.eval()


def _theirs(exported: Export, folder: Path, adapter: Adapter) -> Any:
    """transformers' model of the base in float32, with the adapters as peft loads them."""
    import peft
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_config(parity.config_of(exported.directory), dtype=torch.float32)
    table = exported.table
    state: dict[str, torch.Tensor] = {}
    for group in table.groups:
        frozen = export.cut(adapter.read_frozen([weight.key for weight in group]), table)
        state |= {name: tensor.float() for name, tensor in export.hf_tensors(frozen, group).items()}
    (head,) = table.head.part_shapes()
    expected = parity.stored_weights(base).keys() - {head if table.tied else None}  # then it is the embedding
    if wrong := sorted(expected ^ state.keys()):
        raise ParityError(f"transformers must have the tensors of the base, and differs in {wrong[0]}")
    parity.fill(base, state)
    base.tie_weights()
    return peft.PeftModel.from_pretrained(base, str(folder)).eval()

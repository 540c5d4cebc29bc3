"""Load a Hugging Face directory on the ranks that torchrun starts, sharded over several meshes, and compare it."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stages.lib import stage
from stages.lib.distributed.process_group import process_group
from stages.lib.huggingface import load_hf
from stages.lib.model.transformer import Transformer

MESHES = ((2,), (1, 2), (2, 1))  # on two axes: replicate, shard


def loaded(found, sizes):
    """The model of a `HuggingFaceModel`, sharded by FSDP over a mesh and filled."""
    with torch.device("meta"):
        model = Transformer(found.model_config, found.vocab_size)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])
    for block in model.base_model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    load_hf.load_into(model.named_parameters(), found.read)
    return model


if __name__ == "__main__":
    home = Path(sys.argv[1])
    expected = torch.load(home / "expected.pt")
    with process_group():
        found = load_hf.open_directory(home / "export")
        for sizes in MESHES:
            model = loaded(found, sizes)
            for name, tensor in model.state_dict().items():
                assert torch.equal(tensor.full_tensor(), expected[name]), f"{name} differs on the mesh {sizes}"
            rows = len(model.base_model.embedding.weight.to_local())
            (home / f"{dist.get_rank()}-{sizes}.rows").write_text(str(rows))
    stage.leave(0)

"""A Hugging Face Llama's safetensors as FMS's tensors: the inverse of stages/lib/huggingface/export.py.

Nothing is read before it is asked for, and then one tensor at a time, so that a model of 70B parameters needs the
memory of its largest matrix beside that of the ranks' own shards.
"""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.lib import files, manifest
from stages.lib.distributed.local_shards import local_rows
from stages.lib.errors import UserError
from stages.lib.huggingface import config_json, weight_files
from stages.lib.model.llama import ModelRecipe

CONFIG = "config.json"
EMBEDDING = "base_model.embedding.weight"
ENDS = {  # FMS's keys outside of the layers
    EMBEDDING: "model.embed_tokens.weight",
    "base_model.dec_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
QUERY, KEY, VALUE = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
LAYER = {  # and in a layer: what lies in one of FMS's matrices, from the top down
    "ln": ("input_layernorm",),
    "attn.in_proj.qkv_fused": (QUERY, KEY, VALUE),
    "attn.dense": ("self_attn.o_proj",),
    "ff_ln": ("post_attention_layernorm",),
    "ff_sub_layer.wg1_fused": ("mlp.gate_proj", "mlp.up_proj"),
    "ff_sub_layer.w2": ("mlp.down_proj",),
}


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A Hugging Face directory: `recipe`, `vocabulary`, and the file (a name) in which each tensor lies."""

    directory: Path
    recipe: ModelRecipe
    vocab_size: int
    places: dict[str, str]

    def read(self, keys):
        """{FMS key: CPU tensor} in the dtype of the files; `head.weight` is the embedding where they are tied."""
        return {key: self._join(key) for key in keys}

    @functools.cached_property
    def digest(self):
        """The sha256 over the hashes of config.json and the weights' files, which are all read for it."""
        names = sorted({CONFIG, *self.places.values()})
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # sha256 runs without the interpreter's lock
            hashes = pool.map(files.sha256_file, [self.directory / name for name in names])
        return manifest.digest_of(dict(zip(names, hashes, strict=True)))

    def _join(self, key):
        parts = [self._read(name) for name in names_of(key, self.recipe)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _read(self, name):
        with weight_files.opened(self.directory / self.places[name]) as file:
            tensor = file.get_tensor(name)
        for part, heads in ((QUERY, self.recipe.num_attention_heads), (KEY, self.recipe.kv_heads)):
            if name.endswith(f"{part}.weight"):
                return rotate_rows(tensor, heads)
        return tensor


def open_directory(path):
    """The `Imported` of a Hugging Face directory. Raises UserError where our Llama cannot be this model."""
    directory = Path(path)
    recipe, vocab_size = config_json.shape_of(files.read_json(directory / CONFIG), directory / CONFIG)
    places = weight_files.places(directory)
    head, embedding = ENDS["head.weight"], ENDS[EMBEDDING]
    if recipe.tie_word_embeddings and head in places:  # some write it all the same
        if not weight_files.are_equal(directory, places, head, embedding):
            raise UserError(f"{directory / CONFIG}: tie_word_embeddings must be false, since {head} is not {embedding}")
        del places[head]
    weight_files.check(directory, places, _shapes(recipe, vocab_size))
    return Imported(directory=directory, recipe=recipe, vocab_size=vocab_size, places=places)


def names_of(key, recipe):
    """The names in transformers of what lies in one of FMS's tensors, from the top down."""
    if key == "head.weight" and recipe.tie_word_embeddings:
        key = EMBEDDING
    if key in ENDS:
        return [ENDS[key]]
    _, _, number, name = key.removesuffix(".weight").split(".", 3)  # base_model.layers.N.
    return [f"model.layers.{number}.{part}.weight" for part in LAYER[name]]


def rotate_rows(weight, heads):
    """Rows of a head from halves (0, 2, ..., 1, 3, ...) to neighbours (0, 1), (2, 3), ...: [heads * hd, D] both."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@torch.no_grad()
def load_into(model, read):
    """Fill the parameters of a Llama, sharded by rows (DTensor) or whole, in place; each rank copies its own rows.

    `read(keys)` gives {FMS key: whole tensor} and is asked for one key at a time, on every rank. Raises UserError where
    a tensor has another shape than the parameter.
    """
    for name, parameter in model.named_parameters():
        tensor = read([name])[name]
        if tensor.shape != parameter.shape:
            raise UserError(f"{name} must have the shape {list(parameter.shape)}, found {list(tensor.shape)}")
        local, first = local_rows(parameter)
        local.copy_(tensor[first : first + len(local)])


def _shapes(recipe, vocab_size):
    """{tensor: its shape} of a Llama in transformers."""
    width, hidden, keys = recipe.hidden_size, recipe.intermediate_size, recipe.kv_heads * recipe.head_dim
    layer = {
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), [width]),
        **dict.fromkeys((QUERY, "self_attn.o_proj"), [width, width]),
        **dict.fromkeys((KEY, VALUE), [keys, width]),
        **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), [hidden, width]),
        "mlp.down_proj": [width, hidden],
    }
    shapes = {ENDS[EMBEDDING]: [vocab_size, width], ENDS["base_model.dec_norm.weight"]: [width]}
    if not recipe.tie_word_embeddings:
        shapes[ENDS["head.weight"]] = [vocab_size, width]
    for number in range(recipe.num_hidden_layers):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return shapes

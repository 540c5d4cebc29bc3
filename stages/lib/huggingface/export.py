"""From FMS's tensors to the files that transformers reads as a `LlamaForCausalLM`.

FMS keeps queries, keys and values in one matrix, gate and up in another, and rotates neighbours 2i and 2i + 1 of a
head; transformers keeps five matrices and rotates i and i + hd / 2, so the rows of queries and keys are permuted.
FMS's own `convert_to_hf` swaps gate and up and permutes the wrong way round, and says nothing.
"""

import warnings

import torch

from stages.lib import files
from stages.lib.checkpoints import dcp
from stages.lib.errors import UserError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MEGABYTE = 1 << 20


def config_of(recipe, tokenizer, dtype):
    """The config.json of a model; `tokenizer`: what the corpus says of it (vocabulary, bos, eos, bos_added)."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer["vocab_size"],
        "hidden_size": recipe.hidden_size,
        "intermediate_size": recipe.intermediate_size,
        "num_hidden_layers": recipe.num_hidden_layers,
        "num_attention_heads": recipe.num_attention_heads,
        "num_key_value_heads": recipe.kv_heads,
        "head_dim": recipe.head_dim,
        "max_position_embeddings": recipe.max_position_embeddings,
        "rms_norm_eps": recipe.rms_norm_eps,
        "rope_theta": recipe.rope_theta,
        "rope_scaling": _scaling_of(recipe.rope_scaling),
        "tie_word_embeddings": recipe.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": recipe.initializer_range,
        "use_cache": True,
        "bos_token_id": first_token(tokenizer),
        "eos_token_id": tokenizer["eos"],
        "dtype": dtype,
    }


def _scaling_of(scaling):
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }


def first_token(tokenizer):
    """The id that stands before a document's first token in training: BOS, or the EOS of the document before."""
    return tokenizer["bos"] if tokenizer["bos_added"] else tokenizer["eos"]


def embedding_tensors(tensors, vocab_size):
    """The embedding, cut to the vocabulary. `tensors`: FMS's `base_model.embedding.weight`."""
    return {"model.embed_tokens.weight": _cut(tensors["base_model.embedding.weight"], vocab_size)}


def layer_tensors(tensors, recipe, number):
    """One layer's nine tensors under transformers' names. `tensors`: FMS's, by their keys in the checkpoint."""
    fms, hf = f"base_model.layers.{number}.", f"model.layers.{number}."
    rows = [recipe.num_attention_heads * recipe.head_dim] + 2 * [recipe.kv_heads * recipe.head_dim]
    query, key, value = tensors[fms + "attn.in_proj.qkv_fused.weight"].split(rows)
    gate, up = tensors[fms + "ff_sub_layer.wg1_fused.weight"].chunk(2)
    return {
        hf + "input_layernorm.weight": tensors[fms + "ln.weight"],
        hf + "self_attn.q_proj.weight": unrotate(query, recipe.num_attention_heads),
        hf + "self_attn.k_proj.weight": unrotate(key, recipe.kv_heads),
        hf + "self_attn.v_proj.weight": value,
        hf + "self_attn.o_proj.weight": tensors[fms + "attn.dense.weight"],
        hf + "post_attention_layernorm.weight": tensors[fms + "ff_ln.weight"],
        hf + "mlp.gate_proj.weight": gate,
        hf + "mlp.up_proj.weight": up,
        hf + "mlp.down_proj.weight": tensors[fms + "ff_sub_layer.w2.weight"],
    }


def unrotate(weight, heads):
    """Rows of a head from neighbours (0, 1), (2, 3), ... to halves (0, 2, ..., 1, 3, ...): [heads * hd, D] both."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def head_tensors(tensors, recipe, vocab_size):
    """The last norm, and the head unless it is the embedding."""
    made = {"model.norm.weight": tensors["base_model.dec_norm.weight"]}
    if not recipe.tie_word_embeddings:
        made["lm_head.weight"] = _cut(tensors["head.weight"], vocab_size)
    return made


def _cut(weight, vocab_size):
    if weight.shape[0] < vocab_size:
        raise UserError(f"the model must have a row for each of {vocab_size} tokens, and has {weight.shape[0]}")
    return weight[:vocab_size]


def layer_keys(number):
    """FMS's keys of one layer."""
    names = ("ln", "attn.in_proj.qkv_fused", "attn.dense", "ff_ln", "ff_sub_layer.wg1_fused", "ff_sub_layer.w2")
    return [f"base_model.layers.{number}.{name}.weight" for name in names]


def head_keys(recipe):
    """FMS's keys of the last norm, and of the head unless it is tied."""
    return ["base_model.dec_norm.weight"] + ([] if recipe.tie_word_embeddings else ["head.weight"])


def write_weights(directory, recipe, vocab_size, read, dtype, shard_mb):
    """Write safetensors of at most `shard_mb` MiB (a larger tensor stands alone), and an index where they are several.

    `read(keys)` gives {key: tensor} of FMS's keys, and is asked for one layer at a time. Peak memory: one shard and one
    layer. Returns the number of parameters.
    """
    writer = _ShardWriter(directory, shard_mb * MEGABYTE, DTYPES[dtype])
    writer.add(embedding_tensors(read(["base_model.embedding.weight"]), vocab_size))
    for number in range(recipe.num_hidden_layers):
        writer.add(layer_tensors(read(layer_keys(number)), recipe, number))
    writer.add(head_tensors(read(head_keys(recipe)), recipe, vocab_size))
    writer.finish()
    return writer.parameters


class _ShardWriter:
    def __init__(self, directory, limit, dtype):
        self.directory, self.limit, self.dtype = directory, limit, dtype
        self.shards = []  # the names of the tensors of each shard written
        self.tensors, self.size = {}, 0
        self.total_size = self.parameters = 0

    def add(self, tensors):
        for name, given in tensors.items():
            tensor = given.to(self.dtype).contiguous().clone()  # a view would keep its whole matrix in memory
            if self.tensors and self.size + tensor.nbytes > self.limit:
                self._flush()
            self.tensors[name] = tensor
            self.size += tensor.nbytes
            self.total_size += tensor.nbytes
            self.parameters += tensor.numel()

    def _flush(self):
        from safetensors.torch import save_file

        save_file(self.tensors, self.directory / f"shard-{len(self.shards)}", metadata={"format": "pt"})
        self.shards.append(list(self.tensors))
        self.tensors, self.size = {}, 0

    def finish(self):
        """Write the last shard, give the shards the names that transformers knows, and write the index."""
        self._flush()
        count = len(self.shards)
        names = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
        if count == 1:
            names = [WEIGHTS]
        for number, name in enumerate(names):
            (self.directory / f"shard-{number}").rename(self.directory / name)
        if count > 1:
            where = {tensor: name for name, shard in zip(names, self.shards, strict=True) for tensor in shard}
            index = {"metadata": {"total_size": self.total_size}, "weight_map": dict(sorted(where.items()))}
            files.write_json(self.directory / INDEX, index)


def checkpoint_reader(directory):
    """A `read` for `write_weights` over a checkpoint's model."""

    def read(keys):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as meant: one process
            tensors = dcp.load_tensors(directory, [f"model.{key}" for key in keys])
        return {key: tensors[f"model.{key}"] for key in keys}

    return read


def rounded_state(recipe, vocab_size, read, dtype):
    """Our own model's float32 state dict with the weights as exported: rounded to `dtype`, cut to the vocabulary."""
    keys = ["base_model.embedding.weight", *head_keys(recipe)]
    for number in range(recipe.num_hidden_layers):
        keys += layer_keys(number)
    state = {key: tensor.to(DTYPES[dtype]).float() for key, tensor in read(keys).items()}
    for key in ("base_model.embedding.weight", "head.weight"):
        if key in state:
            state[key] = _cut(state[key], vocab_size)
    if recipe.tie_word_embeddings:
        state["head.weight"] = state["base_model.embedding.weight"]
    return state


def write_config(directory, config):
    """Write config.json, and generation_config.json with the ids at which generation begins and ends."""
    files.write_json(directory / "config.json", config)
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id")}
    files.write_json(directory / "generation_config.json", generation)

"""Make a Hugging Face directory of a checkpoint that ibm-fms or fms-fsdp wrote.

    python -m tools.import_checkpoint checkpoints/step_1000_ckp models/mine --model-config config.json
    python -m tools.import_checkpoint step_1000_ckp.pth models/mine --tokenizer models/Llama-3.2-1B \\
        --model-config '{"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
                         "num_key_value_heads": 8, "intermediate_size": 8192, "rope_theta": 500000}'

SOURCE is a DCP directory, a file of torch.save (.pth, .pt, .bin) or of safetensors, a directory of such files, or any
model that tools.generate reads, which is then written with one name per tensor and in files of --shard-mb. OUTPUT must
not exist, or be empty. The result is what transformers, `initial: {path: OUTPUT}` and tools.generate read. The weights
have the bits of the checkpoint, unless --dtype rounds them. A model that was trained here is better exported by
`stages.convert`, which compares the two.

A checkpoint of ibm-fms or fms-fsdp does not hold its config. --model-config is a Hugging Face config.json, or the keys
of `runs.NAME.model` as JSON, where bos_token_id, eos_token_id and pad_token_id may stand too. It is compared with the
tensors' shapes, from which rope_theta, rope_scaling, rms_norm_eps, max_position_embeddings and num_attention_heads (of
num_key_value_heads only the ratio to it) do not follow: a wrong one of these is not noticed, and gives another model.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import files, recipe, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.model.architectures import ARCHITECTURES

if TYPE_CHECKING:
    import torch

    from stages.lib.checkpoints.find_model import FoundModel
    from stages.lib.model.model_recipe import ModelRecipe

DTYPES = ("bfloat16", "float32")
TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "chat_template.jinja",
)
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def run(arguments: argparse.Namespace) -> None:
    """Read, write, and read the result's headers back."""
    output = arguments.directory
    if os.path.lexists(output) and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"OUTPUT {output} exists: it must be a new or an empty directory")
    if arguments.shard_mb < 1:
        raise UserError(f"--shard-mb must be at least 1, got {arguments.shard_mb}")
    if arguments.tokenizer is not None and not (arguments.tokenizer / TOKENIZER).is_file():
        raise UserError(f"--tokenizer {arguments.tokenizer} must be a directory with {TOKENIZER}")
    from stages.lib.checkpoints import find_model, model_files
    from stages.lib.huggingface import load_hf

    content, model_config = given_config(arguments.model_config)
    if model_config is None and model_files.find_fms(arguments.source) is not None:
        raise UserError(
            f"--model-config is missing: {arguments.source} is a {model_files.KIND}, which does not hold its config"
        )
    checkpoint = find_model.find(arguments.source, "SOURCE", model_config, where(arguments.model_config))
    if model_config is not None and checkpoint.kind != model_files.KIND:
        raise UserError(
            f"--model-config must be omitted for the {checkpoint.kind} {checkpoint.directory}, which holds its config"
        )
    if content.get("vocab_size") not in (None, checkpoint.vocab_size):
        raise UserError(
            f"{where(arguments.model_config)}vocab_size is {content['vocab_size']}, but {checkpoint.vocab_size} in "
            f"{arguments.source}"
        )
    with files.atomic_directory(arguments.directory) as making:
        parameters, dtype = write(making, checkpoint, arguments.dtype, arguments.shard_mb, ids_of(checkpoint, content))
        for name in TOKENIZER_FILES:
            if (source := (arguments.tokenizer or checkpoint.path) / name).is_file():
                shutil.copyfile(source, making / name)
        load_hf.open_directory(making)
        # one mode for all files (safetensors lets only the owner read), and flushed to the disk
        mode = (making / "config.json").stat().st_mode
        for path in making.iterdir():
            path.chmod(mode)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    logger.info("%s: %d parameters in %s", arguments.directory, parameters, dtype)


def where(given: str | None) -> str:
    """Return what stands before a key of --model-config in messages."""
    return "--model-config " if given is None or given.lstrip().startswith("{") else f"{given}: "


def given_config(given: str | None) -> tuple[dict[str, Any], ModelRecipe | None]:
    """Return the content of --model-config and the config in it. Raises UserError if it is not valid."""
    from stages.lib.huggingface import config_json

    if given is None:
        return {}, None
    if given.lstrip().startswith("{"):
        try:
            content = files.parse_json(given)
        except ValueError as error:
            raise UserError(f"--model-config must be JSON or the path of a config.json: {error}") from None
        keys = {key: value for key, value in content.items() if key not in (*IDS, "vocab_size")}
        return content, recipe.load(ARCHITECTURES, keys, "--model-config")
    path = config_json.file_of(given)
    content = files.read_json_object(path)
    return content, config_json.read_config(content, path)[0]


def ids_of(checkpoint: FoundModel, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of special tokens for config.json: those given, or those of a Hugging Face source."""
    source = checkpoint.directory / "config.json"
    if not content and source.is_file():
        content = files.read_json_object(source)
    return {name: content.get(name) for name in IDS}


def write(
    directory: Path, checkpoint: FoundModel, dtype: str | None, shard_mb: int, ids: dict[str, Any]
) -> tuple[int, str]:
    """Write weights and settings; return the number of parameters and the dtype of config.json."""
    import torch

    from stages.lib.huggingface import config_json, export

    dtypes: set[torch.dtype] = set()

    def read(keys: Sequence[str]) -> Mapping[str, torch.Tensor]:
        tensors = checkpoint.read(keys)
        dtypes.update(tensor.dtype for tensor in tensors.values())
        return tensors

    parameters = export.write_weights(directory, checkpoint.model_config, checkpoint.vocab_size, read, dtype, shard_mb)
    # transformers loads every weight in the dtype of config.json: the one that holds all values
    name = dtype or str(functools.reduce(torch.promote_types, dtypes)).removeprefix("torch.")
    tokenizer = {"vocab_size": checkpoint.vocab_size, "bos": None, "eos": None, "bos_added": True}
    config = config_json.config_of(checkpoint.model_config, tokenizer, name) | ids
    for file_name, settings in config_json.files_of(config).items():
        files.write_json(directory / file_name, settings)
    return parameters, name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("tools.import_checkpoint", __doc__)
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="the checkpoint")
    add("directory", type=Path, metavar="OUTPUT", help="the Hugging Face directory to write")
    add("--model-config", metavar="FILE|JSON", help="config.json of a checkpoint that does not hold it, or its keys")
    add("--tokenizer", type=Path, metavar="DIR", help="directory whose tokenizer is copied (default: that of SOURCE)")
    add("--dtype", choices=DTYPES, help="dtype of the weights written (default: that of each tensor)")
    add("--shard-mb", type=int, default=1000, metavar="N", help="largest safetensors file in MiB (default: 1000)")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

"""Convert a checkpoint to a directory that transformers loads, and compare the two models.

    python -m stages.convert --model results/runs/base/models/00000300.json \\
        --corpus results/tokens/main/manifest.json --tokenizer results/tokenizers/main/manifest.json \\
        --output results/runs/base/export/00000300/manifest.json

The directory of --output then holds config.json, generation_config.json, safetensors, the tokenizer, and parity.json
with the checks that ran and the differences between the export and our model: of the blocks' outputs, logits, greedy
text and token ids. If they are too large, parity.json names what differs first, no manifest is written, and the stage
fails; `evaluate` refuses the directory. Layers are written and compared one at a time: memory does not grow with them.

LoRA's adapters are added to the weights of their base, which is found where the training found it, or at --base. With
`merge: false` they are also in the folder adapter, in peft's format, and compared as peft loads them.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import files, manifest, stage, up_to_date
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.huggingface.export_directory import ADAPTER, KEPT, PARITY, begin, publish
from stages.lib.huggingface.weight_files import CONFIG
from stages.lib.log import logger
from stages.lib.manifest import CorpusManifest, ModelManifest, TokenizerManifest
from stages.lib.manifest_types import ExportCounts, ExportIdentity, ExportRecord, KnownExport
from stages.lib.model import key_table
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import identity, operation

if TYPE_CHECKING:
    from stages.lib.checkpoints.adapter import Adapter
    from stages.lib.huggingface.export import Read

    Weights = tuple[Read, Adapter | None]

TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, kw_only=True)
class ConvertRecipe:
    """Options of the export and its checks."""

    dtype: str = identity("bfloat16", choices=["bfloat16", "float32"])
    """The dtype of the exported weights."""

    shard_mb: int = identity(1000, minimum=1)
    """The largest safetensors file, in MiB; a larger tensor has its own file."""

    tolerance: float = identity(1e-4, above=0)
    """The largest allowed difference of float32 logits at logits of standard deviation 1 (or less), and of the outputs
    of blocks relative to their standard deviation. A larger one passes if float64 shows that it is rounding."""

    whole_model_parameters: int = operation(100_000_000, minimum=0)
    """Models with at most so many parameters are also compared whole, in logits and greedy text. That holds two float32
    models in memory, 8 bytes per parameter; larger ones are compared block by block, in the memory of a few layers."""

    merge: bool = identity(True)
    """For a run with `finetune.lora`. true: the export is a plain model, the base with the adapters added. false: so it
    is, since that model is what is scored, and the folder `adapter` of the export has the adapters in peft's format,
    with the name of their base."""

    tokenizer_check_mb: float = identity(16.0, above=0)
    """Validation text whose token ids are compared, in MB per source."""


def run(arguments: argparse.Namespace, recipe: ConvertRecipe) -> None:
    """Convert, check, and write the manifest."""
    from stages.lib.checkpoints import find_model

    clock = manifest.Clock(arguments.code)
    model = manifest.read(arguments.model, *manifest.MODELS)
    corpus = manifest.read(arguments.corpus, "index")
    tokenizer = manifest.read(arguments.tokenizer, "train_tokenizer")
    check_inputs(model, corpus, tokenizer)
    expected: KnownExport = {
        "recipe": recipes.written(recipe, "identity"),
        "model": model.digest,
        "tokenizer": tokenizer.digest,
        "corpus": corpus.digest,
        "step": model.identity["step"],
        "tokens": model.identity["tokens"],
        "seq_len": model.identity["recipe"]["seq_len"],
    }
    directory = arguments.output.parent
    files.clear_leftovers_in(directory)
    # parity.json is not an output (its figures depend on rounding); without it nothing is scored: convert again
    passed = files.read_cache(directory / PARITY).get("passed") is True
    if passed and up_to_date.restore(directory / KEPT, arguments.output, expected, clock.record()):
        return
    weights = find_model.read_weights(checkpoint_of(model), recipe.merge, arguments.base)
    partial = begin(directory, arguments.output)
    try:
        counts = write_export(partial, recipe, weights, model, corpus, tokenizer)
        parity = check_parity(partial, recipe, weights, model, corpus, tokenizer, directory)
        outputs = publish(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    exported: ExportIdentity = {**expected, "outputs": outputs}
    described = manifest.described([directory / PARITY], directory)
    record: ExportRecord = {**clock.record(), **counts, "parity": parity, "files": described}
    for path in (directory / KEPT, arguments.output):
        manifest.write(path, arguments.stage_name, exported, record)


def check_inputs(model: ModelManifest, corpus: CorpusManifest, tokenizer: TokenizerManifest) -> None:
    """Raise UserError if the three do not belong together, or a file of the checkpoint is missing or changed."""
    if corpus.identity["tokenizer"]["digest"] != tokenizer.digest:
        raise UserError(f"--tokenizer {tokenizer.path} is not the tokenizer of --corpus {corpus.path}")
    if model.identity["corpus"] != corpus.digest:
        raise UserError(f"--model {model.path} was trained on a different corpus than --corpus {corpus.path}")
    if model.identity["tokenizer"] != tokenizer.digest:
        raise UserError(f"--model {model.path} was trained on a different tokenizer than --tokenizer {tokenizer.path}")
    for name, described in model.identity["outputs"].items():
        path = model.output(name)
        if files.sha256_file(path) != described["sha256"]:
            raise UserError(
                f"{path} changed since {model.path} was written; delete the checkpoint {path.parent} and {model.path}, "
                "and run the workflow again"
            )


def write_export(
    directory: Path,
    recipe: ConvertRecipe,
    weights: Weights,
    model: ModelManifest,
    corpus: CorpusManifest,
    tokenizer: TokenizerManifest,
) -> ExportCounts:
    """Write weights, config and tokenizer; returns the numbers of parameters (all, and per token) and of token ids."""
    from stages.lib.huggingface import export, tokenizer_files
    from stages.lib.model import flops

    model_config, described, (read, adapter) = model_config_of(model), corpus.identity["tokenizer"], weights
    vocab_size = rows_of(model, corpus)
    counts: ExportCounts = {
        "parameters": export.write_weights(directory, model_config, vocab_size, read, recipe.dtype, recipe.shard_mb),
        "vocab_size": vocab_size,
    }
    if model_config.router is not None:
        counts["active_parameters"] = flops.active_count(model_config, vocab_size)
    if adapter is not None and not recipe.merge:
        table = key_table.build(model_config, vocab_size)
        export.write_adapters(directory / ADAPTER, table, adapter.recipe, adapter.tensors, adapter.base_name)
    tokenizer_files.copy(directory, tokenizer, described["bos_added"], model.identity.get("template"))
    for name, content in settings_of(recipe, model, corpus, tokenizer).items():
        files.write_json(directory / name, content)
    return counts


def settings_of(
    recipe: ConvertRecipe, model: ModelManifest, corpus: CorpusManifest, tokenizer: TokenizerManifest
) -> dict[str, dict[str, Any]]:
    """Return {name: content} of config.json, generation_config.json and tokenizer_config.json.

    The token that fills batches up is EOS for the tokenizer alone if no token is unknown: transformers would not train
    the embedding of a model's pad_token_id any further. With a chat template, the texts of special tokens are these
    tokens: the template writes EOS as text.
    """
    from stages.lib.huggingface import config_json, tokenizer_files
    from stages.lib.tokenizer.tokenizer import special_tokens

    model_config, pad = model_config_of(model), tokenizer.identity.get("unk")
    described, rows = corpus.identity["tokenizer"], rows_of(model, corpus)
    config = config_json.config_of(model_config, {**described, "vocab_size": rows}, recipe.dtype, pad)
    package = files.read_json_object(tokenizer.output(TOKENIZER_CONFIG))
    pad_token = special_tokens(tokenizer)["pad_token"]
    package |= {"pad_token": pad_token, "model_max_length": model_config.max_position_embeddings}
    if tokenizer_files.is_sentencepiece_bpe(tokenizer):
        package["add_prefix_space"] = False  # llama.cpp's converter reads it, and puts a space before a text without it
    if "template" in model.identity:
        package["split_special_tokens"] = False
    settings = config_json.files_of(config) | {TOKENIZER_CONFIG: package}
    if rows > described["vocab_size"]:  # ids of no token
        settings[config_json.GENERATION_CONFIG]["suppress_tokens"] = list(range(described["vocab_size"], rows))
    return settings


def model_config_of(model: ModelManifest) -> ModelRecipe:
    """The model config of a milestone's manifest."""
    where = f"{model.path}: identity.recipe.model"
    return recipes.load(ARCHITECTURES, model.identity["recipe"]["model"], where)


def rows_of(model: ModelManifest, corpus: CorpusManifest) -> int:
    """The rows of the embedding in the checkpoint of a milestone's manifest: of the tokenizer's ids, or more."""
    from stages.lib.checkpoints.commit import read_commit

    rows: int = read_commit(checkpoint_of(model)).get("vocab_size", corpus.identity["tokenizer"]["vocab_size"])
    return rows


def checkpoint_of(model: ModelManifest) -> Path:
    """The directory of the checkpoint of a milestone's manifest."""
    return model.directory / model.identity["checkpoint"]


def check_parity(
    partial: Path,
    recipe: ConvertRecipe,
    weights: Weights,
    model: ModelManifest,
    corpus: CorpusManifest,
    tokenizer: TokenizerManifest,
    directory: Path,
) -> dict[str, Any]:
    """Compare the export in `partial` with our model and tokenizer, write parity.json, and return its `logits`.

    Raises ParityError after writing parity.json with `passed: false` to `directory`.
    """
    from stages.lib.parity import tokenizer_parity
    from stages.lib.parity.parity import ParityError

    report: dict[str, Any] = {"passed": False, "failure": None, "dtype": recipe.dtype, "tolerance": recipe.tolerance}
    try:
        from stages.lib.huggingface import tokenizer_files
        from stages.lib.parity import file_parity

        described, settings = corpus.identity["tokenizer"], settings_of(recipe, model, corpus, tokenizer)
        contents = tokenizer_files.contents(tokenizer, described["bos_added"], model.identity.get("template"))
        file_parity.compare_contents(partial, settings | contents)
        file_parity.compare_shapes(partial, key_table.build(model_config_of(model), rows_of(model, corpus)))
        file_parity.compare_loaded(partial, settings[CONFIG], model_config_of(model))
        characters, template = int(recipe.tokenizer_check_mb * 1e6), model.identity.get("template")
        report["tokenizer"] = tokenizer_parity.compare(partial, corpus, tokenizer, characters, template)
        _compare_models(partial, recipe, weights, model, corpus, report)
    except ParityError as error:
        report["failure"] = str(error)
        files.write_json(directory / PARITY, report)
        raise
    report["passed"] = True
    files.write_json(partial / PARITY, report)
    logger.info("parity: %s", report["logits"])
    return report["logits"]


def _compare_models(
    partial: Path,
    recipe: ConvertRecipe,
    weights: Weights,
    model: ModelManifest,
    corpus: CorpusManifest,
    report: dict[str, Any],
) -> None:
    from stages.lib.parity import adapter_parity, model_parity, tokenizer_parity
    from stages.lib.parity.parity import NEW_TOKENS
    from stages.lib.parity.tensor_parity import Export
    from stages.lib.tokens.corpus import Corpus

    read, adapter = weights
    exported = Export(
        directory=partial,
        model_config=model_config_of(model),
        vocab_size=rows_of(model, corpus),
        dtype=recipe.dtype,
        read=read,
    )
    whole = sum(weight.numel for weight in exported.table.weights) <= recipe.whole_model_parameters
    found, text = model_parity.compare(exported, Corpus(corpus.path), recipe.tolerance, whole)
    package = tokenizer_parity.load_tokenizer(partial)
    written = [
        {"prompt": package.decode(tokens[:-NEW_TOKENS]), "text": package.decode(tokens[-NEW_TOKENS:])}
        for tokens in text.tolist()
    ]
    greedy = {"prompts": len(text), "text": [package.decode(tokens) for tokens in text.tolist()]}
    report |= found | {"greedy": greedy | ({"continuations": written} if written else {})}
    if adapter is not None and not recipe.merge:
        report["adapter"] = adapter_parity.compare(
            exported, partial / ADAPTER, adapter, Corpus(corpus.path), recipe.tolerance, whole
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.convert", __doc__, ConvertRecipe)
    parser.add_argument("--model", type=Path, required=True, metavar="MANIFEST", help="the model to convert")
    parser.add_argument("--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus it was trained on")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="MANIFEST", help="the tokenizer of the corpus")
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="the export's manifest to write")
    parser.add_argument("--base", type=Path, metavar="MODEL", help="the base of LoRA's adapters, if it was moved")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages: torch reads a layer twice as fast
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

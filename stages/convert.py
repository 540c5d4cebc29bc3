"""Convert a checkpoint to a directory that transformers loads, and prove that it is the same model.

    python -m stages.convert --model results/runs/base/models/00000300.json \\
        --corpus results/tokens/main/manifest.json --tokenizer results/tokenizers/main/manifest.json \\
        --output results/runs/base/export/00000300/manifest.json

The directory of --output then holds config.json, generation_config.json, safetensors, the tokenizer, and parity.json:
how far logits, greedy text and token ids of the export agree with ours. Where they do not agree, parity.json says what
differs first, there is no manifest, and the stage fails; `evaluate` refuses such a directory.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files, manifest, stage, up_to_date
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import identity
from stages.lib.tokenizer.edge_cases import EDGE_CASES

KEPT = ".manifest.json"
PARITY = "parity.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model")


@dataclass(frozen=True, kw_only=True)
class ConvertRecipe:
    """How a checkpoint is written for transformers."""

    dtype: str = identity("bfloat16", choices=["bfloat16", "float32"])
    """The dtype of the exported weights."""

    shard_mb: int = identity(1000, minimum=1)
    """The largest safetensors file, in MiB; a larger tensor gets a file of its own. Conversion holds one in memory."""

    tolerance: float = identity(1e-4, above=0)
    """The largest difference of float32 logits that is allowed at logits of standard deviation 1 (or less)."""

    tokenizer_check_mb: float = identity(16.0, above=0)
    """Of how much validation text a source the token ids are compared, in MB."""


def run(arguments, recipe):
    """Convert, check, and write the manifest."""
    clock = manifest.Clock(arguments.code)
    paths = arguments.model, arguments.corpus, arguments.tokenizer
    model, corpus, tokenizer = map(manifest.read, paths)
    check_inputs(model, corpus, tokenizer)
    wanted = {
        "recipe": recipes.written(recipe, "identity"),
        "model": model.digest,
        "tokenizer": tokenizer.digest,
        "corpus": corpus.digest,
        "step": model.identity["step"],
        "tokens": model.identity["tokens"],
        "seq_len": model.identity["tokens"] // model.identity["samples"],
    }
    directory = arguments.output.parent
    # parity.json is no output (its figures depend on rounding): without it nothing is scored, so it is made again
    proven = (directory / PARITY).exists() and files.read_json(directory / PARITY).get("passed") is True
    if proven and up_to_date.restore(directory / KEPT, arguments.output, wanted, clock.record()):
        return
    partial = _begin(directory, arguments.output)
    try:
        parameters = write_export(partial, recipe, model, corpus, tokenizer)
        parity = check_parity(partial, recipe, model, corpus, tokenizer, directory)
        outputs = _move(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    record = clock.record(parameters=parameters, parity=parity)
    manifest.write(directory / KEPT, {**wanted, "outputs": outputs}, record)
    manifest.write(arguments.output, {**wanted, "outputs": outputs}, record)


def check_inputs(model, corpus, tokenizer):
    """Raise UserError where the three do not belong together, or a file of the checkpoint vanished or changed."""
    if corpus.identity["tokenizer"]["digest"] != tokenizer.digest:
        raise UserError(f"--tokenizer {tokenizer.path} is not the tokenizer of --corpus {corpus.path}")
    for name, other in (("corpus", corpus), ("tokenizer", tokenizer)):
        if model.identity[name] != other.digest:
            raise UserError(f"--model {model.path} was trained on another {name} than --{name} {other.path}")
    for name, described in model.identity["outputs"].items():
        path = model.output(name)
        if files.sha256_file(path) != described["sha256"]:
            raise UserError(
                f"{path} changed since {model.path} was written; delete the checkpoint {path.parent} and {model.path}, "
                "and run the workflow again"
            )


def _begin(directory, output):
    """Take away an earlier export, manifest first, and make an empty directory for the new one inside of it."""
    partial = directory / ".partial"
    try:
        output.unlink(missing_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        for pattern in (KEPT, PARITY, "model*.safetensors", "model.safetensors.index.json"):
            for path in directory.glob(pattern):
                path.unlink()
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    except OSError as error:
        raise UserError(f"--output {output} must be in a directory that can be written: {error.strerror}") from None
    return partial


def write_export(directory, recipe, model, corpus, tokenizer):
    """Write weights, configs and tokenizer; returns the number of parameters."""
    from stages.lib.huggingface import export

    shape, facts = shape_of(model), corpus.identity["tokenizer"]
    read = export.checkpoint_reader(checkpoint_of(model))
    parameters = export.write_weights(directory, shape, facts["vocab_size"], read, recipe.dtype, recipe.shard_mb)
    export.write_config(directory, export.config_of(shape, facts, recipe.dtype))
    _copy_tokenizer(directory, tokenizer, facts["bos_added"])
    return parameters


def _copy_tokenizer(directory, tokenizer, bos_added):
    for name in TOKENIZER_FILES:
        if name in tokenizer.identity["outputs"]:
            shutil.copyfile(tokenizer.output(name), directory / name)
    if not bos_added:  # the template would put a BOS that training never saw before each text
        described = files.read_json(directory / "tokenizer.json")
        files.write_json(directory / "tokenizer.json", described | {"post_processor": None})


def shape_of(model):
    """The ModelRecipe of a model manifest."""
    from stages.lib.model.llama import ModelRecipe

    return recipes.load(ModelRecipe, model.identity["recipe"]["model"], f"{model.path}: identity.recipe.model")


def checkpoint_of(model):
    """The directory of a model manifest's checkpoint."""
    return model.directory / model.identity["checkpoint"]


def check_parity(partial, recipe, model, corpus, tokenizer, directory):
    """Compare the export in `partial` with our model and tokenizer; returns what parity.json says.

    Raises ParityError, after parity.json with `passed: false` stands in `directory`.
    """
    from stages.lib.huggingface.parity import ParityError

    report = {"passed": False, "failure": None, "dtype": recipe.dtype, "tolerance": recipe.tolerance}
    try:
        _compare_tokenizers(partial, recipe, corpus, tokenizer, report)
        _compare_models(partial, recipe, model, corpus, report)
    except ParityError as error:
        report["failure"] = str(error)
        files.write_json(directory / PARITY, report)
        raise
    report["passed"] = True
    files.write_json(partial / PARITY, report)
    logger.info("parity: %s", report["logits"])
    return report["logits"]


def _compare_models(partial, recipe, model, corpus, report):
    import torch

    from stages.lib.huggingface import export, parity
    from stages.lib.model.llama import Llama
    from stages.lib.tokens.corpus import Corpus

    shape, vocab_size = shape_of(model), corpus.identity["tokenizer"]["vocab_size"]
    read = export.checkpoint_reader(checkpoint_of(model))
    with torch.device("meta"):
        ours = Llama(shape, vocab_size)
    ours.load_state_dict(export.rounded_state(shape, vocab_size, read, recipe.dtype), assign=True)
    theirs = parity.load_exported(partial)
    validation = Corpus(corpus.path)
    batch = parity.validation_batch(validation, shape.max_position_embeddings)
    report["logits"] = parity.compare_logits(ours, theirs, batch, recipe.tolerance)
    prompts = parity.validation_prompts(validation, shape.max_position_embeddings)
    text = parity.compare_text(ours, theirs, prompts, recipe.tolerance)
    exported = parity.load_tokenizer(partial)
    report["greedy"] = {"prompts": len(prompts), "text": [exported.decode(tokens) for tokens in text.tolist()]}


def _compare_tokenizers(partial, recipe, corpus, tokenizer, report):
    from stages.lib.huggingface import parity
    from stages.lib.tokens.corpus import Corpus

    exported = parity.load_tokenizer(partial)
    parity.compare_special_tokens(exported, corpus.identity["tokenizer"])
    reference = parity.reference_encoder(tokenizer.directory)
    report["tokenizer"] = {"hard strings": parity.compare_ids(reference, exported, EDGE_CASES, "hard string")}
    for source in sorted(corpus.identity["sources"]):
        texts = parity.validation_texts(corpus, source, int(recipe.tokenizer_check_mb * 1e6))
        report["tokenizer"][source] = parity.compare_ids(reference, exported, texts, f"validation document of {source}")
    parity.compare_corpus_tokens(exported, Corpus(corpus.path))


def _move(partial, directory):
    """Bring the files of `partial` to the disk and into `directory`; returns the manifest's outputs.

    parity.json is none of them: its figures depend on the machine's rounding, and equal weights shall have one digest.
    """
    outputs = {}
    mode = (partial / PARITY).stat().st_mode  # safetensors lets only the owner read
    for path in sorted(partial.iterdir()):
        path.chmod(mode)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        if path.name != PARITY:
            outputs[path.name] = manifest.describe(path)
        os.replace(path, directory / path.name)
    files.sync_directory(directory)
    return outputs


def main(argv=None):
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.convert", __doc__, ConvertRecipe)
    parser.add_argument("--model", type=Path, required=True, metavar="MANIFEST", help="the model to convert")
    parser.add_argument("--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus it was trained on")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="MANIFEST", help="the tokenizer of the corpus")
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="the export's manifest to write")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Score an export, or a baseline, with lm-evaluation-harness.

    python -m stages.evaluate --export results/runs/base/export/00000300/manifest.json \\
        --corpus results/tokens/main/manifest.json --output results/runs/base/eval/00000300/validation.json

Local tasks, which are made from validation data, are written beside the output, here to
results/runs/base/eval/00000300/validation. The harness's own command line reads them too, and has more options
(`--limit`, `--log_samples`, other models):

    lm_eval run --model hf --model_args pretrained=EXPORT,dtype=float32,max_length=N,add_bos_token=False \\
        --batch_size 16 --seed 0 --include_path results/runs/base/eval/00000300/validation --tasks bits_per_byte_code

Scores of rolling tasks (bits_per_byte_*) and of tasks that are not local are the same there, with add_bos_token=True
for the latter unless they are rolling: before whole texts the harness puts BOS itself. Scores of the other local tasks
differ: this stage encodes context and continuation separately, as fine-tuning does. The harness moves spaces and line
ends from the end of a context to the continuation and encodes both together, so that a token across the boundary, such
as `:` with the line end, takes the beginning of the continuation away.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, manifest, stage, up_to_date
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.manifest import CorpusManifest
from stages.lib.manifest_types import EvaluationRecord, KnownEvaluation, Record
from stages.lib.scoring import harness, inputs, sample_logs, scored_model, suite
from stages.lib.scoring.sample_logs import KeptScores
from stages.lib.scoring.scored_model import ScoredModel
from stages.lib.scoring.suite import EvaluateRecipe
from stages.lib.scoring.tasks import local_tasks
from stages.lib.scoring.tasks.task import ReaderScores, TaskOptions


def delete_earlier(directory: Path, output: Path) -> None:
    """Delete earlier results and local tasks, the manifest first; `sample_logs.read_kept` deletes their logs."""
    try:
        output.unlink(missing_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        inputs.kept_manifest(output).unlink(missing_ok=True)
        for path in local_tasks.files_of(directory):
            path.unlink()
    except OSError as error:
        raise UserError(f"--output {output} must be in a writable directory: {error.strerror}") from None


def keys_of(
    recipe: EvaluateRecipe,
    model: ScoredModel,
    known: KnownEvaluation,
    local: Sequence[str],
    directory: Path,
    record: Record,
) -> dict[str, str]:
    """Return {task: digest of all that its scores depend on}: the model, its options, its data, code and versions."""
    shared = {
        "model": model.identity,
        "window": model.window(recipe.max_length),
        "recipe": [recipe.backend, recipe.dtype, recipe.batch_size, recipe.exchange_contexts],
        "code": record["code"],
        "versions": record["versions"] | libraries_of(recipe),
    }
    keys = {}
    for task in local:
        data = {path.name: files.sha256_file(path) for path in directory.glob(f"{task}.*")}
        keys[task] = manifest.digest_of(shared | {"data": data, "seed": recipe.seed})
    for task in recipe.others:
        options = suite.options_of(recipe, task, recipe.apply_chat_template and model.has_template)
        keys[task] = manifest.digest_of(shared | {"options": options, "include": known.get("include"), "task": task})
    return keys


def libraries_of(recipe: EvaluateRecipe) -> dict[str, str]:
    """Return the versions of the libraries that score."""
    libraries = {"harness": "lm_eval"} | ({"vllm": "vllm"} if recipe.backend == "vllm" else {})
    return {name: importlib.metadata.version(package) for name, package in libraries.items()}


def prepare(
    arguments: argparse.Namespace, recipe: EvaluateRecipe, corpus: CorpusManifest, clock: manifest.Clock
) -> tuple[ScoredModel, KnownEvaluation, dict[str, ReaderScores], KeptScores] | None:
    """Check the inputs and write the local tasks.

    Returns the model, the known identity, trivial readers' scores, and the scores that an earlier attempt left. None
    if the scores are up to date; their manifest is then written again.
    """
    if arguments.export is not None:
        model = scored_model.of_export(arguments.export, corpus)
    else:
        model = scored_model.of_baseline(arguments.baseline, arguments.revision)
    pairs = inputs.read_pairs(arguments.prompt_completion, recipe.tasks)
    known: KnownEvaluation = {
        "recipe": recipes.written(recipe, "identity"),
        "suite": arguments.output.stem,
        "corpus": corpus.digest,
        **model.identity,
    }
    if pairs is not None:
        known["prompt_completion"] = pairs.digest
    if recipe.include_path is not None:
        known["include"] = inputs.digest_of_directory(Path(recipe.include_path))
    directory = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    files.clear_leftovers_in(directory)
    if up_to_date.restore(inputs.kept_manifest(arguments.output), arguments.output, known, clock.record()):
        return None
    delete_earlier(directory, arguments.output)
    options = TaskOptions(
        bytes_per_source=recipe.bytes_per_source,
        num_examples=recipe.num_examples,
        seed=recipe.seed,
        max_completion_bytes=model.window(recipe.max_length),  # a token has at least one byte
        sources=recipe.sources,
    )
    trivial = local_tasks.write(directory, recipe.tasks, corpus, pairs, options)
    keys = keys_of(recipe, model, known, [*trivial], directory, clock.record())
    return model, known, trivial, sample_logs.read_kept(directory, keys)


def run(arguments: argparse.Namespace, recipe: EvaluateRecipe) -> None:
    """Score the model, and write the manifest."""
    from stages.lib.distributed import collectives
    from stages.lib.distributed.process_group import process_group

    clock = manifest.Clock(arguments.code)
    corpus = manifest.read(arguments.corpus, "index")
    is_local = arguments.baseline is None or Path(arguments.baseline).is_dir()
    harness.settle_environment(offline=is_local and not recipe.others)
    with process_group() as device:
        is_first = collectives.is_first_rank()
        with collectives.raise_on_all_ranks():
            prepared = prepare(arguments, recipe, corpus, clock) if is_first else None
        prepared = collectives.broadcast_object(prepared)
        if prepared is None:
            return
        model, known, trivial, kept = prepared
        suite.score(model, recipe, [*trivial], kept, device)
        if is_first:
            known["trivial"] = trivial
            if recipe.apply_chat_template:
                known["chat_template"] = model.has_template
            read = local_tasks.files_of(files.payload_of(arguments.output))
            if recipe.include_path is not None:
                read += inputs.files_outside(Path(recipe.include_path))
            described = manifest.described(read, arguments.output.parent)
            record: EvaluationRecord = {**clock.record(), "device": device.type, "files": described}
            identity = {**known, **kept.merged(), **libraries_of(recipe)}
            for path in (inputs.kept_manifest(arguments.output), arguments.output):
                manifest.write(path, arguments.stage_name, identity, record)
            kept.path.unlink(missing_ok=True)  # the manifest has its content


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.evaluate", __doc__, EvaluateRecipe)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--export", type=Path, metavar="MANIFEST", help="the export to score")
    model.add_argument("--baseline", metavar="DIR|ID", help="another model: a directory or a repository of the Hub")
    parser.add_argument("--revision", help="branch, tag or commit of the baseline's repository")
    parser.add_argument(
        "--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus of the export and the local tasks"
    )
    parser.add_argument("--prompt-completion", type=Path, metavar="LIST", help="the source of the tasks completion_*")
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="STEP/SUITE.json to write")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

"""Score an export with lm-evaluation-harness.

    python -m stages.evaluate --export results/runs/base/export/00000300/manifest.json \\
        --corpus results/tokens/main/manifest.json --output results/runs/base/eval/00000300/validation.json

Local tasks, which are made from validation data, are written beside the output, here to
results/runs/base/eval/00000300/validation. The harness's own command line reads them too, and has more options
(`--limit`, `--log_samples`, other models):

    lm_eval run --model hf --model_args pretrained=EXPORT,dtype=float32,max_length=N,add_bos_token=False \\
        --batch_size 16 --include_path results/runs/base/eval/00000300/validation --tasks bits_per_byte_code

Scores of rolling tasks (bits_per_byte_*) and of tasks that are not local are the same there, with add_bos_token=True
for the latter unless they are rolling: before whole texts the harness puts BOS itself. Scores of the other local tasks
differ: this stage encodes context and continuation separately, as fine-tuning does. The harness moves spaces and line
ends from the end of a context to the continuation and encodes both together, so that a token across the boundary, such
as `:` with the line end, takes the beginning of the continuation away.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stages.lib import files, manifest, stage, up_to_date
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.recipe import identity, operation
from stages.lib.scoring import harness, inputs, local_tasks, sample_logs, task_code
from stages.lib.scoring.task import LocalTask, TaskOptions
from stages.lib.sources.prompt_completion import PairSource

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


@dataclass(frozen=True, kw_only=True)
class TaskRecipe:
    """Keys of one task."""

    limit: int | None = identity(None, minimum=1)
    """Number of documents of this task."""

    num_fewshot: int | None = identity(None, minimum=0)
    """Number of solved examples before each question of this task."""

    seed: int | None = identity(None, minimum=0)
    """Seed of this task, which chooses the solved examples."""


@dataclass(frozen=True, kw_only=True)
class EvaluateRecipe:
    """A suite of tasks."""

    tasks: list[str] = identity()
    """`bits_per_byte` and `next_line` are made from validation text, `completion_choice` (which of four completions
    belongs to a prompt) and `completion_bits` (bits per byte of the right completion) from the validation pairs of a
    source; others come from `include_path` or from lm-evaluation-harness."""

    bytes_per_source: int = identity(40_000, minimum=1)
    """Bytes of validation text per source for bits_per_byte."""

    num_examples: int = identity(200, minimum=4)
    """Number of questions of next_line (over all sources) and of completion_choice, and of pairs of completion_bits;
    with 200 questions an accuracy has a standard error of 0.035."""

    limit: int | None = identity(None, minimum=1)
    """Number of documents of each other task. Default: all."""

    num_fewshot: int | None = identity(None, minimum=0)
    """Number of solved examples before each question of the other tasks. Default: the task's own. A task whose file
    has 0 keeps it."""

    per_task: dict[str, TaskRecipe] = identity({})
    """Keys for some of the other tasks, in place of the suite's."""

    apply_chat_template: bool = identity(False)
    """Put the questions of the other tasks into the chat template of the tokenizer, solved examples as turns."""

    dtype: str = identity("float32", choices=["float32", "bfloat16", "float16"])
    """The dtype that the model is scored in; log-probabilities are float32 in each."""

    max_length: int | None = identity(None, minimum=2)
    """The longest context, in tokens. Default: the sequence length of training."""

    batch_size: int | Literal["auto"] = identity(16, minimum=1)
    """Sequences per forward pass and process. Rounding depends on it, so it is part of the identity. `auto`: the
    largest power of two up to 64 that fits the accelerator's memory, or 16 without an accelerator."""

    include_path: str | None = identity(None)
    """A directory with your own task files, relative to the working directory. Task files can run code: see
    `trust_task_code`."""

    trust_task_code: bool = operation(False)
    """Run the Python code that task files of `include_path` name by `!function`, with all rights of the job. Without
    it such files are refused, and templates are rendered in Jinja's sandbox."""

    seed: int = identity(0, minimum=0)
    """Seed of the choice of validation text and questions, and of the harness."""

    def check(self, where: str) -> None:
        """Raise UserError for no task, one that is listed twice or has needless keys, or a wrong `include_path`."""
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise UserError(f"{where}.tasks must list at least one task, and each only once, got {self.tasks}")
        for task in self.per_task:
            if task not in self.tasks or task in local_tasks.NAMES:
                raise UserError(f"{where}.per_task.{task} must name one of {where}.tasks that is not made here")
        if self.include_path is not None and not Path(self.include_path).is_dir():
            raise UserError(f"{where}.include_path must be a directory, got {self.include_path}")
        if self.include_path is not None:
            task_code.check(Path(self.include_path), self.trust_task_code, "trust_task_code: true")


def identity_of(
    recipe: EvaluateRecipe, suite: str, export: Manifest, corpus: Manifest, pairs: PairSource | None
) -> dict[str, Any]:
    """Return the part of the manifest's identity that is known before scoring."""
    known = {
        "recipe": recipes.written(recipe, "identity"),
        "suite": suite,
        "export": export.digest,
        "corpus": corpus.digest,
        "step": export.identity["step"],
        "tokens": export.identity["tokens"],
    }
    if pairs is not None:
        known["prompt_completion"] = pairs.digest
    if recipe.include_path is not None:
        known["include"] = inputs.digest_of_directory(Path(recipe.include_path))
    return known


def delete_earlier(directory: Path, output: Path) -> None:
    """Delete earlier results and local tasks, the manifest first."""
    try:
        output.unlink(missing_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        inputs.kept_manifest(output).unlink(missing_ok=True)
        local_tasks.delete(directory)
        sample_logs.delete(directory)
    except OSError as error:
        raise UserError(f"--output {output} must be in a writable directory: {error.strerror}") from None


def write_local_tasks(
    directory: Path, recipe: EvaluateRecipe, export: Manifest, corpus: Manifest, pairs: PairSource | None
) -> dict[str, LocalTask]:
    """Write the suite's local tasks; returns {name for the harness: local task}."""
    options = TaskOptions(
        bytes_per_source=recipe.bytes_per_source,
        num_examples=recipe.num_examples,
        seed=recipe.seed,
        max_completion_bytes=harness.context_window(export, recipe.max_length),  # a token has at least one byte
    )
    return local_tasks.write(directory, recipe.tasks, corpus, pairs, options)


def score(
    export: Manifest, corpus: Manifest, recipe: EvaluateRecipe, directory: Path, local: Sequence[str], device: Any
) -> list[harness.Scored]:
    """Score the local tasks, then the others, whose requests become ids as the harness makes them."""
    others = [task for task in recipe.tasks if task not in local_tasks.NAMES]
    harness.settle_environment(alone=not others)
    if recipe.include_path and not recipe.trust_task_code:
        task_code.guard_templates()
    import datasets

    from stages.lib.scoring import harness_model

    with tempfile.TemporaryDirectory(prefix="caravan-evaluate-") as cache:
        if not others:  # others' data may have been prefetched into the user's cache on a node with internet
            datasets.config.HF_DATASETS_CACHE = cache
            datasets.disable_progress_bars()
        manager = task_manager(directory, recipe, [*local, *others])
        if others:
            loaded = manager.load(others)  # before hours of scoring, their data may be missing
            harness.check_num_fewshot(loaded, {task: own.num_fewshot for task, own in recipe.per_task.items()})
        model = harness_model.load_model(
            export.directory,
            corpus.identity["tokenizer"],
            batch_size=recipe.batch_size,
            window=harness.context_window(export, recipe.max_length),
            device=device,
            dtype=recipe.dtype,
        )
        if recipe.apply_chat_template and not model.tokenizer.chat_template:
            raise UserError(f"evaluate.apply_chat_template must be false: {export.directory} has no chat template")
        scored = []
        if local:
            model.separate = True
            scored.append(harness.evaluate(model, manager, local, seed=recipe.seed))
        model.separate = False
        for tasks, options in alike(recipe, others):
            scored.append(harness.evaluate(model, manager, tasks, **options))
    return scored


def alike(recipe: EvaluateRecipe, tasks: Sequence[str]) -> list[tuple[list[str], dict[str, Any]]]:
    """Return the tasks with equal options together, and the options, for one call of the harness each."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        own = recipes.written(recipe.per_task[task], "identity") if task in recipe.per_task else {}
        options = {"limit": recipe.limit, "num_fewshot": recipe.num_fewshot, "seed": recipe.seed} | own
        if recipe.apply_chat_template:
            options |= {"apply_chat_template": True, "fewshot_as_multiturn": True}
        found.setdefault(json.dumps(options), []).append(task)
    return [(together, json.loads(options)) for options, together in found.items()]


def task_manager(directory: Path, recipe: EvaluateRecipe, tasks: Sequence[str]) -> TaskManager:
    """Return the index of the tasks in `directory`, in the recipe's include_path, and of the harness."""
    paths, known = [str(directory)], ", ".join(local_tasks.NAMES)
    if recipe.include_path:
        paths, known = [*paths, recipe.include_path], f"{known}, of include_path {recipe.include_path}"
    return harness.task_manager(paths, tasks, known)


def prepare(
    arguments: argparse.Namespace, recipe: EvaluateRecipe, export: Manifest, corpus: Manifest, clock: manifest.Clock
) -> tuple[dict[str, Any], list[str]] | None:
    """Check the inputs and write the local tasks; returns the known identity, and the local tasks' names.

    None if the scores are up to date; their manifest is then written again.
    """
    inputs.check_export(export, corpus)
    pairs = inputs.read_pairs(arguments.prompt_completion, recipe.tasks)
    known = identity_of(recipe, arguments.output.stem, export, corpus, pairs)
    directory = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    files.clear_leftovers_in(directory)
    if up_to_date.restore(inputs.kept_manifest(arguments.output), arguments.output, known, clock.record()):
        return None
    delete_earlier(directory, arguments.output)
    return known, [*write_local_tasks(directory, recipe, export, corpus, pairs)]


def write_scores(
    arguments: argparse.Namespace, known: dict[str, Any], scored: Sequence[harness.Scored], record: dict[str, Any]
) -> None:
    """Write the per-sample logs and the manifest."""
    made: dict[str, Any] = {"results": {}, "task_versions": {}, "num_fewshot": {}, "outputs": {}}
    for some in scored:
        made["results"] |= some.results
        made["task_versions"] |= some.versions
        made["num_fewshot"] |= some.num_fewshot
        made["outputs"] |= sample_logs.write(files.payload_of(arguments.output), some.samples)
    made["harness"] = importlib.metadata.version("lm_eval")
    for path in (inputs.kept_manifest(arguments.output), arguments.output):
        manifest.write(path, arguments.stage_name, known | made, record)


def run(arguments: argparse.Namespace, recipe: EvaluateRecipe) -> None:
    """Score the export, and write the manifest."""
    from stages.lib.distributed import collectives
    from stages.lib.distributed.process_group import process_group

    clock = manifest.Clock(arguments.code)
    export, corpus = manifest.read(arguments.export, "convert"), manifest.read(arguments.corpus, "index")
    with process_group() as device:
        is_first = collectives.is_first_rank()
        with collectives.raise_on_all_ranks():
            prepared = prepare(arguments, recipe, export, corpus, clock) if is_first else None
        prepared = collectives.broadcast_object(prepared)
        if prepared is None:
            return
        known, local = prepared
        scored = score(export, corpus, recipe, files.payload_of(arguments.output), local, device)
        if is_first:
            write_scores(arguments, known, scored, clock.record(device=device.type))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.evaluate", __doc__, EvaluateRecipe)
    parser.add_argument("--export", type=Path, required=True, metavar="MANIFEST", help="the export to score")
    parser.add_argument("--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus it was trained on")
    parser.add_argument(
        "--prompt-completion", type=Path, metavar="LIST", help="the source of completion_choice and completion_bits"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="STEP/SUITE.json to write")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())

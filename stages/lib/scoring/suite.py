"""Suites: their recipe, and their scores by lm-evaluation-harness."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import identity, operation
from stages.lib.scoring import harness, task_code
from stages.lib.scoring.sample_logs import KeptScores
from stages.lib.scoring.scored_model import ScoredModel
from stages.lib.scoring.task_code import Trust
from stages.lib.scoring.tasks import local_tasks

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from stages.lib.scoring.encoding import Encoding


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

    tasks: list[str] = identity(entries=1, unique=True)
    """`bits_per_byte` and `next_line` are made from validation text, `completion_choice` (which of four completions
    belongs to a prompt), `completion_bits` (bits per byte of the right completion) and `completion_match` (exact match
    of the completion that the model generates, and the share that it ends) from the validation pairs of a source;
    others come from `include_path` or from lm-evaluation-harness."""

    sources: list[str] | None = identity(None, entries=1, unique=True)
    """The sources of the corpus whose validation text bits_per_byte and next_line are made from. Default: all. A source
    whose documents have one line each gives no question for next_line: it is left out there with a warning."""

    bytes_per_source: int = identity(100_000, minimum=1)
    """Bytes of validation text per source for bits_per_byte. They are pieces of some documents, 31 of 90 of the demo's
    prose, and the standard error is over the documents: more bytes are of more of them."""

    num_examples: int = identity(200, minimum=4)
    """Number of questions of next_line (over all sources) and of completion_choice, and of pairs of completion_bits and
    of completion_match; 200 questions from as many documents give an accuracy a standard error of 0.035, from fewer
    documents a larger one."""

    limit: int | None = identity(None, minimum=1)
    """Number of documents of each other task. Default: all."""

    num_fewshot: int | None = identity(None, minimum=0)
    """Number of solved examples before each question of the other tasks. Default: the task's own. A task whose file
    has 0 keeps it."""

    per_task: dict[str, TaskRecipe] = identity({})
    """Keys for some of the other tasks, in place of the suite's."""

    exchange_contexts: bool = identity(False)
    """Score tasks with choices once more, each answer after the context of another document, which takes as long again.
    A model that does as well there knows the answers by themselves, and does not read the questions."""

    apply_chat_template: bool = identity(False)
    """Put the questions of the other tasks into the chat template of the tokenizer, solved examples as turns. A model
    without one gets the questions as plain text, and its scores record this."""

    backend: str = identity("transformers", choices=["transformers", "vllm"])
    """The library that runs the model. vllm requires `batch_size: auto`, since it forms its batches itself, and an
    installed vLLM, which is not one of the requirements. One process uses all accelerators, and scores agree with those
    of transformers up to rounding. It cannot score `completion_match`."""

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
    """Run the Python code that task files name, with all rights of the job: by `!function`, or as a metric of the
    library evaluate. Without it such tasks are refused, data is read from plain files alone (JSON, CSV, Parquet, Arrow,
    text, XML), and templates of `include_path` are rendered in Jinja's sandbox."""

    seed: int = identity(0, minimum=0)
    """Seed of the choice of validation text and questions, and of the harness."""

    @property
    def others(self) -> list[str]:
        """The tasks that are not made from validation data."""
        return [task for task in self.tasks if task not in local_tasks.NAMES]

    def check(self, where: str) -> None:
        """Raise UserError for a key that no task reads, a wrong backend or path."""
        if self.sources is not None and not set(self.tasks) & set(local_tasks.OF_TEXT):
            known = " or ".join(local_tasks.OF_TEXT)
            raise UserError(f"{where}.tasks must have {known}: no other task reads {where}.sources")
        for task in self.per_task:
            if task not in self.others:
                raise UserError(f"{where}.per_task.{task} must name one of {where}.tasks that is not made here")
        if self.backend == "vllm" and self.batch_size != "auto":
            raise UserError(
                f"{where}.batch_size must be auto with backend: vllm, which forms its batches itself, "
                f"got {self.batch_size}"
            )
        generating = [task for task in self.tasks if task in local_tasks.GENERATING]
        if self.backend == "vllm" and generating:  # its class of the harness does not tell what EOS ended
            raise UserError(
                f"{where}.backend must be transformers for {generating[0]}, which reads where EOS ends a text, got vllm"
            )
        if self.include_path is not None:
            if not Path(self.include_path).is_dir():
                raise UserError(f"{where}.include_path must be a directory, got {self.include_path}")
            task_code.check(Path(self.include_path), Trust(trusted=self.trust_task_code))


def score(
    scored_model: ScoredModel, recipe: EvaluateRecipe, local: Sequence[str], kept: KeptScores, device: Any
) -> None:
    """Score the tasks that `kept` misses, and add them to it: the local tasks, named `local`, then the others.

    Raises UserError that names the tasks which cannot be scored, after all others were.
    """
    others = recipe.others
    if not kept.missing:
        return
    harness.settle_logging()
    if recipe.include_path and not recipe.trust_task_code:
        task_code.guard_templates()
    import datasets

    from stages.lib.distributed import collectives

    load_model = _load_model(recipe)  # without its backend, nothing else is begun
    with tempfile.TemporaryDirectory(prefix="caravan-evaluate-") as cache:
        if not others:  # others' data may have been prefetched into the user's cache on a node with internet
            datasets.config.HF_DATASETS_CACHE = cache
            datasets.disable_progress_bars()
        manager = task_manager(kept.directory, recipe, [*local, *others])
        window = scored_model.window(recipe.max_length)
        # before hours of scoring: their data may be missing
        loaded = {task: collectives.first_rank_first(functools.partial(manager.load, [task])) for task in others}
        harness.check_runnable(loaded, window)
        per_task = {task: own.num_fewshot for task, own in recipe.per_task.items()}
        harness.check_num_fewshot(loaded, recipe.num_fewshot, per_task)
        model = load_model(scored_model, window, device)
        if others and recipe.apply_chat_template and not scored_model.has_template:
            logger.warning("%s has no chat template: its questions are plain text", scored_model.directory)
        failures = {}
        for task in kept.missing:
            failure = _score_task(model, manager, task, task in local, scored_model, recipe, kept)
            if failure is not None:
                if collectives.is_first_rank():
                    logger.warning("%s", failure)
                failures[task] = failure
    if failures:
        others_kept = f"; scores of the other tasks are kept in {kept.path}, and a restart scores the rest alone"
        raise collectives.CollectiveError(
            f"evaluate.tasks: {'; '.join(failures.values())}{others_kept if kept.tasks else ''}"
        )


def _score_task(
    model: Encoding,
    manager: TaskManager,
    task: str,
    is_local: bool,
    scored_model: ScoredModel,
    recipe: EvaluateRecipe,
    kept: KeptScores,
) -> str | None:
    """Score a task, and add it to `kept` on the first rank; return why it cannot be scored, the same on all ranks."""
    from stages.lib.distributed import collectives
    from stages.lib.scoring.encoding import TaskError

    with_template = recipe.apply_chat_template and scored_model.has_template and not is_local
    if "export" in scored_model.identity:  # documents were encoded so in training, and chats were not, see convert
        model.tokenizer.split_special_tokens = not with_template
    model.separate = is_local
    options = {"seed": recipe.seed, "is_local": True} if is_local else options_of(recipe, task, with_template)
    scored, failure = None, None
    try:
        scored = harness.evaluate(model, manager, task, exchange_contexts=recipe.exchange_contexts, **options)
    except TaskError as error:
        failure = str(error) if task in str(error) else f"task {task}: {error}"
    failure = next((other for other in collectives.all_gather_object(failure) if other is not None), None)
    with collectives.raise_on_all_ranks():
        if failure is None and scored is not None and collectives.is_first_rank():
            kept.add(task, scored)
    if failure is None and not collectives.is_first_rank():
        kept.tasks[task] = {}
    return failure


def _load_model(recipe: EvaluateRecipe) -> Callable[[ScoredModel, int, Any], Encoding]:
    """Return the function (model, window, device) -> model of the harness of the recipe's backend.

    Raises UserError if it is not installed.
    """
    if recipe.backend == "vllm":
        from stages.lib.scoring import vllm_model

        return lambda model, window, _: vllm_model.load_model(
            model.directory,
            model.tokenizer,
            window=window,
            positions=model.positions,
            dtype=recipe.dtype,
            seed=recipe.seed,
        )
    from stages.lib.scoring import harness_model

    return lambda model, window, device: harness_model.load_model(
        model.directory,
        model.tokenizer,
        batch_size=recipe.batch_size,
        window=window,
        device=device,
        dtype=recipe.dtype,
    )


def options_of(recipe: EvaluateRecipe, task: str, with_template: bool) -> dict[str, Any]:
    """Return the options of the harness for a task that is not local."""
    own = recipes.written(recipe.per_task[task], "identity") if task in recipe.per_task else {}
    options = {"limit": recipe.limit, "num_fewshot": recipe.num_fewshot, "seed": recipe.seed} | own
    if with_template:
        options |= {"apply_chat_template": True, "fewshot_as_multiturn": True}
    return options


def task_manager(directory: Path, recipe: EvaluateRecipe, tasks: Sequence[str]) -> TaskManager:
    """Return the index of the tasks in `directory`, in the recipe's include_path, and of the harness."""
    paths, known = [str(directory)], ", ".join(local_tasks.NAMES)
    if recipe.include_path:
        paths, known = [*paths, recipe.include_path], f"{known}, of include_path {recipe.include_path}"
    trust = Trust(trusted=recipe.trust_task_code, own=[directory])
    return harness.task_manager(paths, tasks, known, seed=recipe.seed, trust=trust)

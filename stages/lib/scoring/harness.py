"""lm-evaluation-harness: its environment, index of tasks and evaluation. It is imported lazily."""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from stages.lib import log
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import Score, Scores
from stages.lib.scoring import aggregations, answers, task_code
from stages.lib.scoring.answers import Sample
from stages.lib.scoring.task_code import UNTRUSTED, Trust

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks.manager import TaskDict

    from stages.lib.scoring.encoding import Encoding

CONNECT_SECONDS = 3
MOST_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""The keys of a task for the tokens that it generates at most, the first one counts."""

GENERATED = 256
"""Tokens that a task generates at most unless it says otherwise, as in the harness."""


def settle_environment(offline: bool) -> None:
    """Set what libraries read when they are first imported. `offline`: nothing of the Hub is needed.

    Where the Hub cannot be reached, only its cache is read: each request would be repeated for 24 s.
    """
    if offline or not (os.environ.get("HF_HUB_OFFLINE") or _hub_answers()):
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("HF_EVALUATE_OFFLINE", os.environ.get("HF_HUB_OFFLINE", "0"))
    sys.dont_write_bytecode = True  # a task's own .py would leave a __pycache__ among the results


def settle_logging() -> None:
    """Let the harness write to our log."""
    from lm_eval import evaluator

    evaluator.get_git_commit_hash = _nothing
    evaluator.add_env_info = _nothing
    log.take_over("lm_eval")


def _hub_answers() -> bool:
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ):
        return True  # the proxy knows the Hub's name, which may not be known here
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((address.hostname, address.port or 443), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        logger.info("%s cannot be reached (%s): only data in the cache is used", address.hostname, error)
        return False
    return True


def _nothing(*_: Any) -> None:
    """Stand for the harness's git, which prints an error outside of a checkout, and its seconds of `collect_env`.

    The manifest has the commit and the versions.
    """


def task_manager(
    paths: Sequence[Path | str],
    tasks: Sequence[str],
    known: str,
    where: str = "evaluate.tasks",
    seed: int = 0,
    trust: Trust = UNTRUSTED,
) -> TaskManager:
    """Return the harness's index of tasks. Its own tasks, 4 seconds to read, are added only if a task needs them.

    `paths`: directories with task files. Raises UserError for an unknown task; `known` lists what the harness does
    not, `where` is the key of the tasks. Its `load` loads tasks with their data once, after it has set `seed`: some
    shuffle their data. Raises UserError if it cannot, or if they have code that `trust` does not cover.
    """
    from lm_eval.tasks import TaskManager

    loaded: dict[tuple[str, ...], TaskDict] = {}

    class Manager(TaskManager):
        def load(self, task_list: Any) -> TaskDict:
            names = tuple(task_list)
            if names not in loaded:
                random.seed(seed)
                np.random.seed(seed % (1 << 32))
                with task_code.guarded(where, trust):
                    loaded[names] = _load(super().load, task_list, where)
            return loaded[names]

    include = [str(path) for path in paths]
    manager = Manager(include_path=include, include_defaults=False)
    if set(tasks) - set(manager.all_tasks):
        manager = Manager(include_path=include, include_defaults=True)
    for task in tasks:
        if task not in manager.all_tasks:
            raise UserError(f"{where}: {task} must be one of {known}, or a task of lm-evaluation-harness")
    return manager


def _load(load: Callable[[Any], TaskDict], tasks: Any, where: str) -> TaskDict:
    try:
        return load(tasks)
    except UserError:
        raise
    except Exception as error:  # of datasets, huggingface_hub, requests, or a task's own code
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        lost = isinstance(error, ConnectionError)
        advice = "; where the Hub cannot be reached, data must be in the cache: see tools.prefetch" if lost else ""
        raise UserError(f"{where}: {', '.join(tasks)} cannot be loaded: {reason}{advice}") from error


@dataclass(frozen=True)
class Scored:
    """Scores of the harness in a task, or in a group of tasks."""

    results: Scores
    samples: dict[str, list[Sample]]
    """{task: its documents, as the harness logs them}; a group of tasks has none."""

    groups: dict[str, list[str]]
    """{group of tasks: its tasks}"""

    versions: dict[str, Any]
    num_fewshot: dict[str, int]
    exchanged_contexts: Scores
    """Of tasks with choices: their scores after the contexts of other documents; {} if they were not asked for."""


def check_runnable(loaded: Mapping[str, TaskDict], window: int) -> None:
    """Raise UserError for a task that the harness would refuse after others were scored.

    `loaded`: what the manager loads by the name of each task.
    """
    listed: dict[str, str] = {}
    for parent, of_parent in loaded.items():
        for name, task in of_parent["tasks"].items():
            where = f"evaluate.tasks: {name}"
            if listed.setdefault(name, parent) != parent:
                raise UserError(f"{where} is listed twice, in {listed[name]} and in {parent}")
            if getattr(task, "UNSAFE_CODE", False):
                raise UserError(f"{where} runs code that the model writes, which is not supported")
            if getattr(task, "MULTIMODAL", False):
                raise UserError(f"{where} has images or sound, which a language model does not read")
            if task.get_config("output_type") == "generate_until":
                options = task.get_config("generation_kwargs") or {}
                tokens = next((options[key] for key in MOST_TOKENS if options.get(key) is not None), GENERATED)
                if tokens >= window:
                    raise UserError(
                        f"{where} generates up to {tokens} tokens, which must be fewer than the context ({window}): "
                        "see max_length, and the model's max_position_embeddings"
                    )


def check_num_fewshot(loaded: Mapping[str, TaskDict], suite: int | None, per_task: Mapping[str, int | None]) -> None:
    """Raise UserError for a number of solved examples that a task would ignore, or that it does not have.

    `suite`, `per_task`: the numbers of the recipe. The file of a task may fix 0.
    """
    for parent, of_parent in loaded.items():
        own = per_task.get(parent)
        of_recipe = "evaluate.num_fewshot" if own is None else f"evaluate.per_task.{parent}.num_fewshot"
        given = suite if own is None else own
        for name, task in of_parent["tasks"].items():
            fixed = task.get_config("num_fewshot")
            if own and fixed == 0 and name == parent:
                raise UserError(f"{of_recipe} must be 0, which the task's file fixes, got {own}")
            if given is None or fixed == 0:
                key, number = f"evaluate.tasks: num_fewshot in the file of {name}", fixed or 0
            else:
                key, number = of_recipe, given
            examples = getattr(getattr(task, "sampler", None), "df", None)
            if not number or examples is None:
                continue
            # a question is not among its own examples where both come from one split, as in the harness
            shared = task.fewshot_cfg.split == task.config.test_split
            if number > len(examples) - shared:
                other = ", each other than the question" if shared else ""
                raise UserError(
                    f"{key} must be at most {len(examples) - shared}, the solved examples that task {name} has"
                    f"{other}, got {number}"
                )


def evaluate(
    model: Encoding,
    manager: TaskManager,
    task: str,
    *,
    seed: int,
    is_local: bool = False,
    exchange_contexts: bool = False,
    **options: Any,
) -> Scored:
    """Evaluate a task, or a group of tasks, in one call of the harness.

    `is_local`: the task is made from validation data, and its rows name their documents. `exchange_contexts`: tasks
    with choices are scored once more after the contexts of other documents. Raises TaskError if its questions, filters
    or metrics fail; an error of the model is raised as it is.
    """
    from lm_eval import simple_evaluate

    from stages.lib.distributed import collectives
    from stages.lib.scoring.encoding import TaskError

    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    # the first process writes the results: the others need no bootstrap, which uses all cores
    iterations = {} if collectives.is_first_rank() else {"bootstrap_iters": 0}
    try:
        # without the harness's progress bars, one per task and kind of request: the model has one over batches
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), _as_first_process():
            found = simple_evaluate(
                model=model, tasks=[task], task_manager=manager, **iterations, **dict.fromkeys(seeds, seed), **options
            )
    except UserError:
        raise
    except Exception as error:  # of the task's templates, filters and metrics, or of the model
        place = _place_in_task(error)
        if place is None:
            raise
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise TaskError(f"{place}: {reason}") from error
    samples = found["samples"]
    exchanged: Scores = {}
    for name, of_task in manager.load([task])["tasks"].items():
        answers.add_metrics(model, of_task, samples[name])
        if exchange_contexts and answers.has_choices(of_task):
            exchanged[name] = answers.with_exchanged_contexts(model, of_task, samples[name], seed, is_local)
    results: Scores = {}
    groups: dict[str, list[str]] = {}
    for name, entries in found["results"].items():
        members = _members(name, found["group_subtasks"])
        groups |= {name: members} if members != [name] else {}
        of_members = [samples.get(member, []) for member in members]
        documents = [sample for of_member in of_members for sample in of_member]
        results[name] = metrics_of(answers.means_of(of_members) | entries, documents, seed, is_local)
        logger.info("%s: %s", name, {metric: score["value"] for metric, score in results[name].items()})
    return Scored(results, samples, groups, found["versions"], found["n-shot"], exchanged)


def _place_in_task(error: Exception) -> str | None:
    """Return the task whose questions, filters or metrics raised an error, and what failed; None for another place.

    The harness has no error of its own that tells; the names are those of the functions that it calls on a task.
    """
    document = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        values = frame.f_locals
        match frame.f_code.co_name:
            case "evaluate" if "doc_id" in values:
                document = f" {values['doc_id']}"
            case "build_all_requests":
                return f"task {values['self'].task_name}: document {values.get('doc_id')} gives no question"
            case "apply_filters":
                return f"task {values['self'].task_name}: its filters fail on the answers"
            case "process_results":
                return f"task {values['self'].task_name}: the answers to document{document} give no metrics"
            case "_compute_task_aggregations":
                return f"task {values['task'].task_name}: metric {values.get('metric')} cannot be computed"
            case "aggregate" if "group_metrics" in values:
                return f"group {values['self'].name}: its metrics cannot be computed"
    return None


def _members(task: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the tasks of a group, and of the groups in it; a task is its own."""
    return [member for name in groups[task] for member in _members(name, groups)] if groups.get(task) else [task]


@contextlib.contextmanager
def _as_first_process() -> Iterator[None]:
    """Let the harness return its results on every rank: by LOCAL_RANK it would return them on the first alone."""
    rank = os.environ.pop("LOCAL_RANK", None)
    try:
        yield
    finally:
        if rank is not None:
            os.environ["LOCAL_RANK"] = rank


def metrics_of(
    entries: Mapping[str, Any], documents: Sequence[Sample], seed: int = 0, is_local: bool = False
) -> dict[str, Score]:
    """Convert `{"acc,none": x, "acc_stderr,none": y}` to {"acc": {"value": x, "stderr": y, "n": number of documents}}.

    A metric of a filter is named `metric/filter`. A value that is not finite (a diverged model) becomes None. A ratio
    over all documents, for which the harness has no standard error, has one by bootstrap with this `seed`; so has each
    metric of a local task whose rows are cut from fewer documents, which the harness would count as independent.
    """
    metrics: dict[str, Score] = {}
    for key, value in entries.items():
        name, comma, filtered = key.partition(",")
        if not comma or name.endswith("_stderr"):
            continue
        label = name if filtered == "none" else f"{name}/{filtered}"
        rows = [sample for sample in documents if sample["filter"] == filtered and name in sample]
        values = [row[name] for row in rows]
        error, origins = _number(entries.get(f"{name}_stderr,{filtered}")), None
        if is_local:
            origins = [row["doc"]["document"] for row in rows]
            error = None if len(set(origins)) < len(rows) else error
        if error is None and math.isfinite(_number(value) or math.nan):
            error = aggregations.standard_error(name, values, seed, origins)
        metrics[label] = {"value": _number(value), "stderr": error, "n": len(rows)}
    return metrics


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None  # the harness writes N/A
    return number if math.isfinite(number) else None

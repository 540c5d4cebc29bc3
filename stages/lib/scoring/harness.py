"""lm-evaluation-harness: its environment, index of tasks and evaluation. It is imported lazily."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.scoring import aggregations, task_code
from stages.lib.scoring.task_code import UNTRUSTED, Trust

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks.manager import TaskDict

    from stages.lib.scoring.encoding import Encoding

CONNECT_SECONDS = 3
GENERATED = 256
"""Tokens that a task generates at most unless it says otherwise, as in the harness."""

Results = dict[str, dict[str, dict[str, float | None]]]
"""{task: {metric: {"value": x, "stderr": y, "n": number of documents}}}"""

Sample = dict[str, Any]
"""A document with its requests, answers and metrics, as the harness logs it."""


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

    evaluator.get_git_commit_hash = _no_commit
    harness = logging.getLogger("lm_eval")
    harness.handlers = [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    harness.handlers = harness.handlers or list(logger.handlers)
    harness.propagate = False


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


def _no_commit() -> None:
    """Replace the harness's own, which makes git print an error outside of a checkout; the manifest has the commit."""


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
    """Results of the harness in some tasks."""

    results: Results
    samples: dict[str, list[Sample]]
    """{task: its documents, as the harness logs them}; a group of tasks has none."""

    groups: dict[str, list[str]]
    """{group of tasks: its tasks}"""

    versions: dict[str, Any]
    num_fewshot: dict[str, int]


def check_runnable(loaded: TaskDict, window: int, where: str = "evaluate.tasks") -> None:
    """Raise UserError for a task that the harness would refuse after others were scored."""
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise UserError(f"{where}: {name} runs code that the model writes, which is not supported")
        if getattr(task, "MULTIMODAL", False):
            raise UserError(f"{where}: {name} has images or sound, which a language model does not read")
        if task.get_config("output_type") == "generate_until":
            options = task.get_config("generation_kwargs") or {}
            tokens = options.get("max_gen_toks", options.get("max_new_tokens", GENERATED))
            if tokens >= window:
                raise UserError(
                    f"{where}: {name} generates up to {tokens} tokens, which must be fewer than the context "
                    f"({window}): see max_length, and the model's max_position_embeddings"
                )


def check_num_fewshot(loaded: TaskDict, num_fewshot: Mapping[str, int | None], where: str = "evaluate") -> None:
    """Raise UserError for a task that would ignore its number of solved examples: its file may fix it as 0."""
    for name, wanted in num_fewshot.items():
        task = loaded["tasks"].get(name)
        if wanted and task is not None and task.get_config("num_fewshot") == 0:
            raise UserError(f"{where}.per_task.{name}.num_fewshot must be 0, which the task's file fixes, got {wanted}")


def evaluate(model: Encoding, manager: TaskManager, tasks: Sequence[str], *, seed: int, **options: Any) -> Scored:
    """Evaluate tasks in one call of the harness."""
    from lm_eval import simple_evaluate

    from stages.lib.distributed import collectives

    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    # the first process writes the results: the others need no bootstrap, which uses all cores
    iterations = {} if collectives.is_first_rank() else {"bootstrap_iters": 0}
    with _without_progress_bars(), _as_first_process():
        found = simple_evaluate(
            model=model, tasks=list(tasks), task_manager=manager, **iterations, **dict.fromkeys(seeds, seed), **options
        )
    samples = found["samples"]
    results: Results = {}
    groups = {}
    for task, entries in found["results"].items():
        members = _members(task, found["group_subtasks"])
        groups |= {task: members} if members != [task] else {}
        documents = [sample for member in members for sample in samples.get(member, ())]
        results[task] = metrics_of(entries, documents, seed)
        logger.info("%s: %s", task, {name: metric["value"] for name, metric in results[task].items()})
    return Scored(results, samples, groups, found["versions"], found["n-shot"])


def _members(task: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the tasks of a group, and of the groups in it; a task is its own."""
    return [member for name in groups[task] for member in _members(name, groups)] if groups.get(task) else [task]


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Hide the harness's, one per task and kind of request; the model has one over batches."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


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
    entries: Mapping[str, Any], documents: Sequence[Sample], seed: int = 0
) -> dict[str, dict[str, float | None]]:
    """Convert `{"acc,none": x, "acc_stderr,none": y}` to {"acc": {"value": x, "stderr": y, "n": number of documents}}.

    A metric of a filter is named `metric/filter`. A value that is not finite (a diverged model) becomes None. A ratio
    over all documents, for which the harness has no standard error, has one by bootstrap with this `seed`.
    """
    metrics = {}
    for key, value in entries.items():
        name, comma, filtered = key.partition(",")
        if not comma or name.endswith("_stderr"):
            continue
        label = name if filtered == "none" else f"{name}/{filtered}"
        of_documents = [sample[name] for sample in documents if sample["filter"] == filtered and name in sample]
        error = _number(entries.get(f"{name}_stderr,{filtered}"))
        if error is None and math.isfinite(_number(value) or math.nan):
            error = aggregations.standard_error(name, of_documents, seed)
        metrics[label] = {"value": _number(value), "stderr": error, "n": len(of_documents)}
    return metrics


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None  # the harness writes N/A
    return number if math.isfinite(number) else None

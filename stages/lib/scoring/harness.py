"""lm-evaluation-harness: its environment, index of tasks, model and evaluation. It is imported lazily."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import Manifest

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks.manager import TaskDict

CONNECT_SECONDS = 3

Results = dict[str, dict[str, dict[str, float | None]]]
"""{task: {metric: {"value": x, "stderr": y}}}"""


def settle_environment(alone: bool) -> None:
    """Set what libraries read when they are first imported. `alone`: only local tasks are scored, which are offline.

    Where the Hub cannot be reached, only its cache is read: each request would be repeated for 24 s.
    """
    if alone or not (os.environ.get("HF_HUB_OFFLINE") or _hub_answers()):
        os.environ["HF_HUB_OFFLINE"] = "1"
    sys.dont_write_bytecode = True  # a task's own .py would leave a __pycache__ among the results
    from lm_eval import evaluator

    evaluator.get_git_commit_hash = _no_commit
    harness = logging.getLogger("lm_eval")
    harness.handlers = [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    harness.handlers = harness.handlers or list(logger.handlers)
    harness.propagate = False
    if alone:  # it would warn of each context that is cut to the model's length
        logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)


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
    paths: Sequence[Path | str], tasks: Sequence[str], known: str, where: str = "evaluate.tasks"
) -> TaskManager:
    """Return the harness's index of tasks. Its own tasks, 4 seconds to read, are added only if a task needs them.

    `paths`: directories with task files. Raises UserError for an unknown task; `known` lists what the harness does
    not, `where` is the key of the tasks. Its `load` loads tasks with their data once. Raises UserError if it cannot.
    """
    from lm_eval.tasks import TaskManager

    loaded: dict[tuple[str, ...], TaskDict] = {}

    class Manager(TaskManager):
        def load(self, task_list: Any) -> TaskDict:
            names = tuple(task_list)
            if names not in loaded:
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
    except Exception as error:  # of datasets, huggingface_hub, requests, or a task's own code
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        lost = isinstance(error, ConnectionError)
        advice = "; where the Hub cannot be reached, data must be in the cache: see tools.prefetch" if lost else ""
        raise UserError(f"{where}: {', '.join(tasks)} cannot be loaded: {reason}{advice}") from error


def load_model(directory: Path, tokenizer: Mapping[str, Any], batch_size: int, window: int) -> HFLM:
    """Load an export as the harness's model, float32.

    `tokenizer`: `bos`, `eos` and `bos_added` of the corpus. `window`: the longest context in tokens. With its attribute
    `separate`, context and continuation are encoded one by one; else together, as the harness does.
    """
    from lm_eval.models.huggingface import HFLM
    from transformers.utils import logging

    class Model(HFLM):
        separate = False

        def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
            if not self.separate:
                return super()._encode_pair(context, continuation)
            first = self.tok_encode(context, add_special_tokens=self.add_bos_token)
            return first, self.tok_encode(continuation, add_special_tokens=False)

        def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
            # the harness puts BOS before each text itself, and would also ask the tokenizer for one
            self.add_bos_token = False
            try:
                return super().loglikelihood_rolling(requests, disable_tqdm)
            finally:
                self.add_bos_token = tokenizer["bos_added"]

    logging.disable_progress_bar()
    model = Model(
        pretrained=str(directory),
        dtype="float32",
        device=device(),
        batch_size=batch_size,
        max_length=window,
        add_bos_token=tokenizer["bos_added"],
        prefix_token_id=tokenizer["bos"] if tokenizer["bos_added"] else tokenizer["eos"],
    )
    model.tokenizer.model_max_length = int(1e30)  # longer texts are cut to the window: a warning would mean nothing
    return model


def context_window(export: Manifest, max_length: int | None) -> int:
    """Return the longest context in tokens: `max_length` or training's, at most the model's number of positions."""
    positions = files.read_json(export.directory / "config.json")["max_position_embeddings"]
    return min(positions, max_length or export.identity["seq_len"])


def device() -> str:
    """Return the name of the device that scores are computed on."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def evaluate(
    model: HFLM, manager: TaskManager, tasks: Sequence[str], *, seed: int, show_progress: bool, **options: Any
) -> Results:
    """Evaluate tasks in one call of the harness.

    `show_progress`: draw its progress bars; it has one for each batch of a rolling task.
    """
    from lm_eval import simple_evaluate

    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    with contextlib.nullcontext() if show_progress else _without_progress_bars():
        found = simple_evaluate(
            model=model, tasks=tasks, task_manager=manager, log_samples=False, **dict.fromkeys(seeds, seed), **options
        )
    results = {task: metrics_of(entries) for task, entries in found["results"].items()}
    for task, metrics in results.items():
        logger.info("%s: %s", task, {name: metric["value"] for name, metric in metrics.items()})
    return results


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def metrics_of(entries: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Convert `{"acc,none": x, "acc_stderr,none": y, "alias": ...}` to {"acc": {"value": x, "stderr": y}}.

    A metric of a filter is named `metric/filter`. A value that is not finite (a diverged model) becomes None.
    """
    metrics = {}
    for key, value in entries.items():
        name, comma, filtered = key.partition(",")
        if not comma or name.endswith("_stderr"):
            continue
        label = name if filtered == "none" else f"{name}/{filtered}"
        metrics[label] = {"value": _number(value), "stderr": _number(entries.get(f"{name}_stderr,{filtered}"))}
    return metrics


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None  # the harness writes N/A
    return number if math.isfinite(number) else None

"""lm-evaluation-harness: its model, its index of tasks, and one call of it. It is imported where it is needed."""

import contextlib
import logging
import math
import os
import sys

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger


def settle_environment(alone):
    """What libraries read when they are first imported. `alone`: no task but those made here, which are offline."""
    if alone:
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


def _no_commit():
    """Instead of the harness's own, by which git complains on the terminal outside of a checkout; the record has it."""


def task_manager(paths, tasks, known):
    """The harness's index of tasks; its own 4 seconds' worth are read only when a task is not found without.

    `paths`: directories with task files. Raises UserError naming a task that is nowhere; `known` says what else is.
    """
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=paths, include_defaults=False)
    if set(tasks) - set(manager.all_tasks):
        manager = TaskManager(include_path=paths, include_defaults=True)
    for task in tasks:
        if task not in manager.all_tasks:
            raise UserError(f"evaluate.tasks: {task} must be one of {known}, or a task of lm-evaluation-harness")
    return manager


def load_model(directory, tokenizer, batch_size, window):
    """An export as the harness's model, float32. `tokenizer`: what the corpus says of it (bos, eos, bos_added).

    Where its attribute `encodes_apart` is set, context and continuation of a request become ids apart, as a pair's
    prompt and completion do in fine-tuning; else as the harness does it: in one, cut where the context's ids end.
    """
    from lm_eval.models.huggingface import HFLM
    from transformers.utils import logging

    class Model(HFLM):
        encodes_apart = False

        def _encode_pair(self, context, continuation):
            if not self.encodes_apart:
                return super()._encode_pair(context, continuation)
            first = self.tok_encode(context, add_special_tokens=self.add_bos_token)
            return first, self.tok_encode(continuation, add_special_tokens=False)

    logging.disable_progress_bar()
    return Model(
        pretrained=str(directory),
        dtype="float32",
        device=device(),
        batch_size=batch_size,
        max_length=window,
        add_bos_token=tokenizer["bos_added"],
        prefix_token_id=tokenizer["bos"] if tokenizer["bos_added"] else tokenizer["eos"],
    )


def window_of(export, longest):
    """The longest context in tokens: `longest`, or training's, since a model knows no position behind that."""
    declared = files.read_json(export.directory / "config.json")["max_position_embeddings"]
    return min(declared, longest or export.identity["seq_len"])


def device():
    """The name of the device that is scored on."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def evaluate(model, manager, tasks, *, seed, with_bars, **options):
    """One call of the harness; returns {task: {metric: {"value", "stderr"}}}.

    `with_bars`: whether its progress bars are drawn; it has one for each batch of a rolling task.
    """
    from lm_eval import simple_evaluate

    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    with contextlib.nullcontext() if with_bars else _without_bars():
        found = simple_evaluate(
            model=model, tasks=tasks, task_manager=manager, log_samples=False, **dict.fromkeys(seeds, seed), **options
        )
    results = {task: metrics_of(entries) for task, entries in found["results"].items()}
    for task, metrics in results.items():
        logger.info("%s: %s", task, {name: metric["value"] for name, metric in metrics.items()})
    return results


@contextlib.contextmanager
def _without_bars():
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def metrics_of(entries):
    """The harness's `{"acc,none": x, "acc_stderr,none": y, "alias": ...}` as {"acc": {"value": x, "stderr": y}}.

    A metric behind a filter is named `metric/filter`. What is not a finite number (a diverged model) becomes None.
    """
    metrics = {}
    for key, value in entries.items():
        name, comma, filtered = key.partition(",")
        if not comma or name.endswith("_stderr"):
            continue
        label = name if filtered == "none" else f"{name}/{filtered}"
        metrics[label] = {"value": _number(value), "stderr": _number(entries.get(f"{name}_stderr,{filtered}"))}
    return metrics


def _number(value):
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None  # the harness writes N/A
    return number if math.isfinite(number) else None

"""Score an export with lm-evaluation-harness.

    python -m stages.evaluate --export results/runs/base/export/00000300/manifest.json \\
        --corpus results/tokens/main/manifest.json --output results/runs/base/eval/00000300/heldout.json

Tasks made from held-out text are written beside the output, here to results/runs/base/eval/00000300/heldout. The
harness's own command line gives the same scores; `--limit`, `--log_samples` and other models are then at hand:

    lm_eval run --model hf --model_args pretrained=EXPORT,dtype=float32,max_length=N,add_bos_token=True \\
        --batch_size 16 --include_path results/runs/base/eval/00000300/heldout --tasks next_line

with add_bos_token=False for the rolling tasks (bits_per_byte_*): the harness puts a BOS before their text by itself.
"""

import contextlib
import hashlib
import logging
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files, finished, local_tasks, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import identity

KEPT = "manifest.json"
PARITY = "parity.json"


@dataclass(frozen=True, kw_only=True)
class EvaluateRecipe:
    """A suite of tasks."""

    tasks: list[str] = identity()
    """`bits_per_byte` and `next_line` are made from held-out text; others are of `include_path` or of the harness."""

    bytes_per_source: int = identity(40_000, minimum=1)
    """How much held-out text of each source bits_per_byte is taken of, in bytes."""

    questions: int = identity(200, minimum=4)
    """How many questions next_line asks, over all sources; 200 give a standard error of 0.035."""

    limit: int | None = identity(None, minimum=1)
    """How many documents of each other task are used. Default: all."""

    num_fewshot: int | None = identity(None, minimum=0)
    """How many solved examples come before a question of the other tasks. Default: what the task says."""

    max_length: int | None = identity(None, minimum=2)
    """The longest context, in tokens. Default: the sequence length of training."""

    batch_size: int = identity(16, minimum=1)
    """Sequences a forward. It is part of the identity since rounding depends on it."""

    include_path: str | None = identity(None)
    """A directory with task files of your own, relative to the working directory."""

    seed: int = identity(0, minimum=0)
    """Which pieces of held-out text and which questions are taken, and the harness's seeds."""

    def check(self, where):
        """Raise UserError where there is no task, or one stands twice."""
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise UserError(f"{where}.tasks must name at least one task, and each only once, got {self.tasks}")
        if self.include_path is not None and not Path(self.include_path).is_dir():
            raise UserError(f"{where}.include_path must be a directory, got {self.include_path}")


def run(arguments, recipe):
    """Score, and write the manifest."""
    clock = manifest.Clock(arguments.code)
    export, corpus = manifest.read(arguments.export), manifest.read(arguments.corpus)
    check_inputs(export, corpus)
    suite = arguments.output.stem
    wanted = {
        "recipe": recipes.written(recipe, "identity"),
        "suite": suite,
        "export": export.digest,
        "corpus": corpus.digest,
        "step": export.identity["step"],
        "tokens": export.identity["tokens"],
    }
    if recipe.include_path is not None:
        wanted["include"] = digest_of_directory(Path(recipe.include_path))
    directory = arguments.output.with_suffix("")
    if finished.restore(directory / KEPT, arguments.output, wanted, clock.record()):
        return
    _begin(directory, arguments.output)
    local = write_local_tasks(directory, recipe, corpus)
    others = [task for task in recipe.tasks if task not in local_tasks.NAMES]
    results = score(export, corpus, recipe, directory, local, others)
    made = {**wanted, "results": results, "outputs": {}}
    record = clock.record(device=_device())
    manifest.write(directory / KEPT, made, record)
    manifest.write(arguments.output, made, record)


def check_inputs(export, corpus):
    """Raise UserError unless the export passed its parity check, is unchanged, and belongs to the corpus."""
    remedy = f"delete {export.path} and run the workflow again"
    parity = export.directory / PARITY
    if not parity.exists():
        raise UserError(f"{parity} is gone, and an export without parity is not scored; {remedy}")
    if files.read_json(parity).get("passed") is not True:
        raise UserError(f"{parity} must say that parity passed, and does not; {remedy}")
    for name, described in export.identity["outputs"].items():
        path = export.output(name)
        if files.sha256_file(path) != described["sha256"]:
            raise UserError(f"{path} changed since {export.path} was written; {remedy}")
    if export.identity["corpus"] != corpus.digest:
        raise UserError(f"--export {export.path} comes from another corpus than --corpus {corpus.path}")


def digest_of_directory(path):
    """The sha256 over names and contents of the files below a directory."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(path).as_posix()}\0{files.sha256_file(file)}\n".encode())
    return digest.hexdigest()


def _begin(directory, output):
    """Take away earlier results and tasks, the manifest first."""
    try:
        output.unlink(missing_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / KEPT).unlink(missing_ok=True)
        for name in local_tasks.NAMES:
            for path in directory.glob(f"{name}*"):
                path.unlink()
    except OSError as error:
        raise UserError(f"--output {output} must be in a directory that can be written: {error.strerror}") from None


def write_local_tasks(directory, recipe, corpus):
    """Write the suite's tasks made from held-out text; returns {task: "rolling" or "choice"}."""
    names = [task for task in recipe.tasks if task in local_tasks.NAMES]
    if not names:
        return {}
    return local_tasks.write(
        directory,
        corpus,
        names,
        num_bytes=recipe.bytes_per_source,
        questions=recipe.questions,
        seed=recipe.seed,
    )


def score(export, corpus, recipe, directory, local, others):
    """Run the harness; returns {task: {metric: {"value", "stderr"}}}."""
    _settle_environment(alone=not others)
    import datasets

    with tempfile.TemporaryDirectory(prefix="caravan-evaluate-") as cache:
        if not others:  # tasks of the hub may lie in the user's cache, made beforehand on a node with internet
            datasets.config.HF_DATASETS_CACHE = cache
            datasets.disable_progress_bars()
        manager = task_manager(directory, recipe, [*local, *others])
        model = load_model(export, corpus, recipe)
        results = {}
        facts = corpus.identity["tokenizer"]
        for tasks, bos, of_recipe in (
            ([task for task, kind in local.items() if kind == "rolling"], False, {}),  # the harness adds its own
            ([task for task, kind in local.items() if kind == "choice"], facts["bos_added"], {}),
            (others, facts["bos_added"], {"limit": recipe.limit, "num_fewshot": recipe.num_fewshot}),
        ):
            if tasks:
                model.add_bos_token = bos
                with _without_bars(unless=others and sys.stderr.isatty()):
                    results |= evaluate(model, manager, tasks, recipe, **of_recipe)
    return results


def _settle_environment(alone):
    """What libraries read when they are first imported. `alone`: no task but those made from held-out text."""
    if alone:
        os.environ["HF_HUB_OFFLINE"] = "1"
    from lm_eval import evaluator

    evaluator.get_git_commit_hash = _no_commit
    harness = logging.getLogger("lm_eval")
    harness.handlers = [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    harness.handlers = harness.handlers or list(logger.handlers)
    harness.propagate = False
    if alone:  # it would warn of each context that is cut to the model's length
        logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)


@contextlib.contextmanager
def _without_bars(unless):
    """Keep the harness's progress bars off the terminal: it draws one for each batch of a rolling task."""
    if unless:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _no_commit():
    """Instead of the harness's own, by which git complains on the terminal outside of a checkout; the record has it."""


def task_manager(directory, recipe, tasks):
    """The harness's index of tasks; its own 4 seconds' worth are read only when a task is not found without.

    Raises UserError naming a task that is nowhere.
    """
    from lm_eval.tasks import TaskManager

    paths = [str(directory)] + ([recipe.include_path] if recipe.include_path else [])
    manager = TaskManager(include_path=paths, include_defaults=False)
    if set(tasks) - set(manager.all_tasks):
        manager = TaskManager(include_path=paths, include_defaults=True)
    for task in tasks:
        if task not in manager.all_tasks:
            where = f"include_path {recipe.include_path} or " if recipe.include_path else ""
            known = ", ".join(local_tasks.NAMES)
            raise UserError(f"evaluate.tasks: {task} must be one of {known}, or a task of {where}lm-evaluation-harness")
    return manager


def load_model(export, corpus, recipe):
    """The export as the harness's model, float32."""
    from lm_eval.models.huggingface import HFLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    facts = corpus.identity["tokenizer"]
    return HFLM(
        pretrained=str(export.directory),
        dtype="float32",
        device=_device(),
        batch_size=recipe.batch_size,
        max_length=window_of(export, recipe),
        add_bos_token=facts["bos_added"],
        prefix_token_id=facts["bos"] if facts["bos_added"] else facts["eos"],
    )


def window_of(export, recipe):
    """The longest context in tokens: the recipe's, or training's, since a model knows no position behind that."""
    declared = files.read_json(export.directory / "config.json")["max_position_embeddings"]
    return min(declared, recipe.max_length or export.identity["seq_len"])


def _device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def evaluate(model, manager, tasks, recipe, **options):
    """One call of the harness; returns {task: {metric: {"value", "stderr"}}}."""
    from lm_eval import simple_evaluate

    found = simple_evaluate(
        model=model,
        tasks=tasks,
        task_manager=manager,
        batch_size=recipe.batch_size,
        log_samples=False,
        random_seed=recipe.seed,
        numpy_random_seed=recipe.seed,
        torch_random_seed=recipe.seed,
        fewshot_random_seed=recipe.seed,
        **options,
    )
    results = {task: metrics_of(entries) for task, entries in found["results"].items()}
    for task, metrics in results.items():
        logger.info("%s: %s", task, {name: metric["value"] for name, metric in metrics.items()})
    return results


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


def main(argv=None):
    """Run the stage; returns its exit code."""
    parser = stage.parser("evaluate", __doc__, EvaluateRecipe)
    parser.add_argument("--export", type=Path, required=True, metavar="MANIFEST", help="the export to score")
    parser.add_argument("--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus it was trained on")
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="STEP/SUITE.json to write")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())

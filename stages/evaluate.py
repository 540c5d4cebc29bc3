"""Score an export with lm-evaluation-harness.

    python -m stages.evaluate --export results/runs/base/export/00000300/manifest.json \\
        --corpus results/tokens/main/manifest.json --output results/runs/base/eval/00000300/validation.json

Tasks made from validation text are written beside the output, here to results/runs/base/eval/00000300/validation. The
harness's own command line gives the same scores; `--limit`, `--log_samples` and other models are then at hand:

    lm_eval run --model hf --model_args pretrained=EXPORT,dtype=float32,max_length=N,add_bos_token=True \\
        --batch_size 16 --include_path results/runs/base/eval/00000300/validation --tasks next_line

with add_bos_token=False for the rolling tasks (bits_per_byte_*): the harness puts a BOS before their text by itself. It
makes ids of a prompt and its completion in one, though: completion_choice and completion_bits are scored here as
fine-tuning reads a pair.
"""

import hashlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files, manifest, stage, up_to_date
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.recipe import identity
from stages.lib.scoring import harness, local_tasks
from stages.lib.sources import prompt_completion as pair_sources

KEPT = "manifest.json"
PARITY = "parity.json"


@dataclass(frozen=True, kw_only=True)
class EvaluateRecipe:
    """A suite of tasks."""

    tasks: list[str] = identity()
    """`bits_per_byte` and `next_line` are made from validation text, `completion_choice` (which of four completions
    belongs to a prompt) and `completion_bits` (bits per byte of the right one) from the validation pairs of a source;
    others are of `include_path` or of the harness."""

    bytes_per_source: int = identity(40_000, minimum=1)
    """How much validation text of each source bits_per_byte is taken of, in bytes."""

    num_examples: int = identity(200, minimum=4)
    """How many questions next_line (over all sources) and completion_choice ask, and how many pairs completion_bits is
    taken of; 200 questions give a standard error of 0.035."""

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
    """Which pieces of validation text and which questions are taken, and the harness's seeds."""

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
    pairs = read_pairs(arguments.prompt_completion, recipe)
    suite = arguments.output.stem
    wanted = {
        "recipe": recipes.written(recipe, "identity"),
        "suite": suite,
        "export": export.digest,
        "corpus": corpus.digest,
        "step": export.identity["step"],
        "tokens": export.identity["tokens"],
    }
    if pairs is not None:
        wanted["prompt_completion"] = pairs.digest
    if recipe.include_path is not None:
        wanted["include"] = digest_of_directory(Path(recipe.include_path))
    directory = arguments.output.with_suffix("")
    if up_to_date.restore(directory / KEPT, arguments.output, wanted, clock.record()):
        return
    _begin(directory, arguments.output)
    local = write_local_tasks(directory, recipe, export, corpus, pairs)
    others = [task for task in recipe.tasks if task not in local_tasks.NAMES]
    results = score(export, corpus, recipe, directory, local, others)
    made = {**wanted, "results": results, "outputs": {}}
    record = clock.record(device=harness.device())
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


def read_pairs(path, recipe):
    """The PairSource of the list at `path`; None without. Raises UserError unless a task asks for one that is given."""
    asking = [task for task in recipe.tasks if task in local_tasks.OF_PROMPT_COMPLETION]
    if asking and path is None:
        raise UserError(
            f"evaluate.tasks: {asking[0]} must have a source of prompts and completions "
            "(prompt_completion in a suite, --prompt-completion here)"
        )
    if path is not None and not asking:
        known = " or ".join(local_tasks.OF_PROMPT_COMPLETION)
        raise UserError(
            f"evaluate.tasks must have {known}, which alone read pairs, when --prompt-completion is given, got {path}"
        )
    return None if path is None else pair_sources.read(path)


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


def write_local_tasks(directory, recipe, export, corpus, pairs):
    """Write the suite's tasks made from what is held out; returns {task: kind}, see local_tasks.write."""
    names = [task for task in recipe.tasks if task in local_tasks.NAMES]
    return local_tasks.write(
        directory,
        names,
        corpus,
        pairs,
        num_bytes=recipe.bytes_per_source,
        num_examples=recipe.num_examples,
        seed=recipe.seed,
        longest=harness.window_of(export, recipe.max_length),  # a token is a byte at least
    )


def score(export, corpus, recipe, directory, local, others):
    """Run the harness; returns {task: {metric: {"value", "stderr"}}}. `local`: {task: kind} of local_tasks.write."""
    harness.settle_environment(alone=not others)
    import datasets

    facts = corpus.identity["tokenizer"]
    with tempfile.TemporaryDirectory(prefix="caravan-evaluate-") as cache:
        if not others:  # tasks of the hub may lie in the user's cache, made beforehand on a node with internet
            datasets.config.HF_DATASETS_CACHE = cache
            datasets.disable_progress_bars()
        manager = task_manager(directory, recipe, [*local, *others])
        window = harness.window_of(export, recipe.max_length)
        model = harness.load_model(export.directory, facts, recipe.batch_size, window)
        options = {"batch_size": recipe.batch_size, "seed": recipe.seed, "with_bars": others and sys.stderr.isatty()}
        results = {}
        for kind in dict.fromkeys(local.values()):
            tasks = [task for task in local if local[task] == kind]
            model.add_bos_token = facts["bos_added"] and kind != "rolling"  # there the harness adds its own
            model.encodes_apart = kind == "completion"
            results |= harness.evaluate(model, manager, tasks, **options)
        if others:
            model.add_bos_token, model.encodes_apart = facts["bos_added"], False
            options |= {"limit": recipe.limit, "num_fewshot": recipe.num_fewshot}
            results |= harness.evaluate(model, manager, others, **options)
    return results


def task_manager(directory, recipe, tasks):
    """The index of the tasks in `directory`, in the recipe's include_path, and of the harness."""
    paths, known = [str(directory)], ", ".join(local_tasks.NAMES)
    if recipe.include_path:
        paths, known = [*paths, recipe.include_path], f"{known}, of include_path {recipe.include_path}"
    return harness.task_manager(paths, tasks, known)


def main(argv=None):
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.evaluate", __doc__, EvaluateRecipe)
    parser.add_argument("--export", type=Path, required=True, metavar="MANIFEST", help="the export to score")
    parser.add_argument("--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus it was trained on")
    parser.add_argument(
        "--prompt-completion", type=Path, metavar="LIST", help="the source that completions are asked of"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="STEP/SUITE.json to write")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())

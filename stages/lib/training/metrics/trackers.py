"""Showing metrics while a training runs: TensorBoard and Weights & Biases. metrics.jsonl stays the record.

tensorboard/      event files, for `tensorboard --logdir`
wandb.json, wandb/    the run's id at Weights & Biases, and its files
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import operation

NO_FIGURES = ("step", "time", "samples")
FLUSH_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class TrackerRecipe:
    """Where metrics are shown, beside metrics.jsonl."""

    tensorboard: bool = operation(False)
    """Whether event files for TensorBoard are written, into `tensorboard` in the run directory."""

    wandb: str | None = operation(None)
    """The project at Weights & Biases to which the run is sent; needs the package wandb. The variables WANDB_MODE
    (`offline` where a node has no internet), WANDB_API_KEY and WANDB_ENTITY are respected."""


class Trackers:
    """The monitors that a recipe names, for the first rank of a training that goes on after step `step`.

    `facts`: plain data on the run, shown beside the curves. Raises UserError where a monitor cannot be started; one
    that fails later is left out with a warning, since no training should end for it.
    """

    def __init__(self, recipe, directory, run_name, facts, step):
        self._open = []
        try:
            if recipe.tensorboard:
                self._open.append(_TensorBoard(Path(directory), facts, step))
            if recipe.wandb is not None:
                self._open.append(_Wandb(recipe.wandb, Path(directory), run_name, facts))
        except BaseException:
            self.close()
            raise

    def write(self, entry):
        """Show an entry of metrics.jsonl."""
        numbers = flatten({key: value for key, value in entry.items() if key not in NO_FIGURES})
        self._each(lambda tracker: tracker.write(numbers, entry["step"]))

    def rollback(self, step):
        """Say that the training went back to the end of step `step`: what was shown since is replaced."""
        self._each(lambda tracker: tracker.rollback(step))

    def close(self):
        """Bring everything to the disk, or away; a process that ends without it loses the last seconds."""
        self._each(lambda tracker: tracker.close())
        self._open = []

    def _each(self, action):
        for tracker in list(self._open):
            try:
                action(tracker)
            except Exception as error:
                logger.warning("%s failed and is left out from here on: %s", tracker.name, error)
                self._open.remove(tracker)


def flatten(entry, prefix=""):
    """The numbers of nested data by name, `validation/web/loss`; truth values are 0 and 1, all else is left out."""
    numbers = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            numbers |= flatten(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            numbers[prefix + key] = float(value)
    return numbers


class _TensorBoard:
    name = "TensorBoard"

    def __init__(self, directory, facts, step):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "trackers.tensorboard must be false where the package tensorboard is not installed, got true"
            ) from None
        self._make = SummaryWriter
        self.directory = directory / "tensorboard"
        try:
            self._begin(step)
            lines = [f"    {key}: {value}" for key, value in facts.items()]
            self._writer.add_text("facts", "\n".join(lines), step)
        except OSError as error:
            raise UserError(f"{self.directory} could not be written: {error.strerror}") from None

    def _begin(self, step):
        # TensorBoard forgets what earlier files say from purge_step on
        self._writer = self._make(str(self.directory), purge_step=step + 1, flush_secs=FLUSH_SECONDS)

    def write(self, numbers, step):
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def rollback(self, step):
        self._writer.close()
        self._begin(step)

    def close(self):
        self._writer.close()


class _Wandb:
    name = "Weights & Biases"

    def __init__(self, project, directory, run_name, facts):
        try:
            import wandb
        except ImportError:
            raise UserError(
                f"trackers.wandb must be left out where the package wandb is not installed, got {project!r}"
            ) from None
        try:
            self._run = wandb.init(
                project=project,
                name=run_name,
                id=_run_id(directory / "wandb.json", project),
                resume="allow",
                dir=str(directory),
                config=facts,
                # the terminal is the training's own
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"trackers.wandb could not start ({reason}); log in with WANDB_API_KEY, or let WANDB_MODE be offline"
            ) from None
        # with wandb's own step, what a resumed run measures again would be dropped
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        logger.info("Weights & Biases: %s", self._run.dir if self._run.offline else self._run.url)

    def write(self, numbers, step):
        self._run.log({**numbers, "step": step})

    def rollback(self, step):
        """Nothing: what is logged stands, and the later value of a step beside the earlier."""

    def close(self):
        self._run.finish()


def _run_id(path, project):
    """The id of the run in a project: made once, so that a restart goes on in the same run."""
    if path.exists():
        kept = files.read_json(path)
        if kept["project"] == project:
            return kept["id"]
    made = secrets.token_hex(4)
    files.write_json(path, {"project": project, "id": made})
    return made

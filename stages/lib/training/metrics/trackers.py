"""Experiment trackers: TensorBoard and Weights & Biases. metrics.jsonl stays the record.

tensorboard/          event files, for `tensorboard --logdir`
wandb.json, wandb/    the run's id at Weights & Biases, and its files
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import operation
from stages.lib.run_directory import history
from stages.lib.training.metrics.callback import Callback

NOT_TRACKED = ("step", "time", "samples")
"""Keys of metrics.jsonl that are not metrics."""

FLUSH_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class TrackerRecipe:
    """Experiment trackers that receive the metrics, beside metrics.jsonl."""

    tensorboard: bool = operation(False)
    """Write event files for TensorBoard, to `tensorboard` in the run directory."""

    wandb: str | None = operation(None)
    """Project at Weights & Biases that receives the run; requires the package wandb. The variables WANDB_MODE
    (`offline` on a node without internet), WANDB_API_KEY and WANDB_ENTITY are respected."""


class Tracker(Protocol):
    """An experiment tracker."""

    name: str

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the metrics of a step."""

    def rollback(self, step: int) -> None:
        """Replace what was written after step `step`."""

    def close(self) -> None:
        """Write or send everything."""


class Trackers(Callback):
    """The trackers of a recipe, for the first rank of a training that starts after step `step`.

    `facts`: plain data on the run, shown beside the curves. Raises UserError if a tracker cannot be started; one that
    fails later is closed with a warning, since the training must not end for it.
    """

    def __init__(
        self, recipe: TrackerRecipe, directory: Path | str, run_name: str, facts: Mapping[str, Any], step: int
    ) -> None:
        self._open: list[Tracker] = []
        self._texts: dict[str, Any] = {}  # {source: the text of its first validation loss}
        try:
            if recipe.tensorboard:
                self._open.append(_TensorBoard(Path(directory), facts, step))
            if recipe.wandb is not None:
                self._open.append(_Wandb(recipe.wandb, Path(directory), run_name, facts))
            if self._open:
                for entry in history.entries(Path(directory), []):
                    self._name_by_text(entry.get("validation", {}))
        except BaseException:
            self.close()
            raise

    def metrics(self, entry: dict[str, Any]) -> None:
        """Write an entry of metrics.jsonl."""
        if "validation" in entry:
            entry = entry | {"validation": self._name_by_text(entry["validation"])}
        numbers = flatten({key: value for key, value in entry.items() if key not in NOT_TRACKED})
        self._each(lambda tracker: tracker.write(numbers, entry["step"]))

    def _name_by_text(self, validation: Mapping[str, Any]) -> dict[str, Any]:
        """Return scores by source; those of other text than the source's first have a name and a curve of their own."""
        named = {}
        for source, scores in validation.items():
            text = scores.get("text")
            same = text == self._texts.setdefault(source, text)
            named[source if same else f"{source} (text {text})"] = scores
        return named

    def event(self, event: str, step: int, facts: dict[str, Any]) -> None:
        """Replace what was written after step `step`, if the event is a rollback to it."""
        if event == "rollback":
            self._each(lambda tracker: tracker.rollback(step))

    def close(self) -> None:
        """Write or send everything; a process that ends without it loses the last seconds."""
        self._each(lambda tracker: tracker.close())
        self._open = []

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for tracker in list(self._open):
            try:
                action(tracker)
            except Exception as error:
                logger.warning("%s failed and receives no more metrics: %s", tracker.name, error)
                self._open.remove(tracker)


def flatten(entry: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of nested data by name, `validation/web/loss`; booleans are 0 and 1, the rest is omitted."""
    numbers: dict[str, float] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            numbers |= flatten(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            numbers[prefix + key] = float(value)
    return numbers


class _TensorBoard:
    name = "TensorBoard"

    def __init__(self, directory: Path, facts: Mapping[str, Any], step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "trackers.tensorboard must be false if the package tensorboard is not installed, got true"
            ) from None
        self._make = SummaryWriter
        self.directory = directory / "tensorboard"
        try:
            self._begin(step)
            lines = [f"    {key}: {value}" for key, value in facts.items()]
            self._writer.add_text("facts", "\n".join(lines), step)
        except OSError as error:
            raise UserError(f"{self.directory} could not be written: {error.strerror}") from None

    def _begin(self, step: int) -> None:
        # TensorBoard discards what earlier files hold from purge_step on
        self._writer = self._make(str(self.directory), purge_step=step + 1, flush_secs=FLUSH_SECONDS)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def rollback(self, step: int) -> None:
        self._writer.close()
        self._begin(step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    name = "Weights & Biases"

    def __init__(self, project: str, directory: Path, run_name: str, facts: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError(
                f"trackers.wandb must be left out if the package wandb is not installed, got {project!r}"
            ) from None
        try:
            self._run = wandb.init(
                project=project,
                name=run_name,
                id=_run_id(directory / "wandb.json", project),
                resume="allow",
                dir=str(directory),
                config=dict(facts),
                # the terminal belongs to the training
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"trackers.wandb could not start ({reason}); set WANDB_API_KEY, or set WANDB_MODE to offline"
            ) from None
        # by wandb's own step, the repeated steps of a resumed run would be dropped
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        logger.info("Weights & Biases: %s", self._run.dir if self._run.offline else self._run.url)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({**numbers, "step": step})

    def rollback(self, step: int) -> None:
        """Do nothing: logged values stay, and the later value of a step is logged beside the earlier one."""

    def close(self) -> None:
        self._run.finish()


def _run_id(path: Path, project: str) -> str:
    """Return the id of the run in a project, made once, so that a restart resumes the same run."""
    if path.exists():
        kept = files.read_json(path)
        if kept["project"] == project:
            return kept["id"]
    made = secrets.token_hex(4)
    files.write_json(path, {"project": project, "id": made})
    return made

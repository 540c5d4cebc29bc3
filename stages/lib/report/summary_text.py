"""The text that is shown at the end: what was trained, its scores, and where to look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.lib.manifest import Manifest
from stages.lib.report import comparison
from stages.lib.report.references import BASELINE, beside, readers_sentence
from stages.lib.report.results import ModelKey, Results
from stages.lib.report.scores import ScoreRow
from stages.lib.scoring.tasks import local_tasks
from stages.lib.scoring.tasks.task import LocalTask, TextTask

SHOWN = 5  # tasks with the highest rates


def lines_of(rows: Sequence[ScoreRow], run_name: str) -> list[str]:
    """Return a line per task of a run's last scores with contaminated items, the highest rates first."""
    known = [row for row in rows if row["run"] == run_name and row.get("contaminated") is not None]
    last = {(row["task"], row["metric"]): row for row in known}  # rows are sorted by step
    tasks = {task: [metric for of, metric in last if of == task] for task, _ in last}
    main = [last[task, comparison.main_metric(metrics)] for task, metrics in tasks.items()]
    main.sort(key=lambda row: (-row["contaminated"], row["task"]))
    found = [row for row in main if row["contaminated"] > 0]
    if not main:
        return []
    lines = [f"  contamination: {len(found)} of {len(main)} tasks have items that stand in the training text"]
    lines += [_line(row) for row in found[:SHOWN]]
    return lines + ["    ..."] * (len(found) > SHOWN)


def _line(row: ScoreRow) -> str:
    text = f"    {row['task']}: {row['contaminated']:.1%} of the items"
    if row["value"] is None or row.get("clean") is None:
        return text
    clean = {"value": row["clean"], "stderr": row["clean_stderr"]}
    both = f"{comparison.shown(row)}, without them {comparison.shown(clean)}"
    return f"{text}; {row['metric']} {both} ({row['clean_n']} items)"


OTHERS = 5  # other tasks that are named
DETAILED = 8  # more runs stand only in the tables of runs


class SummaryText:
    """The summary of all runs as text."""

    def __init__(
        self,
        results: Results,
        rows: Sequence[ScoreRow],
        references: Sequence[ScoreRow],
        missing: Sequence[str],
        warnings: Sequence[str],
        places: Sequence[Path],
        tables: Sequence[str] = (),
        ladders: Sequence[str] = (),
    ) -> None:
        """Keep the results, their score rows, missing results and warnings.

        `places`: paths to look at, of which those that exist are named. `tables`: lines of the tables of runs.
        `ladders`: lines on predictions.
        """
        self.ladders = ladders
        self.results, self.rows, self.references, self.missing = results, rows, references, missing
        self.warnings, self.places, self.tables = warnings, [path for path in places if path.exists()], tables
        self.tuned_from = {name: origin for name in results.runs() if (origin := results.tuned_from(name))}

    def text(self) -> str:
        """Return the whole text."""
        lines: list[str] = [*self.tables]
        runs = self.results.runs()
        for run_name in runs if len(runs) <= DETAILED or not self.tables else ():
            lines += [*self._run(run_name), *self._scores(run_name), *self._before_and_after(run_name)]
            lines += [*lines_of(self.rows, run_name), ""]
        if not lines:
            lines += ["There are no results yet.", ""]
        if self.ladders:
            lines += [*self.ladders, ""]
        if self.missing:
            lines += ["Missing results (see the logs in results/logs):", *(f"  {name}" for name in self.missing), ""]
        if self.warnings:
            lines += ["Warnings:", *(f"  {warning}" for warning in self.warnings), ""]
        return "\n".join([*lines, f"See {', '.join(map(str, self.places))}"]) + "\n"

    def _run(self, run_name: str) -> list[str]:
        models = [made for (name, _), made in self.results.models.items() if name == run_name]
        exports = [made for (name, _), made in self.results.exports.items() if name == run_name]
        parts = []
        if models:
            parts.append(f"{models[-1].identity['tokens']:,} training tokens in {models[-1].identity['step']:,} steps")
        if models and models[-1].stage == "finetune":
            parts.append(_tuned(models[-1], self.tuned_from.get(run_name)))
        if exports:
            if parameters := exports[-1].record.get("parameters"):
                active = exports[-1].record.get("active_parameters")
                shown = f" ({active / 1e6:,.1f} M active)" if active else ""
                parts.append(f"{parameters / 1e6:,.1f} M parameters{shown}")
            if vocabulary := exports[-1].record.get("vocab_size"):
                parts.append(f"a vocabulary of {vocabulary:,} tokens")
        lines = [f"Run {run_name}: {', '.join(parts) or 'scores only'}"]
        if exports:
            lines.append(f"  Hugging Face model: {exports[-1].directory}")
        return lines + (_validation(models[-1]) if models else [])

    def _scores(self, run_name: str) -> list[str]:
        """Return a table of the tasks of validation text, a sentence on each, and the names of the other tasks."""
        rows = [row for row in self.rows if row["run"] == run_name and row["value"] is not None]
        shown: dict[str, list[ScoreRow]] = {}
        tasks: dict[str, LocalTask] = {}
        for local_task in local_tasks.TASKS:
            for row in rows:
                if (
                    isinstance(local_task, TextTask)
                    and local_task.matches(row["task"])
                    and row["metric"] == local_task.metric
                ):
                    shown.setdefault(row["task"], []).append(row)
                    tasks[row["task"]] = local_task
        others = sorted({row["task"] for row in rows} - set(shown) - self._compared(run_name))
        references = self._references(run_name)
        lines = _table(shown) + _lines_of_baselines(shown, references)
        for name, of_task in shown.items():
            lines += _sentence(name, tasks[name], of_task, references)
        if others:
            listed = ", ".join(others[:OTHERS]) + ", ..." * (len(others) > OTHERS)
            lines.append(f"  other tasks ({len(others)}): {listed}")
        return lines

    def _references(self, run_name: str) -> list[ScoreRow]:
        """Return the references that were scored on the corpus of a run."""
        scored = [made for (name, *_), made in self.results.evaluations.items() if name == run_name]
        corpora = {made.identity.get("corpus", "") for made in scored}
        return [row for row in self.references if row["corpus"] in corpora]

    def _before_and_after(self, run_name: str) -> list[str]:
        """Return the scores of a tuned run beside those of the model that it was tuned from."""
        origin = self.tuned_from.get(run_name)
        if not origin:
            return []
        of_origin = {suite: made for (*key, suite), made in self.results.evaluations.items() if tuple(key) == origin}
        plain = [suite for suite, made in of_origin.items() if made.identity.get("chat_template") is False]
        notes = [f"  {origin[0]} has no chat template: the questions of {', '.join(plain)} are plain text for it"]
        return comparison.table(self.rows, origin, run_name) + notes * bool(plain)

    def _compared(self, run_name: str) -> set[str]:
        """Return the tasks of a run that are in a table before and after tuning, of this run or one tuned from it."""
        found: set[str] = set()
        for name, origin in self.tuned_from.items():
            if run_name in (name, origin[0]):
                found.update(comparison.compared(self.rows, origin, name))
        return found


def _tuned(model: Manifest, origin: ModelKey | None) -> str:
    """Return in words what a model was tuned from, and how."""
    place = model.record.get("initial")
    name = "{} at step {}".format(*origin) if origin else place or "another model"
    recipe = model.identity["recipe"]
    how = [f"LoRA of rank {recipe['lora']['rank']}"] if recipe.get("lora") else []
    how += ["DPO"] if "dpo" in recipe else []
    return f"fine-tuned from {name}" + (f" by {' and '.join(how)}" if how else "")


def _validation(model: Manifest) -> list[str]:
    """Return a line on the validation split of each source that a model was tuned on; [] for a pretrained model."""
    if model.stage != "finetune":
        return []
    return [_validation_of(source, scores) for source, scores in model.record.get("validation", {}).items()]


def _validation_of(source: str, scores: Mapping[str, float]) -> str:
    if "rewards/margins" not in scores:
        return f"  validation {source}: loss {scores['loss']:.3f}"
    return (
        f"  validation {source}: the chosen completion has the higher reward in {scores['rewards/accuracies']:.1%} of "
        f"the pairs; margin {scores['rewards/margins']:.3f}"
    )


def _table(shown: dict[str, list[ScoreRow]]) -> list[str]:
    """Return lines of text: one line per step, one column per task."""
    rows = [row for of_task in shown.values() for row in of_task]
    tokens = {row["step"]: row["tokens"] for row in rows}
    if not tokens:
        return []
    cells = {(row["step"], row["task"]): comparison.shown(row) for row in rows}
    widths = [max(len(task), 16) for task in shown]
    lines = [f"  {'step':>8} {'tokens':>15}{comparison.cells_of(list(shown), widths)}"]
    for step in sorted(tokens):
        found = comparison.cells_of([cells.get((step, task), "-") for task in shown], widths)
        lines.append(f"  {step:>8} {tokens[step]:>15,}{found}")
    return lines


def _lines_of_baselines(shown: Mapping[str, Sequence[ScoreRow]], references: Sequence[ScoreRow]) -> list[str]:
    """Return a line of the table per baseline."""
    cells: dict[str, dict[str, str]] = {}
    for task, rows in shown.items():
        for other in beside(rows[-1], references):
            if other["run"].startswith(f"{BASELINE} "):
                cells.setdefault(other["run"], {})[task] = comparison.shown(other)
    widths = [max(len(task), 16) for task in shown]
    return [
        f"  {name:>24}{comparison.cells_of([found.get(task, '-') for task in shown], widths)}"
        for name, found in sorted(cells.items())
    ]


def _sentence(name: str, task: LocalTask, rows: Sequence[ScoreRow], references: Sequence[ScoreRow]) -> list[str]:
    """Return a line on a task: accuracy against chance, or the change from the first step to the last."""
    first, last = rows[0]["value"], rows[-1]["value"]
    if task.chance is not None:
        accuracy = f"accuracy {comparison.shown(rows[-1])}, {_against_chance(rows[-1], task.chance)}"
        return [f"  {name} ({task.description}): {accuracy}", *readers_sentence(rows[-1], references)]
    if len(rows) < 2:
        return []
    moved = "fell" if last < first else "rose" if last > first else "stayed:"
    better = "lower" if task.lower_is_better else "higher"
    return [f"  {name} {moved} from {first:.3f} to {last:.3f} ({task.description}: {better} is better)"]


def _against_chance(row: ScoreRow, chance: float) -> str:
    if not row["stderr"]:
        return f"chance is {chance:g}"
    errors = (row["value"] - chance) / row["stderr"]
    return f"{abs(errors):.1f} standard errors {'above' if errors > 0 else 'below'} chance ({chance:g})"

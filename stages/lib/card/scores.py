"""The part of a card on the scores, beside those of other models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages.lib.card.inputs import CardInputs
from stages.lib.card.markdown import code, escaped, listed, table
from stages.lib.manifest import Manifest
from stages.lib.scoring.tasks import local_tasks

PLUS_MINUS = "\u00b1"


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of a task: `value` is None if it is not defined, `num_examples` and `stderr` if they are not known."""

    suite: str
    task: str
    metric: str
    value: float | None
    stderr: float | None
    num_examples: int | None

    @property
    def chance(self) -> float | None:
        """The score of a model that guesses, of a local task."""
        local = local_tasks.find(self.task)
        return local.chance if local and local.metric == self.metric else None


def scores_of(evaluations: Mapping[str, Manifest]) -> list[Score]:
    """Return the scores of all suites; of a local task only the metric that tables show."""
    found = []
    for suite, made in evaluations.items():
        for task, metrics in made.identity["results"].items():
            local = local_tasks.find(task)
            for metric, score in metrics.items():
                if local is None or metric == local.metric:
                    value, stderr, number = score.get("value"), score.get("stderr"), score.get("n")
                    made_score = Score(
                        suite=suite, task=task, metric=metric, value=value, stderr=stderr, num_examples=number
                    )
                    found.append(made_score)
    return found


def lines(inputs: CardInputs) -> list[str]:
    """Return the lines of the section."""
    scores = scores_of(inputs.evaluations)
    if not scores:
        return ["## Scores", "", "This model has not been scored.", ""]
    baselines = {
        name: {(score.suite, score.task, score.metric): score for score in scores_of(suites)}
        for name, suites in inputs.baselines.items()
    }
    titles = ["suite", "task", "metric", "score", "examples", "chance"]
    titles += ["best rule without a model"] * _has_readers(inputs)
    titles += ["contaminated"] * bool(inputs.contamination) + [escaped(name) for name in baselines]
    rows = [_row(inputs, score, baselines) for score in scores]
    begin = ["## Scores", "", f"Score {PLUS_MINUS} standard error."]
    return [*begin, *table(titles, rows, "   " + "r" * len(titles)), *_meanings(scores), *_settings(inputs), ""]


def _row(inputs: CardInputs, score: Score, baselines: Mapping[str, Mapping[tuple[str, str, str], Score]]) -> list[str]:
    key = (score.suite, score.task, score.metric)
    number = "-" if score.num_examples is None else f"{score.num_examples:,}"
    chance = "-" if score.chance is None else f"{score.chance:g}"
    cells = [code(score.suite), code(score.task), code(score.metric), shown(score), number, chance]
    if _has_readers(inputs):
        cells.append(_best_reader(inputs.evaluations[score.suite], score.task))
    if inputs.contamination:
        cells.append(_contaminated(inputs.contamination.get(score.suite), score.task))
    return cells + [shown(of_baseline[key]) if key in of_baseline else "-" for of_baseline in baselines.values()]


def shown(score: Score) -> str:
    """Return a score as text: value and standard error."""
    if score.value is None:
        return "-"
    return f"{score.value:.3f}" + (f" {PLUS_MINUS} {score.stderr:.3f}" if score.stderr is not None else "")


def _has_readers(inputs: CardInputs) -> bool:
    return any(made.identity.get("trivial") for made in inputs.evaluations.values())


def _best_reader(made: Manifest, task: str) -> str:
    """Return the trivial reader with the best score of a task that was made here."""
    local, readers = local_tasks.find(task), made.identity.get("trivial", {}).get(task)
    if local is None or not readers:
        return "-"
    best = (min if local.lower_is_better else max)(readers, key=lambda name: readers[name]["value"])
    return f"{readers[best]['value']:.3f} ({code(best)})"


def _contaminated(made: Manifest | None, task: str) -> str:
    found: dict[str, Any] | None = made.identity["results"].get(task) if made else None
    return f"{found['rate']:.1%} ({found['contaminated']:,} of {found['n']:,})" if found else "-"


def _meanings(scores: list[Score]) -> Iterator[str]:
    for task in dict.fromkeys(score.task for score in scores):
        local = local_tasks.find(task)
        if local is not None:
            better = "lower" if local.lower_is_better else "higher"
            yield f"- {code(task)}, made from the validation split: {escaped(local.description)}; {better} is better."


def _settings(inputs: CardInputs) -> Iterator[str]:
    """Yield a line per suite: how it was scored."""
    for suite, made in inputs.evaluations.items():
        recipe = {name: value for name, value in made.identity["recipe"].items() if name not in ("tasks", "seed")}
        facts = [f"lm-evaluation-harness {escaped(_harness(made))}"]
        if "device" in made.record:
            facts.append(f"on {escaped(made.record['device'])}")
        if made.identity.get("chat_template") is False:
            facts.append("in plain text, since the model has no chat template")
        if recipe:
            facts.append("with " + listed(f"{name}: {value}" for name, value in recipe.items()))
        if versions := made.identity.get("task_versions"):
            facts.append("task versions " + listed(f"{task}: {version}" for task, version in versions.items()))
        yield f"- Suite {code(suite)}: {', '.join(facts)}."


def _harness(made: Manifest) -> str:
    return made.identity.get("harness") or made.record.get("versions", {}).get("lm_eval", "of unknown version")

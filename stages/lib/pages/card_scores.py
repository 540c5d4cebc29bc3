"""The parts of a card on the scores, beside those of other models, and on what its claims can be checked by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.lib.manifest import EvaluationManifest
from stages.lib.manifest_types import Score
from stages.lib.pages.card_inputs import CardInputs
from stages.lib.render import numbers
from stages.lib.render.markdown import code, escaped, listed, markdown_table
from stages.lib.results.differences import compare
from stages.lib.results.scores import ScoreRow, rows_of
from stages.lib.run_directory import journal
from stages.lib.scoring.aggregations import BITS_OF_ANSWER
from stages.lib.scoring.tasks import local_tasks


def scores_of(evaluations: Mapping[str, EvaluationManifest]) -> list[ScoreRow]:
    """Return the scores of all suites; of a local task only the metrics that tables show."""
    rows = [row for suite, evaluation in evaluations.items() for row in rows_of(evaluation, suite)]
    local = {row["task"]: local_tasks.find(row["task"]) for row in rows}
    return [
        row for row in rows if (task := local[row["task"]]) is None or row["metric"] in (task.metric, BITS_OF_ANSWER)
    ]


def score_lines(inputs: CardInputs) -> list[str]:
    """Return the lines of the section on scores."""
    rows = scores_of(inputs.evaluations)
    if not rows:
        return ["## Scores", "", "This model has not been scored.", ""]
    baselines = {
        name: {(row["suite"], row["task"], row["metric"]): _shown(row) for row in scores_of(suites)}
        for name, suites in inputs.baselines.items()
    }
    has_readers = any(evaluation.identity.get("trivial") for evaluation in inputs.evaluations.values())
    titles = ["suite", "task", "metric", "score", "examples", "chance"]
    is_exchanged = any(evaluation.identity.get("exchanged_contexts") for evaluation in inputs.evaluations.values())
    titles += ["best trivial baseline"] * has_readers + ["contexts exchanged"] * is_exchanged
    titles += ["contaminated"] * bool(inputs.contamination)
    titles += [escaped(name) for name in baselines]
    body = []
    for row in rows:
        suite, task, metric = key = row["suite"], row["task"], row["metric"]
        local = local_tasks.find(task)
        is_main = local is not None and local.metric == metric
        chance = local_tasks.chance_of(task, metric)
        number = "-" if row["n"] is None else f"{row['n']:,}"
        cells = [code(suite), code(task), code(metric), _shown(row), number, "-" if chance is None else f"{chance:g}"]
        if has_readers:
            cells.append(_best_reader(inputs.evaluations[suite], task) if is_main else "-")
        if is_exchanged:
            control = inputs.evaluations[suite].identity.get("exchanged_contexts", {}).get(task, {}).get(metric)
            cells.append(_shown(control) if control else "-")
        if inputs.contamination:
            searched = inputs.contamination.get(suite)
            found = searched.identity["results"].get(task) if searched else None
            cells.append(f"{found['rate']:.1%} ({found['contaminated']:,} of {found['n']:,})" if found else "-")
        body.append(cells + [of_baseline.get(key, "-") for of_baseline in baselines.values()])
    begin = ["## Scores", "", "Score \u00b1 standard error."]
    settings = [*_meanings(rows), *_settings(inputs), *_comparisons(inputs)]
    return [*begin, *markdown_table(titles, body, "   " + "r" * len(titles)), *settings, ""]


def _shown(row: Score | ScoreRow) -> str:
    return numbers.score(row["value"], row["stderr"], "\u00b1")


def _comparisons(inputs: CardInputs) -> Iterator[str]:
    """Yield a line per other model: in which tasks this one is better, by the rule of `differences`."""
    for name, suites in inputs.baselines.items():
        pair, _ = compare(suites, inputs.evaluations)
        sentences = [f"{code(row.label)}: {escaped(row.sentence(name, inputs.name))}" for row in pair]
        if sentences:
            yield f"- Compared with {escaped(name)}: {'; '.join(sentences)}."


def _best_reader(evaluation: EvaluationManifest, task: str) -> str:
    """Return the trivial reader with the best score of a task that was made here."""
    local, readers = local_tasks.find(task), evaluation.identity.get("trivial", {}).get(task, {})
    values = {name: score["value"] for name, score in readers.items() if score["value"] is not None}
    if local is None or not values:
        return "-"
    best = (min if local.lower_is_better else max)(values, key=lambda name: values[name])
    return f"{values[best]:.3f} ({code(best)})"


def _meanings(rows: Sequence[ScoreRow]) -> Iterator[str]:
    for task in dict.fromkeys(row["task"] for row in rows):
        local = local_tasks.find(task)
        if local is not None:
            better = "lower" if local.lower_is_better else "higher"
            yield f"- {code(task)}, made from the validation split: {escaped(local.description)}; {better} is better."


def _settings(inputs: CardInputs) -> Iterator[str]:
    """Yield a line per suite: how it was scored."""
    for suite, evaluation in inputs.evaluations.items():
        recipe = {name: value for name, value in evaluation.identity["recipe"].items() if name not in ("tasks", "seed")}
        harness = evaluation.identity.get("harness") or evaluation.record.get("versions", {}).get("lm_eval")
        facts = [f"lm-evaluation-harness {escaped(harness or 'of unknown version')}"]
        if "device" in evaluation.record:
            facts.append(f"on {escaped(evaluation.record['device'])}")
        if evaluation.identity.get("chat_template") is False:
            facts.append("in plain text, since the model has no chat template")
        if recipe:
            facts.append("with " + listed(f"{name}: {value}" for name, value in recipe.items()))
        if versions := evaluation.identity.get("task_versions"):
            facts.append("task versions " + listed(f"{task}: {version}" for task, version in versions.items()))
        yield f"- Suite {code(suite)}: {', '.join(facts)}."


WEIGHTS_ENDING = ".safetensors"


def check_lines(inputs: CardInputs) -> list[str]:
    """Return the lines of the sections on parity and digests."""
    parity = ["## Parity", "", *_parity(inputs.parity), ""]
    digests = ["## Digests", *markdown_table(("what", "sha256"), _digests(inputs)), *_versions(inputs), ""]
    return parity + digests


def _parity(report: dict[str, Any]) -> Iterator[str]:
    yield "Before any score, this directory was loaded with transformers and compared with the model that was trained:"
    yield ""
    logits, greedy = _numbers(report.get("logits")), _numbers(report.get("greedy"))
    blocks, checks = _numbers(report.get("blocks")), report.get("checks")
    if {"layers", "tokens", "max_difference"} <= blocks.keys():
        yield (
            "- all tensors have the checkpoint's bits, rounded to their dtype; the outputs of each of "
            f"{blocks['layers']} layers differ by at most {blocks['max_difference']:.1e} of their standard deviation "
            f"over {blocks['tokens']:,} tokens;"
        )
    if "max_difference" in logits and (not isinstance(checks, list) or "whole model" in checks):
        over = f" over {logits['tokens']:,} tokens" if "tokens" in logits else ""
        allowed = f"; {logits['allowed']:.1e} is allowed" if "allowed" in logits else ""
        if logits["max_difference"] > logits.get("allowed", math.inf):
            allowed += ", and this is rounding by a comparison with float64"
        yield f"- the largest difference of float32 logits is {logits['max_difference']:.1e}{over}{allowed};"
    if greedy.get("prompts"):
        yield f"- the greedy continuation of {greedy['prompts']} prompts is the same;"
    texts = report.get("tokenizer")
    tokens = sum(_numbers(found).get("tokens", 0) for found in texts.values()) if isinstance(texts, dict) else 0
    if tokens:
        yield f"- {tokens:,} tokens of validation text and edge cases have the same ids."
    yield ""
    yield "`parity.json` has the details."


def _numbers(data: Any) -> dict[str, float]:
    """Return the numbers in a part of parity.json, which no digest protects."""
    return {name: value for name, value in data.items() if journal.is_number(value)} if isinstance(data, dict) else {}


def _digests(inputs: CardInputs) -> Iterator[tuple[str, str]]:
    outputs = inputs.export.identity["outputs"]
    for name in sorted(outputs):
        if name.endswith(WEIGHTS_ENDING):
            yield code(name), code(outputs[name]["sha256"])
    yield "manifest of the export", code(inputs.export.digest)
    yield "manifest of the trained model", code(inputs.model.digest)
    yield "manifest of the corpus", code(inputs.corpus.digest)
    yield "manifest of the tokenizer", code(inputs.export.identity["tokenizer"])
    for suite, evaluation in inputs.evaluations.items():
        yield f"scores of suite {code(suite)}", code(evaluation.digest)


def _versions(inputs: CardInputs) -> Iterator[str]:
    yield (
        "The digest of a manifest is the sha256 of its `identity`; `manifest.json` here lists every file with its own. "
        "Made with Caravan:"
    )
    yield ""
    for title, evaluation in (("training", inputs.model), ("export", inputs.export)):
        commit = evaluation.record.get("commit")
        versions = evaluation.record.get("versions", {})
        names = [name for name in ("torch", "transformers", "tokenizers") if name in versions]
        facts = [f"commit {code(commit)}"] if commit else []
        facts += [f"{name} {escaped(versions[name])}" for name in names]
        if facts:
            yield f"- {title}: {', '.join(facts)}"

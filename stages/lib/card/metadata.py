"""The metadata block of a card: YAML that the Hub reads.

See https://huggingface.co/docs/hub/model-cards and https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

from typing import Any

from stages.lib.card.data import hub_datasets
from stages.lib.card.inputs import CardInputs
from stages.lib.card.scores import Score, scores_of

TASK = "text-generation"


def lines(inputs: CardInputs, license_: str | None, languages: list[str]) -> list[str]:
    """Return the lines of the block, between its two rulers."""
    import yaml

    content: dict[str, Any] = {
        "license": license_,
        "language": languages,
        "library_name": "transformers",
        "pipeline_tag": TASK,
        "tags": [inputs.config.get("model_type", "llama"), "caravan"],
        "datasets": hub_datasets(inputs),
        "model-index": model_index(inputs),
    }
    given = {key: value for key, value in content.items() if value}
    return ["---", *yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=10**6).splitlines(), "---", ""]


def model_index(inputs: CardInputs) -> list[dict[str, Any]]:
    """Return the scores in the Hub's form; [] without any."""
    results = [_result(score) for score in scores_of(inputs.evaluations) if score.value is not None]
    return [{"name": inputs.name, "results": results}] if results else []


def _result(score: Score) -> dict[str, Any]:
    return {
        "task": {"type": TASK},
        "dataset": {"type": score.task, "name": f"{score.task} ({score.suite})"},
        "metrics": [{"type": score.metric, "value": score.value, "name": score.metric}],
    }

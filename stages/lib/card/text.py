"""The whole text of a model card."""

from __future__ import annotations

from stages.lib.card import checks, data, limits, metadata, overview, scores, training, training_history
from stages.lib.card.inputs import CardInputs

FILE = "README.md"
"""The name under which the Hub reads a card."""


def text(inputs: CardInputs, license_: str | None, languages: list[str], description: str | None) -> str:
    """Return the card as Markdown. `description`: Markdown of the user, which follows the title."""
    history = training_history.read(inputs.model)
    parts = [
        metadata.lines(inputs, license_, languages),
        overview.lines(inputs, description),
        data.lines(inputs, history),
        training.lines(inputs, history),
        scores.lines(inputs),
        checks.lines(inputs),
        limits.lines(inputs, history, languages),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"

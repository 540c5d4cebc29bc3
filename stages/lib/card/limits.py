"""The known limits of a model, as far as they follow from its manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stages.lib.card.data import sources_of
from stages.lib.card.inputs import CardInputs
from stages.lib.card.markdown import code, listed
from stages.lib.card.training_history import TrainingHistory
from stages.lib.scoring.tasks import local_tasks

COMPUTE_OPTIMAL = 20
"""Tokens per parameter that are compute-optimal (arXiv 2203.15556)."""

USEFUL_EPOCHS = 4
"""Epochs up to which repeated text is nearly as good as new text (arXiv 2305.16264)."""


def lines(inputs: CardInputs, training: TrainingHistory, languages: list[str]) -> list[str]:
    """Return the lines of the section."""
    found = [*_use(inputs, languages), *_length(inputs), *_amount(inputs, training), *_scores(inputs)]
    return ["## Known limits", "", *(f"- {sentence}" for sentence in found)]


def _use(inputs: CardInputs, languages: list[str]) -> Iterator[str]:
    if inputs.is_tuned:
        yield f"It is tuned on {listed(inputs.tuned_on)} alone: it is no general assistant, and has no safety tuning."
    elif not inputs.has_initial:
        yield "It continues text. It is not tuned to follow instructions or to chat, and has no safety tuning."
    text = listed(inputs.corpus.identity["sources"])
    known = f" (languages: {listed(languages)})" if languages else ""
    if inputs.has_initial:
        yield "It started from another model: what that had learned, its limits and its license apply too."
    else:
        yield f"Its text is that of the sources {text}{known}: on other text it is worse."
    unstated = [source for source in sources_of(inputs) if source not in inputs.licenses]
    if unstated:
        yield f"The license of {listed(unstated)} is not stated: find it out before you use or pass on the model."


def _length(inputs: CardInputs) -> Iterator[str]:
    positions, seq_len = inputs.config["max_position_embeddings"], inputs.export.identity["seq_len"]
    if seq_len < positions:
        yield f"It has {positions:,} positions, and this training had sequences of only {seq_len:,} tokens."
    else:
        yield f"It was not trained on contexts longer than {seq_len:,} tokens."
    if inputs.tokenizer.get("model", {}).get("type") == "Unigram":
        yield "Its unigram tokenizer has no form in a GGUF file: llama.cpp would give other token ids."
    if not _normalizes(inputs.tokenizer.get("normalizer")):
        yield "The tokenizer does not normalize Unicode: composed and decomposed letters are different tokens."


def _normalizes(normalizer: Any) -> bool:
    """Return True if a normalizer of a tokenizer.json has a Unicode normal form, or SentencePiece's own."""
    if not isinstance(normalizer, dict):
        return False
    kind = str(normalizer.get("type"))
    return kind.startswith("NF") or kind == "Precompiled" or any(map(_normalizes, normalizer.get("normalizers", ())))


def _amount(inputs: CardInputs, training: TrainingHistory) -> Iterator[str]:
    horizon, parameters = inputs.model.record.get("horizon", {}).get("steps"), inputs.export.record.get("parameters")
    if horizon and inputs.step < horizon:
        yield f"It is the milestone at step {inputs.step:,} of {horizon:,}: its learning-rate schedule had not ended."
    per_parameter = inputs.model.identity["tokens"] / parameters if parameters else COMPUTE_OPTIMAL
    if per_parameter < COMPUTE_OPTIMAL and not inputs.has_initial:
        yield (
            f"It was trained on {per_parameter:.2g} tokens per parameter; about {COMPUTE_OPTIMAL} are compute-optimal "
            "(arXiv 2203.15556)."
        )
    for source, epochs in training.epochs.items():
        if epochs > USEFUL_EPOCHS:
            yield (
                f"It read {code(source)} {epochs:.1f} times; after {USEFUL_EPOCHS} epochs repeated text teaches less "
                "(arXiv 2305.16264)."
            )


def _scores(inputs: CardInputs) -> Iterator[str]:
    tasks = {task for made in inputs.evaluations.values() for task in made.identity["results"]}
    local = sorted(task for task in tasks if local_tasks.find(task))
    if not tasks:
        yield "It has not been scored."
    if local:
        yield (
            f"The tasks {listed(local)} are made from the validation split of its own sources: they do not measure how "
            "it does on other text, and near duplicates of their text may be in the training split."
        )
    results = {suite: made.identity["results"] for suite, made in inputs.contamination.items()}
    unknown = sorted(
        {
            task
            for suite, made in inputs.evaluations.items()
            for task in made.identity["results"]
            if task not in local and task not in results.get(suite, {})
        }
    )
    if results and inputs.has_initial:
        searched = listed(inputs.corpus.identity["sources"])
        yield f"Questions were searched for in {searched} alone, not in what the model before was trained on."
    if results and inputs.is_tuned:
        yield f"Questions were not searched for in {listed(inputs.tuned_on)}."
    if unknown:
        yield f"The questions of {listed(unknown)} were not searched for in the training text."

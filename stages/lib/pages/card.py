"""The model card of an export, as Markdown with the metadata that the Hub reads, made from manifests.

See https://huggingface.co/docs/hub/model-cards and https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from stages.lib.pages.card_data import data_lines, hub_datasets, sources_of, training_lines
from stages.lib.pages.card_inputs import CardInputs
from stages.lib.pages.card_scores import check_lines, score_lines, scores_of
from stages.lib.render import numbers
from stages.lib.render.markdown import code, escaped, fenced, listed, markdown_table
from stages.lib.scoring.tasks import local_tasks

FILE = "README.md"
"""The name under which the Hub reads a card."""


def text(inputs: CardInputs, license_: str | None, languages: list[str], description: str | None) -> str:
    """Return the card as Markdown. `description`: Markdown of the user, which follows the title."""
    sentences = [*_use(inputs, languages), *_length(inputs), *_amount(inputs), *_limits_of_scores(inputs)]
    parts = [
        _metadata(inputs, license_, languages),
        _overview(inputs, description),
        data_lines(inputs),
        training_lines(inputs),
        score_lines(inputs),
        check_lines(inputs),
        ["## Known limits", "", *(f"- {sentence}" for sentence in sentences)],
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


TASK = "text-generation"


def _metadata(inputs: CardInputs, license_: str | None, languages: list[str]) -> list[str]:
    """Return the lines of the block, between its two rulers."""
    import yaml

    results = [
        {
            "task": {"type": TASK},
            "dataset": {"type": row["task"], "name": f"{row['task']} ({row['suite']})"},
            "metrics": [{"type": row["metric"], "value": row["value"], "name": row["metric"]}],
        }
        for row in scores_of(inputs.evaluations)
        if row["value"] is not None
    ]
    content: dict[str, Any] = {
        "license": license_,
        "language": languages,
        "library_name": "transformers",
        "pipeline_tag": TASK,
        "tags": [inputs.config.get("model_type", "llama"), "caravan"],
        "datasets": hub_datasets(inputs),
        "model-index": [{"name": inputs.name, "results": results}] if results else None,
    }
    given = {key: value for key, value in content.items() if value}
    return ["---", *yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=10**6).splitlines(), "---", ""]


LOADING = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

path = "."  # this directory, or the repository's name on the Hub
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")"""
USAGE = """\
inputs = tokenizer("Once upon a time", return_tensors="pt")
output = model.generate(inputs["input_ids"], max_new_tokens=20, do_sample=False)
print(tokenizer.decode(output[0], skip_special_tokens=True))"""

CHAT_USAGE = """\
messages = [{"role": "user", "content": "Who are you?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
output = model.generate(**inputs, max_new_tokens=200, do_sample=False)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


def _overview(inputs: CardInputs, description: str | None) -> list[str]:
    """Return the lines of the title, the description, the table of the model's facts and the code to load it."""
    identity, parameters = inputs.model.identity, inputs.export.record.get("parameters")
    size = f" of {numbers.short(parameters)} parameters" if parameters else ""
    if active := inputs.export.record.get("active_parameters"):
        size += f", of which a token uses {numbers.short(active)}"
    kind = inputs.config.get("architectures", ["LlamaForCausalLM"])[0].removesuffix("ForCausalLM")
    tokens = numbers.short(identity["tokens"])
    initial = f" from {code(inputs.initial_name)}" if inputs.initial_name else ""
    how = f"fine-tuned{initial} on {tokens} tokens" if inputs.is_tuned else f"trained on {tokens} tokens"
    before = code(inputs.initial_name or "") or "another model"
    start = f" It started from {before}." if inputs.has_initial and not inputs.is_tuned else ""
    title = f"# {escaped(inputs.name)}, step {inputs.step:,}"
    what = f"A {kind}{size}, {how} in {inputs.step:,} steps.{start}"
    about = ["", *description.strip().splitlines()] if description else []
    return [title, "", what, *about, *markdown_table(("", ""), _facts(inputs)), *_usage(inputs)]


def _facts(inputs: CardInputs) -> Iterable[tuple[str, str]]:
    config, parameters = inputs.config, inputs.export.record.get("parameters")
    if steps := [f"{int(step):,}" for step in inputs.model.identity.get("models", ())]:
        yield "weights", f"the mean of those of the milestones {', '.join(steps)}"
    if inputs.is_tuned:
        yield "tuned from", code(inputs.initial_name or "") or "another model"
        lora, dpo = inputs.recipe.get("lora"), inputs.recipe.get("dpo")
        weights = f"LoRA of rank {lora['rank']}; the adapters are added to these weights" if lora else "all weights"
        loss = f"direct preference optimization (DPO), beta {dpo['beta']}" if dpo else "next-token prediction"
        yield "tuned by", f"{loss}; {weights}"
        if any(name.startswith("adapter/") for name in inputs.export.identity["outputs"]):
            yield "adapters", "`adapter`, in peft's format: for the model that was tuned"
    yield "architecture", listed(config.get("architectures", ["LlamaForCausalLM"]))
    if parameters:
        tied = ", the embedding is also the output head" if config.get("tie_word_embeddings") else ""
        yield "parameters", f"{parameters:,}{tied}"
    if active := inputs.export.record.get("active_parameters"):
        experts = f"{config['num_experts_per_tok']} of {config['num_local_experts']} experts per layer"
        yield "active parameters", f"{active:,}: a token passes through {experts}"
    yield "layers", f"{config['num_hidden_layers']}"
    yield "hidden size, intermediate size", f"{config['hidden_size']:,}, {config['intermediate_size']:,}"
    yield "attention heads, key-value heads", f"{config['num_attention_heads']}, {config['num_key_value_heads']}"
    yield "vocabulary", f"{config['vocab_size']:,} tokens"
    yield "context length", f"{config['max_position_embeddings']:,} tokens"
    yield "sequence length of training", f"{inputs.export.identity['seq_len']:,} tokens"
    yield "dtype of the weights", code(config.get("dtype", config.get("torch_dtype", "unknown")))


def _usage(inputs: CardInputs) -> list[str]:
    begins = inputs.corpus.identity["tokenizer"]["bos_added"]
    first = "The tokenizer puts the BOS before each text, as in training." if begins else "No BOS stands before a text."
    tuned = " A prompt must be written as in the tuning data; there is no chat template." if inputs.is_tuned else ""
    if inputs.has_chat_template:
        tuned = " Conversations are rendered by `tokenizer.apply_chat_template`; EOS ends an answer."
    usage = [LOADING, CHAT_USAGE if inputs.has_chat_template else USAGE]
    return ["## How to load it", *fenced(usage, "python"), first + tuned, ""]


COMPUTE_OPTIMAL = 20
"""Tokens per parameter that are compute-optimal (arXiv 2203.15556)."""

USEFUL_EPOCHS = 4
"""Epochs up to which repeated text is nearly as good as new text (arXiv 2305.16264)."""


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


def _amount(inputs: CardInputs) -> Iterator[str]:
    horizon, parameters = inputs.model.record.get("horizon", {}).get("steps"), inputs.export.record.get("parameters")
    if horizon and inputs.step < horizon:
        yield f"It is the milestone at step {inputs.step:,} of {horizon:,}: its learning-rate schedule had not ended."
    per_parameter = inputs.model.identity["tokens"] / parameters if parameters else COMPUTE_OPTIMAL
    if per_parameter < COMPUTE_OPTIMAL and not inputs.has_initial:
        yield (
            f"It was trained on {per_parameter:.2g} tokens per parameter; about {COMPUTE_OPTIMAL} are compute-optimal "
            "(arXiv 2203.15556)."
        )
    for source, epochs in inputs.training.epochs.items():
        if epochs > USEFUL_EPOCHS:
            yield (
                f"It read {code(source)} {epochs:.1f} times; after {USEFUL_EPOCHS} epochs repeated text teaches less "
                "(arXiv 2305.16264)."
            )


def _limits_of_scores(inputs: CardInputs) -> Iterator[str]:
    tasks = {task for evaluation in inputs.evaluations.values() for task in evaluation.identity["results"]}
    local = sorted(task for task in tasks if local_tasks.find(task))
    if not tasks:
        yield "It has not been scored."
    if local:
        yield (
            f"The tasks {listed(local)} are made from the validation split of its own sources: they do not measure how "
            "it does on other text, and near duplicates of their text may be in the training split."
        )
    results = {suite: evaluation.identity["results"] for suite, evaluation in inputs.contamination.items()}
    unknown = {
        task
        for suite, evaluation in inputs.evaluations.items()
        for task in evaluation.identity["results"]
        if task not in local and task not in results.get(suite, {})
    }
    if results and inputs.has_initial:
        searched = listed(inputs.corpus.identity["sources"])
        yield f"Questions were searched for in {searched} alone, not in what the model before was trained on."
    if results and inputs.is_tuned:
        yield f"Questions were not searched for in {listed(inputs.tuned_on)}."
    if unknown:
        yield f"The questions of {listed(sorted(unknown))} were not searched for in the training text."

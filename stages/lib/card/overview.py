"""The first part of a card: what the model is, and how to load it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stages.lib.card.inputs import CardInputs
from stages.lib.card.markdown import code, escaped, fenced, listed, table

USAGE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

path = "."  # this directory, or the repository's name on the Hub
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
inputs = tokenizer("Once upon a time", return_tensors="pt")
output = model.generate(inputs["input_ids"], max_new_tokens=20, do_sample=False)
print(tokenizer.decode(output[0], skip_special_tokens=True))""".splitlines()

CHAT_USAGE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

path = "."  # this directory, or the repository's name on the Hub
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
messages = [{"role": "user", "content": "Who are you?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
output = model.generate(**inputs, max_new_tokens=200, do_sample=False)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))""".splitlines()


def count(number: float) -> str:
    """Format a large number in words: 4.2 million."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:,.1f} {word}"
    return f"{number:,.0f}"


def lines(inputs: CardInputs, description: str | None) -> list[str]:
    """Return the lines of the title, the description, the table of the model's facts and the code to load it."""
    identity, parameters = inputs.model.identity, inputs.export.record.get("parameters")
    size = f" of {count(parameters)} parameters" if parameters else ""
    if active := inputs.export.record.get("active_parameters"):
        size += f", of which a token uses {count(active)}"
    kind = inputs.config.get("architectures", ["LlamaForCausalLM"])[0].removesuffix("ForCausalLM")
    tokens = count(identity["tokens"])
    initial = f" from {code(inputs.initial_name)}" if inputs.initial_name else ""
    how = f"fine-tuned{initial} on {tokens} tokens" if inputs.is_tuned else f"trained on {tokens} tokens"
    before = code(inputs.initial_name or "") or "another model"
    start = f" It started from {before}." if inputs.has_initial and not inputs.is_tuned else ""
    title = f"# {escaped(inputs.name)}, step {inputs.step:,}"
    what = f"A {kind}{size}, {how} in {inputs.step:,} steps.{start}"
    about = ["", *description.strip().splitlines()] if description else []
    return [title, "", what, *about, *table(("", ""), _facts(inputs)), *_usage(inputs)]


def _facts(inputs: CardInputs) -> Iterable[tuple[str, str]]:
    config, parameters = inputs.config, inputs.export.record.get("parameters")
    if inputs.is_tuned:
        yield "tuned from", code(inputs.initial_name or "") or "another model"
        yield "tuned by", _method(inputs.recipe)
        if any(name.startswith("adapter/") for name in inputs.export.identity["outputs"]):
            yield "adapters", "`adapter`, in peft's format: for the model that was tuned"
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    yield "architecture", listed(config.get("architectures", ["LlamaForCausalLM"]))
    if parameters:
        tied = ", the embedding is also the output head" if config.get("tie_word_embeddings") else ""
        yield "parameters", f"{parameters:,}{tied}"
    if active := inputs.export.record.get("active_parameters"):
        experts = f"{config['num_experts_per_tok']} of {config['num_local_experts']} experts per layer"
        yield "active parameters", f"{active:,}: a token passes through {experts}"
    yield "layers", f"{config['num_hidden_layers']}"
    yield "hidden size, intermediate size", f"{config['hidden_size']:,}, {config['intermediate_size']:,}"
    yield "attention heads, key-value heads", f"{heads}, {groups}"
    yield "vocabulary", f"{config['vocab_size']:,} tokens"
    yield "context length", f"{config['max_position_embeddings']:,} tokens"
    yield "sequence length of training", f"{inputs.export.identity['seq_len']:,} tokens"
    yield "dtype of the weights", code(config.get("dtype", config.get("torch_dtype", "unknown")))


def _method(recipe: Mapping[str, Any]) -> str:
    """Return how a model was tuned, in words: which weights, and which loss."""
    lora, dpo = recipe.get("lora"), recipe.get("dpo")
    weights = f"LoRA of rank {lora['rank']}; the adapters are added to these weights" if lora else "all weights"
    loss = f"direct preference optimization (DPO), beta {dpo['beta']}" if dpo else "next-token prediction"
    return f"{loss}; {weights}"


def _usage(inputs: CardInputs) -> list[str]:
    begins = inputs.corpus.identity["tokenizer"]["bos_added"]
    first = "The tokenizer puts the BOS before each text, as in training." if begins else "No BOS stands before a text."
    tuned = " A prompt must be written as in the tuning data; there is no chat template." if inputs.is_tuned else ""
    if inputs.has_chat_template:
        tuned = " Conversations are rendered by `tokenizer.apply_chat_template`; EOS ends an answer."
    usage = CHAT_USAGE if inputs.has_chat_template else USAGE
    return ["## How to load it", *fenced(usage, "python"), first + tuned, ""]

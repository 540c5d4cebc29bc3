"""The model card of an export, as Markdown with the metadata that the Hub reads, made from manifests.

See https://huggingface.co/docs/hub/model-cards and https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stages.lib.manifest import EvaluationManifest
from stages.lib.manifest_types import Score
from stages.lib.pages.card_data import data_lines, hub_datasets, sources_of, training_lines
from stages.lib.pages.card_inputs import CardInputs
from stages.lib.render import numbers
from stages.lib.render.markdown import code, escaped, fenced, listed, markdown_table
from stages.lib.results.differences import compare
from stages.lib.results.scores import ScoreRow, rows_of
from stages.lib.run_directory import journal
from stages.lib.scoring.aggregations import BITS_OF_ANSWER
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

"""An export with all that a card is made from, without training, conversion or scoring."""

import json

from stages.lib import files, manifest
from tests.helpers.export_fixtures import STEP

SUITE = "validation"
SOURCES = {"code": {"kind": "python-code", "validation": 0.15}, "prose": {"kind": "jsonl", "paths": ["p.jsonl"]}}
RESULTS = {
    "next_line": {"acc_mutual_info": {"value": 0.4375, "stderr": 0.022, "n": 500}},
    "bits_per_byte_code": {
        "bits_per_byte": {"value": 2.25, "stderr": 0.031, "n": 12},
        "byte_perplexity": {"value": 4.757, "stderr": None, "n": 12},
    },
    "hellaswag": {"acc": {"value": 0.2875, "stderr": 0.0045, "n": 10042}},
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 360,
    "max_position_embeddings": 256,
    "dtype": "bfloat16",
}
RECIPE = {
    "seq_len": 128,
    "global_batch_size": 2,
    "optimizer": {"learning_rate": 0.002},
    "schedule": {"warmup_steps": 1},
}


def write(path, stage, identity, record=None):
    manifest.write(path, stage, identity, record or {})
    return path


def write_list(root, source, recipe, **record):
    identity = {"source": source, "recipe": recipe, "files": []}
    return write(root / f"sources/{source}/list.json", "list", identity, {"etags": {}, **record})


def write_corpus(root, licenses=None):
    split = {"documents": 8, "tokens": 1_000, "text_bytes": 4_000_000, "shards": []}
    sources = {name: {"train": split, "validation": split} for name in SOURCES}
    tokenizer = {"digest": "t" * 64, "vocab_size": 360, "bos": 1, "eos": 2, "bos_added": True}
    record = {"licenses": licenses or {}, "dropped": {"code": {"filters.min_words": 7}, "prose": {}}}
    identity = {"recipe": {}, "tokenizer": tokenizer, "sources": sources}
    return write(root / "tokens/main/manifest.json", "index", identity, record)


def write_history(train):
    """Three steps and an evaluation; a fourth step is of the next milestone."""
    lines, device = [], {"device": "NVIDIA H100 80GB HBM3", "world_size": 8}
    for step in (1, 2, 3, 4):
        drawn = {
            "source_tokens": {"code": 192 * step, "prose": 64 * step},
            "source_epochs": {"code": 5.5, "prose": 0.1},
        }
        lines.append({"step": step, "tokens": 256 * step, "loss": 6 - step, "seconds": 900.0, "time": step, **drawn})
        if step in (3, 4):
            scores = {"code": {"loss": 3.25 + step, "loss_bits_per_byte": 1.125}}
            lines.append({"step": step, "tokens": 256 * step, "validation": scores, "time": step})
    train.mkdir(parents=True, exist_ok=True)
    (train / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (train / "events.jsonl").write_text(json.dumps({"time": 0, "event": "start", "step": 0, **device}) + "\n")


def write_model(root, corpus, run="base", stage="pretrain", initial=None, **recipe):
    """Write the manifest of a milestone, and the run directory."""
    write_history(root / f"runs/{run}/train/0123")
    identity = {"recipe": {**RECIPE, **recipe}, "corpus": manifest.read(corpus).digest, "step": STEP, "tokens": 768}
    if stage == "finetune":
        identity["tuned_on"] = {"statements": "d" * 64}
    record = {"run_directory": "../train/0123", "horizon": {"steps": 10}, "world_size": 8, "commit": "c0ffee"}
    record["data"] = {"mixture": [{"from_sample": 0, "slots": {"code": 3072, "prose": 1024}}]}
    record |= {"initial": initial} if initial else {}
    return write(root / f"runs/{run}/models/{STEP:08d}.json", stage, identity, record)


def write_export(model, corpus, template=None):
    """Write a directory with a config, a tokenizer, weights that nobody loads, and the manifest of the export."""
    directory = model.parents[1] / f"export/{STEP:08d}"
    directory.mkdir(parents=True)
    files.write_json(directory / "config.json", CONFIG)
    files.write_json(directory / "tokenizer.json", {"normalizer": {"type": "Replace"}})
    (directory / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    logits = {"tokens": 804, "max_difference": 6.2e-06, "allowed": 0.0002}
    files.write_json(
        directory / "parity.json", {"passed": True, "logits": logits, "greedy": {"prompts": 4, "text": ["a b c d"] * 4}}
    )
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    if template:
        names.append("chat_template.jinja")
        (directory / "chat_template.jinja").write_text(template)
    identity = {
        **{"recipe": {}, "model": manifest.read(model).digest, "corpus": manifest.read(corpus).digest},
        **{"tokenizer": "t" * 64, "step": STEP, "tokens": 768, "seq_len": 128},
        "outputs": {name: manifest.describe(directory / name) for name in names},
    }
    return write(directory / "manifest.json", "convert", identity, {"parameters": 4_200_000})


def write_scores(path, export="e" * 64, results=RESULTS):
    """Write the scores of a suite, of a run's step if its directory is a number, else of a baseline."""
    of_step = {"step": int(path.parent.name)} if path.parent.name.isdigit() else {}
    identity = of_step | {
        "recipe": {"tasks": ["x"], "num_examples": 500},
        "suite": path.stem,
        "export": export,
        "results": results,
    }
    return write(path, "evaluate", identity | {"outputs": {}}, {"device": "cuda", "versions": {"lm_eval": "0.4.13"}})


def write_inputs(root, run="base", stage="pretrain", licenses=None, initial=None, template=None, **recipe):
    """Write everything for a run; return describe's options, lists of words. `template`: text of a chat template."""
    corpus = write_corpus(root, licenses)
    lists = [write_list(root, name, keys) for name, keys in SOURCES.items()]
    model = write_model(root, corpus, run, stage, initial, **recipe)
    export = write_export(model, corpus, template)
    scores = write_scores(root / f"runs/{run}/eval/{STEP:08d}/{SUITE}.json", manifest.read(export).digest)
    return {
        **{"--name": [run], "--model": [model], "--export": [export], "--corpus": [corpus], "--lists": lists},
        **{"--evaluations": [scores], "--output": [export.with_name("card.json")]},
    }


def words(options, **more):
    """The command line of {option: words}."""
    return [str(word) for name, given in {**options, **more}.items() for word in (name, *given)]

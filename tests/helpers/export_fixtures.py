"""A small tokenizer, corpus and checkpoint, inputs of convert and evaluate; the weights are random."""

import random
import shutil
from pathlib import Path

import torch

from stages.lib import files, manifest
from stages.lib.checkpoints import dcp
from stages.lib.checkpoints.commit import directory_of
from stages.lib.distributed.process_group import process_group
from stages.lib.huggingface import config_json
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.transformer import Transformer
from tests.helpers.data_fixtures import corpus_of

MODEL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
STEP = 3
VOCABULARY = 360
WORDS = ("def", "return", "self", "value", "for", "name", "in", "range", "import", "class", "if", "not", "none", "true")


def document(chance, lines):
    """Text that looks a little like code: indented lines of words, some alike in length."""
    made = []
    for _ in range(lines):
        words = " ".join(chance.choice(WORDS) for _ in range(chance.randint(3, 8)))
        made.append(" " * 4 * chance.randint(0, 2) + words + chance.choice(["", ":", "()", " = 12", "  # \u00e9"]))
    return "\n".join(made) + "\n"


def documents(source, count=12, lines=80):
    """(id, text) of a source, always the same."""
    chance = random.Random(source)
    return [(f"{source}/{number}.py", document(chance, lines)) for number in range(count)]


def write_corpus(directory, sources=("code", "prose"), **tokenize_recipe):
    """Make the tokenizer and the corpus of `documents(source)` below `directory`; returns the corpus' manifest."""
    entries = {source: [text for _, text in documents(source)] for source in sources}
    return corpus_of(directory, entries, {"vocab_size": VOCABULARY}, validation=0.33, **tokenize_recipe)


def random_model(recipe, vocab_size):
    """A Llama with random weights that give logits of a standard deviation near 1."""
    torch.manual_seed(0)
    model = Transformer(recipe, vocab_size)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.normal_(1, 0.1)
            else:
                weight.normal_(0, recipe.hidden_size**-0.5 * (0.7 if "layers" in name else 1))
    return model


def write_model(directory, corpus, model_config=MODEL, run="base", padding=3):
    """Write a checkpoint of random weights and its milestone manifest; returns the manifest's path.

    The embedding has `padding` more rows than the vocabulary has tokens.
    """
    corpus = manifest.read(corpus)
    facts = corpus.identity["tokenizer"]
    model = random_model(LlamaRecipe(**model_config), facts["vocab_size"] + padding)
    models = directory / "runs" / run / "models"
    run_directory = models.parent / "train" / "0123456789abcdef"
    at = directory_of(run_directory, STEP)
    with process_group():
        dcp.save(at, {"model": model.state_dict()}, {"step": STEP})
    relative = f"../train/{run_directory.name}/checkpoints/{at.name}"
    outputs = {f"{relative}/{path.name}": manifest.describe(path) for path in sorted(at.iterdir())}
    identity = {
        "recipe": {"model": model_config, "seq_len": 128},
        "corpus": corpus.digest,
        "tokenizer": facts["digest"],
        "step": STEP,
        "samples": 6,
        "tokens": 768,
        "checkpoint": relative,
        "outputs": outputs,
    }
    record = {"horizon": {"steps": STEP}, "run_directory": f"../train/{run_directory.name}", "code": None}
    models.mkdir(parents=True, exist_ok=True)
    manifest.write(models / f"{STEP:08d}.json", "pretrain", identity, record)
    return models / f"{STEP:08d}.json"


def write_settings(directory, config):
    """Write config.json and generation_config.json."""
    for name, content in config_json.files_of(config).items():
        files.write_json(directory / name, content)


def write_inputs(directory, **options):
    """Write tokenizer, corpus and model under `directory`; returns convert's options for them."""
    corpus, tokenizer = write_corpus(directory), directory / "tokenizers" / "main" / "manifest.json"
    model = write_model(directory, corpus, **options)
    output = model.parents[1] / "export" / f"{STEP:08d}" / "manifest.json"
    return {"--model": model, "--corpus": corpus, "--tokenizer": tokenizer, "--output": output}


def copied(options, directory):
    """Options for a copy of the results that they name, for tests that change something."""
    root = options["--corpus"].parents[2]
    copy = shutil.copytree(root, directory / "results")
    return {name: copy / of.relative_to(root) if isinstance(of, Path) else of for name, of in options.items()}


def argv_of(options, **more):
    """The argument list of {option: value}."""
    return [str(word) for pair in {**options, **more}.items() for word in pair]

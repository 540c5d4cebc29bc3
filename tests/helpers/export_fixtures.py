"""A small tokenizer, corpus and checkpoint, inputs of convert and evaluate; the weights are random."""

import io
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from stages.lib import files, manifest
from stages.lib.checkpoints import dcp
from stages.lib.checkpoints.commit import directory_of
from stages.lib.distributed.process_group import process_group
from stages.lib.huggingface import config_json
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.transformer import Transformer
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens.corpus import BYTES_OF_IDS

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


def write_tokenizer(directory, texts):
    """Train a SentencePiece model and package it for transformers; returns the manifest's path."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    directory.mkdir(parents=True)
    trained = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts),  # whole texts: a piece may hold a line end
        model_writer=trained,
        vocab_size=VOCABULARY,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        num_threads=1,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    (directory / "tokenizer.model").write_bytes(trained.getvalue())
    pieces = SentencePieceProcessor(model_proto=trained.getvalue())
    names = [pieces.id_to_piece(number) for number in range(pieces.get_piece_size())]
    ids = {name: number for number, name in enumerate(names)}
    merges = []
    for name, number in ids.items():
        for at in range(1, len(name)):
            left, right = name[:at], name[at:]
            if left in ids and right in ids:
                merges.append((number, ids[left], ids[right], left, right))
    merges = [(left, right) for *_, left, right in sorted(merges)]
    model = models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made = Tokenizer(model)
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    made.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    files.write_json(directory / "tokenizer_config.json", config)
    outputs = {path.name: manifest.describe(path) for path in sorted(directory.iterdir())}
    made_of = {"recipe": {}, "pieces": names, "vocab_size": len(names), "unk": 0, "bos": 1, "eos": 2}
    record = {f"model_{key}": value for key, value in outputs["tokenizer.model"].items()}
    manifest.write(directory / "manifest.json", "train_tokenizer", made_of | {"outputs": outputs}, record)
    return directory / "manifest.json"


def write_split(directory, name, encoded, texts):
    """Write a shard of encoded documents; returns the entry of the corpus manifest for the split."""
    dtype = np.uint16
    tokens = np.concatenate([np.array(document, dtype) for document in encoded])
    schema = pa.schema([("tokens", pa.large_list(pa.uint16()))])
    path = directory / f"{name}-00000.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    column = pa.array([list(map(int, document)) for document in encoded], schema.field("tokens").type)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([column], schema))
    counts = {"documents": len(encoded), "tokens": len(tokens), "text_bytes": sum(len(text.encode()) for text in texts)}
    batch = {
        "documents": len(encoded),
        "tokens": len(tokens),
        "offsets_at": 0,
        "values_at": path.read_bytes().index(tokens.tobytes()),
    }
    shard = {
        "path": str(path.relative_to(directory.parents[1])),
        **manifest.describe(path),
        **counts,
        "batches": [batch],
    }
    return {**counts, "shards": [shard]}


def write_corpus(directory, tokenizer, sources=("code", "prose"), bos_added=True):
    """Write a corpus of `documents(source)`; the last third is its validation split. Returns the manifest's path."""
    from sentencepiece import SentencePieceProcessor

    made = manifest.read(tokenizer)
    encode = SentencePieceProcessor(model_file=str(made.directory / "tokenizer.model")).encode
    described = {}
    for source in sources:
        every = documents(source)
        splits = {"train": every[: len(every) * 2 // 3], "validation": every[len(every) * 2 // 3 :]}
        part = directory / source / "00000"
        described[source] = {}
        for split, chosen in splits.items():
            encoded = [[1] * bos_added + encode(text) + [2] for _, text in chosen]
            described[source][split] = write_split(part, split, encoded, [text for _, text in chosen])
        with files.atomic(part / "validation.jsonl", "w") as file:
            file.writelines(json.dumps({"id": name, "text": text}) + "\n" for name, text in splits["validation"])
        path = part / "validation.jsonl"
        described[source]["validation"]["texts"] = [
            {"path": f"{source}/00000/validation.jsonl", **manifest.describe(path)}
        ]
    facts = {
        "digest": made.digest,
        "vocab_size": made.identity["vocab_size"],
        "bos": 1,
        "eos": 2,
        "bos_added": bos_added,
    }
    identity = {"recipe": {}, "tokenizer": facts, "dtype": "uint16", "sources": described}
    sizes = directory / BYTES_OF_IDS
    np.save(sizes, Tokenizer(tokenizer).bytes_of_ids())
    record = {"files": manifest.described([sizes], directory), "bytes_scale": dict.fromkeys(sources, 1.0)}
    manifest.write(directory / "manifest.json", "index", identity, record)
    return directory / "manifest.json"


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
    texts = [text for source in ("code", "prose") for _, text in documents(source)]
    tokenizer = write_tokenizer(directory / "tokenizers" / "main", texts)
    corpus = write_corpus(directory / "tokens" / "main", tokenizer)
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

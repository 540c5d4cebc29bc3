"""Custom tokenizers: byte-level BPE of Llama 3's kind, made with Hugging Face's tokenizers."""

import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from stages import train_tokenizer
from tests.helpers.data_fixtures import make, texts

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHER = r"\p{L}+|\d|\s+|[^\s\p{L}\d]+"
"""A pattern that no known tokenizer uses."""


def write(path, *, pattern=LLAMA3, normal_form=None, unused=0, ignore_merges=True):
    """Write a tokenizer.json of 400 ids and three special tokens, and `unused` ids between them; returns its path."""
    made = Tokenizer(models.BPE())
    made.normalizer = normal_form and getattr(normalizers, normal_form)()
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts("a", 50) + texts("b", 50), trainer)
    made.add_special_tokens([BOS, EOS, "<|eot_id|>"])
    single = processors.TemplateProcessing(f"{BOS} $A", f"{BOS} $A {BOS} $B", [(BOS, made.token_to_id(BOS))])
    made.post_processor = processors.Sequence([processors.ByteLevel(), single])
    package = json.loads(made.to_str())
    package["model"]["ignore_merges"] = ignore_merges
    package["model"]["vocab"] |= {f"unused {number}": 400 + number for number in range(unused)}
    for token in package["added_tokens"]:
        token["id"] += unused
    return write_package(path, package)


def taken(path, directory):
    """The manifest of the tokenizer at `path`, as the corpora below `directory` have it."""
    output = directory / "tokenizers" / "main" / "manifest.json"
    return make(train_tokenizer, recipe={"path": str(path), "bos": BOS, "eos": EOS}, output=output)


def write_package(path, package):
    """Write data as a tokenizer.json; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(package), encoding="utf-8")
    return path

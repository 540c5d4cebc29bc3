"""A tokenizer by its manifest: a trained one of SentencePiece, or a user's own of Hugging Face's tokenizers.

Both have a package in the form that Hugging Face's libraries read: the trained one's is the twin of its model.
"""

import functools
import json
import os

import numpy as np

from stages.lib import files, manifest
from stages.lib.errors import UserError

MODEL = "tokenizer.model"
PACKAGE = ("tokenizer.json", "tokenizer_config.json")
SPACE = "\u2581"
CONTROL = "<(?=(0x[0-9A-F]{2}|/?s|unk)>)"
"""Where a text says the name of a control or byte piece; unigram in the package would take it for the piece itself."""


class Tokenizer:
    """A tokenizer by the path of its manifest: `bos`, `eos`, `vocabulary`, `digest`.

    `package`: the path of its tokenizer.json. `library`: the one that `encode` calls, whose ids are the right ones.

    Raises UserError naming the file when one vanished or changed since the manifest was written.
    """

    def __init__(self, path):
        self.manifest = manifest.read(path)
        if "bos" not in self.manifest.identity:
            raise UserError(f"{path} must be a tokenizer's manifest, and is another's")
        for name, described in self.manifest.identity["outputs"].items():
            manifest.check_content(self.manifest.directory / name, described, path)
        self.digest = self.manifest.digest
        self.bos, self.eos = self.manifest.identity["bos"], self.manifest.identity["eos"]
        self.vocab_size = self.manifest.identity["vocab_size"]
        self.package = self.manifest.directory / PACKAGE[0]
        self._decoder = None
        # unigram: SentencePiece adds scores in float32, so that the package (float64) breaks ties differently, and ids
        # would depend on who made them. The package is what a model is scored and used with, so it decides.
        model = self._checked_model(path) if "pieces" in self.manifest.identity else None
        is_bpe = model is not None and self.manifest.identity["recipe"].get("model", "bpe") == "bpe"
        self.library = "sentencepiece" if is_bpe else "tokenizers"
        self._encode = _sentencepiece(model) if is_bpe else package_encoder(self.package)

    def _checked_model(self, path):
        """The path of a trained tokenizer's model, which is no output: it holds its trainer's arguments as well."""
        record, model = self.manifest.record, self.manifest.directory / MODEL
        manifest.check_content(model, {"bytes": record["model_bytes"], "sha256": record["model_sha256"]}, path)
        return model

    def encode(self, texts):
        """The ids of each text, int32 arrays, without BOS and EOS. A literal `</s>` in a text is only text."""
        return self._encode(texts)

    def decode(self, ids):
        """The text of ids, without the special tokens among them."""
        if self._decoder is None:
            import tokenizers

            self._decoder = tokenizers.Tokenizer.from_file(str(self.package))
        return self._decoder.decode(ids)


def _sentencepiece(model):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return functools.partial(processor.encode, return_type="numpy")


def package_encoder(path):
    """The function by which tokenizers encodes texts with a tokenizer.json: their ids, without special tokens."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread, as SentencePiece: parts are what is parallel
    import tokenizers

    package = tokenizers.Tokenizer.from_file(str(path))
    package.encode_special_tokens = True

    def encode(texts):
        return [np.array(found.ids, np.int32) for found in package.encode_batch_fast(texts, add_special_tokens=False)]

    return encode


def pieces_of(processor):
    """[[piece, score, kind]] of all ids: what a tokenizer is, whatever else its file says."""
    return [[processor.id_to_piece(i), processor.get_score(i), _kind(processor, i)] for i in range(len(processor))]


def _kind(processor, number):
    for kind in ("unknown", "control", "byte", "unused"):
        if getattr(processor, f"is_{kind}")(number):
            return kind
    return "normal"


def write_package(directory, processor, kind):
    """Write tokenizer.json and tokenizer_config.json so that transformers gives SentencePiece's ids, with BOS in front.

    `kind`: bpe or unigram. The tokenizer class must be PreTrainedTokenizerFast: LlamaTokenizer rebuilds the
    pre-tokenizer and gives other ids. `split_special_tokens` keeps a literal `</s>` in a text from becoming the control
    token.
    """
    bos, eos, unk = (processor.id_to_piece(i) for i in (processor.bos_id(), processor.eos_id(), processor.unk_id()))
    special = [
        {"id": processor.piece_to_id(piece), "content": piece, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for piece in (unk, bos, eos)
    ]
    package = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": None if kind == "bpe" else _cut_at(CONTROL),
        "post_processor": bos_in_front(bos, processor.bos_id()),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": _bpe(processor, unk) if kind == "bpe" else _unigram(processor),
    }
    write_files(directory, package, bos, eos, unk)


def bos_in_front(bos, number):
    """A post-processor that puts BOS, a piece and its id, before each text."""
    template = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [{"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "type": "TemplateProcessing",
        "single": template,
        "pair": template + pair,
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }


def write_files(directory, package, bos, eos, unk=None):
    """Write the two files of a package: `package` as tokenizer.json, and what transformers must know of it."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        **({"unk_token": unk} if unk is not None else {}),
        "add_bos_token": True,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(1e30),
    }
    with files.atomic(directory / "tokenizer.json", "w") as file:
        json.dump(package, file, ensure_ascii=False)
    files.write_json(directory / "tokenizer_config.json", config)


def _cut_at(pattern):
    """A pre-tokenizer that cuts a text after each match, so that no piece goes over the cut."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "MergedWithPrevious", "invert": False}


def _bpe(processor, unk):
    vocab_size = {processor.id_to_piece(i): i for i in range(len(processor))}
    normal = {piece: i for piece, i in vocab_size.items() if _kind(processor, i) == "normal"}
    merges = []
    for piece, number in normal.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in normal and right in normal:
                merges.append((-processor.get_score(number), normal[left], normal[right], [left, right]))
    # SentencePiece merges the pair whose result has the highest score, the leftmost first: the result decides
    merges.sort(key=lambda merge: merge[:3])
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocab_size,
        "merges": [pair for *_, pair in merges],
    }


def _unigram(processor):
    pieces = [[processor.id_to_piece(i), processor.get_score(i)] for i in range(len(processor))]
    return {"type": "Unigram", "unk_id": processor.unk_id(), "byte_fallback": True, "vocab": pieces}

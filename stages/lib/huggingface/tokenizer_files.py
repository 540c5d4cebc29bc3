"""The files of a tokenizer in an export: copies of its package, without the template of BOS if training had none.

A model that was tuned on conversations has their chat template beside them. A BPE tokenizer of SentencePiece has its
tokenizer.model, from which llama.cpp's converter makes a GGUF; transformers reads tokenizer.json alone.
"""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.chat import template as chat_template
from stages.lib.manifest import TokenizerManifest
from stages.lib.tokenizer.tokenizer import MODEL

PACKAGE = "tokenizer.json"
COPIED = (PACKAGE, "special_tokens_map.json")
TRAINER_SPEC, SELF_TEST = 2, 4
"""Fields of SentencePiece's ModelProto (sentencepiece_model.proto)."""

OF_THE_MODEL = (3, 4, 24, 35, *range(40, 49))
"""Fields of its TrainerSpec that describe the model: its kind and size, byte_fallback, the special pieces."""

WITHOUT_BOS = {"post_processor": None}
"""The change of tokenizer.json if training had no BOS: the template would put one before each text."""


def copy(directory: Path, tokenizer: TokenizerManifest, bos_added: bool, template: str | None = None) -> None:
    """Copy the files that exist to an export, and write the text of the chat template."""
    for path in _paths(tokenizer):
        shutil.copyfile(path, directory / path.name)
    if not bos_added:
        files.write_json(directory / PACKAGE, files.read_json_object(directory / PACKAGE) | WITHOUT_BOS)
    if (model := model_of(tokenizer)) is not None:
        (directory / MODEL).write_bytes(model)
    if template is not None:
        (directory / chat_template.FILE).write_bytes(template.encode())


def contents(tokenizer: TokenizerManifest, bos_added: bool, template: str | None = None) -> dict[str, Any]:
    """Return what the export must have: {name: content} of JSON files, {name: sha256} of others."""
    found: dict[str, Any] = {}
    for path in _paths(tokenizer):
        found[path.name] = files.read_json(path)
    if not bos_added:
        found[PACKAGE] |= WITHOUT_BOS
    if (model := model_of(tokenizer)) is not None:
        found[MODEL] = hashlib.sha256(model).hexdigest()
    if template is not None:
        found[chat_template.FILE] = hashlib.sha256(template.encode()).hexdigest()
    return found


def is_sentencepiece_bpe(tokenizer: TokenizerManifest) -> bool:
    """Return True for a tokenizer that SentencePiece trained as BPE: the kind whose tokenizer.model llama.cpp reads."""
    return "pieces" in tokenizer.identity and tokenizer.identity["recipe"].get("model", "bpe") == "bpe"


def model_of(tokenizer: TokenizerManifest) -> bytes | None:
    """Return the tokenizer.model of an export without the arguments of its training; None for other tokenizers.

    Raises UserError if the file changed since the manifest was written.
    """
    if not is_sentencepiece_bpe(tokenizer):
        return None
    record, path = tokenizer.record, tokenizer.directory / MODEL
    manifest.check_content(path, {"bytes": record["model_bytes"], "sha256": record["model_sha256"]}, tokenizer.path)
    made = []
    for number, whole, value in _fields(path.read_bytes()):
        if number == TRAINER_SPEC:
            kept = b"".join(inner for field, inner, _ in _fields(value) if field in OF_THE_MODEL)
            made += [b"\x12", _varint(len(kept)), kept]
        elif number != SELF_TEST:
            made.append(whole)
    return b"".join(made)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (number, all bytes, value without tag and length) of the fields of a protobuf message."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, end = at, _read_varint(message, at)[1]
        elif kind == 2:
            length, value = _read_varint(message, at)
            end = value + length
        else:  # 64 or 32 bits
            value, end = at, at + (8 if kind == 1 else 4)
        yield tag >> 3, message[begin:end], message[value:end]
        at = end


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return (number, place behind it)."""
    number = shift = 0
    while message[at] & 0x80:
        number |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | message[at] << shift, at + 1


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def _paths(tokenizer: TokenizerManifest) -> list[Path]:
    return [tokenizer.output(name) for name in COPIED if name in tokenizer.identity["outputs"]]

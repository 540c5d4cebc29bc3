"""Parity of an exported tokenizer with the one of the training: token ids and decoded text.

It is compared with the tokenizer of the corpus, by the library that encoded the corpus, and with the corpus' tokens.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.lib.chat.template import ChatTemplate, LimitError
from stages.lib.errors import UserError
from stages.lib.parity.parity import ParityError
from stages.lib.tokenizer.edge_cases import EDGE_CASES
from stages.lib.tokenizer.tokenizer import Tokenizer, load_package, special_tokens
from stages.lib.tokens.corpus import Corpus, compared_documents, validation_documents

if TYPE_CHECKING:
    from pathlib import Path

    from stages.lib.manifest import CorpusManifest, TokenizerManifest
    from stages.lib.manifest_types import CorpusTokenizer

Encode = Callable[[str], list[int]]
Decode = Callable[[list[int]], str]


def load_tokenizer(directory: Path, **options: Any) -> Any:
    """The tokenizer of an export, as transformers loads it. `options`: in place of those of its files."""
    from transformers import AutoTokenizer

    # a length would only give a warning: documents are encoded whole
    return AutoTokenizer.from_pretrained(directory, model_max_length=int(1e30), **options)


def reference(tokenizer: Tokenizer) -> tuple[Encode, Decode | None]:
    """The functions text -> ids and ids -> text with which an export is compared: those of the corpus' tokenizer.

    SentencePiece decodes ids to the text that was encoded: its second function is None. A custom tokenizer may not.
    """

    def encode(text: str) -> list[int]:
        (ids,) = tokenizer.encode([text])
        return ids.tolist()

    if tokenizer.library == "sentencepiece":
        return encode, None
    package = load_package(tokenizer.package.read_text(encoding="utf-8"))
    return encode, functools.partial(package.decode, skip_special_tokens=False)


def compare(
    directory: Path, corpus: CorpusManifest, tokenizer: TokenizerManifest, characters: int, template: str | None
) -> dict[str, dict[str, int]]:
    """Compare the tokenizer of an export; return the counts of texts and tokens, by their origin.

    `characters`: of validation text per source. `template`: text of the chat template of the training, if it had one.
    Raises ParityError at the first difference.
    """
    exported = load_tokenizer(directory, split_special_tokens=True)  # documents are encoded so
    compare_special_tokens(exported, corpus.identity["tokenizer"])
    trained = Tokenizer(tokenizer.path)
    expected = reference(trained)
    report = {"edge cases": compare_ids(expected, exported, EDGE_CASES, "edge case")}
    for source in sorted(corpus.identity["sources"]):
        texts = validation_texts(corpus, source, characters)
        report[source] = compare_ids(expected, exported, texts, f"validation document of {source}")
    compare_corpus_tokens(exported, Corpus(corpus.path))
    if template is not None:
        report["chats"] = compare_chats(load_tokenizer(directory), trained, template, EDGE_CASES)
    return report


def compare_special_tokens(exported: Any, tokenizer: CorpusTokenizer) -> None:
    """Raise ParityError unless the export has the corpus' special tokens, and begins a text as in training."""
    for name, number in tokenizer.get("fill_in_the_middle", {}).items():
        token = exported.added_tokens_decoder.get(number)
        if token is None or not token.special:
            raise ParityError(f"the export must have the special token {number}, that of {name} in fill-in-the-middle")
        if number in exported.encode(f"a{token.content} {token.content}"):
            raise ParityError(f"the export must give no text the special token {token.content!r}, and does")
    special = (("bos", exported.bos_token_id, tokenizer["bos"]), ("eos", exported.eos_token_id, tokenizer["eos"]))
    for name, found, expected in special:
        if found != expected:
            raise ParityError(f"the export's {name} must be that of the corpus, {expected}, found {found}")
    found = exported.encode("a")[: -len(exported.encode("a", add_special_tokens=False))]
    first = [tokenizer["bos"]] if tokenizer["bos_added"] else []
    if found != first:
        raise ParityError(f"the export must begin a text with the tokens {first}, as the corpus does, found {found}")


def validation_texts(corpus: CorpusManifest, source: str, limit: int) -> Iterator[str]:
    """Yield validation documents of a source up to `limit` characters; the last one may be cut.

    `corpus`: its manifest.
    """
    for _, text in validation_documents(corpus, source):
        yield text[:limit]
        limit -= len(text)
        if limit <= 0:
            break


def compare_corpus_tokens(exported: Any, corpus: Corpus) -> None:
    """Encode each source's first validation documents with the export, and compare with the tokens in its shards.

    Raises ParityError naming the first document that differs.
    """

    def encode(texts: list[str], _: Any) -> list[np.ndarray]:
        return [np.array(exported.encode(text, add_special_tokens=False), np.int64) for text in texts]

    for source, name, _, is_same in compared_documents(corpus, encode):
        if not is_same:
            raise ParityError(f"validation document {name} of {source} has other tokens in the corpus than here")


def compare_chats(exported: Any, tokenizer: Tokenizer, template: str, texts: Iterable[str]) -> dict[str, int]:
    """Compare the token ids of conversations of each text with those of training; returns the count {"conversations"}.

    `exported`: the AutoTokenizer of the export. `template`: text of the chat template. Conversations that the template
    refuses are left out. Raises ParityError naming the first text that differs.
    """
    if exported.chat_template != template:
        raise ParityError("the export's chat template differs from the training's")
    compiled = ChatTemplate(template, special_tokens(tokenizer.manifest), "of the training")
    special, count = tokenizer.special_texts(), 0
    for text in texts:
        if not text.strip() or any(name in text for name in special):
            continue
        turns = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
        for messages in (turns, turns * 2):
            try:
                rendered = compiled.render(messages, "a conversation")
            except LimitError:  # it would take as long for each conversation, and no time limit holds in transformers
                return {"conversations": count}
            except UserError:
                continue
            ((ids, _),) = tokenizer.encode_markup([rendered])
            if exported.apply_chat_template(messages, return_dict=False) != ids.tolist():
                raise ParityError(f"the export gives a conversation other token ids than the training: {text[:80]!r}")
            count += 1
    return {"conversations": count}


def compare_ids(
    expected: tuple[Encode, Decode | None], exported: Any, texts: Iterable[str], label: str
) -> dict[str, int]:
    """Compare the token ids of each text, and the text that they decode to; returns the counts {"texts", "tokens"}.

    `expected`: from `reference`. `exported`: the AutoTokenizer of the export. Raises ParityError naming the
    first text that differs.
    """
    encode, decode = expected
    num_texts = num_tokens = 0
    for text in texts:
        ids, found = encode(text), exported.encode(text, add_special_tokens=False)
        if ids != found:
            pairs = itertools.zip_longest(ids, found)
            at = next(number for number, (a, b) in enumerate(pairs) if a != b)
            raise ParityError(
                f"{label} {num_texts} must have the token ids of training, from token {at} on {ids[at : at + 4]}, "
                f"found {found[at : at + 4]} in {text[:80]!r}"
            )
        # SentencePiece decodes its mark of a space to a space
        written = decode(ids) if decode else text.replace("\u2581", " ")
        if exported.decode(found) != written:
            raise ParityError(f"{label} {num_texts} is not what its token ids decode to: {text[:80]!r}")
        num_texts += 1
        num_tokens += len(ids)
    return {"texts": num_texts, "tokens": num_tokens}

"""Is the exported model the one that was trained? Logits, greedy text and token ids, ours against transformers'.

Everything is compared in float32 on the CPU, with the weights as exported on both sides: correct code then differs by
less than 1e-5 at logits of std 1, while in bfloat16 it differs by 0.06 and a real mistake can hide.
"""

import itertools
import json

import numpy as np
import torch

from stages.lib.log import logger
from stages.lib.sources.documents import Document
from stages.lib.sources.split import VALIDATION
from stages.lib.tokens import bos_eos, validation_text

LENGTHS = (1, 17, 128, 512)  # tokens; the longest validation stretch that is compared
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 16, 32


class ParityError(Exception):
    """The exported model or tokenizer is not the one that was trained; the export must not be used."""


def validation_batch(corpus, max_position_embeddings):
    """Validation tokens of a `Corpus` at several lengths: a list of int64 [1, L]. Training tokens if it has none."""
    batch = []
    for stream in _streams(corpus):
        at = 0
        for length in LENGTHS:
            tokens = stream.read(at, min(length, max_position_embeddings))
            at += len(tokens)
            if len(tokens):
                batch.append(torch.from_numpy(tokens.astype("int64")).unsqueeze(0))
        stream.close()
    return batch


def validation_prompts(corpus, max_position_embeddings):
    """Beginnings for greedy text: int64 [PROMPTS, at most PROMPT_TOKENS], spread over the validation streams."""
    streams = _streams(corpus)
    length = min(PROMPT_TOKENS, max_position_embeddings - NEW_TOKENS, *(len(stream) for stream in streams))
    rows = []
    for number in range(PROMPTS):
        stream = streams[number % len(streams)]
        rows.append(stream.read(number * (len(stream) - length) // PROMPTS, length).astype("int64"))
    for stream in streams:
        stream.close()
    return torch.stack([torch.from_numpy(row) for row in rows])


def _streams(corpus):
    streams = [corpus.stream(source, "validation") for source in sorted(corpus.sources)]
    streams = [stream for stream in streams if len(stream)]
    return streams or [corpus.stream(source) for source in sorted(corpus.sources)]


def load_exported(directory):
    """The export as transformers loads it, float32; its weights must be all there and of the right shapes.

    transformers itself only warns about a missing weight, and fills it with random numbers.
    """
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model, info = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    wrong = {name: sorted(map(str, keys)) for name, keys in info.items() if keys}
    if wrong:
        raise ParityError(f"transformers finds the weights of {directory} incomplete: {json.dumps(wrong)}")
    return model.eval()


@torch.inference_mode()
def compare_logits(ours, theirs, batch, tolerance):
    """Compare the logits of `Llama` and `LlamaForCausalLM` on a batch; returns what parity.json says of it.

    `tolerance`: largest absolute difference at logits of std 1 or less; a larger std widens it in proportion.
    Raises ParityError naming the first layer whose output differs.
    """
    differences, agreed, count, squares, total = [], 0, 0, 0.0, 0.0
    for tokens in batch:
        a, b = ours.logits(tokens), theirs(tokens).logits
        differences.append(_difference(a, b))
        agreed += int((a.argmax(-1) == b.argmax(-1)).sum())
        count += tokens.numel()
        squares += float(a.double().square().mean(-1).sum())
        total += float(a.double().mean(-1).sum())
    std = max(squares / count - (total / count) ** 2, 0.0) ** 0.5
    difference = float(torch.tensor(differences).max())  # max() of Python loses a NaN
    allowed = tolerance * max(1.0, std)
    figures = {
        "tokens": count,
        "max_difference": difference,
        "allowed": allowed,
        "std": std,
        "argmax_agreement": agreed / count,
    }
    if not difference <= allowed:  # NaN is not less
        place = first_difference(ours, theirs, batch[-1], tolerance)
        raise ParityError(f"logits differ by {difference:.3g}, allowed {allowed:.3g}; the first to differ is {place}")
    return figures


@torch.inference_mode()
def first_difference(ours, theirs, tokens, tolerance):
    """The name of the first place in the forward of `tokens` where the two models differ."""
    mine = list(ours.base_model.hidden_states(tokens))
    mine.append(ours.base_model.dec_norm(mine[-1]))
    others = _hidden_states(theirs, tokens)
    names = ["the embedding", *(f"layer {number}" for number in range(len(mine) - 2)), "the last norm"]
    for name, a, b in zip(names, mine, others, strict=True):
        if not _difference(a, b) <= tolerance * max(1.0, float(a.std())):
            return f"{name} (by {_difference(a, b):.3g})"
    return "the head"


def _hidden_states(model, tokens):
    """What leaves the embedding, each layer and the last norm of a `LlamaForCausalLM`."""
    seen = []
    modules = [model.model.embed_tokens, *model.model.layers, model.model.norm]
    hooks = [
        module.register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))
        for module in modules
    ]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _difference(a, b):
    return float((a - b).abs().max())


@torch.inference_mode()
def compare_text(ours, theirs, prompts, tolerance):
    """Continue `prompts` [B, L] greedily by both, ours by plain forwards, theirs with its cache; returns [B, L + new].

    Raises ParityError where they part, unless our two tokens there lie within twice the tolerance of each other.
    """
    from transformers import GenerationConfig

    theirs.generation_config.eos_token_id = None  # no end of text, so that all rows grow alike
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    generated = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
    length = prompts.shape[1]
    tokens = prompts
    for _ in range(NEW_TOKENS):
        tokens = torch.cat([tokens, ours.logits(tokens)[:, -1:].argmax(-1)], 1)
    for number, (a, b) in enumerate(zip(tokens, generated, strict=True)):
        parted = (a != b).nonzero()
        if not len(parted):
            continue
        at = int(parted[0])
        logits = ours.logits(a[None, :at])[0, -1]
        gap = float(logits[a[at]] - logits[b[at]])
        if not gap <= 2 * tolerance * max(1.0, float(logits.std())):
            raise ParityError(f"greedy text of prompt {number} parts after {at - length} tokens, by a gap of {gap:.3g}")
        logger.info("greedy text of prompt %d parts after %d tokens at a tie", number, at - length)
    return generated


def load_tokenizer(directory):
    """The tokenizer of an export, as a user of transformers gets it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def reference_encoder(directory):
    """Two functions, from text to ids and from ids to their text, by which an export is judged.

    They are SentencePiece's, or those of tokenizer.json by itself where there is no tokenizer.model: a user's own,
    which may not give back each text (the second is then what it gives). SentencePiece gives back each: None.
    """
    if (directory / "tokenizer.model").exists():
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_file=str(directory / "tokenizer.model")).encode, None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # a literal </s> in a text is text

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    def decode(ids):
        return tokenizer.decode(ids, skip_special_tokens=False)

    return encode, decode


def compare_special_tokens(exported, facts):
    """Raise ParityError unless the tokenizer has the corpus' BOS and EOS, and begins a text as training did.

    `facts`: what the corpus says of its tokenizer.
    """
    for name, found in (("bos", exported.bos_token_id), ("eos", exported.eos_token_id)):
        if found != facts[name]:
            raise ParityError(f"the export's {name} is {found}, and the corpus has {facts[name]}")
    added = exported.encode("a")[: -len(exported.encode("a", add_special_tokens=False))]
    wanted = [facts["bos"]] if facts["bos_added"] else []
    if added != wanted:
        raise ParityError(f"the export begins a text with the tokens {added}, and the corpus with {wanted}")


def validation_texts(corpus, source, limit):
    """Yield validation documents of a source until `limit` characters are reached; the last one may be cut."""
    for _, text in validation_text.documents(corpus, source):
        yield text[:limit]
        limit -= len(text)
        if limit <= 0:
            break


def compare_corpus_tokens(exported, corpus, documents=8):
    """Encode each source's first validation documents with the export, and compare with the tokens in its shards.

    But for sources that came as token ids: these need not be the ones that their text has.

    `corpus`: a `Corpus`. Raises ParityError naming the first document that differs.
    """
    facts = corpus.tokenizer

    def encode(texts, _):
        return [np.array(exported.encode(text, add_special_tokens=False), np.int64) for text in texts]

    for source in sorted(corpus.sources):
        if "ids" in corpus.sources[source]:
            continue
        stream, at = corpus.stream(source, "validation"), 0
        for name, text in itertools.islice(validation_text.documents(corpus.manifest, source), documents):
            (ids,) = bos_eos.ids_of([Document(name, text, VALIDATION)], encode, np.int64)
            wanted = [*[facts["bos"]] * facts["bos_added"], *ids.tolist(), facts["eos"]]
            found = stream.read(at, len(wanted)).tolist()
            if found != wanted:
                raise ParityError(f"validation document {name} of {source} has other tokens in the corpus than here")
            at += len(wanted)
        stream.close()


def compare_ids(reference, exported, texts, label):
    """Compare token ids text by text, and what they decode to; returns {"texts", "tokens"}.

    `reference`: what `reference_encoder` returns. `exported`: the AutoTokenizer of the export.
    Raises ParityError naming the first text that differs.
    """
    encode, decode = reference
    count = tokens = 0
    for text in texts:
        wanted, found = encode(text), exported.encode(text, add_special_tokens=False)
        if wanted != found:
            pairs = itertools.zip_longest(wanted, found)
            at = next(number for number, (a, b) in enumerate(pairs) if a != b)
            raise ParityError(
                f"{label} {count} is tokenized otherwise by the export, from token {at} on: "
                f"{wanted[at : at + 4]} became {found[at : at + 4]} in {text[:80]!r}"
            )
        expected = decode(wanted) if decode else text.replace("\u2581", " ")  # the mark of a space comes back as one
        if exported.decode(found) != expected:
            raise ParityError(f"{label} {count} does not come back from its token ids: {text[:80]!r}")
        count += 1
        tokens += len(wanted)
    return {"texts": count, "tokens": tokens}

"""A preview of a corpus: counts of its sources, its shards, and a sample of its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.lib.errors import UserError
from stages.lib.inspection import terminal
from stages.lib.inspection.corpus_sample import open_shard, runs_of
from stages.lib.inspection.separators import FAULTS, Separators
from stages.lib.inspection.spelling import Spelling
from stages.lib.inspection.terminal import several, share, size
from stages.lib.sources.split import TRAIN, VALIDATION
from stages.lib.tokens.corpus import Corpus

if TYPE_CHECKING:
    from stages.lib.tokenizer.tokenizer import Tokenizer

SPLITS = (TRAIN, VALIDATION)
BOUNDARY = 6  # ids on either side


def show(path: Path, tokenizer: Tokenizer, count: int) -> None:
    """Print the preview of the corpus with the manifest `path`, with `count` documents of each source and split.

    Raises UserError if the corpus has another tokenizer, or a shard is missing, cut or not an Arrow file.
    """
    corpus = Corpus(path)
    if corpus.tokenizer["digest"] != tokenizer.digest:
        raise UserError(
            f"--tokenizer {tokenizer.manifest.path} must be that of {path} (digest {corpus.tokenizer['digest'][:16]}), "
            f"got digest {tokenizer.digest[:16]}"
        )
    print_sources(corpus)
    print_shards(corpus)
    spelling = Spelling(tokenizer)
    for source in corpus.sources:
        for split in SPLITS:
            print_split(corpus, source, split, spelling, count)


def print_sources(corpus: Corpus) -> None:
    """Print a table of sources and splits, and how many records were malformed or filtered."""
    tokenizer = corpus.tokenizer
    print(
        f"corpus {corpus.manifest.path}: digest {corpus.digest[:16]}, {corpus.manifest.identity['dtype']}, vocabulary "
        f"{tokenizer['vocab_size']:,}, BOS {tokenizer['bos']} ({'added' if tokenizer['bos_added'] else 'not added'}), "
        f"EOS {tokenizer['eos']}\n"
    )
    rows = [("source", "split", "documents", "tokens", "tokens per document", "bytes per token", "shards", "license")]
    licenses = corpus.manifest.record.get("licenses", {})
    for name, source in corpus.sources.items():
        rows += [(name, split, *_row(source[split]), licenses.get(name, "unknown")) for split in SPLITS]
    if len(corpus.sources) > 1:
        rows += [("all", split, *_row(_sum(corpus, split)), "") for split in SPLITS]
    print(*terminal.table(rows), sep="\n")
    for name in corpus.sources:
        print(f"malformed or filtered in {name}: {_filtered(corpus, name)}")


def _sum(corpus: Corpus, split: str) -> dict[str, Any]:
    found = [source[split] for source in corpus.sources.values()]
    totals = {key: sum(one[key] for one in found) for key in ("documents", "tokens", "text_bytes")}
    return totals | {"shards": [shard for one in found for shard in one["shards"]]}


def _row(split: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    documents, tokens = split["documents"], split["tokens"]
    return (
        f"{documents:,}",
        f"{tokens:,}",
        f"{tokens / documents:,.1f}" if documents else "-",
        f"{split['text_bytes'] / tokens:.3f}" if tokens else "-",
        f"{len(split['shards']):,}",
    )


def _filtered(corpus: Corpus, name: str) -> str:
    """Return the numbers of malformed records and filtered documents of a source, by reason."""
    reasons = corpus.manifest.record.get("dropped", {}).get(name)
    if reasons is None:
        return f"unknown, since {corpus.manifest.path} is of a version that did not record it"
    total = sum(reasons.values()) + sum(corpus.sources[name][split]["documents"] for split in SPLITS)
    most = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {reason} ({share(count, total)})" for reason, count in most) or "none"


def print_shards(corpus: Corpus) -> None:
    """Print the schema of the shards, and how large they and their batches are."""
    shards = [shard for source in corpus.sources.values() for split in SPLITS for shard in source[split]["shards"]]
    sizes = [shard["bytes"] for shard in shards]
    batches = [batch for shard in shards for batch in shard["batches"]]
    most = max((batch["tokens"] for batch in batches), default=0)
    print(f"\n{several(len(shards), 'shard')} of {size(min(sizes))} to {size(max(sizes))}, ", end="")
    print(f"{several(len(batches), 'batch').replace('batchs', 'batches')} of at most {most:,} tokens")
    for field in open_shard(corpus, shards[0]).schema:
        print(f"  {field.name}: {field.type}{'' if field.nullable else ' not null'}, one document per row")


def print_split(corpus: Corpus, source: str, split: str, spelling: Spelling, count: int) -> None:
    """Print a sample of one split of a source: separators, lengths, document boundaries, documents."""
    runs = runs_of(corpus, corpus.sources[source][split]["shards"])
    separators = Separators(corpus.tokenizer, spelling.unknown)
    for ids in (ids for run in runs for ids in run):
        separators.add(ids)
    num_documents, total = len(separators.lengths), corpus.sources[source][split]["documents"]
    where = "" if len(runs) == 1 else ", from beginning, middle and end"
    print(f"\n{source}, {split}: a sample of {num_documents:,} of {several(total, 'document')}{where}")
    if num_documents:
        print_separators(separators)
        print(*terminal.histogram(separators.lengths, "tokens per document, BOS and EOS included"), sep="\n")
        print_documents([ids for run in runs for ids in run[: -(-count // len(runs))]][:count], spelling)
        for run in runs:
            if len(run) > 1:
                left, right = spelling.named(run[0][-BOUNDARY:]), spelling.named(run[1][:BOUNDARY])
                print(f"  document boundary: {left}  ||  {right}")


def print_separators(separators: Separators) -> None:
    """Print how many documents have misplaced BOS or EOS, and how many ids are the unknown id."""
    num_documents = len(separators.lengths)
    faults = {fault: count for fault, count in separators.counts.items() if count}
    for fault, count in faults.items():
        print(f"  {count:,} ({share(count, num_documents)}) {FAULTS[fault]}")
    if not faults:
        begin = "begins with one BOS, " if separators.tokenizer["bos_added"] else "has no BOS, "
        print(f"  each {begin}ends with one EOS, has neither inside, and is not empty")
    if separators.unknown is not None:
        unknown = separators.num_unknown_ids
        print(f"  unknown ids: {unknown:,} ({share(unknown, sum(separators.lengths))})")


def print_documents(documents: Sequence[np.ndarray], spelling: Spelling) -> None:
    """Print documents by their ids."""
    for ids in documents:
        print(f"  document of {several(len(ids), 'token')}")
        print(*terminal.lines_of(spelling.text(ids)), sep="\n")

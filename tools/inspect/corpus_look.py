"""A preview of a corpus: counts of its sources, its shards, a sample of its documents and the spelling of words."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.manifest_types import COUNTED, SPLITS, SplitName
from stages.lib.render.numbers import several
from stages.lib.render.table import Table
from stages.lib.space import amount
from stages.lib.tokenizer import custom
from stages.lib.tokens.corpus import Corpus
from tools.inspect import terminal
from tools.inspect.terminal import share

if TYPE_CHECKING:
    import pyarrow

    from stages.lib.tokenizer.tokenizer import Tokenizer


RUNS, RUN_DOCUMENTS, RUN_TOKENS = 3, 1000, 1 << 20  # runs per split, and the size of each


def open_shard(corpus: Corpus, shard: Mapping[str, Any]) -> pyarrow.ipc.RecordBatchFileReader:
    """Return Arrow's reader of a shard, memory-mapped. Raises UserError if it is not as the manifest describes it."""
    import pyarrow

    from stages.lib.tokens.shards import schema_of

    path = corpus.manifest.directory / shard["path"]
    manifest.check_size(path, shard["bytes"], corpus.manifest.path)
    dtype = corpus.manifest.identity["dtype"]
    with _arrow_errors(path):
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
    if not reader.schema.equals(schema_of(dtype)):
        raise UserError(f"{path} must be an Arrow file of lists of {dtype} named tokens, got another schema")
    return reader


@contextlib.contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Raise Arrow's errors on a damaged shard as a UserError that names it."""
    import pyarrow

    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} must be an Arrow file: {str(error).partition(chr(10))[0]}") from None


def runs_of(corpus: Corpus, shards: Sequence[Mapping[str, Any]]) -> list[list[np.ndarray]]:
    """Return the ids of runs of neighbouring documents at the beginning, middle and end of a split."""
    shards = [shard for shard in shards if shard["documents"]]
    documents, tokens = (sum(shard[key] for shard in shards) for key in ("documents", "tokens"))
    if documents <= RUNS * RUN_DOCUMENTS and tokens <= RUNS * RUN_TOKENS:
        return [list(_run(corpus, shards, 0, documents))]
    each = max(1, min(RUN_DOCUMENTS, documents // RUNS, RUN_TOKENS * documents // tokens))
    starts = dict.fromkeys((0, (documents - each) // 2, documents - each))
    return [list(_run(corpus, shards, start, each)) for start in starts]


def _run(corpus: Corpus, shards: Sequence[Mapping[str, Any]], start: int, count: int) -> Iterator[np.ndarray]:
    """Yield the ids of `count` documents of a split from number `start` on."""
    for shard in shards:
        if start >= shard["documents"]:
            start -= shard["documents"]
            continue
        reader = open_shard(corpus, shard)
        for number in range(reader.num_record_batches):
            with _arrow_errors(corpus.manifest.directory / shard["path"]):
                batch = reader.get_batch(number)
                batch.validate()
            column = batch.column(0)
            offsets, values = column.offsets.to_numpy(), column.values.to_numpy()
            for at in range(start, len(column)):
                if count == 0:
                    return
                count -= 1
                yield values[offsets[at] : offsets[at + 1]]
            start = max(0, start - len(column))


FAULTS = {
    "no BOS": "do not begin with BOS",
    "BOS": "begin with BOS, which the corpus does not add",
    "no EOS": "do not end with EOS",
    "doubled BOS": "begin with more than one BOS",
    "doubled EOS": "end with more than one EOS",
    "inside": "have BOS or EOS inside",
    "empty": "are empty: no id between BOS and EOS",
    "unknown": "have the unknown id, of text that the tokenizer cannot encode",
    "outside": "have ids that are not in the vocabulary",
}
"""Faults of documents, and their descriptions."""


class Separators:
    """Counts documents by fault. `counts`: by the keys of FAULTS; `lengths`: the number of ids of each document.

    `tokenizer`: of the corpus' manifest (bos, eos, bos_added, vocab_size); `unknown`: the unknown id or None.
    """

    def __init__(self, tokenizer: Mapping[str, Any], unknown: int | None) -> None:
        self.tokenizer, self.unknown = tokenizer, unknown
        self.counts: Counter[str] = Counter()
        self.lengths: list[int] = []
        self.num_unknown_ids = 0

    def add(self, ids: np.ndarray) -> None:
        """Count a document by its ids, an integer array [L]."""
        bos, eos, bos_added = (self.tokenizer[key] for key in ("bos", "eos", "bos_added"))
        self.lengths.append(len(ids))
        other = np.flatnonzero((ids != bos) & (ids != eos))
        begin, end = (int(other[0]), int(other[-1]) + 1) if len(other) else 2 * (_num_leading_bos(ids, bos, eos),)
        leading = int(np.count_nonzero(ids[:begin] == bos))
        trailing = int(np.count_nonzero(ids[end:] == eos))
        unknown = 0 if self.unknown is None else int(np.count_nonzero(ids == self.unknown))
        self.num_unknown_ids += unknown
        self.counts += Counter(
            {
                "no BOS": bos_added and not (len(ids) and ids[0] == bos),
                "BOS": not bos_added and leading > 0,
                "no EOS": not (len(ids) and ids[-1] == eos),
                "doubled BOS": leading > 1,
                "doubled EOS": trailing > 1,
                "inside": begin + len(ids) - end != leading + trailing or np.isin(ids[begin:end], (bos, eos)).any(),
                "empty": begin == end,
                "unknown": unknown > 0,
                "outside": len(ids) > 0 and int(ids.max()) >= self.tokenizer["vocab_size"],
            }
        )


def _num_leading_bos(ids: np.ndarray, bos: int, eos: int) -> int:
    """Return the number of leading BOS of a document of BOS and EOS only. (Some tokenizers have one id for both.)"""
    others = np.flatnonzero(ids != bos)
    if bos == eos:
        return len(ids) // 2
    return int(others[0]) if len(others) else len(ids)


class Spelling:
    """The texts of ids by a Tokenizer. `unknown`: its id for text that it cannot encode, or None."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import tokenizers

        self.bos, self.eos, self.decode = tokenizer.bos, tokenizer.eos, tokenizer.decode
        self._package = tokenizers.Tokenizer.from_file(str(tokenizer.package))
        piece = custom.unknown_of(files.read_json(tokenizer.package))
        self.unknown = None if piece is None else self._package.token_to_id(piece)

    def text(self, ids: np.ndarray) -> str:
        """Return the text of ids, with <BOS> and <EOS> written out."""
        special = np.flatnonzero((ids == self.bos) | (ids == self.eos))
        parts, before = [], 0
        for at in [*special.tolist(), len(ids)]:
            parts.append(self.decode(ids[before:at].tolist()) if at > before else "")
            parts.append(f"<{self._special(int(ids[at]))}>" if at < len(ids) else "")
            before = at + 1
        return "".join(parts)

    def named(self, ids: np.ndarray) -> str:
        """Return ids with their tokens: 312 'ing' 2 EOS."""
        words = []
        for number in ids.tolist():
            token = self._package.id_to_token(number)
            word = "no token" if token is None else f"'{terminal.visible(token)}'"
            words.append(f"{number} {self._special(number) if number in (self.bos, self.eos) else word}")
        return "  ".join(words)

    def _special(self, number: int) -> str:
        return "BOS" if number == self.bos else "EOS"


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
    titles = ("source", "split", "documents", "tokens", "tokens per document", "bytes per token", "shards", "license")
    rows: list[tuple[str, ...]] = []
    licenses = corpus.manifest.record.get("licenses", {})
    for name, source in corpus.sources.items():
        rows += [(name, split, *_row(source[split]), licenses.get(name, "unknown")) for split in SPLITS]
    for split in SPLITS if len(corpus.sources) > 1 else ():
        splits = [source[split] for source in corpus.sources.values()]
        totals = {key: sum(one[key] for one in splits) for key in COUNTED}
        rows.append(("all", split, *_row(totals | {"shards": [s for one in splits for s in one["shards"]]}), ""))
    print(*Table(titles=titles, rows=rows, numeric=range(2, 7)).text(indent=""), sep="\n")
    for name, source in corpus.sources.items():
        reasons = corpus.manifest.record.get("dropped", {}).get(name)
        text = f"unknown, since {corpus.manifest.path} is of a version that did not record it"
        if reasons is not None:
            total = sum(reasons.values()) + sum(source[split]["documents"] for split in SPLITS)
            most = sorted(reasons.items(), key=lambda item: -item[1])
            text = ", ".join(f"{count:,} {reason} ({share(count, total)})" for reason, count in most) or "none"
        print(f"malformed or filtered in {name}: {text}")
        if masked := corpus.manifest.record.get("masked", {}).get(name):
            print(f"masked in {name}: {', '.join(f'{count:,} {kind}' for kind, count in masked.items())}")


def _row(split: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    documents, tokens = split["documents"], split["tokens"]
    return (
        f"{documents:,}",
        f"{tokens:,}",
        f"{tokens / documents:,.1f}" if documents else "-",
        f"{split['text_bytes'] / tokens:.3f}" if tokens else "-",
        f"{len(split['shards']):,}",
    )


def print_shards(corpus: Corpus) -> None:
    """Print the schema of the shards, and how large they and their batches are."""
    shards = [shard for source in corpus.sources.values() for split in SPLITS for shard in source[split]["shards"]]
    sizes = [shard["bytes"] for shard in shards]
    batches = [batch for shard in shards for batch in shard["batches"]]
    most = max((batch["tokens"] for batch in batches), default=0)
    print(f"\n{several(len(shards), 'shard')} of {amount(min(sizes))} to {amount(max(sizes))}, ", end="")
    print(f"{several(len(batches), 'batch').replace('batchs', 'batches')} of at most {most:,} tokens")
    for field in open_shard(corpus, shards[0]).schema:
        print(f"  {field.name}: {field.type}{'' if field.nullable else ' not null'}, one document per row")


def print_split(corpus: Corpus, source: str, split: SplitName, spelling: Spelling, count: int) -> None:
    """Print a sample of one split of a source: misplaced BOS and EOS, lengths, document boundaries, documents."""
    runs = runs_of(corpus, corpus.sources[source][split]["shards"])
    separators = Separators(corpus.tokenizer, spelling.unknown)
    for ids in (ids for run in runs for ids in run):
        separators.add(ids)
    num_documents, total = len(separators.lengths), corpus.sources[source][split]["documents"]
    where = "" if len(runs) == 1 else ", from beginning, middle and end"
    print(f"\n{source}, {split}: a sample of {num_documents:,} of {several(total, 'document')}{where}")
    if num_documents:
        faults = {fault: number for fault, number in separators.counts.items() if number}
        for fault, number in faults.items():
            print(f"  {number:,} ({share(number, num_documents)}) {FAULTS[fault]}")
        if not faults:
            begin = "begins with one BOS, " if separators.tokenizer["bos_added"] else "has no BOS, "
            print(f"  each {begin}ends with one EOS, has neither inside, and is not empty")
        if separators.unknown is not None:
            unknown = separators.num_unknown_ids
            print(f"  unknown ids: {unknown:,} ({share(unknown, sum(separators.lengths))})")
        print(*terminal.histogram(separators.lengths, "tokens per document, BOS and EOS included"), sep="\n")
        for ids in [ids for run in runs for ids in run[: -(-count // len(runs))]][:count]:
            print(f"  document of {several(len(ids), 'token')}")
            print(*terminal.lines_of(spelling.text(ids)), sep="\n")
        for run in runs:
            if len(run) > 1:
                left, right = spelling.named(run[0][-BOUNDARY:]), spelling.named(run[1][:BOUNDARY])
                print(f"  document boundary: {left}  ||  {right}")

"""A corpus before anything is trained on it: what its sources have, how shards are made, and what stands in them."""

import contextlib

import numpy as np

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.inspection import terminal
from stages.lib.inspection.separators import FAULTS, Separators
from stages.lib.inspection.terminal import several, share, size
from stages.lib.sources.split import TRAIN, VALIDATION
from stages.lib.tokenizer import custom
from stages.lib.tokens.corpus import Corpus

SIDES = (TRAIN, VALIDATION)
RUNS, RUN_DOCUMENTS, RUN_TOKENS = 3, 1000, 1 << 20  # looked at of a side: runs of neighbours, of about so much each
BOUNDARY = 6  # ids on either side


def show(path, tokenizer, count):
    """Print the look at the corpus with the manifest `path`: `count` documents of each source.

    `tokenizer`: its Tokenizer. Raises UserError where that is another one, or a shard is gone, cut or no Arrow file.
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
        for side in SIDES:
            print_side(corpus, source, side, spelling, count)


def print_sources(corpus):
    """Print a table of sources and sides, and what was dropped on the way."""
    facts = corpus.tokenizer
    print(
        f"corpus {corpus.manifest.path}: digest {corpus.digest[:16]}, {corpus.manifest.identity['dtype']}, vocabulary "
        f"{facts['vocabulary']:,}, BOS {facts['bos']} ({'added' if facts['bos_added'] else 'not added'}), EOS "
        f"{facts['eos']}\n"
    )
    rows = [("source", "side", "documents", "tokens", "tokens a document", "bytes a token", "shards", "license")]
    licenses = corpus.manifest.record.get("licenses", {})
    for name, source in corpus.sources.items():
        rows += [(name, side, *_row(source[side]), licenses.get(name, "not said")) for side in SIDES]
    if len(corpus.sources) > 1:
        rows += [("all", side, *_row(_sum(corpus, side)), "") for side in SIDES]
    print(*terminal.table(rows), sep="\n")
    for name in corpus.sources:
        print(f"dropped of {name}: {_dropped(corpus, name)}")


def _sum(corpus, side):
    found = [source[side] for source in corpus.sources.values()]
    totals = {key: sum(one[key] for one in found) for key in ("documents", "tokens", "text_bytes")}
    return totals | {"shards": [shard for one in found for shard in one["shards"]]}


def _row(side):
    documents, tokens = side["documents"], side["tokens"]
    return (
        f"{documents:,}",
        f"{tokens:,}",
        f"{tokens / documents:,.1f}" if documents else "-",
        f"{side['text_bytes'] / tokens:.3f}" if tokens else "-",
        f"{len(side['shards']):,}",
    )


def _dropped(corpus, name):
    """What was dropped of a source, by reason."""
    reasons = corpus.manifest.record.get("dropped", {}).get(name)
    if reasons is None:
        return f"not known, since {corpus.manifest.path} is of a version that did not say it"
    total = sum(reasons.values()) + sum(corpus.sources[name][side]["documents"] for side in SIDES)
    most = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {reason} ({share(count, total)})" for reason, count in most) or "nothing"


def print_shards(corpus):
    """Print the schema of the shards, and how large they and their batches are."""
    shards = [shard for source in corpus.sources.values() for side in SIDES for shard in source[side]["shards"]]
    sizes = [shard["bytes"] for shard in shards]
    batches = [batch for shard in shards for batch in shard["batches"]]
    print(f"\n{several(len(shards), 'shard')} of {size(min(sizes))} to {size(max(sizes))}, ", end="")
    print(f"{several(len(batches), 'batch').replace('batchs', 'batches')} of at most {max(_tokens(batches)):,} tokens")
    for field in opened(corpus, shards[0]).schema:
        print(f"  {field.name}: {field.type}{'' if field.nullable else ' not null'}, a document a row")


def _tokens(batches):
    return [batch["tokens"] for batch in batches] or [0]


def opened(corpus, shard):
    """Arrow's reader of a shard, mapped into memory. Raises UserError where it is not what the manifest says."""
    import pyarrow

    from stages.lib.tokens.shards import schema_of

    path = corpus.manifest.directory / shard["path"]
    manifest.check_size(path, shard["bytes"], corpus.manifest.path)
    dtype = corpus.manifest.identity["dtype"]
    with _arrow(path):
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
    if not reader.schema.equals(schema_of(dtype)):
        raise UserError(f"{path} must be an Arrow file of lists of {dtype} named tokens, and has another schema")
    return reader


@contextlib.contextmanager
def _arrow(path):
    """Let what Arrow says of a damaged shard be one sentence, a UserError that names it."""
    import pyarrow

    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} must be an Arrow file: {str(error).partition(chr(10))[0]}") from None


def runs_of(corpus, shards):
    """Runs of neighbouring documents, at the beginning, in the middle and at the end of a side: lists of arrays."""
    shards = [shard for shard in shards if shard["documents"]]
    documents, tokens = (sum(shard[key] for shard in shards) for key in ("documents", "tokens"))
    if documents <= RUNS * RUN_DOCUMENTS and tokens <= RUNS * RUN_TOKENS:
        return [list(_run(corpus, shards, 0, documents))]
    each = max(1, min(RUN_DOCUMENTS, documents // RUNS, RUN_TOKENS * documents // tokens))
    starts = {0: None, (documents - each) // 2: None, documents - each: None}
    return [list(_run(corpus, shards, start, each)) for start in starts]


def _run(corpus, shards, start, count):
    """The ids of `count` documents of a side from number `start` on."""
    for shard in shards:
        if start >= shard["documents"]:
            start -= shard["documents"]
            continue
        reader = opened(corpus, shard)
        for number in range(reader.num_record_batches):
            with _arrow(corpus.manifest.directory / shard["path"]):
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


class Spelling:
    """Ids as a person reads them, by a Tokenizer: `text`, `named` one by one; `unknown` is an id or None."""

    def __init__(self, tokenizer):
        import tokenizers

        self.bos, self.eos, self.decode = tokenizer.bos, tokenizer.eos, tokenizer.decode
        self._package = tokenizers.Tokenizer.from_file(str(tokenizer.package))
        piece = custom.unknown_of(files.read_json(tokenizer.package))
        self.unknown = None if piece is None else self._package.token_to_id(piece)

    def text(self, ids):
        """The text of ids, in which each BOS and EOS is written out."""
        special = np.flatnonzero((ids == self.bos) | (ids == self.eos))
        said, before = [], 0
        for at in [*special.tolist(), len(ids)]:
            said.append(self.decode(ids[before:at].tolist()) if at > before else "")
            said.append(f"<{self._special(ids[at])}>" if at < len(ids) else "")
            before = at + 1
        return "".join(said)

    def _special(self, number):
        return "BOS" if number == self.bos else "EOS"

    def named(self, ids):
        """Ids with their pieces: 312 'ing' 2 EOS."""
        return "  ".join(f"{number} {self._piece(number)}" for number in ids.tolist())

    def _piece(self, number):
        if number in (self.bos, self.eos):
            return self._special(number)
        piece = self._package.id_to_token(number)
        return "no token" if piece is None else f"'{terminal.visible(piece)}'"


def print_side(corpus, source, side, spelling, count):
    """Print what was found in a sample of one side of a source: separators, lengths, boundaries, documents."""
    runs = runs_of(corpus, corpus.sources[source][side]["shards"])
    separators = Separators(corpus.tokenizer, spelling.unknown)
    for ids in (ids for run in runs for ids in run):
        separators.add(ids)
    looked_at, total = len(separators.lengths), corpus.sources[source][side]["documents"]
    where = "" if len(runs) == 1 else ", at beginning, middle and end"
    print(f"\n{source}, {side}: looked at {looked_at:,} of {several(total, 'document')}{where}")
    if looked_at:
        print_separators(separators)
        print(*terminal.histogram(separators.lengths, "tokens a document, BOS and EOS counted"), sep="\n")
        print_documents([ids for run in runs for ids in run[: -(-count // len(runs))]][:count], spelling)
        for run in runs:
            if len(run) > 1:
                left, right = spelling.named(run[0][-BOUNDARY:]), spelling.named(run[1][:BOUNDARY])
                print(f"  where a document ends: {left}  ||  {right}")


def print_separators(separators):
    """Print how many documents are not framed as they must be, and how many ids the tokenizer does not know."""
    looked_at, facts = len(separators.lengths), separators.facts
    faults = {fault: count for fault, count in separators.counts.items() if count}
    for fault, count in faults.items():
        print(f"  {count:,} ({share(count, looked_at)}) {FAULTS[fault]}")
    if not faults:
        begin = "begins with one BOS, " if facts["bos_added"] else "has no BOS, "
        print(f"  each {begin}ends with one EOS, has neither inside, and is not empty")
    if separators.unknown is not None:
        print(f"  unknown ids: {separators.unknown_ids:,} ({share(separators.unknown_ids, sum(separators.lengths))})")


def print_documents(documents, spelling):
    """Print documents by their ids."""
    for ids in documents:
        print(f"  document of {several(len(ids), 'token')}")
        print(*terminal.lines_of(spelling.text(ids)), sep="\n")

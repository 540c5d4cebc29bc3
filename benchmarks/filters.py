"""Published rules of quality: our decisions and CPU time beside datatrove's, on the same documents.

    python -m benchmarks.filters --peers-python PEERS/bin/python    # 10,000 documents, a few minutes
    python -m benchmarks.filters --peers-python PEERS/bin/python --documents 100   # seconds: a smoke test

    python -m venv PEERS && PEERS/bin/pip install datatrove==0.10.1 spacy regex numpy

Documents are code, prose and other languages (see benchmarks/texts.py). datatrove judges each twice: with the words and
sentences of its own tokenizer (spaCy's for English), and with words that end at white space, as ours do. In the second
case, what is left are differences of the rules. `other_decisions` counts documents by the rule that filters them, ours
and datatrove's.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path

from benchmarks import harness, texts

RULES = ("gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality")
AT_ONCE = 1 << 20  # characters that are filtered together


def read(path, count):
    """Return the first `count` documents of a jsonl file."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in islice(lines, count)]


def ours(chosen):
    """Return {set of rules: its CPU-seconds, and for each document the rule that filters it, "" if it is kept}."""
    from stages.lib.recipe import load
    from stages.lib.sources import documents, filters
    from stages.lib.sources.entries import Document

    entries = [Document(str(number), text, "train") for number, text in enumerate(chosen)]
    results = {}
    for name in RULES:
        recipe = load(filters.FilterRecipe, {name: {}}, "filters")
        filters.judged(recipe, ["Words of a warm-up. It imports packages."], ["0"])
        reasons, begun = [], time.process_time()
        for batch in documents.batched(entries, AT_ONCE):
            judged = filters.judged(recipe, [entry.text for entry in batch], [entry.id for entry in batch])
            reasons += [(one.reason or "").rpartition(".")[2] for one in judged]
        results[name] = {"cpu_seconds": time.process_time() - begun, "reasons": reasons}
    return results


def datatroves(path, count, words):
    """As `ours`, by datatrove, of a file in its environment. `words`: "spacy", or "white space"."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
        fineweb_quality_filter,
        gopher_quality_filter,
        gopher_repetition_filter,
    )

    if words == "white space":
        for module in (fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter):
            module.split_into_words = lambda text, language: text.split()
    documents = read(path, count)
    peers = (GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(), FineWebQualityFilter())
    results = {}
    for name, peer in zip(RULES, peers, strict=True):
        peer.filter(Document("Words of a warm-up. It loads the tokenizer.", "0"))
        reasons, begun = [], time.process_time()
        for number, text in enumerate(documents):
            result = peer.filter(Document(text, str(number)))
            reasons.append("" if result is True else result[1] if isinstance(result, tuple) else "filtered")
        results[name] = {"cpu_seconds": time.process_time() - begun, "reasons": reasons}
    return results


def compared(own, peer):
    """Return {set of rules: CPU-seconds, speed over the peer's, and documents by (kept here, kept there)}."""
    return {
        name: {
            "cpu_seconds": {"caravan": own[name]["cpu_seconds"], "datatrove": peer[name]["cpu_seconds"]},
            "ratio": peer[name]["cpu_seconds"] / own[name]["cpu_seconds"],
            "both_keep": pairs[True, True],
            "both_filter": pairs[False, False],
            "only_we_keep": pairs[True, False],
            "only_we_filter": pairs[False, True],
            "other_decisions": {
                f"{ours or 'kept'} / {theirs or 'kept'}": number
                for (ours, theirs), number in by_rule.most_common()
                if bool(ours) != bool(theirs)
            },
        }
        for name in RULES
        for by_rule in [Counter(zip(own[name]["reasons"], peer[name]["reasons"], strict=True))]
        for pairs in [_kept(by_rule)]
    }


def _kept(by_rule):
    """Return the numbers of documents by (kept here, kept there)."""
    pairs = Counter()
    for (ours, theirs), number in by_rule.items():
        pairs[not ours, not theirs] += number
    return pairs


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "filters")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--megabytes", type=float, default=95, help="size of the text that documents are taken from")
    parser.add_argument("--peers-python", default=sys.executable, help="the interpreter with datatrove and spacy")
    arguments = parser.parse_args()
    if len(harness.versions_of(arguments.peers_python, ["datatrove", "spacy"])) < 2:
        parser.error(f"--peers-python {arguments.peers_python} has no datatrove, or no spacy")
    with tempfile.TemporaryDirectory() as directory:
        (path,), _ = texts.build(Path(directory), arguments.megabytes, 1)
        chosen = read(path, arguments.documents)
        own, peers = ours(chosen), {}
        for words in ("spacy", "white space"):
            peers[words] = harness.call(
                "filters", "datatroves", path, len(chosen), words, python=arguments.peers_python
            )
    size = sum(len(text.encode()) for text in chosen)
    results = {words: compared(own, peer) for words, peer in peers.items()}
    for name in RULES:
        seconds, mb = own[name]["cpu_seconds"], size / 1e6
        different = {
            words: rows[name]["only_we_keep"] + rows[name]["only_we_filter"] for words, rows in results.items()
        }
        print(
            f"{name}: {mb / seconds:.1f} MB per CPU-second, {results['spacy'][name]['ratio']:.1f} x datatrove; other "
            f"decisions: {different['spacy']} with its words, {different['white space']} with ours, of {len(chosen):,}"
        )
    figures = {"documents": len(chosen), "text_bytes": size, "compared": results}
    harness.write(arguments.output, "filters", ("numpy", "pyarrow"), figures)


if __name__ == "__main__":
    main()

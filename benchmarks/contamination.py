"""Tokens per CPU-second of the search for contaminated items, beside lm-evaluation-harness' own.

    python -m benchmarks.contamination                                   # 20 MB of text, a minute
    python -m benchmarks.contamination --megabytes 1 --items 100         # seconds: a smoke test

`find_overlaps` decodes a part's shards and looks for the items' 13-grams. The peer is the harness' Janitor, which looks
for them as GPT-3's authors did, in Python; it gets the decoded text, so that it has less to do. Items are runs of 60
words: half of them stand in the text, half are its words in another order. Janitor misses an item if its only 13-grams
have a word of punctuation alone.
"""

import random
import tempfile
import time
from pathlib import Path

from benchmarks import harness, texts
from stages import find_overlaps, tokenize, train_tokenizer
from stages import list as listing
from stages.lib import manifest
from stages.lib.contamination import items
from stages.lib.contamination.items import Item
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import pretokenized

WORDS = 60  # of an item: a question with a passage
TASK = "items"


def run(stage, output, recipe, *options):
    """Call a stage; return its manifest."""
    words = [*map(str, options), "--recipe", manifest.json.dumps(recipe), "--output", str(output)]
    if stage.main(words) != 0:
        raise SystemExit(f"{stage.__name__} failed")
    return manifest.read(output)


def write_items(output, documents, count):
    """Write the items, and their manifest as stages.list_items does; return them."""
    chance, planted = random.Random(0), []
    long_enough = [words for words in map(str.split, documents) if len(words) > WORDS]
    for number in range(count):
        words = chance.choice(long_enough)
        begin = chance.randrange(len(words) - WORDS)
        chosen = words[begin : begin + WORDS]
        if number % 2:
            chance.shuffle(chosen)
        planted.append(Item(TASK, number, " ".join(chosen)))
    items.write(output.with_suffix(""), planted)
    name = f"{output.stem}/{items.FILE}"
    identity = {"recipe": {}, "suite": "items", "tasks": {TASK: count}}
    outputs = {name: manifest.describe(output.parent / name)}
    manifest.write(output, "list_items", identity | {"outputs": outputs}, {"code": None})
    return planted


def janitor_seconds(planted, documents):
    """Return the CPU-seconds in which the peer searches the documents, and the numbers of the items that it finds."""
    from lm_eval.decontamination import janitor

    class Janitor(janitor.Janitor):
        """It would cut the text around each hit; what is measured is the search."""

        def _split_chunks(self, dirty_string, dirty_parts):
            return [dirty_string[begin : end + 1] for _, (begin, end) in ((None, part[1:]) for part in dirty_parts)]

    peer = Janitor()
    ngrams = [set(janitor.word_ngrams(peer.normalize_string(item.text), peer.ngram_n)) for item in planted]
    for item in planted:
        peer.register_contaminant_python(item.text)
    begun = time.process_time()
    found = [ngram for text in documents for ngram in peer.clean_python(text)]
    seconds = time.process_time() - begun
    hits = {" ".join(peer.normalize_string(ngram).split()) for ngram in found}
    return seconds, {item.doc_id for item, of_item in zip(planted, ngrams, strict=True) if of_item & hits}


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "contamination")
    parser.add_argument("--megabytes", type=float, default=20, help="size of the text")
    parser.add_argument("--items", type=int, default=14_000, help="number of items; MMLU has 14,042")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        (path,), _ = texts.build(home / "texts", arguments.megabytes, 1)
        recipe = {"kind": "jsonl", "paths": [str(path)], "validation": 0}
        run(listing, home / "list.json", recipe, "--name", "texts")
        recipe = {"vocab_size": 8000, "sample": {"texts": 1}, "sample_mb": min(5.0, arguments.megabytes / 2)}
        run(train_tokenizer, home / "tokenizer/manifest.json", recipe, "--lists", home / "list.json")
        given = ["--tokenizer", home / "tokenizer/manifest.json"]
        part = run(tokenize, home / "00000.json", {}, "--list", home / "list.json", *given, "--part", 0)
        documents = [text for _, text in pretokenized.training_documents(part, Tokenizer(given[1]))]
        made_items = write_items(home / "items.json", documents, arguments.items)
        given += ["--items", home / "items.json", "--part", home / "00000.json"]
        ours = run(find_overlaps, home / "overlaps.json", {}, *given)
        seconds, found = janitor_seconds(made_items, documents)
        own = {row["doc_id"] for row in items.read_rows(ours)}
    tokens, size = ours.record["tokens"], sum(len(text.encode()) for text in documents)
    figures = {
        "tokens": tokens,
        "text_bytes": size,
        "items": arguments.items,
        "items_unchecked": ours.identity["tasks"][TASK]["unchecked"],
        "items_planted": len(range(0, arguments.items, 2)),
        "planted_items_found": {
            name: sum(item % 2 == 0 for item in by) for name, by in (("caravan", own), ("janitor", found))
        },
        "other_items_found": {
            name: sum(item % 2 for item in by) for name, by in (("caravan", own), ("janitor", found))
        },
        "tokens_per_cpu_second": {"caravan": ours.record["tokens_per_cpu_second"], "janitor": round(tokens / seconds)},
    }
    speeds = figures["tokens_per_cpu_second"]
    print(f"caravan {speeds['caravan']:,} tokens per CPU-second, {speeds['caravan'] / speeds['janitor']:.1f} x janitor")
    harness.write(arguments.output, "contamination", ("lm_eval", "numpy", "sentencepiece"), figures)


if __name__ == "__main__":
    main()

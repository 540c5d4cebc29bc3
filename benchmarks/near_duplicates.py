"""Near duplicates: CPU time and memory beside datatrove's MinHash; recall and false removals on planted text.

    python -m benchmarks.near_duplicates --peers-python PEERS/bin/python                     # half an hour
    python -m benchmarks.near_duplicates --documents 2000 --peer-documents 0                 # seconds: a smoke test

    python -m venv PEERS && PEERS/bin/pip install datatrove==0.10.1 spacy regex numpy tokenizers xxhash==3.5.0

Documents of about 2.2 kB are made of lines of real text (see benchmarks/texts.py), so that none repeats another by
chance. Planted are copies with a share of their words replaced at random places, exact copies, and families of pages
that have a template in common and 1 to 40 words of their own. Removal is a pass over the text that leaves out what was
removed, as `stages.tokenize` does.
"""

import json
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from benchmarks import harness, texts

EDITS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
"""Shares of words that are replaced in planted copies."""

DOCUMENT_BYTES = 2200
FAMILY = 20
WORDS_OF_A_PAGE = (1, 3, 10, 40)


def build(path, count, lines, seed):
    """Write `count` documents as jsonl; return what each is: ["text"], ["copy", share, original] or ["page", family].

    A tenth are copies, and a twentieth pages of templates.
    """
    chance = random.Random(seed)

    def text(size):
        chosen, held = [], 0
        while held < size:
            chosen.append(chance.choice(lines))
            held += len(chosen[-1].encode()) + 1
        return "\n".join(chosen)

    def edited(original, share):
        return re.sub(r"\w+", lambda word: f"{word[0]}x" if chance.random() < share else word[0], original)

    plain = [text(DOCUMENT_BYTES * chance.uniform(0.3, 1.7)) for _ in range(count * 17 // 20)]
    documents = [(["text"], one) for one in plain]
    for number in range(count // 10):
        share, original = EDITS[number % len(EDITS)], chance.randrange(len(plain))
        documents.append((["copy", share, original], edited(plain[original], share)))
    for family in range(count // 20 // FAMILY):
        frame, size = text(DOCUMENT_BYTES).split(" "), WORDS_OF_A_PAGE[family % len(WORDS_OF_A_PAGE)]
        place = len(frame) // 2
        for _ in range(FAMILY):
            own = [f"{chance.randrange(10**9)}", *text(9 * size).split()][:size]
            documents.append((["page", family], " ".join([*frame[:place], *own, *frame[place:]])))
    order = chance.sample(range(len(documents)), len(documents))
    position = {old: new for new, old in enumerate(order)}
    kinds = []
    with open(path, "w", encoding="utf-8") as file:
        for old in order:
            kind, one = documents[old]
            kinds.append(["copy", kind[1], position[kind[2]]] if kind[0] == "copy" else kind)
            file.write(json.dumps({"text": one}, ensure_ascii=False) + "\n")
    return kinds


def remove(path, removed_path, output):
    """Write a jsonl file without the documents of verify_duplicates, as the removal of a cleaned text; count them."""
    import numpy as np

    from stages.lib.sources import documents, duplicates
    from stages.lib.sources.entries import Document

    part = documents.Part(Path(path), 0, 1)
    numbers = np.load(removed_path)
    kept = 0
    total = json.loads((Path(removed_path).parents[1] / "manifest.json").read_text())["identity"]["parts"][0][
        "documents"
    ]
    with open(output, "w", encoding="utf-8") as file:
        for entry in duplicates.without(part.documents(), {"near duplicate": numbers}, total, removed_path, "sketch"):
            if isinstance(entry, Document):
                file.write(json.dumps({"text": entry.text}, ensure_ascii=False) + "\n")
                kept += 1
    return kept


def datatroves(path, directory):
    """Remove near duplicates by datatrove with its defaults; return the number of documents that stay."""
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    config = MinhashConfig()
    reader = JsonlReader(str(Path(path).parent), glob_pattern=Path(path).name)
    steps = (
        ([reader, MinhashDedupSignature(output_folder=f"{directory}/signatures", config=config)], 1),
        (
            [
                MinhashDedupBuckets(
                    input_folder=f"{directory}/signatures", output_folder=f"{directory}/buckets", config=config
                )
            ],
            config.num_buckets,
        ),
        ([MinhashDedupCluster(f"{directory}/buckets", output_folder=f"{directory}/remove", config=config)], 1),
        (
            [
                reader,
                MinhashDedupFilter(input_folder=f"{directory}/remove"),
                JsonlWriter(output_folder=f"{directory}/kept", compression=None),
            ],
            1,
        ),
    )
    for pipeline, tasks in steps:
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=1, logging_dir=f"{directory}/logs").run()
    return sum(1 for file in Path(directory, "kept").glob("*.jsonl") for _ in open(file, encoding="utf-8"))


def ours(path, directory):
    """Run all stages on one part; return {stage: times and peak memory} of near and of exact duplicates, and the
    evidence as rows.
    """
    import pyarrow as pa

    recipe = json.dumps({"kind": "jsonl", "paths": [str(path)], "validation": 0})
    listed, sketched = directory / "list.json", directory / "sketches/a/00000.json"
    near, hashed = directory / "near", directory / "hashes/a/00000.json"
    harness.run_stage("list", "--name", "a", "--recipe", recipe, "--output", listed)
    part = ("--list", listed, "--part", "0", "--parts", "1")
    removal = (listed, near / "a/00000.near_duplicates.npy", directory / "kept.jsonl")
    commands = {
        "sketch": harness.stage("sketch", *part, "--output", sketched),
        "find_candidates": harness.stage(
            "find_candidates", "--sketches", sketched, "--output", near / "candidates.json"
        ),
        "copy_candidates": harness.stage(
            "copy_candidates", "--candidates", near / "candidates.json", *part, "--output", near / "a/00000.json"
        ),
        "verify_duplicates": harness.stage(
            "verify_duplicates",
            *("--candidates", near / "candidates.json", "--copies", near / "a/00000.json"),
            *("--output", near / "manifest.json"),
        ),
        "removal": harness.command_of("near_duplicates", "remove", *removal),
    }
    of_exact = {
        "hash_documents": harness.stage("hash_documents", *part, "--output", hashed),
        "find_duplicates": harness.stage(
            "find_duplicates", "--hashes", hashed, "--output", directory / "hashes/manifest.json"
        ),
    }
    near_figures, exact_figures = (
        {name: harness.timed(command) for name, command in of.items()} for of in (commands, of_exact)
    )
    with pa.memory_map(str(near / "removed.arrow")) as mapped:
        rows = pa.ipc.open_file(mapped).read_all().to_pylist()
    return near_figures, exact_figures, rows


def judged(kinds, rows, path):
    """Return the recall per share of edits beside theory, and the documents that were removed wrongly."""
    import numpy as np

    from stages.lib.sources import near_duplicates, shingles

    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    recipe = near_duplicates.NearDuplicatesRecipe()

    def set_of(number):
        found, _ = shingles.shingles_of(*shingles.words_of([texts[number]]), recipe.sketch.shingle_words)
        return np.unique(found)

    removed, wrong = {row["removed_number"]: row["kept_number"] for row in rows}, Counter()
    origin = {number: kind[2] if kind[0] == "copy" else number for number, kind in enumerate(kinds)}
    for number, kept in removed.items():
        if origin[number] != origin[kept]:
            wrong[kinds[number][0]] += 1
    found, expected, above = defaultdict(int), defaultdict(float), defaultdict(int)
    totals = Counter()
    for number, kind in enumerate(kinds):
        if kind[0] != "copy":
            continue
        share, original = kind[1], kind[2]
        overlap = near_duplicates.overlap_of(set_of(number), set_of(original))
        totals[share] += 1
        if overlap >= recipe.min_overlap:
            above[share] += 1
            expected[share] += shingles.probability(overlap, recipe.sketch.bands, recipe.sketch.rows)
            found[share] += number in removed or original in removed
    recall = {
        str(share): {
            "copies": totals[share],
            "overlap": above[share],
            "theory": expected[share],
            "removed": found[share],
        }
        for share in totals
    }
    return recall, dict(wrong)


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "near_duplicates")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--peer-documents", type=int, default=20_000, help="documents that datatrove is given too")
    parser.add_argument("--megabytes", type=float, default=60, help="size of the text that lines are taken from")
    parser.add_argument("--peers-python", default=sys.executable, help="the interpreter with datatrove and spacy")
    arguments = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (source,), _ = texts.build(directory / "texts", arguments.megabytes, 1)
        lines = {
            line.strip()
            for document in Path(source).read_text(encoding="utf-8").split("\n")[:-1]
            for line in json.loads(document)["text"].splitlines()
            if 20 <= len(line.strip()) <= 200
        }
        lines = sorted(lines)
        for count in filter(None, (arguments.peer_documents, arguments.documents)):
            path = directory / f"{count}.jsonl"
            kinds = build(path, count, lines, count)
            size, begun = path.stat().st_size, time.time()
            stages, exact, rows = ours(path, directory / str(count))
            recall, wrong = judged(kinds, rows, path)
            cpu = sum(stage["cpu_seconds"] for stage in stages.values())
            peak = max(stage["peak_bytes"] for stage in stages.values())
            result = {
                "text_bytes": size, "stages": stages, "cpu_seconds": cpu, "peak_bytes": peak, "exact_duplicates": exact,
                "removed": len(rows), "removed_wrongly": wrong, "recall": recall,
            }  # fmt: skip
            print(
                f"{count:,} documents: {count / cpu:,.0f} documents and {size / cpu / 1e6:.1f} MB per CPU-second, "
                f"{peak / 2**20:.0f} MiB, {time.time() - begun:.0f} s; removed wrongly: {wrong}"
            )
            for share, of_share in recall.items():
                print(f"  {share}: {of_share}")
            if count == arguments.peer_documents:
                words = ("near_duplicates", "datatroves", path, directory / "datatrove")
                result["datatrove"] = harness.timed(harness.command_of(*words, python=arguments.peers_python))
                ratio = result["datatrove"]["cpu_seconds"] / cpu
                print(f"  datatrove: {result['datatrove']['cpu_seconds']:.0f} CPU-seconds, {ratio:.1f} x ours")
            figures[str(count)] = result
    harness.write(arguments.output, "near_duplicates", ("numpy", "pyarrow"), figures)


if __name__ == "__main__":
    main()

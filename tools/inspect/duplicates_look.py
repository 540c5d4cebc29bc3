"""A preview of the near duplicates of a corpus: pairs side by side, with what differs marked."""

from __future__ import annotations

import difflib
import itertools
import shutil
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.sources import documents
from tools.inspect.terminal import visible

MOST_WORDS = 5000
"""Words of a document that are compared for the eye: the time grows with their square."""

CONTEXT = 8
"""Words that are shown before and after a difference."""


def show(path: Path, count: int) -> None:
    """Print what was removed: counts per source, overlaps, and `count` pairs from the smallest overlap to the largest.

    `path`: the manifest of stages.verify_duplicates. Raises UserError if it is another one, or a text is not as it was.
    """
    import pyarrow as pa

    found = manifest.read(path, "verify_duplicates")
    with pa.memory_map(str(found.output("removed.arrow"))) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
    total = sum(part["documents"] for part in found.identity["parts"])
    print(f"{table.num_rows:,} of {total:,} documents were removed as near duplicates")
    pairs = zip(*(table.column(name).to_pylist() for name in ("removed_source", "kept_source")), strict=True)
    for (removed, kept), number in sorted(Counter(pairs).items()):
        print(f"  {number:,} of {removed}, for documents of {kept}")
    for reason, number in found.record["refused"].items():
        print(f"  {number:,} pairs of candidates stay by {reason}")
    if not table.num_rows or not count:
        return
    overlaps = table.column("overlap").to_numpy()
    print(f"overlap: from {overlaps.min():.3f}, median {np.median(overlaps):.3f}")
    order = np.argsort(overlaps, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).astype(int))]
    rows = table.take(pa.array(chosen)).to_pylist()
    texts = _texts(found, rows)
    for row in rows:
        print()
        print(
            f"overlap {row['overlap']:.3f}, length ratio {row['length_ratio']:.3f}, longest changed passage "
            f"{row['changed_words']} words"
        )
        left, right = (
            (f"{which} ({row[f'{which}_split']})", row[f"{which}_id"], texts[_key(row, which)]) for which in WHICH
        )
        for line in side_by_side(left, right):
            print(line)


WHICH = ("removed", "kept")
Key = tuple[str, int, int]
Side = tuple[str, str, str]
"""A title of a document, its id and its text."""


def _key(row: dict[str, Any], which: str) -> Key:
    return row[f"{which}_source"], row[f"{which}_part"], row[f"{which}_number"]


def _texts(found: manifest.NearDuplicatesManifest, rows: Sequence[dict[str, Any]]) -> dict[Key, str]:
    """Return the texts of the documents of some rows; each part is read up to the last one of it."""
    wanted: dict[tuple[str, int], set[int]] = defaultdict(set)
    for row, which in itertools.product(rows, WHICH):
        name, at, number = _key(row, which)
        wanted[name, at].add(number)
    entries = {(entry["source"], entry["part"]): entry for entry in found.identity["parts"]}
    texts = {}
    for (name, number), numbers in wanted.items():
        listed = found.path.absolute().parents[2] / "sources" / name / "list.json"
        part = documents.Part(listed, number, entries[name, number]["parts"])
        if part.identity["inputs"] != entries[name, number]["inputs"]:
            raise UserError(f"the files of {name} changed since {found.path} was written; rerun with -R sketch")
        for at, document in enumerate(itertools.islice(part.documents(), max(numbers) + 1)):
            if at in numbers:
                texts[name, number, at] = document.text or ""
    return texts


def side_by_side(left: Side, right: Side) -> Iterator[str]:
    """Yield the lines of two columns: what both texts have is shortened, and what one lacks stands in brackets."""
    column = (shutil.get_terminal_size((130, 24)).columns - 5) // 2
    words, others = (visible(text.replace("\n", " ")).split()[:MOST_WORDS] for _, _, text in (left, right))
    yield from _row([left[0], right[0]], column)
    yield from _row([visible(left[1]), visible(right[1])], column)
    yield f"  {'-' * column} {'-' * column}"
    matcher = difflib.SequenceMatcher(None, words, others, autojunk=False)
    for kind, begin, end, other_begin, other_end in matcher.get_opcodes():
        passages = [" ".join(words[begin:end]), " ".join(others[other_begin:other_end])]
        if kind != "equal":
            yield from _row([f"[{passage}]" if passage else "[]" for passage in passages], column)
        elif end - begin > 2 * CONTEXT:
            first, last = words[begin : begin + CONTEXT], words[end - CONTEXT : end]
            shown = " ".join([*first, f"... {end - begin - 2 * CONTEXT:,} equal words ...", *last])
            yield from _row([shown, shown], column)
        else:
            yield from _row(passages, column)
    if max(len(words), len(others)) == MOST_WORDS:
        yield f"  (the first {MOST_WORDS:,} words are shown)"


def _row(cells: Sequence[str], column: int) -> Iterator[str]:
    wrapped = [textwrap.wrap(cell, column) or [""] for cell in cells]
    for one, other in itertools.zip_longest(*wrapped, fillvalue=""):
        yield f"  {one:<{column}} {other}".rstrip()

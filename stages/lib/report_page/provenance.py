"""Provenance: the digests from the raw files to each score, the code, the environment, and the time that it took."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from stages.lib import manifest
from stages.lib.manifest import Manifest
from stages.lib.report_page import job_graph
from stages.lib.report_page.answer import commit
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.section import Block, Cell, Graph, Section, Table

CATEGORY = "Provenance"
DIGITS = 12  # of a digest that are shown; all of them on hover


def section(inputs: PageInputs) -> Section | None:
    """Return the section on the provenance; None without a manifest."""
    made = [*inputs.lists.values(), *inputs.corpora.values(), *inputs.results.all()]
    if not made:
        return None
    made += [part for corpus in inputs.corpora.values() for part in parts_of(corpus)]
    blocks = [*_graph(inputs), *_raw(inputs), *_chain(inputs), *_code(made), *_environment(made), *_durations(made)]
    return Section(category=CATEGORY, title="Provenance", blocks=blocks)


def parts_of(corpus: Manifest) -> Iterator[Manifest]:
    """Yield the manifests of a corpus' parts that are still there."""
    splits = [split for source in corpus.identity["sources"].values() for split in source.values()]
    shards = [shard["path"] for split in splits if isinstance(split, dict) for shard in split.get("shards", ())]
    for part in dict.fromkeys(Path(path).parent.as_posix() for path in shards):
        path = corpus.directory / f"{part}.json"
        if path.exists():
            yield manifest.read(path, "tokenize")


def _graph(inputs: PageInputs) -> Iterator[Block]:
    svg = job_graph.svg(inputs)
    if svg:
        yield Graph(svg=svg, caption="From raw files to scores: an arrow is a manifest that the next stage read.")


def _raw(inputs: PageInputs) -> Iterator[Block]:
    rows: list[list[str | Cell]] = []
    for corpus in inputs.corpora.values():
        for source in corpus.identity["sources"]:
            listed = inputs.lists.get(source)
            files = f"{len(listed.identity.get('files', [])):,}" if listed else "-"
            digests = [_digest(listed, inputs), _short(corpus.identity["tokenizer"]["digest"]), _digest(corpus, inputs)]
            rows.append([corpus.directory.name, source, files, *digests])
    caption = "From raw files to tokens: the list of a source holds the name and size of each raw file."
    titles = ["corpus", "source", "raw files", "list", "tokenizer", "corpus' digest"]
    if rows:
        yield Table(titles=titles, rows=rows, caption=caption)


def _chain(inputs: PageInputs) -> Iterator[Block]:
    rows = []
    for (name, step), model in inputs.results.models.items():
        export = inputs.results.exports.get((name, step))
        scores = {key[2]: made for key, made in inputs.results.evaluations.items() if key[:2] == (name, step)}
        corpus = inputs.corpus_of(model)
        links = [_digest(corpus, inputs), _digest(model, inputs), _digest(export, inputs)]
        scored = [[suite, _digest(made, inputs)] for suite, made in scores.items()] or [["-", "-"]]
        rows += [[name, f"{step:,}", *links, *cells] for cells in scored]
    caption = (
        "From tokens to scores: each digest is the sha256 of a manifest's identity, which holds the digests of its "
        "inputs and the sha256 of its outputs. That each export is of the model beside it, and each score of the "
        "export, was checked when this page was made."
    )
    titles = ["run", "step", "corpus", "model", "export", "suite", "scores"]
    if rows:
        yield Table(titles=titles, rows=rows, caption=caption)


def _digest(made: Manifest | None, inputs: PageInputs) -> Cell | str:
    if made is None:
        return "-"
    path = Path(os.path.relpath(made.path, inputs.directory)).as_posix()
    return Cell(text=made.digest[:DIGITS], title=f"{made.digest} {path}", code=True)  # no link: pages are mailed


def _short(digest: str) -> Cell:
    return Cell(text=digest[:DIGITS], title=digest, code=True)


def _code(made: Iterable[Manifest]) -> Iterator[Block]:
    """Yield a table of the versions of each stage's code: more than one row per stage is a difference."""
    found: dict[tuple[str, str, str], int] = {}
    for one in made:
        if one.record.get("code"):
            key = (one.stage, one.record["code"], one.record.get("commit") or "")
            found[key] = found.get(key, 0) + 1
    versions: dict[str, set[str]] = {}
    for stage, code, _ in found:
        versions.setdefault(stage, set()).add(code)
    rows = [
        [stage, _short(code), commit(by), "differs" if len(versions[stage]) > 1 else "one version", f"{number:,}"]
        for (stage, code, by), number in sorted(found.items())
    ]
    caption = "The code of each stage: its fingerprint (comments and docstrings do not count), and the git commit."
    titles = ["stage", "fingerprint", "commit", "code", "manifests"]
    if rows:
        yield Table(titles=titles, rows=rows, caption=caption, numeric=range(-1, 0))


def _environment(made: Iterable[Manifest]) -> Iterator[Block]:
    found: dict[str, dict[str, int]] = {}
    for one in made:
        record = one.record
        versions = {"host": record.get("host"), "python": record.get("python"), "device": record.get("device")}
        for name, value in {**versions, **record.get("versions", {})}.items():
            if value:
                counts = found.setdefault(name, {})
                counts[value] = counts.get(value, 0) + 1
    rows = [
        [name, ", ".join(counts), "differs" if len(counts) > 1 and name in manifest.PACKAGES else ""]
        for name, counts in found.items()
    ]
    if rows:
        yield Table(titles=["", "found in the manifests", ""], rows=rows, caption="The environment.")


def _durations(made: Iterable[Manifest]) -> Iterator[Block]:
    """Yield the time of each stage: of the last job that made each manifest."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in made:
        if "seconds" in one.record:
            ranks = int(one.record.get("world_size") or 1)
            found.setdefault(one.stage, []).append((one.record["seconds"], one.record["seconds"] * ranks))
    rows = []
    for stage, seconds in found.items():
        longest, total = max(each for each, _ in seconds), sum(each for each, _ in seconds)
        rank_hours = sum(each for _, each in seconds) / 3600
        rows.append([stage, f"{len(seconds):,}", duration(total), duration(longest), f"{rank_hours:,.3g}"])
    caption = (
        "Duration of each stage: of the jobs that wrote its manifests. Rank-hours are hours times ranks, and a rank is "
        "a GPU where a stage ran on GPUs. Jobs that were stopped before a milestone are not in it."
    )
    titles = ["stage", "jobs", "time", "longest", "rank-hours"]
    if rows:
        yield Table(titles=titles, rows=rows, caption=caption, numeric=range(-4, 0))


def duration(seconds: float) -> str:
    """Format a duration with its two largest units: 3 h 20 min."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    if seconds < 60:
        return f"{seconds:.1f} s"
    at = next(at for at, (_, size) in enumerate(units) if seconds >= size)
    (first, size), (second, smaller) = units[at : at + 2]
    whole, rest = divmod(int(seconds), size)
    return f"{whole:,} {first} {rest // smaller} {second}"

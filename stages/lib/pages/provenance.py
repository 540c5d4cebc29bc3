"""Provenance: the digests from the raw files to each score, the code, the environment, and the time that it took."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from stages.lib import manifest
from stages.lib.manifest import CorpusManifest, Manifest, ModelManifest, PartManifest
from stages.lib.manifest_types import SPLITS
from stages.lib.pages.inputs import ReportInputs
from stages.lib.render.numbers import duration
from stages.lib.render.page import Graph, Section
from stages.lib.render.table import Cell, Table

CATEGORY = "Provenance"
DIGITS = 12  # of a digest that are shown; all of them on hover
COMMIT = 10  # letters of a commit that are shown


def section(inputs: ReportInputs) -> Section | None:
    """Return the section on the provenance; None without a manifest."""
    manifests = [*inputs.lists.values(), *inputs.corpora.values(), *inputs.results.all()]
    if not manifests:
        return None
    manifests += [part for corpus in inputs.corpora.values() for part in parts_of(corpus)]
    caption = "From raw files to scores: an arrow is a manifest that the next stage read."
    tables = [_raw(inputs), _chain(inputs), _code(manifests), _environment(manifests), _durations(manifests)]
    return Section.of(CATEGORY, "Provenance", [Graph(svg=graph_svg(inputs), caption=caption), *tables])


def parts_of(corpus: CorpusManifest) -> Iterator[PartManifest]:
    """Yield the manifests of a corpus' parts that are still there."""
    sources = corpus.identity["sources"].values()
    shards = [shard["path"] for source in sources for split in SPLITS for shard in source[split]["shards"]]
    for part in dict.fromkeys(Path(path).parent.as_posix() for path in shards):
        path = corpus.directory / f"{part}.json"
        if path.exists():
            yield manifest.read(path, "tokenize")


def _raw(inputs: ReportInputs) -> Table:
    rows: list[list[str | Cell]] = []
    for corpus in inputs.corpora.values():
        for source in corpus.identity["sources"]:
            listed = inputs.lists.get(source)
            files = f"{len(listed.identity.get('files', [])):,}" if listed else "-"
            digests = [_digest(listed, inputs), _short(corpus.identity["tokenizer"]["digest"]), _digest(corpus, inputs)]
            rows.append([corpus.directory.name, source, files, *digests])
    caption = "From raw files to tokens: the list of a source holds the name and size of each raw file."
    titles = ["corpus", "source", "raw files", "list", "tokenizer", "corpus' digest"]
    return Table(titles=titles, rows=rows, caption=caption)


def _chain(inputs: ReportInputs) -> Table:
    rows = []
    for (name, step), model in inputs.results.models.items():
        export = inputs.results.exports.get((name, step))
        scores = {
            key[2]: evaluation for key, evaluation in inputs.results.evaluations.items() if key[:2] == (name, step)
        }
        corpus = inputs.corpus_of(model)
        links = [_digest(corpus, inputs), _digest(model, inputs), _digest(export, inputs)]
        scored = [[suite, _digest(evaluation, inputs)] for suite, evaluation in scores.items()] or [["-", "-"]]
        rows += [[name, f"{step:,}", *links, *cells] for cells in scored]
    caption = (
        "From tokens to scores: each digest is the sha256 of a manifest's identity, which holds the digests of its "
        "inputs and the sha256 of its outputs. That each export is of the model beside it, and each score of the "
        "export, was checked when this page was made."
    )
    titles = ["run", "step", "corpus", "model", "export", "suite", "scores"]
    return Table(titles=titles, rows=rows, caption=caption)


def _digest(result: Manifest | None, inputs: ReportInputs) -> Cell | str:
    if result is None:
        return "-"
    path = Path(os.path.relpath(result.path, inputs.directory)).as_posix()
    return Cell(text=result.digest[:DIGITS], title=f"{result.digest} {path}", code=True)  # no link: pages are mailed


def _short(digest: str) -> Cell:
    return Cell(text=digest[:DIGITS], title=digest, code=True)


def _code(manifests: Iterable[Manifest]) -> Table:
    """Return a table of the versions of each stage's code: more than one row per stage is a difference."""
    with_code = [one for one in manifests if one.record.get("code")]
    counts = Counter((one.stage, one.record["code"], one.record.get("commit") or "") for one in with_code)
    num_versions = Counter(stage for stage, _ in {(stage, code) for stage, code, _ in counts})
    rows = [
        [stage, _short(code), commit_cell(by), "differs" if num_versions[stage] > 1 else "one version", f"{number:,}"]
        for (stage, code, by), number in sorted(counts.items())
    ]
    caption = "The code of each stage: its fingerprint (comments and docstrings do not count), and the git commit."
    titles = ["stage", "fingerprint", "commit", "code", "manifests"]
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(-1, 0))


def _environment(manifests: Iterable[Manifest]) -> Table:
    values: dict[str, dict[str, None]] = {}  # in order
    for one in manifests:
        facts = {name: one.record.get(name) for name in ("host", "python", "device")}
        for name, value in {**facts, **one.record.get("versions", {})}.items():
            if value:
                values.setdefault(name, {})[value] = None
    rows = [
        [name, ", ".join(known), "differs" if len(known) > 1 and name in manifest.PACKAGES else ""]
        for name, known in values.items()
    ]
    return Table(titles=["", "found in the manifests", ""], rows=rows, caption="The environment.")


def _durations(manifests: Iterable[Manifest]) -> Table:
    """Return the time of each stage: of the last job that made each manifest."""
    of_stage: dict[str, list[tuple[float, float]]] = {}
    for one in manifests:
        if "seconds" in one.record:
            ranks = int(one.record.get("world_size") or 1)
            of_stage.setdefault(one.stage, []).append((one.record["seconds"], one.record["seconds"] * ranks))
    rows = []
    for stage, seconds in of_stage.items():
        longest, total = max(each for each, _ in seconds), sum(each for each, _ in seconds)
        rank_hours = sum(each for _, each in seconds) / 3600
        rows.append([stage, f"{len(seconds):,}", duration(total), duration(longest), f"{rank_hours:,.3g}"])
    caption = (
        "Duration of each stage: of the jobs that wrote its manifests. Rank-hours are hours times ranks, and a rank is "
        "a GPU where a stage ran on GPUs. Jobs that were stopped before a milestone are not in it."
    )
    titles = ["stage", "jobs", "time", "longest", "rank-hours"]
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(-4, 0))


def commit_cell(recorded: str | None) -> Cell | str:
    """Return the commit of a record: `+` after it says that the checkout had changes."""
    if not recorded:
        return "-"
    changed = recorded.endswith("+")
    title = recorded + (" the checkout had changes that are not committed" if changed else "")
    return Cell(text=recorded[:COMMIT] + "+" * changed, title=title, code=True)


LARGEST = 60  # jobs; the tables below have the same chain for more
LETTERS = 29  # of a name
WIDTH, HEIGHT, GAP_X, GAP_Y = 196, 38, 34, 10  # of a node, and between nodes, in pixels


@dataclass
class Node:
    """A job: what it is, the name that tells it from the others of its column, and the jobs that it reads."""

    column: int
    stage: str
    name: str
    inputs: list[str] = field(default_factory=list)
    row: int = 0

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The left, upper, right and lower edge."""
        x, y = self.column * (WIDTH + GAP_X) + 1, self.row * (HEIGHT + GAP_Y) + 1
        return x, y, x + WIDTH, y + HEIGHT


def graph_svg(inputs: ReportInputs) -> str:
    """Return the drawing; empty without a job, or if there are too many to be read."""
    nodes = _nodes(inputs)
    if not 0 < len(nodes) <= LARGEST:
        return ""
    rows: dict[int, int] = {}
    for node in nodes.values():
        node.row = rows.get(node.column, 0)
        rows[node.column] = node.row + 1
    width, height = (max(node.box[edge] for node in nodes.values()) for edge in (2, 3))
    lines = "".join(_arrow(nodes[before], node) for node in nodes.values() for before in node.inputs if before in nodes)
    boxes = "".join(map(_box, nodes.values()))
    return (
        f'<svg class="graph" width="{width + 1}" height="{height + 1}" role="img"'
        f' aria-label="jobs from raw files to scores">{lines}{boxes}</svg>'
    )


def _nodes(inputs: ReportInputs) -> dict[str, Node]:
    """The jobs by the digest of their manifests; evaluations of one export are one node."""
    nodes = {listed.digest: Node(0, "list", name) for name, listed in inputs.lists.items()}
    for digest, corpus in inputs.corpora.items():
        before = [inputs.lists[source].digest for source in corpus.identity["sources"] if source in inputs.lists]
        nodes[digest] = Node(1, "tokenize, index", corpus.directory.name, before)
    previous: dict[str, str] = {}
    for (name, step), model in inputs.results.models.items():
        nodes[model.digest] = Node(
            2, model.stage, f"{name}, step {step:,}", [*_before(inputs, model, previous.get(name))]
        )
        previous[name] = model.digest
    for (name, step), export in inputs.results.exports.items():
        nodes[export.digest] = Node(3, "convert", f"{name}, step {step:,}", [export.identity["model"]])
    for (name, step, suite), evaluation in inputs.results.evaluations.items():
        label = f"{name}, step {step:,}: {suite}"
        nodes[evaluation.digest] = Node(4, "evaluate", label, [evaluation.identity["export"]])
    return nodes


def _before(inputs: ReportInputs, model: ModelManifest, previous: str | None) -> Iterator[str]:
    """The jobs that a milestone reads: the milestone before, or the corpus and the model that it starts from."""
    if previous:
        yield previous
        return
    yield model.identity.get("corpus", "")
    yield from (inputs.lists[source].digest for source in model.identity.get("tuned_on", ()) if source in inputs.lists)
    origin = inputs.results.tuned_from(model.path.absolute().parents[1].name)
    if origin:
        yield inputs.results.models[origin].digest


def _arrow(before: Node, node: Node) -> str:
    """A curve from the right edge of a job to the left edge of the next, or down to a later job of its column."""
    (_, top, right, bottom), (left, upper, _, _) = before.box, node.box
    if before.column == node.column:
        bend, start, end = right + GAP_X * 0.7, bottom - 9, upper + 9
        return f'<path d="M{right} {start}C{bend} {start} {bend} {end} {right} {end}"/>'
    start, end, middle = top + HEIGHT // 2, upper + HEIGHT // 2, (right + left) / 2
    return f'<path d="M{right} {start}C{middle} {start} {middle} {end} {left} {end}"/>'


def _box(node: Node) -> str:
    name = node.name if len(node.name) <= LETTERS else f"{node.name[:8]}...{node.name[11 - LETTERS :]}"  # with its step
    return (
        f'<g transform="translate({node.box[0]} {node.box[1]})"><title>{escape(node.stage)} {escape(node.name)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="5"/><text x="8" y="15" class="stage">{escape(node.stage)}</text>'
        f'<text x="8" y="30">{escape(name)}</text></g>'
    )

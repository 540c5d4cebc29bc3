"""A drawing of the jobs from raw files to scores, in columns; two jobs of a stage are told apart by run and step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from stages.lib.manifest import Manifest
from stages.lib.report_page.inputs import PageInputs

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
    def x(self) -> int:
        """The left edge."""
        return self.column * (WIDTH + GAP_X) + 1

    @property
    def y(self) -> int:
        """The upper edge."""
        return self.row * (HEIGHT + GAP_Y) + 1

    @property
    def right(self) -> int:
        """The right edge."""
        return self.x + WIDTH

    @property
    def bottom(self) -> int:
        """The lower edge."""
        return self.y + HEIGHT


def svg(inputs: PageInputs) -> str:
    """Return the drawing; empty without a job, or if there are too many to be read."""
    nodes = _nodes(inputs)
    if not 0 < len(nodes) <= LARGEST:
        return ""
    _place(nodes)
    width, height = (max(getattr(node, edge) for node in nodes.values()) for edge in ("right", "bottom"))
    lines = "".join(_arrow(nodes[before], node) for node in nodes.values() for before in node.inputs if before in nodes)
    boxes = "".join(map(_box, nodes.values()))
    return (
        f'<svg class="graph" width="{width + 1}" height="{height + 1}" role="img"'
        f' aria-label="jobs from raw files to scores">{lines}{boxes}</svg>'
    )


def _nodes(inputs: PageInputs) -> dict[str, Node]:
    """The jobs by the digest of their manifests; evaluations of one export are one node."""
    nodes = {made.digest: Node(0, "list", name) for name, made in inputs.lists.items()}
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
    for (name, step, suite), made in inputs.results.evaluations.items():
        label = f"{name}, step {step:,}: {suite}"
        nodes[made.digest] = Node(4, "evaluate", label, [made.identity["export"]])
    return nodes


def _before(inputs: PageInputs, model: Manifest, previous: str | None) -> Iterator[str]:
    """The jobs that a milestone reads: the milestone before, or the corpus and the model that it starts from."""
    if previous:
        yield previous
        return
    yield model.identity.get("corpus", "")
    yield from (inputs.lists[source].digest for source in model.identity.get("tuned_on", ()) if source in inputs.lists)
    origin = inputs.results.tuned_from(model.path.absolute().parents[1].name)
    if origin:
        yield inputs.results.models[origin].digest


def _place(nodes: dict[str, Node]) -> None:
    rows: dict[int, int] = {}
    for node in nodes.values():
        node.row = rows.get(node.column, 0)
        rows[node.column] = node.row + 1


def _arrow(before: Node, node: Node) -> str:
    """A curve from the right edge of a job to the left edge of the next, or down to a later job of its column."""
    if before.column == node.column:
        x, bend = before.right, GAP_X * 0.7
        start, end = before.bottom - 9, node.y + 9
        return f'<path d="M{x} {start}C{x + bend} {start} {x + bend} {end} {x} {end}"/>'
    start, end = before.y + HEIGHT // 2, node.y + HEIGHT // 2
    middle = (before.right + node.x) / 2
    return f'<path d="M{before.right} {start}C{middle} {start} {middle} {end} {node.x} {end}"/>'


def _box(node: Node) -> str:
    name = node.name if len(node.name) <= LETTERS else f"{node.name[:8]}...{node.name[11 - LETTERS :]}"  # with its step
    return (
        f'<g transform="translate({node.x} {node.y})"><title>{escape(node.stage)} {escape(node.name)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="5"/><text x="8" y="15" class="stage">{escape(node.stage)}</text>'
        f'<text x="8" y="30">{escape(name)}</text></g>'
    )

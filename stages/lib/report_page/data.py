"""The data: the sources and their text, and the tokens and epochs that each run drew from them."""

from __future__ import annotations

from collections.abc import Iterator

from stages.lib.manifest import Manifest
from stages.lib.report_page import mix
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.section import Block, Cell, Section, Table
from stages.lib.space import amount

CATEGORY = "Data"


def section(inputs: PageInputs) -> Section | None:
    """Return the section on the data; None if nothing is known of it."""
    blocks = [*mix.bars(inputs), *_drawn(inputs), *_corpora(inputs), *_sources(inputs)]
    return Section(category=CATEGORY, title="Data", blocks=blocks) if blocks else None


def _drawn(inputs: PageInputs) -> Iterator[Block]:
    rows = [row for name, model in inputs.last_models().items() for row in _drawn_by(inputs, name, model)]
    titles = ["run", "source", "planned", "seen", "tokens drawn", "epochs"]
    caption = (
        "Tokens that each run drew from its sources up to its last step. An epoch is all training text of a source."
    )
    if rows:
        yield Table(titles=titles, rows=rows, caption=caption, numeric=range(-4, 0))


def _drawn_by(inputs: PageInputs, name: str, model: Manifest) -> Iterator[list[str]]:
    planned, seen, curves = mix.planned(model), mix.seen(inputs, name), inputs.curves.get(name)
    for source in dict.fromkeys([*planned, *seen]):
        yield [
            *(name, source),
            *(f"{found[source]:.1%}" if source in found else "-" for found in (planned, seen)),
            f"{curves.drawn[source]:,.0f}" if curves and source in curves.drawn else "-",
            f"{curves.epochs[source]:.3g}" if curves and source in curves.epochs else "-",
        ]


def _corpora(inputs: PageInputs) -> Iterator[Block]:
    rows = []
    for corpus in inputs.corpora.values():
        for source, splits in corpus.identity["sources"].items():
            train, validation = splits.get("train", {}), splits.get("validation", {})
            dropped = corpus.record.get("dropped", {}).get(source, {})
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items()) or "none"
            counts = [f"{train.get('documents', 0):,}", f"{train.get('tokens', 0):,}"]
            text = [amount(train.get("text_bytes", 0)), f"{validation.get('documents', 0):,}"]
            rows.append([corpus.directory.name, source, reasons, *counts, *text])
    titles = ["corpus", "source", "malformed or filtered", "documents", "tokens", "text", "validation documents"]
    if rows:
        yield Table(titles=titles, rows=rows, caption="What each corpus holds of its sources.", numeric=range(-4, 0))


def _sources(inputs: PageInputs) -> Iterator[Block]:
    rows: list[list[str | Cell]] = []
    for name, listed in inputs.lists.items():
        files, recipe = listed.identity.get("files", []), listed.identity.get("recipe", {})
        size = amount(sum(file.get("bytes") or 0 for file in files))
        license_name = listed.record.get("license") or "not stated"
        rows.append([name, recipe.get("kind", "-"), license_name, f"{len(files):,}", size])
    titles = ["source", "kind", "license", "raw files", "size"]
    if rows:
        yield Table(
            titles=titles, rows=rows, caption="The raw files of each source, as they were listed.", numeric=range(-2, 0)
        )

"""The data: the sources and their text, and the tokens and epochs that each run drew from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.lib.manifest import Manifest
from stages.lib.pages.inputs import ReportInputs, shares, source_colors
from stages.lib.render.page import Bars, Block, Section
from stages.lib.render.table import Cell, Table
from stages.lib.space import amount

CATEGORY = "Data"


def section(inputs: ReportInputs) -> Section | None:
    """Return the section on the data; None if nothing is known of it."""
    blocks = [*mix_bars(inputs), *_drawn(inputs), *_corpora(inputs), *_sources(inputs)]
    return Section(category=CATEGORY, title="Data", blocks=blocks) if blocks else None


def _drawn(inputs: ReportInputs) -> Iterator[Block]:
    rows = [row for name, model in inputs.last_models().items() for row in _drawn_by(inputs, name, model)]
    titles = ["run", "source", "planned", "seen", "tokens drawn", "epochs"]
    caption = (
        "Tokens that each run drew from its sources up to its last step. An epoch is all training text of a source."
    )
    if rows:
        yield Table(titles=titles, rows=rows, caption=caption, numeric=range(-4, 0))


def _drawn_by(inputs: ReportInputs, name: str, model: Manifest) -> Iterator[list[str]]:
    planned, seen, curves = planned_mix(model), seen_mix(inputs, name), inputs.curves.get(name)
    for source in dict.fromkeys([*planned, *seen]):
        yield [
            *(name, source),
            *(f"{mix[source]:.1%}" if source in mix else "-" for mix in (planned, seen)),
            f"{curves.drawn[source]:,.0f}" if curves and source in curves.drawn else "-",
            f"{curves.epochs[source]:.3g}" if curves and source in curves.epochs else "-",
        ]


def _corpora(inputs: ReportInputs) -> Iterator[Block]:
    rows = []
    for corpus in inputs.corpora.values():
        for source, splits in corpus.identity["sources"].items():
            train, validation = splits.get("train", {}), splits.get("validation", {})
            dropped = corpus.record.get("dropped", {}).get(source, {})
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items()) or "none"
            if masked := corpus.record.get("masked", {}).get(source):
                reasons += f"; masked: {', '.join(f'{number:,} {kind}' for kind, number in masked.items())}"
            counts = [f"{train.get('documents', 0):,}", f"{train.get('tokens', 0):,}"]
            text = [amount(train.get("text_bytes", 0)), f"{validation.get('documents', 0):,}"]
            rows.append([corpus.directory.name, source, reasons, *counts, *text])
    titles = ["corpus", "source", "malformed or filtered", "documents", "tokens", "text", "validation documents"]
    if rows:
        yield Table(titles=titles, rows=rows, caption="What each corpus holds of its sources.", numeric=range(-4, 0))


def _sources(inputs: ReportInputs) -> Iterator[Block]:
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


SHOWN = 12  # mixes with bars; the table under Data has all


def planned_mix(model: Manifest) -> dict[str, float]:
    """Return {source: its planned share of the samples}, over all data stages; {} if the mixture is not recorded."""
    stages: Sequence[Mapping[str, Any]] = model.record.get("data", {}).get("mixture", [])
    samples = model.identity.get("samples", 0)
    totals: dict[str, float] = {}
    ends = [*(stage["from_sample"] for stage in stages[1:]), samples]
    for stage, end in zip(stages, ends, strict=True) if stages else ():
        length = max(min(end, samples) - stage["from_sample"], 0)
        for source, share in shares(stage["slots"]).items():
            totals[source] = totals.get(source, 0.0) + share * length
    recipe = model.identity["recipe"]
    return shares(totals) or ({} if recipe.get("data_stages") else shares(recipe.get("weights", {})))


def seen_mix(inputs: ReportInputs, run_name: str) -> dict[str, float]:
    """Return {source: its share of the tokens that were drawn}; {} without the run's metrics."""
    curves = inputs.curves.get(run_name)
    return shares(curves.drawn) if curves else {}


def mix_in_words(inputs: ReportInputs, run_name: str) -> str:
    """Return the mix of a run as text, the largest share first: "code 67%, prose 33%"."""
    model = inputs.last_models()[run_name]
    mix = seen_mix(inputs, run_name) or planned_mix(model)
    ranked = sorted(mix.items(), key=lambda share: -share[1])
    return ", ".join(f"{source} {share:.0%}" for source, share in ranked) or "-"


def mix_bars(inputs: ReportInputs) -> Iterator[Block]:
    """Yield bars of the planned and seen mix of the runs; runs with the same mix, to a percent, share their bars."""
    rows: list[tuple[str, str, Mapping[str, float]]] = []
    runs: dict[str, list[str]] = {}  # those of the same mix are one
    mixes: dict[str, Any] = {}
    for name, model in inputs.last_models().items():
        of_run = {"planned": planned_mix(model), "seen": seen_mix(inputs, name)}
        key = repr([{source: round(share, 2) for source, share in mix.items()} for mix in of_run.values()])
        mixes.setdefault(key, of_run)
        runs.setdefault(key, []).append(name)
    for key, names in [*runs.items()][:SHOWN]:
        label = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        rows += [(label, kind, mix) for kind, mix in mixes[key].items() if mix]
    parts = list(dict.fromkeys(source for _, _, mix in rows for source in mix))
    more = f" The first {SHOWN} of {len(runs)} mixes; the others stand under Data." if len(runs) > SHOWN else ""
    if rows:
        caption = (
            "Data mix. Planned: shares of the samples by the run's weights. Seen: shares of the tokens that were drawn."
        )
        colors = source_colors(inputs.curves)
        colors |= {part: len(colors) + at for at, part in enumerate(part for part in parts if part not in colors)}
        yield Bars(parts=sorted(parts), rows=rows, caption=caption + more, colors=colors)

"""The data mix of each run: planned by its weights, and seen by its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.lib.manifest import Manifest
from stages.lib.report.summary_figures import source_colors
from stages.lib.report_page.inputs import PageInputs, shares
from stages.lib.report_page.section import Bars, Block

SHOWN = 12  # mixes with bars; the table under Data has all


def planned(model: Manifest) -> dict[str, float]:
    """Return {source: its planned share of the samples}, over all data stages; {} if the mixture is not recorded."""
    stages: Sequence[Mapping[str, Any]] = model.record.get("data", {}).get("mixture", [])
    samples, totals = model.identity.get("samples", 0), {}
    ends = [*(stage["from_sample"] for stage in stages[1:]), samples]
    for stage, end in zip(stages, ends, strict=True) if stages else ():
        length = max(min(end, samples) - stage["from_sample"], 0)
        for source, share in shares(stage["slots"]).items():
            totals[source] = totals.get(source, 0.0) + share * length
    return shares(totals) or shares(_weights(model))


def _weights(model: Manifest) -> dict[str, Any]:
    recipe = model.identity["recipe"]
    return {} if recipe.get("data_stages") else recipe.get("weights", {})


def seen(inputs: PageInputs, run_name: str) -> dict[str, float]:
    """Return {source: its share of the tokens that were drawn}; {} without the run's metrics."""
    curves = inputs.curves.get(run_name)
    return shares(curves.drawn) if curves else {}


def in_words(inputs: PageInputs, run_name: str) -> str:
    """Return the mix of a run as text, the largest share first: "code 67%, prose 33%"."""
    model = inputs.last_models()[run_name]
    found = seen(inputs, run_name) or planned(model)
    ranked = sorted(found.items(), key=lambda share: -share[1])
    return ", ".join(f"{source} {share:.0%}" for source, share in ranked) or "-"


def bars(inputs: PageInputs) -> Iterator[Block]:
    """Yield bars of the planned and seen mix of the runs; runs with the same mix, to a percent, share their bars."""
    rows: list[tuple[str, str, Mapping[str, float]]] = []
    runs: dict[str, list[str]] = {}  # those of the same mix are one
    mixes = {}
    for name, model in inputs.last_models().items():
        found = {"planned": planned(model), "seen": seen(inputs, name)}
        key = repr([{source: round(share, 2) for source, share in mix.items()} for mix in found.values()])
        mixes.setdefault(key, found)
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

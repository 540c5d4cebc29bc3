"""The data: the sources and their text, and the tokens and epochs that each run drew from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.lib.manifest import CorpusManifest, ModelManifest
from stages.lib.manifest_types import COUNTED, SPLITS, Count
from stages.lib.pages.inputs import ReportInputs, shares, source_colors
from stages.lib.render.page import Bars, Block, HeatCell, HeatMap, Section
from stages.lib.render.table import Cell, Table
from stages.lib.sources.documents import COUNTS
from stages.lib.space import amount

CATEGORY = "Data"
REPEATS: tuple[Count, ...] = ("duplicates_of", "near_duplicates_of")
LANGUAGES = 8  # in a bar, besides the others
EXAMPLE = 80  # characters
WORDS = 8
LENGTHS = {
    1 << 8: "below 256 B",
    1 << 10: "below 1 KiB",
    1 << 12: "below 4 KiB",
    1 << 14: "below 16 KiB",
    1 << 16: "below 64 KiB",
    1 << 18: "below 256 KiB",
    1 << 62: "longer",
}
"""Labels of the lengths of documents by their bounds, in bytes."""


def section(inputs: ReportInputs) -> Section | None:
    """Return the section on the data; None if nothing is known of it."""
    corpora = [*inputs.corpora.values()]
    of_corpora = [_corpora(corpora), *_text_bars(corpora), _removed(corpora), _repeated(corpora)]
    blocks = [mix_bars(inputs), _drawn(inputs), *of_corpora, *_classifiers(inputs), _sources(inputs)]
    return Section.of(CATEGORY, "Data", blocks)


def _drawn(inputs: ReportInputs) -> Table:
    rows = []
    for name, model in inputs.results.last_models().items():
        planned, seen, curves = planned_mix(model), seen_mix(inputs, name), inputs.curves.get(name)
        rows += [
            [
                *(name, source),
                *(f"{mix[source]:.1%}" if source in mix else "-" for mix in (planned, seen)),
                f"{curves.drawn[source]:,.0f}" if curves and source in curves.drawn else "-",
                f"{curves.epochs[source]:.3g}" if curves and source in curves.epochs else "-",
            ]
            for source in dict.fromkeys([*planned, *seen])
        ]
    return Table(
        titles=["run", "source", "planned", "seen", "tokens drawn", "epochs"],
        rows=rows,
        caption="Tokens that each run drew from its sources up to its last step. An epoch is all training text of a "
        "source.",
        numeric=range(-4, 0),
    )


@dataclass(frozen=True, kw_only=True)
class SourceText:
    """The text of a source in a corpus, of both splits, before and after what is dropped.

    `dropped`, `dropped_bytes`: records and bytes of text by reason. `repeats`: {duplicates_of, near_duplicates_of:
    {source: its documents that stay for them}}. `bytes` is None before if the corpus was made by a version that did not
    count it.
    """

    documents: int
    tokens: int
    bytes: int
    validation_documents: int
    dropped: Mapping[str, int]
    dropped_bytes: Mapping[str, int] | None
    masked: Mapping[str, int]
    languages: Mapping[str, int]
    lengths: Mapping[int, int]
    repeats: Mapping[str, Mapping[str, int]]
    examples: Mapping[str, Sequence[Mapping[str, Any]]]

    @property
    def records(self) -> int:
        """The records that were read."""
        return self.documents + sum(self.dropped.values())

    @property
    def bytes_before(self) -> int | None:
        """The bytes of text of these records."""
        return None if self.dropped_bytes is None else self.bytes + sum(self.dropped_bytes.values())

    @property
    def bytes_per_token(self) -> float | None:
        """The bytes of text that a token stands for; None for documents of ids, which had no text."""
        return self.bytes / self.tokens if self.tokens and self.bytes else None


def text_of(corpus: CorpusManifest, source: str) -> SourceText:
    """Return what a corpus counted of one of its sources."""
    record, of_source = corpus.record, corpus.identity["sources"][source]
    totals = {key: sum(of_source[split][key] for split in SPLITS) for key in COUNTED}
    counted = {key: record.get(key, {}).get(source, {}) for key in COUNTS}
    knows_bytes = "dropped_examples" in record or not counted["dropped"]
    return SourceText(
        documents=totals["documents"],
        tokens=totals["tokens"],
        bytes=totals["text_bytes"],
        validation_documents=of_source["validation"]["documents"],
        dropped=counted["dropped"],
        dropped_bytes=counted["dropped_bytes"] if knows_bytes else None,
        masked=counted["masked"],
        languages=counted["languages"],
        lengths={int(bound): number for bound, number in counted["lengths"].items()},
        repeats={kind: counted[kind] for kind in REPEATS if counted[kind]},
        examples=record.get("dropped_examples", {}).get(source, {}),
    )


def _texts(corpora: Sequence[CorpusManifest]) -> Iterator[tuple[str, str, SourceText]]:
    """Yield (corpus, source, its text) of all sources."""
    for corpus in corpora:
        for source in corpus.identity["sources"]:
            yield corpus.directory.name, source, text_of(corpus, source)


def _corpora(corpora: Sequence[CorpusManifest]) -> Table:
    rows = []
    for corpus, source, text in _texts(corpora):
        before = "-" if text.bytes_before is None else amount(text.bytes_before)
        ratio = "-" if text.bytes_per_token is None else f"{text.bytes_per_token:.2f}"
        stays = f"{text.documents / text.records:.1%}" if text.records else "-"
        counts = [f"{text.documents:,}", amount(text.bytes), f"{text.tokens:,}", ratio]
        masked = ", ".join(f"{number:,} {kind}" for kind, number in text.masked.items()) or "-"
        rows.append([corpus, source, masked, f"{text.records:,}", before, stays, *counts,
                     f"{text.validation_documents:,}"])  # fmt: skip
    titles = ["corpus", "source", "masked", "records read", "their text", "stay", "documents", "text", "tokens",
              "bytes per token", "validation documents"]  # fmt: skip
    caption = "What each corpus read of its sources, and what it holds of them, in both splits."
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(-8, 0))


def _text_bars(corpora: Sequence[CorpusManifest]) -> Iterator[Block]:
    """Yield bars of what became of the records, of lengths and of languages."""
    texts = [*_texts(corpora)]
    became = [(text.dropped, {"stay": text.documents} | _by_rule(text.dropped)) for _, _, text in texts]
    lengths = [(text.lengths, _by_length(text.lengths)) for _, _, text in texts]
    languages = [(text.languages, most(text.languages)) for _, _, text in texts]
    for found, caption in (
        (became, "Records of each source: those that stay, and those that are dropped, by rule."),
        (lengths, "Documents by their length in bytes of text, after filters and duplicates."),
        (languages, "Documents by the language that was identified, filtered ones too."),
    ):
        rows = [
            (source, corpus, shares(counts))
            for (corpus, source, _), (known, counts) in zip(texts, found, strict=True)
            if known
        ]
        parts = list(dict.fromkeys(part for _, _, counts in rows for part in counts))
        if found is lengths:
            parts = [part for part in LENGTHS.values() if part in parts]
        yield Bars(parts=parts, rows=rows, caption=caption, colors={part: at for at, part in enumerate(parts)})


def _by_rule(dropped: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers by filter or set of rules, the largest first: filters.gopher_quality.min_words is one."""
    counts: Counter[str] = Counter()
    for reason, number in dropped.items():
        counts[".".join(reason.split(".")[:2]) if reason.startswith("filters.") else reason] += number
    return dict(counts.most_common())


def _by_length(lengths: Mapping[int, int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for bound, number in sorted(lengths.items()):
        counts[next(label for limit, label in LENGTHS.items() if bound <= limit)] += number
    return dict(counts)


def most(languages: Mapping[str, int]) -> dict[str, int]:
    """Return the most frequent languages, and the rest as one."""
    ranked = sorted(languages.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(number for _, number in ranked[LANGUAGES:])
    return dict(ranked[:LANGUAGES]) | ({"others": rest} if rest else {})


def _removed(corpora: Sequence[CorpusManifest]) -> Table:
    rows: list[list[str | Cell]] = []
    for corpus, source, text in _texts(corpora):
        for reason, number in sorted(text.dropped.items(), key=lambda item: (-item[1], item[0])):
            size = "-" if text.dropped_bytes is None else amount(text.dropped_bytes.get(reason, 0))
            cells = [corpus, source, reason, f"{number:,}", f"{number / text.records:.2%}", size]
            rows.append([*cells, _example(text.examples.get(reason, ()))])
    titles = ["corpus", "source", "reason", "records", "share", "text", "an example"]
    caption = "What was dropped of each source, by reason; malformed records have no text."
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(3, 6))


def _example(examples: Sequence[Mapping[str, Any]]) -> str | Cell:
    """Return the beginning of the first example that has text, its id where none has."""
    for example in examples:
        text = " ".join(str(example.get("text", "")).split())
        if text:
            shown = text if len(text) <= EXAMPLE else f"{text[:EXAMPLE]}..."
            note = f"({example['value']})" if "value" in example else ""
            return Cell(text=shown, note=note, title=str(example["id"]))
    return str(examples[0]["id"]) if examples else "-"


def _repeated(corpora: Sequence[CorpusManifest]) -> Table:
    rows = [
        [corpus, source, other, *(f"{text.repeats.get(kind, {}).get(other, 0):,}" for kind in REPEATS)]
        for corpus, source, text in _texts(corpora)
        for other in sorted({name for counts in text.repeats.values() for name in counts})
    ]
    titles = ["corpus", "source", "repeats documents of", "exact duplicates", "near duplicates"]
    caption = "Documents that were dropped as duplicates, within each source and across sources."
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(-2, 0))


def _classifiers(inputs: ReportInputs) -> Iterator[Block]:
    """Yield the held-out measures of each classifier that filters a source, and what each threshold keeps."""
    rows, kept = [], {}
    for digest, made in inputs.classifiers.items():
        name, record, recipe = made.directory.name, made.record, made.identity["recipe"]
        filtered = [key for key, listed in inputs.lists.items() if listed.identity.get("classifier") == digest]
        for kind in ("good", "bad"):
            numbers, words = record["documents"][kind], ", ".join(record["words"][kind][:WORDS])
            rows.append([name, ", ".join(filtered), kind, ", ".join(recipe[kind]), words,
                         f"{numbers['trained_on']:,}", f"{numbers['held_out']:,}",
                         f"{record['accuracy']:.1%}", f"{record['roc_auc']:.3f}"])  # fmt: skip
        for at, kind in enumerate(("good", "bad"), 1):
            kept[f"{name}: {kind}"] = [(point[at], point[0]) for point in record["curve"]]
    if rows:
        titles = ["classifier", "filters", "class", "its sources", "most telling words", "trained on", "held out",
                  "accuracy", "ROC AUC"]  # fmt: skip
        caption = "Quality classifiers, measured on held-out documents; accuracy is at 0.5, the mean over both classes."
        yield Table(titles=titles, rows=rows, caption=caption, numeric=range(-4, 0))
        yield HeatMap(
            caption="Share of the held-out documents of each class whose score is at least the threshold.",
            x_label="threshold",
            y_label="class",
            x_values=[f"{threshold:g}" for _, threshold in next(iter(kept.values()))],
            y_values=[*kept],
            rows=[[HeatCell(text=f"{share:.0%}", share=share) for share, _ in points] for points in kept.values()],
        )


def _sources(inputs: ReportInputs) -> Table:
    rows: list[list[str | Cell]] = []
    for name, listed in inputs.lists.items():
        files, recipe = listed.identity.get("files", []), listed.identity.get("recipe", {})
        size = amount(sum(file.get("bytes") or 0 for file in files))
        license_name = listed.record.get("license") or "not stated"
        rows.append([name, recipe.get("kind", "-"), license_name, f"{len(files):,}", size])
    titles = ["source", "kind", "license", "raw files", "size"]
    caption = "The raw files of each source, as they were listed."
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(-2, 0))


SHOWN = 12  # mixes with bars; the table under Data has all


def planned_mix(model: ModelManifest) -> dict[str, float]:
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
    model = inputs.results.last_models()[run_name]
    mix = seen_mix(inputs, run_name) or planned_mix(model)
    ranked = sorted(mix.items(), key=lambda share: -share[1])
    return ", ".join(f"{source} {share:.0%}" for source, share in ranked) or "-"


def mix_bars(inputs: ReportInputs) -> Bars:
    """Return bars of the planned and seen mix of the runs; runs with the same mix, to a percent, share their bars."""
    rows: list[tuple[str, str, Mapping[str, float]]] = []
    runs: dict[str, list[str]] = {}  # those of the same mix are one
    mixes: dict[str, Any] = {}
    for name, model in inputs.results.last_models().items():
        of_run = {"planned": planned_mix(model), "seen": seen_mix(inputs, name)}
        key = repr([{source: round(share, 2) for source, share in mix.items()} for mix in of_run.values()])
        mixes.setdefault(key, of_run)
        runs.setdefault(key, []).append(name)
    for key, names in [*runs.items()][:SHOWN]:
        label = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        rows += [(label, kind, mix) for kind, mix in mixes[key].items() if mix]
    parts = list(dict.fromkeys(source for _, _, mix in rows for source in mix))
    more = f" The first {SHOWN} of {len(runs)} mixes; the others stand under Data." if len(runs) > SHOWN else ""
    caption = (
        "Data mix. Planned: shares of the samples by the run's weights. Seen: shares of the tokens that were drawn."
    )
    colors = source_colors(inputs.curves)
    colors |= {part: len(colors) + at for at, part in enumerate(part for part in parts if part not in colors)}
    return Bars(parts=sorted(parts), rows=rows, caption=caption + more, colors=colors)

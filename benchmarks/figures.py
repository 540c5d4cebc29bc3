"""The figures of README.md and benchmarks/README.md, from the raw results in benchmarks/results.

    python -m benchmarks.figures           # write them into the pages
    python -m benchmarks.figures --check   # exit code 1 if a page differs from the raw results; the tests run it

FIGURES are those with a goal, which a table lists. A Quote is a piece of a page with numbers in it: if a sentence
around a number changes, change it here too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HOME = Path(__file__).resolve().parents[1]
RESULTS = HOME / "benchmarks/results"
BEGIN, END = "<!-- written by benchmarks.figures -->", "<!-- end -->"
BITS = "bits_per_byte"
"""The key of optimizers.json for bits per byte, computed from the validation loss."""

Found = dict[str, Any]


def raw(benchmark: str) -> Found:
    """Return the raw results of a benchmark."""
    return json.loads((RESULTS / f"{benchmark}.json").read_text(encoding="utf-8"))


def processor(*benchmarks: str) -> str:
    """Return the processors on which benchmarks ran, as Intel Xeon."""
    names = [raw(benchmark)["hardware"]["processor"] for benchmark in benchmarks]
    return " and ".join(dict.fromkeys(re.sub(r"\(\w+\)| Processor", "", name).strip() for name in names))


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a benchmark. `value` reads it from the raw results; `goal` is the least value, or the largest one."""

    benchmark: str
    text: str
    value: Callable[[Found], float]
    goal: float
    at_most: bool = False
    unit: str = "x"

    def row(self) -> list[str]:
        """Return the cells of its row: "-" for what was not measured."""
        sign, form = ("\u2264" if self.at_most else "\u2265"), "{:,.2f} {}"
        goal = f"{sign} {form.format(self.goal, self.unit)}"
        try:
            found = raw(self.benchmark)
            value = self.value(found)
        except (OSError, LookupError, ValueError):
            return [self.text, "-", goal, "not measured", f"`{self.benchmark}`"]
        reached = value <= self.goal if self.at_most else value >= self.goal
        state = "reached" if reached else f"{value / self.goal:.2f} of it"
        source = f"`{self.benchmark}`, {found['date']}, {processor(self.benchmark)}"
        return [self.text, form.format(value, self.unit), goal, state, source]


def _peer(name: str, figure: str) -> Callable[[Found], float]:
    return lambda found: found["ratios"][name][figure]


def _loader(length: str) -> Callable[[Found], float]:
    """Read our best packing over the fastest peer that reads the same shards."""

    def value(found: Found) -> float:
        speeds = {name: of["tokens_per_cpu_second"] for name, of in found["figures"][length].items()}
        ours = max(speed for name, speed in speeds.items() if name.startswith("caravan"))
        return ours / max(speeds[name] for name in ("torch memmap", "datasets", "litdata") if name in speeds)

    return value


def _plan(name: str) -> Callable[[Found], float]:
    return lambda found: found["plans"][name]["seconds"]


def _resume(found: Found) -> float:
    """Read the seconds above 1.3 times the read of the checkpoint's bytes."""
    return found["medians"]["resume"] - 1.3 * found["medians"]["read"]


FIGURES = (
    Figure(
        benchmark="tokenize",
        text="tokenize, tokens per CPU-second: over a Megatron-style pool",
        value=_peer("megatron", "tokens_per_cpu_second"),
        goal=6,
    ),
    Figure(
        benchmark="tokenize",
        text="tokenize, tokens per CPU-second: over datatrove",
        value=_peer("datatrove", "tokens_per_cpu_second"),
        goal=9,
    ),
    Figure(benchmark="loader", text="loader, L=512: over the fastest peer", value=_loader("512"), goal=5),
    Figure(benchmark="loader", text="loader, L=4096: over the fastest peer", value=_loader("4096"), goal=3),
    Figure(
        benchmark="train_cpu",
        text="CPU training step: over transformers",
        value=_peer("transformers", "tokens_per_second"),
        goal=1.15,
    ),
    Figure(
        benchmark="train_cpu",
        text="CPU training step: over litgpt",
        value=_peer("litgpt", "tokens_per_second"),
        goal=1.15,
    ),
    Figure(
        benchmark="train_cpu",
        text="CPU training step, peak memory: of transformers'",
        value=_peer("transformers", "peak_mb"),
        goal=0.5,
        at_most=True,
    ),
    Figure(
        benchmark="start",
        text="start of a training to its first step, tiny model, one process",
        value=lambda found: found["medians"]["new run, 1 process"],
        goal=4,
        at_most=True,
        unit="s",
    ),
    Figure(
        benchmark="start",
        text="resume from 1 GB: above 1.3 times the read of its bytes",
        value=_resume,
        goal=4,
        at_most=True,
        unit="s",
    ),
    Figure(
        benchmark="convert",
        text="conversion without parity: over a copy of the files",
        value=lambda found: found["writing_to_copy"],
        goal=3,
        at_most=True,
    ),
    Figure(
        benchmark="evaluate",
        text="evaluation: over the harness' command line, CPU",
        value=lambda found: found["ratio"]["cpu_seconds"],
        goal=1,
        at_most=True,
    ),
    Figure(benchmark="workflow", text="plan of the default", value=_plan("default"), goal=3, at_most=True, unit="s"),
    Figure(
        benchmark="workflow", text="plan of 10,000 files", value=_plan("10,000 files"), goal=20, at_most=True, unit="s"
    ),
    Figure(benchmark="workflow", text="plan of 200 runs", value=_plan("200 runs"), goal=20, at_most=True, unit="s"),
    Figure(
        benchmark="workflow",
        text="the demo after the install",
        value=lambda found: found["demo"]["whole"]["seconds"],
        goal=180,
        at_most=True,
        unit="s",
    ),
)
"""All figures with a goal, in the order of the table."""

TITLES = ("figure", "measured", "goal", "", "from")


def table() -> list[str]:
    """Return the lines of the table, as Markdown."""
    rows = [TITLES, ("---",) * len(TITLES), *(figure.row() for figure in FIGURES)]
    return [f"| {' | '.join(row)} |" for row in rows]


@dataclass(frozen=True)
class Quote:
    """A piece of a page: `text` with a field in braces for each of the `values`."""

    page: str
    text: str
    values: Callable[[], tuple[Any, ...]]

    def written_into(self, page: str) -> str:
        """Return the page with the values of today. Raises LookupError if the text does not stand in it once."""
        literals = re.split(r"\{[^}]*\}", self.text)
        pattern = r"[\w.,% +-]{1,32}?".join(map(re.escape, literals))
        if (number := len(re.findall(pattern, page))) != 1:
            raise LookupError(f"{self.page} must have once, and has {number} times: {self.text}")
        return re.sub(pattern, lambda _: self.text.format(*self.values()), page)


README, PAGE = "README.md", "benchmarks/README.md"


def _readme(text: str, values: Callable[[], tuple[Any, ...]]) -> Quote:
    return Quote(README, text, values)


def _page(text: str, values: Callable[[], tuple[Any, ...]]) -> Quote:
    return Quote(PAGE, text, values)


def _train_cpu(peer: str) -> tuple[Any, ...]:
    """Return a peer's version, our ratios over it, our peak memory and its own, in MB."""
    found = raw("train_cpu")
    ratios = found["ratios"][peer]
    sizes = [found["sizes"][name]["peak_mb"] for name in ("caravan", peer)]
    return found["versions"][peer], *(ratios[key] for key in ("tokens_per_second", "tokens_per_cpu_second")), *sizes


def _tokenize(peer: str) -> tuple[Any, ...]:
    """Return our ratios over a peer, our peak memory and its own, in MB."""
    found = raw("tokenize")
    ratios = [found["ratios"][peer][key] for key in ("tokens_per_cpu_second", "tokens_per_second", "peak_mb")]
    return *ratios, *(median(_turns(name, "peak_mb")) for name in ("caravan", peer))


def _turns(way: str, key: str) -> list[float]:
    return [turn[key] for turn in raw("tokenize")["turns"] if turn["way"] == way]


def _gigatoken_seconds() -> float:
    """Return the CPU-seconds that gigatoken alone needs for the texts of `tokenize`."""
    found = raw("tokenize")
    alone = found["encoders"]["gigatoken"]
    return alone["cpu_seconds"] * found["tokens"] / alone["tokens"]


def _read(reader: str) -> tuple[Any, ...]:
    """Return the speed of a reader at 512 and 4,096 tokens: million tokens per CPU-second, the factor to a copy."""
    of_lengths = [raw("loader")["figures"][length][reader] for length in ("512", "4096")]
    return tuple(
        value
        for found in of_lengths
        for value in (found["tokens_per_cpu_second"] / 1e6, _two_digits(1 / found["of_memcpy"]))
    )


def _two_digits(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _optimizer(name: str) -> tuple[Any, ...]:
    found = raw("optimizers")["summary"][name]
    return *found["seeds"], found[BITS], found["step_seconds"]


def _ladder() -> tuple[Any, ...]:
    """Return the errors of predictions (least, most, median), and the least and most reach of their intervals."""
    rows = [run["rows"]["loss"] for run in raw("ladder")["runs"]]
    errors = [abs(row["error"]) for row in rows]
    reaches = [abs(row[side] - row["value"]) / row["value"] for row in rows for side in ("low", "high")]
    return min(errors), max(errors), median(errors), min(reaches), max(reaches)


def _convert(*keys: str) -> tuple[Any, ...]:
    return tuple(raw("convert")["medians"][layers][key] for layers in ("24", "12") for key in keys)


def _writing_to_copy() -> tuple[Any, ...]:
    ratios = [[turn["writing"] / turn["copy"] for turn in turns] for turns in raw("convert")["turns"].values()]
    return tuple(number for of_layers in ratios for number in (min(of_layers), max(of_layers)))


def _contamination(program: str) -> tuple[Any, ...]:
    found = raw("contamination")
    rounded = round(found["tokens_per_cpu_second"][program], -4 if program == "caravan" else -3)
    return rounded, found["planted_items_found"][program], found["other_items_found"][program]


def _over_janitor() -> float:
    speeds = raw("contamination")["tokens_per_cpu_second"]
    return speeds["caravan"] / speeds["janitor"]


def _plan_ratios() -> tuple[float, float]:
    ratios = [case["ratio"] for case in raw("plan")["cases"].values()]
    return min(ratios), max(ratios)


def _demo_seconds() -> tuple[Any, ...]:
    return raw("workflow")["demo"]["whole"]["seconds"], processor("workflow")


QUOTES = (
    _readme("on two idle cores, {:.0f} s on an\n{} with AVX-512", _demo_seconds),
    _readme("| scores on a CPU, offline | {:.0f} s ({}, AVX-512), ", _demo_seconds),
    _readme(
        "All measured on 2 CPU cores of an {} (LoRA and the search for contaminated items: {}), beside",
        lambda: (
            processor("train_cpu", "tokenize", "loader", "optimizers", "evaluate"),
            processor("lora", "contamination"),
        ),
    ),
    _readme(
        "| training step, tokens per second ({:.1f} M parameters, float32) | {:.2f} x; {:.2f} x the memory | "
        "transformers {} |",
        lambda: (
            raw("train_cpu")["sizes"]["caravan"]["parameters"] / 1e6,
            *(raw("train_cpu")["ratios"]["transformers"][key] for key in ("tokens_per_second", "peak_mb")),
            raw("train_cpu")["versions"]["transformers"],
        ),
    ),
    _readme(
        "| | {:.2f} x; {:.2f} x the memory | litgpt {} |",
        lambda: (
            *(raw("train_cpu")["ratios"]["litgpt"][key] for key in ("tokens_per_second", "peak_mb")),
            raw("train_cpu")["versions"]["litgpt"],
        ),
    ),
    _readme(
        "| JSON lines to shards, tokens per CPU-second | {:.1f} x; {:.2f} x the memory | datatrove {} |",
        lambda: (
            *(raw("tokenize")["ratios"]["datatrove"][key] for key in ("tokens_per_cpu_second", "peak_mb")),
            raw("tokenize")["peers"]["versions"]["datatrove"],
        ),
    ),
    _readme(
        "| memory of tuning by LoRA (rank {}, {:.0f} M parameters, float32) | {:.2f} x |",
        lambda: (raw("lora")["rank"], raw("lora")["runs"]["full"]["parameters"] / 1e6, raw("lora")["ratio"]),
    ),
    _readme(
        "| loader, million tokens per CPU-second (4,096 per sample) | {:.0f} | {:.0f}, datasets {} |",
        lambda: (_read("caravan chunk")[2], _read("datasets")[2], raw("loader")["versions"]["datasets"]),
    ),
    _readme(
        "| search for contaminated items, tokens per CPU-second | {:.1f} x | lm-evaluation-harness {}, Janitor |",
        lambda: (_over_janitor(), raw("contamination")["versions"]["lm_eval"]),
    ),
    _readme(
        "| the demo's model after {} steps of Muon, validation loss in bits per byte, by the mean bytes per token "
        "({} seeds) | {:.3f} | {:.3f}, AdamW ",
        lambda: (
            raw("optimizers")["recipe"]["steps"],
            len(raw("optimizers")["summary"]["muon"]["seeds"]),
            *(_optimizer(name)[-2] for name in ("muon", "adamw")),
        ),
    ),
    _readme(
        "| scoring the demo's model, CPU-seconds | {:.2f} x | the command line of lm-evaluation-harness {} |",
        lambda: (raw("evaluate")["ratio"]["cpu_seconds"], raw("evaluate")["versions"]["lm_eval"]),
    ),
    _page(
        "Measured with torch {} on {} idle cores of an {} (medians of {} steps in turns; {:.1f} M parameters",
        lambda: (
            raw("train_cpu")["versions"]["torch"].rpartition(".")[0],
            raw("train_cpu")["hardware"]["cores"],
            processor("train_cpu"),
            1 + max(repeat["repeat"] for repeat in raw("train_cpu")["repeats"]),
            raw("train_cpu")["sizes"]["caravan"]["parameters"] / 1e6,
        ),
    ),
    _page(
        "| transformers {} | {:.2f} | {:.2f} | {:.2f} ({:,.0f} of {:,.0f} MB) |",
        lambda: _with_ratio(_train_cpu("transformers")),
    ),
    _page(
        "| litgpt {} | {:.2f} | {:.2f} | {:.2f} (of {:,.0f} MB) |", lambda: _of_peer(_with_ratio(_train_cpu("litgpt")))
    ),
    _page("`plan`: planned / measured is {:.2f} to {:.2f} in seven cases", _plan_ratios),
    _page(
        "`lora`, with one thread of an {} beside a load of 10 (one run of {} steps; {:.0f} M parameters, rank {} at\n",
        lambda: (
            processor("lora"),
            len(raw("lora")["runs"]["lora"]["seconds"]),
            raw("lora")["runs"]["full"]["parameters"] / 1e6,
            raw("lora")["rank"],
        ),
    ),
    _page(
        "a peak of {:.0f} MB above the imports' where a full training has {:,.0f} MB, {:.2f} of it",
        lambda: (*(raw("lora")["runs"][kind]["peak_mb"] for kind in ("lora", "full")), raw("lora")["ratio"]),
    ),
    _page("`optimizers`, with one thread on an {} beside", lambda: (processor("optimizers"),)),
    _page(
        "on the {} steps that the demo had with AdamW:\n\n| validation loss in bits per byte after {} steps |",
        lambda: (raw("optimizers")["recipe"]["steps"],) * 2,
    ),
    _page("| AdamW | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.2f} |", lambda: _optimizer("adamw")),
    _page("| Muon | {:.3f} | {:.3f} | {:.3f} | **{:.3f}** | {:.2f} |", lambda: _optimizer("muon")),
    _page(
        "(`--processes 4`, {:,} CPU-seconds of an {}; sizes",
        lambda: (raw("ladder")["cpu_seconds"], processor("ladder")),
    ),
    _page(
        "inside its 95% interval in {}\nof {} seeds",
        lambda: (raw("ladder")["inside"]["loss"], raw("ladder")["seeds"]),
    ),
    _page("off by {:.1%} to {:.1%}, {:.1%} in the median, and the intervals reach {:.0%} to {:.0%} to each", _ladder),
    _page(
        "`loader`, on {} idle cores of an {} (medians of {} turns; {:.0f} M tokens",
        lambda: (
            raw("loader")["hardware"]["cores"],
            processor("loader"),
            1 + max(turn["repeat"] for turn in raw("loader")["turns"]),
            raw("loader")["tokens"] / 1e6,
        ),
    ),
    *(
        _page(f"| {name} | {{:.0f}} (1/{{}}) | {{:.0f}} (1/{{}}) |", lambda reader=reader: _read(reader))
        for name, reader in {
            **{f"caravan, {packing}": f"caravan {packing}" for packing in ("chunk", "concat", "best_fit")},
            "torch DataLoader over a memmap": "torch memmap",
        }.items()
    ),
    *(
        _page(
            f"| {name} {{}}, {form} | {{:.0f}} (1/{{}}) | {{:.0f}} (1/{{}}) |",
            lambda name=name: (raw("loader")["versions"][name], *_read(name)),
        )
        for name, form in {"datasets": "Arrow, numpy format", "litdata": "TokensLoader"}.items()
    ),
    _page("| copy of the same bytes in memory | {:,.0f} | {:,.0f} |", lambda: _read("memcpy")[::2]),
    _page("`contamination`, on 2 cores of an {} with a load", lambda: (processor("contamination"),)),
    _page("| `find_overlaps`, from shards | {:,} | {:,} | {} |", lambda: _contamination("caravan")),
    _page(
        "| Janitor of lm-evaluation-harness {}, from text | {:,} (1/{:.1f}) | {:,} | {} |",
        lambda: (
            raw("contamination")["versions"]["lm_eval"],
            _contamination("janitor")[0],
            _over_janitor(),
            *_contamination("janitor")[1:],
        ),
    ),
    _page(
        "`tokenize`, on {} idle cores of an {} (medians of {} turns; {:.0f} MB of code, prose and other languages, "
        "{:.0f} M tokens",
        lambda: (
            raw("tokenize")["hardware"]["cores"],
            processor("tokenize"),
            len(_turns("caravan", "seconds")),
            raw("tokenize")["texts"]["text_bytes"] / 1e6,
            raw("tokenize")["tokens"] / 1e6,
        ),
    ),
    _page(
        "| a Megatron-style pool over SentencePiece | {:.1f} | {:.1f} | {:.1f} ({:,.0f} of {:,.0f} MB) |",
        lambda: _tokenize("megatron"),
    ),
    *(
        _page(
            f"| {shown} {{}} | {{:.1f}} | {{:.1f}} | {{:.2f}} (of {{:,.0f}} MB) |",
            lambda name=name: (raw("tokenize")["peers"]["versions"][name], *_of_peer(_tokenize(name))),
        )
        for name, shown in {"datatrove": "datatrove", "datasets": "`datasets.map`", "litdata": "litdata"}.items()
    ),
    _page(
        "Ours takes {:.1f} CPU-seconds. gigatoken alone needs {:.1f} for these texts, which is a lower bound: a factor "
        "of {:.1f} over",
        lambda: (
            median(_turns("caravan", "cpu_seconds")),
            _gigatoken_seconds(),
            median(_turns("megatron", "cpu_seconds")) / _gigatoken_seconds(),
        ),
    ),
    _page(
        "`convert`, on {} idle cores of an {} (medians of {} turns; {:.2f} billion parameters in 24 layers)",
        lambda: (
            raw("convert")["hardware"]["cores"],
            processor("convert"),
            len(raw("convert")["turns"]["24"]),
            raw("convert")["parameters"] / 1e9,
        ),
    ),
    _page("| peak memory of `convert` | {:,.0f} MB | {:,.0f} MB |", lambda: _convert("peak_mb")),
    _page(
        "| writing the export to the disk ({:.1f} GB, {:.1f} GB) | {:.1f} s, {:.1f} CPU-s | {:.1f} s, {:.1f} CPU-s |",
        lambda: (*(size / 1e9 for size in _convert("export_bytes")), *_convert("writing", "writing_cpu")),
    ),
    _page(
        "| a copy of it to the disk | {:.1f} s, {:.1f} CPU-s | {:.1f} s, {:.1f} CPU-s |",
        lambda: _convert("copy", "copy_cpu"),
    ),
    _page(
        "| parity check, tokenizer included | {:.1f} s, {:.1f} CPU-s | {:.1f} s, {:.1f} CPU-s |",
        lambda: _convert("parity", "parity_cpu"),
    ),
    _page(
        "Writing takes {:.1f} to {:.1f} times a copy in the turns of 24 layers, {:.1f} to {:.1f} times in those of 12",
        _writing_to_copy,
    ),
)
"""All figures within text and tables, by page, in the order of the page."""


def _with_ratio(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Put the ratio of the last two numbers, peaks of memory, before them."""
    return *found[:-2], found[-2] / found[-1], *found[-2:]


def _of_peer(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave out the last number but one, our own peak of memory."""
    return *found[:-2], found[-1]


def pages() -> dict[str, str]:
    """Return {page: its text with the figures of the raw results}. Raises LookupError if a page lacks a figure."""
    texts = {page: (HOME / page).read_text(encoding="utf-8") for page in (README, PAGE)}
    before, _, rest = texts[PAGE].partition(BEGIN)
    if END not in rest:
        raise LookupError(f"{PAGE} must have the marks {BEGIN} and {END}")
    lines = "\n".join(table())
    texts[PAGE] = f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}"
    for quote in QUOTES:
        texts[quote.page] = quote.written_into(texts[quote.page])
    return texts


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page would change")
    arguments = parser.parse_args(argv)
    try:
        texts = pages()
    except LookupError as error:
        print(f"figures: {error.args[0]}", file=sys.stderr)
        return 2
    changed = {page: text for page, text in texts.items() if text != (HOME / page).read_text(encoding="utf-8")}
    for page, text in changed.items():
        if arguments.check:
            print(f"figures: {page} differs from benchmarks/results: run python -m benchmarks.figures", file=sys.stderr)
        else:
            (HOME / page).write_text(text, encoding="utf-8")
    return int(bool(changed) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())

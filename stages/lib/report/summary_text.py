"""What a person reads when all is done: what was made, how good it is, where to look."""

from stages.lib import files
from stages.lib.report import comparison

BITS, CHOICE, ACCURACY, CHANCE = "bits_per_byte", "next_line", "acc_mutual_info", 0.25
COMPLETION_BITS, COMPLETION_CHOICE = "completion_bits", "completion_choice"


class Report:
    """The text that a person reads at the end: what was made, how good it is, where to look."""

    def __init__(self, results, rows, missing, warnings, arguments):
        self.results, self.rows, self.missing = results, rows, missing
        self.warnings, self.arguments = warnings, arguments
        self.tuned_from = {name: origin for name in results.runs() if (origin := results.tuned_from(name))}

    def text(self):
        """The whole text."""
        lines = []
        for run_name in self.results.runs():
            lines += [*self._made(run_name), *self._scores(run_name), *self._tuned(run_name), ""]
        if not lines:
            lines += ["There are no results yet.", ""]
        if self.missing:
            lines += ["Missing, see the logs in results/logs:", *(f"  {name}" for name in self.missing), ""]
        if self.warnings:
            lines += ["Note:", *(f"  {warning}" for warning in self.warnings), ""]
        return "\n".join([*lines, *self._where_to_look()]) + "\n"

    def _made(self, run_name):
        models = [made for (name, _), made in self.results.models.items() if name == run_name]
        exports = [made for (name, _), made in self.results.exports.items() if name == run_name]
        facts = []
        if models:
            facts.append(f"{models[-1].identity['tokens']:,} training tokens in {models[-1].identity['step']:,} steps")
        if run_name in self.tuned_from:
            facts.append("tuned from {} at step {}".format(*self.tuned_from[run_name]))
        if exports:
            parameters = exports[-1].record.get("parameters")
            facts += [f"{parameters / 1e6:,.1f} M parameters"] if parameters else []
            facts += [f"a tokenizer of {self._vocabulary(exports[-1])}"]
        lines = [f"Run {run_name}: {', '.join(facts) or 'nothing but scores'}"]
        if exports:
            lines.append(f"  transformers loads it from {exports[-1].directory}")
        return lines

    def _vocabulary(self, export):
        path = export.directory / "config.json"
        return f"{files.read_json(path)['vocab_size']:,} pieces" if path.exists() else "unknown size"

    def _scores(self, run_name):
        rows = [row for row in self.rows if row["run"] == run_name and row["value"] is not None]
        bits = [row for row in rows if row["metric"] == BITS and row["task"].startswith(BITS)]
        choice = [row for row in rows if row["metric"] == ACCURACY and row["task"] == CHOICE]
        others = {row["task"] for row in rows} - {row["task"] for row in bits + choice} - self._compared(run_name)
        lines = self._table(bits, choice)
        for task in sorted({row["task"] for row in bits}):
            values = [row["value"] for row in bits if row["task"] == task]
            if len(values) > 1:
                lines.append(f"  {task} {_moved(values[0], values[-1])} from {values[0]:.3f} to {values[-1]:.3f}")
        if choice:
            lines.append(f"  {CHOICE} ends at {comparison.shown(choice[-1])}: {_above_chance(choice[-1])}")
        if others:
            lines.append(f"  {len(others)} other tasks: {', '.join(sorted(others)[:5])}{', ...' * (len(others) > 5)}")
        return lines

    def _tuned(self, run_name):
        """Scores of a tuned run beside those of the model before."""
        origin = self.tuned_from.get(run_name)
        return comparison.table(self.rows, origin, run_name) if origin else []

    def _compared(self, run_name):
        """The tasks of a run that stand in such a table, its own or that of a run which was tuned from it."""
        found = set()
        for name, origin in self.tuned_from.items():
            if run_name in (name, origin[0]):
                found.update(comparison.compared(self.rows, origin, name))
        return found

    def _table(self, bits, choice):
        tasks = sorted({row["task"] for row in bits}) + [CHOICE] * bool(choice)
        cells = {(row["step"], row["task"]): f"{row['value']:.3f}" for row in bits}
        cells |= {(row["step"], row["task"]): comparison.shown(row) for row in choice}
        tokens = {row["step"]: row["tokens"] for row in bits + choice}
        if not tokens:
            return []
        widths = [max(len(task), 16) for task in tasks]
        head = "".join(f"  {task:>{width}}" for task, width in zip(tasks, widths, strict=True))
        lines = [f"  {'step':>8} {'tokens':>15}{head}"]
        for step in sorted(tokens):
            found = [cells.get((step, task), "-") for task in tasks]
            row = "".join(f"  {cell:>{width}}" for cell, width in zip(found, widths, strict=True))
            lines.append(f"  {step:>8} {tokens[step]:>15,}{row}")
        return lines

    def _where_to_look(self):
        report = self.arguments.output.with_name("report.html")
        return [f"Look at {report}, {self.arguments.scores}, {self.arguments.figures}"]


def _moved(first, last):
    return "fell" if last < first else "did not fall:"


def _above_chance(row):
    if not row["stderr"]:
        return f"chance is {CHANCE}"
    errors = (row["value"] - CHANCE) / row["stderr"]
    return f"{abs(errors):.1f} standard errors {'above' if errors > 0 else 'below'} chance ({CHANCE})"

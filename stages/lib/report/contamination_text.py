"""Lines of the summary's text on contaminated items."""

from __future__ import annotations

from collections.abc import Sequence

from stages.lib.report import comparison
from stages.lib.report.scores import ScoreRow

SHOWN = 5  # tasks with the highest rates


def lines_of(rows: Sequence[ScoreRow], run_name: str) -> list[str]:
    """Return a line per task of a run's last scores with contaminated items, the highest rates first."""
    known = [row for row in rows if row["run"] == run_name and row.get("contaminated") is not None]
    last = {(row["task"], row["metric"]): row for row in known}  # rows are sorted by step
    tasks = {task: [metric for of, metric in last if of == task] for task, _ in last}
    main = [last[task, comparison.main_metric(metrics)] for task, metrics in tasks.items()]
    main.sort(key=lambda row: (-row["contaminated"], row["task"]))
    found = [row for row in main if row["contaminated"] > 0]
    if not main:
        return []
    lines = [f"  contamination: {len(found)} of {len(main)} tasks have items that stand in the training text"]
    lines += [_line(row) for row in found[:SHOWN]]
    return lines + ["    ..."] * (len(found) > SHOWN)


def _line(row: ScoreRow) -> str:
    text = f"    {row['task']}: {row['contaminated']:.1%} of the items"
    if row["value"] is None or row.get("clean") is None:
        return text
    clean = {"value": row["clean"], "stderr": row["clean_stderr"]}
    both = f"{comparison.shown(row)}, without them {comparison.shown(clean)}"
    return f"{text}; {row['metric']} {both} ({row['clean_n']} items)"

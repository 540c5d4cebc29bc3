"""Numbers as text: scores, durations and counts. Bytes are in `stages.lib.space.amount`, in powers of 1,000."""

from __future__ import annotations

UNKNOWN = "-"

UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def score(value: float | None, stderr: float | None = None, sign: str = "+-") -> str:
    """Return a score with its standard error: 0.450 +- 0.030."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" + (f" {sign} {stderr:.3f}" if stderr is not None else "")


def short(number: float) -> str:
    """Return a number in at most 6 characters: 950, 12.3k, 4.1M, 1.3B."""
    for unit in ("", "k", "M", "B"):
        if abs(number) < 999.5:
            return f"{number:.0f}" if not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}T"


def three_digits(number: float) -> str:
    """Return a number with three digits, or all digits before the point, without an exponent."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}" if number >= 0.001 or number <= 0 else "less than 0.001"


def several(count: int, what: str) -> str:
    """Return a number of things: 1 file, 2 files."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def clock(seconds: float) -> str:
    """Return a duration in at most 8 characters: 3:07 (minutes), 2:03:07 (hours), from 100 hours on 12d 4h."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 3 h 20 min, 12.5 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    at = next(at for at, (size, _) in enumerate(UNITS) if seconds >= size)
    (size, first), (smaller, second) = UNITS[at : at + 2]
    whole, rest = divmod(int(seconds), size)
    return f"{whole:,} {first} {rest // smaller} {second}"

"""Output for a terminal: shortened texts without control characters, and histograms of lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from stages.lib.render.numbers import several

_HIDDEN = (0xFEFF, *range(0x202A, 0x202F), *range(0x2066, 0x206A))  # byte order mark; marks of writing direction
CONTROLS = {number: f"\\x{number:02x}" for number in (*range(9), *range(10, 32), *range(127, 160))} | {
    number: f"\\u{number:04x}" for number in _HIDDEN
}
"""Characters that a terminal would obey or hide, and their replacements."""

LINES, WIDTH = 12, 110
"""Lines of a document that are shown, and characters of each."""

BAR = 40  # characters of the longest bar


def visible(text: str) -> str:
    """Return a text on one line, with every control character escaped, line ends and tabs as well."""
    return text.replace("\t", "\\t").replace("\n", "\\n").translate(CONTROLS)


def shortened(text: str, width: int = WIDTH) -> str:
    """Return the first `width` characters of a text on one line, and the number of further ones."""
    shown = visible(text[:width])
    return shown if len(text) <= width else f"{shown} ... (+{len(text) - width:,} characters)"


def lines_of(text: str, mark: str = "|") -> list[str]:
    """Return the first lines of a document; the last one has the number of further lines."""
    lines = text.removesuffix("\n").split("\n")
    shown = []
    for line in lines[:LINES]:
        more = f" ... (+{len(line) - WIDTH:,} characters)" if len(line) > WIDTH else ""
        shown.append(f"  {mark} {line[:WIDTH].translate(CONTROLS)}{more}" if line else f"  {mark}")
    left = len(lines) - len(shown)
    return [*shown, f"  ... {several(left, 'more line')}"] if left else shown


def share(part: float, whole: float) -> str:
    """Return a part in percent of the whole."""
    percent = 100 * part / max(1, whole)
    return f"{percent:.1f}%" if part == 0 or percent >= 0.05 else "<0.1%"


def histogram(sample: Iterable[int], unit: str) -> Iterator[str]:
    """Yield lines on lengths: median, mean and range, and a bar for each power of two. `unit`: "bytes per document"."""
    lengths = np.asarray(sample, np.int64)
    median, most = np.quantile(lengths, [0.5, 0.95])
    yield (
        f"{unit}: median {median:,.0f}, mean {lengths.mean():,.0f}, 95% have at most {most:,.0f}, "
        f"from {lengths.min():,} to {lengths.max():,}"
    )
    bins = np.frexp(lengths.astype(float))[1]  # 0 for 0, then 1 for 1, 2 for 2 and 3, 3 for 4 to 7 ...
    counts = np.bincount(bins)
    first = int(bins.min())
    bounds = [((1 << number) >> 1, (1 << number) - 1) for number in range(first, len(counts))]
    ranges = [f"{low:,}" if low >= high else f"{low:,} to {high:,}" for low, high in bounds]
    width = max(map(len, ranges))
    for number, name in enumerate(ranges, first):
        count = int(counts[number])
        bar = "#" * -(-count * BAR // int(counts.max()))
        yield f"  {name:>{width}} |{bar:<{BAR}}| {count:>7,} {share(count, len(lengths)):>6}"

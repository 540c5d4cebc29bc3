"""The figures of a report: one look, and the same bytes for the same numbers."""

import io

from stages.lib import files

LOOK = {
    "figure.figsize": (7.2, 4.0),
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "caravan",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito, for all eyes
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v")
NAMED = 20  # lines that a legend names: more would leave no room for the lines
POINTS = 1000  # more points a line cannot be seen, and make the file large


def draw(path, title, y_label, lines, chance=None):
    """Write an SVG of some lines against training tokens.

    `lines`: a list of {"label", "group", "part", "points": [(tokens, value, stderr or None)], "marked": bool}; a group
    has a color, a part a dash and a marker; a marked line shows its points. `chance`: a level that is drawn and named.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    with matplotlib.rc_context(LOOK):
        figure = Figure()
        axes = figure.subplots()
        groups = _numbers(line["group"] for line in lines)
        parts = _numbers(line["part"] for line in lines)
        for line in lines:
            _draw_line(axes, line, groups[line["group"]], parts[line["part"]])
        if chance is not None:
            axes.axhline(chance, color="#888888", linewidth=1, linestyle="--", label=f"chance ({chance:g})")
        if 0 < len(lines) <= NAMED:
            axes.legend(loc="best")
        elif lines:
            axes.set_title(f"{len(lines)} lines, named in scores.csv", loc="right", fontsize=9)
        else:
            axes.text(0.5, 0.5, "nothing to show yet", ha="center", va="center", transform=axes.transAxes)
        axes.set_title(title, loc="center" if len(lines) <= NAMED else "left")
        axes.set_xlabel("training tokens")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylabel(y_label)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    with files.atomic(path) as file:
        file.write(buffer.getvalue())


def _numbers(names):
    """Number the names in order of their first appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _draw_line(axes, line, group, part):
    points = thinned(line["points"])
    style = {"color": COLORS[group % len(COLORS)], "linestyle": DASHES[part % len(DASHES)], "label": line["label"]}
    if line["marked"]:
        style |= {"marker": MARKERS[part % len(MARKERS)], "markersize": 5}
    else:
        style |= {"linewidth": 0.9, "alpha": 0.6}
    tokens, values, errors = zip(*points, strict=True)
    if any(errors):
        axes.errorbar(tokens, values, yerr=[error or 0 for error in errors], capsize=3, **style)
    else:
        axes.plot(tokens, values, **style)


def thinned(points):
    """At most POINTS points: each the mean of as many neighbours."""
    stride = -(-len(points) // POINTS)
    if stride <= 1:
        return points
    return [_mean(points[at : at + stride]) for at in range(0, len(points), stride)]


def _mean(points):
    tokens, values, _ = zip(*points, strict=True)
    return sum(tokens) / len(points), sum(values) / len(points), None

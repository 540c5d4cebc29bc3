"use strict";
// Draws the charts of the page. Names of runs reach the document as text only, never as HTML.
(() => {
  const found = document.getElementById("chart-data");
  if (!found) return;
  const { runs, charts } = JSON.parse(found.textContent);
  const COLORS = 7;
  const hidden = new Set();
  let drawn = [];
  let waiting;

  const groups = [...new Set([...runs, ...charts.flatMap((chart) => chart.lines.map((line) => line.group))])];

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function color(number) {
    if (number < 0) return style("--faint"); // of all sources together
    if (number < COLORS) return style(`--c${number}`);
    return `hsl(${Math.round(number * 137.508) % 360} 60% ${style("--hue-lightness")})`; // the golden angle: neighbors differ
  }

  const runColor = (run) => color(groups.indexOf(run));
  const lineColor = (line) => (line.color == null ? runColor(line.group) : color(line.color));

  function short(value) {
    if (value == null) return "-";
    const size = Math.abs(value);
    for (const [unit, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]])
      if (size >= unit) return +(value / (letter === "k" ? 1e3 : unit)).toPrecision(4) + letter;
    return size !== 0 && size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
  }

  // A point of another line may lie at the tokens under the pointer: take the nearest point of this line.
  function nearest(plot, series, index) {
    const values = plot.data[series];
    for (let step = 0; step < values.length; step++) {
      if (values[index - step] != null) return index - step;
      if (values[index + step] != null) return index + step;
      if (index - step < 0 && index + step >= values.length) break;
    }
    return null;
  }

  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4], [6, 2, 1, 2, 1, 2], [1, 6], [10, 3, 4, 3]];
  const dashes = (number) => DASHES[number % DASHES.length];

  // The same in a legend, as a background.
  function dashed(lengths, color) {
    if (!lengths.length) return color;
    let at = 0;
    const parts = lengths.map((length, number) => `${number % 2 ? "transparent" : color} ${at}px ${at += length}px`);
    return `repeating-linear-gradient(90deg, ${parts.join(", ")})`;
  }

  function seriesOf(chart) {
    const lines = chart.lines.map((line) => ({
      label: line.label,
      group: line.group,
      show: !hidden.has(line.group),
      stroke: lineColor(line),
      width: line.marked ? 1.8 : 1.3,
      dash: dashes(line.dash),
      points: { show: line.marked || line.x.length === 1, size: 6 },
      spanGaps: true,
      errors: line.error,
      value: (plot, value) => short(value),
    }));
    const levels = chart.levels.map((level, number) => ({
      label: level.label,
      stroke: style("--faint"),
      width: 1,
      dash: dashes(1 + number),
      points: { show: false },
      spanGaps: true,
      value: (plot, value) => short(value),
    }));
    return [{ label: "tokens", value: (plot, value) => short(value) }, ...lines, ...levels];
  }

  function dataOf(chart) {
    const ends = [Infinity, -Infinity];
    for (const line of chart.lines)
      for (const x of line.x) { ends[0] = Math.min(ends[0], x); ends[1] = Math.max(ends[1], x); }
    if (ends[0] === ends[1]) ends[1] = ends[0] + 1;
    const tables = chart.lines.map((line) => [line.x, line.y]);
    for (const level of chart.levels) tables.push([ends, [level.value, level.value]]);
    return tables.length > 1 ? uPlot.join(tables) : tables[0];
  }

  function drawErrors(plot) {
    const context = plot.ctx;
    context.save();
    context.beginPath();
    context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    context.clip();
    plot.series.forEach((series, number) => {
      if (!series.show || !series.errors) return;
      context.strokeStyle = series.stroke(plot, number);
      context.lineWidth = devicePixelRatio;
      let point = 0;
      plot.data[number].forEach((value, index) => {
        if (value == null) return;
        const error = series.errors[point++];
        if (!error) return;
        const x = plot.valToPos(plot.data[0][index], "x", true);
        context.beginPath();
        context.moveTo(x, plot.valToPos(value - error, "y", true));
        context.lineTo(x, plot.valToPos(value + error, "y", true));
        context.stroke();
      });
    });
    context.restore();
  }

  const FONT = "11px system-ui, sans-serif";

  function labelsOf(chart, width) {
    const named = chart.lines.filter((line) => line.end);
    if (width < 420 || !named.length) return { chart, room: 0 };
    const context = document.createElement("canvas").getContext("2d");
    context.font = FONT;
    const widths = named.map((line) => context.measureText(line.end).width);
    return { chart, room: Math.min(Math.max(...widths) + 14, width * 0.24) };
  }

  // Names at the ends of the lines, moved apart where they would cover each other.
  function drawLabels(plot, { chart, room }) {
    if (!room) return;
    const context = plot.ctx, scale = devicePixelRatio, height = 13 * scale;
    const labels = [];
    chart.lines.forEach((line, number) => {
      if (!line.end || !plot.series[number + 1].show) return;
      const values = plot.data[number + 1];
      let last = values.length - 1;
      while (last >= 0 && (values[last] == null || plot.data[0][last] > plot.scales.x.max)) last--;
      if (last < 0 || plot.data[0][last] < plot.scales.x.min) return;
      labels.push({ line, y: plot.valToPos(values[last], "y", true) });
    });
    labels.sort((a, b) => a.y - b.y);
    const bottom = plot.bbox.top + plot.bbox.height;
    labels.forEach((label, at) => { if (at) label.y = Math.max(label.y, labels[at - 1].y + height); });
    for (let at = labels.length - 1, limit = bottom; at >= 0; at--, limit = labels[at + 1].y - height)
      labels[at].y = Math.min(labels[at].y, limit);
    context.save();
    context.font = FONT.replace("11", String(11 * scale));
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (const { line, y } of labels) {
      let text = line.end;
      while (text.length > 4 && context.measureText(text).width > (room - 10) * scale) text = `${text.slice(0, -2)}\u2026`;
      context.fillStyle = lineColor(line);
      context.fillText(text, plot.bbox.left + plot.bbox.width + 6 * scale, y);
    }
    context.restore();
  }

  function drawMarks(plot, { marks, lines }) {
    const bySource = lines.some((line) => line.color != null);
    const context = plot.ctx;
    context.save();
    context.textAlign = "left";
    context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    for (const [run, kinds] of Object.entries(marks)) {
      if (hidden.has(run)) continue;
      for (const [kind, places] of Object.entries(kinds))
        for (const tokens of places) {
          const x = plot.valToPos(tokens, "x", true);
          if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
          context.strokeStyle = context.fillStyle = bySource ? style("--faint") : runColor(run);
          context.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
          context.beginPath();
          context.moveTo(x, plot.bbox.top);
          context.lineTo(x, plot.bbox.top + plot.bbox.height);
          context.stroke();
          context.fillText(kind, x + 4 * devicePixelRatio, plot.bbox.top + 11 * devicePixelRatio);
        }
    }
    context.restore();
  }

  function bounds(chart) {
    // Levels and errors count too: uPlot's own range knows visible points alone.
    return (plot, low, high) => {
      if (low == null) return [0, 1];
      plot.series.forEach((series, number) => {
        if (!series.show || !series.errors) return;
        let point = 0;
        plot.data[number].forEach((value) => {
          if (value == null) return;
          const error = series.errors[point++] || 0;
          low = Math.min(low, value - error);
          high = Math.max(high, value + error);
        });
      });
      const pad = (high - low || Math.abs(high) || 1) * 0.06;
      return [low - pad, high + pad];
    };
  }

  function draw(figure) {
    const chart = charts[+figure.dataset.chart];
    const place = figure.querySelector(".plot");
    place.replaceChildren();
    const axis = { stroke: style("--ink"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 },
      values: (plot, splits) => splits.map((value) => (value == null ? "" : short(value))) };
    const named = (plot, splits) => splits.map((value) => ("125".includes(String(value)[0]) ? value : null)); // 1, 2, 5, 10, ...
    const labels = labelsOf(chart, place.clientWidth);
    const plot = new uPlot({
      padding: [null, labels.room || null, null, null],
      width: Math.max(place.clientWidth, 260),
      height: place.clientWidth < 500 ? 260 : 340,
      cursor: { dataIdx: (plot, series, index) => (series === 0 ? index : nearest(plot, series, index)), drag: { x: true, y: false } },
      legend: { markers: { width: 0, fill: (plot, number) => dashed(plot.series[number].dash, plot.series[number].stroke()) } },
      scales: { x: { time: false, ...(chart.log_tokens && { distr: 3 }) }, y: { range: bounds(chart) } },
      series: seriesOf(chart),
      axes: [{ ...axis, ...(chart.log_tokens && { filter: named }), label: "training tokens", labelSize: 22, size: 40 }, { ...axis, label: chart.y_label, labelSize: 22, size: 62 }],
      hooks: { draw: [drawErrors, (plot) => drawMarks(plot, chart), (plot) => drawLabels(plot, labels)] },
    }, dataOf(chart), place);
    drawn.push(plot);
  }

  // One chart after another, so that the page can be read while the charts of hundreds of runs are drawn.
  function drawAll() {
    for (const plot of drawn) plot.destroy();
    drawn = [];
    clearTimeout(waiting);
    const left = [...document.querySelectorAll("figure.chart")];
    const next = () => {
      draw(left.shift());
      if (left.length) waiting = setTimeout(next);
    };
    next();
    showRuns();
  }

  function toggle(run) {
    if (!hidden.delete(run)) hidden.add(run);
    for (const plot of drawn)
      plot.batch(() => plot.series.forEach((series, number) => {
        if (series.group === run) plot.setSeries(number, { show: !hidden.has(run) });
      }));
    showRuns();
  }

  function showRuns() {
    const place = document.getElementById("shown-runs");
    const shown = runs.filter((run) => charts.some((chart) => chart.lines.some((line) => line.group === run)));
    place.hidden = shown.length < 2;
    place.replaceChildren(...shown.map((run) => {
      const button = document.createElement("button");
      const mark = document.createElement("i"), dash = document.createElement("i");
      mark.style.background = runColor(run);
      dash.className = "dash"; // of charts with a color per source
      dash.style.background = dashed(dashes(runs.indexOf(run)), style("--ink"));
      button.append(mark, dash, run);
      button.type = "button";
      button.title = "hide or show this run in all charts";
      button.setAttribute("aria-pressed", String(!hidden.has(run)));
      button.addEventListener("click", () => toggle(run));
      return button;
    }));
  }

  for (const figure of document.querySelectorAll("figure.chart")) {
    const { steps_per_point: steps } = charts[+figure.dataset.chart];
    if (steps > 1) figure.querySelector(".thinned").textContent = ` Thinned: a point stands for up to ${steps} steps.`;
  }
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
})();

// Tables: a hint where one is wider than the screen; sorting, a filter and a CSV file where the page asks for them.
(() => {
  for (const wide of document.querySelectorAll(".wide")) {
    const hint = document.createElement("p");
    hint.className = "hint";
    hint.textContent = "scroll sideways for more \u2192";
    hint.hidden = true;
    wide.before(hint);
    const look = () => {
      const isCut = wide.scrollWidth - wide.clientWidth - wide.scrollLeft > 4;
      hint.hidden = !isCut;
      wide.classList.toggle("cut", isCut);
    };
    wide.tabIndex = 0; // arrow keys scroll it
    wide.addEventListener("scroll", look);
    new ResizeObserver(look).observe(wide);
    look();
  }

  const valueOf = (cell) => cell.dataset.value ?? cell.textContent;
  // A text that begins so is a formula to a spreadsheet; numbers stay.
  const inert = (text) => (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text);
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  for (const table of document.querySelectorAll("table[data-saved-as]")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], rows = [...body.rows];
    const shown = () => [...body.rows].filter((row) => !row.hidden);
    const tools = document.createElement("div"), filter = document.createElement("input");
    const save = document.createElement("button"), count = document.createElement("span");
    tools.className = "tools";
    filter.type = "search";
    filter.placeholder = "filter: words of a row";
    filter.setAttribute("aria-label", "filter the rows");
    save.type = "button";
    save.textContent = "save as CSV";
    const tell = () => { count.textContent = `${shown().length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`; };
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      tell();
    });
    save.addEventListener("click", () => {
      const lines = [heads.map((head) => head.dataset.title), ...shown().map((row) => [...row.cells].map(valueOf))];
      const text = lines.map((cells) => cells.map((cell) => quoted(inert(cell))).join(",")).join("\n") + "\n";
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      link.download = table.dataset.savedAs;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "sort by this column";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const compare = (a, b) => {
          const [x, y] = [valueOf(a.cells[column]), valueOf(b.cells[column])];
          if (!x || !y) return !x - !y; // empty cells last
          const difference = Number(x) - Number(y);
          return sign * (Number.isNaN(difference) ? x.localeCompare(y, "en", { numeric: true }) : difference);
        };
        body.append(...[...body.rows].sort(compare));
      });
    });
    tools.append(filter, save, count);
    table.closest(".wide").before(tools);
    tell();
  }
})();

// Each kind of chart: how high it is, how it is drawn, and the table of its numbers.

// ---- charts: each kind has a height, a drawing, and a table of its numbers

const axis = (title, more = {}) => ({
  title: { text: plain(title), standoff: 8 }, automargin: true, fixedrange: true, zeroline: false,
  gridcolor: colour("--plot-rule"), linecolor: colour("--rule"), ...more,
});
const layout = (height, more) => ({
  height, margin: { l: 8, r: 12, t: 12, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: FONT, size: 12, color: colour("--text") }, dragmode: false, hovermode: "closest",
  hoverlabel: { font: { family: FONT }, align: "left" }, showlegend: false, ...more,
});
const columnsOf = (heads) => heads.map((head, i) => [head, i > 0 || heads.length > 3, ""]);

// four rows that were measured, as a matrix: before all tasks, just before and just after each, and at the end
const matrixOf = ([first, before, after, last]) => {
  const rows = Array.from({ length: first.length + 1 }, () => first.map(() => null));
  before.forEach((value, i) => { rows[i][i] = value; });
  after.forEach((value, i) => { rows[i + 1][i] = value; });
  rows[0] = first;
  rows[first.length] = last;
  return rows;
};
const placesOf = (chart) => chart.at || chart.rows.map((_, i) => i);
const complete = (charts) => charts.map((chart, i) => {
  if (chart.ends) return { ...chart, rows: matrixOf(chart.ends) };
  if (chart.kind !== "over time") return chart;
  const before = charts[i - 1];
  const lines = before.rows[0].map((_, task) => ({ name: `task ${task + 1}`, y: before.rows.map((row) => row[task]) }));
  return { ...chart, kind: "lines", panels: [{ x: placesOf(before), lines }] };
});

const heat = {
  height: (chart) => Math.min(460, 110 + 26 * Math.max(5, (chart.rows || chart.ends)[0].length)),
  draw: (chart) => {
    const at = placesOf(chart);
    const tasks = chart.rows[0].length;
    const z = chart.rows[0].map((_, task) => chart.rows.map((row) => row[task]));
    const corners = Array.from({ length: tasks + 1 }, (_, i) => [i + 0.5, i + 0.5]).flat();
    const cells = {
      type: "heatmap", z, x: at, y: chart.rows[0].map((_, i) => i + 1), zmin: 0, zmax: 100,
      colorscale: "Viridis", hoverongaps: false, colorbar: { title: { text: "%" }, thickness: 12, outlinewidth: 0 },
      hovertemplate: `${plain(chart.x)} %{x}<br>${plain(chart.y)} %{y}<br><b>%{z:.1f} %</b><extra></extra>`,
      texttemplate: tasks <= 10 ? "%{z:.0f}" : "", textfont: { size: 10 },
    };
    const steps = {
      x: corners.slice(0, -1), y: corners.slice(1), mode: "lines", line: { color: "#fff", width: 1.5 }, hoverinfo: "skip",
    };
    const grid = { showgrid: false };
    return [[cells, steps], layout(heat.height(chart), {
      plot_bgcolor: colour("--plot-missing"), xaxis: axis(chart.x, { ...grid, range: [-0.5, tasks + 0.5] }),
      yaxis: axis(chart.y, { ...grid, range: [tasks + 0.5, 0.5] }),
    })];
  },
  table: (chart) => ({
    columns: columnsOf([chart.x, ...chart.rows[0].map((_, i) => `${chart.y} ${i + 1}`)]).map((one) => [one[0], true, ""]),
    rows: chart.rows.map((row, i) => [[String(placesOf(chart)[i]), placesOf(chart)[i]], ...row.map((value) => [number(value), value])]),
  }),
};

const lines = {
  columns: (chart, width) => {
    const most = width < 560 ? 1 : width < 860 || chart.panels.length === 4 ? 2 : 3;
    return Math.min(chart.panels.length, most);
  },
  height: (chart, width) => {
    const rows = Math.ceil(chart.panels.length / lines.columns(chart, width));
    const legend = chart.panels[0].lines.length > 1 && chart.panels[0].lines.length <= 10 ? 40 : 0;
    return (rows === 1 ? 330 : 60 + 200 * rows) + legend;
  },
  draw: (chart, width) => {
    const traces = [];
    const many = chart.panels.length > 1;
    const columns = lines.columns(chart, width);
    const rows = Math.ceil(chart.panels.length / columns);
    const named = chart.panels[0].lines.length;
    const more = { shapes: [], annotations: [], showlegend: named > 1 && named <= 10 };
    more.legend = { orientation: "h", y: 1 + (many ? 24 : 6) / lines.height(chart, width), yanchor: "bottom", x: 0 };
    chart.panels.forEach((panel, at) => {
      const [x, y] = [`x${at ? at + 1 : ""}`, `y${at ? at + 1 : ""}`];
      panel.lines.forEach((line, i) => {
        const own = line.colour ? pick(line.colour) : named > 2 ? ramp(i / (named - 1)) : colour("--quiet");
        const shared = { x: panel.x, xaxis: x, yaxis: y, legendgroup: line.name, mode: "lines" };
        if (line.spread) {
          const edge = (sign) => line.y.map((value, j) => (value === null ? null : value + sign * (line.spread[j] || 0)));
          const quiet = { ...shared, line: { width: 0 }, hoverinfo: "skip", showlegend: false };
          traces.push({ ...quiet, y: edge(1) }, { ...quiet, y: edge(-1), fill: "tonexty", fillcolor: faint(own, 0.18) });
        }
        const spread = line.spread ? line.spread.map((value) => (value === null ? "" : ` ± ${value}`)) : line.y.map(() => "");
        traces.push({
          ...shared, y: line.y, name: plain(line.name), customdata: spread, connectgaps: true, showlegend: at === 0,
          mode: line.dots ? "lines+markers" : "lines", marker: { size: 5 },
          line: { color: own, width: line.dashed ? 1.5 : 2, dash: line.dashed ? "dot" : "solid" },
          hovertemplate: `${plain(line.name)}<br>${plain(chart.x)} %{x}<br><b>%{y}%{customdata}</b><extra></extra>`,
        });
      });
      const bar = (from, to, look) => ({
        type: "rect", xref: x, yref: `${y} domain`, x0: from, x1: to, y0: 0, y1: 1, layer: "below", ...look,
      });
      for (const [from, to] of panel.shades || []) {
        more.shapes.push(bar(from, to, { fillcolor: colour("--quiet"), opacity: 0.16, line: { width: 0 } }));
      }
      for (const mark of chart.marks || []) {
        more.shapes.push({
          type: "line", xref: x, yref: `${y} domain`, x0: mark, x1: mark, y0: 0, y1: 1, layer: "below",
          line: { color: colour("--quiet"), width: 1, dash: "dot" },
        });
      }
      if (many) {
        more.annotations.push({
          text: plain(panel.title), showarrow: false, xref: `${x} domain`, yref: `${y} domain`, x: 0, y: 1, yanchor: "bottom",
          xanchor: "left", font: { size: 12 },
        });
      }
      const bottom = at >= chart.panels.length - columns;
      more[`xaxis${at ? at + 1 : ""}`] = axis(bottom ? chart.x : "", {
        nticks: many ? 4 : 8, showgrid: !(chart.marks || []).length, // a grid line would hide a mark
      });
      more[`yaxis${at ? at + 1 : ""}`] = axis(at % columns === 0 ? chart.y : "", {
        nticks: many ? 4 : 6, rangemode: chart.zero ? "tozero" : "normal", matches: at ? "y" : undefined,
      });
    });
    if (many) more.grid = { rows, columns, pattern: "independent", xgap: 0.12, ygap: 0.3 };
    if (many) more.margin = { l: 8, r: 12, t: 28, b: 8 };
    return [traces, layout(lines.height(chart, width), more)];
  },
  table: (chart) => {
    const names = chart.panels.flatMap((panel) => panel.lines.map((line) => {
      return panel.title && panel.lines.length > 1 ? `${panel.title}, ${line.name}` : panel.title || line.name;
    }));
    const all = chart.panels.flatMap((panel) => panel.lines);
    const cell = (line, i) => {
      const spread = line.spread && line.spread[i] !== null ? ` ± ${line.spread[i]}` : "";
      return line.y[i] === null ? "-" : [`${line.y[i]}${spread}`, line.y[i]];
    };
    return {
      columns: [chart.x, ...names].map((name) => [name, true, ""]),
      rows: chart.panels[0].x.map((x, i) => [[number(x), x], ...all.map((line) => cell(line, i))]),
    };
  },
};

const dots = {
  link: (chart, row) => chart.rows[row][6], // the setting that a dot stands for
  height: (chart) => 90 + 22 * chart.rows.length,
  draw: (chart, width) => {
    const y = chart.rows.map((_, i) => i);
    const most = width < 560 ? 22 : 60;
    const text = (mean, spread) => `${number(mean)}${spread === null ? "" : ` ± ${spread}`}`;
    const ours = {
      x: chart.rows.map((row) => row[2]), y, mode: "markers", type: "scatter", name: "ours",
      marker: { color: chart.rows.map((row) => pick(row[1])), size: 9 },
      error_x: { type: "data", array: chart.rows.map((row) => row[3] || 0), thickness: 1.5, width: 3, color: colour("--quiet") },
      text: chart.rows.map((row) => `${plain(row[0])}<br><b>${text(row[2], row[3])}</b>`), hovertemplate: "%{text}<extra></extra>",
    };
    const printed = chart.rows.map((row, i) => [row, i]).filter(([row]) => row[4] !== null);
    const paper = {
      x: printed.map(([row]) => row[4]), y: printed.map(([, i]) => i), mode: "markers", type: "scatter", name: "paper",
      marker: { symbol: "diamond-open", size: 11, color: colour("--text"), line: { width: 1.5 } },
      text: printed.map(([row]) => `${plain(row[0])}, paper<br><b>${text(row[4], row[5])}</b>`),
      hovertemplate: "%{text}<extra></extra>",
    };
    return [printed.length ? [ours, paper] : [ours], layout(dots.height(chart), {
      xaxis: axis(chart.x, { nticks: width < 560 ? 4 : 10 }),
      yaxis: axis("", {
        tickvals: y, ticktext: chart.rows.map((row) => plain(short(row[0], most))), range: [chart.rows.length - 0.4, -0.6],
      }),
      showlegend: printed.length > 0, legend: { orientation: "h", y: 1, yanchor: "bottom", x: 1, xanchor: "right" },
      margin: { l: 8, r: 12, t: printed.length ? 28 : 12, b: 8 },
    })];
  },
  table: (chart) => ({
    columns: [["setting", false, ""], ["mean", true, ""], ["deviation", true, ""], ["paper", true, ""], ["its deviation", true, ""]],
    rows: chart.rows.map((row) => [row[0], ...[2, 3, 4, 5].map((i) => [number(row[i]), row[i]])]),
  }),
};

// where a value stands on an axis of parallel coordinates, from 0 to 1, and what is written beside it
const scale = (values) => {
  const known = values.filter((value) => value !== null && value !== "-");
  const numeric = known.length > 0 && known.every((value) => typeof value === "number");
  const different = [...new Set(known)].sort(numeric ? (a, b) => a - b : undefined);
  if (!numeric || different.length <= 12) {
    const last = Math.max(1, different.length - 1);
    const at = new Map(different.map((value, i) => [value, different.length === 1 ? 0.5 : i / last]));
    return { place: (value) => at.get(value) ?? null, ticks: different.map((value) => [at.get(value), String(value)]) };
  }
  const [low, high] = [different[0], different[different.length - 1]];
  const log = low > 0 && high / low > 50;
  const of = (value) => (log ? Math.log(value) : value);
  const place = (value) => (typeof value === "number" ? (of(value) - of(low)) / (of(high) - of(low)) : null);
  const steps = [0, 0.25, 0.5, 0.75, 1];
  const back = (share) => (log ? Math.exp(of(low) + share * (of(high) - of(low))) : low + share * (high - low));
  return { place, ticks: steps.map((share) => [share, Number(back(share).toPrecision(3)).toString()]) };
};
const parallel = {
  height: () => 420,
  draw: (chart, width) => {
    const names = [...chart.fields, chart.measure];
    const scales = names.map((_, i) => scale(chart.rows.map((row) => row[i])));
    const scores = chart.rows.map((row) => row[names.length - 1]);
    const order = scores.map((score, i) => [score, i]).filter(([score]) => score !== null).sort((a, b) => a[0] - b[0]);
    const bins = new Map();
    order.forEach(([, i], rank) => { // coloured by rank, as most settings of a sweep are close to each other
      const bin = Math.floor(11.99 * (chart.low ? 1 - rank / order.length : rank / order.length));
      if (!bins.has(bin)) bins.set(bin, []);
      bins.get(bin).push(i);
    });
    const traces = [...bins].map(([bin, rows]) => {
      const trace = { x: [], y: [], text: [], mode: "lines", line: { color: ramp(bin / 11), width: 1.4 }, opacity: 0.8 };
      for (const i of rows) {
        const about = names.map((name, j) => `${plain(name)} ${plain(number(chart.rows[i][j]))}`).join("<br>");
        names.forEach((_, j) => {
          trace.x.push(j);
          trace.y.push(scales[j].place(chart.rows[i][j]));
          trace.text.push(about);
        });
        trace.x.push(null);
        trace.y.push(null);
        trace.text.push("");
      }
      return { ...trace, hovertemplate: "%{text}<extra></extra>" };
    });
    const annotations = scales.flatMap((one, j) => one.ticks.map(([y, text]) => ({
      x: j, y, text: plain(short(text, 14)), showarrow: false, font: { size: 11 }, xanchor: j === names.length - 1 ? "left" : "right",
      xshift: j === names.length - 1 ? 4 : -4, bgcolor: faint(isDark() ? "#15181b" : "#ffffff", 0.75),
    })));
    const shapes = names.map((_, j) => ({
      type: "line", x0: j, x1: j, y0: 0, y1: 1, line: { color: colour("--quiet"), width: 1 },
    }));
    const letters = width < 560 ? Math.floor(60 / names.length) : 24;
    return [traces, layout(parallel.height(), {
      annotations, shapes,
      xaxis: axis("", {
        tickvals: names.map((_, j) => j), ticktext: names.map((name) => plain(short(name, letters))), showgrid: false, side: "top",
        range: [-0.35, names.length - 0.5],
      }),
      yaxis: { visible: false, range: [-0.06, 1.06], fixedrange: true },
    })];
  },
  table: null, // the table of the sweep stands beside it
};

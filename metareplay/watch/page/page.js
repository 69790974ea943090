// The live page. It only shows what the server sends; every text is set as text, never as markup.
"use strict";

const byId = (id) => document.getElementById(id);
const STATES = {
  running: "running", waiting: "waiting", done: "done", failed: "failed", stopped: "interrupted", broken: "unreadable",
};
const TASK_COLOURS = [ // viridis, from the first task to the last
  "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
];
const FEW = { // Okabe and Ito's colours, for each background
  light: ["#0072b2", "#c44f00", "#007f5c", "#b1548a", "#b97800", "#6b6b6b"],
  dark: ["#56a9e0", "#f08a4b", "#3cc79b", "#e09cc4", "#f0b63d", "#b4b4b4"],
};
const RESULTS = {
  ra: "Retained accuracy (RA)", la: "Learning accuracy (LA)", bti: "Backward transfer (BTI)", fti: "Forward transfer (FTI)",
  va: "Validation accuracy", ta: "Training accuracy", dot: "Gradient alignment", score: "Mean final score",
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let source = null;
let last = null; // what was shown last
let heard = 0; // when the server was heard last

// Numbers and texts

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const count = (value) => (isNumber(value) ? whole.format(value) : "?");
const percent = (value) => (isNumber(value) ? `${value.toFixed(1)} %` : "–");

function speed(value) {
  if (!isNumber(value)) return "–";
  return value >= 100 ? whole.format(value) : value.toPrecision(3);
}

function duration(seconds) {
  if (!isNumber(seconds) || seconds < 0) return "–";
  const all = Math.ceil(seconds);
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
  return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
}

function make(tag, options = {}, ...children) {
  const { text, ...others } = options;
  const made = Object.assign(document.createElement(tag), others);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function share(run) {
  return isNumber(run.seen) && isNumber(run.total) && run.total > 0 ? Math.min(1, run.seen / run.total) : null;
}

// The list of runs

function noteOf(run) {
  return [run.apart, newsOf(run)].filter(Boolean).join("; ");
}

function newsOf(run) {
  if (run.state === "running") {
    const parts = [];
    if (isNumber(run.task) && isNumber(run.tasks) && run.tasks > 1) parts.push(`task ${run.task + 1} of ${run.tasks}`);
    if (isNumber(run.left)) parts.push(`${duration(run.left)} left`);
    if (isNumber(run.accuracy)) parts.push(percent(run.accuracy));
    if (isNumber(run.quiet)) parts.push(`no news for ${duration(run.quiet)}`);
    return parts.join(", ") || "has begun";
  }
  if (run.state === "done") return [run.result, run.took].filter(Boolean).join(", ");
  if (run.state === "stopped") return "run the same command again to continue";
  return run.reason || "";
}

function makeItem(run) {
  const swatch = make("span", { className: "swatch" });
  const name = make("span", { className: "name" }, swatch, make("span", { className: "text" }), make("span", { className: "state" }));
  const bar = make("progress", { max: 1, ariaLabel: "Progress" });
  const button = make("button", { type: "button" }, name, bar, make("span", { className: "note" }));
  button.addEventListener("click", () => choose(run.key));
  const item = make("li", {}, button);
  item.dataset.key = run.key;
  return item;
}

function fillItem(item, run, chosen) {
  const part = (selector) => item.querySelector(selector);
  part(".swatch").style.background = run.colour[dark.matches ? 1 : 0];
  part(".swatch").style.visibility = run.learner ? "visible" : "hidden";
  setText(part(".text"), run.label);
  setText(part(".state"), STATES[run.state]);
  part(".state").dataset.state = run.state;
  const done = share(run);
  part("progress").hidden = run.state !== "running" || done === null;
  part("progress").value = done ?? 0;
  setText(part(".note"), noteOf(run));
  part("button").setAttribute("aria-current", String(run.key === chosen));
}

function showList(state) {
  const list = byId("runs");
  const known = new Map([...list.children].map((item) => [item.dataset.key, item]));
  state.runs.forEach((run, at) => {
    const item = known.get(run.key) ?? makeItem(run);
    known.delete(run.key);
    fillItem(item, run, state.chosen?.key);
    if (list.children[at] !== item) list.insertBefore(item, list.children[at] ?? null);
  });
  for (const item of known.values()) item.remove();
  list.hidden = state.runs.length === 0;
  byId("none").hidden = state.runs.length > 0;
  byId("more").hidden = state.more === 0;
  setText(byId("more"), `${count(state.more)} more runs are not listed`);
  const together = state.together.map((one) => make("p", {
    text: `${count(one.count)} runs at once: ${count(one.seen)} of ${count(one.total)} examples each`,
  }));
  byId("together").replaceChildren(...together);
  const counts = Object.keys(STATES).filter((name) => state.counts[name]);
  setText(byId("counts"), counts.map((name) => `${count(state.counts[name])} ${STATES[name]}`).join(", ") || "No runs yet");
  setText(byId("folder"), state.folder);
  document.title = `${state.counts.running ? `${state.counts.running} running, ` : ""}runs in ${state.folder}`;
}

// One run

function showRun(run) {
  byId("chosen").hidden = !run;
  if (!run) return;
  setText(byId("label"), run.label);
  const words = [STATES[run.state]];
  if (run.apart) words.push(run.apart);
  if (run.state === "running" && run.doing) words.push(run.doing);
  if (isNumber(run.task) && run.tasks > 1) words.push(`task ${run.task + 1} of ${run.tasks}`);
  if (run.state === "stopped") words.push("run the same command again to continue");
  setText(byId("state"), words.join(", "));
  byId("reason").hidden = !run.reason;
  setText(byId("reason"), run.reason ?? "");
  const done = share(run);
  byId("bar").hidden = run.state !== "running" || done === null;
  byId("bar").value = done ?? 0;
  showFacts(run);
  showCharts(run);
  showMemory(run.memory);
  showSettings(run.settings);
}

function showFacts(run) {
  const facts = [];
  if (run.state === "running") facts.push(["Time left", duration(run.left)], ["Running for", duration(run.seconds)]);
  const what = isGame(run) ? "Frames" : "Examples";
  if (isNumber(run.seen)) facts.push([what, isNumber(run.total) ? `${count(run.seen)} of ${count(run.total)}` : count(run.seen)]);
  if (isNumber(run.per_second)) facts.push([`${what} per second`, speed(run.per_second)]);
  if (isNumber(run.accuracy)) facts.push([wasMeasuredAgain(run.curves) ? "Accuracy of learned tasks" : "Accuracy when learned", percent(run.accuracy)]);
  const scores = latest(run.curves, /^prequential window (accuracy|mae)$/);
  if (scores) facts.push([scores.name === "prequential window mae" ? "Prequential error" : "Prequential accuracy", scores.value.toFixed(2)]);
  for (const [name, value] of Object.entries(run.results ?? {})) facts.push([RESULTS[name] ?? name, value.toFixed(2)]);
  if (run.took) facts.push(["Took", run.took]);
  const rows = facts.map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value })));
  byId("facts").replaceChildren(...rows);
}

function isGame(run) {
  return Object.keys(run.curves ?? {}).some((name) => name.startsWith("score of task"));
}

// Whether the first task was measured together with the latest one; without --full-matrix it is not.
function wasMeasuredAgain(curves) {
  const ends = Object.entries(curves ?? {}).filter(([name]) => /^accuracy of task \d+$/.test(name))
    .map(([name, curve]) => [name, pointsOf(curve).at(-1)?.[0] ?? 0]);
  const first = ends.find(([name]) => name === "accuracy of task 1")?.[1] ?? 0;
  return ends.every(([, end]) => end <= first);
}

function latest(curves, pattern) {
  const name = Object.keys(curves ?? {}).find((one) => pattern.test(one));
  const points = name ? pointsOf(curves[name]) : [];
  return points.length ? { name, value: points[points.length - 1][1] } : null;
}

function pointsOf(curve) {
  return Array.isArray(curve) ? curve.filter((one) => Array.isArray(one) && isNumber(one[0]) && isNumber(one[1])) : [];
}

// Charts

function chartsOf(run) {
  const named = Object.entries(run.curves ?? {}).map(([name, curve]) => ({ name, points: pointsOf(curve) }));
  const filled = named.filter((one) => one.points.length);
  const some = (pattern, rename) => filled
    .map((one) => ({ ...one, match: pattern.exec(one.name) }))
    .filter((one) => one.match)
    .map((one) => ({ name: rename(one.match), points: one.points }));
  const task = (match) => `task ${match[1]}`;
  const horizon = (match) => ({ "": "all examples", "window ": "latest examples", "faded ": "faded" }[match[1]]);
  return [
    { id: "accuracy", title: "Accuracy of each task", unit: "%", y: "accuracy in %", from: [0, 100], lines: some(/^accuracy of task (\d+)$/, task).map(sinceItBegan).filter((line) => line.points.length) },
    { id: "scores", title: "Score of each task", unit: "", y: "mean score", lines: some(/^score of task (\d+)$/, task) },
    { id: "prequential", title: "Prequential accuracy", unit: "%", y: "accuracy in %", lines: some(/^prequential (|window |faded )accuracy$/, horizon) },
    { id: "errors", title: "Prequential error", unit: "", y: "mean absolute error", lines: some(/^prequential (|window |faded )mae$/, horizon) },
    { id: "alignment", title: "Gradient alignment", unit: "", y: "mean dot product", zero: true, lines: some(/^gradient alignment$/, () => "mean of 200 examples") },
    { id: "speed", title: `${isGame(run) ? "Frames" : "Examples"} per second`, unit: "", y: `${isGame(run) ? "frames" : "examples"} per second`, from: [0, null], own: true, lines: some(/^examples per second$/, () => "now") },
  ].filter((one) => one.lines.length);
}

// Before its first task, a run knows nothing of any: of the other tasks, that point is left out.
function sinceItBegan(line) {
  return line.name === "task 1" ? line : { ...line, points: line.points.filter((one) => one[0] > 0) };
}

function taskColour(at, all) {
  if (all <= FEW.light.length) return FEW[dark.matches ? "dark" : "light"][at];
  const [low, high] = dark.matches ? [3, 10] : [0, 8.5]; // what stands out from the background
  const place = low + (high - low) * (at / (all - 1));
  const parts = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  const [one, other] = [parts(TASK_COLOURS[Math.floor(place)]), parts(TASK_COLOURS[Math.ceil(place)])];
  const mixed = one.map((value, i) => Math.round(value + (other[i] - value) * (place % 1)));
  return `rgb(${mixed.join(",")})`;
}

function newest(line, chart) {
  const value = line.points[line.points.length - 1][1];
  if (chart.unit === "%") return value.toFixed(1);
  return Math.abs(value) >= 1000 ? whole.format(value) : String(Number(value.toPrecision(3)));
}

const toldOf = (chart) => `Latest: ${chart.lines.map((line) => `${line.name} ${newest(line, chart)}`).join(", ")}`;

function showLatest(caption, chart) {
  caption.className = chart.lines.length > 1 ? "many" : "";
  if (chart.lines.length === 1) setText(caption, `Latest: ${newest(chart.lines[0], chart)}`);
  else caption.replaceChildren(...chart.lines.map((line, at) => {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = taskColour(at, chart.lines.length);
    return make("span", {}, swatch, make("span", { text: line.name }), make("b", { text: newest(line, chart) }));
  }));
}

function drawChart(place, chart, run) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const several = chart.lines.length > 1;
  const own = run.colour[dark.matches ? 1 : 0];
  const lines = chart.lines.map((line, at) => ({
    type: "scatter",
    mode: line.points.length > 60 ? "lines" : "lines+markers",
    name: line.name,
    x: line.points.map((point) => point[0]),
    y: line.points.map((point) => point[1]),
    line: { color: several ? taskColour(at, chart.lines.length) : own, width: 2 },
    marker: { size: 5 },
    hovertemplate: `%{y:.4~g}${chart.unit && ` ${chart.unit}`} at %{x:,}<extra>${several ? "%{fullData.name}" : ""}</extra>`,
  }));
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: Boolean(chart.zero), zerolinecolor: colour("--faint"), fixedrange: true, automargin: true };
  const y = { ...axis, title: { text: chart.y, standoff: 8 }, rangemode: chart.from ? "tozero" : "normal" };
  if (chart.from?.[1]) y.range = [chart.from[0], chart.from[1]];
  const end = Math.max(isNumber(run.total) ? run.total : 0, ...lines.flatMap((line) => line.x));
  const layout = {
    width: place.clientWidth,
    height: place.clientHeight,
    font: { family: "system-ui, sans-serif", size: 12, color: colour("--faint") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 12, t: 8, b: 8 },
    showlegend: false, // the list below the chart has the colours
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    xaxis: { ...axis, title: { text: isGame(run) ? "frames" : "examples learned", standoff: 4 }, tickformat: ",", nticks: 6, range: [-0.02 * end, 1.02 * end] },
    yaxis: y,
  };
  Plotly.react(place, lines, layout, { displayModeBar: false });
}

function showCharts(run) {
  const wanted = chartsOf(run);
  const section = byId("charts");
  for (const figure of [...section.children]) {
    if (!wanted.some((chart) => figure.id === `chart-${chart.id}`)) {
      Plotly.purge(figure.querySelector("div"));
      figure.remove();
    }
  }
  wanted.forEach((chart, at) => {
    let figure = byId(`chart-${chart.id}`);
    if (!figure) {
      figure = make("figure", { id: `chart-${chart.id}` }, make("h3", { text: chart.title }), make("div", { role: "img" }), make("figcaption"));
      section.insertBefore(figure, section.children[at] ?? null);
    }
    const told = toldOf(chart);
    figure.querySelector("div").setAttribute("aria-label", `${chart.title}. ${told}`);
    showLatest(figure.querySelector("figcaption"), chart);
  });
  for (const chart of wanted) drawChart(byId(`chart-${chart.id}`).querySelector("div"), chart, run); // now they have their width
}

// The memory

function showMemory(memory) {
  byId("memory").hidden = !memory;
  if (!memory) return;
  setText(byId("held"), `${count(memory.held)} of at most ${count(memory.capacity)} examples are held, of ${count(memory.offered)} that have come (${memory.kind}). Some of them:`);
  const labels = Array.isArray(memory.labels) ? memory.labels : null;
  const examples = byId("examples");
  examples.className = memory.pictures ? "pictures" : "wide";
  if (memory.pictures) examples.replaceChildren(...pictures(memory.pictures, labels));
  else if (Array.isArray(memory.rows?.numbers)) examples.replaceChildren(numbers(memory.rows, labels));
  else examples.replaceChildren();
  const classes = Array.isArray(memory.classes) ? memory.classes.filter((one) => Array.isArray(one) && isNumber(one[1])) : [];
  byId("classes-title").hidden = classes.length === 0;
  const all = memory.counted >= memory.held;
  setText(byId("classes-title"), `Examples of each class${all ? "" : `, among ${count(memory.counted)} of them`}`);
  const most = Math.max(1, ...classes.map((one) => one[1]));
  byId("classes").replaceChildren(...classes.flatMap(([label, held]) => {
    const bar = make("span", { className: "bar" });
    bar.style.width = `${(100 * held) / most}%`;
    return [make("span", { className: "label", text: String(label) }), bar, make("span", { text: count(held) })];
  }));
}

function pictures({ shape, pixels }, labels) {
  const [many, height, width, channels] = Array.isArray(shape) ? shape : [];
  if (typeof pixels !== "string" || ![many, height, width].every((size) => size > 0 && size < 100) || ![1, 3].includes(channels)) return [];
  let bytes;
  try {
    bytes = Uint8Array.from(atob(pixels), (one) => one.charCodeAt(0));
  } catch {
    return [];
  }
  return Array.from({ length: many }, (_, at) => {
    const canvas = make("canvas", { width, height });
    const image = new ImageData(width, height);
    for (let i = 0; i < width * height; i += 1) {
      const start = (at * width * height + i) * channels;
      for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = bytes[start + (channels === 3 ? c : 0)];
      image.data[4 * i + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    const label = labels ? String(labels[at]) : "";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label ? `Example with label ${label}` : "Example");
    return make("div", {}, canvas, make("span", { text: label }));
  });
}

function numbers({ numbers: rows, shape }, labels) {
  const cells = (row, at) => [...(labels ? [labels[at]] : []), ...row].map((value) => make("td", { className: "number", text: value === null ? "–" : String(value) }));
  const columns = Array.isArray(rows[0]) ? rows[0].length : 0;
  const heads = [...(labels ? ["label"] : []), ...Array.from({ length: columns }, (_, at) => `x${at + 1}`)];
  const body = rows.filter(Array.isArray).slice(0, 8).map((row, at) => make("tr", {}, ...cells(row, at)));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { className: "number", text })))), make("tbody", {}, ...body));
  const size = Array.isArray(shape) ? shape.reduce((one, other) => one * other, 1) : columns;
  if (size > columns) table.append(make("caption", { text: `The first ${columns} of ${count(size)} numbers of each` }));
  return table;
}

// Settings, and the best of them

function flat(value, before = "") {
  return Object.entries(value ?? {}).flatMap(([name, one]) => (
    one !== null && typeof one === "object" && !Array.isArray(one) ? flat(one, `${before}${name}.`) : [[before + name, one]]
  ));
}

function showSettings(settings) {
  const rows = flat(settings).filter(([, value]) => value !== null && value !== "");
  byId("settings").hidden = rows.length === 0;
  if (!byId("settings").open && byId("settings").dataset.key === last?.chosen?.key) return;
  byId("settings").dataset.key = last?.chosen?.key ?? "";
  const shown = rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row", text: name.replace(/^settings\./, "") }), make("td", { text: String(value) })));
  byId("settings").querySelector("tbody").replaceChildren(...shown);
}

function showBest(best) {
  byId("best").hidden = !best;
  if (!best) return;
  setText(byId("measure"), `Compared by ${best.measure}, the mean over seeds.`);
  const heads = [...best.fields, "seeds", "mean"];
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text, className: "number" })));
  const rows = best.rows.map((row) => make("tr", {}, ...[...row.values, count(row.seeds), row.mean.toFixed(2)].map((text) => make("td", { text, className: "number" }))));
  byId("best").querySelector("thead").replaceChildren(head);
  byId("best").querySelector("tbody").replaceChildren(...rows);
}

// The connection

function show(state) {
  last = state;
  showList(state);
  showRun(state.chosen);
  showBest(state.best);
}

function say(state, text) {
  const place = byId("connection");
  place.dataset.state = state;
  setText(place, text);
}

function chosenKey() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

function choose(key) {
  history.replaceState(null, "", `#${encodeURIComponent(key)}`);
  connect();
}

function hear() {
  heard = Date.now();
  say("live", "Live");
}

function connect() {
  source?.close();
  const opened = new EventSource(`events?run=${encodeURIComponent(chosenKey())}`);
  source = opened;
  opened.addEventListener("open", hear);
  opened.addEventListener("beat", hear);
  opened.addEventListener("news", (event) => {
    hear();
    show(JSON.parse(event.data));
  });
  opened.addEventListener("error", () => {
    say("lost", "Connection lost, trying again");
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => opened === source && connect(), 2000);
  });
}

dark.addEventListener("change", () => last && show(last));
window.addEventListener("hashchange", connect);
window.addEventListener("resize", () => last && showRun(last.chosen)); // charts have the width of their place
setInterval(() => {
  if (heard && Date.now() - heard > 20000) {
    heard = Date.now();
    say("lost", "Connection lost, trying again");
    connect();
  }
}, 2000);
connect();

// Draws what is in the element #data when it is looked at; charts first, then what is inside a setting.

const data = JSON.parse(document.getElementById("data").textContent);
const KINDS = { heat, lines, dots, parallel };
const PAPER = 660; // pixels, the width of a page
const drawn = new Set();
let printing = false;
const draw = (figure) => {
  const kind = KINDS[figure.chart.kind];
  const plot = figure.querySelector(".plot");
  const width = printing ? PAPER : plot.clientWidth;
  if (!width) return; // inside something that is closed
  const [traces, look] = kind.draw(figure.chart, width);
  plot.style.minHeight = `${look.height}px`;
  window.Plotly.react(plot, traces, { ...look, width }, { displayModeBar: false });
  if (kind.link && !drawn.has(figure)) {
    plot.on("plotly_click", (event) => {
      location.hash = kind.link(figure.chart, event.points[0].y);
    });
  }
  figure.dataset.drawn = "yes";
  drawn.add(figure);
};
// the plotting library is large, so it is started with the first chart, once the page is there
const start = () => {
  if (window.Plotly) return;
  document.head.append(make("script", { textContent: document.getElementById("library").textContent }));
};
let library = null;
const started = () => {
  library ??= new Promise((done) => requestAnimationFrame(() => setTimeout(done))).then(start);
  return library;
};
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((one) => one.isIntersecting)) {
    watcher.unobserve(entry.target);
    started().then(() => draw(entry.target));
  }
}, { rootMargin: "300px" });

const figureOf = (chart) => {
  const kind = KINDS[chart.kind];
  const plot = make("div", { className: "plot" });
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${chart.title}. ${chart.told}`);
  const figure = make("figure", {}, make("figcaption", { textContent: chart.title }), plot, make("p", { textContent: chart.told }));
  if ((chart.panels && chart.panels.length > 1) || chart.kind === "dots" || chart.kind === "parallel") figure.className = "wide";
  if (kind.table) {
    const numbers = make("details", {}, make("summary", { textContent: "The numbers as a table" }));
    numbers.addEventListener("toggle", () => {
      if (numbers.open && numbers.children.length === 1) numbers.append(tableOf(kind.table(chart), `${chart.title}: numbers`));
    });
    figure.append(numbers);
  }
  figure.chart = chart;
  plot.style.minHeight = `${kind.height(chart, innerWidth - 40)}px`;
  watcher.observe(figure);
  return figure;
};
for (const place of document.querySelectorAll("[data-chart]")) place.replaceWith(figureOf(data.charts[place.dataset.chart]));

// ---- what is inside a setting or a sweep is made when it is opened

// lines are broken between options, not within them
const inParts = (command) => String(command).split(/( (?=--)|\n)/).map((text) => (text.trim() ? make("span", { textContent: text }) : text));
const fill = (details) => {
  const found = data.details[details.id];
  if (!found || details.children.length > 1) return;
  if (found.charts.length) details.append(make("div", { className: "charts" }, ...complete(found.charts).map(figureOf)));
  const label = details.querySelector("summary").firstChild.textContent;
  if (found.table) details.append(tableOf(found.table, `Settings: ${label}`));
  if (found.command) {
    const about = "Run it again:";
    details.append(make("p", { className: "note", textContent: about }), make("pre", {}, ...inParts(found.command)));
  }
  const facts = found.facts.flatMap(([name, text]) => [make("dt", { textContent: name }), make("dd", { textContent: text })]);
  if (facts.length) details.append(make("dl", {}, ...facts));
  if (found.seeds) details.append(tableOf(found.seeds, `Seeds: ${label}`));
};
for (const details of document.querySelectorAll("details.detail")) {
  details.addEventListener("toggle", () => details.open && fill(details));
}
const named = () => {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return ""; // a "%" in the address that stands for nothing
  }
};
const show = () => {
  const details = document.getElementById(named());
  if (!details || !details.matches("details.detail")) return;
  details.open = true;
  fill(details);
  details.scrollIntoView();
  details.querySelector("summary").focus({ preventScroll: true });
};
addEventListener("hashchange", show);
document.addEventListener("click", (event) => {
  const link = event.target.closest("td a[href^='#']");
  if (link && link.hash === location.hash) show(); // the address does not change, so nothing else would hear it
});
show();

// ---- colours, and paper

const redraw = () => drawn.forEach(draw);
let width = innerWidth;
let soon = 0;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar came or went
  width = innerWidth;
  clearTimeout(soon);
  soon = setTimeout(redraw, 150);
});
const choice = document.getElementById("theme");
choice.addEventListener("change", () => {
  if (choice.value) root.dataset.theme = choice.value;
  else delete root.dataset.theme;
  redraw();
});
media.addEventListener("change", redraw);
// on paper, everything that is not closed is drawn, in light colours and as wide as a page
let before;
addEventListener("beforeprint", () => {
  start();
  [printing, before] = [true, root.dataset.theme];
  root.dataset.theme = "light";
  for (const figure of document.querySelectorAll("main > section > figure, details[open] > .charts > figure")) draw(figure);
});
addEventListener("afterprint", () => {
  printing = false;
  if (before) root.dataset.theme = before;
  else delete root.dataset.theme;
  redraw();
});
root.dataset.ready = String(Math.round(performance.now()));

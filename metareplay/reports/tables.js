// What the other scripts share, and tables that can be sorted and filtered. Every text becomes text, never markup.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];

// ---- small helpers

const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
// plotly reads some markup in its texts, so what could be markup is escaped
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const number = (value) => (value === null || value === undefined ? "-" : String(value));
const media = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : media.matches);
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const pick = (pair) => pair[isDark() ? 1 : 0];
const faint = (hex, share) => {
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${share})`;
};
// a colour between the first and the last of a sequence, bright enough for the background
const ramp = (share) => {
  const [low, high] = isDark() ? [0.25, 1] : [0, 0.85];
  const at = (low + share * (high - low)) * (VIRIDIS.length - 1);
  const [from, to] = [VIRIDIS[Math.floor(at)], VIRIDIS[Math.ceil(at)]];
  const mixed = [1, 3, 5].map((i) => {
    const [a, b] = [parseInt(from.slice(i, i + 2), 16), parseInt(to.slice(i, i + 2), 16)];
    return Math.round(a + (b - a) * (at % 1)).toString(16).padStart(2, "0");
  });
  return `#${mixed.join("")}`;
};

// ---- tables: sortable by the buttons in their heads

const valueOf = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
};
const sortBy = (head) => {
  const table = head.closest("table");
  const body = table.tBodies[0];
  const column = head.cellIndex;
  const rows = [...body.rows];
  const isNumber = rows.some((row) => valueOf(row, column) !== null);
  const before = head.getAttribute("aria-sort");
  const first = isNumber ? "descending" : "ascending";
  const order = before === null ? first : before === "ascending" ? "descending" : "ascending";
  const sign = order === "ascending" ? 1 : -1;
  const texts = new Intl.Collator("en", { numeric: true });
  const keys = new Map(rows.map((row) => [row, isNumber ? valueOf(row, column) : row.cells[column].textContent]));
  rows.sort((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (isNumber ? x - y : texts.compare(x, y));
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  body.append(...rows);
};
document.addEventListener("click", (event) => {
  const head = event.target.closest("th > button");
  if (head) sortBy(head.parentElement);
});

const tableOf = ({ columns, rows, links = [] }, label) => {
  const heads = columns.map(([head, isNumber, about]) => {
    const button = make("button", { type: "button", textContent: head, title: about || "" });
    return make("th", { scope: "col", className: isNumber ? "number" : "" }, button);
  });
  const lines = rows.map((row, at) => {
    const cells = row.map((cell, i) => {
      const [text, value, note] = Array.isArray(cell) ? cell : [cell];
      const linked = i === 0 && links[at];
      const shown = linked ? make("a", { href: `#${links[at]}`, textContent: text }) : text;
      const element = make("td", { className: columns[i][1] ? "number" : "" }, shown);
      if (value !== null && value !== undefined) element.dataset.value = value;
      if (note) element.append(make("small", { textContent: note }));
      return element;
    });
    return make("tr", {}, ...cells);
  });
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines));
  const scroll = make("div", { className: "scroll", tabIndex: 0 }, table);
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", label);
  return scroll;
};

for (const input of document.querySelectorAll("input[data-table]")) {
  const rows = [...document.getElementById(input.dataset.table).querySelector("tbody").rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const status = input.closest("p").querySelector("[role=status]");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every((word) => texts[i].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    status.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
}

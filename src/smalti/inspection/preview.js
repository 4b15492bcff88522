"use strict";
// Values are put into the page as text alone: markup in a data set is shown, never interpreted.
const data = JSON.parse(document.getElementById("rows").textContent);
const at = (id) => document.getElementById(id);
const make = (tag, text, name) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
};
const textOf = (cell) => (cell === null ? "null" : typeof cell === "object" ? cell.text : cell);
const isImage = (cell) => cell !== null && typeof cell === "object" && cell.src;
const haystack = data.rows.map((row) => row.cells.map(textOf).join("\n").toLowerCase());
let view = data.image === null ? "table" : "grid";
let page = 0;
let shown = [];

function image(cell, alt) {
  const node = make("img");
  node.src = cell.src;
  node.alt = alt;
  node.loading = "lazy";
  return node;
}

function value(cell, alt, whole) {
  if (isImage(cell)) {
    const box = make("div");
    box.append(image(cell, alt), make("span", cell.text, "faint mono"));
    return box;
  }
  if (cell === null) return make("span", "null", "faint");
  const fault = typeof cell === "object" && cell.fault;
  return make("div", textOf(cell), (whole ? "" : "clip ") + (fault ? "bad" : ""));
}

function card(row) {
  const node = make("button", undefined, "card");
  const cell = row.cells[data.image];
  if (isImage(cell)) node.append(image(cell, "row " + row.row));
  else node.append(make("div", textOf(cell), cell === null ? "none faint" : "none bad"));
  const captions = data.captions.map((column) => textOf(row.cells[column])).filter((text) => text !== "null");
  for (const text of captions.length ? captions : ["row " + row.row]) node.append(make("span", text, "line"));
  node.addEventListener("click", () => open(row));
  return node;
}

function table(rows) {
  const node = make("table");
  const head = make("tr");
  head.append(make("th", "row", "number"));
  data.columns.forEach((name, column) => head.append(make("th", name, data.numeric[column] ? "number" : "")));
  const top = make("thead");
  top.append(head);
  const body = make("tbody");
  for (const row of rows) {
    const line = make("tr", undefined, "row");
    line.tabIndex = 0;
    line.append(make("td", row.row, "number faint"));
    row.cells.forEach((cell, column) => {
      const field = make("td", undefined, data.numeric[column] ? "number" : "");
      field.append(value(cell, data.columns[column] + " of row " + row.row, false));
      line.append(field);
    });
    line.addEventListener("click", () => open(row));
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") open(row); });
    body.append(line);
  }
  node.append(top, body);
  const box = make("div", undefined, "scroll");
  box.append(node);
  return box;
}

function open(row) {
  at("detail-title").textContent = "row " + row.row;
  const list = make("dl");
  row.cells.forEach((cell, column) => {
    const field = make("dd");
    field.append(value(cell, data.columns[column], true));
    list.append(make("dt", data.columns[column]), field);
  });
  at("detail-body").replaceChildren(list);
  at("detail").showModal();
}

function show() {
  const size = view === "grid" ? 60 : 25;
  const pages = Math.max(1, Math.ceil(shown.length / size));
  page = Math.min(Math.max(page, 0), pages - 1);
  const rows = shown.slice(page * size, (page + 1) * size);
  let content = make("p", data.rows.length ? "No row matches." : "There are no rows.", "faint");
  if (rows.length && view === "grid") {
    content = make("div", undefined, "grid");
    content.append(...rows.map(card));
  } else if (rows.length) content = table(rows);
  at("samples").replaceChildren(content);
  at("where").textContent = shown.length + " of " + data.rows.length + " rows, page " + (page + 1) + " of " + pages;
  at("back").disabled = page === 0;
  at("on").disabled = page === pages - 1;
  at("view").textContent = view === "grid" ? "Table" : "Grid";
}

function filter() {
  const words = at("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = [...document.querySelectorAll("select[data-column]")].filter((each) => each.value !== "");
  shown = data.rows.filter((row, place) =>
    words.every((word) => haystack[place].includes(word)) &&
    chosen.every((each) => textOf(row.cells[each.dataset.column]) === data.classes[each.dataset.column][each.value]));
  page = 0;
  show();
}

for (const [column, names] of Object.entries(data.classes)) {
  const choice = make("select");
  choice.dataset.column = column;
  choice.setAttribute("aria-label", data.columns[column]);
  const all = make("option", data.columns[column] + ": all");
  all.value = "";
  choice.append(all);
  names.forEach((name, place) => {
    const option = make("option", name.length > 60 ? name.slice(0, 59) + "…" : name);
    option.value = place;
    choice.append(option);
  });
  choice.addEventListener("change", filter);
  at("choices").append(choice);
}
at("find").addEventListener("input", filter);
at("back").addEventListener("click", () => { page -= 1; show(); });
at("on").addEventListener("click", () => { page += 1; show(); });
at("view").addEventListener("click", () => { view = view === "grid" ? "table" : "grid"; page = 0; show(); });
at("view").hidden = data.image === null;
at("close").addEventListener("click", () => at("detail").close());
filter();

"use strict";
// Elements and the data of the page. Text of models and passes is inserted as text only, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const SIGNS = { right: "✓", "right, with a waiver": "!", wrong: "✗", refused: "⊘", "not judged": "?", "changes nothing": "·" };

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Rows as objects, with the indices of strings replaced by the strings.
const texts = new Set(data.texts);
const rows = data.rows.map((values, number) => {
  const row = { number };
  data.fields.forEach((name, place) => {
    const value = values[place];
    row[name] = texts.has(name) && value !== null ? data.strings[value] : value;
  });
  row.own = row.own.map((place) => (place === null ? null : data.strings[place]));
  row.words = [row.model, row.program, row.judged, row.outcome, ...row.own].filter(Boolean).join("\n").toLowerCase();
  return row;
});

function error(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return typeof value === "number" ? value.toExponential(1) : value;
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1) return `${value.toPrecision(4)} s`;
  return value >= 1e-3 ? `${(value * 1e3).toPrecision(4)} ms` : `${(value * 1e6).toPrecision(4)} µs`;
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1024) return `${value} B`;
  return value < 2 ** 20 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 2 ** 20).toFixed(1)} MiB`;
}

function percent(value) {
  return `${value > 0 ? "+" : ""}${(value * 100).toFixed(1)} %`;
}

function ratio(value) {
  return typeof value === "number" ? value.toFixed(3) : "–";
}

function nodes(row) {
  if (row.nodes_after === null && row.nodes_before === null) return "–";
  if (row.nodes_before === null || row.nodes_before === row.nodes_after) return String(row.nodes_after ?? row.nodes_before);
  return row.nodes_after === null ? String(row.nodes_before) : `${row.nodes_before} → ${row.nodes_after}`;
}

// The speed-up of a wrong program is not shown.
function isTimed(row) {
  return row.speedup !== null && row.outcome === null;
}

function badge(verdict) {
  const name = verdict.replace(" ", "-");
  return make("span", { class: `verdict ${name}` }, make("span", { "aria-hidden": "true" }, SIGNS[verdict] || ""), ` ${verdict}`);
}

function facts(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) {
    if (value !== null && value !== undefined && value !== "" && value !== "–")
      list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  }
  return list;
}

function section(id, title, ...children) {
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), ...children);
}

"use strict";
// The page: what is chosen, open and asked for, and the events that change it.

const by = (id) => document.getElementById(id);
const program = readProgram(JSON.parse(by("data").textContent));
const canvases = [...document.querySelectorAll("canvas")];
const now = { step: 0, chosen: null, chosenPane: 0, chosenCluster: null, found: [], at: -1, clusterFills: new Map(),
  options: { shapes: program.hasShapes, lines: false, figure: null } };
const open = openAtFirst();
let view = { scale: 1, x: 0, y: 0 }, scene = null, isDrawn = false;

// Clusters that are open at first: outer ones, as long as few nodes are seen; blocks that repeat are closed.
function openAtFirst() {
  const opened = new Set([0]);
  const sizes = program.clusters.map((cluster) => cluster.kinds.filter((kind) => kind === NODE).length);
  let seen = sizes[0];
  for (const cluster of program.clusters.slice(1)) {
    if (!opened.has(cluster.parent) || cluster.count > 1 || seen + sizes[cluster.number] > 300) continue;
    opened.add(cluster.number);
    seen += sizes[cluster.number];
  }
  return opened;
}

// The states of the panes: before and after the pass that the slider is at, at its end before and after all.
function states() {
  const count = program.steps.length;
  if (!count) return [0];
  const step = program.steps[now.step];
  return [step.first, step.last];
}

// Of each cluster how much its node with the largest number has, and in which colour that is drawn.
function fillsOfClusters() {
  const found = new Map();
  if (now.options.figure === null) return found;
  for (const [number, fill, , share] of program.figures[now.options.figure].nodes)
    for (let at = program.nodes[number].cluster; at; at = program.clusters[at].parent)
      if (!found.has(at) || found.get(at)[0] < share) found.set(at, [share, fill]);
  return found;
}

function relayout() {
  scene = makeScene(program, states(), open, now.options);
  redraw();
}

function redraw() {
  if (!isDrawn) requestAnimationFrame(() => { isDrawn = false; drawAll(); });
  isDrawn = true;
}

function drawAll() {
  const marks = marksNow();
  canvases.forEach((canvas, pane) => {
    const state = states()[pane];
    const related = now.chosen === null || pane === now.chosenPane ? new Set() : new Set(counterparts(now.chosen, pane));
    const chosen = pane === now.chosenPane ? now.chosen : null;
    drawScene(canvas, scene, view, { program, options: now.options, marks, clusterMarks: marksOfClusters(marks, state),
      clusterFills: now.clusterFills, chosen, related, state, chosenCluster: now.chosenCluster });
  });
}

function marksNow() {
  return program.steps.length ? new Map(program.steps[now.step].marks) : new Map();
}

// What is said of a closed cluster: what was done with the first node in it with which something was done.
function marksOfClusters(marks, state) {
  const found = new Map();
  for (const [number, mark] of marks) {
    if (!((program.nodes[number].states >> state) & 1)) continue;
    for (let at = program.nodes[number].cluster; at && !found.has(at); at = program.clusters[at].parent)
      found.set(at, mark);
  }
  return found;
}

// The nodes in a pane that do the work of a chosen one, or whose work it does.
function counterparts(number, pane) {
  const found = new Set();
  if ((program.nodes[number].states >> states()[pane]) & 1) found.add(number);
  const pairs = program.steps.length ? program.steps[now.step].pairs : [];
  for (const [before, after] of pairs) {
    if (pane === 1 && before === number) found.add(after);
    if (pane === 0 && after === number) found.add(before);
  }
  return [...found];
}

function choose(number, pane) {
  now.chosen = number;
  now.chosenPane = pane;
  now.chosenCluster = null;
  showDetails();
  redraw();
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function showDetails() {
  const panel = by("details");
  panel.replaceChildren();
  if (now.chosen === null) {
    panel.append(element("p", "Click a node to see what it is. Click the title of a module to open or close it.", "hint"));
    return;
  }
  showNode(panel, now.chosen, now.chosenPane);
  if (canvases.length < 2) return;
  const other = 1 - now.chosenPane, numbers = counterparts(now.chosen, other);
  panel.append(element("h3", other ? "after" : "before"));
  if (!numbers.length) panel.append(element("p", other ? "nothing does its work" : "it is new"));
  for (const number of numbers) showNode(panel, number, other);
}

function showNode(panel, number, pane) {
  const version = versionAt(program.nodes[number], states()[pane]), mark = marksNow().get(number) || 0;
  const title = element("button", "%" + version.name, "name");
  title.addEventListener("click", () => { reveal(number); choose(number, pane); });
  panel.append(title);
  const list = element("dl");
  const add = (what, text) => {
    if (text) list.append(element("dt", what), element("dd", text));
  };
  add("pass", mark && program.marks[mark - 1][0] + " by " + program.steps[now.step].name);
  add("operation", version.op + " " + version.target);
  add("module", version.settings && version.title + "(" + version.settings + ")");
  add("arguments", version.args);
  add("shape", version.shape);
  add("dtype", version.dtype);
  add("line", version.file && version.file + ":" + version.line);
  add("code", version.code);
  for (const figure of program.figures) {
    const value = figure.of.get(number);
    add(figure.name, value && value[2]);
  }
  panel.append(list);
}

// Open what a node is in, and bring it to the middle.
function reveal(number) {
  for (let at = program.nodes[number].cluster; at; at = program.clusters[at].parent) open.add(at);
  relayout();
  const box = scene.node.get(number);
  if (!box) return;
  view.scale = Math.max(view.scale, 0.8);
  view.x = canvases[0].clientWidth / 2 - (box.x + box.width / 2) * view.scale;
  view.y = canvases[0].clientHeight / 2 - (box.y + box.height / 2) * view.scale;
}

function fit() {
  const wide = canvases[0].clientWidth, tall = canvases[0].clientHeight;
  const scale = Math.min(wide / scene.width, tall / scene.height, 1.5);
  view.scale = Math.max(scale, Math.min(0.7, wide / scene.width), 0.01);
  view.x = (wide - scene.width * view.scale) / 2 - scene.left * view.scale;
  view.y = 8;
  redraw();
}

// At first text can be read: what is wider than the pane begins with its first node in the middle.
function fitAtFirst() {
  fit();
  const box = scene.nodes[0];
  if (view.scale >= 0.6 || !box) return;
  view.scale = 0.6;
  view.x = canvases[0].clientWidth / 2 - (box.x + box.width / 2) * view.scale;
}

function zoom(factor, x, y) {
  const scale = Math.min(4, Math.max(0.01, view.scale * factor)), by_ = scale / view.scale;
  view = { scale, x: x - (x - view.x) * by_, y: y - (y - view.y) * by_ };
  redraw();
}

function search(isAgain) {
  const words = by("search").value.trim().toLowerCase();
  if (!isAgain) {
    now.at = -1;
    now.found = !words ? [] : program.nodes.map((node, number) => number).filter((number) =>
      states().some((state) => (program.nodes[number].states >> state) & 1) &&
      program.nodes[number].versions.some((one) =>
        [one.name, one.target, one.title, one.code, placeOf(one)].some((text) => text.toLowerCase().includes(words))));
    const isName = (number) => program.nodes[number].versions.some((one) => one.name.toLowerCase() === words);
    now.found.sort((one, other) => isName(other) - isName(one)); // the sort keeps the order of equals
  }
  if (now.found.length) {
    now.at = (now.at + 1) % now.found.length;
    const number = now.found[now.at], pane = states().findIndex((state) => (program.nodes[number].states >> state) & 1);
    reveal(number);
    choose(number, pane);
  }
  by("found").textContent = words ? `${now.found.length ? now.at + 1 : 0} of ${now.found.length}` : "";
}

function toggle(number) {
  if (open.has(number)) open.delete(number);
  else open.add(number);
  const box = scene.clusters.find((one) => one.number === number), before = box && { x: box.x, y: box.y };
  relayout();
  const after = scene.clusters.find((one) => one.number === number);
  if (before && after) { // it stays under the pointer
    view.x += (before.x - after.x) * view.scale;
    view.y += (before.y - after.y) * view.scale;
  }
}

function openAll(isOpen) {
  for (const cluster of program.clusters.slice(1)) {
    if (isOpen) open.add(cluster.number);
    else open.delete(cluster.number);
  }
  relayout();
  fit();
}

function setStep(step) {
  now.step = step;
  const what = program.steps[step];
  by("step").value = step;
  by("stepname").textContent = what.name;
  by("summary").textContent = what.summary;
  by("edits").replaceChildren(...what.edits.map((edit) => element("li", edit)));
  document.querySelectorAll(".pane h2").forEach((title, pane) => {
    title.textContent = `${pane ? "after" : "before"} (${program.counts[states()[pane]]} nodes)`;
  });
  relayout();
  showDetails();
}

function setFigure(figure) {
  now.options.figure = figure;
  now.clusterFills = fillsOfClusters();
  const legend = by("legend");
  legend.replaceChildren();
  const entry = (fill, text) => {
    const box = element("i");
    box.style.background = fill;
    legend.append(box, element("span", text));
  };
  if (figure === null) {
    const used = new Set(program.nodes.flatMap((node) => node.versions.map((version) => version.op)));
    for (const [op, fill] of Object.entries(program.fills)) if (used.has(op)) entry(fill, op);
  } else program.figures[figure].legend.forEach(([fill, text]) => entry(fill, text));
  if (program.steps.length) for (const [mark, sign, stroke] of program.marks) entry(stroke, `${sign} ${mark}`);
  relayout();
}

function listen() {
  canvases.forEach((canvas, pane) => {
    let from = null;
    const inScene = (event) => [(event.offsetX - view.x) / view.scale, (event.offsetY - view.y) / view.scale];
    canvas.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY, view: { ...view }, isMoved: false };
      try { canvas.setPointerCapture(event.pointerId); } catch { /* a pointer that a script made */ }
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from) return;
      const x = event.clientX - from.x, y = event.clientY - from.y;
      from.isMoved = from.isMoved || Math.abs(x) + Math.abs(y) > 4;
      if (from.isMoved) { view.x = from.view.x + x; view.y = from.view.y + y; redraw(); }
    });
    canvas.addEventListener("pointerup", (event) => {
      const isClick = from && !from.isMoved;
      from = null;
      if (!isClick) return;
      const found = findUnder(program, scene, ...inScene(event), states()[pane]);
      if (found.node !== undefined) choose(found.node, pane);
      else if (found.cluster !== undefined) toggle(found.cluster);
      else choose(null, pane);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY * 0.0015), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
      if (moves[event.key]) { view.x += moves[event.key][0]; view.y += moves[event.key][1]; redraw(); }
      else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.25 : 0.8, canvas.clientWidth / 2, canvas.clientHeight / 2);
      else if (event.key === "0") fit();
      else return;
      event.preventDefault();
    });
  });
  by("search").addEventListener("input", () => search(false));
  by("search").addEventListener("keydown", (event) => { if (event.key === "Enter") search(true); });
  by("figure").addEventListener("change", () => setFigure(by("figure").value === "" ? null : Number(by("figure").value)));
  for (const what of ["shapes", "lines"])
    by(what).addEventListener("change", () => { now.options[what] = by(what).checked; relayout(); });
  by("fit").addEventListener("click", fit);
  by("in").addEventListener("click", () => zoom(1.25, canvases[0].clientWidth / 2, canvases[0].clientHeight / 2));
  by("out").addEventListener("click", () => zoom(0.8, canvases[0].clientWidth / 2, canvases[0].clientHeight / 2));
  by("open").addEventListener("click", () => openAll(true));
  by("close").addEventListener("click", () => openAll(false));
  if (program.steps.length) by("step").addEventListener("input", () => setStep(Number(by("step").value)));
  window.addEventListener("resize", redraw);
}

function start() {
  program.figures.forEach((figure, number) => {
    const option = element("option", figure.name);
    option.value = number;
    by("figure").append(option);
  });
  by("shapes").checked = now.options.shapes;
  by("shapes").disabled = !program.hasShapes;
  scene = makeScene(program, states(), open, now.options);
  setFigure(program.figure);
  by("figure").value = program.figure === null ? "" : program.figure;
  if (program.steps.length) setStep(program.steps.length - 1);
  else document.querySelector(".pane h2").textContent = `${program.counts[0]} nodes`;
  listen();
  showDetails();
  fitAtFirst();
  const wanted = new URLSearchParams(location.hash.slice(1)).get("node"); // a link to a node: page.html#node=conv1
  if (wanted) { by("search").value = wanted; search(false); }
}

start();

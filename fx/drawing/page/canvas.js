"use strict";
// Draws a scene on a canvas, and finds what is under a point.

const FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace";
// Draw one state of a scene. view: {scale, x, y}; look: {program, options, marks, chosen, related, state}.
function drawScene(canvas, scene, view, look) {
  const ratio = window.devicePixelRatio || 1, wide = canvas.clientWidth, tall = canvas.clientHeight;
  if (canvas.width !== Math.round(wide * ratio)) canvas.width = Math.round(wide * ratio);
  if (canvas.height !== Math.round(tall * ratio)) canvas.height = Math.round(tall * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, wide, tall);
  context.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
  const window_ = { left: -view.x / view.scale, top: -view.y / view.scale,
    right: (wide - view.x) / view.scale, bottom: (tall - view.y) / view.scale };
  const sees = (box) => box.x < window_.right && box.x + box.width > window_.left && box.y < window_.bottom &&
    box.y + box.height > window_.top;
  const hasText = view.scale > 0.35;
  for (const cluster of scene.clusters) if (sees(cluster)) drawCluster(context, cluster, look);
  drawEdges(context, scene, window_, look, view);
  if (hasText) for (const cluster of scene.clusters) if (sees(cluster)) writeTitle(context, cluster, look);
  for (const box of scene.nodes) if (sees(box)) drawNode(context, box, look, hasText);
}

function roundBox(context, x, y, width, height, radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, Math.min(radius, width / 2, height / 2));
}

function write(context, text, x, y, look) {
  context.font = (look.bold ? "bold " : "") + "10px " + FONT;
  context.fillStyle = look.color || "#000";
  context.textAlign = look.align || "center";
  if (look.halo) { // edges run behind it
    context.strokeStyle = look.halo;
    context.lineWidth = 4;
    context.strokeText(text, x, y);
  }
  context.fillText(text, x, y);
}

function drawCluster(context, box, look) {
  const cluster = look.program.clusters[box.number];
  context.lineWidth = 1;
  for (const shift of cluster.count > 1 ? [4, 2, 0] : [0]) {
    roundBox(context, box.x + shift, box.y + shift, box.width, box.height, 6);
    const fill = look.clusterFills.get(box.number);
    context.fillStyle = box.isOpen ? "#fafafa" : fill ? fill[1] : "#eef1f4";
    context.strokeStyle = look.chosenCluster === box.number ? "#1f4e9c" : "#9aa3a9";
    context.fill();
    context.stroke();
  }
  const marks = look.clusterMarks.get(box.number);
  if (marks && !box.isOpen) drawSign(context, box.x, box.y, marks, look);
}

function writeTitle(context, box, look) {
  const title = (box.isOpen ? "− " : "+ ") + look.program.clusters[box.number].title, { room } = look.program;
  write(context, title, box.x + room.margin, box.isOpen ? box.y + room.title - 4 : box.y + 19,
    { align: "left", color: "#334", halo: box.isOpen && "#fafafa" });
}

function drawSign(context, x, y, mark, look) {
  context.beginPath();
  context.arc(x, y, 6.5, 0, 2 * Math.PI);
  context.fillStyle = strokeOf(look, mark);
  context.fill();
  write(context, look.program.marks[mark - 1][1], x, y + 3.4, { bold: true, color: "#fff" });
}

function drawEdges(context, scene, window_, look, view) {
  const chosen = [];
  context.strokeStyle = "#8b979c";
  context.fillStyle = "#8b979c";
  context.lineWidth = Math.max(0.8, 0.5 / view.scale);
  context.beginPath();
  const arrows = [];
  for (const path of scene.paths) {
    if (!((path.states >> look.state) & 1) || path.high < window_.top || path.low > window_.bottom) continue;
    if (path.value === look.chosen) { chosen.push(path); continue; }
    tracePath(context, path);
    if (path.isArrow) arrows.push(path);
  }
  context.stroke();
  drawArrows(context, arrows, view);
  if (!chosen.length) return;
  context.strokeStyle = context.fillStyle = "#1f4e9c";
  context.lineWidth = 2;
  context.beginPath();
  for (const path of chosen) tracePath(context, path);
  context.stroke();
  drawArrows(context, chosen.filter((path) => path.isArrow), view);
}

function drawArrows(context, paths, view) {
  if (view.scale < 0.2) return;
  context.beginPath();
  for (const { end, top } of paths) {
    context.moveTo(end - 3, top - 6);
    context.lineTo(end, top);
    context.lineTo(end + 3, top - 6);
  }
  context.fill();
}

function fillOf(look, number, op) {
  if (look.options.figure === null) return look.program.fills[op] || "#fff";
  const figure = look.program.figures[look.options.figure].of.get(number);
  return figure ? figure[1] : "#fff";
}

// The colour of a mark, which is the number of an edit from 1; 0 is none.
function strokeOf(look, mark) {
  return mark ? look.program.marks[mark - 1][2] : "#5d6d7e";
}

function drawNode(context, box, look, hasText) {
  const node = look.program.nodes[box.number];
  context.lineWidth = 0.8;
  if (!((node.states >> look.state) & 1)) { // it is in the other pane
    roundBox(context, box.x, box.y, box.width, box.height, 4);
    context.setLineDash([2, 3]);
    context.strokeStyle = "#d5d8dc";
    context.stroke();
    context.setLineDash([]);
    return;
  }
  const version = versionAt(node, look.state), mark = look.marks.get(box.number) || 0;
  const isChosen = look.chosen === box.number, isRelated = look.related.has(box.number);
  const stroke = strokeOf(look, mark);
  roundBox(context, box.x, box.y, box.width, box.height, /placeholder|output/.test(version.op) ? box.height / 2 : 4);
  context.fillStyle = fillOf(look, box.number, version.op);
  context.fill();
  if (mark && look.program.marks[mark - 1][0] === "removed") context.setLineDash([6, 3]);
  else if (version.op === "get_attr") context.setLineDash([3, 2]);
  context.strokeStyle = stroke;
  context.lineWidth = mark ? 2.2 : 0.8;
  context.stroke();
  context.setLineDash([]);
  if (isChosen || isRelated) {
    roundBox(context, box.x - 4, box.y - 4, box.width + 8, box.height + 8, 7);
    context.strokeStyle = "#1f4e9c";
    context.lineWidth = isChosen ? 3 : 1.5;
    context.stroke();
  }
  if (version.op === "call_module") {
    context.fillStyle = stroke;
    context.fillRect(box.x + 2.2, box.y + 4, 1.6, box.height - 8);
  }
  if (hasText) {
    const { room } = look.program, lines = linesOf(look.program, box.number, look.state, look.options);
    const first = box.y + (box.height - room.line * lines.length) / 2 + room.line - 3.2;
    lines.forEach((line, at) => write(context, line, box.x + box.width / 2, first + at * room.line,
      { bold: at === 0, color: at === 0 ? "#000" : "#222" }));
  }
  if (mark) drawSign(context, box.x, box.y, mark, look);
}

// What is under a point: a node that is there in a state, else the innermost cluster.
function findUnder(program, scene, x, y, state) {
  const holds = (box) => x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height;
  for (const box of scene.nodes)
    if (holds(box) && (program.nodes[box.number].states >> state) & 1) return { node: box.number };
  let found = null;
  for (const box of scene.clusters) if (holds(box)) found = box; // outer ones come first
  return found === null ? {} : { cluster: found.number };
}

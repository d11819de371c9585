"use strict";
// What is drawn now: boxes and paths of the states that are shown, worked out once for each change of what is open.

const CHARACTER = 6.1, LINE_HEIGHT = 13, MARGIN = 8, BEND_ROOM = 12, LONGEST = 34;

function cutText(text, longest) {
  return text.length <= longest ? text : "…" + text.slice(text.length - longest + 1);
}

function titleOf(cluster) {
  const path = cutText(cluster.path, 40);
  return cluster.title ? path + "  " + cluster.title : path;
}

// The program as Python wrote it, with strings in place of their numbers.
function readProgram(data) {
  const text = (number) => data.strings[number];
  const names = ["name", "op", "target", "title", "args", "settings", "shape", "dtype", "file", "line", "code"];
  const nodes = data.nodes.map(([states, ...versions]) => ({
    states,
    versions: versions.map(([first, ...fields]) => {
      const made = { first };
      fields.forEach((field, at) => { made[names[at]] = names[at] === "line" ? field : text(field); });
      return made;
    }),
  }));
  const clusters = data.clusters.map(([path, title, count, parent], number) =>
    ({ number, path: text(path), title: text(title), count, parent }));
  const rows = data.rows.map(([kinds, refs, rows, links, lanes], number) => ({
    number, kinds: [...kinds].map(Number), refs, rows, links: chunks(links, 4), lanes: chunks(lanes, 5),
  }));
  rows.forEach((one, number) => {
    one.kinds.forEach((kind, item) => {
      if (kind === NODE) nodes[one.refs[item]].cluster = number;
    });
  });
  const figures = data.figures.map((figure) => ({ ...figure, of: new Map(figure.nodes.map((one) => [one[0], one])) }));
  return { ...data, nodes, clusters, rows, figures };
}

function chunks(flat, size) {
  const made = [];
  for (let at = 0; at < flat.length; at += size) made.push(flat.slice(at, at + size));
  return made;
}

// How a node is in a state; where it is not there, how it was before or will be.
function versionAt(node, state) {
  let found = node.versions[0];
  for (const version of node.versions) if (version.first <= state) found = version;
  return found;
}

function linesOf(program, number, state, options) {
  const version = versionAt(program.nodes[number], state);
  const lines = [cutText(version.title, LONGEST)];
  if (version.name !== version.title) lines.push(cutText(version.name, LONGEST));
  if (options.shapes && version.shape) lines.push(cutText(version.shape + " " + version.dtype, LONGEST));
  if (options.lines && version.file) lines.push(cutText(placeOf(version), LONGEST));
  const figure = options.figure === null ? undefined : program.figures[options.figure].of.get(number);
  if (figure) lines.push(figure[2]);
  return lines;
}

function placeOf(version) {
  return version.file.split(/[\\/]/).pop() + ":" + version.line;
}

// Clusters whose inside is seen: open, in open ones only.
function visibleClusters(program, open) {
  const seen = new Set();
  for (const cluster of program.clusters)
    if (open.has(cluster.number) && (cluster.number === 0 || seen.has(cluster.parent))) seen.add(cluster.number);
  return seen;
}

// Boxes of nodes and clusters with their places, and paths of edges.
function makeScene(program, states, open, options) {
  const mask = states.reduce((bits, state) => bits | (1 << state), 0);
  const seen = visibleClusters(program, open);
  const sizes = new Map();
  const nodeSize = (number) => {
    if (!(program.nodes[number].states & mask)) return null;
    if (!sizes.has(number)) {
      let width = 0, height = 0;
      for (const state of states) {
        if (!((program.nodes[number].states >> state) & 1)) continue;
        const lines = linesOf(program, number, state, options);
        width = Math.max(width, 2 * MARGIN + CHARACTER * Math.max(...lines.map((line) => line.length)));
        height = Math.max(height, MARGIN + LINE_HEIGHT * lines.length);
      }
      sizes.set(number, [width, height]);
    }
    return sizes.get(number);
  };
  const filled = filledClusters(program, mask);
  const titleWidth = (number) => (number ? 2 * MARGIN + CHARACTER * titleOf(program.clusters[number]).length + 14 : 0);
  const boxSize = (number) => (seen.has(number) ? null : filled.has(number) ? [titleWidth(number), 30] : null);
  const placed = placeClusters(program.rows, nodeSize, boxSize, titleWidth, mask);
  const scene = { nodes: [], clusters: [], paths: [], ports: [], width: 40, height: 40, node: new Map() };
  const root = placed.get(0);
  if (!root) return scene;
  scene.width = root.width;
  scene.height = root.height;
  const pending = [[0, 0, 0]];
  for (const [number, x, y] of pending) {
    const rows = program.rows[number], here = placed.get(number);
    if (number) scene.clusters.push({ number, x, y, width: here.width, height: here.height, isOpen: true });
    for (const [item, middle] of here.x) {
      const kind = rows.kinds[item], ref = rows.refs[item], top = y + here.top[here.row.get(item)];
      const [width, height] = here.sizes.get(item), left = x + middle - width / 2;
      if (kind === NODE) {
        const box = { number: ref, x: left, y: top, width, height };
        scene.nodes.push(box);
        scene.node.set(ref, box);
      } else if (kind === CLUSTER && placed.has(ref)) pending.push([ref, left, top]);
      else if (kind === CLUSTER) scene.clusters.push({ number: ref, x: left, y: top, width, height, isOpen: false });
    }
    addPaths(scene, rows, here, placed, x, y);
  }
  return scene;
}

// Clusters in which a node of some states is.
function filledClusters(program, mask) {
  const filled = new Set();
  for (const node of program.nodes)
    if (node.states & mask)
      for (let at = node.cluster; !filled.has(at); at = program.clusters[at].parent) {
        filled.add(at);
        if (at === 0) break;
      }
  return filled;
}

function addPaths(scene, rows, here, placed, x, y) {
  const ends = (tail, head, value) => {
    const row = here.row.get(tail), other = here.row.get(head);
    return {
      start: x + here.x.get(tail) + portOf(rows, placed, tail, EXIT, value),
      below: y + here.top[row] + here.sizes.get(tail)[1],
      bottom: y + here.bottom[row],
      end: x + here.x.get(head) + portOf(rows, placed, head, ENTRY, value),
      top: y + here.top[other],
    };
  };
  const isArrow = (head) => rows.kinds[head] === NODE || (rows.kinds[head] === CLUSTER && !placed.has(rows.refs[head]));
  const port = (item, value, states) => {
    const top = y + here.top[here.row.get(item)], middle = x + here.x.get(item);
    const isEntry = rows.kinds[item] === ENTRY;
    scene.paths.push({ value, states, port: [middle, isEntry ? y : top, isEntry ? top : y + here.height], low: y,
      high: y + here.height });
  };
  for (const [edges, isLane] of [[rows.links, false], [rows.lanes, true]])
    for (const [tail, head, value, states, lane] of edges) {
      if (!here.x.has(tail) || !here.x.has(head)) continue;
      const path = ends(tail, head, value);
      if (rows.kinds[tail] === ENTRY) port(tail, value, states);
      if (rows.kinds[head] === EXIT) port(head, value, states);
      path.side = isLane ? x + here.lane + LANE * lane : null;
      path.low = Math.min(path.below, path.top);
      path.high = Math.max(path.bottom, path.top) + BEND_ROOM;
      scene.paths.push({ ...path, value, states, isArrow: isArrow(head) });
    }
}

function tracePath(context, path) {
  if (path.port) {
    context.moveTo(path.port[0], path.port[1]);
    context.lineTo(path.port[0], path.port[2]);
    return;
  }
  const { start, below, bottom, end, top, side } = path;
  context.moveTo(start, below);
  context.lineTo(start, bottom);
  if (side === null) {
    const middle = (bottom + top) / 2;
    context.bezierCurveTo(start, middle, end, middle, end, top);
    return;
  }
  const turn = top > bottom ? BEND_ROOM : 0;
  context.bezierCurveTo(start, bottom + BEND_ROOM, side, bottom, side, bottom + turn);
  context.lineTo(side, top - turn);
  context.bezierCurveTo(side, top, end, top - BEND_ROOM, end, top);
}

if (typeof module !== "undefined") module.exports = { readProgram, makeScene, versionAt, linesOf, visibleClusters };

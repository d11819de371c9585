"use strict";
// What is drawn now: boxes and paths of the states that are shown, worked out once for each change of what is open.
// Python places everything across, of each cluster with those in it open, and with those in it closed. Here one of these
// is chosen, rows are put below each other, and frames around them.

const NODE = 0, CLUSTER = 1, ENTRY = 2, EXIT = 3;
const BEND_ROOM = 12, LONGEST = 34, CLOSED_HEIGHT = 30;

// The program as Python wrote it, with strings in place of their numbers.
function readProgram(data) {
  const names = ["name", "op", "target", "title", "args", "settings", "shape", "dtype", "file", "line", "code"];
  const nodes = data.nodes.map(([states, ...versions], number) => ({
    states,
    width: data.widths[number],
    versions: versions.map(([first, ...fields]) => {
      const version = { first };
      fields.forEach((field, at) => { version[names[at]] = names[at] === "line" ? field : data.strings[field]; });
      return version;
    }),
  }));
  const clusters = data.clusters.map((cluster, number) =>
    ({ ...cluster, number, parent: 0, states: 0, folded: cluster.folded || cluster.open }));
  for (const cluster of [...clusters].reverse()) readItems(cluster, nodes, clusters);
  const figures = data.figures.map((figure) => ({ ...figure, of: new Map(figure.nodes.map((row) => [row[0], row])) }));
  return { ...data, nodes, clusters, figures };
}

// The states that each item of a cluster, and the cluster itself, has; and where values enter and leave its layouts.
function readItems(cluster, nodes, clusters) {
  const layouts = [cluster.open, cluster.folded];
  for (const layout of layouts) layout.port = new Map();
  cluster.there = cluster.kinds.map((kind, item) => {
    const ref = cluster.refs[item];
    if (kind === NODE) nodes[ref].cluster = cluster.number;
    else if (kind === CLUSTER) clusters[ref].parent = cluster.number;
    else for (const { port, x, width } of layouts) port.set(kind + " " + ref, x[item] - width / 2);
    return kind === NODE ? nodes[ref].states : kind === CLUSTER ? clusters[ref].states : 0;
  });
  for (const states of cluster.there) cluster.states |= states;
  for (const [tail, head, , states] of [...cluster.links, ...cluster.lanes])
    for (const item of [tail, head]) if (cluster.kinds[item] > CLUSTER) cluster.there[item] |= states;
}

// How a node is in a state; where it is not there, how it was before or will be.
function versionAt(node, state) {
  let found = node.versions[0];
  for (const version of node.versions) if (version.first <= state) found = version;
  return found;
}

function cutText(text) {
  return text.length <= LONGEST ? text : "…" + text.slice(text.length - LONGEST + 1);
}

function linesOf(program, number, state, options) {
  const version = versionAt(program.nodes[number], state);
  const lines = [cutText(version.title)];
  if (version.name !== version.title) lines.push(cutText(version.name));
  if (options.shapes && version.shape) lines.push(cutText(version.shape + " " + version.dtype));
  if (options.lines && version.file) lines.push(cutText(placeOf(version)));
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

// Of each visible cluster its frame, and where its rows and items begin and end. Items of other states take no room.
function stackRows(program, mask, seen, nodeHeight) {
  const { padding, title, rowGap, lane } = program.room, stacks = new Map();
  for (const cluster of [...program.clusters].reverse()) {
    if (!seen.has(cluster.number)) continue;
    const isFolded = !cluster.kinds.some((kind, item) => kind === CLUSTER && stacks.has(cluster.refs[item]));
    const layout = isFolded ? cluster.folded : cluster.open;
    const stack = { layout, isFolded, box: new Map(), bottom: new Map(), left: layout.width, right: 0, lane: 0,
      height: 0 };
    let y = padding + (cluster.number ? title : 0);
    for (const row of cluster.rows) {
      const items = row.filter((item) => cluster.there[item] & mask);
      let tallest = 0;
      for (const item of items) {
        const box = itemBox(program, stacks, stack, cluster, item, y, nodeHeight);
        stack.box.set(item, box);
        stack.left = Math.min(stack.left, box.left - padding);
        stack.lane = Math.max(stack.lane, box.right + lane);
        tallest = Math.max(tallest, box.height);
      }
      for (const item of items) stack.bottom.set(item, y + tallest);
      if (items.length) y += tallest + rowGap;
    }
    const lanes = cluster.lanes.filter((edge) => edge[3] & mask).map((edge) => edge[4] + 1);
    stack.right = stack.lane + lane * (Math.max(0, ...lanes) - 1) + padding;
    const least = cluster.closed.width, more = least - (stack.right - stack.left);
    if (more > 0) { // the title needs it
      stack.left = Math.min(Math.max(stack.left - more / 2, 0), layout.width - least);
      stack.right = stack.left + least;
    }
    stack.height = Math.max(y - rowGap, padding) + padding;
    stacks.set(cluster.number, stack);
  }
  return stacks;
}

// Where an item is in its cluster, which has the stack. The inside of an open cluster begins at "start".
function itemBox(program, stacks, stack, cluster, item, top, nodeHeight) {
  const kind = cluster.kinds[item], ref = cluster.refs[item], middle = stack.layout.x[item];
  const around = (x, width, height) => ({ left: x - width / 2, right: x + width / 2, top, height });
  if (kind === NODE) return around(middle, program.nodes[ref].width, nodeHeight(ref));
  if (kind !== CLUSTER) return around(middle, 8, 0);
  const inside = stacks.get(ref), { closed } = program.clusters[ref];
  if (!inside) return around(middle + (stack.isFolded ? 0 : closed.shift), closed.width, CLOSED_HEIGHT);
  const center = middle + inside.layout.shift, start = center - inside.layout.width / 2;
  return { left: start + inside.left, right: start + inside.right, top, height: inside.height, start, center,
    port: inside.layout.port };
}

// Boxes of nodes and clusters with their places, and paths of edges.
function makeScene(program, states, open, options) {
  const mask = states.reduce((bits, state) => bits | (1 << state), 0), heights = new Map();
  const nodeHeight = (number) => {
    if (!heights.has(number)) {
      const there = states.filter((state) => (program.nodes[number].states >> state) & 1);
      const lines = Math.max(...there.map((state) => linesOf(program, number, state, options).length));
      heights.set(number, program.room.margin + program.room.line * lines);
    }
    return heights.get(number);
  };
  const stacks = stackRows(program, mask, visibleClusters(program, open), nodeHeight);
  const root = stacks.get(0);
  const scene = { nodes: [], clusters: [], paths: [], left: root.left, width: root.right - root.left,
    height: root.height, node: new Map() };
  const pending = [[0, 0, 0]];
  for (const [number, x, y] of pending) {
    const cluster = program.clusters[number];
    for (const [item, { left, right, top, height, start }] of stacks.get(number).box) {
      const kind = cluster.kinds[item], isOpen = start !== undefined;
      const box = { number: cluster.refs[item], x: x + left, y: y + top, width: right - left, height };
      if (kind === NODE) {
        scene.nodes.push(box);
        scene.node.set(box.number, box);
      } else if (kind === CLUSTER) scene.clusters.push({ ...box, isOpen });
      if (isOpen) pending.push([box.number, x + start, y + top]);
    }
    addPaths(program, scene, cluster, stacks.get(number), x, y, mask);
  }
  return scene;
}

function addPaths(program, scene, cluster, stack, x, y, mask) {
  const across = (item, kind, value) => {
    const { left, right, center, port } = stack.box.get(item);
    return x + (port ? center + (port.get(kind + " " + value) || 0) : (left + right) / 2);
  };
  const port = (item, value, states) => {
    const isEntry = cluster.kinds[item] === ENTRY, top = y + stack.box.get(item).top, middle = x + stack.layout.x[item];
    scene.paths.push({ value, states, port: [middle, isEntry ? y : top, isEntry ? top : y + stack.height], low: y,
      high: y + stack.height });
  };
  for (const [edges, isLane] of [[cluster.links, false], [cluster.lanes, true]])
    for (const [tail, head, value, states, lane] of edges) {
      if (!(states & mask)) continue;
      if (cluster.kinds[tail] === ENTRY) port(tail, value, states);
      if (cluster.kinds[head] === EXIT) port(head, value, states);
      const from = stack.box.get(tail), below = y + from.top + from.height, top = y + stack.box.get(head).top;
      const bottom = y + stack.bottom.get(tail);
      scene.paths.push({ value, states, start: across(tail, EXIT, value), end: across(head, ENTRY, value), below, bottom,
        top, side: isLane ? x + stack.lane + program.room.lane * lane : null, low: Math.min(below, top),
        high: Math.max(bottom, top) + BEND_ROOM, isArrow: cluster.kinds[head] <= CLUSTER && !stack.box.get(head).port });
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

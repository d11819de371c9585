"use strict";
// Placement: where the items of rows stand. The same as placement.py, which says how; a test holds the two together.

const NODE = 0, CLUSTER = 1, ENTRY = 2, EXIT = 3, BEND = 4;
const GAP = 16, ROW_GAP = 30, LANE = 10, PADDING = 12, TITLE = 18, SWEEPS = 5;

// Of each open cluster its places, by number. nodeSize gives null for a node that is not there, boxSize for an open
// cluster; sizes are [width, height].
function placeClusters(all, nodeSize, boxSize, titleWidth, states) {
  const placed = new Map();
  for (let number = all.length - 1; number >= 0; number--) {
    if (boxSize(number) !== null) continue;
    const made = placeOne(all[number], nodeSize, boxSize, placed, states);
    if (made === null) continue;
    const more = (titleWidth(number) - made.width) / 2;
    if (more > 0) {
      made.width = titleWidth(number);
      made.lane += more;
      for (const [item, x] of made.x) made.x.set(item, x + more);
    }
    placed.set(number, made);
  }
  return placed;
}

function usedItems(rows, states) {
  const used = new Set();
  for (const edges of [rows.links, rows.lanes])
    for (const edge of edges)
      if (edge[3] & states) used.add(edge[0]).add(edge[1]);
  return used;
}

function placeOne(rows, nodeSize, boxSize, placed, states) {
  const made = { width: 0, height: 0, x: new Map(), top: [], bottom: [], row: new Map(), sizes: new Map(), lane: 0,
    ports: new Map() };
  const used = usedItems(rows, states), shown = [];
  let there = false;
  for (const row of rows.rows) {
    const items = [];
    for (const item of row) {
      const kind = rows.kinds[item], ref = rows.refs[item];
      let size = used.has(item) ? [8, 0] : null;
      if (kind === NODE) size = nodeSize(ref);
      else if (kind === CLUSTER) size = placed.has(ref) ? [placed.get(ref).width, placed.get(ref).height] : boxSize(ref);
      if (size === null) continue;
      made.sizes.set(item, size);
      items.push(item);
      there = there || kind === NODE || kind === CLUSTER;
    }
    shown.push(items);
  }
  if (!there) return null;
  let y = PADDING + (rows.number ? TITLE : 0);
  shown.forEach((items, number) => {
    let height = 0;
    for (const item of items) height = Math.max(height, made.sizes.get(item)[1]);
    made.top.push(y);
    made.bottom.push(y + height);
    y += height + (items.length ? ROW_GAP : 0);
    for (const item of items) made.row.set(item, number);
  });
  made.height = y - ROW_GAP + PADDING;
  placeAcross(rows, shown, made, placed, states);
  return made;
}

function portOf(rows, placed, item, kind, value) {
  if (rows.kinds[item] !== CLUSTER || !placed.has(rows.refs[item])) return 0;
  return placed.get(rows.refs[item]).ports.get(kind + " " + value) || 0;
}

function placeAcross(rows, shown, made, placed, states) {
  const above = new Map(), below = new Map(), x = made.x;
  const add = (map, item, entry) => (map.has(item) ? map.get(item).push(entry) : map.set(item, [entry]));
  const fed = new Set();
  for (const edges of [rows.links, rows.lanes]) for (const edge of edges) if (edge[3] & states) fed.add(edge[1]);
  for (const [tail, head, value, there] of rows.links) {
    if (!(there & states) || !made.sizes.has(tail) || !made.sizes.has(head)) continue;
    const isInput = fed.has(tail) || rows.kinds[tail] === ENTRY; // not a constant
    const weight = (isInput ? 1 : 0.1) * (rows.kinds[tail] === BEND && rows.kinds[head] === BEND ? 4 : 1);
    const shift = portOf(rows, placed, tail, EXIT, value) - portOf(rows, placed, head, ENTRY, value);
    add(above, head, [tail, shift, weight]);
    add(below, tail, [head, -shift, weight]);
  }
  for (const items of shown) {
    let right = 0;
    for (const item of items) {
      x.set(item, right + made.sizes.get(item)[0] / 2);
      right += made.sizes.get(item)[0] + GAP;
    }
    for (const item of items) x.set(item, x.get(item) - (right - GAP) / 2);
  }
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    for (let at = 0; at < shown.length; at++)
      placeRow(shown[down ? at : shown.length - 1 - at], x, made.sizes, down ? above : below);
  }
  let left = Infinity, right = -Infinity;
  for (const [item, middle] of x) {
    left = Math.min(left, middle - made.sizes.get(item)[0] / 2);
    right = Math.max(right, middle + made.sizes.get(item)[0] / 2);
  }
  for (const [item, middle] of x) x.set(item, middle + (PADDING - left));
  let lanes = 0;
  for (const edge of rows.lanes) lanes = Math.max(lanes, edge[4] + 1);
  made.lane = right - left + PADDING + LANE;
  made.width = right - left + 2 * PADDING + LANE * lanes;
  for (const [item, middle] of x)
    if (rows.kinds[item] === ENTRY || rows.kinds[item] === EXIT)
      made.ports.set(rows.kinds[item] + " " + rows.refs[item], middle - made.width / 2);
}

function placeRow(items, x, sizes, neighbours) {
  const blocks = [], offsets = [];
  let offset = 0;
  items.forEach((item, number) => {
    if (number) offset += (sizes.get(items[number - 1])[0] + sizes.get(item)[0]) / 2 + GAP;
    offsets.push(offset);
    let total = 0, wanted = 0;
    for (const [other, shift, weight] of neighbours.get(item) || []) {
      total += weight;
      wanted += (x.get(other) + shift) * weight;
    }
    if (total) wanted /= total;
    else { wanted = x.get(item); total = 0.05; }
    blocks.push([wanted - offset, total, 1]);
    while (blocks.length > 1 && blocks[blocks.length - 2][0] > blocks[blocks.length - 1][0]) {
      const [mean, weight, count] = blocks.pop(), last = blocks[blocks.length - 1];
      last[0] = (last[0] * last[1] + mean * weight) / (last[1] + weight);
      last[1] += weight;
      last[2] += count;
    }
  });
  let number = 0;
  for (const [mean, , count] of blocks)
    for (let done = 0; done < count; done++, number++) x.set(items[number], mean + offsets[number]);
}

if (typeof module !== "undefined") module.exports = { placeClusters, usedItems, portOf };

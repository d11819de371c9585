// Plots, as SVG whose colours come from the style sheet.

function scale(low, high, width, isLogarithmic = false) {
  const at = isLogarithmic ? Math.log : (value) => value;
  const span = at(high) - at(low) || 1;
  return (value) => ((at(Math.min(Math.max(value, low), high)) - at(low)) / span) * width;
}

// Limits of an axis that covers all intervals and 1, with a small margin.
function limits(intervals) {
  let low = 0.98, high = 1.02;
  for (const [first, last] of intervals) {
    low = Math.min(low, first);
    high = Math.max(high, last);
  }
  return [Math.max(low / 1.02, 1e-3), Math.min(high * 1.02, 1e3)];
}

function ticks(low, high) {
  for (const steps of [[1], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]]) {
    const values = [];
    for (let power = -3; power <= 3; power += 1)
      for (const step of steps) {
        const value = step * 10 ** power;
        if (value >= low && value <= high) values.push(value);
      }
    if (values.length >= 4 || (values.length >= 3 && high / low > 2)) return values;
  }
  const step = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((size) => (high - low) / size <= 6) || 1;
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) values.push(Number(value.toFixed(4)));
  return values;
}

function speedupClass(row) {
  if (row.noisy) return "noisy";
  return row.verdict === "faster" ? "faster" : row.verdict === "slower" ? "slower" : "same";
}

// The small interval in a row of the table.
function intervalBar(row, range) {
  const width = 96, x = scale(range[0], range[1], width, true);
  const picture = draw("svg", { class: `bar ${speedupClass(row)}`, viewBox: `0 0 ${width} 12`, "aria-hidden": "true" });
  picture.append(draw("line", { class: "one", x1: x(1), x2: x(1), y1: 0, y2: 12 }));
  picture.append(draw("line", { class: "interval", x1: x(row.speedup_low), x2: x(row.speedup_high), y1: 6, y2: 6 }));
  picture.append(draw("circle", { class: "median", cx: x(row.speedup), cy: 6, r: 3 }));
  return picture;
}

// All timings of a model, in rows.
function intervalPlot(timed, open) {
  const width = 640, line = 22, top = 8, left = 210, right = 20;
  const range = limits(timed.map((row) => [row.speedup_low, row.speedup_high]));
  const across = scale(range[0], range[1], width - left - right, true), x = (value) => left + across(value);
  const height = top + timed.length * line + 24;
  const picture = draw("svg", {
    class: "plot", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "speed-ups with 95 % intervals",
  });
  for (const tick of ticks(...range)) {
    picture.append(draw("line", { class: tick === 1 ? "one" : "tick", x1: x(tick), x2: x(tick), y1: top, y2: height - 20 }));
    const label = draw("text", { x: x(tick), y: height - 6, "text-anchor": "middle" });
    label.textContent = `${tick}×`;
    picture.append(label);
  }
  timed.forEach((row, place) => {
    const y = top + (place + 0.5) * line;
    const name = draw("text", { x: left - 8, y: y + 4, "text-anchor": "end" });
    name.textContent = row.program.length > 30 ? `${row.program.slice(0, 29)}…` : row.program;
    const title = draw("title");
    title.textContent = `${row.program}: ${ratio(row.speedup)} (${ratio(row.speedup_low)} to ${ratio(row.speedup_high)}), ${row.verdict}`;
    const link = draw("a", { href: `#row-${row.number}`, class: `line ${speedupClass(row)}` });
    link.append(
      title, name,
      draw("rect", { class: "touch", x: 0, y: y - line / 2, width, height: line }),
      draw("line", { class: "interval", x1: x(row.speedup_low), x2: x(row.speedup_high), y1: y, y2: y }),
      draw("line", { class: "interval", x1: x(row.speedup_low), x2: x(row.speedup_low), y1: y - 4, y2: y + 4 }),
      draw("line", { class: "interval", x1: x(row.speedup_high), x2: x(row.speedup_high), y1: y - 4, y2: y + 4 }),
      draw("circle", { class: "median", cx: x(row.speedup), cy: y, r: 4 }),
    );
    link.addEventListener("click", (event) => {
      event.preventDefault();
      open(row.number);
    });
    picture.append(link);
  });
  return picture;
}

// Speed-ups with intervals over runs; the last point is this run.
function historyPlot(row) {
  const earlier = (data.history.rows[row.number] || []).map(([run, ...interval]) => [data.history.runs[run], ...interval]);
  if (!earlier.length || !isTimed(row)) return null;
  const points = [...earlier, ["this run", row.speedup, row.speedup_low, row.speedup_high]];
  const width = 420, height = 130, left = 44, bottom = 22;
  const range = limits(points.map(([, , low, high]) => [low, high]));
  const up = scale(range[0], range[1], height - bottom - 10, true), y = (value) => height - bottom - up(value);
  const x = (place) => left + 14 + (place * (width - left - 28)) / Math.max(points.length - 1, 1);
  const picture = draw("svg", {
    class: "plot small", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `speed-up over ${points.length} runs: ${points.map(([, speedup]) => ratio(speedup)).join(", ")}`,
  });
  for (const tick of ticks(...range)) {
    picture.append(draw("line", { class: tick === 1 ? "one" : "tick", x1: left, x2: width, y1: y(tick), y2: y(tick) }));
    const label = draw("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" });
    label.textContent = `${tick}×`;
    picture.append(label);
  }
  points.forEach(([when, speedup, low, high], place) => {
    const title = draw("title");
    title.textContent = `${when}: ${ratio(speedup)} (${ratio(low)} to ${ratio(high)})`;
    const kind = place === points.length - 1 ? "now" : "then";
    picture.append(
      draw("g", { class: `point ${kind}` }, title,
        draw("line", { class: "interval", x1: x(place), x2: x(place), y1: y(low), y2: y(high) }),
        draw("circle", { class: "median", cx: x(place), cy: y(speedup), r: 4 })),
    );
  });
  const first = draw("text", { x: left, y: height - 4 }), last = draw("text", { x: width, y: height - 4, "text-anchor": "end" });
  first.textContent = points[0][0].slice(0, 16);
  last.textContent = "this run";
  picture.append(first, last);
  return make("figure", {}, make("figcaption", {}, `Speed-up over ${points.length} runs on this host`), picture);
}

// The ratio of each pair of calls.
function pairsPlot(row) {
  if (!row.ratios || !isTimed(row)) return null;
  const width = 420, height = 130, left = 44;
  const range = limits(row.ratios.map((value) => [value, value]));
  const up = scale(range[0], range[1], height - 20, true), y = (value) => height - 10 - up(value);
  const picture = draw("svg", {
    class: `plot small ${speedupClass(row)}`, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `the ratios of ${row.ratios.length} pairs`,
  });
  picture.append(draw("rect", {
    class: "range", x: left, width: width - left, y: y(row.speedup_high), height: Math.max(y(row.speedup_low) - y(row.speedup_high), 1),
  }));
  for (const tick of ticks(...range)) {
    picture.append(draw("line", { class: tick === 1 ? "one" : "tick", x1: left, x2: width, y1: y(tick), y2: y(tick) }));
    const label = draw("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" });
    label.textContent = `${tick}×`;
    picture.append(label);
  }
  row.ratios.forEach((value, place) => {
    const x = left + 8 + (place * (width - left - 16)) / Math.max(row.ratios.length - 1, 1);
    picture.append(draw("circle", { class: "pair", cx: x, cy: y(value), r: 2.5 }));
  });
  const caption = `Eager over transformed in each of ${row.ratios.length} pairs, and the interval of their median`;
  return make("figure", {}, make("figcaption", {}, caption), picture);
}

// A map of the errors in a tensor.
function heatMap(map) {
  const across = map.cells[0]?.length || 0, down = map.cells.length;
  if (!across) return null;
  const size = Math.max(4, Math.min(14, Math.floor(416 / across)));
  const wrong = map.cells.reduce((sum, line) => sum + [...line].filter((cell) => cell !== "0").length, 0);
  const picture = draw("svg", {
    class: "map", width: across * size, height: down * size, viewBox: `0 0 ${across * size} ${down * size}`, role: "img",
    "aria-label": `${wrong} of ${across * down} cells hold wrong values`,
  });
  map.cells.forEach((line, y) => {
    for (let x = 0; x < across; ) {
      let end = x + 1;
      while (end < across && line[end] === line[x]) end += 1;
      picture.append(draw("rect", { class: `heat${line[x]}`, x: x * size, y: y * size, width: (end - x) * size, height: size }));
      x = end;
    }
  });
  const rest = map.shape.slice(map.down.length);
  const legend = make("p", { class: "legend" }, make("span", {}, "right ", make("i", { class: "swatch heat0" })));
  const levels = make("span", {}, `wrong by ${error(map.smallest)} `);
  if (map.smallest !== map.largest) {
    for (let level = 1; level <= 9; level += 1) levels.append(make("i", { class: `swatch heat${level}` }));
    levels.append(` ${error(map.largest)}`);
  } else levels.append(make("i", { class: "swatch heat9" }));
  legend.append(levels);
  const shape = map.shape.join(" × ") || "one number";
  const axes = `down: ${map.down.join(" × ") || 1}, across: ${rest.join(" × ") || 1}; each cell is the largest error in its part`;
  return make("figure", {}, make("figcaption", {}, make("b", {}, `Where ${map.of} is wrong`), ` (${shape}; ${axes})`),
    make("div", { class: "scrolls" }, picture), legend);
}

// Failures: the message, both programs, maps of wrong values, and the drawing of the pass.

function codeTable(code) {
  const box = make("div", { class: "code", role: "table", "aria-label": "the program before and after the pass" });
  const head = make("div", { class: "pair head", role: "row" }, make("span", { class: "side", role: "columnheader" }, "before the pass"),
    make("span", { class: "side", role: "columnheader" }, code.hasAfter ? "after the pass" : "after the pass: there is no program"));
  box.append(head);
  const [markedBefore, markedAfter] = code.marks;
  for (const row of code.rows) {
    if (typeof row === "number") {
      box.append(make("div", { class: "skipped", role: "row" }, make("span", { role: "cell" }, `… ${row} equal line${row > 1 ? "s" : ""}`)));
      continue;
    }
    const [number, text, other, textAfter] = row;
    const isSame = text === textAfter && number && other;
    const isEitherMarked = (number && number === markedBefore) || (other && other === markedAfter);
    const side = (line, words, marked, kind) => {
      const isMarked = line && line === marked;
      const names = ["side", isMarked ? "marked" : "", !line ? "absent" : isSame ? "" : kind].filter(Boolean).join(" ");
      const cell = make("span", { class: names, role: "cell" }, make("span", { class: "number" }, line ? String(line) : ""), make("code", {}, words));
      if (isMarked) cell.append(make("span", { class: "flag" }, "first wrong node"));
      return cell;
    };
    box.append(make("div", { class: isSame && !isEitherMarked ? "pair same" : "pair", role: "row" }, side(number, text, markedBefore, "gone"), side(other, textAfter, markedAfter, "new")));
  }
  const parts = [make("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "code" }, box)];
  if (code.leftOut) parts.push(make("p", { class: "hint" }, `${code.leftOut} more lines are in rows.jsonl.`));
  return parts;
}

function whereText(where) {
  return where ? `${where.file}:${where.line}, in ${where.function}` : null;
}

function failureBody(failure, openRow) {
  const parts = [];
  const row = rows.find((candidate) => candidate.model === failure.model && candidate.program === failure.program);
  parts.push(facts([
    ["first wrong node", failure.node ? make("code", {}, failure.node) : null],
    ["the user's line", failure.where ? make("code", {}, whereText(failure.where), failure.where.text ? `:  ${failure.where.text}` : "") : null],
    ["test", make("code", {}, failure.test)],
    ["row", row ? make("a", { href: `#row-${row.number}`, onclick: (event) => { event.preventDefault(); openRow(row.number); } }, `${row.program} of ${row.model}`) : null],
  ]));
  if (failure.why) parts.push(make("h4", {}, "Why"), make("pre", { class: "why", tabindex: "0" }, failure.why));
  if (failure.text)
    parts.push(make("details", { open: !failure.code }, make("summary", {}, "What the terminal says"), make("pre", { tabindex: "0" }, failure.text)));
  if (failure.code) parts.push(make("h4", {}, "The program"), ...codeTable(failure.code));
  const maps = (failure.maps || []).map(heatMap).filter(Boolean);
  if (maps.length) parts.push(make("h4", {}, "Where values differ"), make("div", { class: "figures" }, ...maps));
  if (failure.drawing) {
    const label = failure.difference || "the program before and after the pass";
    const image = make("img", { src: `data:image/svg+xml;base64,${failure.drawing}`, alt: label });
    const box = make("div", { class: "drawing", tabindex: "0", role: "region", "aria-label": "drawing" }, image);
    const size = make("button", { type: "button", "aria-pressed": "false", onclick: () => {
      const isWhole = box.classList.toggle("whole");
      size.setAttribute("aria-pressed", String(isWhole));
    } }, "original size");
    parts.push(make("h4", {}, "What the pass did"), make("p", { class: "hint" }, label, " ", size), box);
  } else if (failure.difference) parts.push(make("h4", {}, "What the pass did"), make("p", {}, failure.difference));
  if (failure.isCut) parts.push(make("p", { class: "hint" }, "Programs, maps and drawing are left out here; rows.jsonl has them."));
  return parts;
}

function failureTitle(failure) {
  if (failure.program) return [make("b", {}, `${failure.program} of ${failure.model}`), failure.law ? ` breaks the law ‘${failure.law}’` : ""];
  const message = (failure.text || "").split("\n").filter((line) => line.startsWith("E  ")).map((line) => line.slice(1).trim())[0];
  return [make("b", {}, failure.test.split("::").pop()), message ? ` ${message}` : ""];
}

function failureSection(openRow) {
  if (!data.failureCount) return section("failures", "Failures", make("p", {}, "No test failed."));
  const opened = new Map();
  const boxes = data.failures.map((failure, number) => {
    const box = make("details", { id: `failure-${number}`, class: "failure" }, make("summary", {}, ...failureTitle(failure)));
    const fill = () => {
      if (!opened.has(number)) {
        opened.set(number, true);
        box.append(...failureBody(failure, openRow));
      }
    };
    box.addEventListener("toggle", () => box.open && fill());
    if (number === 0) {
      box.open = true;
      fill();
    }
    return box;
  });
  const more = data.failureCount - boxes.length;
  return section("failures", `Failures (${data.failureCount})`, ...boxes,
    more > 0 ? make("p", { class: "hint" }, `${more} more failures are in rows.jsonl.`) : null);
}

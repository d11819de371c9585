// The page: overview, table of rows, timings, failures, and machines.

const AT_ONCE = 200;
const MOST_CELLS = 6000;
const MOST_TIMINGS = 40;
const COLUMNS = [
  ["model", "model", (row) => row.model, (row) => row.model],
  ["program", "program", (row) => row.program, (row) => row.program],
  ["verdict", "judged", (row) => badge(row.judged), (row) => Object.keys(SIGNS).indexOf(row.judged) + 1 || 9],
  ["nodes", "nodes", nodes, (row) => row.nodes_after ?? row.nodes_before],
  ["error (eager’s own)", "error", errorCell, (row) => row.error],
  ["speed-up (95 % interval)", "speedup", speedupCell, (row) => (isTimed(row) ? row.speedup : null)],
  ["transformed", "seconds", (row) => seconds(row.seconds), (row) => row.seconds],
  ["peak memory", "memory", (row) => bytes(row.peak_memory), (row) => row.peak_memory],
  ...data.own.map(ownColumn),
];
const barRange = limits(rows.filter(isTimed).map((row) => [Math.max(row.speedup_low, 0.25), Math.min(row.speedup_high, 4)]));
const state = { words: "", verdict: "", model: "", column: null, down: false, visible: AT_ONCE, matching: rows, open: new Set() };

// A user's column, sorted as numbers if every cell begins with a number.
function ownColumn(heading, place) {
  const texts = rows.map((row) => row.own[place]).filter((text) => text !== null);
  const areNumbers = texts.every((text) => !Number.isNaN(parseFloat(text)));
  const value = (text) => (text !== null && areNumbers ? parseFloat(text) : text);
  return [heading, "own", (row) => row.own[place] ?? "–", (row) => value(row.own[place])];
}

function errorCell(row) {
  if (row.error === null) return "–";
  const parts = [error(row.error), ...(row.eager_error === null ? [] : [`(${error(row.eager_error)})`])];
  return make("span", {}, ...parts.flatMap((part) => [make("span", { class: "number-text" }, part), " "]));
}

function speedupCell(row) {
  if (!isTimed(row)) return "–";
  const isKnown = row.verdict === "faster" || row.verdict === "slower";
  const words = row.noisy ? (isKnown ? `${row.verdict}, too noisy to tell by how much` : "too noisy to tell") : `${ratio(row.speedup)} (${ratio(row.speedup_low)} to ${ratio(row.speedup_high)})`;
  return make("span", { class: "speedup" }, intervalBar(row, barRange), make("span", {}, words));
}

function rowFacts(row) {
  const loaded = row.processors === null ? null : `${Math.round(row.processors * 100)} % of a processor: the machine was loaded`;
  return facts([
    ["why", row.reason || row.outcome || row.why],
    ["nodes", nodes(row)], ["edits", row.edits],
    ["kept for backward", row.kept_bytes === null ? null : `${bytes(row.kept_bytes_before)} before, ${bytes(row.kept_bytes)} after`],
    ["dtype", row.dtype], ["float64 error", error(row.float64_error)], ["error", error(row.error)],
    ["eager’s own error", error(row.eager_error)], ["allowed", error(row.allowed_error)], ["detects", error(row.detects)],
    ["metric", row.metric_sentence], ["training", row.training],
    ["not held against it", row.waiver],
    ["eager", seconds(row.eager_seconds)], ["transformed", seconds(row.seconds)], ["speed-up", isTimed(row) ? row.verdict : null],
    ["pairs", row.pairs],
    ["estimated", row.estimated === null ? null : `${seconds(row.eager_estimated)} eager, ${seconds(row.estimated)} transformed`],
    ["launched after", row.host_seconds === null ? null : `${seconds(row.eager_host_seconds)} eager, ${seconds(row.host_seconds)} transformed`],
    ["since the baseline", row.slowdown === null ? null : `${percent(row.slowdown)} time (${percent(row.slowdown_low)} to ${percent(row.slowdown_high)}), ${row.change_verdict}`],
    ["peak memory", row.peak_memory === null ? null : `${bytes(row.eager_peak_memory)} eager, ${bytes(row.peak_memory)} transformed`],
    ["8-bit kernels", row.kernels], ["load", loaded], ["captured by", row.way], ["batch", row.batch], ["changed for capture", row.note],
    ["test", make("code", {}, row.test)],
    ["machine", data.machines.length > 1 ? make("a", { href: `#machine-${row.machine}` }, data.machines[row.machine][0][1]) : null],
    ["failure", row.failure === null ? null : make("a", { href: `#failure-${row.failure}` }, "what went wrong")],
  ]);
}

function rowElements(row) {
  const isOpen = state.open.has(row.number);
  const cells = COLUMNS.map(([title, id, cell], place) => {
    if (place) {
      const content = cell(row);
      return make("td", { class: content === "–" ? `${id} empty` : id, "data-title": title }, content);
    }
    const button = make("button", { type: "button", class: "more", "aria-expanded": String(isOpen), onclick: () => toggle(row.number) }, row.model);
    return make("th", { scope: "row", class: id }, button);
  });
  const line = make("tr", { id: `row-${row.number}`, class: row.judged.replace(" ", "-") }, ...cells);
  return isOpen ? [line, detailsOf(row)] : [line];
}

function detailsOf(row) {
  const plots = [pairsPlot(row), historyPlot(row)].filter(Boolean);
  return make("tr", { class: "details" }, make("td", { colspan: COLUMNS.length }, rowFacts(row), make("div", { class: "figures" }, ...plots)));
}

function toggle(number) {
  const element = document.getElementById(`row-${number}`), isOpen = !state.open.has(number);
  element.querySelector("button").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) {
    state.open.add(number);
    element.after(detailsOf(rows[number]));
  } else {
    state.open.delete(number);
    element.nextElementSibling.remove();
  }
}

const body = make("tbody"), count = make("span", { role: "status" }), more = make("button", { type: "button", onclick: () => showMore() });

function filter() {
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  state.matching = rows.filter((row) =>
    (!state.verdict || row.judged === state.verdict) && (!state.model || row.model === state.model) && words.every((word) => row.words.includes(word)));
  if (state.column !== null) {
    const value = COLUMNS[state.column][3], sign = state.down ? -1 : 1;
    const isMissing = (key) => key === null || key === undefined;
    state.matching.sort((first, second) => {
      const [a, b] = [value(first), value(second)];
      if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
      return a < b ? -sign : a > b ? sign : 0;
    });
  }
  state.visible = AT_ONCE;
  body.replaceChildren(...state.matching.slice(0, state.visible).flatMap(rowElements));
  showCount();
}

function showMore(least = state.visible + AT_ONCE) {
  const first = state.visible;
  state.visible = Math.max(least, first);
  body.append(...state.matching.slice(first, state.visible).flatMap(rowElements));
  showCount();
}

function showCount() {
  const remaining = state.matching.length - Math.min(state.visible, state.matching.length);
  count.textContent = `${state.matching.length} of ${rows.length} rows`;
  more.hidden = remaining <= 0;
  more.textContent = `show ${Math.min(remaining, AT_ONCE)} of ${remaining} more`;
}

function openRow(number) {
  if (!state.matching.includes(rows[number])) {
    Object.assign(state, { words: "", verdict: "", model: "" });
    for (const id of ["words", "verdict"]) document.getElementById(id).value = "";
    filter();
  }
  const place = state.matching.indexOf(rows[number]);
  if (place >= state.visible) showMore(place + 1);
  if (!state.open.has(number)) toggle(number);
  const element = document.getElementById(`row-${number}`);
  element.scrollIntoView({ block: "center" });
  element.querySelector("button").focus({ preventScroll: true });
  history.replaceState(null, "", `#row-${number}`);
}

function tableSection() {
  const heads = COLUMNS.map(([title, id], place) => {
    const head = make("th", { scope: "col", class: id, "aria-sort": "none" });
    head.append(make("button", { type: "button", onclick: () => {
      state.down = state.column === place ? !state.down : false;
      state.column = place;
      for (const each of heads) each.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      filter();
    } }, title));
    return head;
  });
  const verdicts = Object.keys(data.verdicts).map((verdict) => make("option", { value: verdict }, `${verdict} (${data.verdicts[verdict]})`));
  let waiting = 0;
  const controls = make("div", { class: "controls" },
    make("label", {}, "find ", make("input", { id: "words", type: "search", placeholder: "model, program, verdict", oninput: (event) => {
      state.words = event.target.value;
      clearTimeout(waiting);
      waiting = setTimeout(filter, 80);
    } })),
    make("label", {}, "verdict ", make("select", { id: "verdict", onchange: (event) => { state.verdict = event.target.value; filter(); } }, make("option", { value: "" }, "all"), ...verdicts)),
    count);
  const table = make("table", { class: "rows" }, make("caption", {}, "A row for each program of each model; click a model for more."), make("thead", {}, make("tr", {}, ...heads)), body);
  return section("rows", "Verdicts", controls, make("div", { class: "scrolls wide" }, table), more);
}

// Verdicts by model, one line each, and by pass, one column each.
function matrixSection() {
  const models = [...new Set(rows.map((row) => row.model))], programs = [...new Set(rows.map((row) => row.program))];
  if (models.length * programs.length > MOST_CELLS || models.length < 2) return null;
  const byName = new Map(rows.map((row) => [`${row.model}\n${row.program}`, row]));
  const head = make("tr", {}, make("td"), ...programs.map((program) => make("th", { scope: "col" }, make("span", {}, program))));
  const lines = models.map((model) => make("tr", {}, make("th", { scope: "row" }, model), ...programs.map((program) => {
    const row = byName.get(`${model}\n${program}`);
    if (!row) return make("td");
    const name = `${program} of ${model}: ${row.judged}`;
    return make("td", {}, make("a", { href: `#row-${row.number}`, class: `verdict ${row.judged.replace(" ", "-")}`, title: name, "aria-label": name,
      onclick: (event) => { event.preventDefault(); openRow(row.number); } }, SIGNS[row.judged] || "?"));
  })));
  return section("matrix", "Models and passes", make("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "verdicts by model and pass" },
    make("table", { class: "matrix" }, make("thead", {}, head), make("tbody", {}, ...lines))));
}

function timingSection() {
  const timed = rows.filter(isTimed);
  if (!timed.length) return null;
  const models = [...new Set(timed.map((row) => row.model))];
  const picture = make("div", { class: "scrolls" }), note = make("p", { class: "hint" });
  const show = (model) => {
    const all = timed.filter((row) => row.model === model);
    picture.replaceChildren(intervalPlot(all.slice(0, MOST_TIMINGS), openRow));
    note.textContent = all.length > MOST_TIMINGS ? `${all.length - MOST_TIMINGS} more timings of this model are in the table.` : "";
  };
  const choice = make("select", { id: "timed", onchange: (event) => show(models[Number(event.target.value)]) }, ...models.map((model, place) => make("option", { value: place }, model)));
  show(models[0]);
  return section("timings", "Timings", make("p", {}, make("label", {}, "model ", choice)),
    make("p", { class: "hint" }, "Median ratio of paired calls, eager over transformed, with its 95 % interval: right of 1 is faster."), picture, note);
}

function changeSection() {
  if (data.earlier === null) return null;
  const words = { new: "new", gone: "gone", verdict: "other verdict", slower: "slower", faster: "faster", column: "other value" };
  if (!data.changeCount) return section("changes", "Since the run before", make("p", {}, `Nothing changed since ${data.earlier}.`));
  const places = new Map(rows.map((row) => [`${row.model}\n${row.program}`, row.number]));
  const lines = data.changes.map(([kind, model, program, text]) => {
    const number = places.get(`${model}\n${program}`);
    const name = number === undefined ? `${program} of ${model}` : make("a", { href: `#row-${number}`, onclick: (event) => { event.preventDefault(); openRow(number); } }, `${program} of ${model}`);
    return make("tr", { class: `change ${kind}` }, make("td", {}, words[kind]), make("th", { scope: "row" }, name), make("td", {}, text));
  });
  const visible = 100, table = make("tbody", {}, ...lines.slice(0, visible));
  const rest = make("button", { type: "button", hidden: lines.length <= visible, onclick: () => { table.append(...lines.slice(visible)); rest.remove(); } }, `show ${lines.length - visible} more`);
  const cut = data.changeCount - lines.length;
  return section("changes", `Since the run before (${data.changeCount})`, make("p", { class: "hint" }, `Compared with ${data.earlier}.`),
    make("table", { class: "changes" }, table), rest, cut > 0 ? make("p", { class: "hint" }, `${cut} more changes are left out.`) : null);
}

function summarySection() {
  const run = data.run, outcomes = Object.entries(run.outcomes || {}).map(([name, number]) => `${number} ${name}`).join(", ");
  const tiles = Object.entries(data.verdicts).map(([name, number]) => make("button", { type: "button", class: `tile ${name.replace(" ", "-")}`, onclick: () => {
    state.verdict = name;
    document.getElementById("verdict").value = name;
    filter();
    document.getElementById("rows").scrollIntoView();
  } }, make("b", {}, String(number)), badge(name)));
  if (data.failureCount) tiles.unshift(make("button", { type: "button", class: "tile wrong", onclick: () => document.getElementById("failures").scrollIntoView() },
    make("b", {}, String(data.failureCount)), make("span", { class: "verdict wrong" }, data.failureCount === 1 ? "failure" : "failures")));
  const notices = [];
  if (run.interrupted) notices.push(make("p", { class: "notice" }, "The run was interrupted: the page has the results up to that point."));
  if (data.leftOut.length) notices.push(make("p", { class: "notice" }, `Left out, as the page would be too large: ${data.leftOut.join("; ")}. rows.jsonl has everything.`));
  return section("summary", data.title, make("p", { class: "hint" }, [run.ended ? `ended ${run.ended.slice(0, 16).replace("T", " ")} UTC` : "", outcomes ? `tests: ${outcomes}` : "", run.parts ? `${run.parts} parts` : ""].filter(Boolean).join(" · ")),
    data.command ? make("p", {}, make("code", {}, `pytest ${data.command}`)) : null, ...notices, make("div", { class: "tiles" }, ...tiles));
}

function machineSection() {
  return section("machine", data.machines.length > 1 ? "Machines" : "Machine", ...data.machines.map((machine, number) => make("div", { id: `machine-${number}` }, facts(machine))));
}

function build() {
  const sections = [summarySection(), changeSection(), matrixSection(), tableSection(), timingSection(), failureSection(openRow), machineSection()].filter(Boolean);
  const links = sections.slice(1).map((part) => make("a", { href: `#${part.id}` }, part.querySelector("h2").textContent));
  document.getElementById("report").replaceChildren(...sections);
  document.body.prepend(make("nav", { "aria-label": "parts of the report" }, ...links));
  const title = document.getElementById("summary-title"), first = make("h1", { id: "summary-title" }, title.textContent);
  title.replaceWith(first);
  filter();
  follow();
}

function follow() {
  const [, kind, number] = location.hash.match(/^#(row|failure)-(\d+)$/) || [];
  if (kind === "row" && rows[number]) openRow(Number(number));
  if (kind === "failure") {
    const box = document.getElementById(`failure-${number}`);
    if (box) {
      box.open = true;
      box.scrollIntoView();
      box.querySelector("summary").focus({ preventScroll: true });
    }
  }
}

addEventListener("hashchange", follow);
build();

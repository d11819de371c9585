"""pytest_fx.report.report_page: the contents of a run's page, its size, and its look in a browser."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from building import BROWSER, data_of, in_browser
from made_up_runs import HOSTILE, made_up_failure, made_up_run

from pytest_fx.report.columns import SummaryColumn
from pytest_fx.report.report_page import page_of
from pytest_fx.report.reported_run import EarlierRun, ReportedRun
from pytest_fx.report.rows import SummaryRow
from pytest_fx.report.side_by_side import MOST_LINES, side_by_side


def in_chromium(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that opens the page in a browser."""
    return pytest.mark.thorough(pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")(test))


def history(*seeds: int, rows: int = 40) -> list[EarlierRun]:
    return [EarlierRun.of(made_up_run(rows, 0, seed=seed, name=str(seed))) for seed in seeds]


def row_of(data: dict[str, Any], place: int) -> dict[str, Any]:
    row = dict(zip(data["fields"], data["rows"][place], strict=True))
    return {
        name: data["strings"][value] if name in data["texts"] and value is not None else value
        for name, value in row.items()
    }


def test_a_page_is_allowed_nothing_from_outside():
    page = page_of(made_up_run(), history(1))
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert policy and policy[1].startswith("default-src 'none'; ") and "http" not in policy[1]
    assert page.index("Content-Security-Policy") < page.index("<style>")
    ours = page.replace(json.dumps(data_of(page)), "").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"\bsrc=|https?://|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|innerHTML|eval\(", ours)


def test_hostile_names_are_data_and_no_markup():
    run = made_up_run(1, 0)
    run.lines[0]["row"].update(model=HOSTILE, program=HOSTILE, outcome=HOSTILE)
    run.add_columns([SummaryColumn(HOSTILE, lambda row: HOSTILE)])
    run.lines.append(made_up_failure(HOSTILE, HOSTILE, HOSTILE) | {"text": HOSTILE})
    run.run["arguments"], run.run["commit"] = [HOSTILE], HOSTILE
    page = page_of(run)
    assert "<script>alert" not in page and "<img src=x" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert row_of(data_of(page), 0)["model"] == HOSTILE


def test_a_row_has_its_results_its_failure_and_its_earlier_runs():
    page = page_of(made_up_run(), history(1, 2))
    data = data_of(page)
    timed, wrong = row_of(data, 0), row_of(data, 7)
    assert (timed["judged"], timed["program"], timed["nodes_after"], timed["error"]) == ("right", "pass-0", 40, 3.21e-6)
    assert len(timed["ratios"]) == 30 and [run for run, *_ in data["history"]["rows"]["0"]] == [0, 1]
    assert data["history"]["runs"] == ["2026-01-02 03:04, commit abc1234"] * 2
    assert (wrong["judged"], wrong["failure"], wrong["ratios"]) == ("wrong", 0, None)
    assert data["failures"][0]["program"] == "pass-7"
    assert data["verdicts"] == {"right": 28, "wrong": 4, "changes nothing": 4, "refused": 4}
    assert ["torch", "2.10"] in data["machines"][0] and ["cores", "2"] in data["machines"][0]


def test_the_page_has_every_field_of_a_row_that_its_scripts_read():
    page = page_of(made_up_run(1, 0))
    read = set(re.findall(r"\brow\.(\w+)", page)) & {field.name for field in fields(SummaryRow)}
    assert read - set(data_of(page)["fields"]) == set() and "kept_bytes" in read


def test_speed_ups_of_another_host_are_no_history():
    earlier = made_up_run(name="before")
    for line in earlier.lines:
        line["machine"] = {"host": "other"}
    data = data_of(page_of(made_up_run(), [EarlierRun.of(earlier)]))
    assert data["history"]["rows"] == {} and data["changes"] == []


def test_numbers_that_json_does_not_have_are_text():
    run = made_up_run(1, 0)
    run.lines[0]["row"]["error"] = math.inf
    run.lines[0]["row"]["float64_error"] = math.nan
    row = row_of(data_of(page_of(run)), 0)
    assert (row["error"], row["float64_error"]) == ("inf", "nan")


def test_ten_thousand_rows_with_three_hundred_failures_take_less_than_ten_megabytes():
    run = made_up_run(10_000, 300)
    page = page_of(run, history(1, rows=10_000))
    assert len(page.encode()) < 10_000_000
    data = data_of(page)
    assert len(data["rows"]) == 10_000 and len(data["failures"]) == 300 and data["leftOut"] == []


def test_a_page_over_the_limit_omits_parts_and_names_them():
    run = made_up_run(400, 40)
    whole = page_of(run, history(1, 2, 3, 4, 5, rows=400))
    rest = len(whole.encode()) - len(json.dumps(data_of(whole)).encode())
    limits = [len(whole.encode()) - 1, len(whole.encode()) * 2 // 3, rest + 60_000]
    pages = [page_of(run, history(1, 2, 3, 4, 5, rows=400), limit=limit) for limit in limits]
    assert all(len(page.encode()) <= limit for page, limit in zip(pages, limits, strict=True))
    first, second, third = map(data_of, pages)
    assert first["leftOut"] == ["the single pairs of timings"]
    assert "programs, maps and drawings of 20 of 40 failures" in second["leftOut"]
    assert third["leftOut"][-1].endswith("of 400 rows, first those that are right or change nothing")
    verdicts = [row_of(third, place)["judged"] for place in range(len(third["rows"]))]
    assert verdicts.count("wrong") == min(40, len(verdicts)) and third["verdicts"]["wrong"] == 40


def test_a_run_without_rows_or_failures_has_a_page():
    data = data_of(page_of(ReportedRun({"begun": "2026-01-02T03:04:05+00:00"})))
    assert (data["rows"], data["failures"], data["earlier"]) == ([], [], None)


def test_lines_that_belong_together_are_side_by_side_and_equal_ones_are_left_out():
    before = "\n".join(f"line {number}" for number in range(40))
    rows, left_out = side_by_side(before, before.replace("line 20", "other"), (21, 21))
    assert rows[0] == (1, "line 0", 1, "line 0")
    assert (21, "line 20", 21, "other") in rows and left_out == 0
    assert sum(row if isinstance(row, int) else 1 for row in rows) == 40
    assert len([row for row in rows if isinstance(row, tuple)]) == 1 + 7


def test_a_marked_line_is_shown_in_a_program_of_any_length_and_omitted_lines_are_counted():
    before = "\n".join(f"a{number}" for number in range(10_000))
    after = before.replace("a", "b")
    rows, left_out = side_by_side(before, after, (7000, 7000))
    assert (7000, "a6999", 7000, "b6999") in rows
    assert len(rows) == MOST_LINES and left_out == 10_000 - MOST_LINES


def test_lines_that_are_gone_or_new_have_nothing_beside_them():
    rows, _ = side_by_side("a\nb\nc", "a\nc\nd")
    assert rows == [(1, "a", 1, "a"), (2, "b", 0, ""), (3, "c", 2, "c"), (0, "", 3, "d")]
    assert side_by_side("a", None)[0] == [(1, "a", 0, "")]


WIDE = """
const overflow = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
for (const box of document.querySelectorAll("details")) box.open = true;
await new Promise((done) => setTimeout(done, 50));
document.querySelector(".more").click();
"""
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const channels = (color) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data;
};
const light = (color) => {
  const [r, g, b] = [...channels(color)].slice(0, 3).map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const color = getComputedStyle(one).backgroundColor;
    if (channels(color)[3] === 255) return color;
  }
  return "#ffffff";
};
const faint = new Set();
for (const element of document.querySelectorAll("body *")) {
  const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!isText || element.closest("svg, script, pre#found")) continue;
  const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) faint.add(`${element.tagName}.${element.className}`);
}
"""


@in_chromium
@pytest.mark.parametrize("width", [400, 1000, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_is_missing_or_faint(tmp_path, width, scheme):
    run = made_up_run(60, 3)
    own = ("calls", lambda row: row.nodes_after), ("a longer heading", lambda row: f"{row.program} " * 9)
    run.add_columns([SummaryColumn(*column) for column in own])
    page = page_of(run, history(1, 2, rows=60))
    flags = ("--blink-settings=preferredColorScheme=0", "--force-dark-mode") if scheme == "dark" else ()
    is_dark = "matchMedia('(prefers-color-scheme: dark)').matches"
    script = f"{WIDE}{CONTRAST} return [errors, overflow(), innerWidth, [...faint], {is_dark}]"
    assert in_browser(page, script, tmp_path, width, flags) == [[], 0, width, [], scheme == "dark"]


@in_chromium
def test_rows_are_found_sorted_and_opened_and_everything_is_reached_by_keyboard(tmp_path):
    script = """
    const shown = () => [...document.querySelectorAll("table.rows tbody tr[id]")].map((row) => row.id);
    const words = document.getElementById("words");
    words.value = "model1 pass-7";
    words.dispatchEvent(new Event("input"));
    await new Promise((done) => setTimeout(done, 120));
    const found = shown();
    words.value = "";
    words.dispatchEvent(new Event("input"));
    await new Promise((done) => setTimeout(done, 120));
    const verdict = document.getElementById("verdict");
    verdict.value = "wrong";
    verdict.dispatchEvent(new Event("change"));
    const wrong = shown().length;
    verdict.value = "";
    verdict.dispatchEvent(new Event("change"));
    const heads = [...document.querySelectorAll("thead th button")];
    const head = heads.find((one) => one.textContent.startsWith("speed-up"));
    head.click();
    const cells = () => [...document.querySelectorAll("td.speedup span span")];
    const speedups = () => cells().map((one) => parseFloat(one.textContent));
    const up = speedups();
    head.click();
    const down = speedups();
    location.hash = "#row-27";
    await new Promise((done) => setTimeout(done, 50));
    const opened = document.querySelector("#row-27 + tr.details").innerText;
    document.querySelector("#row-27 + tr.details a[href^='#failure']").click();
    await new Promise((done) => setTimeout(done, 50));
    const failure = document.activeElement.parentElement;
    const marked = [...failure.querySelectorAll(".marked code")].map((one) => one.textContent.trim().slice(0, 20));
    const controls = [...document.querySelectorAll("a, button, select, input, .tile, .more, summary, .scrolls pre")];
    const unreachable = controls.filter((one) => one.tabIndex < 0).length;
    return { errors, found, wrong, sorted: up.every((one, n) => !n || up[n - 1] <= one), down: down[0] >= down[1],
      opened, open: failure.open, id: failure.id, marked, unreachable, maps: failure.querySelectorAll("svg.map").length,
      drawn: failure.querySelector(".drawing img").complete };
    """
    page = page_of(made_up_run(60, 9), history(1, 2, rows=60))
    answer = in_browser(page, script, tmp_path)
    assert isinstance(answer, dict), answer
    assert (answer["errors"], answer["found"], answer["wrong"]) == ([], ["row-27"], 6)
    assert answer["sorted"] and answer["down"] and answer["open"] and answer["drawn"]
    assert "what went wrong" in answer["opened"] and answer["id"] == "failure-2"
    assert answer["marked"] == ["a30 = self.layer30(a", "a30 = self.other30(a"]
    assert (answer["unreachable"], answer["maps"]) == (0, 1)


@in_chromium
def test_a_narrow_page_shows_the_first_wrong_node_of_both_programs_on_lines_that_are_equal_too(tmp_path):
    run = made_up_run(8, 1)
    run.failures()[0]["facts"].update(before_line=32, after_line=31)
    script = """
    const marked = [...document.querySelectorAll(".marked")];
    return [errors, marked.map((one) => [one.querySelector(".number").textContent, one.offsetHeight > 0])];
    """
    assert in_browser(page_of(run), script, tmp_path, 400) == [[], [["31", True], ["32", True]]]


@in_chromium
def test_columns_of_users_are_sorted_by_their_numbers_and_found_by_their_words(tmp_path):
    script = """
    const calls = () => [...document.querySelectorAll("table.rows tbody td.own")].map((one) => one.textContent);
    const head = [...document.querySelectorAll("thead th button")].find((one) => one.textContent === "calls");
    head.click();
    const up = calls();
    head.click();
    const down = calls();
    const words = document.getElementById("words");
    words.value = "11 calls";
    words.dispatchEvent(new Event("input"));
    await new Promise((done) => setTimeout(done, 120));
    return [errors, up, down, calls()];
    """
    run = made_up_run(4, 0)
    cells = iter(("9 calls", "11 calls", "-", "100 calls"))
    run.add_columns([SummaryColumn("calls", lambda row: next(cells))])
    up = ["9 calls", "11 calls", "100 calls", "\u2013"]
    assert in_browser(page_of(run), script, tmp_path) == [[], up, [*up[2::-1], "\u2013"], ["11 calls"]]


@in_chromium
def test_hostile_names_run_no_script(tmp_path):
    run = made_up_run(2, 0)
    for line in run.lines:
        line["row"].update(model=HOSTILE, program=HOSTILE + line["test"], outcome=HOSTILE)
    run.lines.append(made_up_failure(HOSTILE, HOSTILE, HOSTILE) | {"text": HOSTILE})
    script = """
    let alerts = 0;
    window.alert = () => { alerts += 1; };
    for (const more of document.querySelectorAll(".more")) more.click();
    await new Promise((done) => setTimeout(done, 100));
    const images = document.querySelectorAll("img[src=x]").length;
    return [errors, alerts, images, document.querySelector(".more").textContent];
    """
    page = page_of(run).replace("const errors", "window.alert = (said) => errors.push(said); const errors")
    assert in_browser(page, script, tmp_path) == [[], 0, 0, HOSTILE]


@in_chromium
def test_ten_thousand_rows_are_there_in_two_seconds_and_can_be_filtered(tmp_path):
    page = page_of(made_up_run(10_000, 300), history(1, 2, 3, rows=10_000))
    script = """
    const stands = performance.getEntriesByType("navigation")[0].loadEventEnd;
    const words = document.getElementById("words");
    words.value = "model499 pass-19";
    words.dispatchEvent(new Event("input"));
    await new Promise((done) => setTimeout(done, 200));
    return [errors, stands, document.querySelectorAll("table.rows tbody tr").length];
    """
    errors, stands, rows = in_browser(page, script, tmp_path)
    assert (errors, rows) == ([], 1)
    assert stands < 4_000  # two seconds on a quiet machine

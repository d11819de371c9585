"""One HTML page with everything in it: its policy is ``default-src 'none'``, so that nothing can be fetched.

This module places everything, with all modules open. The JavaScript in ``page/`` draws it, and moves up what is below a
module that a reader closes.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fx.drawing.appearance import CHARACTER, FILLS, LINE, MARGIN, STROKES, Figure, Labels, box_of, scaled, title_of
from fx.drawing.drawn_program import DrawnNode, DrawnProgram
from fx.drawing.pass_history import PassHistory
from fx.drawing.picture import MARKS, Picture
from fx.drawing.placement import LANE, PADDING, ROW_GAP, TITLE, Placed, place_cluster, place_clusters
from fx.drawing.rows import CLUSTER
from fx.drawing.svg import escaped
from fx.errors import DrawingError
from fx.graph_module import GraphModule

LARGEST_CLUSTER = 500
"""The largest number of members of a cluster; larger clusters are cut into parts, which open one by one."""
MOST_STATES = 30
"""The largest number of states of a program in a page: each is a bit of a number in JavaScript."""
_FRAME_HEIGHT = 560
_TEXTS = ("name", "op", "target", "title", "arguments", "settings", "shape", "dtype", "file")
_FOLDER = Path(__file__).parent / "page"
_SCRIPTS = ("scene.js", "canvas.js", "page.js")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page_of_program(picture: Picture, name: str, figures: Sequence[Figure], chosen: Figure | None) -> str:
    """Return a page that shows one program."""
    return _page(_data(picture, name, figures, chosen, [len(picture.nodes)]))


def frame_of(program: GraphModule) -> str:
    """Return a frame with the page of a program, for a notebook to show under a cell."""
    picture = Picture.of(DrawnProgram.of(program), fold=False, largest=LARGEST_CLUSTER)
    page = page_of_program(picture, program._get_name(), (), None)
    return (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{_FRAME_HEIGHT}px;border:1px solid #d5dbe1" '
        f'srcdoc="{escaped(page)}"></iframe>'
    )


def page_of_passes(history: PassHistory, name: str, figures: Sequence[Figure], chosen: Figure | None) -> str:
    """Return a page that shows a program before and after each of several passes.

    Raises:
        DrawingError: more passes changed the program than a page can hold.
    """
    count = len(history.states)
    if count > MOST_STATES:
        raise DrawingError(
            f"{count - 1} passes changed the program, and a page shows up to {MOST_STATES - 1}",
            remedy="record them in parts: record_passes(program, passes[:20])",
        )
    picture, numbers = history.picture(range(count), fold=False, largest=LARGEST_CLUSTER)
    data = _data(picture, name, figures, chosen, [len(state.program.nodes) for state in history.states])
    spans = [(place, place + 1) for place in range(count - 1)]
    data["steps"] = [_step(history, numbers, *span) for span in [*spans, *([(0, count - 1)] if count > 2 else [])]]
    data["idle"] = [report.name for report in history.reports if not report.changed]
    return _page(data)


def _step(history: PassHistory, numbers: Sequence[int], first: int, last: int) -> dict[str, Any]:
    difference = history.difference(first, last)
    place = {number: place for place, number in enumerate(numbers)}
    before, after = (
        {node.name: place[number] for number, node in zip(state.numbers, state.program.nodes, strict=True)}
        for state in (history.states[first], history.states[last])
    )
    codes = {mark: code for code, mark in enumerate(MARKS, 1)}
    marks_before, marks_after = difference.marks()
    marks = {before[name]: codes[mark] for name, mark in marks_before.items()}
    marks.update((after[name], codes[mark]) for name, mark in marks_after.items())
    pairs = [(before[old], after[new]) for old, new in difference.counterparts]
    return {
        "name": difference.name if last - first == 1 else "all passes",
        "first": first,
        "last": last,
        "summary": difference.summary(),
        "edits": difference.edits[:500],
        "marks": sorted(marks.items()),
        "pairs": [pair for pair in pairs if pair[0] != pair[1]],
    }


def _data(
    picture: Picture, name: str, figures: Sequence[Figure], chosen: Figure | None, counts: Sequence[int]
) -> dict[str, Any]:
    strings = defaultdict[str, int](itertools.count().__next__)  # texts, each once, with their numbers
    widths = [_width(node.versions, figures) for node in picture.nodes]
    nodes = [
        [node.states, *([first, *_fields(version, strings)] for first, version in node.versions)]
        for node in picture.nodes
    ]
    return {
        "title": name,
        "counts": counts,
        "hasShapes": any(version.shape for node in picture.nodes for _, version in node.versions),
        "nodes": nodes,
        "widths": _rounded(widths),
        "clusters": _clusters(picture, widths),
        "room": {"line": LINE, "margin": MARGIN, "rowGap": ROW_GAP, "lane": LANE, "padding": PADDING, "title": TITLE},
        "fills": FILLS,
        "marks": [[mark, sign, STROKES[mark]] for mark, sign in MARKS.items()],
        "figures": [_figure(figure, picture) for figure in figures],
        "figure": figures.index(chosen) if chosen is not None else None,
        "steps": [],
        "idle": [],
        "strings": list(strings),
    }


def _width(versions: Sequence[tuple[int, DrawnNode]], figures: Sequence[Figure]) -> float:
    """Return the width of a node's box: it has room for all text that a reader may choose."""
    labels = [Labels(shapes=True, lines=True, figure=figure) for figure in figures or [None]]
    return max(box_of(each.of(version))[0] for each in labels for _, version in versions)


def _clusters(picture: Picture, widths: Sequence[float]) -> list[dict[str, Any]]:
    """Return each cluster with its rows and two layouts: with all clusters in it open, and with all closed."""
    titles = [title_of(cluster) for cluster in picture.clusters]
    # the room for a title, with the sign that opens or closes the cluster
    closed = [2 * MARGIN + CHARACTER * (len(title) + 2) if title else 0.0 for title in titles]

    node_sizes = {node: (width, 0.0) for node, width in enumerate(widths)}
    closed_sizes = {number: (width, 0.0) for number, width in enumerate(closed)}
    folded = {
        number: place_cluster(rows, node_sizes, closed_sizes, closed[number], {})
        for number, rows in enumerate(picture.rows)
        if CLUSTER in rows.kinds
    }
    least = [max(width, folded[number].width if number in folded else 0.0) for number, width in enumerate(closed)]
    placed = place_clusters(picture.rows, node_sizes, least)
    return [
        {
            "title": titles[number],
            "count": rows.cluster.count,
            "closed": _form(placed[number], closed[number]),
            "open": _layout(placed[number], placed[number]),
            "folded": _layout(placed[number], folded[number]) if number in folded else None,
            "kinds": rows.kinds,
            "refs": rows.refs,
            "rows": rows.rows,
            "links": rows.links,
            "lanes": rows.lanes,
        }
        for number, rows in enumerate(picture.rows)
    ]


def _layout(cluster: Placed, layout: Placed) -> dict[str, Any]:
    return {**_form(cluster, layout.width, _middle_port(layout)), "x": _rounded(layout.x)}


def _form(cluster: Placed, width: float, port: float = 0.0) -> dict[str, float]:
    """Return the width of a narrower form of a cluster, and the distance of its middle from that of the open cluster.

    Its middle port, at this distance from its middle, is put at the place of the open cluster's.
    """
    room = (cluster.width - width) / 2
    return {"width": round(width, 1), "shift": round(min(max(_middle_port(cluster) - port, -room), room), 1)}


def _middle_port(cluster: Placed) -> float:
    """Return the distance of the middle one of the entries and exits of a cluster from its middle."""
    ports = sorted(cluster.ports.values()) or [0.0]
    return ports[len(ports) // 2]


def _rounded(numbers: Iterable[float]) -> list[float]:
    return [round(number, 1) for number in numbers]


def _fields(node: DrawnNode, strings: Mapping[str, int]) -> list[int]:
    texts = [getattr(node, name) for name in _TEXTS]
    return [*map(strings.__getitem__, texts), node.line, strings[node.code]]


def _figure(figure: Figure, picture: Picture) -> dict[str, Any]:
    shares = figure.shares()
    names = {
        number: version.name
        for number, node in enumerate(picture.nodes)
        for _, version in node.versions
        if version.name in shares
    }
    nodes = [
        [number, scaled(shares[name]), figure.written(figure.values[name]), round(shares[name], 4)]
        for number, name in names.items()
    ]
    return {"name": figure.name, "nodes": nodes, "legend": figure.legend()}


def _page(data: Mapping[str, Any]) -> str:
    panes = "".join(_pane(number) for number in range(2 if data["steps"] else 1))
    body = f"""<header>
<h1>{escaped(data["title"])}</h1>
<label>find <input id="search" type="search" placeholder="name, operation, file:line" size="22"></label>
<span id="found" role="status"></span>
<label>colour <select id="figure"><option value="">opcode</option></select></label>
<label><input id="shapes" type="checkbox"> shapes</label>
<label><input id="lines" type="checkbox"> lines</label>
<span>
<button id="out" title="zoom out (-)">-</button> <button id="in" title="zoom in (+)">+</button>
<button id="fit" title="see all (0)">fit</button>
<button id="open">open all</button> <button id="close">close all</button>
</span>
{_slider(data)}</header>
<main>
{panes}<aside id="details" aria-live="polite"></aside>
</main>
<footer id="legend"></footer>"""
    return standalone_page(data["title"], data, body, _FOLDER / "page.css", [_FOLDER / name for name in _SCRIPTS])


def standalone_page(title: str, data: Mapping[str, Any], body: str, style: Path, scripts: Sequence[Path]) -> str:
    """Return a page in one file that loads nothing from elsewhere and runs only these scripts.

    Args:
        title: its title, as text.
        data: the data for its scripts in the element ``data``; it cannot end the element, as it has no ``<``.
        body: its elements before the scripts, as HTML.
        style: the file of its style sheet.
        scripts: the files of its scripts, in order.

    Raises:
        ValueError: a number in the data is not finite; JSON cannot express it.
    """
    written = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    code = "\n".join(script.read_text(encoding="utf-8") for script in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<style>
{style.read_text(encoding="utf-8")}</style>
</head>
<body>
{body}
<script type="application/json" id="data">{written}</script>
<script>
{code}</script>
</body>
</html>
"""


def _pane(number: int) -> str:
    what = "before" if number == 0 else "after"
    label = f"the program; arrow keys move it, + and - zoom, 0 shows all ({what})"
    return f'<section class="pane"><h2></h2><canvas tabindex="0" aria-label="{label}"></canvas></section>\n'


def _slider(data: Mapping[str, Any]) -> str:
    """Return the slider that chooses the pass, with the list of passes that changed nothing."""
    steps: Sequence[Any] = data["steps"]
    if not steps:
        return ""
    idle = f"<span>changed nothing: {escaped(', '.join(data['idle']))}</span>" if data["idle"] else ""
    hidden = " hidden" if len(steps) == 1 else ""
    return (
        f'<div id="steps"><input id="step" type="range" min="0" max="{len(steps) - 1}" step="1" '
        f'aria-label="pass"{hidden}> <b id="stepname"></b> <span id="summary" role="status"></span>{idle}\n'
        '<details><summary>edits</summary><ol id="edits"></ol></details></div>\n'
    )

"""Pictures as SVG, for browsers and without Graphviz; the same picture gives the same text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fx.drawing.appearance import CHARACTER, FILLS, LINE, MARGIN, STROKES, Labels, box_of, title_of
from fx.drawing.drawn_program import DrawnNode
from fx.drawing.picture import MARKS, Picture
from fx.drawing.placement import LANE, TITLE, Placed, place_clusters, port
from fx.drawing.rows import CLUSTER, ENTRY, EXIT, NODE, Rows

_FONT = 'font-family="ui-monospace,\'DejaVu Sans Mono\',Menlo,Consolas,monospace" font-size="10"'
_BEND = 12.0
_ON_EDGES = 'fill="#445" stroke="#fafafa" stroke-width="3" paint-order="stroke"'
"""The look of titles: an outline hides the edges behind them."""
_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEGEND = 34.0


@dataclass(frozen=True, slots=True)
class Pane:
    """One of several drawings side by side."""

    state: int
    """The drawn state of the program."""
    caption: str
    """The text above it."""
    marks: Sequence[str]
    """The edit of the pass to each node: a key of ``MARKS``, or ``""``."""


def write_svg(picture: Picture, labels: Labels, panes: Sequence[Pane] = ()) -> str:
    """Draw a picture.

    Args:
        picture: the picture.
        labels: the choice of text in the boxes.
        panes: states to draw beside each other, each node at the same place in all; by default the first alone.
    """
    panes = panes or [Pane(0, "", [""] * len(picture.nodes))]
    writer = _Writer(picture, labels)
    height = writer.placed[0].height
    width = max([writer.placed[0].width, *(len(pane.caption) * CHARACTER + 2 * MARGIN for pane in panes)])
    legend = list(_legend(picture, labels, panes))
    wide = max(width * len(panes), 2 * MARGIN + max(sum(map(_legend_width, row)) for row in legend))
    tall = height + _LEGEND + LINE * 1.5 * (len(legend) - 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(wide)}" height="{_n(tall)}" '
        f'viewBox="0 0 {_n(wide)} {_n(tall)}" {_FONT}>',
        f'<rect width="{_n(wide)}" height="{_n(tall)}" fill="#ffffff"/>',
    ]
    for row, entries in enumerate(legend):
        parts += _write_legend(entries, MARGIN, MARGIN + row * LINE * 1.5)
    top = tall - height
    for number, pane in enumerate(panes):
        parts.append(f'<g transform="translate({_n(number * width)} {_n(top)})">')
        if pane.caption:
            parts.append(_text(width / 2, 8.0, pane.caption, 'text-anchor="middle" font-weight="bold"'))
        parts += writer.pane(pane)
        parts.append("</g>")
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


class _Writer:
    def __init__(self, picture: Picture, labels: Labels) -> None:
        self.picture = picture
        self.labels = labels
        self.sizes: dict[int, tuple[float, float]] = {}
        for number in picture.visible:
            boxes = [box_of(labels.of(version)) for _, version in picture.nodes[number].versions]
            self.sizes[number] = max(box[0] for box in boxes), max(box[1] for box in boxes)
        titles = [2 * MARGIN + CHARACTER * len(title_of(cluster)) for cluster in picture.clusters]
        self.placed = place_clusters(picture.rows, self.sizes, titles)
        self.fills = labels.figure.fills() if labels.figure is not None else {}

    def pane(self, pane: Pane) -> Iterable[str]:
        """Yield the elements of one state: frames of clusters, then edges, and on top titles and nodes."""
        frames: list[str] = []
        edges: list[str] = []
        arrows: list[str] = []
        nodes: list[str] = []
        pending: list[tuple[int, float, float]] = [(0, 0.0, 0.0)]
        for number, x, y in pending:
            placed, rows = self.placed[number], self.picture.rows[number]
            there = any(self.picture.nodes[node].states >> pane.state & 1 for node in rows.cluster.nodes())
            used = rows.used(1 << pane.state)
            if number and there:
                frames += self.frame(rows, placed, x, y)
                nodes.append(_text(x + MARGIN, y + TITLE - 4, title_of(rows.cluster), _ON_EDGES))
            for item in itertools.chain(*rows.rows):
                kind, ref, middle, top = rows.kinds[item], rows.refs[item], placed.x[item], y + placed.top[item]
                if kind == NODE:
                    nodes += self.node(ref, x + middle, top, pane)
                elif kind == CLUSTER:
                    pending.append((ref, x + middle - self.placed[ref].width / 2, top))
                elif kind in (ENTRY, EXIT) and item in used:
                    edge = (y, top) if kind == ENTRY else (top, y + placed.height)
                    edges.append(f"M{_n(x + middle)} {_n(edge[0])}V{_n(edge[1])}")
            self.edges(rows, placed, x, y, pane.state, edges, arrows)
        yield from frames
        yield f'<path d="{"".join(edges)}" fill="none" stroke="#7f8c8d"/>'
        yield f'<path d="{"".join(arrows)}" fill="#7f8c8d"/>'
        yield from nodes

    def frame(self, rows: Rows, placed: Placed, x: float, y: float) -> Iterable[str]:
        """Yield the frame of a cluster; repeats have more frames behind it."""
        behind = (4.0, 2.0, 0.0) if rows.cluster.count > 1 else (0.0,)
        for shift in behind:
            yield (
                f'<rect x="{_n(x + shift)}" y="{_n(y + shift)}" width="{_n(placed.width)}" '
                f'height="{_n(placed.height)}" rx="6" fill="#fafafa" stroke="#b0b7bc"/>'
            )

    def node(self, number: int, middle: float, top: float, pane: Pane) -> Iterable[str]:
        """Yield the box of a node; for a node that only the other pane has, a faint frame."""
        picture_node = self.picture.nodes[number]
        width, height = self.sizes[number]
        x = middle - width / 2
        if not picture_node.states >> pane.state & 1:
            yield f'<rect {_box(x, top, width, height, 4)} fill="none" stroke="#d5d8dc" stroke-dasharray="2 3"/>'
            return
        node, mark = picture_node.at(pane.state), pane.marks[number]
        stroke = STROKES.get(mark, "#5d6d7e")
        style = f'stroke="{stroke}" stroke-width="{2.2 if mark else 0.8}"' + _dashes(node, mark)
        fill = self.fills.get(node.name, "#ffffff") if self.labels.figure is not None else FILLS.get(node.op, "#ffffff")
        radius = height / 2 if node.op in ("placeholder", "output") else 4.0
        yield f"<g><title>{escaped(_tooltip(node))}</title>"
        yield f'<rect {_box(x, top, width, height, radius)} fill="{fill}" {style}/>'
        if node.op == "call_module":
            yield f'<path d="M{_n(x + 3)} {_n(top + 4)}v{_n(height - 8)}" stroke="{stroke}" stroke-width="1.6"/>'
        lines = self.labels.of(node)
        first = top + (height - LINE * len(lines)) / 2 + LINE - 3.2
        for line, text in enumerate(lines):
            look = 'text-anchor="middle"' + (' font-weight="bold"' if line == 0 else ' fill="#222"')
            yield _text(middle, first + line * LINE, text, look)
        if mark:
            yield (
                f'<circle cx="{_n(x)}" cy="{_n(top)}" r="6.5" fill="{stroke}"/>'
                + _text(x, top + 3.4, MARKS[mark], 'text-anchor="middle" fill="#fff" font-weight="bold"')
            )
        yield "</g>"

    def edges(
        self, rows: Rows, placed: Placed, x: float, y: float, state: int, paths: list[str], arrows: list[str]
    ) -> None:
        """Add the paths and arrows of the edges inside a cluster."""
        for tail, head, value, states, *lanes in (*rows.links, *rows.lanes):
            if not states >> state & 1:
                continue
            start = x + placed.x[tail] + port(rows, self.placed, tail, EXIT, value)
            end = x + placed.x[head] + port(rows, self.placed, head, ENTRY, value)
            below, bottom = y + placed.top[tail] + placed.sizes[tail][1], y + placed.bottom[tail]
            top = y + placed.top[head]
            middle = (bottom + top) / 2
            paths.append(f"M{_n(start)} {_n(below)}V{_n(bottom)}")
            for lane in lanes:
                side = x + placed.lane + LANE * lane
                turn = _BEND if top > bottom else 0.0
                paths.append(
                    f"C{_n(start)} {_n(bottom + _BEND)} {_n(side)} {_n(bottom)} {_n(side)} {_n(bottom + turn)}"
                    f"V{_n(top - turn)}C{_n(side)} {_n(top)} {_n(end)} {_n(top - _BEND)} {_n(end)} {_n(top)}"
                )
            if not lanes:
                paths.append(f"C{_n(start)} {_n(middle)} {_n(end)} {_n(middle)} {_n(end)} {_n(top)}")
            if rows.kinds[head] == NODE:
                arrows.append(f"M{_n(end - 3)} {_n(top - 6)}L{_n(end)} {_n(top)}L{_n(end + 3)} {_n(top - 6)}z")


def _dashes(node: DrawnNode, mark: str) -> str:
    if mark == "removed":
        return ' stroke-dasharray="6 3"'
    return ' stroke-dasharray="3 2"' if node.op == "get_attr" else ""


def _tooltip(node: DrawnNode) -> str:
    """Return the text that a browser shows over a node."""
    lines = [f"%{node.name} = {node.op}[{node.target}]({node.arguments})", node.settings]
    lines += [f"{node.shape} {node.dtype}".strip(), f"{node.file}:{node.line}  {node.code}" if node.file else ""]
    return "\n".join(line for line in lines if line)


def _legend(picture: Picture, labels: Labels, panes: Sequence[Pane]) -> Iterable[list[tuple[str, str, str]]]:
    """Yield rows of entries: a fill, a mark and a word."""
    figure = labels.figure
    if figure is not None:
        yield [(fill, "", text) for fill, text in figure.legend()]
    else:
        used = {version.op for node in picture.nodes for _, version in node.versions}
        yield [(fill, "", op) for op, fill in FILLS.items() if op in used]
    done = {mark for pane in panes for mark in pane.marks if mark}
    if done:
        yield [("", mark, mark) for mark in MARKS if mark in done]


def _legend_width(entry: tuple[str, str, str]) -> float:
    return 26.0 + CHARACTER * len(entry[2])


def _write_legend(entries: Iterable[tuple[str, str, str]], x: float, y: float) -> Iterable[str]:
    for fill, mark, word in entries:
        if fill:
            yield f'<rect {_box(x, y, 14, 10, 2)} fill="{fill}" stroke="#5d6d7e" stroke-width="0.6"/>'
        elif mark:
            yield f'<circle cx="{_n(x + 7)}" cy="{_n(y + 5)}" r="6" fill="{STROKES[mark]}"/>'
            yield _text(x + 7, y + 8.4, MARKS[mark], 'text-anchor="middle" fill="#fff" font-weight="bold"')
        yield _text(x + (18 if fill or mark else 0), y + 8.6, word)
        x += _legend_width((fill, mark, word))


def _box(x: float, y: float, width: float, height: float, radius: float) -> str:
    return f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(radius)}"'


def _text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" {look}>{escaped(text)}</text>'


def _n(value: float) -> str:
    """Return a coordinate, to a tenth of a point, without needless digits."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def escaped(text: str) -> str:
    """Escape markup, and replace characters that are invalid in XML by a box."""
    legal = _NOT_IN_XML.sub("□", text)
    return legal.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")

"""Drawings of programs (paper, section 6.3): ``fx.draw(program, "program.svg")``.

SVG and pages are laid out here, without other tools; Graphviz makes PNG, PDF and the like from the same picture.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fx.argument_types import Inputs, checked
from fx.arguments import expect, expect_shallow
from fx.drawing.appearance import Figure, Labels
from fx.drawing.dot_file import make_dot
from fx.drawing.drawn_program import DrawnProgram
from fx.drawing.html_page import LARGEST_CLUSTER, page_of_passes, page_of_program
from fx.drawing.pass_history import PassHistory, record_passes
from fx.drawing.picture import Picture
from fx.drawing.svg import Pane, write_svg
from fx.errors import DrawingError
from fx.graph_module import GraphModule
from fx.node import Node

__all__ = ["Figure", "PassHistory", "draw", "record_passes"]

_BY_GRAPHVIZ = ("png", "pdf", "ps", "jpg", "webp")
_FORMATS = (".svg", ".html", ".dot", ".gv", *(f".{form}" for form in _BY_GRAPHVIZ))


@checked(DrawingError)
def draw(
    program: GraphModule | PassHistory,
    path: str | os.PathLike[str],
    *,
    inputs: Inputs | None = None,
    shapes: bool | None = None,
    lines: bool = False,
    figures: Sequence[Figure] = (),
    color: str = "opcode",
    fold: bool = True,
) -> Path:
    """Draw a program into a file. Its ending is the format: ``.svg``, ``.html``, ``.dot``, or by Graphviz ``.png``.

    Frames around nodes are their modules. Of repeated blocks, only the first is drawn, with their number.
    An ``.html`` file is a page with zoom and search, whose modules open and close; it needs no network.
    The same program gives the same file, byte by byte.

    Args:
        program: the program, which stays as it is; or the result of :func:`record_passes`, which is drawn before and
            after the passes, side by side, with their edits at each node.
        path: the file.
        inputs: example inputs, to find sizes on fake tensors; by default sizes are those in the ``meta`` of nodes from
            ``ShapeProp`` or ``torch.export``.
        shapes: write sizes and types of values; by default if there are ``inputs``.
        lines: write the user's file and line.
        figures: numbers of nodes: time, operations, errors.
        color: the colour of the nodes: ``"opcode"``, or the name of a figure, whose numbers are written, too.
        fold: draw only the first of repeated blocks.

    Returns:
        The path.

    Raises:
        DrawingError: the format is unknown, or needs Graphviz, which is missing; ``color`` is not a figure.

    >>> import tempfile, torch, fx
    >>> program = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU()))
    >>> path = draw(program, tempfile.mkdtemp() + "/program.svg", inputs=[torch.ones(2, 3)])
    >>> "Linear" in path.read_text(), "2x5 float32" in path.read_text()
    (True, True)
    """
    expect_shallow(inputs, DrawingError)
    target = Path(path)
    form = target.suffix.lower()
    if form not in _FORMATS:
        raise DrawingError(
            f"cannot draw a file that ends in {form!r}"
            if form
            else f"{target.name!r} does not say which format it has",
            value=str(target),
            remedy=f"let it end in one of {', '.join(_FORMATS)}",
        )
    figures = [_checked(figure) for figure in figures]
    labels = Labels(inputs is not None if shapes is None else shapes, lines, _chosen(figures, color))
    name = (program.graph_module if isinstance(program, PassHistory) else program)._get_name()
    if form == ".html" and isinstance(program, PassHistory):
        content = page_of_passes(program, name, figures, labels.figure).encode()
    elif isinstance(program, PassHistory):
        content = _content(form, name, labels, *_before_and_after(program, fold))
    elif form == ".html":
        picture = Picture.of(DrawnProgram.of(program, inputs), fold=False, largest=LARGEST_CLUSTER)
        content = page_of_program(picture, name, figures, labels.figure).encode()
    else:
        content = _content(form, name, labels, Picture.of(DrawnProgram.of(program, inputs), fold=fold), [])
    target.write_bytes(content)
    return target


def _content(form: str, name: str, labels: Labels, picture: Picture, panes: Sequence[Pane]) -> bytes:
    if form == ".svg":
        return write_svg(picture, labels, panes).encode()
    graph = make_dot(picture, labels, name, panes[-1].state if panes else 0, panes[-1].marks if panes else ())
    return graph.create(format=form[1:] if form[1:] in _BY_GRAPHVIZ else "raw")


def _before_and_after(history: PassHistory, fold: bool) -> tuple[Picture, list[Pane]]:
    """Return the picture of the first and the last state of a program, and a pane with marks for each of the two."""
    last = len(history.states) - 1
    picture, _ = history.picture([0, last] if last else [0], fold=fold)
    marks = [mark[0] if mark else "" for mark in picture.marks]
    captions = [f"before: {len(history.states[0].program.nodes)} nodes"]
    if last:
        captions.append(history.difference().summary())
    return picture, [Pane(state, caption, marks) for state, caption in enumerate(captions)]


def _checked(figure: Figure) -> Figure:
    """Return a figure with its numbers by the names of nodes; refuse other values."""
    values: Mapping[Any, Any] = figure.values
    what = f"the figure {figure.name!r}"
    expect(values, Mapping, f"values of {what} are a dict from nodes to numbers", error=DrawingError)
    for node, value in values.items():
        expect(node, (str, Node), f"{what} is by nodes or their names", error=DrawingError)
        expect(value, (int, float), f"{what} has a number for each node", error=DrawingError)
    return replace(figure, values={str(node): float(value) for node, value in values.items()})


def _chosen(figures: Sequence[Figure], color: str) -> Figure | None:
    """Return the figure for the colours of nodes; None for the opcode."""
    if color == "opcode":
        return None
    named = {figure.name: figure for figure in reversed(figures)}
    if color in named:
        return named[color]
    names = ", ".join(repr(figure.name) for figure in figures)
    raise DrawingError(
        f"there is no figure {color!r} to colour nodes by",
        why=f"figures are {names}" if names else "no figures are given",
        remedy='color="opcode", or give it: figures=[fx.drawing.Figure("time", "s", {"relu": 1e-5})]',
    )

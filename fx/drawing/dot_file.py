"""Pictures in the DOT language, with the clusters, colours and marks of the SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fx.drawing.appearance import FILLS, STROKES, Labels, title_of
from fx.drawing.clusters import Cluster
from fx.drawing.picture import MARKS, Picture
from fx.naming.dot_text import DotGraph, attributes, quoted


def make_dot(picture: Picture, labels: Labels, name: str, state: int = 0, marks: Sequence[str] = ()) -> DotGraph:
    """Write a state of a picture as a graph for Graphviz.

    Args:
        picture: the picture.
        labels: the choice of text in the boxes.
        name: the name of the graph.
        state: the state of the program.
        marks: the edit of a pass, for each node.
    """
    fills = labels.figure.fills() if labels.figure is not None else {}
    lines = [
        "rankdir=TB;",
        'node [shape=box, style="filled,rounded", fontname="monospace", fontsize=10];',
        'graph [fontname="monospace", fontsize=10];',
        *_members(picture.root, picture, labels, fills, state, marks),
    ]
    for read, reader, states in picture.edges:
        if states >> state & 1:
            lines.append(f"n{read} -> n{reader};")
    return DotGraph(name, lines)


def _members(
    cluster: Cluster, picture: Picture, labels: Labels, fills: dict[str, str], state: int, marks: Sequence[str]
) -> Iterator[str]:
    for member in cluster.members:
        if isinstance(member, Cluster):
            yield f"subgraph cluster_{member.number} {{"
            yield f"  label={quoted(title_of(member))}; color=gray70;"
            for line in _members(member, picture, labels, fills, state, marks):
                yield f"  {line}"
            yield "}"
            continue
        picture_node = picture.nodes[member]
        if not picture_node.states >> state & 1:
            continue
        node, mark = picture_node.at(state), marks[member] if marks else ""
        text = labels.of(node)
        if mark:
            text[0] = f"{MARKS[mark]} {text[0]}"
        fill = fills.get(node.name, "#ffffff") if labels.figure is not None else FILLS.get(node.op, "#ffffff")
        look = {"label": quoted("\n".join(text)), "fillcolor": quoted(fill)}
        if mark:
            look.update(color=quoted(STROKES[mark]), penwidth="2")
        if node.op == "get_attr":
            look["style"] = quoted("filled,dashed")
        elif node.op == "call_module":
            look["peripheries"] = "2"
        yield f"n{member}{attributes(look)};"

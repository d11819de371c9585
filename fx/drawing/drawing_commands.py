"""The commands of ``python -m fx`` that show a program and the edits of passes: ``trace``, ``draw`` and ``diff``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from fx.analysis.cost import estimate_cost
from fx.drawing import Figure, draw
from fx.drawing.drawn_program import DrawnNode, DrawnProgram
from fx.drawing.pass_history import record_passes
from fx.errors import DrawingError
from fx.graph_module import GraphModule
from fx.naming.tables import ending, table_lines
from fx.pipelines.registered_passes import list_passes
from fx.serialization import save

_COSTS = {"operations": ("flops", "FLOP"), "bytes": ("moved", "B")}
"""Figures that the command computes itself: the attribute of a node's work, and the unit."""
_UNITS = {"seconds": "s", "estimated": "s", "flops": "FLOP", "most_flops": "FLOP", "read": "B", "written": "B"}
"""Units of the numbers that other commands report for nodes."""


def add_drawing_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands; ``add`` creates a command with the common arguments."""
    trace = add(commands, "trace", _trace, "the nodes of a program, with the user's lines", "resnet50")
    trace.add_argument("--save", metavar="FILE", help="write the program to a data-only file, too (fx.save)")
    picture = add(
        commands, "draw", _draw, "a program as a picture", "resnet50 --pass fuse-conv-bn --output resnet50.html"
    )
    picture.add_argument(
        "--output", metavar="FILE", help="the file: .html to click in, .svg, .dot, or by Graphviz .png (default .html)"
    )
    picture.add_argument("--color", default="opcode", help="opcode, operations, bytes, or a name in --figures")
    picture.add_argument(
        "--figures", metavar="FILE", help="JSON of numbers of nodes, as cost and profile print it with --json"
    )
    picture.add_argument("--lines", action="store_true", help="the user's lines in the boxes")
    picture.add_argument("--no-fold", action="store_true", help="draw all of the blocks that repeat")
    difference = add(commands, "diff", _diff, "what passes do with each node", "resnet50 --pass fuse-conv-bn")
    difference.add_argument("--output", metavar="FILE", help="draw it into this file, too")
    for command, is_needed in ((picture, False), (difference, True)):
        command.add_argument(
            "--pass", dest="passes", action="append", required=is_needed, metavar="NAME",
            help=f"passes to run, joined by commas: {', '.join(list_passes())}",
        )  # fmt: skip


def _trace(program: GraphModule, inputs: Sequence[Any] | None, options: argparse.Namespace) -> str:
    drawn = DrawnProgram.of(program, inputs)
    if options.save:
        save(program, options.save)
    if options.json:
        return json.dumps({"nodes": [asdict(node) for node in drawn.nodes]})
    has_shapes = any(node.shape for node in drawn.nodes)
    header = ["node", "operation", *(["shape"] if has_shapes else []), "line"]
    shapes = {node.name: [ending(node.shape, 18)] if has_shapes else [] for node in drawn.nodes}
    rows = [
        [node.name, ending(_operation(node), 26), *shapes[node.name], ending(node.place, 20)] for node in drawn.nodes
    ]
    return "\n".join([*table_lines(header, rows), "", f"{len(drawn.nodes)} nodes"])


def _operation(node: DrawnNode) -> str:
    return node.op if node.op in ("placeholder", "output", "get_attr") else node.title


def _draw(program: GraphModule, inputs: Sequence[Any] | None, options: argparse.Namespace) -> str:
    figures = [*_costs(program, inputs, options.color), *_read_figures(options.figures)]
    drawn = record_passes(program, ",".join(options.passes), inputs) if options.passes else program
    output = options.output or f"{program._get_name()}.html"
    path = draw(
        drawn, output, inputs=inputs if drawn is program else None, shapes=inputs is not None, lines=options.lines,
        figures=figures, color=options.color, fold=not options.no_fold,
    )  # fmt: skip
    nodes = len(program.graph.nodes)
    if options.json:
        return json.dumps({"path": str(path), "bytes": path.stat().st_size, "nodes": nodes})
    return f"{path}: {nodes} nodes"


def _costs(program: GraphModule, inputs: Sequence[Any] | None, color: str) -> list[Figure]:
    """Return figures with the cost of each node, if there are inputs to run the program on fake tensors."""
    if inputs is None:
        if color in _COSTS:
            raise DrawingError(
                f"nodes cannot be coloured by {color}: there are no inputs to follow the program with",
                remedy="give --input 1x3x224x224, or a factory that returns a pair of a module and its inputs",
            )
        return []
    nodes = estimate_cost(program, *inputs).nodes
    return [
        Figure(name, unit, {cost.node.name: float(getattr(cost.total, of_work)) for cost in nodes})
        for name, (of_work, unit) in _COSTS.items()
    ]


def _read_figures(path: str | None) -> list[Figure]:
    """Return the figures in a JSON file: named figures, or numbers that another command reports (``--json``)."""
    if path is None:
        return []
    form = '{"time": {"unit": "s", "values": {"conv1": 2e-4}}}, or what cost or profile print with --json'
    try:
        read = cast("dict[str, Any]", json.loads(Path(path).read_text(encoding="utf-8")))
        if isinstance(read.get("nodes"), list):
            return _figures_of_nodes(read["nodes"])
        return [Figure(name, str(figure.get("unit", "")), dict(figure["values"])) for name, figure in read.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise DrawingError(f"cannot read the figures in {path}", why=why, remedy=f"write {form}") from error


def _figures_of_nodes(nodes: Sequence[dict[str, Any]]) -> list[Figure]:
    """Return a figure for each number that nodes have."""
    values: dict[str, dict[str, float]] = {}
    for node in nodes:
        for name, value in node.items():
            if isinstance(value, (int, float)):
                values.setdefault(name, {})[str(node["node"])] = float(value)
    return [Figure(name, _UNITS.get(name, ""), numbers) for name, numbers in values.items()]


def _diff(program: GraphModule, inputs: Sequence[Any] | None, options: argparse.Namespace) -> str:
    history = record_passes(program, ",".join(options.passes), inputs)
    if options.output:
        draw(history, options.output, shapes=inputs is not None)
    if options.json:
        names = "name edits seconds removed added changed moved one_to_many many_to_one".split()
        return json.dumps([{name: getattr(difference, name) for name in names} for difference in history.differences])
    idle = [report.name for report in history.reports if not report.changed]
    lines = [str(difference) for difference in history.differences]
    return "\n\n".join([*lines, *([f"changed nothing: {', '.join(idle)}"] if idle else [])])

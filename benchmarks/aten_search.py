"""Programs that the search judges in a second of a processor, for right passes on ATen operators in several forms.

Each pass is searched with a number of drawn programs in both modes, and with five times as many variations of those
that it changes. The figure includes the exports of programs by ``torch.export``, and the start of the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from pytest_fx import check_pass

from .paired import parse

aten: Any = torch.ops.aten


def copy_for_double_negations(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Copy a value that is negated twice."""
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.neg.default):
        if getattr(node.args[0], "target", None) is aten.neg.default:
            node.target, node.args = aten.clone.default, (node.args[0].args[0],)
    return graph_module


def copy_for_repeated_relus(graph: fx.Graph) -> None:
    """Copy the result of a ``relu`` in place of another ``relu`` of it."""
    for node in graph.find_nodes(op="call_function", target=aten.relu.default):
        if getattr(node.args[0], "target", None) is aten.relu.default:
            node.target = aten.clone.default


def exchange_operands(exported: ExportedProgram) -> ExportedProgram:
    """Exchange the operands of additions of two tensors of one dtype and shape."""
    for node in exported.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if not node.kwargs and all(isinstance(operand, fx.Node) for operand in node.args):
            first, second = (operand.meta["val"] for operand in node.args)
            if first.dtype == second.dtype and first.shape == second.shape and first.stride() == second.stride():
                node.args = tuple(reversed(node.args))
    return exported


PASSES: tuple[Callable[..., Any], ...] = (copy_for_double_negations, copy_for_repeated_relus, exchange_operands)
"""Right passes, each in another form."""
for _pass in PASSES:
    _pass.levels = ("decomposed",)  # pyright: ignore[reportFunctionMemberAccess]


def main() -> None:
    """Print a row for each pass."""
    options = parse(__doc__, rounds=1, programs={"type": int, "default": 60, "help": "drawn programs (60)"})
    most = 10 if options.quick else options.programs
    print("| pass | programs | changed | CPU s | programs in a CPU second |\n|---|--:|--:|--:|--:|", flush=True)
    for pass_ in PASSES:
        started = time.process_time()
        report = check_pass(pass_, max_examples=most, min_changed=0, seed=0)
        seconds = time.process_time() - started
        programs = report.programs + report.varied
        name = pass_.__name__
        changed = report.acted
        print(f"| `{name}` | {programs} | {changed} | {seconds:.1f} | {programs / seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()

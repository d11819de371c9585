"""Random programs: where torch.fx captures one, it and fx have the same nodes and the same results."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from hypothesis import given, settings

import fx
from fx.assertions import check_given, check_value
from pytest_fx import Program, programs
from pytest_fx.harness.structure import leaves


def nodes(graph: Any) -> list[tuple[str, str, str]]:
    return [(node.op, node.name, str(node.target) if node.op != "call_function" else "") for node in graph.nodes]


def run(module: Any, program: Program) -> list[Any]:
    """Return the answer of a module, or the error that it raises."""
    inputs = program.inputs.copies()
    torch.default_generator.manual_seed(0)
    try:
        return [leaf for _, leaf in leaves(module(*inputs.args, **inputs.kwargs))]
    except (RuntimeError, AssertionError) as error:  # copies of inputs may have another layout; a check may fail
        return [type(error), str(error)]


@settings(deadline=None)  # the first example loads both libraries
@given(programs())
def test_a_random_program_is_captured_as_torch_fx_captures_it(program: Program) -> None:
    if "state" in program.features or None in program.concrete_args.values():
        return  # written buffers are read again here, and checks of inputs have another name
    try:
        expected = torch.fx.symbolic_trace(program.build())
    except (SyntaxError, TypeError, torch.fx.proxy.TraceError):
        return  # refused, among others: writes by subscript, required keywords after optional ones
    captured = fx.symbolic_trace(program.build(), program.concrete_args)  # which name the optional inputs
    targets = {node.target for node in captured.graph.nodes}
    if getattr in targets and not targets.isdisjoint({"squeeze_", "t_", "unsqueeze_"}):
        return  # fx records a getattr before the in-place reshape where it is read; torch.fx, where it is first used
    # torch.fx makes constants of values computed from buffers alone; fx records them, and checks of the training mode
    # and of the optional inputs
    checks = [
        node
        for target in (check_value, check_given)
        for node in captured.graph.find_nodes(op="call_function", target=target)
    ]
    checks += [node for node in captured.graph.nodes if node.op == "get_attr" and node.target.endswith("training")]
    if not checks and not any(str(node.target).startswith("_tensor_constant") for node in expected.graph.nodes):
        ours, theirs = nodes(captured.graph), nodes(expected.graph)
        if any(True for _ in captured.buffers()):  # recorded and unused values have taken names
            ours, theirs = ([(op, target) for op, _, target in calls] for calls in (ours, theirs))
        assert ours == theirs
    for mine, other in zip(run(captured, program), run(expected, program), strict=True):
        assert str(mine) == str(other)

"""The interface of programs: the inputs and their order, the structure of the result, and shared memory."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import BOTH, Witness, merge, numbers, of, wrong


class Pair(NamedTuple):
    """A result with names."""

    first: Any
    second: Any


def two(m: Any, x: Any, y: Any) -> Any:
    return x + 1, y * 2


def swapped(m: Any, x: Any, y: Any) -> Any:
    first = x + 1
    return y * 2, first


def two_inputs(forward: Any = two) -> Witness:
    return of(forward, (2, 3), numbers(2, 3) + 1)


def _with_result(gm: fx.GraphModule, change: Any) -> fx.GraphModule:
    output = gm.graph.output_node()
    output.args = (change(output.args[0]),)
    gm.recompile()
    return gm


# The result.


@wrong("structure", "structure", "contract", on=two_inputs(), contract=exact, modes=BOTH)
def result_as_list(gm: fx.GraphModule) -> fx.GraphModule:
    """A tuple of results becomes a list."""
    return _with_result(gm, lambda value: list(value) if type(value) is tuple else value)


@wrong("structure", "structure", "contract", on=two_inputs(lambda m, x, y: {"b": x, "a": y}), contract=exact)
def keys_in_order(gm: fx.GraphModule) -> fx.GraphModule:
    """The keys of a result are sorted."""
    return _with_result(gm, lambda value: dict(sorted(value.items())) if isinstance(value, dict) else value)


@wrong("structure", "structure", "contract", on=two_inputs(lambda m, x, y: {"b": x + 1, "a": y}))
def result_without_keys(gm: fx.GraphModule) -> fx.GraphModule:
    """A dict of results becomes a tuple."""
    return _with_result(gm, lambda value: tuple(value.values()) if isinstance(value, dict) else value)


@wrong("structure", "structure", "contract", on=two_inputs(lambda m, x, y: Pair(x + 1, y * 2)), contract=exact)
def rebuild_result(gm: fx.GraphModule) -> fx.GraphModule:
    """Containers are rebuilt as plain ones, so that a result with names loses them."""
    constructors = {node for node in gm.graph.nodes if node.op == "call_function" and hasattr(node.target, "_fields")}

    def rebuilt(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return rebuilt(tuple(value.args)) if value in constructors and not value.kwargs else value
        if isinstance(value, (tuple, list)):
            return tuple(rebuilt(element) for element in value)
        return value

    return _with_result(gm, rebuilt)


@wrong("output swapped", "contract", "structure", on=two_inputs(swapped), contract=exact, modes=BOTH)
@adapt
def results_as_computed(gm: torch.fx.GraphModule) -> None:
    """Results are returned in the order in which they are computed, whatever the order of the program."""
    position = {node: number for number, node in enumerate(gm.graph.nodes)}
    for node in gm.graph.nodes:
        if node.op == "output" and isinstance(node.args[0], tuple) and all(n in position for n in node.args[0]):
            node.args = (tuple(sorted(node.args[0], key=position.__getitem__)),)
    gm.recompile()


@wrong("structure", "structure", "contract", on=two_inputs(lambda m, x, y: (y := x + y, y)))
def results_once(gm: fx.GraphModule) -> fx.GraphModule:
    """A value that is returned twice is returned once, and a single one without its tuple."""

    def once(value: Any) -> Any:
        if not isinstance(value, (tuple, list)) or not all(isinstance(element, fx.Node) for element in value):
            return value
        unique = tuple(dict.fromkeys(value))
        return unique if len(unique) > 1 else unique[0]

    return _with_result(gm, once)


@wrong("structure", "structure", on=of(lambda m, x: torch.relu(x), (2, 3)), contract=exact)
def result_in_a_tuple(gm: fx.GraphModule) -> fx.GraphModule:
    """A single result is wrapped in a tuple, as exported programs have it."""
    return _with_result(gm, lambda value: (value,) if isinstance(value, fx.Node) else value)


# The inputs.


def _one_unused(m: Any, x: Any, y: Any, scale: Any = 2.0) -> Any:
    return y * scale


def _rebuilt(gm: fx.GraphModule, inputs: Any) -> fx.GraphModule:
    """The program again with other placeholders, which ``inputs`` makes in a new graph."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = inputs(graph)
    result = graph.graph_copy(gm.graph, copies)
    graph.output(result)
    return fx.GraphModule(gm, graph, "Rebuilt")


@wrong("placeholder order", "signature", "contract", on=two_inputs(lambda m, x, y: y.exp() - x), contract=exact)
def inputs_as_used(gm: fx.GraphModule) -> fx.GraphModule:
    """Inputs are put in the order in which they are used, though callers pass them by position."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    if any(node.args or node.target.startswith("*") for node in placeholders):
        return gm
    return _rebuilt(
        gm,
        lambda graph: {
            node: graph.node_copy(node) for node in sorted(placeholders, key=lambda node: min(node.users, default=node))
        },
    )


@wrong("placeholder default", "signature", on=two_inputs(_one_unused), contract=exact)
def inputs_without_defaults(gm: fx.GraphModule) -> None:
    """An input that may be left out has to be given."""
    for node in gm.graph.find_nodes(op="placeholder"):
        node.args = ()
    gm.recompile()


@wrong("placeholder name", "signature", on=two_inputs(), contract=exact)
def inputs_by_number(gm: fx.GraphModule) -> None:
    """Inputs are renamed, though callers may pass them by keyword."""
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if not node.target.startswith("*"):
            node.target = node.name = f"input_{number}"
    gm.recompile()


@wrong("unused input removed", "signature", on=two_inputs(_one_unused), contract=exact, modes=BOTH)
@adapt
def inputs_that_are_used(gm: torch.fx.GraphModule) -> None:
    """An input that nothing uses is removed, though callers pass it."""
    for node in list(gm.graph.nodes):
        if node.op == "placeholder" and not node.users:
            gm.graph.erase_node(node)
    gm.recompile()


# Memory.


@wrong("aliasing", "aliasing", on=of(lambda m, x: m.drop(x).clone(), (2, 3), drop=torch.nn.Identity()))
def return_without_copy(gm: fx.GraphModule) -> None:
    """The caller gets the very tensor that was passed in, and may write to one of them."""
    result = gm.graph.output_node().args[0]
    for node in result if isinstance(result, (tuple, list)) else [result]:
        if isinstance(node, fx.Node) and node.target in ("clone", torch.clone, "contiguous"):
            node.replace_all_uses_with(node.args[0])
    gm.graph.eliminate_dead_code()
    gm.recompile()


@wrong("aliasing", "aliasing", on=of(lambda m, x: x.transpose(0, 1), (2, 3)), contract=exact, modes=BOTH)
def results_are_contiguous(gm: fx.GraphModule) -> fx.GraphModule:
    """A result that is a view of an input becomes a copy of it."""

    def packed(value: Any) -> Any:
        if not isinstance(value, fx.Node) or value.target not in VIEWS:
            return value
        with gm.graph.inserting_after(value):
            return gm.graph.call_method("clone", (value,))

    return _with_result(gm, lambda value: fx.map_arg(value, packed))


VIEWS = ("transpose", "permute", "view", "t", "unsqueeze", torch.transpose, torch.permute, torch.unsqueeze, torch.t)


@wrong("aliasing", "aliasing", on=of(lambda m, x: (torch.relu(x), torch.relu(x)), (2, 3)), contract=exact)
def one_tensor_for_equal_results(gm: fx.GraphModule) -> None:
    """Two results become one tensor, so that a caller who writes to one changes the other."""
    nodes = [node for node in gm.graph.nodes if node.target in (torch.relu, torch.sigmoid, torch.tanh, operator.add)]
    merge(gm, nodes, lambda node: (node.target, node.args))

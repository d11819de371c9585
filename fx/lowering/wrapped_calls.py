"""Calls of the user's functions that a capture left whole, such as those marked ``fx.wrap``, as the operations in them.

A function that is the identity in evaluation mode would otherwise cut the region around it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import operator
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from fx.assertions import GUARDS
from fx.canonical import canonical_form
from fx.capture.restore.record import Record
from fx.capture.tracer import Tracer
from fx.errors import FxError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Node, map_arg
from fx.operators.effects import effect_of
from fx.passes.shape_prop import ShapeProp
from fx.passes.tensor_metadata import TensorMetadata

_DEEPEST = 4
"""The most functions around one another that are replaced."""


def inline_wrapped_calls(program: GraphModule, example_inputs: Sequence[Any], opened: Collection[Any] = ()) -> None:
    """Replace calls of functions by the operations that they consist of, in a canonical program.

    A function stays if its capture fails, if it draws numbers, prints, or changes anything besides its result. What it
    asks about sizes becomes checks, as in any capture with example inputs.

    Args:
        program: the program, which is edited.
        example_inputs: a value for each input.
        opened: more functions to take apart, which are ours.
    """
    captured: dict[Hashable, Graph | None] = {}
    for _ in range(_DEEPEST):
        calls = [node for node in program.graph.nodes if node.target in opened or _is_unknown(node)]
        if not calls:
            return
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with contextlib.suppress(Exception):  # shapes are then known up to the operation that fails
            ShapeProp(program, mode).propagate(*example_inputs)
        if sum(_inline(program, node, mode, captured) for node in calls) == 0:
            return


def _is_unknown(node: Node) -> bool:
    """Return whether a node calls a Python function of which nothing is known."""
    effect = effect_of(node) if node.op == "call_function" and isinstance(node.target, FunctionType) else None
    return effect is not None and effect.kind == "unknown"


def _inline(program: GraphModule, node: Node, mode: FakeTensorMode, captured: dict[Hashable, Graph | None]) -> bool:
    """Replace one call, and return whether that was possible; equal calls share a capture."""
    try:
        signature = inspect.signature(node.target)  # type: ignore[arg-type]
        bound = signature.bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return False
    bound.apply_defaults()
    inputs = {name: value for name, value in bound.arguments.items() if isinstance(value, Node)}
    constants = {name: value for name, value in bound.arguments.items() if name not in inputs}
    examples = {name: _example_of(program, value, mode) for name, value in inputs.items()}
    is_known = all(example is not None for example in examples.values())
    if not is_known or not all(map(_is_plain, tree_leaves(list(constants.values())))):
        return False
    facts = tuple((name, example.shape, example.dtype) for name, example in examples.items() if example is not None)
    key = node.target, facts, repr(constants)
    if key not in captured:
        function = node.target if _is_unknown(node) else inspect.unwrap(node.target)  # type: ignore[arg-type]
        captured[key] = _capture(function, signature, {**examples, **constants}, constants, mode)
    part = captured[key]
    if part is not None:
        _insert(node, part, inputs)
    return part is not None


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device))


def _capture(
    function: Any, signature: inspect.Signature, arguments: dict[str, Any], constants: dict[str, Any], mode: Any
) -> Graph | None:
    """Return the operations of a function for these arguments; ``None`` if its call cannot be replaced by them."""
    if not _changes_nothing(function, signature, arguments, mode):
        return None
    tracer = Tracer()
    try:
        graph = tracer.trace(function, constants, arguments)
        part = canonical_form(GraphModule.of_capture(tracer.root, graph, "function", keeps_state=True)).graph_module
    except FxError:
        return None
    return None if graph.constants or part.graph.find_nodes(op="get_attr") else part.graph


def _example_of(program: GraphModule, node: Node, mode: FakeTensorMode) -> Tensor | None:
    """Return a tensor like the value of a node, without elements; ``None`` if it is not a tensor of known shape."""
    if node.op == "get_attr":
        value = fetch_attribute(program, str(node.target))
        if not isinstance(value, Tensor):
            return None
        facts: Any = value
    else:
        facts = node.meta.get("tensor_meta") if node._meta else None
        if not isinstance(facts, TensorMetadata):
            return None
    with mode:
        return torch.empty(tuple(facts.shape), dtype=facts.dtype, device="cpu")


def _changes_nothing(function: Any, signature: inspect.Signature, arguments: Mapping[str, Any], mode: Any) -> bool:
    """Return whether a call of the function only computes its result."""
    record, printed = Record([], [function]), io.StringIO()
    before = [(value, value._version) for value in arguments.values() if isinstance(value, Tensor)]
    bound = signature.bind_partial()
    bound.arguments.update(arguments)

    def call() -> None:
        with mode, torch.no_grad():
            function(*bound.args, **bound.kwargs)

    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            record.context.run(call)
        is_changed = bool(record.find_changes())
    except Exception:
        return False
    finally:
        record.restore()
        record.clean()
    return not (is_changed or printed.getvalue() or any(value._version != version for value, version in before))


def _insert(call: Node, part: Graph, inputs: Mapping[str, Node]) -> None:
    """Put the operations of a captured function in the place of its call."""
    values: dict[Node, Any] = {}
    specialized: set[Node] = set()
    with call.graph.inserting_before(call):
        for node in part.nodes:
            if node.op == "placeholder":
                if str(node.target) in inputs:
                    values[node] = inputs[str(node.target)]
                else:
                    specialized.add(node)
            elif node.op != "output":
                used = node.all_input_nodes
                if used and specialized.issuperset(used):  # a check of a constant argument
                    specialized.add(node)
                elif not _is_settled(node):
                    copied = values[node] = call.graph.node_copy(node, values.__getitem__)
                    copied.source, copied.origins = node.source or call.source, call.origins or (call.name,)
    flat = map_arg(part.output_node().args[0], values.__getitem__)  # type: ignore[arg-type]
    result = part.process_outputs(flat)
    for user, index in _parts_of(call) if isinstance(result, (tuple, list)) else ():
        user.replace_all_uses_with(result[index])
        call.graph.erase_node(user)
    if call.users:
        call.replace_all_uses_with(tuple(result) if isinstance(result, list) else result)
    call.graph.erase_node(call)


def _is_settled(node: Node) -> bool:
    """Return whether a guard asks only whether an input of the function is given, as it always is."""
    return node.target in GUARDS and all(used.op == "placeholder" for used in node.all_input_nodes)


def _parts_of(call: Node) -> Iterator[tuple[Node, int]]:
    for user in list(call.users):
        if user.target is operator.getitem and user.args[0] is call and type(index := user.args[1]) is int:
            yield user, index

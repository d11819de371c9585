"""Example inputs of a lowering: one value for each input of the program, on which it can be run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree

from fx.arguments import refusal, shown
from fx.capture.restore.record import undone
from fx.errors import LoweringError, PassError, type_in_words
from fx.graph_module import GraphModule
from fx.interpreter import Interpreter
from fx.lowering.support import dtype_name
from fx.naming.printing import describe
from fx.node import Node
from fx.passes.shape_prop import ShapeProp, functions_of

_SAYS_NOTHING_OF_INPUTS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
"""What a run on tensors without elements raises where these, or a formula for shapes, are missing."""


def expect_inputs(graph_module: GraphModule, example_inputs: object) -> tuple[Any, ...]:
    """Return the values, or raise :class:`LoweringError` unless there is one for each input of the program."""
    if not isinstance(example_inputs, (tuple, list)):
        raise refusal(
            "example_inputs are a tuple or list with a value for each input",
            example_inputs,
            error=LoweringError,
            remedy="put a single one into a tuple: (x,)",
        )
    values: tuple[Any, ...] = tuple(example_inputs)
    try:
        ShapeProp(graph_module).check_count(values)
        graph_module.graph.process_inputs(*values)
    except PassError as error:
        first, *lines = str(error).splitlines()
        raise LoweringError("\n".join([first.replace("ShapeProp was", "lower was"), *lines[:1]])) from None
    except Exception as error:
        raise LoweringError(
            "example_inputs do not fit the program: they are not structured like its inputs",
            value=shown(values),
            why=str(error).partition("\n")[0],
        ) from error
    return values


def find_misfit(graph_module: GraphModule, example_inputs: Sequence[Any], failure: Exception) -> LoweringError | None:
    """Return what to raise where a program could not be followed on tensors without elements, because of its inputs.

    That is found out by running a copy of the program, for once: some operations work on tensors with elements only.

    Args:
        graph_module: the program as it was captured.
        example_inputs: what it was followed on.
        failure: what was raised.
    """
    tensors = [one for one in pytree.tree_leaves(list(example_inputs)) if isinstance(one, torch.Tensor)]
    has_elements = not any(isinstance(one, FakeTensor) or one.is_meta for one in tensors)
    if isinstance(failure, _SAYS_NOTHING_OF_INPUTS) or not has_elements:
        return None
    done: list[Node] = []
    copied = copy.deepcopy(graph_module)
    running = Interpreter(copied, listeners=[lambda node, value: done.append(node)])
    devices = sorted({one.device.index for one in tensors if one.is_cuda})
    inputs = pytree.tree_map_only(torch.Tensor, torch.clone, list(example_inputs))
    with torch.no_grad(), torch.random.fork_rng(devices):
        try:
            undone(lambda: running.run(*inputs), copied.modules(), functions_of(copied.graph), LoweringError)
        except Exception as error:
            return _misfit(graph_module, example_inputs, len(done), error)
    return None


def _misfit(graph_module: GraphModule, values: Sequence[Any], number: int, error: Exception) -> LoweringError | None:
    """The error for inputs on which node ``number`` raises; ``None`` where it depends on none of them."""
    nodes = list(graph_module.graph.nodes)
    node = nodes[number]
    before: dict[Node, None] = {node: None}
    for one in reversed(nodes[: number + 1]):
        if one in before:
            before.update(dict.fromkeys(one.all_input_nodes))
    flat = list(graph_module.graph.process_inputs(*values))
    inputs = [one for one in nodes if one.op == "placeholder"]
    given = [
        f"input {position + 1}, `{one.target}`, is {_shown(value) if position < len(flat) else 'left out'}"
        for position, (one, value) in enumerate(zip_longest(inputs, flat))
        if one in before
    ]
    if not given:
        return None
    return LoweringError(
        f"example_inputs do not fit the program: {' and '.join(given)}",
        where=node.source,
        value=describe(node),
        why=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        remedy="give what the program is run on",
    )


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{shown(value)}, {type_in_words(value)}"
    device = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{dtype_name(value.dtype)}{list(value.shape)}{device}"

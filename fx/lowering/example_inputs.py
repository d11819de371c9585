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

_LIMITS_OF_FAKE_TENSORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
"""Exceptions of a run on fake tensors that needs elements or a missing formula for shapes. They do not mean that the
example inputs are wrong."""


def expect_inputs(graph_module: GraphModule, example_inputs: object) -> tuple[Any, ...]:
    """Return the values as a tuple.

    Raises:
        LoweringError: there is not one value for each input of the program.
    """
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
    """Return the error to raise if the example inputs are why a run on fake tensors failed, or ``None``.

    To find out, a copy of the program is run on the inputs themselves: some operations need tensors with elements.

    Args:
        graph_module: the program as it was captured.
        example_inputs: the inputs of the failed run.
        failure: the exception of that run.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(list(example_inputs)) if isinstance(leaf, torch.Tensor)]
    has_elements = not any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors)
    if isinstance(failure, _LIMITS_OF_FAKE_TENSORS) or not has_elements:
        return None
    done: list[Node] = []
    copied = copy.deepcopy(graph_module)
    running = Interpreter(copied, listeners=[lambda node, value: done.append(node)])
    devices = sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})
    inputs = pytree.tree_map_only(torch.Tensor, torch.clone, list(example_inputs))
    with torch.no_grad(), torch.random.fork_rng(devices):
        try:
            undone(lambda: running.run(*inputs), copied.modules(), functions_of(copied.graph), LoweringError)
        except Exception as error:
            return _misfit(graph_module, example_inputs, len(done), error)
    return None


def _misfit(graph_module: GraphModule, values: Sequence[Any], number: int, error: Exception) -> LoweringError | None:
    """Return the error for inputs on which node ``number`` raises; ``None`` if that depends on none of them."""
    nodes = list(graph_module.graph.nodes)
    node = nodes[number]
    needed: dict[Node, None] = {node: None}
    for earlier in reversed(nodes[: number + 1]):
        if earlier in needed:
            needed.update(dict.fromkeys(earlier.all_input_nodes))
    flat = list(graph_module.graph.process_inputs(*values))
    inputs = [candidate for candidate in nodes if candidate.op == "placeholder"]
    descriptions = [
        f"input {position + 1}, `{input_node.target}`, is {_shown(value) if position < len(flat) else 'left out'}"
        for position, (input_node, value) in enumerate(zip_longest(inputs, flat))
        if input_node in needed
    ]
    if not descriptions:
        return None
    return LoweringError(
        f"example_inputs do not fit the program: {' and '.join(descriptions)}",
        where=node.source,
        value=describe(node),
        why=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        remedy="give inputs that the program runs on",
    )


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{shown(value)}, {type_in_words(value)}"
    device = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{dtype_name(value.dtype)}{list(value.shape)}{device}"

"""Runs of a program on data that change neither the program nor the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fx.analysis.dependence import Dependences
from fx.errors import FxError, QuantizationError, note_lines
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.modules.gradients import without_gradients
from fx.modules.kept_tensors import KeptTensor


def run_apart(program: GraphModule, run: Callable[..., Any], args: Sequence[Any], what: str = "the program") -> Any:
    """Return the result of ``run`` for copies of ``args``, without gradients, and leave ``program`` unchanged.

    Its buffers keep their values, as do parameters that its operations write to.

    Raises:
        QuantizationError: the program does not run; the message calls it ``what``.

    >>> import fx, torch
    >>> table = fx.symbolic_trace(torch.nn.Embedding.from_pretrained(torch.tensor([[4.0]]), max_norm=2))
    >>> run_apart(table, table, [torch.tensor([0])])
    tensor([[2.]])
    >>> table.weight
    Parameter containing:
    tensor([[4.]])
    """
    before = [KeptTensor(tensor) for tensor in may_be_written(program)]
    copies = tree_map(_apart, tuple(args))
    try:
        output = without_gradients(lambda: run(*copies))
        return tree_map(_apart, output) if any(tensor.written for tensor in before) else output
    except FxError:
        raise
    except Exception as error:  # operations raise many types for values that they do not take
        notes = note_lines(error)
        raise QuantizationError(
            f"{what} does not run on the data",
            why="\n".join([f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", *notes]),
            remedy="give inputs that it takes; keep in floating point what needs exact values: scheme.skip(…)",
        ) from None
    finally:
        for tensor in before:
            if tensor.written:
                tensor.put_back()


def in_evaluation_mode(program: GraphModule) -> GraphModule:
    """Return ``program``, or if any of it is in training mode a copy in evaluation mode that shares its tensors."""
    if not any(module.training for module in program.modules()):
        return program
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*program.parameters(), *program.buffers())}
    return copy.deepcopy(program, shared).eval()


def may_be_written(program: GraphModule) -> set[Tensor]:
    """Return the buffers of a program, and all other tensors of it to which its operations may write."""
    tensors = set(program.buffers())
    dependences = Dependences(program.graph)
    for node in program.graph.nodes:
        if node.op in ("get_attr", "call_module") and dependences.why_state_varies(node) is not None:
            state = fetch_attribute(program, str(node.target))
            leaves = state.parameters() if isinstance(state, nn.Module) else tree_leaves(state)
            tensors.update(leaf for leaf in leaves if isinstance(leaf, Tensor))
    return tensors


def _apart(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value

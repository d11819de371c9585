"""Running a program on data without leaving traces in it, or in the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fx.analysis.dependence import Dependences
from fx.errors import FxError, QuantizationError, note_lines
from fx.gradients import without_gradients
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.modules.kept_tensors import KeptTensor


def run_apart(program: GraphModule, run: Callable[..., Any], args: Sequence[Any], what: str = "the program") -> Any:
    """Return what ``run`` returns for copies of ``args``, without gradients, and leave no trace in ``program``.

    Its buffers stay what they are, and so do the parameters to which its operations write.

    Raises:
        QuantizationError: ``what``, as which it is known to the user, does not run.

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
        return tree_map(_apart, output) if any(kept.written for kept in before) else output
    except FxError:
        raise
    except Exception as error:  # whatever an operation raises that does not take the values that it gets
        notes = note_lines(error)
        raise QuantizationError(
            f"{what} does not run on the data",
            why="\n".join([f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", *notes]),
            remedy="give inputs that it takes; keep in floating point what needs exact values: scheme.skip(…)",
        ) from None
    finally:
        for kept in before:
            if kept.written:
                kept.put_back()


def in_evaluation_mode(program: GraphModule) -> GraphModule:
    """``program``, or where some of it is in training mode a copy in evaluation mode that shares its tensors."""
    if not any(module.training for module in program.modules()):
        return program
    shared: dict[int, Any] = {id(one): one for one in (*program.parameters(), *program.buffers())}
    return copy.deepcopy(program, shared).eval()


def may_be_written(program: GraphModule) -> set[Tensor]:
    """The buffers of a program, and what else it holds that its operations may write to."""
    found = set(program.buffers())
    dependences = Dependences(program.graph)
    for node in program.graph.nodes:
        if node.op in ("get_attr", "call_module") and dependences.why_state_varies(node) is not None:
            held = fetch_attribute(program, str(node.target))
            leaves = held.parameters() if isinstance(held, nn.Module) else tree_leaves(held)
            found.update(leaf for leaf in leaves if isinstance(leaf, Tensor))
    return found


def _apart(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value

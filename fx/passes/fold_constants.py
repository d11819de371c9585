"""``fold-constants``: replace values that depend on no input by constants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fx.graph_module import GraphModule
from fx.node import Node
from fx.passes.machinery.constants import Constants, own_copy, size_in_bytes
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, ExplainedPass
from fx.provenance import inherit


@register_pass
@dataclass(frozen=True, slots=True)
class FoldConstants(ExplainedPass):
    """Replace operations that depend on no input by their values: operations on buffers, arithmetic on fixed sizes.

    A tensor becomes a buffer ``_folded_0``, a number or size an argument of its users. The buffers are copies outside
    of the ``state_dict``, which stays as it was. So they change neither with weights loaded afterwards nor with a mode
    such as autocast around the program.

    An operation is left alone if it has an effect, draws random numbers, reads memory that the program writes to, or
    follows an operation that sets a mode. It is also left alone if it is itself returned, cannot be computed, or
    depends on parameters that require gradients, hence are trained. ``explain`` gives the reasons.
    """

    freeze: bool = False
    """Also fold operations on parameters that require gradients; gradients no longer reach the parameters this way."""
    max_bytes: int = 1 << 24
    """Largest allowed growth, in bytes, of a result over the tensors that it is computed from."""

    name: ClassVar[str] = "fold-constants"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Fold, in the order of the program, the constant values that non-constant operations use."""
        numbers = (number for number in itertools.count() if not hasattr(graph_module, f"_folded_{number}"))
        for node, value in Constants(graph_module, self.freeze, self.max_bytes).foldable:
            is_tensor = isinstance(value, torch.Tensor)
            path = f"_folded_{next(numbers)}" if is_tensor else ""
            yield Edit(f"{node} becomes {path or repr(value)}", node.source)
            if is_tensor:
                graph_module.register_buffer(path, own_copy(value), persistent=False)
                with graph_module.graph.inserting_before(node):
                    fetched = graph_module.graph.get_attr(path)
                inherit(fetched, (node,))
                node.replace_all_uses_with(fetched, propagate_meta=True)
            else:
                for user in node.replace_all_uses_with(value):
                    inherit(user, (node,))
            _erase_unused(node)

    def decisions(self, graph_module: GraphModule) -> Iterator[tuple[Node, bool, str]]:
        """Yield each operation on constants, whether it is folded, and why."""
        constants = Constants(graph_module, self.freeze, self.max_bytes)
        for node, value in constants.foldable:
            yield node, True, f"becomes {_described(value)}"
        for node, reason in constants.refused.items():
            yield node, False, reason


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"a buffer of {size_in_bytes(value)} bytes, {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _erase_unused(node: Node) -> None:
    """Erase ``node`` if it is unused, and then the operands that this leaves unused."""
    pending = [node]
    while pending:
        candidate = pending.pop()
        if not candidate.users and not candidate._erased:  # an operand of two erased nodes is listed twice
            pending += candidate.all_input_nodes
            candidate.graph.erase_node(candidate)

"""``fold-constants``: compute once and for all what depends on no input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fx.graph_module import GraphModule, expect_program
from fx.node import Node
from fx.passes.constants import Constants, own_copy, size_in_bytes
from fx.passes.contract import Contract, exact
from fx.passes.registered_passes import register_pass
from fx.passes.rewriting import Edit, RewritingPass
from fx.provenance import SourceLocation, inherit


@dataclass(frozen=True, slots=True)
class Folding:
    """What becomes of one operation whose operands depend on no input."""

    node: str
    """Name of its node."""
    folded: bool
    """Whether a constant takes its place."""
    reason: str
    """What it becomes, or why it is left alone."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""


@register_pass
@dataclass(frozen=True, slots=True)
class FoldConstants(RewritingPass):
    """Replace what depends on no input, as operations on buffers and arithmetic with fixed sizes, by its value.

    A tensor becomes a buffer ``_folded_0``, a number or size an argument of its users. The buffers hold copies and are
    not part of the ``state_dict``, which stays as it was: loading other weights afterwards does not change them, nor do
    other modes, such as autocast around the program. Left alone, with a reason that ``explain`` gives, is what has an
    effect, draws random numbers, reads memory that the program writes to, is returned itself, follows an operation that
    sets a mode, cannot be computed, or depends on parameters that require gradients, hence are trained.
    """

    freeze: bool = False
    """Also fold what depends on parameters that require gradients, which are no longer trained through it."""
    max_bytes: int = 1 << 24
    """How much larger than the tensors it is computed from a result may be, in bytes."""

    name: ClassVar[str] = "fold-constants"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Fold in the order of the program, each time what goes into something that is not constant."""
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

    def explain(self, graph_module: GraphModule) -> list[Folding]:
        """Return what this pass would do to each operation on constants, and why. Nothing is changed."""
        expect_program(graph_module, f"{type(self).__name__} explains a GraphModule")
        constants = Constants(graph_module, self.freeze, self.max_bytes)
        folded = [
            Folding(node.name, True, f"becomes {_described(value)}", node.source) for node, value in constants.foldable
        ]
        return folded + [Folding(node.name, False, why, node.source) for node, why in constants.refused.items()]


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"a buffer of {size_in_bytes(value)} bytes, {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _erase_unused(node: Node) -> None:
    """Erase ``node``, and what was computed or fetched for it alone."""
    waiting = [node]
    while waiting:
        unused = waiting.pop()
        if not unused.users and not unused._erased:  # it may wait for two that it was computed for
            waiting += unused.all_input_nodes
            unused.graph.erase_node(unused)

"""Inputs that are parameters of the user's model, turned into attributes of a program while passes run on it.

Dynamo inlines modules and passes their parameters and buffers as inputs, so that one program serves all values. A pass
that computes with values, such as ``fuse-conv-bn``, needs them as attributes.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from fx.analysis.dependence import Dependences
from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.modules.attributes import MISSING, find_attribute, free_path, put_attribute, remove_attribute
from fx.modules.storages import memory_of
from fx.node import Node

_GRAD_MODES: frozenset[Any] = frozenset({torch._C._set_grad_enabled, torch.set_grad_enabled, torch.enable_grad})
"""Functions by which a program can switch gradients on."""


@dataclass(frozen=True, slots=True)
class KnownInput:
    """One input whose value is known."""

    number: int
    """Position among the inputs, from 0."""
    tensor: weakref.ref[torch.Tensor]
    """A weak reference to the value."""
    version: int
    """The tensor's version counter, which counts writes, when the program was specialized."""

    def is_still(self, args: Sequence[Any]) -> bool:
        """Return whether a call passes the same tensor again, unwritten since."""
        value = args[self.number]
        return self.tensor() is value and value._version == self.version


class KnownInputs:
    """The inputs of a Dynamo program that are attributes while passes run on it.

    They are parameters and buffers of modules. The program does not write to them, they share no memory with each
    other, and they need no gradients: a pass may replace them by other tensors, which would receive the gradients.
    """

    def __init__(self, program: GraphModule, values: Mapping[int, torch.Tensor]) -> None:
        """Turn inputs of ``program`` into attributes where that is safe; ``values`` maps input numbers to tensors."""
        self.known: list[KnownInput] = []
        self._inputs: list[tuple[Node, str | None]] = []  # original placeholders, and the attributes' paths if replaced
        nodes = program.graph.find_nodes(op="placeholder")
        chosen = dict(_choose(program, [(nodes[number], value) for number, value in values.items()]))
        first_operation = next(node for node in program.graph.nodes if node.op != "placeholder")
        for number, node in enumerate(nodes):
            path = None
            if (value := chosen.get(node)) is not None:
                path = free_path(program, str(node.target))
                put_attribute(program, path, value.detach())
                self.known.append(KnownInput(number, weakref.ref(value), value._version))
                with program.graph.inserting_before(first_operation):
                    _take_place(program.graph.get_attr(path), [node])
            self._inputs.append((node, path))
        if self.known:
            program.recompile()

    def give_back(self, program: GraphModule) -> None:
        """Turn the attributes of ``program`` back into inputs, in the original order, also those that became unused.

        Raises:
            PassError: the passes changed the other inputs, so that Dynamo's call would not fit.
        """
        graph = program.graph
        expected = [before for before, path in self._inputs if path is None]
        remaining = graph.find_nodes(op="placeholder")
        for before, node in zip_longest(expected, remaining):
            if before is None or node is None or before.target != node.target:
                raise PassError(
                    "a program of Dynamo's was left with other inputs than it had",
                    value=", ".join(str(node.target) for node in remaining),
                    why=f"it is called with {', '.join(str(node.target) for node in expected)}, by position",
                    remedy="keep the inputs, also those that nothing uses any more",
                )
        place = graph._root
        for before, path in self._inputs:
            if path is None:
                place = remaining.pop(0)
                continue
            fetches = graph.find_nodes(op="get_attr", target=path)
            with graph.inserting_after(place):
                place = graph.create_node("placeholder", before.target, type_expr=before.type)
            _take_place(place, fetches)
            place.name = before.name
            if find_attribute(program, path, MISSING) is not MISSING:
                remove_attribute(program, path)
        program.recompile()


def _take_place(node: Node, of: Sequence[Node]) -> None:
    """Replace the nodes ``of`` by ``node``, and erase them."""
    for number, other in enumerate(of):
        other.replace_all_uses_with(node, propagate_meta=number == 0)
        other.graph.erase_node(other)


def state_among(inputs: Sequence[Any]) -> list[int]:
    """Return the positions of the inputs that Dynamo marks as parameters and buffers of modules."""
    return [
        number
        for number, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and getattr(value, "_dynamo_static_input_type", None) is not None
    ]


def _choose(program: GraphModule, state: list[tuple[Node, torch.Tensor]]) -> Iterator[tuple[Node, torch.Tensor]]:
    """Yield the inputs whose values stay constant until somebody outside the program writes to them."""
    if not state:
        return
    dependences = Dependences(program.graph)
    trains = torch.is_grad_enabled() or _sets_grad_mode(program)
    sharing = Counter(memory_of(value) for _, value in state)
    for node, value in state:
        counts_writes = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_inference()
        is_constant = sharing[memory_of(value)] == 1 and not dependences.writers(node)
        if counts_writes and is_constant and not (trains and value.requires_grad):
            yield node, value


def _sets_grad_mode(program: GraphModule) -> bool:
    programs = [module for module in program.modules() if isinstance(module, GraphModule)]
    return any(
        node.op == "call_function" and node.target in _GRAD_MODES for part in programs for node in part.graph.nodes
    )

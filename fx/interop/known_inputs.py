"""Inputs that are parameters of the user's model, as attributes of a program while passes run on it.

Since it inlines modules, Dynamo hands their parameters and buffers to a program as inputs, so that one program serves
whatever they hold. A pass that works with values, as ``fuse-conv-bn`` does, has to know them.
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
"""Functions by which a program itself may ask for gradients."""


@dataclass(frozen=True, slots=True)
class KnownInput:
    """One input whose value is known."""

    number: int
    """Which of the inputs it is, from 0."""
    tensor: weakref.ref[torch.Tensor]
    """The value."""
    version: int
    """How often it had been written to."""

    def is_still(self, args: Sequence[Any]) -> bool:
        """Return whether a call gives the same tensor again, and nobody has written to it meanwhile."""
        given = args[self.number]
        return self.tensor() is given and given._version == self.version


class KnownInputs:
    """The inputs of a program of Dynamo's that are fetched instead while passes run on it.

    They are parameters and buffers of modules to which the program does not write, each in memory of its own, and
    through which no gradients are asked for: these would be those of other tensors.
    """

    def __init__(self, program: GraphModule, values: Mapping[int, torch.Tensor]) -> None:
        """Let ``program`` fetch what it can of its inputs whose ``values`` are given, by their numbers."""
        self.known: list[KnownInput] = []
        self._inputs: list[tuple[Node, str | None]] = []  # as they were, and where their values are fetched
        nodes = program.graph.find_nodes(op="placeholder")
        chosen = dict(_choose(program, [(nodes[number], value) for number, value in values.items()]))
        behind = next(node for node in program.graph.nodes if node.op != "placeholder")
        for number, node in enumerate(nodes):
            path = None
            if (value := chosen.get(node)) is not None:
                path = free_path(program, str(node.target))
                put_attribute(program, path, value.detach())
                self.known.append(KnownInput(number, weakref.ref(value), value._version))
                with program.graph.inserting_before(behind):
                    _take_place(program.graph.get_attr(path), [node])
            self._inputs.append((node, path))
        if self.known:
            program.recompile()

    def give_back(self, program: GraphModule) -> None:
        """Let ``program`` take all inputs again, in their order, and use those of them that it still fetches.

        Raises:
            PassError: it has other inputs than it had, which Dynamo would not give it.
        """
        graph = program.graph
        stayed = [before for before, path in self._inputs if path is None]
        left = graph.find_nodes(op="placeholder")
        for before, node in zip_longest(stayed, left):
            if before is None or node is None or before.target != node.target:
                raise PassError(
                    "a program of Dynamo's was left with other inputs than it had",
                    value=", ".join(str(one.target) for one in left),
                    why=f"it is called with {', '.join(str(one.target) for one in stayed)}, by position",
                    remedy="keep the inputs, also those that nothing uses any more",
                )
        place = graph._root
        for before, path in self._inputs:
            if path is None:
                place = left.pop(0)
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
    """Put ``node`` in the place of others, which are erased."""
    for number, other in enumerate(of):
        other.replace_all_uses_with(node, propagate_meta=number == 0)
        other.graph.erase_node(other)


def state_among(inputs: Sequence[Any]) -> list[int]:
    """The numbers of those inputs that are parameters and buffers of modules, which is what Dynamo marks so."""
    return [
        number
        for number, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and getattr(value, "_dynamo_static_input_type", None) is not None
    ]


def _choose(program: GraphModule, state: list[tuple[Node, torch.Tensor]]) -> Iterator[tuple[Node, torch.Tensor]]:
    """The inputs whose values may be relied on for as long as nobody writes to them."""
    if not state:
        return
    dependences = Dependences(program.graph)
    trains = torch.is_grad_enabled() or _sets_grad_mode(program)
    held = Counter(memory_of(value) for _, value in state)
    for node, value in state:
        counts_writes = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_inference()
        is_alone = held[memory_of(value)] == 1 and not dependences.writers(node)
        if counts_writes and is_alone and not (trains and value.requires_grad):
            yield node, value


def _sets_grad_mode(program: GraphModule) -> bool:
    programs = [module for module in program.modules() if isinstance(module, GraphModule)]
    return any(
        node.op == "call_function" and node.target in _GRAD_MODES for one in programs for node in one.graph.nodes
    )

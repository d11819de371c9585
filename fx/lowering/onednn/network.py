"""A region while it is rewritten for oneDNN: layers take up what follows them, and layouts are restored at the end."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import Tensor

from fx.errors import LoweringError
from fx.graph import Graph
from fx.graph_module import GraphModule, expect_program
from fx.lowering.onednn.modules import Activation, FusedConvolution, FusedLayer, FusedLinear
from fx.node import Node, map_aggregate
from fx.operators.families import find_operator


class FusedRegion:
    """The program that takes the place of a region, under construction: the network of oneDNN's converters.

    Convolutions return their result channels last, and the operations between them keep it so; what the region returns
    is brought back into the layout that callers of the program know.
    """

    def __init__(self, region: GraphModule) -> None:
        """A network for ``region``, which is only read."""
        expect_program(region, "OneDNN.build takes a GraphModule", error=LoweringError)
        self._paths = {
            id(operator.attrgetter(path)(region)): path
            for path in (str(node.target) for node in region.graph.find_nodes(op="get_attr"))
        }
        self._root: dict[str, Any] = {}
        self._beside_constants: set[str] = set()  # paths of what holds constants, where no layer can be
        self._graph = Graph()
        self._current: Node | None = None
        self._stands_for: dict[Node, Node] = {}  # the operation of the region whose result a node is by now
        self._layers: dict[Node, FusedLayer] = {}
        self._sizes: dict[Node, torch.Size] = {}  # of the inputs of layers, where known
        self._channels_last: set[Node] = set()

    # What every network has.

    def begin(self, node: Node) -> None:
        """Note which operation is built next; called before each operation."""
        self._current = node

    def add_input(self, node: Node) -> Node:
        """An input of the region."""
        self._current = node
        return self._note(self._graph.placeholder(str(node.target), node.type))

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        """Let the region return ``outputs``, each in its layout."""
        returned = tuple(self._in_callers_layout(node) for node in outputs)
        self._graph.output(returned[0] if is_single else returned)

    def graph_module(self) -> GraphModule:
        """The program, after ``finish``; weights of layers whose input has a known size are packed."""
        for node, size in self._sizes.items():
            self._root[str(node.target)].prepare(size)
        return GraphModule(self._root, self._graph, "GraphModule")

    # What converters add.

    def convolve(self, input: Node, weight: Tensor, bias: Tensor | None, *settings: Any) -> Node:
        """Add a convolution; ``settings`` are stride, padding, dilation and groups."""
        node = self._add_layer(FusedConvolution(weight, bias, *settings), weight, input)
        self._channels_last.add(node)
        return node

    def multiply(self, input: Node, weight: Tensor, bias: Tensor | None) -> Node:
        """Add a linear layer."""
        return self._add_layer(FusedLinear(weight, bias), weight, input)

    def activate(self, input: Node, activation: Activation) -> Node | None:
        """Let the layer before it do the work of an activation, if nothing else needs its result; else ``None``."""
        layer = self._layers.get(input)
        if layer is None or layer.activation.name != "none" or not self._is_for_this_alone(input):
            return None
        if len(input.args) == 2 and activation.name != "relu":
            return None  # the kernel for sums knows no other
        layer.append(activation)
        return self._continue(input)

    def add(self, left: Any, right: Any) -> Node | None:
        """Let a convolution do the work of an addition, if nothing else needs its result; else ``None``.

        That is no faster (ResNet-50 takes 0.97 to 1.02 of the time that it takes otherwise), but one value less is in
        memory.
        """
        if not (isinstance(left, Node) and isinstance(right, Node)) or left is right:
            return None
        for node, summand in ((left, right), (right, left)):
            layer = self._layers.get(node)
            is_free = isinstance(layer, FusedConvolution) and layer.activation.name == "none" and len(node.args) == 1
            if is_free and self._is_for_this_alone(node):
                return self._move(node, summand)
        return None

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a call of a function as it is."""
        args, kwargs = map_aggregate(args, self._fetched), map_aggregate(kwargs, self._fetched)
        node = self._note(self._graph.call_function(target, args, kwargs))
        row = find_operator(target)
        is_contiguous = row is not None and row.is_contiguous  # as it would without oneDNN
        if not is_contiguous and not self._channels_last.isdisjoint(node.all_input_nodes):
            self._channels_last.add(node)
        return node

    # How.

    def _add_layer(self, layer: FusedLayer, weight: Tensor, input: Node) -> Node:
        current = self._current
        assert current is not None
        path = self._first_free([self._paths[id(weight)].rpartition(".")[0], current.name])  # where its weight was
        self._root[path] = layer
        node = self._note(self._graph.call_module(path, (input,)))
        self._layers[node] = layer
        recorded: Any = self._stands_for[input].meta.get("tensor_meta")
        if recorded is not None:
            self._sizes[node] = recorded.shape
        return node

    def _first_free(self, wishes: list[str]) -> str:
        """The first of ``wishes`` where nothing is, or else the last of them with a number."""
        numbered = (f"{wishes[-1]}_{number}" for number in itertools.count(1))
        taken = (self._root, self._beside_constants, ("",))
        return next(path for path in itertools.chain(wishes, numbered) if not any(path in one for one in taken))

    def _move(self, node: Node, summand: Node) -> Node:
        """Put the call of a convolution at the end, where ``summand`` is known."""
        last = next(reversed(self._graph.nodes))
        if last is not node:
            last.append(node)
        node.args = (node.args[0], summand)
        return self._continue(node)

    def _note(self, node: Node) -> Node:
        current = self._current
        assert current is not None
        node.source, node.origins = current.source, current.origins or (current.name,)
        self._stands_for[node] = current
        return node

    def _continue(self, node: Node) -> Node:
        """Let ``node`` do the work of the current operation too."""
        current = self._current
        assert current is not None
        node.origins = tuple(dict.fromkeys((*node.origins, *(current.origins or (current.name,)))))
        self._stands_for[node] = current
        return node

    def _is_for_this_alone(self, node: Node) -> bool:
        return len(self._stands_for[node].users) == 1

    def _fetched(self, value: Any) -> Any:
        """A constant as a node that fetches it."""
        if not isinstance(value, Tensor):
            return value
        path = self._paths[id(value)]
        if path.rpartition(".")[0] in self._root:  # where a layer is by now, which has tensors of its own
            path = self._first_free([path.replace(".", "_")])
        self._root[path] = value
        self._beside_constants.add(path.rpartition(".")[0])
        return self._note(self._graph.get_attr(path))

    def _in_callers_layout(self, node: Node) -> Node:
        recorded: Any = self._stands_for[node].meta.get("tensor_meta")
        if node not in self._channels_last or getattr(recorded, "memory_format", None) is torch.channels_last:
            return node
        contiguous = self._graph.call_method("contiguous", (node,))
        contiguous.source, contiguous.origins = node.source, node.origins
        return contiguous

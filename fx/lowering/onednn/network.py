"""A region while it is rewritten for oneDNN: operations are fused into layers, and layouts restored at the end."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import Tensor

from fx.argument_types import checked
from fx.errors import LoweringError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.lowering.onednn.modules import Activation, FusedConvolution, FusedLayer, FusedLinear
from fx.node import Node, map_aggregate
from fx.operators.families import find_operator


class FusedRegion:
    """The network of oneDNN's converters: the program that replaces a region, under construction.

    Convolutions return their results channels last, and the operations between them keep this layout. The results of
    the region are converted to the layout that its callers expect.
    """

    @checked(LoweringError)
    def __init__(self, region: GraphModule) -> None:
        """Start a network for ``region``, which is only read."""
        self._paths = {
            id(operator.attrgetter(path)(region)): path
            for path in (str(node.target) for node in region.graph.find_nodes(op="get_attr"))
        }
        self._root: dict[str, Any] = {}
        self._beside_constants: set[str] = set()  # paths of modules that hold constants, where no layer can be
        self._graph = Graph()
        self._current: Node | None = None
        self._computes: dict[Node, Node] = {}  # the operation of the region whose result each node has by now
        self._layers: dict[Node, FusedLayer] = {}
        self._sizes: dict[Node, torch.Size] = {}  # of the inputs of layers, where known
        self._channels_last: set[Node] = set()

    # The methods of every network.

    def begin(self, node: Node) -> None:
        """Record the operation that is built next; called before each one."""
        self._current = node

    def add_input(self, node: Node) -> Node:
        """Add an input of the region."""
        self._current = node
        return self._note(self._graph.placeholder(str(node.target), node.type))

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        """Return ``outputs`` from the region, each in the layout that callers expect."""
        returned = tuple(self._in_callers_layout(node) for node in outputs)
        self._graph.output(returned[0] if is_single else returned)

    def graph_module(self) -> GraphModule:
        """Return the program, after ``finish``, with packed weights in the layers whose input size is known."""
        for node, size in self._sizes.items():
            self._root[str(node.target)].prepare(size)
        return GraphModule(self._root, self._graph, "GraphModule")

    # Methods for converters.

    def convolve(
        self, input: Node, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Node:
        """Add a convolution over two dimensions."""
        node = self._add_layer(FusedConvolution(weight, bias, stride, padding, dilation, groups), weight, input)
        self._channels_last.add(node)
        return node

    def multiply(self, input: Node, weight: Tensor, bias: Tensor | None) -> Node:
        """Add a linear layer."""
        return self._add_layer(FusedLinear(weight, bias), weight, input)

    def activate(self, input: Node, activation: Activation) -> Node | None:
        """Fuse an activation into the layer before it; return ``None`` if there is none, or others need its result."""
        layer = self._layers.get(input)
        if layer is None or layer.activation.name != "none" or not self._is_for_this_alone(input):
            return None
        if len(input.args) == 2 and activation.name != "relu":
            return None  # the kernel for sums has no other activation
        layer.append(activation)
        return self._continue(input)

    def add(self, left: Any, right: Any) -> Node:
        """Add a sum, fused into a convolution if nothing else needs that convolution's result.

        With one thread, fusion saves only the memory of one value: without it ResNet-50 takes 0.97 to 1.04 times as
        long. With two threads on a loaded machine, its stages take 1.4 to 1.5 times as long without it, because threads
        wait for each other at the end of each kernel.
        """
        both = isinstance(left, Node) and isinstance(right, Node) and left is not right
        for node, summand in ((left, right), (right, left)) if both else ():
            layer = self._layers.get(node)
            is_free = isinstance(layer, FusedConvolution) and layer.activation.name == "none" and len(node.args) == 1
            if is_free and self._is_for_this_alone(node):
                return self._move(node, summand)
        return self.call(operator.add, left, right)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a call of a function, which PyTorch computes."""
        args, kwargs = map_aggregate(args, self._fetched), map_aggregate(kwargs, self._fetched)
        node = self._note(self._graph.call_function(target, args, kwargs))
        row = find_operator(target)
        is_contiguous = row is not None and row.is_contiguous  # a contiguous result, as without oneDNN
        if not is_contiguous and not self._channels_last.isdisjoint(node.all_input_nodes):
            self._channels_last.add(node)
        return node

    # Private methods.

    def _add_layer(self, layer: FusedLayer, weight: Tensor, input: Node) -> Node:
        current = self._current
        assert current is not None
        path = self._first_free([self._paths[id(weight)].rpartition(".")[0], current.name])  # where its weight was
        self._root[path] = layer
        node = self._note(self._graph.call_module(path, (input,)))
        self._layers[node] = layer
        recorded: Any = self._computes[input].meta.get("tensor_meta")
        if recorded is not None:
            self._sizes[node] = recorded.shape
        return node

    def _first_free(self, wishes: list[str]) -> str:
        """Return the first free path of ``wishes``, or else the last of them with a number."""
        numbered = (f"{wishes[-1]}_{number}" for number in itertools.count(1))
        used = (self._root, self._beside_constants, ("",))
        return next(path for path in itertools.chain(wishes, numbered) if not any(path in paths for paths in used))

    def _move(self, node: Node, summand: Node) -> Node:
        """Move the call of a convolution to the end, after ``summand``, and add that to its result."""
        last = next(reversed(self._graph.nodes))
        if last is not node:
            last.append(node)
        node.args = (node.args[0], summand)
        return self._continue(node)

    def _note(self, node: Node) -> Node:
        current = self._current
        assert current is not None
        node.source, node.origins = current.source, current.origins or (current.name,)
        self._computes[node] = current
        return node

    def _continue(self, node: Node) -> Node:
        """Record that ``node`` now computes the current operation as well."""
        current = self._current
        assert current is not None
        node.origins = tuple(dict.fromkeys((*node.origins, *(current.origins or (current.name,)))))
        self._computes[node] = current
        return node

    def _is_for_this_alone(self, node: Node) -> bool:
        return len(self._computes[node].users) == 1

    def _fetched(self, value: Any) -> Any:
        """Return a node that fetches a constant; return any other value as it is."""
        if not isinstance(value, Tensor):
            return value
        path = self._paths[id(value)]
        if path.rpartition(".")[0] in self._root:  # a layer with tensors of its own is there by now
            path = self._first_free([path.replace(".", "_")])
        self._root[path] = value
        self._beside_constants.add(path.rpartition(".")[0])
        return self._note(self._graph.get_attr(path))

    def _in_callers_layout(self, node: Node) -> Node:
        recorded: Any = self._computes[node].meta.get("tensor_meta")
        if node not in self._channels_last or getattr(recorded, "memory_format", None) is torch.channels_last:
            return node
        contiguous = self._graph.call_method("contiguous", (node,))
        contiguous.source, contiguous.origins = node.source, node.origins
        return contiguous

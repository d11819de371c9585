"""``Writer``: writes a program anew, with values as floating-point numbers and as integers (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import nn

from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Argument, Node
from fx.quantize import arithmetic
from fx.quantize.affine import Affine
from fx.quantize.integer_operations import IntegerOperation, operation_of
from fx.quantize.preparation import REASON, affines_of, is_observer
from fx.quantize.quantization_report import IN_8_BITS
from fx.quantize.scheme import QuantizationScheme
from fx.quantize.weights import UNNAMED, Weights
from fx.quantize.work import WORK, work_of_layer

_IN_PLACE: tuple[Any, ...] = (F.relu, F.elu, F.selu)
"""Activations that are computed in the memory of a layer's float result, which gradients can do without."""


class Writer:
    """Keeps what is written for each value of a prepared program, and converts one into the other where needed.

    A value can be there in three forms, each in a dictionary by its node of the prepared program:

    ==============  ==================================================================================================
    ``_quantized``  integers, with the scale and zero point by which they stand for it: of observers, of operations on
                    integers, and of what the program itself dequantizes
    ``_float``      floating-point numbers: what operations on these return, or what the integers stand for
    ``_unrounded``  by observer, the floating-point numbers before it rounds them: for layers on floating-point
                    numbers, such as those with 8-bit weights alone, which another layer's rounding must not reach
    ==============  ==================================================================================================

    A form is written when it is first asked for, since most values are needed in one alone.
    """

    def __init__(self, prepared: GraphModule, scheme: QuantizationScheme) -> None:
        self._prepared = prepared
        self._scheme = scheme
        self._affines = affines_of(prepared)
        self._graph = Graph()
        self._attributes: dict[str, Any] = {}
        self._float: dict[Node, Argument] = {}
        self._quantized: dict[Node, tuple[Node, Affine]] = {}
        # Results of operations on integers, in the reference form, too. That one has them before rounding, on the
        # integers nobody has: to read them there would make of the reference another program.
        self._computed_quantized: set[Node] = set()
        self._unrounded: dict[Node, Node] = {}
        self._weights = Weights(prepared, scheme)
        self._operations = quantized_operations(prepared, scheme)

    def _copy(self, node: Node, *, unrounded: bool = False) -> None:
        """The operation as it is, on float values; on those before rounding if asked for and there are any."""
        made = self._graph.node_copy(node, self._as_unrounded if unrounded else self._as_float)
        operation = operation_of(node)
        if isinstance(operation, IntegerOperation) and operation.kind == "layer":
            made.meta[WORK] = work_of_layer(node, self._weights.tensors(node)[1])
        self._float[node] = made.args[0] if node.op == "output" else made

    def _as_float(self, node: Node) -> Node:
        if node not in self._float:
            quantized, affine = self._quantized[node]
            self._float[node] = self._call(node, arithmetic.dequantize, input=quantized, **affine.settings)
        made = self._float[node]
        assert isinstance(made, Node)
        return made

    def _as_unrounded(self, node: Node) -> Node:
        """A float value before rounding, where there is one."""
        return self._unrounded.get(node) or self._as_float(node)

    def _quantize(self, node: Node) -> None:
        """In the place of an observer, the integers of what it observes."""
        source = node.all_input_nodes[0]
        affine = self._affines[node]
        if source in self._quantized and self._quantized[source][1] == affine:
            self._quantized[node] = self._quantized[source]
            return
        if source not in self._quantized and source not in self._computed_quantized:
            self._unrounded[node] = self._as_float(source)
        self._quantized[node] = (
            self._call(node, arithmetic.quantize, input=self._as_float(source), **affine.settings), affine
        )  # fmt: skip

    def _call(self, for_: Node, function: Any, **arguments: Any) -> Node:
        return self._noted(self._graph.call_function(function, (), arguments), for_)

    def _noted(self, made: Node, for_: Node) -> Node:
        """``made``, which knows where in the user's program it comes from."""
        made.source, made.origins = for_.source, for_.origins
        if "nn_module_stack" in for_.meta:
            made.meta["nn_module_stack"] = for_.meta["nn_module_stack"]
        return made

    def _attribute(self, node: Node, path: str, value: Any) -> Node:
        self._attributes[path] = value
        return self._noted(self._graph.get_attr(path), node)

    def _stored_as(self, node: Node) -> Affine | None:
        """Return how the result of ``node`` is stored, or None where it is needed as float values."""
        users = list(node.users)
        return self._affines[users[0]] if len(users) == 1 and is_observer(users[0]) else None

    def _put(self, node: Node, made: Node, affine: Affine | None) -> bool:
        if affine is None:
            self._float[node] = made
        else:
            self._quantized[node] = (made, affine)
        return True

    def _stored_weight(self, node: Node) -> tuple[Node, Node]:
        """A weight as integers and scales, fetched."""
        quantized, scale = self._weights.quantized(node)
        path = self._weights.path_of(self._weights.tensors(node)[0], quantized)
        return self._attribute(node, f"{path}.weight", quantized), self._attribute(node, f"{path}.weight_scale", scale)

    def _count(self, made: Node, node: Node) -> None:
        """Note for the report that a layer has its weight in 8 bits, and how much it computes."""
        made.meta |= {WORK: work_of_layer(node, self._weights.tensors(node)[1]), IN_8_BITS: True}

    def _fetch_from_layers(self, named: Mapping[str, nn.Module]) -> None:
        """Let what fetches a weight that one of these layers holds fetch it from there, so that it is stored once."""
        held = {id(tensor): f"{path}.{name}" for path, layer in named.items() for name, tensor in layer.named_buffers()}
        for node in self._graph.find_nodes(op="get_attr"):
            value = self._attributes.get(str(node.target))
            if (path := held.get(id(value))) is not None:
                node.target = path
                self._attributes[path] = value

    def _taken(self) -> dict[str, Any]:
        """Return what the new graph refers to."""
        taken = dict(self._attributes)
        for node in self._graph.nodes:
            if node.op in ("get_attr", "call_module") and str(node.target) not in taken:
                taken[str(node.target)] = fetch_attribute(self._prepared, str(node.target))
        return taken


def write_over_layers(graph: Graph) -> None:
    """Let activations write to the float results of layers that only they use: a large one is not made twice."""
    for node in graph.nodes:
        if any(node.target is function for function in _IN_PLACE) and node.kwargs.get("inplace") is False:
            layer = node.kwargs["input"]
            if isinstance(layer, Node) and layer.target == UNNAMED and len(layer.users) == 1:
                node.kwargs = {**node.kwargs, "inplace": True}


def quantized_operations(prepared: GraphModule, scheme: QuantizationScheme) -> dict[Node, IntegerOperation]:
    """The operations of a prepared program that ``scheme`` wants on integers, and that can work on them."""
    found: dict[Node, IntegerOperation] = {}
    for node in prepared.graph.nodes:
        operation = operation_of(node)
        if (
            isinstance(operation, IntegerOperation)
            and REASON not in node.meta
            and scheme.choice(node).precision != "float"
        ):
            found[node] = operation
    return found

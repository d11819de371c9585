"""``Writer``: a new copy of a program, with values as floating-point numbers and as integers (paper, section 6.2.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Argument, Node
from fx.quantize import arithmetic
from fx.quantize.affine import Affine
from fx.quantize.expansion import with_place_of
from fx.quantize.integer_operations import IntegerOperation, operation_of
from fx.quantize.layers import PackedModule
from fx.quantize.preparation import affines_of, is_observer, quantized_operations
from fx.quantize.quantization_report import IN_8_BITS
from fx.quantize.scheme import QuantizationScheme
from fx.quantize.weights import UNNAMED, Weights
from fx.quantize.work import WORK, work_of_layer


@dataclass(slots=True)
class WrittenValue:
    """The forms in which a value of the prepared program is written so far; each is written when first needed."""

    floats: Argument = None
    """The floating-point numbers: the result of an operation on floats, or the dequantized integers."""
    integers: tuple[Node, Affine] | None = None
    """The integers and their map to floats: results of observers, of operations on integers, or integers that the
    program itself dequantizes."""
    unrounded: Node | None = None
    """The floating-point numbers before an observer rounds them. Layers on floats read these, such as layers with 8-bit
    weights alone: the rounding for another layer must not affect them."""
    is_on_integers: bool = False
    """True if an operation on integers computes it, in the reference form too. The reference form also has the value
    before rounding, the program on integers does not: if the reference read it, the two programs would differ."""


class Writer:
    """The written forms of each value of a prepared program, with conversions between forms where needed."""

    def __init__(self, prepared: GraphModule, scheme: QuantizationScheme) -> None:
        self._prepared = prepared
        self._scheme = scheme
        self._affines = affines_of(prepared)
        self._graph = Graph()
        self._attributes: dict[str, Any] = {}
        self._values: defaultdict[Node, WrittenValue] = defaultdict(WrittenValue)
        self._integers: set[Node] = set()  # all values written as integers, intermediate ones too
        self._weights = Weights(prepared, scheme)
        self._operations = quantized_operations(prepared, scheme)

    def _copy(self, node: Node, *, unrounded: bool = False) -> None:
        """Copy the operation, on float values; if ``unrounded``, on values before rounding where there are any."""
        copied = self._graph.node_copy(node, self._as_unrounded if unrounded else self._as_float)
        operation = operation_of(node)
        if isinstance(operation, IntegerOperation) and operation.kind == "layer":
            copied.meta[WORK] = work_of_layer(node, self._weights.tensors(node)[1])
        self._values[node].floats = copied.args[0] if node.op == "output" else copied

    def _as_float(self, node: Node) -> Node:
        value = self._values[node]
        if value.floats is None:
            assert value.integers is not None
            quantized, affine = value.integers
            value.floats = self._call(node, arithmetic.dequantize, input=quantized, **affine.settings)
        assert isinstance(value.floats, Node)
        return value.floats

    def _as_unrounded(self, node: Node) -> Node:
        """Return a float value before rounding, if there is one."""
        return self._values[node].unrounded or self._as_float(node)

    def _as_integers(self, node: Node) -> tuple[Node, Affine]:
        """Return the integers of a value that must have them."""
        integers = self._values[node].integers
        assert integers is not None
        return integers

    def _quantize(self, node: Node) -> None:
        """Write the integers of an observed value in the place of its observer."""
        source, affine = node.all_input_nodes[0], self._affines[node]
        observed = self._values[source]
        if observed.integers is not None and observed.integers[1] == affine:
            self._values[node].integers = observed.integers
            return
        if observed.integers is None and not observed.is_on_integers:
            self._values[node].unrounded = self._as_float(source)
        self._put(node, self._call(node, arithmetic.quantize, input=self._as_float(source), **affine.settings), affine)

    def _call(self, for_: Node, function: Any, **arguments: Any) -> Node:
        return with_place_of(for_, self._graph.call_function(function, (), arguments))

    def _call_layer(self, node: Node, layer: PackedModule, args: tuple[Any, ...], **kwargs: Any) -> Node:
        call = with_place_of(node, self._graph.create_node("call_module", UNNAMED, args, kwargs, node.name))
        self._weights.calls[layer].append(call)
        return call

    def _attribute(self, node: Node, path: str, value: Any) -> Node:
        self._attributes[path] = value
        return with_place_of(node, self._graph.get_attr(path))

    def _stored_as(self, node: Node) -> Affine | None:
        """Return the map by which the result of ``node`` is stored, or None if it is needed as float values."""
        users = list(node.users)
        return self._affines[users[0]] if len(users) == 1 and is_observer(users[0]) else None

    def _put(self, node: Node, written: Node, affine: Affine | None) -> bool:
        """Set ``written`` as the value of ``node``: integers, or without ``affine`` float values."""
        if affine is None:
            self._values[node].floats = written
        else:
            self._values[node].integers = written, affine
            self._integers.add(written)
        return True

    def _stored_weight(self, node: Node, fetched: Node, tensors: Sequence[Tensor]) -> dict[str, Node]:
        """Fetch a weight as integers and scales, as arguments of the functions that take both."""
        path = self._weights.path_of(fetched, tensors[0])
        names = {"weight": f"{path}.weight", "scale": f"{path}.weight_scale"}
        return {key: self._attribute(node, names[key], tensor) for key, tensor in zip(names, tensors, strict=True)}

    def _stored_layer_weight(self, node: Node) -> dict[str, Node]:
        return self._stored_weight(node, self._weights.tensors(node)[0], self._weights.quantized(node))

    def _count(self, copied: Node, node: Node) -> None:
        """Record for the report that a layer has its weight in 8 bits, and its work."""
        copied.meta |= {WORK: work_of_layer(node, self._weights.tensors(node)[1]), IN_8_BITS: True}

    def _fetch_from_layers(self, named: Mapping[str, nn.Module]) -> None:
        """Fetch weights that one of these layers holds from that layer, so that they are stored once."""
        paths = {
            id(tensor): f"{path}.{name}" for path, layer in named.items() for name, tensor in layer.named_buffers()
        }
        for node in self._graph.find_nodes(op="get_attr"):
            value = self._attributes.get(str(node.target))
            if (path := paths.get(id(value))) is not None:
                node.target = path
                self._attributes[path] = value

    def _referenced(self) -> dict[str, Any]:
        """Return the attributes and modules to which the new graph refers."""
        referenced = dict(self._attributes)
        for node in self._graph.nodes:
            if node.op in ("get_attr", "call_module") and str(node.target) not in referenced:
                referenced[str(node.target)] = fetch_attribute(self._prepared, str(node.target))
        return referenced

"""``Writer``: writes a program anew, with values as floating-point numbers and as integers (paper, section 6.2.1)."""

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
    """The forms in which a value of the prepared program is written so far; each is, when it is first asked for."""

    floats: Argument = None
    """Floating-point numbers: what operations on these return, or what the integers stand for."""
    integers: tuple[Node, Affine] | None = None
    """Integers, and how they stand for it: of observers, of operations on integers, and of what the program itself
    dequantizes."""
    unrounded: Node | None = None
    """Of an observer, the floating-point numbers before it rounds them: for layers on floating-point numbers, such as
    those with 8-bit weights alone, which another layer's rounding must not reach."""
    is_on_integers: bool = False
    """Whether an operation on integers computes it, in the reference form too. That one has it before rounding, on the
    integers nobody has: to read it there would make of the reference another program."""


class Writer:
    """Keeps what is written for each value of a prepared program, and converts one form into another where needed."""

    def __init__(self, prepared: GraphModule, scheme: QuantizationScheme) -> None:
        self._prepared = prepared
        self._scheme = scheme
        self._affines = affines_of(prepared)
        self._graph = Graph()
        self._attributes: dict[str, Any] = {}
        self._values: defaultdict[Node, WrittenValue] = defaultdict(WrittenValue)
        self._integers: set[Node] = set()  # all that is written as integers, also what is only on the way to others
        self._weights = Weights(prepared, scheme)
        self._operations = quantized_operations(prepared, scheme)

    def _copy(self, node: Node, *, unrounded: bool = False) -> None:
        """The operation as it is, on float values; on those before rounding if asked for and there are any."""
        made = self._graph.node_copy(node, self._as_unrounded if unrounded else self._as_float)
        operation = operation_of(node)
        if isinstance(operation, IntegerOperation) and operation.kind == "layer":
            made.meta[WORK] = work_of_layer(node, self._weights.tensors(node)[1])
        self._values[node].floats = made.args[0] if node.op == "output" else made

    def _as_float(self, node: Node) -> Node:
        value = self._values[node]
        if value.floats is None:
            assert value.integers is not None
            quantized, affine = value.integers
            value.floats = self._call(node, arithmetic.dequantize, input=quantized, **affine.settings)
        assert isinstance(value.floats, Node)
        return value.floats

    def _as_unrounded(self, node: Node) -> Node:
        """A float value before rounding, where there is one."""
        return self._values[node].unrounded or self._as_float(node)

    def _as_integers(self, node: Node) -> tuple[Node, Affine]:
        """The integers of a value that is known to have some."""
        integers = self._values[node].integers
        assert integers is not None
        return integers

    def _quantize(self, node: Node) -> None:
        """In the place of an observer, the integers of what it observes."""
        source, affine = node.all_input_nodes[0], self._affines[node]
        given = self._values[source]
        if given.integers is not None and given.integers[1] == affine:
            self._values[node].integers = given.integers
            return
        if given.integers is None and not given.is_on_integers:
            self._values[node].unrounded = self._as_float(source)
        self._put(node, self._call(node, arithmetic.quantize, input=self._as_float(source), **affine.settings), affine)

    def _call(self, for_: Node, function: Any, **arguments: Any) -> Node:
        return with_place_of(for_, self._graph.call_function(function, (), arguments))

    def _call_layer(self, node: Node, layer: PackedModule, args: tuple[Any, ...], **kwargs: Any) -> Node:
        made = with_place_of(node, self._graph.create_node("call_module", UNNAMED, args, kwargs, node.name))
        self._weights.calls[layer].append(made)
        return made

    def _attribute(self, node: Node, path: str, value: Any) -> Node:
        self._attributes[path] = value
        return with_place_of(node, self._graph.get_attr(path))

    def _stored_as(self, node: Node) -> Affine | None:
        """Return how the result of ``node`` is stored, or None where it is needed as float values."""
        users = list(node.users)
        return self._affines[users[0]] if len(users) == 1 and is_observer(users[0]) else None

    def _put(self, node: Node, made: Node, affine: Affine | None) -> bool:
        """Let ``made`` be the value of ``node``: integers, or without ``affine`` float values."""
        if affine is None:
            self._values[node].floats = made
        else:
            self._values[node].integers = made, affine
            self._integers.add(made)
        return True

    def _stored_weight(self, node: Node, fetched: Node, tensors: Sequence[Tensor]) -> dict[str, Node]:
        """Fetch a weight as integers and scales, as arguments of the functions that take both."""
        path = self._weights.path_of(fetched, tensors[0])
        names = {"weight": f"{path}.weight", "scale": f"{path}.weight_scale"}
        return {key: self._attribute(node, names[key], tensor) for key, tensor in zip(names, tensors, strict=True)}

    def _stored_layer_weight(self, node: Node) -> dict[str, Node]:
        return self._stored_weight(node, self._weights.tensors(node)[0], self._weights.quantized(node))

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

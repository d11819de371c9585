"""The operations of the canonical form that can work on 8-bit integers, and their integer operands."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from fx.node import Node
from fx.operators.facts import Operator
from fx.operators.families import find_operator, is_one_of
from fx.passes.functional_form import written_operand
from fx.quantize.recurrence import recurrent

Kind = Literal["layer", "embedding", "recurrence", "function", "binary", "product", "join", "mean", "shape"]

_torch: Any = torch


@dataclass(frozen=True, slots=True, eq=False)
class IntegerOperation:
    """One operation of a program that can be quantized."""

    kind: Kind
    """The kind of operation:

    - ``layer`` has a weight;
    - ``embedding`` and ``recurrence`` have weights, and work on float values;
    - ``function`` of one value is a table;
    - ``binary`` has two operands, and ``product`` two matrices;
    - ``join`` takes values from several operands;
    - ``mean`` averages;
    - ``shape`` only moves or picks values, which keep their scale.
    """
    operands: tuple[Node, ...]
    """The values that it works on."""
    bounds: tuple[float | None, float | None] | None = None
    """The smallest and largest value of a function that only bounds its operand; for ReLU 0 and None."""

    @property
    def has_weight(self) -> bool:
        """True if its weight is in 8 bits."""
        return self.kind in ("layer", "embedding", "recurrence")

    @property
    def takes_integers(self) -> bool:
        """True if it works on values that are integers already."""
        return self.kind not in ("embedding", "recurrence")


def operation_of(node: Node) -> IntegerOperation | str:
    """Return how the call of ``node``, in canonical form, works on integers, or why it does not."""
    if node.op != "call_function":
        return "it is not a function" if node.op.startswith("call") else ""
    if node.target is recurrent:
        return _recurrence(node)
    if _is_result_of_recurrence(node):
        return ""
    row = _row_of(node)
    if written_operand(node) is not None:
        return "it writes to its input, which other operations may use"
    if row is None or row.draws:
        return _NONE
    match row.family:
        case "linear" | "convolution" | "transposed convolution":
            return _layer(node)
        case "embedding":
            return _embedding(node)
        case "product" | "extreme":
            operands = tuple(argument for argument in (*node.args, *node.kwargs.values()) if isinstance(argument, Node))
            kind = "product" if row.family == "product" else "join"
            return (
                IntegerOperation(kind, operands)
                if len(operands) == 2
                else "one of its inputs is not a value of the program"
            )
        case "join":
            return _join(node)
        case "arithmetic":
            return _arithmetic(node, row)
        case "activation" | "function":
            return _function(node, row) if row.suits_lookup_table else _NONE
        case "split":
            return _split(node)
        case _ if row.family == "average pooling" or row.function is _torch.mean:
            return _single(node, "mean")
        case _:
            return _single(node, "shape") if row.is_value_preserving else _NONE


_NONE = "there is no operation on integers for it"


def _row_of(node: Node) -> Operator | None:
    """Return the operator that ``node`` calls, if it calls the operator's canonical function."""
    row = find_operator(node.target)
    return row if row is not None and row.function is node.target else None


def _arithmetic(node: Node, row: Operator) -> IntegerOperation | str:
    operands = tuple(argument for argument in node.args if isinstance(argument, Node))
    if len(operands) == 2 and row.suits_lookup_table and row.function is not operator.truediv:
        return IntegerOperation("binary", operands)
    is_power = row.function is operator.pow and isinstance(node.args[1], int) and node.args[1] > 0
    return _function(node, row) if row.suits_lookup_table or is_power else _NONE


def _embedding(node: Node) -> IntegerOperation | str:
    weight = node.kwargs.get("weight")
    if not isinstance(weight, Node) or weight.op != "get_attr":
        return "its weight is computed while the program runs"
    if node.kwargs.get("max_norm") is not None:
        return "it writes to its weight"
    return IntegerOperation("embedding", ())


def _recurrence(node: Node) -> IntegerOperation | str:
    weights = node.kwargs.get("weights")
    if not isinstance(weights, tuple) or any(
        not isinstance(weight, Node) or weight.op != "get_attr" for weight in weights
    ):
        return "its weights are computed while the program runs"
    return IntegerOperation("recurrence", ())


def _is_result_of_recurrence(node: Node) -> bool:
    """Return whether a node only takes one of the values that a recurrence returns."""
    if node.target is not operator.getitem or not isinstance(source := node.args[0], Node):
        return False
    if source.target is recurrent:
        return True
    is_state = source.target is operator.getitem and source.args[1] == 1 and _is_result_of_recurrence(source)
    return is_state and source.all_input_nodes[0].kwargs.get("mode") == "LSTM"


def _split(node: Node) -> IntegerOperation | str:
    operand = node.kwargs.get("input", node.kwargs.get("tensor"))
    if not isinstance(operand, Node):
        return "its input is not a value of the program"
    if not all(user.target is operator.getitem and isinstance(user.args[1], int) for user in node.users):
        return "its parts are used as a list"
    return IntegerOperation("shape", (operand,))


def groups_of_transposed(node: Node) -> int | None:
    """Return the number of groups of a transposed convolution, or None for another layer."""
    groups = node.kwargs.get("groups")
    return groups if isinstance(groups, int) and is_one_of(node.target, "transposed convolution") else None


def is_part(node: Node) -> bool:
    """Return whether a value is one of the parts of a split value."""
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, Node) and is_one_of(source.target, "split")


def _layer(node: Node) -> IntegerOperation | str:
    source, weight, bias = (node.kwargs.get(name) for name in ("input", "weight", "bias"))
    if node.args:  # the canonical form passes arguments by name
        return "its weight is a tensor of a subclass with functions of its own"
    if not isinstance(source, Node) or not isinstance(weight, Node):
        return "its input is not a value of the program"
    if weight.op != "get_attr" or (bias is not None and (not isinstance(bias, Node) or bias.op != "get_attr")):
        return "its weight or bias is computed while the program runs"
    if _other_nodes(node, ("input", "weight", "bias")):
        return "its sizes are computed while the program runs"
    if isinstance(node.kwargs.get("padding"), str):
        return "how much it pads depends on a weight that is computed while the program runs"
    return IntegerOperation("layer", (source,))


def _join(node: Node) -> IntegerOperation | str:
    tensors = node.kwargs.get("tensors")
    if not isinstance(tensors, (tuple, list)) or not tensors or not all(isinstance(tensor, Node) for tensor in tensors):
        return "what it joins is a list that the program makes"
    return IntegerOperation("join", tuple(tensor for tensor in tensors if isinstance(tensor, Node)))


def _function(node: Node, row: Operator) -> IntegerOperation | str:
    if len(node.all_input_nodes) != 1:
        return "it has an option that is computed while the program runs"
    operand = node.all_input_nodes[0]
    if [*node.args, *node.kwargs.values()].count(operand) != 1:
        return "it is not a function of one value"
    if row.bounds is None:
        return IntegerOperation("function", (operand,))
    low, high = (node.kwargs.get(bound) if isinstance(bound, str) else bound for bound in row.bounds)
    return IntegerOperation("function", (operand,), (_float(low), _float(high)))


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _single(node: Node, kind: Kind) -> IntegerOperation | str:
    operand = node.kwargs.get("input", node.args[0] if node.args else None)
    if not isinstance(operand, Node):
        return "its input is not a value of the program"
    if node.kwargs.get("return_indices") or node.kwargs.get("dtype") is not None:
        return "it returns something else than values of its input"
    if node.target is F.interpolate and node.kwargs.get("mode") not in ("nearest", "nearest-exact"):
        return "it computes values between those of its input"
    if node.target is F.pad and node.kwargs.get("value") not in (None, 0):
        return "it pads with a number that is not zero"
    return IntegerOperation(kind, (operand,))


def _other_nodes(node: Node, names: tuple[str, ...]) -> bool:
    others = [value for name, value in node.kwargs.items() if name not in names]
    return bool(node.args) or any(
        isinstance(leaf, Node) for value in others for leaf in (value if isinstance(value, (tuple, list)) else (value,))
    )


def stored_tensors(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield for each weight and bias of an operation its kind and the node that fetches it."""
    weights = node.kwargs.get("weights", ())
    named = [("weight", node.kwargs.get("weight")), ("bias", node.kwargs.get("bias"))]
    named += [("weight", weight) for weight in (weights if isinstance(weights, tuple) else ())]
    yield from ((name, fetched) for name, fetched in named if isinstance(fetched, Node))


def asks_for_size(node: Node) -> bool:
    """Return whether an operation reads the size of a value, which is the same for integers."""
    if node.target is getattr:
        return len(node.args) > 1 and node.args[1] in ("shape", "ndim")
    return is_one_of(node.target, "size")

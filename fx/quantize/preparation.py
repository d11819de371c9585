"""``prepare``: the insertion of observers wherever a value will be stored in 8 bits (paper, section 6.2.1)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.analysis.dependence import Dependences
from fx.argument_types import Inputs, checked
from fx.arguments import expect_shallow
from fx.canonical import canonical_form
from fx.errors import QuantizationError
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Node
from fx.operators.effect_rules import UPDATES_STATISTICS
from fx.operators.effects import effect_of
from fx.operators.families import operators
from fx.passes.fold_constants import FoldConstants
from fx.passes.functional_form import make_functional
from fx.passes.fuse_conv_bn import FuseConvBN
from fx.passes.remove_identities import RemoveIdentities
from fx.quantize.affine import Affine
from fx.quantize.arithmetic import dequantize
from fx.quantize.decomposition import decompose
from fx.quantize.expansion import with_place_of
from fx.quantize.integer_operations import IntegerOperation, asks_for_size, is_part, operation_of, stored_tensors
from fx.quantize.observers import Observer, make_observer
from fx.quantize.scheme import QuantizationScheme
from fx.quantize.state import in_evaluation_mode, run_apart
from fx.quantize.work import WorkCounter

_OBSERVERS = "observers"
SCHEME = "quantization_scheme"
"""The entry of a prepared program's ``meta`` with its scheme."""
REASON = "why_not_quantized"
"""The entry of a node's ``meta`` with the reason why it stays on float values."""
_SETTINGS = inspect.signature(dequantize)
_LARGEST_CONSTANT = 1 << 32
_FUSED = tuple(
    kind.__name__
    for row in operators("linear", "convolution", "transposed convolution", "batch norm")
    for kind in row.modules
)
"""Module classes of batch norms and of the layers into which they are folded."""


@checked(QuantizationError)
def prepare(
    graph_module: GraphModule, scheme: QuantizationScheme | None = None, example_inputs: Inputs | None = None
) -> GraphModule:
    """Return a copy of a program with observers, to run on representative data.

    The copy is in canonical form, with batch norms folded into layers and without dropout. It computes the same as the
    program, and shares its tensors, which are never written.

    Args:
        graph_module: a captured program; a program in training mode is prepared as in evaluation mode.
        scheme: what is quantized, and how; by default every operation that can be, in 8 bits.
        example_inputs: inputs for one run, which gives shapes and types before calibration. The report of ``convert``
            then counts operations, and values that are not float32 stay as they are.

    Raises:
        QuantizationError: an operation updates the statistics of a batch norm in every mode of the program.

    >>> import torch, fx
    >>> prepared = prepare(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())))
    >>> prepared.observers.input_1
    HistogramObserver()
    """
    expect_shallow(example_inputs, QuantizationError)
    scheme = QuantizationScheme() if scheme is None else scheme
    # batch norms stay modules: these record no checks between a batch norm and its layer
    program = canonical_form(in_evaluation_mode(graph_module), leaves=_FUSED).graph_module
    if (node := updates_statistics(program)) is not None:
        raise QuantizationError(
            "a batch norm of this program is in training mode whatever mode the program is in",
            where=place_of(node),
            why="it was captured as a function in training mode: each run writes to its running statistics",
            remedy="capture the model after model.eval()",
        )
    leaf_reasons = decompose(program)
    if example_inputs is not None and any(not pair.is_edited for pair in FuseConvBN(checked=False).explain(program)):
        record_shapes(program, example_inputs)  # with shapes, more batch norms may be folded
    program = FuseConvBN()(program)
    form = canonical_form(program)
    program = form.graph_module
    float_reasons = {node.name: leaf_reasons.get(node.name, reason) for node, reason in form.leaf_reasons.items()}
    program = RemoveIdentities()(program)
    revision = program.graph.revision
    program = FoldConstants(freeze=True, max_bytes=_LARGEST_CONSTANT)(program)
    if program.graph.revision != revision:  # a folded size may be one number for all dimensions
        program = canonical_form(program).graph_module
    without_writes(program)
    program.graph.eliminate_dead_code()
    pad_by_numbers(program)
    if example_inputs is not None:
        record_shapes(program, example_inputs)
    selection = Selection(program, scheme)
    selection.prune()
    for node, reason in selection.reasons.items():
        node.meta[REASON] = float_reasons.get(node.name, reason)
    for node in selection.to_observe():
        choice = scheme.choice(selection.users_choice(node))
        name = f"{node.name}_" if hasattr(nn.Module, node.name) else node.name
        observe(program, node, f"{_OBSERVERS}.{name}", make_observer(choice, place_of(node)))
    program.meta[SCHEME] = scheme.to_data()
    program.recompile()
    return program


def updates_statistics(program: GraphModule) -> Node | None:
    """Return the first function that normalizes with batch statistics and updates running ones, in any mode."""
    return next((node for node in program.graph.nodes if effect_of(node) is UPDATES_STATISTICS), None)


def record_shapes(program: GraphModule, example_inputs: Sequence[Any]) -> None:
    """Record the shapes of values and the work of operations, by running the program."""
    run_apart(program, WorkCounter(program).propagate, example_inputs)


def quantized_operations(prepared: GraphModule, scheme: QuantizationScheme) -> dict[Node, IntegerOperation]:
    """Return, in order, the operations of a prepared program that ``scheme`` quantizes and that can be quantized."""
    operations: dict[Node, IntegerOperation] = {}
    for node in prepared.graph.nodes:
        operation = operation_of(node)
        if isinstance(operation, str) or REASON in node.meta or scheme.choice(node).precision == "float":
            continue
        operations[node] = operation
    return operations


def scheme_of(prepared: GraphModule) -> QuantizationScheme | None:
    """Return the scheme with which a program was prepared, or None if it was not prepared."""
    data = prepared.meta.get(SCHEME)
    return None if data is None else QuantizationScheme.from_data(data)


def without_writes(program: GraphModule) -> None:
    """Replace in-place operations by functional ones if only they and later operations see the written values."""

    def has_one_dtype(node: Node) -> bool:
        return len({_dtype_of(program, operand) for operand in node.all_input_nodes} - {None}) < 2

    make_functional(program, has_one_dtype)


def _dtype_of(program: GraphModule, node: Node) -> torch.dtype | None:
    """Return the dtype of a value, or None if it is not known; most values of quantized programs are float32."""
    if node.op == "get_attr":
        return getattr(fetch_attribute(program, str(node.target)), "dtype", None)
    return getattr(node.meta.get("tensor_meta"), "dtype", None)


def pad_by_numbers(program: GraphModule) -> None:
    """Replace a convolution's padding by name with numbers; padding that is uneven becomes an operation before it."""
    for node in program.graph.nodes:
        padding, weight = node.kwargs.get("padding"), node.kwargs.get("weight")
        if isinstance(padding, str) and isinstance(weight, Node) and weight.op == "get_attr":
            sizes = fetch_attribute(program, str(weight.target)).shape[2:]
            dilation: Any = node.kwargs["dilation"]
            totals = [step * (size - 1) if padding == "same" else 0 for step, size in zip(dilation, sizes, strict=True)]
            if any(total % 2 for total in totals):
                _pad_before(node, [(total // 2, total - total // 2) for total in totals])
                totals = [0] * len(totals)
            node.kwargs = {**node.kwargs, "padding": tuple(total // 2 for total in totals)}


def _pad_before(node: Node, sides: list[tuple[int, int]]) -> None:
    """Pad the input of a convolution with zeros, an operation that integers have as well."""
    pad = tuple(side for pair in reversed(sides) for side in pair)
    arguments = {"input": node.kwargs["input"], "pad": pad, "mode": "constant", "value": None}
    with node.graph.inserting_before(node):
        padded = node.graph.create_node("call_function", F.pad, (), arguments, f"{node.name}_padded")
    node.kwargs = {**node.kwargs, "input": with_place_of(node, padded)}


def observe(
    program: GraphModule, node: Node, path: str, observer: nn.Module, users: Sequence[Node] | None = None
) -> None:
    """Insert ``observer``, a module at ``path``, after ``node``, and let ``users``, by default all, read its result."""
    program.add_submodule(path, observer)
    users = list(node.users if users is None else users)
    inputs = program.graph.find_nodes(op="placeholder")
    with program.graph.inserting_after(inputs[-1] if node in inputs else node):
        observed = program.graph.call_module(path, (node,))
    observed.source = node.source
    for user in users:
        user.replace_input_with(node, observed)


def place_of(node: Node) -> str:
    """Return a value as one line, for messages."""
    return f"%{node.name}" if node.source is None else f"%{node.name}, {node.source}"


def affines_of(prepared: GraphModule) -> dict[Node, Affine]:
    """Return the maps to integers that the observers of a prepared program found.

    Raises:
        QuantizationError: some of the observers saw nothing; the message lists them.
    """
    observers: dict[Node, Observer] = {}
    for node in prepared.graph.nodes:
        if is_observer(node):
            module: Any = prepared.get_submodule(str(node.target))
            observers[node] = module
    missing = [observer.place for observer in observers.values() if not observer.is_calibrated]
    if missing:
        raise QuantizationError(
            f"{len(missing)} of {len(observers)} values were never calibrated",
            where="\n         ".join(missing),
            why="their ranges are unknown",
            remedy="run the prepared program on data first; what data never reaches can be skipped in the scheme",
        )
    return {node: observer.affine() for node, observer in observers.items()}


class Selection:
    """The operations of a program in canonical form that will work on integers, and reasons why the others will not."""

    def __init__(self, program: GraphModule, scheme: QuantizationScheme) -> None:
        self.chosen: dict[Node, IntegerOperation] = {}
        """The operations that will work on integers."""
        self.reasons: dict[Node, str] = {}
        """The reasons why others will not; operations for which it makes no difference are missing."""
        self._program = program
        self._scheme = scheme
        dependences = Dependences(program.graph)
        sizes: set[Node] = set()  # sizes, and values computed from them alone
        for node in program.graph.nodes:
            if asks_for_size(node) or (node.all_input_nodes and sizes.issuperset(node.all_input_nodes)):
                sizes.add(node)
            elif reason := self._visit(node, dependences):
                self.reasons[node] = reason

    def _visit(self, node: Node, dependences: Dependences) -> str | None:
        operation = operation_of(node)
        if prequantized(node) is not None:
            return None
        if isinstance(operation, str):
            return operation
        precision = self._scheme.choice(node).precision
        if precision == "float":
            return "the scheme says so"
        if not operation.takes_integers and precision != "bfloat16":
            reason = self._why_not_layer(node)
            if reason is None:
                self.chosen[node] = operation
            return reason
        if precision != "int8":
            return self._why_not_layer(node) if operation.kind == "layer" else f"only layers can be {precision}"
        are_quantized = [self._is_quantized(value) for value in operation.operands]
        if operation.kind != "layer" and not any(are_quantized):
            return "none of its inputs is a result in 8 bits"
        if operation.kind == "product" and not all(are_quantized):
            return "one of its inputs is not a result in 8 bits, and float values are multiplied faster than converted"
        if any(dependences.writers(value) for value in (node, *operation.operands)):
            return "the program writes to its input or to its result"
        if operation.kind == "layer" and (reason := self._why_not_layer(node)) is not None:
            return reason
        for value in operation.operands:
            dtype = getattr(value.meta.get("tensor_meta"), "dtype", None)
            if dtype not in (None, torch.float32):
                return f"`%{value}` is of type {dtype}"
        self.chosen[node] = operation
        return None

    def _why_not_layer(self, node: Node) -> str | None:
        for name, fetched in stored_tensors(node):
            tensor = fetch_attribute(self._program, str(fetched.target))
            if isinstance(tensor, Tensor) and tensor.dtype is not torch.float32:
                return f"its {name} is of type {tensor.dtype}"
        return None

    def _is_quantized(self, node: Node) -> bool:
        """Return whether a value is the result of an operation in 8 bits, or comes in 8 bits."""
        source = source_of(node)
        return prequantized(source) is not None or (source in self.chosen and self.chosen[source].takes_integers)

    def prune(self) -> None:
        """Drop operations that lead to no chosen layer: on float values they are exact, and faster than conversions."""
        needed: set[Node] = set()
        for node, operation in reversed(self.chosen.items()):
            if operation.has_weight or self._bounds_layer(node) or any(user in needed for user in node.users):
                needed.add(node)
        for node, operation in list(self.chosen.items()):
            # all parts of a split value are kept together
            if node not in needed and not (is_part(node) and operation.operands[0] in self.chosen):
                del self.chosen[node]
                self.reasons[node] = "no operation in 8 bits uses its result"

    def _bounds_layer(self, node: Node) -> bool:
        """Return whether an operation only bounds the result of a chosen layer, and is computed together with it."""
        layers = [
            operand
            for operand in self.chosen[node].operands
            if operand in self.chosen and self.chosen[operand].kind == "layer"
        ]
        return any(self._is_fused(operand, node) for operand in layers)

    def to_observe(self) -> list[Node]:
        """Return, in order, the values that will be stored in 8 bits with their own scale."""
        roots: dict[Node, None] = {}
        for node, operation in self.chosen.items():
            if operation.kind == "shape":
                continue
            for operand in operation.operands:
                if not self._is_fused(operand, node) and prequantized(root := self._root(operand)) is None:
                    roots[root] = None
        return [node for node in self._program.graph.nodes if node in roots]

    def users_choice(self, node: Node) -> Node:
        """Return the operation whose choice decides how ``node`` is stored: itself, or a chosen one that uses it."""
        waiting = [node]
        while waiting:
            reader = waiting.pop()
            if reader in self.chosen and (reader is node or self.chosen[reader].kind != "shape"):
                return reader
            waiting.extend(user for user in reversed(list(reader.users)) if user in self.chosen)
        return node

    def _root(self, node: Node) -> Node:
        while node in self.chosen and self.chosen[node].kind == "shape":
            node = self.chosen[node].operands[0]
        return node

    def _is_fused(self, node: Node, user: Node) -> bool:
        return node in self.chosen and fused_bound(node, self.chosen) is user


def source_of(node: Node) -> Node:
    """Return ``node``, or the input of an observer."""
    return node.all_input_nodes[0] if is_observer(node) else node


def prequantized(node: Node) -> tuple[Node, Affine] | None:
    """Return the integers that the program itself dequantizes at ``node``, and their map to float values."""
    if node.target is not dequantize:
        return None
    settings = _SETTINGS.bind(*node.args, **node.kwargs).arguments
    source = settings.pop("input")
    is_constant = not any(isinstance(value, Node) for value in settings.values())
    return (source, Affine(**settings)) if isinstance(source, Node) and is_constant else None


def is_observer(node: Node) -> bool:
    """Return whether a node of a prepared program calls an observer."""
    return node.op == "call_module" and str(node.target).startswith(f"{_OBSERVERS}.")


def fused_bound(node: Node, operations: Mapping[Node, IntegerOperation]) -> Node | None:
    """Return the operation that only bounds the result of the layer or sum ``node``, and is fused with it."""
    if operations[node].kind not in ("layer", "binary") or len(node.users) != 1:
        return None
    user = next(iter(node.users))
    return user if user in operations and operations[user].bounds is not None else None

"""``convert``: a calibrated program as one on 8-bit integers, or as its reference form (paper, section 6.2.1)."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.argument_types import checked
from fx.errors import QuantizationError
from fx.graph_module import GraphModule
from fx.modules.calibrated_values import CALIBRATED
from fx.node import Node, map_arg
from fx.quantize import arithmetic
from fx.quantize.affine import Affine
from fx.quantize.convolution import QuantizedConv
from fx.quantize.expansion import with_place_of
from fx.quantize.fake_quantization import bits_of_activations, fake_quantize_dynamic
from fx.quantize.integer_operations import IntegerOperation, asks_for_size, groups_of_transposed
from fx.quantize.layout import values_seen_in_memory, write_over_layers
from fx.quantize.pooling import lower_average, lower_data_movement
from fx.quantize.preparation import REASON, fused_bound, is_observer, prequantized, scheme_of
from fx.quantize.products import matmul
from fx.quantize.quantization_report import IN_8_BITS, ON_INTEGERS, WEIGHT_ALONE
from fx.quantize.training import is_trained, prepared_as_trained
from fx.quantize.transposed_convolution import swap_channels
from fx.quantize.weight_only import embedding, embedding_bag, weight_only_linear
from fx.quantize.work import WORK, work_of, work_of_layer
from fx.quantize.writer import Writer

_BAG_ARGUMENTS = ("input", "offsets", "mode", "per_sample_weights", "include_last_offset", "padding_idx")
"""The arguments of ``F.embedding_bag`` that matter for its result, except for the weight."""


@checked(QuantizationError)
def convert(prepared: GraphModule) -> GraphModule:
    """Return the program that works on 8-bit integers, with weights and scales embedded.

    ``prepared`` stays as it is: it can see more data and be converted again. Operations that cannot be quantized work
    on float values, between conversions from and to integers; :func:`fx.quantize.report` lists them, with reasons.
    The first call with inputs of a new size, or under another number of threads, times the kernels, chooses the fastest
    and packs the weights for it.

    Args:
        prepared: what :func:`~fx.quantize.preparation.prepare` returned, after it ran on data.

    Raises:
        QuantizationError: it was not prepared, or some of its observers saw nothing; the message lists them.

    >>> import torch, fx
    >>> from fx.quantize.preparation import prepare
    >>> prepared = prepare(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())))
    >>> data = prepared(torch.ones(1, 2))
    >>> getattr(convert(prepared), "0")
    QuantizedLinear(in_features=2, out_features=2, bias=True)
    """
    return _Conversion(prepared, on_integers=True).program()


@checked(QuantizationError)
def reference(prepared: GraphModule) -> GraphModule:
    """Return the program of :func:`convert` in float arithmetic, between explicit conversions.

    It defines the meaning of the program on integers and runs anywhere. In the result of a single operation the two
    differ by one step at most.

    Args:
        prepared: what :func:`~fx.quantize.preparation.prepare` returned, after it ran on data.

    Raises:
        QuantizationError: it was not prepared, or some of its observers saw nothing; the message lists them.
    """
    return _Conversion(prepared, on_integers=False).program()


class _Conversion(Writer):
    """The writer of a new graph, which goes through the graph of a prepared program."""

    def __init__(self, prepared: GraphModule, on_integers: bool) -> None:
        scheme = scheme_of(prepared)
        if scheme is None:
            raise QuantizationError(
                "only a prepared program can be converted",
                value=type(prepared).__name__,
                remedy="prepared = prepare(program, scheme), then run it on calibration data",
            )
        super().__init__(prepared_as_trained(prepared) if is_trained(prepared) else prepared, scheme)
        self._on_integers = on_integers
        self._convolutions: list[Node] = []  # on integers; convolutions on float values have contiguous results

    def program(self) -> GraphModule:
        """Return the converted program."""
        for node in self._prepared.graph.nodes:
            if self._values[node].floats is None and self._values[node].integers is None:
                self._visit(node)  # otherwise it was computed together with the layer before it
        graph = self._graph
        graph._codegen = copy.deepcopy(self._prepared.graph._codegen)
        graph.eliminate_dead_code()
        write_over_layers(graph)
        self._lay_out_convolutions()
        named = self._weights.named(graph)
        self._fetch_from_layers(named)
        self._attributes.update(named)
        program = GraphModule(self._referenced(), graph, type(self._prepared).__name__)
        program.training = self._prepared.training
        program.meta[CALIBRATED] = True
        return program

    def _lay_out_convolutions(self) -> None:
        """Make results of convolutions contiguous, as the program expects, unless only layers read them.

        The results of torch's kernels have their channels last, which ``view``, for one, refuses.
        """
        exposed = values_seen_in_memory(self._graph, self._integers)
        for convolution in self._convolutions:
            if convolution in exposed:
                users = list(convolution.users)
                with self._graph.inserting_after(convolution):
                    name = f"{convolution.name}_contiguous"  # not the name of a node of the program
                    contiguous = self._graph.create_node("call_method", "contiguous", (convolution,), {}, name)
                with_place_of(convolution, contiguous)
                for user in users:
                    user.replace_input_with(convolution, contiguous)

    def _visit(self, node: Node) -> None:
        if is_observer(node):
            self._quantize(node)
            return
        if (stored := prequantized(node)) is not None:  # the program itself has them as integers
            self._put(node, self._as_float(stored[0]), stored[1])
            return
        operation = self._operations.get(node)
        if operation is not None and operation.takes_integers and self._scheme.choice(node).precision != "int8":
            if operation.kind == "layer":  # it has its weight in 8 bits, or in bfloat16
                self._layer_on_float(node)
                return
            operation = None  # the scheme leaves it as it is
        rounded = operation is not None and all(map(self._is_rounded, operation.operands))
        if operation is not None and rounded:
            if operation.takes_integers:
                for member in (node, fused_bound(node, self._operations) or node):
                    self._values[member].is_on_integers = True
            if self._on_integers and getattr(self, f"_{operation.kind}")(node, operation):
                return
            if operation.has_weight and not self._on_integers:
                (self._reference_recurrence if operation.kind == "recurrence" else self._reference_layer)(node)
                return
        # Integers have the size of their float values. Reading it from them needs no float values.
        if asks_for_size(node) and (integers := self._values[node.all_input_nodes[0]].integers) is not None:
            self._values[node].floats = self._graph.node_copy(node, lambda _: integers[0])
            return
        self._copy(node, unrounded=not rounded)
        if operation is not None and operation.kind == "product":
            self._as_float(node).meta[ON_INTEGERS] = True  # the reference form of a product on integers

    def _is_rounded(self, node: Node) -> bool:
        """Return whether operations on integers can read a value as integers.

        In the reference form they can also read views and permutations of rounded values, which are float values there.
        """
        value = self._values[node]
        return value.integers is not None or (value.is_on_integers and self._operations[node].kind == "shape")

    # Operations on integers; each method returns whether the operation could be written.

    def _layer(self, node: Node, operation: IntegerOperation) -> bool:
        source, affine = self._as_integers(operation.operands[0])
        bound = fused_bound(node, self._operations)
        result = node if bound is None else bound
        output = self._stored_as(result)
        arguments: dict[str, Any] = {"scale": affine.scale, "zero_point": affine.zero_point}
        if output is not None:
            arguments |= {"output_scale": output.scale, "output_zero_point": output.zero_point}
            arguments |= {"highest": output.highest} if output.highest != 255 else {}
        arguments |= {"input_highest": affine.highest} if affine.highest != 255 else {}
        limits = (None, None) if bound is None else self._operations[bound].bounds or (None, None)
        arguments |= {name: limit for name, limit in zip(("low", "high"), limits, strict=True) if limit is not None}
        layer = self._weights.layer(node)
        call = self._call_layer(node, layer, (source,), **arguments)
        call.meta[WORK] = work_of_layer(node, layer.weight)
        if isinstance(layer, QuantizedConv) and self._weights.tensors(node)[1].is_contiguous():
            self._convolutions.append(call)
        if bound is not None:
            self._values[node].floats = call  # nothing but the bound uses it
        return self._put(result, call, output)

    def _layer_on_float(self, node: Node) -> None:
        """Write the layer on float values."""
        precision = self._scheme.choice(node).precision
        if precision == "bfloat16":
            self._layer_in_bfloat16(node)
        elif not self._on_integers or (precision == "weight-only" and node.target is not F.linear):
            self._reference_layer(node, unrounded=True)
            if precision == "weight-only":
                self._as_float(node).meta[WEIGHT_ALONE] = True
        elif precision == "weight-only":
            self._weight_only_layer(node)
        else:
            self._dynamic_layer(node)

    def _layer_in_bfloat16(self, node: Node) -> None:
        _, weight, bias = self._weights.tensors(node)
        tensors = {name: tensor for name, tensor in (("weight", weight), ("bias", bias)) if tensor is not None}
        named: dict[str, Any] = {}
        for name, tensor in tensors.items():
            fetched: Any = node.kwargs[name]
            named[name] = self._attribute(node, f"in_bfloat16.{fetched.target}", tensor.detach().bfloat16())
        source = self._as_unrounded(self._operations[node].operands[0])
        short = with_place_of(node, self._graph.call_method("bfloat16", (source,)))
        others = {name: map_arg(value, self._as_float) for name, value in node.kwargs.items() if name not in named}
        call = self._call(node, node.target, **{**others, **named, "input": short})
        call.meta |= {WORK: work_of_layer(node, weight), REASON: "the scheme says bfloat16"}
        self._put(node, with_place_of(node, self._graph.call_method("float", (call,))), None)

    def _weight_only_layer(self, node: Node) -> None:
        operands = {name: map_arg(node.kwargs[name], self._as_unrounded) for name in ("input", "bias")}
        call = self._call(node, weight_only_linear, **operands, **self._stored_layer_weight(node))
        self._count(call, node)
        call.meta[WEIGHT_ALONE] = True
        self._put(node, call, None)

    def _dynamic_layer(self, node: Node) -> None:
        """Write the layer on float values that finds their range in each call."""
        layer = self._weights.layer(node)
        source = self._as_unrounded(self._operations[node].operands[0])
        bits = self._scheme.choice(node).activation_bits
        call = self._call_layer(node, layer, (source,), **({} if bits == 8 else {"input_highest": 2**bits - 1}))
        call.meta[WORK] = work_of_layer(node, layer.weight)
        self._put(node, call, None)

    def _function(self, node: Node, operation: IntegerOperation) -> bool:
        source, affine = self._as_integers(operation.operands[0])
        output = self._stored_as(node)
        operand = affine.values()
        args, kwargs = (map_arg(part, lambda _: operand) for part in (node.args, node.kwargs))  # type: ignore[arg-type]
        function: Any = node.target
        table: Tensor = function(*args, **kwargs)
        if output is not None:
            table = arithmetic.quantize(table, **output.settings)
            # The table changes no integer: `relu` of values that are never negative, as after another `relu`.
            if output == affine and torch.equal(table, torch.arange(256).clamp(max=affine.highest).to(torch.uint8)):
                return self._put(node, source, output)
        fetched = self._attribute(node, f"tables.{node.name}", table)
        return self._put(node, self._call(node, arithmetic.lookup, input=source, table=fetched), output)

    def _binary(self, node: Node, operation: IntegerOperation) -> bool:
        bound = fused_bound(node, self._operations)
        result = node if bound is None else bound
        output = self._stored_as(result)
        if output is None:
            return False
        left, right = map(self._as_integers, operation.operands)
        if node.target is operator.sub:  # the complement of all bits is the negative, if the zero point moves too
            negative = Affine(right[1].scale, 255 - right[1].zero_point)
            right = self._step(node, torch.bitwise_not, input=right[0]), negative
        function = arithmetic.mul if node.target is operator.mul else arithmetic.add
        result_node = self._step(node, function, **_operand_arguments(left, right), **output.settings)
        if bound is not None:
            result_node = self._bounded(bound, result_node, output)
            self._values[node].floats = result_node  # nothing but the bound uses it
        return self._put(result, result_node, output)

    def _bounded(self, node: Node, quantized: Node, output: Affine) -> Node:
        """Return the integers, clamped to the bounds of ``node``; rounding keeps the order of values."""
        low, high = self._operations[node].bounds or (None, None)
        least = 0 if low is None else output.quantized(low)
        most = output.highest if high is None else output.quantized(high)
        if (least, most) == (0, output.highest):
            return quantized
        return self._call(node, torch.clamp, input=quantized, min=least, max=most)

    def _product(self, node: Node, operation: IntegerOperation) -> bool:
        output = self._stored_as(node)
        operands = _operand_arguments(*map(self._as_integers, operation.operands))
        call = self._call(node, matmul, **operands, **({} if output is None else output.settings))
        call.meta |= {WORK: work_of(node), ON_INTEGERS: True}
        return self._put(node, call, output)

    def _join(self, node: Node, operation: IntegerOperation) -> bool:
        output = self._stored_as(node)
        if output is None:
            return False
        parts = [self._rescaled(node, number, *self._as_integers(operand), output)
                 for number, operand in enumerate(operation.operands)]  # fmt: skip
        together: dict[str, Any] = {"tensors": tuple(parts)} if "tensors" in node.kwargs else dict(
            zip(("input", "other"), parts, strict=True)
        )  # fmt: skip
        return self._put(node, self._call(node, node.target, **{**node.kwargs, **together}), output)

    def _rescaled(self, node: Node, number: int, quantized: Node, affine: Affine, output: Affine) -> Node:
        table = arithmetic.quantize(affine.values(), **output.settings)
        fetched = self._attribute(node, f"tables.{node.name}_{number}", table)
        if affine.highest != output.highest:
            return self._step(node, arithmetic.lookup, input=quantized, table=fetched)
        return self._step(
            node, arithmetic.rescale, input=quantized, table=fetched, input_scale=affine.scale,
            input_zero_point=affine.zero_point, scale=output.scale, zero_point=output.zero_point,
        )  # fmt: skip

    def _step(self, node: Node, function: Any, **arguments: Any) -> Node:
        """Write a call that returns integers, an intermediate step toward those of ``node``."""
        call = self._call(node, function, **arguments)
        self._integers.add(call)
        return call

    def _mean(self, node: Node, operation: IntegerOperation) -> bool:
        output = self._stored_as(node)
        call = None if output is None else lower_average(node)
        if call is None or output is None:
            return False
        source, affine = self._as_integers(operation.operands[0])
        function, settings = call
        settings = {name: map_arg(value, self._as_float) for name, value in settings.items()}
        result_node = self._call(
            node, function, input=source, **settings, input_scale=affine.scale,
            input_zero_point=affine.zero_point, **output.settings,
        )  # fmt: skip
        return self._put(node, result_node, output)

    def _shape(self, node: Node, operation: IntegerOperation) -> bool:
        source, affine = self._as_integers(operation.operands[0])
        copied = self._graph.node_copy(
            node, lambda used: source if used is operation.operands[0] else self._as_float(used)
        )
        if (call := lower_data_movement(copied, affine)) is not None:
            copied.target, copied.kwargs = call
        # These entries describe the float values, not the integers.
        copied.meta.pop("tensor_meta", None)
        copied.meta.pop("val", None)
        return self._put(node, copied, affine)

    def _embedding(self, node: Node, operation: IntegerOperation) -> bool:
        is_bag = node.target is F.embedding_bag
        settings = {
            name: map_arg(node.kwargs[name], self._as_float) for name in (_BAG_ARGUMENTS if is_bag else ("input",))
        }
        arguments = {"input": settings.pop("input"), **self._stored_layer_weight(node), **settings}
        call = self._call(node, embedding_bag if is_bag else embedding, **arguments)
        call.meta[IN_8_BITS] = True
        return self._put(node, call, None)

    def _recurrence(self, node: Node, operation: IntegerOperation) -> bool:
        if self._scheme.choice(node).precision == "weight-only":
            self._reference_recurrence(node)
            self._as_float(node).meta[WEIGHT_ALONE] = True
            return True
        arguments = map_arg((node.kwargs["input"], node.kwargs["state"]), self._as_unrounded)
        assert isinstance(arguments, tuple)
        call = self._call_layer(node, self._weights.recurrent_layer(node), arguments)
        call.meta |= {WORK: work_of(node), IN_8_BITS: True}
        return self._put(node, call, None)

    def _reference_recurrence(self, node: Node) -> None:
        """Write the recurrence on float values, with weights that are computed from integers."""
        weights = {
            fetched: self._call(node, arithmetic.dequantize_channels, **self._stored_weight(node, fetched, tensors))
            for fetched, *tensors in self._weights.matrices(node)
        }
        copied = self._graph.node_copy(node, lambda used: weights.get(used) or self._as_unrounded(used))
        copied.meta |= {WORK: work_of(node), IN_8_BITS: True}
        self._put(node, copied, None)

    def _reference_layer(self, node: Node, *, unrounded: bool = False) -> None:
        """Write the layer on float values, with a weight that is computed from integers."""
        read = self._as_unrounded if unrounded else self._as_float
        fetched = self._weights.tensors(node)[0]
        weight = self._call(node, arithmetic.dequantize_channels, **self._stored_layer_weight(node))
        if (groups := groups_of_transposed(node)) is not None:
            weight = self._call(node, swap_channels, weight=weight, groups=groups)
        copied = self._graph.node_copy(node, lambda used: weight if used is fetched else read(used))
        self._count(copied, node)
        self._put(node, copied, None)
        if self._scheme.choice(node).precision == "dynamic":
            with self._graph.inserting_before(copied):
                settings = bits_of_activations(self._scheme.choice(node))
                rounded = self._call(node, fake_quantize_dynamic, input=copied.kwargs["input"], **settings)
            copied.kwargs = {**copied.kwargs, "input": rounded}


def _operand_arguments(left: tuple[Node, Affine], right: tuple[Node, Affine]) -> dict[str, Any]:
    """Return two operands on integers as arguments of the functions that combine them."""
    (input, input_affine), (other, other_affine) = left, right
    return {
        "input": input, "other": other, "input_scale": input_affine.scale, "input_zero_point": input_affine.zero_point,
        "other_scale": other_affine.scale, "other_zero_point": other_affine.zero_point,
    }  # fmt: skip

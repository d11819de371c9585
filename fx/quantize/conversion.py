"""``convert``: a calibrated program as one on 8-bit integers, or as its reference form (paper, section 6.2.1)."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.errors import QuantizationError
from fx.graph_module import GraphModule, expect_program
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

_OF_BAGS = ("input", "offsets", "mode", "per_sample_weights", "include_last_offset", "padding_idx")
"""Arguments of bags of embeddings, their weights aside, that do not only matter for gradients."""


def convert(prepared: GraphModule) -> GraphModule:
    """Return the program that works on 8-bit integers, with weights and scales embedded.

    ``prepared`` stays as it is: it can see more data and be converted again. What cannot be quantized works on float
    values, between conversions from and to integers; :func:`fx.quantize.report` lists it, with reasons.
    The first call with inputs of a new size, or under another number of threads, tries which kernels are the fastest
    and puts weights into the order in which these read them.

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


def reference(prepared: GraphModule) -> GraphModule:
    """Return what :func:`convert` would, in arithmetic on float values between explicit conversions.

    It says what the program on integers means, runs anywhere, and differs from it by one step at most in what a
    single operation returns.

    Args:
        prepared: what :func:`~fx.quantize.preparation.prepare` returned, after it ran on data.

    Raises:
        QuantizationError: it was not prepared, or some of its observers saw nothing; the message lists them.
    """
    return _Conversion(prepared, on_integers=False).program()


class _Conversion(Writer):
    """Writes a new graph while it goes through that of a prepared program."""

    def __init__(self, prepared: GraphModule, on_integers: bool) -> None:
        expect_program(prepared, "only a prepared program can be converted", error=QuantizationError)
        scheme = scheme_of(prepared)
        if scheme is None:
            raise QuantizationError(
                "only a prepared program can be converted",
                value=type(prepared).__name__,
                remedy="prepared = prepare(program, scheme), then run it on calibration data",
            )
        super().__init__(prepared_as_trained(prepared) if is_trained(prepared) else prepared, scheme)
        self._on_integers = on_integers
        self._convolutions: list[Node] = []  # on integers; those on float values have contiguous results

    def program(self) -> GraphModule:
        """The converted program."""
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
        program = GraphModule(self._taken(), graph, type(self._prepared).__name__)
        program.training = self._prepared.training
        program.meta[CALIBRATED] = True
        return program

    def _lay_out_convolutions(self) -> None:
        """Let results of convolutions be contiguous, as the program expects, where they do not stay among layers.

        Those of torch's kernels have their channels last, which ``view`` refuses, say.
        """
        seen = values_seen_in_memory(self._graph, self._integers)
        for made in self._convolutions:
            if made in seen:
                users = list(made.users)
                with self._graph.inserting_after(made):
                    name = f"{made.name}_contiguous"  # none that a node of the program may have
                    contiguous = self._graph.create_node("call_method", "contiguous", (made,), {}, name)
                with_place_of(made, contiguous)
                for user in users:
                    user.replace_input_with(made, contiguous)

    def _visit(self, node: Node) -> None:
        if is_observer(node):
            self._quantize(node)
            return
        if (given := prequantized(node)) is not None:  # the program itself has them as integers
            self._put(node, self._as_float(given[0]), given[1])
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
                for one in (node, fused_bound(node, self._operations) or node):
                    self._values[one].is_on_integers = True
            if self._on_integers and getattr(self, f"_{operation.kind}")(node, operation):
                return
            if operation.has_weight and not self._on_integers:
                (self._reference_recurrence if operation.kind == "recurrence" else self._reference_layer)(node)
                return
        # Integers have the size of what they stand for: to ask them makes no value that nothing else needs.
        if asks_for_size(node) and (integers := self._values[node.all_input_nodes[0]].integers) is not None:
            self._values[node].floats = self._graph.node_copy(node, lambda _: integers[0])
            return
        self._copy(node, unrounded=not rounded)
        if operation is not None and operation.kind == "product":
            self._as_float(node).meta[ON_INTEGERS] = True  # which it stands for, in the reference form

    def _is_rounded(self, node: Node) -> bool:
        """Return whether operations on integers can read a value as such.

        In the reference form they can read views and permutations of rounded values, which are float values there, too.
        """
        value = self._values[node]
        return value.integers is not None or (value.is_on_integers and self._operations[node].kind == "shape")

    # Operations on integers; each says whether it found a way.

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
        made = self._call_layer(node, layer, (source,), **arguments)
        made.meta[WORK] = work_of_layer(node, layer.weight)
        if isinstance(layer, QuantizedConv) and self._weights.tensors(node)[1].is_contiguous():
            self._convolutions.append(made)
        if bound is not None:
            self._values[node].floats = made  # nothing but the bound uses it
        return self._put(result, made, output)

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
        tensors = {name: one for name, one in (("weight", weight), ("bias", bias)) if one is not None}
        named: dict[str, Any] = {}
        for name, tensor in tensors.items():
            fetched: Any = node.kwargs[name]
            named[name] = self._attribute(node, f"in_bfloat16.{fetched.target}", tensor.detach().bfloat16())
        source = self._as_unrounded(self._operations[node].operands[0])
        short = with_place_of(node, self._graph.call_method("bfloat16", (source,)))
        others = {name: map_arg(value, self._as_float) for name, value in node.kwargs.items() if name not in named}
        made = self._call(node, node.target, **{**others, **named, "input": short})
        made.meta |= {WORK: work_of_layer(node, weight), REASON: "the scheme says bfloat16"}
        self._put(node, with_place_of(node, self._graph.call_method("float", (made,))), None)

    def _weight_only_layer(self, node: Node) -> None:
        operands = {name: map_arg(node.kwargs[name], self._as_unrounded) for name in ("input", "bias")}
        made = self._call(node, weight_only_linear, **operands, **self._stored_layer_weight(node))
        self._count(made, node)
        made.meta[WEIGHT_ALONE] = True
        self._put(node, made, None)

    def _dynamic_layer(self, node: Node) -> None:
        """The layer on float values, of which it finds the range in each call."""
        layer = self._weights.layer(node)
        source = self._as_unrounded(self._operations[node].operands[0])
        bits = self._scheme.choice(node).activation_bits
        made = self._call_layer(node, layer, (source,), **({} if bits == 8 else {"input_highest": 2**bits - 1}))
        made.meta[WORK] = work_of_layer(node, layer.weight)
        self._put(node, made, None)

    def _function(self, node: Node, operation: IntegerOperation) -> bool:
        source, affine = self._as_integers(operation.operands[0])
        output = self._stored_as(node)
        operand = affine.values()
        args, kwargs = (map_arg(part, lambda _: operand) for part in (node.args, node.kwargs))  # type: ignore[arg-type]
        function: Any = node.target
        table: Tensor = function(*args, **kwargs)
        if output is not None:
            table = arithmetic.quantize(table, **output.settings)
            # It changes no integer: `relu` where 0 is the least value, as behind another `relu`.
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
        if node.target is operator.sub:  # of all bits the complement stands for the negative, if zero moves too
            negative = Affine(right[1].scale, 255 - right[1].zero_point)
            right = self._step(node, torch.bitwise_not, input=right[0]), negative
        function = arithmetic.mul if node.target is operator.mul else arithmetic.add
        made = self._step(node, function, **_of_two(left, right), **output.settings)
        if bound is not None:
            made = self._bounded(bound, made, output)
            self._values[node].floats = made  # nothing but the bound uses it
        return self._put(result, made, output)

    def _bounded(self, node: Node, quantized: Node, output: Affine) -> Node:
        """The integers that are inside the bounds of ``node``; rounding keeps the order of values."""
        low, high = self._operations[node].bounds or (None, None)
        least = 0 if low is None else output.quantized(low)
        most = output.highest if high is None else output.quantized(high)
        if (least, most) == (0, output.highest):
            return quantized
        return self._call(node, torch.clamp, input=quantized, min=least, max=most)

    def _product(self, node: Node, operation: IntegerOperation) -> bool:
        output = self._stored_as(node)
        operands = _of_two(*map(self._as_integers, operation.operands))
        made = self._call(node, matmul, **operands, **({} if output is None else output.settings))
        made.meta |= {WORK: work_of(node), ON_INTEGERS: True}
        return self._put(node, made, output)

    def _join(self, node: Node, operation: IntegerOperation) -> bool:
        output = self._stored_as(node)
        if output is None:
            return False
        parts = [self._rescaled(node, number, *self._as_integers(one), output)
                 for number, one in enumerate(operation.operands)]  # fmt: skip
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
        """A call that gives integers, out of which others may make those of ``node``."""
        made = self._call(node, function, **arguments)
        self._integers.add(made)
        return made

    def _mean(self, node: Node, operation: IntegerOperation) -> bool:
        output = self._stored_as(node)
        call = None if output is None else lower_average(node)
        if call is None or output is None:
            return False
        source, affine = self._as_integers(operation.operands[0])
        function, settings = call
        settings = {name: map_arg(value, self._as_float) for name, value in settings.items()}
        made = self._call(
            node, function, input=source, **settings, input_scale=affine.scale,
            input_zero_point=affine.zero_point, **output.settings,
        )  # fmt: skip
        return self._put(node, made, output)

    def _shape(self, node: Node, operation: IntegerOperation) -> bool:
        source, affine = self._as_integers(operation.operands[0])
        made = self._graph.node_copy(
            node, lambda used: source if used is operation.operands[0] else self._as_float(used)
        )
        if (call := lower_data_movement(made, affine)) is not None:
            made.target, made.kwargs = call
        # They describe the float values that the integers stand for.
        made.meta.pop("tensor_meta", None)
        made.meta.pop("val", None)
        return self._put(node, made, affine)

    def _embedding(self, node: Node, operation: IntegerOperation) -> bool:
        is_bag = node.target is F.embedding_bag
        settings = {name: map_arg(node.kwargs[name], self._as_float) for name in (_OF_BAGS if is_bag else ("input",))}
        arguments = {"input": settings.pop("input"), **self._stored_layer_weight(node), **settings}
        made = self._call(node, embedding_bag if is_bag else embedding, **arguments)
        made.meta[IN_8_BITS] = True
        return self._put(node, made, None)

    def _recurrence(self, node: Node, operation: IntegerOperation) -> bool:
        if self._scheme.choice(node).precision == "weight-only":
            self._reference_recurrence(node)
            self._as_float(node).meta[WEIGHT_ALONE] = True
            return True
        arguments = map_arg((node.kwargs["input"], node.kwargs["state"]), self._as_unrounded)
        assert isinstance(arguments, tuple)
        made = self._call_layer(node, self._weights.recurrent_layer(node), arguments)
        made.meta |= {WORK: work_of(node), IN_8_BITS: True}
        return self._put(node, made, None)

    def _reference_recurrence(self, node: Node) -> None:
        """The recurrence on float values, with weights that are computed from integers."""
        weights = {
            fetched: self._call(node, arithmetic.dequantize_channels, **self._stored_weight(node, fetched, tensors))
            for fetched, *tensors in self._weights.matrices(node)
        }
        copied = self._graph.node_copy(node, lambda used: weights.get(used) or self._as_unrounded(used))
        copied.meta |= {WORK: work_of(node), IN_8_BITS: True}
        self._put(node, copied, None)

    def _reference_layer(self, node: Node, *, unrounded: bool = False) -> None:
        """The layer on float values, with a weight that is computed from integers."""
        read = self._as_unrounded if unrounded else self._as_float
        fetched = self._weights.tensors(node)[0]
        made = self._call(node, arithmetic.dequantize_channels, **self._stored_layer_weight(node))
        if (groups := groups_of_transposed(node)) is not None:
            made = self._call(node, swap_channels, weight=made, groups=groups)
        copied = self._graph.node_copy(node, lambda used: made if used is fetched else read(used))
        self._count(copied, node)
        self._put(node, copied, None)
        if self._scheme.choice(node).precision == "dynamic":
            with self._graph.inserting_before(copied):
                settings = bits_of_activations(self._scheme.choice(node))
                rounded = self._call(node, fake_quantize_dynamic, input=copied.kwargs["input"], **settings)
            copied.kwargs = {**copied.kwargs, "input": rounded}


def _of_two(left: tuple[Node, Affine], right: tuple[Node, Affine]) -> dict[str, Any]:
    """Two operands on integers, as the functions take them that combine them."""
    (input, by), (other, by_other) = left, right
    return {
        "input": input, "other": other, "input_scale": by.scale, "input_zero_point": by.zero_point,
        "other_scale": by_other.scale, "other_zero_point": by_other.zero_point,
    }  # fmt: skip

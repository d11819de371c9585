"""Operators of ATen have functional spellings that give the same bits, and come back as the same overloads."""

import operator
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import fx
from fx.canonical import canonical_form
from fx.canonical.aten_rows import ATEN_ROWS
from fx.canonical.forms import OVERLOAD, to_aten, to_functional

aten: Any = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(3)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


NAMED: dict[str, Any] = {
    "x": drawn(4, 6, 8),
    "y": drawn(4, 6, 8),
    "u": drawn(2, 3, 4).abs() + 0.1,
    "image": drawn(2, 4, 9, 9),
    "line": drawn(2, 4, 9),
    "volume": drawn(2, 4, 5, 5, 5),
    "matrix": drawn(6, 6),
    "batch": drawn(3, 4, 5),
    "whole": torch.arange(24).reshape(4, 6),
    "truth": torch.arange(24).reshape(4, 6) % 3 == 0,
    "w1": drawn(4, 2, 3),
    "w2": drawn(4, 2, 3, 3),
    "w3": drawn(4, 2, 3, 3, 3),
    "b": drawn(4),
    "gain": drawn(4),
    "mean": drawn(4),
    "var": drawn(4).abs() + 0.5,
    "scale": drawn(8),
    "weight": drawn(5, 8),
    "table": drawn(7, 5),
}

FUNCTIONAL = """
aten.conv1d.default(line, w1, b, [1], [1], [1], 2)
aten.conv1d.padding(line, w1, None, [1], "same", [1], 2)
aten.conv2d.default(image, w2, b, [2, 2], [1, 1], [1, 1], 2)
aten.conv2d.padding(image, w2, b, [1, 1], "valid", [2, 2], 2)
aten.conv3d.default(volume, w3, None, [1, 1, 1], [0, 0, 0], [1, 1, 1], 2)
aten.conv_transpose1d.default(line, w1, None, [2], [1], [1])
aten.conv_transpose2d.input(image, w2, None, [2, 2], [1, 1], [1, 1], 1, [1, 1])
aten.conv_transpose3d.input(volume, w3)
aten.convolution.default(line, w1, b, [1], [1], [1], False, [0], 2)
aten.convolution.default(image, w2, b, [1, 2], [1, 1], [1, 1], False, [0, 0], 2)
aten.convolution.default(volume, w3, None, [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 2)
aten.convolution.default(image, w2, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)
aten.linear.default(x, weight)
aten.addmm.default(drawn, matrix, matrix)
aten.mm.default(matrix, matrix)
aten.bmm.default(batch, bent)
aten.matmul.default(x, scale)
aten.embedding.default(table, whole_small)
aten.embedding.default(table, whole_small, 2)
aten.batch_norm.default(image, gain, b, mean, var, False, 0.1, 1e-05, True)
aten.batch_norm.default(image, None, None, mean, var, False, 0.2, 1e-03, False)
aten.layer_norm.default(x, [8], scale, scale, 1e-05, False)
aten.layer_norm.default(x, [6, 8])
aten.group_norm.default(image, 2, gain, b, 1e-05, True)
aten.instance_norm.default(image, gain, b, None, None, True, 0.1, 1e-05, True)
aten.rms_norm.default(x, [8], scale)
aten.scaled_dot_product_attention.default(x, x, y, None, 0.0, True)
aten.scaled_dot_product_attention.default(x, x, y, scale=0.3)
aten.relu.default(x)
aten.relu6.default(x)
aten.gelu.default(x)
aten.gelu.default(x, approximate="tanh")
aten.silu.default(x)
aten.mish.default(x)
aten.hardswish.default(x)
aten.hardsigmoid.default(x)
aten.hardtanh.default(x)
aten.hardtanh.default(x, 0.0, 6.0)
aten.leaky_relu.default(x)
aten.leaky_relu.default(x, 0.2)
aten.elu.default(x, 0.5)
aten.celu.default(x)
aten.selu.default(x)
aten.softplus.default(x, 2.0)
aten.log_sigmoid.default(x)
aten.softshrink.default(x, 0.2)
aten.hardshrink.default(x)
aten.prelu.default(image, gain)
aten.threshold.default(x, 0.1, 2.0)
aten.glu.default(x, 1)
aten.sigmoid.default(x)
aten.tanh.default(x)
aten.softmax.int(x, -1)
aten.log_softmax.int(x, 1)
aten.dropout.default(x, 0.5, False)
aten.add.out(x, y, out=u3)
aten.mm.out(matrix, matrix, out=u2)
aten.relu_.default(x)
aten.silu_.default(x)
aten.hardswish_.default(x)
aten.hardsigmoid_.default(x)
aten.hardtanh_.default(x, -0.5, 0.5)
aten.leaky_relu_.default(x, 0.3)
aten.elu_.default(x)
aten.relu6_.default(x)
aten.mish_.default(x)
aten.sigmoid_.default(x)
aten.add_.Tensor(x, y)
aten.add_.Tensor(x, 1)
aten.mul_.Tensor(x, y)
aten.sub_.Tensor(x, y, alpha=2)
aten.div_.Tensor(x, y)
aten.clamp_.default(x, 0.0)
aten.exp_.default(x)
aten.fill_.Scalar(x, 1.0)
aten.zero_.default(x)
aten.copy_.default(x, y)
aten.masked_fill_.Scalar(whole, truth, 0)
aten.max_pool1d.default(line, [2], [2])
aten.max_pool2d.default(image, [3, 3], [2, 2], [1, 1], [1, 1], True)
aten.max_pool2d.default(image, [3, 3])
aten.max_pool3d.default(volume, [2, 2, 2])
aten.max_pool2d_with_indices.default(image, [2, 2], [2, 2])
aten.avg_pool1d.default(line, [2])
aten.avg_pool2d.default(image, [2, 2], [2, 2], [0, 0], False, False)
aten.avg_pool3d.default(volume, [2, 2, 2])
aten.adaptive_avg_pool1d.default(line, [3])
aten.adaptive_avg_pool2d.default(image, [1, 1])
aten.adaptive_avg_pool3d.default(volume, [2, 1, 2])
aten.adaptive_max_pool1d.default(line, [2])
aten.adaptive_max_pool2d.default(image, [2, 2])
aten.adaptive_max_pool3d.default(volume, [2, 2, 2])
aten.max_pool1d_with_indices.default(line, [2], [2])
aten.max_pool3d_with_indices.default(volume, [2, 2, 2], [2, 2, 2])
aten.upsample_nearest1d.vec(line, [18], None)
aten.upsample_nearest2d.vec(image, None, [2.0, 2.0])
aten.upsample_nearest2d.vec(image, [12, 13], None)
aten.upsample_bilinear2d.vec(image, [12, 13], True, None)
aten.upsample_bilinear2d.vec(image, None, False, [1.5, 2.0])
aten.upsample_bicubic2d.vec(image, [12, 13], False, None)
aten.upsample_linear1d.vec(line, [12], False, None)
aten.upsample_trilinear3d.vec(volume, [6, 6, 7], False, None)
aten.upsample_nearest3d.vec(volume, None, [2.0, 1.0, 2.0])
aten._upsample_nearest_exact1d.vec(line, [13], None)
aten._upsample_nearest_exact2d.vec(image, [12, 13], None)
aten._upsample_nearest_exact3d.vec(volume, [6, 6, 7], None)
aten._upsample_bicubic2d_aa.vec(image, [5, 5], False, None)
aten._upsample_bilinear2d_aa.vec(image, [5, 5], False, None)
aten.pad.default(image, [1, 2, 0, 1], "reflect")
aten.pad.default(x, [1, 1], "constant", 2.0)
aten.pixel_shuffle.default(image, 2)
aten.add.Tensor(x, y)
aten.add.Tensor(x, 2)
aten.add.Tensor(x, y, alpha=3)
aten.add.Scalar(x, 2)
aten.sub.Tensor(x, 1.5)
aten.rsub.Scalar(x, 2)
aten.rsub.Tensor(x, y)
aten.mul.Tensor(x, whole_row)
aten.div.Tensor(whole, 3)
aten.div.Tensor_mode(x, 0.3, rounding_mode="floor")
aten.floor_divide.default(whole, 4)
aten.remainder.Scalar(x, 0.3)
aten.remainder.Tensor(x, y)
aten.pow.Tensor_Scalar(x, 2)
aten.pow.Tensor_Tensor(u, u)
aten.pow.Scalar(2, x)
aten.neg.default(x)
aten.abs.default(x)
aten.exp.default(whole)
aten.log.default(u)
aten.sqrt.default(u)
aten.rsqrt.default(u)
aten.reciprocal.default(whole)
aten.erf.default(x)
aten.sin.default(x)
aten.square.default(x)
aten.sign.default(x)
aten.floor.default(x)
aten.clamp.default(x, -1, 1)
aten.clamp.default(whole, min=0.5)
aten.clamp.Tensor(x, y)
aten.clamp_min.default(x, 0)
aten.maximum.default(x, y)
aten.minimum.default(x, y)
aten.atan2.default(x, y)
aten.eq.Scalar(whole, 3)
aten.eq.Tensor(x, y)
aten.ne.Scalar(whole, 3)
aten.lt.Scalar(x, 0)
aten.le.Tensor(x, y)
aten.gt.Scalar(x, 0.5)
aten.ge.Scalar(x, 0.5)
aten.__and__.Tensor(truth, truth)
aten.__or__.Tensor(truth, truth)
aten.__xor__.Scalar(whole, 3)
aten.__lshift__.Scalar(whole, 1)
aten.__rshift__.Scalar(whole, 1)
aten.bitwise_and.Tensor(truth, truth)
aten.bitwise_or.Tensor(truth, truth)
aten.bitwise_not.default(truth)
aten.logical_and.default(truth, whole)
aten.logical_not.default(truth)
aten.where.self(truth, whole, zero)
aten.where.ScalarOther(truth, whole, 0.5)
aten.masked_fill.Scalar(whole, truth, 1)
aten.view.default(x, [4, 48])
aten.view.dtype(x, torch.int32)
aten.reshape.default(x, [-1, 8])
aten.flatten.using_ints(x, 1)
aten.unflatten.int(x, 2, [2, 4])
aten.permute.default(x, [2, 0, 1])
aten.transpose.int(x, 1, 2)
aten.t.default(matrix)
aten.squeeze.dim(x, 1)
aten.squeeze.default(x)
aten.unsqueeze.default(x, 0)
aten.expand.default(b, [3, 4])
aten.repeat.default(x, [1, 2, 1])
aten.select.int(x, 1, -1)
aten.narrow.default(x, 1, 1, 2)
aten.slice.Tensor(x, 0, 0, 9223372036854775807)
aten.slice.Tensor(x, 1, 1, 5)
aten.slice.Tensor(x, 2, -3, 9223372036854775807, 2)
aten.contiguous.default(x)
aten.clone.default(x)
aten.clone.default(image, memory_format=torch.channels_last)
aten.detach.default(x)
aten.flip.default(x, [1])
aten.roll.default(x, [1], [0])
aten.cat.default([x, y], 1)
aten.stack.default([x, y])
aten.index_select.default(x, 0, pair)
aten.gather.default(whole, 0, truth_index)
aten.cumsum.default(x, 1)
aten.tril.default(matrix)
aten.sum.default(x)
aten.sum.dim_IntList(x, [1, 2], True)
aten.sum.dim_IntList(whole, [0], dtype=torch.float64)
aten.mean.default(x)
aten.mean.dim(x, [-1], True)
aten.var.correction(x, [1], correction=0)
aten.std.correction(x, [1], keepdim=True)
aten.std.correction(x)
aten.amax.default(x, [1], True)
aten.max.default(x)
aten.max.dim(x, 1)
aten.max.other(x, y)
aten.argmax.default(x, 1)
aten.topk.default(x, 2)
aten.sort.default(x)
aten.any.dim(truth, 0)
aten.logsumexp.default(x, [1])
aten.to.dtype(x, torch.float64)
aten.to.device(x, torch.device("cpu"), torch.float16)
aten.to.dtype_layout(x, dtype=torch.float64, device=torch.device("cpu"))
aten._to_copy.default(x, dtype=torch.float64)
aten._to_copy.default(x)
aten.type_as.default(x, whole)
aten.arange.default(5, device=torch.device("cpu"), pin_memory=False)
aten.arange.start(1, 5)
aten.arange.start_step(1, 9, 2, dtype=torch.float32)
aten.full.default([2, 2], 1.5)
aten.ones.default([2, 2], dtype=torch.int64)
aten.zeros_like.default(x)
aten.sym_size.int(x, 1)
aten.sym_stride.int(x, 1)
""".strip().splitlines()
"""Calls that have a functional spelling."""

LISTS = """
aten.split.Tensor(x, 2, 1)
aten.split.sizes(x, [2, 4], 1)
aten.split_with_sizes.default(x, [2, 4], 1)
aten.chunk.default(x, 2, 1)
aten.unbind.int(x, 0)
""".strip().splitlines()
"""Calls that give lists, of which elements are used."""

KEPT = """
aten.batch_norm.default(image, gain, b, mean, var, True, 0.1, 1e-05, True)
aten.index.Tensor(x, [pair])
aten.to.dtype_layout(x, dtype=torch.bool, layout=torch.strided)
aten._softmax.default(x, 1, False)
aten.slice.Tensor(x, -1, 1, 3)
aten.elu.default(x, 1.0, 2.0)
aten.native_dropout.default(x, 0.0, False)
aten.group_norm.default(single, 4, gain, b)
aten.native_layer_norm.default(x, [8], scale, scale, 1e-05)
aten.upsample_nearest2d.default(image, [12, 13])
""".strip().splitlines()
"""Calls without a functional spelling, or whose functional spelling refuses some of their inputs."""

NAMED |= {
    "drawn": drawn(6),
    "u2": drawn(6, 6),
    "u3": drawn(4, 6, 8),
    "bent": drawn(3, 5, 2),
    "whole_small": torch.tensor([[0, 2], [6, 1]]),
    "whole_row": torch.arange(8),
    "pair": torch.tensor([0, 2]),
    "zero": torch.tensor(0.5),
    "truth_index": torch.zeros(2, 6, dtype=torch.int64),
    "single": drawn(1, 4, 1, 1),
}


def program_of(call: str, *, element: bool = False) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A program of one call, its tensors being inputs, and the tensors."""
    text, _, arguments = call.partition("(")
    graph = fx.Graph()
    used = {name: NAMED[name] for name in re.findall(r"\b(\w+)\b(?!=)", arguments) if name in NAMED}
    nodes: dict[str, Any] = {}
    for name, value in used.items():
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = value
    args, kwargs = eval(f"(lambda *args, **kwargs: (args, kwargs))({arguments}", {"torch": torch, **nodes})
    overload = eval(text, {"aten": aten})
    result: Any = graph.call_function(overload, args, kwargs)
    graph.output(graph.call_function(operator.getitem, (result, 1)) if element else result)
    return fx.GraphModule(nn.Module(), graph), list(used.values())


def the_call(program: fx.GraphModule) -> fx.Node:
    return next(node for node in program.graph.nodes if node.op in ("call_function", "call_method"))


def answer(program: fx.GraphModule, tensors: list[torch.Tensor]) -> list[Any]:
    copies = [tensor.clone() for tensor in tensors]
    return [*pytree.tree_leaves(program(*copies)), *copies]


def same_bits(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return type(one) is type(other) and one == other
    return (
        one.dtype == other.dtype
        and one.stride() == other.stride()
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )


@pytest.mark.parametrize("call", [*FUNCTIONAL, *LISTS])
def test_an_operator_is_spelled_as_a_function_that_gives_the_same_bits_and_comes_back(call):
    program, tensors = program_of(call, element=call in LISTS)
    overload, name = the_call(program).target, the_call(program).name
    expected = answer(program, tensors)
    to_functional(program)
    assert "aten" not in program.code, program.code
    assert all(map(same_bits, answer(program, tensors), expected))
    canonical = canonical_form(program).graph_module
    assert all(map(same_bits, answer(canonical, tensors), expected))
    for form in (program, canonical):
        to_aten(form)
        assert the_call(form).target is overload and the_call(form).name == name
        assert all(map(same_bits, answer(form, tensors), expected))


@pytest.mark.parametrize("call", KEPT)
def test_overloads_without_an_exact_function_stay(call):
    program, _ = program_of(call)
    overload = the_call(program).target
    to_functional(program)
    assert the_call(program).target is overload


def test_every_row_of_the_table_is_tried():
    tried = {call.partition("(")[0].split(".")[1].rstrip("_") for call in (*FUNCTIONAL, *LISTS)}
    names = {str(source).removeprefix("aten.").split(".")[0].rstrip("_") for row in ATEN_ROWS for source in row.sources}
    assert names and not names - tried


def test_an_operator_gets_lists_and_no_defaults_behind_its_last_argument():
    program, _ = program_of("aten.conv2d.default(image, w2, None, [2, 2])")
    to_aten(to_functional(program))
    assert repr(the_call(program).args) == "(image, w2, None, [2, 2])"


def test_a_list_that_is_looked_at_as_a_whole_stays_one():
    program, tensors = program_of("aten.split.Tensor(x, 2, 1)")
    to_functional(program)
    assert the_call(program).target is aten.split.Tensor
    assert isinstance(program(*tensors), list)


class Calls(nn.Module):
    """Calls that models make, as functions, methods and operators of Python."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        y = F.silu(torch.relu(x) + 1) * 2 - x / 3
        y = (2 - y) ** 2 + F.hardtanh(y).clamp(0.1, 2.0) // 2 % 3
        y = y.transpose(1, 2).reshape(4, -1)[:, 1:40].contiguous().view(4, 39)
        y = F.softmax(y, -1).masked_fill(mask, 0.0).float().to(torch.float64)
        y = torch.where(y > 0.5, y, 0.0) + y.sum(-1, keepdim=True) + y.mean(1, keepdim=True) + y.std()
        y = torch.cat([y.unsqueeze(0).expand(2, 4, 39), torch.stack([y, -y])], dim=2)
        y = F.gelu(F.leaky_relu(y, 0.2), approximate="tanh").sigmoid().tanh().exp().log1p()
        y = F.interpolate(F.max_pool2d(y, 2).unsqueeze(0), size=(4, 40), mode="nearest")
        return F.pad(y, (1, 1)), F.dropout(y, 0.5, False), (y == 1) & (y != 2) | ~(y <= y)


def test_a_symbolic_trace_becomes_the_operators_of_an_export():
    x, mask = NAMED["x"], torch.arange(39) % 2 == 0
    exported = torch.export.export(Calls(), (x, mask)).graph
    program = to_aten(fx.symbolic_trace(Calls()))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    expected = [node.target for node in exported.nodes if node.op == "call_function"]
    left_out = (aten._assert_tensor_metadata.default, aten.slice.Tensor)  # `[:, 1:40]` is one slice or two
    expected = [target for target in expected if target not in left_out]
    assert [target for target in targets if target not in left_out] == expected


def test_a_call_changed_by_a_pass_is_converted_back_in_its_new_form():
    program, tensors = program_of("aten.add.Scalar(x, 2)")
    to_functional(program)
    node = the_call(program)
    assert node.meta[OVERLOAD] == "add.Scalar"
    node.args = (node.args[0], 2.5)
    assert the_call(to_aten(program)).target is aten.add.Scalar
    to_functional(program)
    node.target = torch.mul
    to_aten(program)
    assert node.target is aten.mul.Tensor and OVERLOAD not in node.meta
    assert torch.equal(program(*tensors), tensors[0] * 2.5)


def test_numbers_stay_numbers():
    def area(x):
        return x.reshape(x.size(0) * x.size(1), -1)

    program = to_aten(fx.symbolic_trace(area))
    assert tuple(program(torch.ones(2, 3, 4)).shape) == (6, 4)
    assert "sym_size" in program.code and "aten.mul" not in program.code

"""Batch norm folded into the layer before it: the program computes the same with one operation less."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batch_norm_models import SPELLINGS, assert_close, assert_left_alone, inlined, pair, reasons
from building import Calling, names, settle
from torch import Tensor, nn

import fx
import model_zoo
from fx.passes import FuseConvBN
from fx.passes.shape_prop import ShapeProp

KINDS: dict[str, tuple[type[nn.Module], type[nn.Module], tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d, nn.BatchNorm1d, (7,)),
    "conv2d": (nn.Conv2d, nn.BatchNorm2d, (7, 6)),
    "conv3d": (nn.Conv3d, nn.BatchNorm3d, (5, 6, 7)),
    "conv_transpose1d": (nn.ConvTranspose1d, nn.BatchNorm1d, (7,)),
    "conv_transpose2d": (nn.ConvTranspose2d, nn.BatchNorm2d, (7, 6)),
    "conv_transpose3d": (nn.ConvTranspose3d, nn.BatchNorm3d, (5, 6, 7)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "grouped": {"groups": 2},
    "depthwise": {"groups": 4, "bias": False},
    "strided": {"stride": 2, "padding": 1, "dilation": 2},
}


@SPELLINGS
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "not affine"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_every_convolution_computes_the_same_in_float64(
    kind: str, options: dict[str, Any], affine: bool, capture: Any, untouched: Any
) -> None:
    convolution, norm, size = KINDS[kind]
    model = nn.Sequential(convolution(4, 8, 3, **options), norm(8, affine=affine, eps=0.01), nn.ReLU())
    untouched(settle(model.double()))
    program, example = capture(model), torch.randn(2, 4, *size, dtype=torch.float64)
    ShapeProp(program).propagate(example)
    FuseConvBN()(program)
    assert not program.graph.find_nodes(op="call_function", target=F.batch_norm)
    assert "1" not in dict(program.named_children())
    assert_close(program, model, example)
    assert FuseConvBN().explain(program) == []


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
@SPELLINGS
def test_padding_modes_are_kept(padding_mode: str, capture: Any, untouched: Any) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode=padding_mode), nn.BatchNorm2d(3))
    untouched(settle(model.double()))
    program = FuseConvBN()(capture(model))
    assert FuseConvBN().explain(program) == []
    assert_close(program, model, torch.randn(2, 2, 5, 5, dtype=torch.float64))


def test_synchronized_batch_norm_is_batch_norm_in_evaluation(untouched: Any) -> None:
    model = untouched(settle(nn.Sequential(nn.Conv2d(2, 3, 3), nn.SyncBatchNorm(3)).double()))
    program = FuseConvBN()(fx.symbolic_trace(model))
    assert names(program) == "input_1 _0 output"
    assert_close(program, model, torch.randn(2, 2, 5, 5, dtype=torch.float64))


def test_module_layers_keep_their_names_and_lose_the_batch_norm() -> None:
    block = nn.ModuleDict({"conv": nn.Conv2d(2, 3, 3, bias=False), "bn": nn.BatchNorm2d(3)})
    model: Any = settle(Calling(lambda m, x: torch.relu(m.block["bn"](m.block["conv"](x))), block=block))
    program = FuseConvBN()(fx.symbolic_trace(model))
    assert names(program) == "x block_conv relu output"
    assert list(program.state_dict()) == ["block.conv.weight", "block.conv.bias"]
    assert isinstance(program.block.conv, nn.Conv2d) and program.block.conv is not model.block["conv"]
    assert not hasattr(program.block, "bn")


def test_function_layers_get_new_attributes_with_readable_names() -> None:
    model = settle(nn.Sequential(nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3))))
    program = FuseConvBN()(inlined(model))
    assert list(program.state_dict()) == ["0.0.fused_weight", "0.0.fused_bias"]
    assert [node.target for node in program.graph.find_nodes(op="get_attr")] == list(program.state_dict())


def test_new_attributes_do_not_replace_existing_ones() -> None:
    model = Calling(
        lambda m, x: m.bn(F.conv2d(x, m.weight)) * m.fused_weight,
        weight=nn.Parameter(torch.randn(3, 2, 1, 1)),
        fused_weight=nn.Parameter(torch.randn(1)),
        bn=nn.BatchNorm2d(3),
    )
    settle(model.double())
    program = FuseConvBN()(fx.symbolic_trace(model))
    assert set(program.state_dict()) == {"fused_weight", "fused_weight_1", "fused_bias"}
    assert_close(program, model, torch.randn(2, 2, 5, 5, dtype=torch.float64))


class Functional(nn.Module):
    """Batch norm behind a convolution, both called as functions the way ``call`` does it."""

    def __init__(self, call: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.call = call
        self.weight, self.bias = nn.Parameter(torch.randn(3, 2, 3, 3)), nn.Parameter(torch.randn(3))
        self.gain, self.offset = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.register_buffer("mean", torch.randn(3))
        self.register_buffer("variance", torch.rand(3) + 0.5)
        self.double()

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: F.batch_norm(F.conv2d(x, m.weight, m.bias), m.mean, m.variance, m.gain, m.offset),
        lambda m, x: F.batch_norm(F.conv2d(x, m.weight), m.mean, m.variance, m.gain, None, False, 0.1, 0.5),
        lambda m, x: F.batch_norm(
            input=torch.conv2d(input=x, bias=m.bias, weight=m.weight, stride=2),
            running_var=m.variance,
            running_mean=m.mean,
            bias=m.offset,
            eps=0.5,
        ),
        lambda m, x: torch.batch_norm(
            F.conv2d(x, m.weight, padding="same"), m.gain, m.offset, m.mean, m.variance, False, 0.1, 0.5, False
        ),
        lambda m, x: F.batch_norm(F.conv2d(x, m.weight, None, 1, 1), m.mean, m.variance, training=False),
    ],
    ids=["positional", "without bias", "keywords", "torch.batch_norm", "neither gain nor offset"],
)
def test_functions_are_folded_however_their_arguments_are_given(call: Any, untouched: Any) -> None:
    model = untouched(Functional(call).eval())
    program = FuseConvBN()(fx.symbolic_trace(model))
    assert "norm" not in program.code
    assert_close(program, model, torch.randn(2, 2, 6, 6, dtype=torch.float64))


def test_the_functional_transposed_convolution_is_folded_by_group(untouched: Any) -> None:
    weight = nn.Parameter(torch.randn(4, 3, 3))
    model = Calling(
        lambda m, x: m.bn(F.conv_transpose1d(x, m.weight, None, 1, 0, 0, 2)), weight=weight, bn=nn.BatchNorm1d(6)
    )
    untouched(settle(model.double()))
    program = FuseConvBN()(fx.symbolic_trace(model))
    assert names(program) == "x fused_weight fused_bias conv_transpose1d dim eq _assert output"
    assert_close(program, model, torch.randn(2, 4, 5, dtype=torch.float64))


def test_buffers_stay_buffers_and_parameters_keep_requires_grad() -> None:
    weight = torch.randn(3, 2, 1, 1)
    model: Any = Calling(lambda m, x: m.bn(F.conv2d(x, m.weight)), weight=weight, bn=nn.BatchNorm2d(3))
    program = FuseConvBN()(fx.symbolic_trace(settle(model)))
    assert set(dict(program.named_buffers())) == {"fused_weight", "fused_bias"}
    assert not any(buffer.requires_grad for buffer in program.buffers())
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    model[0].weight.requires_grad_(False)
    folded = FuseConvBN()(fx.symbolic_trace(settle(model))).get_submodule("0")
    assert not folded.weight.requires_grad and folded.bias.requires_grad
    assert folded.weight.is_leaf and folded.bias.is_leaf
    fixed = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3, affine=False))
    folded = FuseConvBN()(fx.symbolic_trace(settle(fixed))).get_submodule("0")
    assert folded.weight.requires_grad and not folded.bias.requires_grad


def test_a_folded_module_shares_nothing_that_may_be_written_to() -> None:
    model = settle(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)))
    folded = FuseConvBN()(fx.symbolic_trace(model)).get_submodule("0")
    folded.register_forward_hook(lambda *_: None)
    folded.register_buffer("added", torch.zeros(1))
    assert not model[0]._forward_hooks and not hasattr(model[0], "added")
    assert folded.weight.data_ptr() != model[0].weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("capture", [fx.symbolic_trace, inlined])
def test_the_result_has_the_layers_dtype_and_its_accuracy(dtype: torch.dtype, capture: Any, untouched: Any) -> None:
    model = untouched(settle(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)).to(dtype)))
    program = FuseConvBN()(capture(model))
    assert FuseConvBN().explain(program) == []
    assert {tensor.dtype for tensor in program.state_dict().values()} == {dtype}
    reference = copy.deepcopy(model).double()
    x = torch.randn(2, 8, 6, 6).to(dtype)
    with torch.no_grad():
        expected = reference(x.double())
        own, eager = (program(x) - expected).abs().max(), (model(x) - expected).abs().max()
    assert own <= 4 * eager + 1e-12


def test_half_precision_layers_take_float32_batch_norm() -> None:
    model = settle(nn.Sequential(nn.Conv2d(8, 8, 3).half(), nn.BatchNorm2d(8)))
    program = FuseConvBN()(fx.symbolic_trace(model))
    assert names(program) == "input_1 _0 output"
    x = torch.randn(2, 8, 6, 6).half()
    assert program(x).dtype is model(x).dtype
    assert_close(program, model, x, rtol=2e-2)


def test_the_memory_format_of_weights_is_kept() -> None:
    model = settle(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).to(memory_format=torch.channels_last))
    folded = FuseConvBN()(fx.symbolic_trace(model)).get_submodule("0")
    assert folded.weight.is_contiguous(memory_format=torch.channels_last)


def test_models_without_storage_are_folded_too() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).half().eval()
    program = FuseConvBN()(fx.symbolic_trace(model))
    assert program(torch.empty(2, 4, 5, 5, device="meta", dtype=torch.half)).shape == (2, 6, 3, 3)


def test_the_folded_program_still_trains() -> None:
    model = settle(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double())
    program = FuseConvBN()(fx.symbolic_trace(model))
    program(torch.randn(2, 2, 5, 5, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad is not None for parameter in program.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_several_pairs_and_a_program_that_was_copied() -> None:
    model = settle(
        nn.Sequential(
            nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(inplace=True),
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        ).double()
    )  # fmt: skip
    program = copy.deepcopy(fx.symbolic_trace(model))
    FuseConvBN()(program)
    assert names(program) == "input_1 _0 _2 _3 _5 output"
    assert_close(program, model, torch.randn(2, 2, 7, 7, dtype=torch.float64))


@pytest.fixture(scope="module")
def resnet50() -> nn.Module:
    torch.manual_seed(0)
    return settle(model_zoo.get_model("resnet50").build().double())


@pytest.mark.parametrize("capture, before, after", [(fx.symbolic_trace, 177, 124), (inlined, 444, 232)])
def test_all_53_pairs_of_resnet50_are_folded(
    capture: Any, before: int, after: int, resnet50: nn.Module, untouched: Any
) -> None:
    program = capture(untouched(resnet50))
    assert len(program.graph.nodes) == before
    explained = FuseConvBN().explain(program)
    assert len(explained) == 53 and all(fusion.is_edited for fusion in explained)
    FuseConvBN()(program)
    assert len(program.graph.nodes) == after
    assert FuseConvBN().explain(program) == []
    assert len(program.state_dict()) == 2 * (53 + 1)
    program.graph.lint()
    assert_close(program, resnet50, torch.randn(2, 3, 64, 64, dtype=torch.float64), rtol=1e-8)


# Linear layers: batch norm is along dimension 1, which is the features' only in a matrix.


def linear_model(*before: nn.Module) -> nn.Module:
    return settle(nn.Sequential(*before, nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double())


@SPELLINGS
def test_linear_layers_of_unknown_rank_are_folded_with_a_check_or_left_alone(capture: Any, untouched: Any) -> None:
    model = untouched(linear_model())
    program = capture(model)
    name = "_0" if capture is fx.symbolic_trace else "linear"
    unknown = f"it is not known that `%{name}` has 2 dimensions: record shapes to fold it"
    assert_left_alone(program, unknown, FuseConvBN(checked=False))
    assert reasons(program) == [f"folded into `%{name}`, with a check that it has 2 dimensions"]
    program = FuseConvBN()(program)
    program.graph.lint()
    assert not reasons(program)
    assert_close(program, model, torch.randn(3, 4, dtype=torch.float64))
    # eager accepts this too, and normalizes the other dimension
    with pytest.raises(
        AssertionError, match=f"fuse-conv-bn folded .* into {name}, which holds only where {name} has 2 dim"
    ):
        program(torch.randn(2, 4, 4, dtype=torch.float64))


def test_one_check_is_enough_for_the_layers_behind_it() -> None:
    pair = [nn.Linear(4, 4), nn.BatchNorm1d(4)]
    model = settle(nn.Sequential(*pair, nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4)).double())
    program = FuseConvBN()(fx.symbolic_trace(model))
    assert names(program) == "input_1 _0 dim eq _assert _2 _3 output"
    assert_close(program, model, torch.randn(3, 4, dtype=torch.float64))


@SPELLINGS
def test_linear_layers_are_folded_behind_flatten(capture: Any, untouched: Any) -> None:
    model = untouched(linear_model(nn.Flatten()))
    program = FuseConvBN()(capture(model))
    assert "norm" not in program.code
    assert_close(program, model, torch.randn(3, 2, 2, dtype=torch.float64))


def record_shapes(program: fx.GraphModule, x: Tensor) -> None:
    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            n.meta["val"] = value = super().run_node(n)
            return value

    Recorder(program).run(x)


@pytest.mark.parametrize("rank", [2, 3])
def test_recorded_shapes_decide_about_linear_layers(rank: int) -> None:
    program = fx.symbolic_trace(linear_model())
    record_shapes(program, torch.randn(*[4] * rank, dtype=torch.float64))
    if rank == 2:
        assert reasons(program) == ["folded into `%_0`"]
    else:
        wrong = "`%_0` has 3 dimensions, where batch norm is not along the layer's features"
        assert_left_alone(program, wrong)


def test_recorded_shapes_that_deny_a_batch_dimension_are_believed() -> None:
    model = settle(nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)).double())
    program = fx.symbolic_trace(model)
    record_shapes(program, torch.randn(2, 6, dtype=torch.float64))
    assert_left_alone(program, "`%_0` has 2 dimensions, where batch norm is not along the layer's features")


# What is reported.


def test_explanations_are_frozen_records_with_the_users_line() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.late = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.BatchNorm2d(2)

        def forward(self, x: Any) -> Any:
            y = self.bn(self.conv(x))
            return self.late(y)

    program = fx.symbolic_trace(settle(Model()))
    first, second = FuseConvBN().explain(program)
    assert (first.node, first.is_edited, first.reason) == ("bn", True, "folded into `%conv`")
    assert (second.node, second.is_edited) == ("late", False)
    assert first.where is not None and first.where.text == "y = self.bn(self.conv(x))"
    assert second.where is not None and second.where.text == "return self.late(y)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.is_edited = False  # type: ignore[misc]
    assert len(program.graph.nodes) == 5  # as before


def test_the_pass_returns_the_program_it_was_given() -> None:
    program = fx.symbolic_trace(pair())
    assert FuseConvBN()(program) is program


@SPELLINGS
def test_a_convolution_in_one_dimension_is_folded_for_batches_only(capture: Any, untouched: Any) -> None:
    model = untouched(settle(nn.Sequential(nn.Conv1d(4, 6, 1), nn.BatchNorm1d(6)).double()))
    program = capture(model)
    assert "it is not known that" in reasons(program, FuseConvBN(checked=False))[0]
    assert [reason.partition(", ")[2] for reason in reasons(program)] == ["with a check that it has 3 dimensions"]
    FuseConvBN()(program)
    assert_close(program, model, torch.randn(2, 4, 6, dtype=torch.float64))
    # as many columns as channels: eager normalizes along the columns
    with pytest.raises(AssertionError, match=r"holds only where .* has 3 dimensions"):
        program(torch.randn(4, 6, dtype=torch.float64))


def test_recorded_shapes_spare_convolutions_the_check() -> None:
    model = settle(
        nn.Sequential(nn.Conv1d(4, 6, 1), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 6, 1), nn.BatchNorm1d(6))
    )
    program = fx.symbolic_trace(model)
    assert [", with a check" in reason for reason in reasons(program)] == [True, False]
    ShapeProp(program).propagate(torch.randn(2, 4, 8))
    assert [", with a check" in reason for reason in reasons(program)] == [False, False]
    alone = fx.symbolic_trace(model[:2])
    ShapeProp(alone).propagate(torch.randn(4, 6))
    assert reasons(alone) == ["`%_0` has 2 dimensions, where batch norm is not along the layer's features"]

"""Batch norm folded into the layer before it: what is folded computes the same, and what is not says why."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fx
import model_zoo
from fx.passes import FuseConvBN, RemoveChecks, close


class WithoutLeaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def settle(model: nn.Module) -> nn.Module:
    """Evaluation mode, with statistics and weights as training leaves them."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None and module.running_var is not None:
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                nn.init.normal_(module.bias)
    return model.eval()


def traced(model: nn.Module) -> fx.GraphModule:
    """The program with modules as leaves."""
    return fx.symbolic_trace(model)


def inlined(model: nn.Module) -> fx.GraphModule:
    """The program of functions on fetched tensors, without checks."""
    with mock.patch.object(nn.BatchNorm1d, "_check_input_dim", return_value=None):
        graph = WithoutLeaves().trace(model)
    return RemoveChecks()(fx.GraphModule(model, graph))


SPELLINGS = pytest.mark.parametrize("capture", [traced, inlined])


def names(program: fx.GraphModule) -> str:
    return " ".join(node.name for node in program.graph.nodes)


def reasons(program: fx.GraphModule, pass_: FuseConvBN | None = None) -> list[str]:
    return [fusion.reason for fusion in (pass_ or FuseConvBN()).explain(program)]


def assert_close(program: fx.GraphModule, model: nn.Module, *inputs: Tensor, rtol: float = 1e-10) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(*inputs), model(*inputs), rtol=rtol, atol=rtol)


def assert_left_alone(program: fx.GraphModule, reason: str, pass_: FuseConvBN | None = None) -> None:
    """Nothing changes, and the (first) batch norm's reason is the expected one."""
    before, revision = names(program), program.graph.revision
    assert reasons(program, pass_)[0] == reason
    (pass_ or FuseConvBN())(program)
    assert names(program) == before
    assert program.graph.revision == revision


@pytest.fixture
def untouched() -> Iterator[Callable[[nn.Module], nn.Module]]:
    """Registers models whose tensors must be bit for bit what they were when the test ends."""
    watched: list[tuple[nn.Module, dict[str, Tensor], list[str]]] = []

    def watch(model: nn.Module) -> nn.Module:
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        watched.append((model, state, [name for name, _ in model.named_modules()]))
        return model

    yield watch
    for model, state, modules in watched:
        assert [name for name, _ in model.named_modules()] == modules
        assert model.state_dict().keys() == state.keys()
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, state[name]), name


# What is folded.

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
    program = capture(model)
    FuseConvBN()(program)
    assert "norm" not in program.code and "1" not in dict(program.named_children())
    assert_close(program, model, torch.randn(2, 4, *size, dtype=torch.float64))
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
    program = FuseConvBN()(traced(model))
    assert names(program) == "input_1 _0 output"
    assert_close(program, model, torch.randn(2, 2, 5, 5, dtype=torch.float64))


def test_module_layers_keep_their_names_and_lose_the_batch_norm() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.ModuleDict({"conv": nn.Conv2d(2, 3, 3, bias=False), "bn": nn.BatchNorm2d(3)})

        def forward(self, x: Any) -> Any:
            return torch.relu(self.block["bn"](self.block["conv"](x)))

    model = settle(Model())
    program = FuseConvBN()(traced(model))
    assert names(program) == "x block_conv relu output"
    assert list(program.state_dict()) == ["block.conv.weight", "block.conv.bias"]
    assert isinstance(program.block.conv, nn.Conv2d) and program.block.conv is not model.block["conv"]
    assert not hasattr(program.block, "bn")


def test_function_layers_get_new_attributes_with_readable_names() -> None:
    model = settle(nn.Sequential(nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3))))
    program = FuseConvBN()(inlined(model))
    assert list(program.state_dict()) == ["0.0.fused_weight", "0.0.fused_bias"]
    assert [node.target for node in program.graph.find_nodes(op="get_attr")] == list(program.state_dict())


def test_new_attributes_do_not_replace_what_is_there() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.fused_weight = nn.Parameter(torch.randn(3, 2, 1, 1)), nn.Parameter(torch.randn(1))
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x: Any) -> Any:
            return self.bn(F.conv2d(x, self.weight)) * self.fused_weight

    model = settle(Model().double())
    program = FuseConvBN()(traced(model))
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
    model = untouched(Functional(call))
    program = FuseConvBN()(traced(model))
    assert "norm" not in program.code
    assert_close(program, model, torch.randn(2, 2, 6, 6, dtype=torch.float64))


def test_the_functional_transposed_convolution_is_folded_by_group(untouched: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bn = nn.Parameter(torch.randn(4, 3, 3)), nn.BatchNorm1d(6)

        def forward(self, x: Any) -> Any:
            return self.bn(F.conv_transpose1d(x, self.weight, None, 1, 0, 0, 2))

    model = untouched(settle(Model().double()))
    program = FuseConvBN()(traced(model))
    assert names(program) == "x fused_weight fused_bias conv_transpose1d output"
    assert_close(program, model, torch.randn(2, 4, 5, dtype=torch.float64))


def test_buffers_stay_buffers_and_parameters_keep_requires_grad() -> None:
    class Buffers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(3, 2, 1, 1))
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x: Any) -> Any:
            return self.bn(F.conv2d(x, self.weight))

    program = FuseConvBN()(traced(settle(Buffers())))
    assert set(dict(program.named_buffers())) == {"fused_weight", "fused_bias"}
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    model[0].weight.requires_grad_(False)
    folded = FuseConvBN()(traced(settle(model))).get_submodule("0")
    assert not folded.weight.requires_grad and folded.bias.requires_grad
    assert folded.weight.is_leaf and folded.bias.is_leaf
    fixed = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3, affine=False))
    folded = FuseConvBN()(traced(settle(fixed))).get_submodule("0")
    assert folded.weight.requires_grad and not folded.bias.requires_grad


def test_a_folded_module_shares_nothing_that_may_be_written_to() -> None:
    model = settle(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)))
    folded = FuseConvBN()(traced(model)).get_submodule("0")
    folded.register_forward_hook(lambda *_: None)
    folded.register_buffer("added", torch.zeros(1))
    assert not model[0]._forward_hooks and not hasattr(model[0], "added")
    assert folded.weight.data_ptr() != model[0].weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("capture", [traced, inlined])
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
    program = FuseConvBN()(traced(model))
    assert names(program) == "input_1 _0 output"
    x = torch.randn(2, 8, 6, 6).half()
    assert program(x).dtype is model(x).dtype
    assert_close(program, model, x, rtol=2e-2)


def test_the_memory_format_of_weights_is_kept() -> None:
    model = settle(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).to(memory_format=torch.channels_last))
    folded = FuseConvBN()(traced(model)).get_submodule("0")
    assert folded.weight.is_contiguous(memory_format=torch.channels_last)


def test_models_without_storage_are_folded_too() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).half().eval()
    program = FuseConvBN()(traced(model))
    assert program(torch.empty(2, 4, 5, 5, device="meta", dtype=torch.half)).shape == (2, 6, 3, 3)


def test_the_folded_program_still_trains() -> None:
    model = settle(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double())
    program = FuseConvBN()(traced(model))
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
    program = copy.deepcopy(traced(model))
    FuseConvBN()(program)
    assert names(program) == "input_1 _0 _2 _3 _5 output"
    assert_close(program, model, torch.randn(2, 2, 7, 7, dtype=torch.float64))


@pytest.fixture(scope="module")
def resnet50() -> nn.Module:
    torch.manual_seed(0)
    return settle(model_zoo.get_model("resnet50").build().double())


@pytest.mark.parametrize("capture, before, after", [(traced, 177, 124), (inlined, 444, 232)])
def test_all_53_pairs_of_resnet50_are_folded(
    capture: Any, before: int, after: int, resnet50: nn.Module, untouched: Any
) -> None:
    program = capture(untouched(resnet50))
    assert len(program.graph.nodes) == before
    explained = FuseConvBN().explain(program)
    assert len(explained) == 53 and all(fusion.fused for fusion in explained)
    FuseConvBN()(program)
    assert len(program.graph.nodes) == after
    assert FuseConvBN().explain(program) == []
    assert len(program.state_dict()) == 2 * (53 + 1)
    program.graph.lint()
    assert_close(program, resnet50, torch.randn(2, 3, 64, 64, dtype=torch.float64), rtol=1e-8)


# Linear layers: batch norm is along dimension 1, which is the features' only in a matrix.


def linear_model(*before: nn.Module) -> nn.Module:
    return settle(nn.Sequential(*before, nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double())


RANK_UNKNOWN = "`%{}` may have three dimensions, and then batch norm is not along the layer's features"


@SPELLINGS
def test_linear_layers_are_left_alone_where_their_rank_is_not_known(capture: Any) -> None:
    model = linear_model()
    program = capture(model)
    assert_left_alone(program, RANK_UNKNOWN.format("_0" if capture is traced else "linear"))
    assert_close(program, model, torch.randn(2, 4, 4, dtype=torch.float64), rtol=0)


@SPELLINGS
def test_linear_layers_are_folded_behind_flatten(capture: Any, untouched: Any) -> None:
    model = untouched(linear_model(nn.Flatten()))
    program = FuseConvBN()(capture(model))
    assert "norm" not in program.code
    assert_close(program, model, torch.randn(3, 2, 2, dtype=torch.float64))


def test_linear_layers_are_folded_if_the_user_says_that_they_see_matrices(untouched: Any) -> None:
    model = untouched(linear_model())
    program = FuseConvBN(assume_matrices=True)(traced(model))
    assert names(program) == "input_1 _0 _2 _3 output"
    assert_close(program, model, torch.randn(3, 4, dtype=torch.float64))


def record_shapes(program: fx.GraphModule, x: Tensor) -> None:
    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            n.meta["val"] = value = super().run_node(n)
            return value

    Recorder(program).run(x)


@pytest.mark.parametrize("rank", [2, 3])
def test_recorded_shapes_decide_about_linear_layers(rank: int) -> None:
    program = traced(linear_model())
    record_shapes(program, torch.randn(*[4] * rank, dtype=torch.float64))
    if rank == 2:
        assert reasons(program) == ["folded into `%_0`"]
    else:
        wrong = "`%_0` has 3 dimensions, where batch norm is not along the layer's features"
        assert_left_alone(program, wrong)
        assert_left_alone(program, wrong, FuseConvBN(assume_matrices=True))


def test_recorded_shapes_that_deny_a_batch_dimension_are_believed() -> None:
    model = settle(nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)).double())
    program = traced(model)
    record_shapes(program, torch.randn(2, 6, dtype=torch.float64))
    assert_left_alone(program, "`%_0` has 2 dimensions, where batch norm is not along the layer's features")


# What is left alone.


def pair(**options: Any) -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, **options))
    settle(model)
    return model


class Own(nn.Module):
    """A model made of a convolution, a batch norm and a function of both."""

    def __init__(self, call: Callable[[Any, Any], Any], **extra: nn.Module) -> None:
        super().__init__()
        self.conv, self.bn, self.call = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), call
        for name, module in extra.items():
            self.add_module(name, module)
        settle(self)

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


def test_training_mode_is_left_alone() -> None:
    program = traced(pair().train())
    assert_left_alone(program, "it is in training mode, where it normalizes with the statistics of each batch")


def test_batch_norm_that_alone_is_in_training_mode_is_left_alone() -> None:
    model = pair()
    model[1].train()
    program = traced(model)
    assert_left_alone(program, "it is in training mode, where it normalizes with the statistics of each batch")


@pytest.mark.parametrize("training", [True, "x"])
def test_functional_training_mode_is_left_alone(training: Any) -> None:
    def call(m: Any, x: Any) -> Any:
        flag = x if training == "x" else training
        return F.batch_norm(m.conv(x), m.bn.running_mean, m.bn.running_var, training=flag)

    program = traced(Own(call))
    assert_left_alone(program, "it is in training mode, where it normalizes with the statistics of each batch")


def test_batch_norm_without_running_statistics_is_left_alone() -> None:
    assert_left_alone(traced(pair(track_running_stats=False)), "it keeps no running statistics")
    program = traced(Own(lambda m, x: F.batch_norm(m.conv(x), None, None)))
    assert_left_alone(program, "it keeps no running statistics")


def test_batch_norm_behind_something_else_is_left_alone() -> None:
    reason = "its input `{}` is not the result of one of torch's own convolution or linear layers"
    assert_left_alone(traced(Own(lambda m, x: m.bn(torch.relu(m.conv(x))))), reason.format("relu"))
    assert_left_alone(traced(Own(lambda m, x: m.bn(x))), reason.format("x"))


def test_a_result_with_other_users_is_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        y = m.conv(x)
        return m.bn(y) + y

    program = traced(Own(call))
    assert_left_alone(program, "the result of `%conv` is also used by `%add`")


def test_a_result_that_is_returned_too_is_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        y = m.conv(x)
        return m.bn(y), y

    assert_left_alone(traced(Own(call)), "the result of `%conv` is also used by `%output`")


def test_a_result_that_is_changed_in_place_is_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        y = m.conv(x)
        y.add_(1)
        return m.bn(y)

    assert_left_alone(traced(Own(call)), "the result of `%conv` is also used by `%add_`")


SHARED = "`%{}` shares its module or its tensors with another operation"


def test_a_convolution_that_is_called_twice_is_left_alone(untouched: Any) -> None:
    model = untouched(Own(lambda m, x: m.bn(m.conv(m.conv(x)))))
    program = traced(model)
    assert_left_alone(program, SHARED.format("conv_1"))
    assert_close(program, model, torch.randn(1, 2, 2, 2), rtol=0)


def test_a_batch_norm_that_is_called_twice_is_left_alone() -> None:
    program = traced(Own(lambda m, x: m.bn(m.conv(x)) + m.bn(m.other(x)), other=nn.Conv2d(2, 2, 1)))
    assert_left_alone(program, SHARED.format("bn"))
    assert reasons(program)[1] == SHARED.format("bn_1")


def test_one_module_under_two_names_is_left_alone() -> None:
    model = Own(lambda m, x: m.bn(m.conv(m.alias(x))))
    model.alias = model.conv
    assert_left_alone(traced(model), SHARED.format("conv_1"))


def test_tied_weights_are_left_alone() -> None:
    model = Own(lambda m, x: m.bn(m.conv(m.other(x))), other=nn.Conv2d(2, 2, 1))
    model.other.weight = model.conv.weight
    assert_left_alone(traced(model), SHARED.format("conv"))


def test_parameters_that_are_fetched_elsewhere_are_left_alone() -> None:
    assert_left_alone(traced(Own(lambda m, x: m.bn(m.conv(x)) * m.conv.bias.sum())), SHARED.format("conv"))
    assert_left_alone(traced(Own(lambda m, x: m.bn(m.conv(x)) * m.bn.running_mean)), SHARED.format("bn"))


def test_functional_weights_that_are_used_twice_are_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        weight, bn = m.conv.weight, m.bn
        return F.batch_norm(F.conv2d(F.conv2d(x, weight), weight), bn.running_mean, bn.running_var)

    assert_left_alone(traced(Own(call)), SHARED.format("conv2d_1"))


def test_functional_statistics_that_are_fetched_twice_are_left_alone() -> None:
    graph = fx.Graph()
    x, weight = graph.placeholder("x"), graph.get_attr("weight")
    mean, again, variance = graph.get_attr("mean"), graph.get_attr("mean"), graph.get_attr("variance")
    result = graph.call_function(F.batch_norm, (graph.call_function(F.conv2d, (x, weight)), mean, variance))
    graph.output((result, again))
    tensors = {"weight": nn.Parameter(torch.ones(1, 1, 1, 1)), "mean": torch.zeros(1), "variance": torch.ones(1)}
    assert_left_alone(fx.GraphModule(tensors, graph), SHARED.format("batch_norm"))


def test_hooks_are_left_alone() -> None:
    for index, name in ((0, "_0"), (1, "_1")):
        for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
            model = pair()
            getattr(model[index], register)(lambda *_: None)
            assert_left_alone(traced(model), f"`%{name}` has hooks or a forward of its own")


def test_a_forward_of_its_own_is_left_alone() -> None:
    model = pair()
    model[0].forward = lambda x: x[:, :1].repeat(1, 3, 1, 1)
    program = fx.symbolic_trace(model)
    assert_left_alone(program, "`%_0` has hooks or a forward of its own")


def test_subclasses_are_left_alone() -> None:
    class Halved(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) / 2

    class Doubled(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return not isinstance(m, nn.Sequential)

    halved = settle(nn.Sequential(Halved(2, 3, 1), nn.BatchNorm2d(3)))
    reason = "its input `_0` is not the result of one of torch's own convolution or linear layers"
    assert_left_alone(fx.GraphModule(halved, Tracer().trace(halved)), reason)
    doubled = settle(nn.Sequential(nn.Conv2d(2, 3, 1), Doubled(3)))
    assert_left_alone(fx.GraphModule(doubled, Tracer().trace(doubled)), "its class `Doubled` is not one of torch's own")


@pytest.mark.parametrize("parametrize", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal])
def test_parametrized_layers_are_left_alone(parametrize: Any) -> None:
    model = settle(nn.Sequential(parametrize(nn.Conv2d(2, 3, 1)), nn.BatchNorm2d(3)))
    program = traced(model)
    reason = "its input `_0` is not the result of one of torch's own convolution or linear layers"
    assert_left_alone(program, reason)


def test_weights_that_the_program_computes_are_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        return F.batch_norm(F.conv2d(x, m.conv.weight * 2), m.bn.running_mean, m.bn.running_var)

    reason = "the weight of `%conv2d` is computed by the program, or is no plain tensor"
    assert_left_alone(traced(Own(call)), reason)


def test_settings_that_the_program_computes_are_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        return F.batch_norm(m.conv(x), m.bn.running_mean, m.bn.running_var, eps=x.sum())

    assert_left_alone(traced(Own(call)), "a setting of `%batch_norm` is computed by the program")


def test_tensors_of_other_classes_are_left_alone() -> None:
    class Marked(Tensor):
        pass

    model = pair()
    model[0].weight = nn.Parameter(torch.randn(3, 2, 3, 3).as_subclass(Marked))
    reason = "the weight of `%_0` is computed by the program, or is no plain tensor"
    assert_left_alone(traced(model), reason)


def test_layers_inside_a_module_that_is_called_whole_are_left_alone(untouched: Any) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

        def forward(self, x: Any) -> Any:
            return x

    model = untouched(settle(Whole()))
    graph = fx.Graph()
    x = graph.placeholder("x")
    whole = graph.call_module("whole", (x,))
    graph.output(graph.call_module("whole.bn", (graph.call_module("whole.conv", (whole,)),)))
    root = nn.Module()
    root.whole = model
    program = fx.GraphModule(root, graph)
    # The call of the whole uses the parameters too, which is why they are shared as well.
    assert_left_alone(program, SHARED.format("whole_conv"))


def test_batch_norm_of_another_dtype_or_width_is_left_alone() -> None:
    reason = "`%_0` and batch norm differ in channels, dtype or device"
    mixed = settle(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3).double()))
    assert_left_alone(traced(mixed), reason)
    assert_left_alone(traced(settle(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(4)))), reason)


@pytest.mark.parametrize("variance", [1e-16, 1e12])
def test_folds_that_half_precision_cannot_hold_are_left_alone(variance: float) -> None:
    model = pair(eps=0.0)
    nn.init.constant_(model[1].running_var, variance)
    program = traced(nn.Sequential(model[0].half(), model[1]).eval())
    assert_left_alone(program, "the folded weight of `%_0` would be too large or too small for torch.float16")


# What is reported.


def test_explanations_are_frozen_records_with_the_users_line() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.late = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.BatchNorm2d(2)

        def forward(self, x: Any) -> Any:
            y = self.bn(self.conv(x))
            return self.late(y)

    program = traced(settle(Model()))
    first, second = FuseConvBN().explain(program)
    assert (first.node, first.fused, first.reason) == ("bn", True, "folded into `%conv`")
    assert (second.node, second.fused) == ("late", False)
    assert first.where is not None and first.where.text == "y = self.bn(self.conv(x))"
    assert second.where is not None and second.where.text == "return self.late(y)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.fused = False  # type: ignore[misc]


def test_explaining_changes_nothing(untouched: Any) -> None:
    model = untouched(pair())
    program = traced(model)
    revision = program.graph.revision
    FuseConvBN().explain(program)
    assert program.graph.revision == revision
    assert program.get_submodule("0") is model[0]


def test_the_pass_returns_the_program_it_was_given_and_promises_close_results() -> None:
    program = traced(pair())
    assert FuseConvBN()(program) is program
    assert FuseConvBN().contract is close
    assert FuseConvBN().name == "fuse-conv-bn"

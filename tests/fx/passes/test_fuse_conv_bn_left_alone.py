"""Batch norms that are not folded: nothing changes, and the reason says why."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batch_norm_models import assert_left_alone, inlined, own, pair, reasons
from building import Calling, settle
from torch import Tensor, nn

import fx

IN_TRAINING = "it is in training mode, where it normalizes with the statistics of each batch"
NO_STATISTICS = "it keeps no running statistics"
NO_LAYER = "its input `{}` is not the result of one of torch's own convolution or linear layers"
OTHER_USER = "the result of `%conv` is also used by `%{}`"
SHARED = "`%{}` shares its module or its tensors with another operation"
COMPUTED = "the {} of `%{}` is computed by the program, or is not a plain tensor"


def normalized(m: Any, y: Any, **settings: Any) -> Any:
    return F.batch_norm(y, m.bn.running_mean, m.bn.running_var, **settings)


def called_twice(m: Any, x: Any) -> Any:
    return normalized(m, F.conv2d(F.conv2d(x, m.conv.weight), m.conv.weight))


PROGRAMS: dict[str, tuple[Any, str]] = {
    "training mode of a function": (lambda m, x: normalized(m, m.conv(x), training=True), IN_TRAINING),
    "training mode that is computed": (lambda m, x: normalized(m, m.conv(x), training=x), IN_TRAINING),
    "no statistics": (lambda m, x: F.batch_norm(m.conv(x), None, None), NO_STATISTICS),
    "another operation before it": (lambda m, x: m.bn(torch.relu(m.conv(x))), NO_LAYER.format("relu")),
    "an input before it": (lambda m, x: m.bn(x), NO_LAYER.format("x")),
    "used by another operation": (lambda m, x: m.bn(y := m.conv(x)) + y, OTHER_USER.format("add")),
    "returned": (lambda m, x: (m.bn(y := m.conv(x)), y), OTHER_USER.format("output")),
    "changed in place": (lambda m, x: ((y := m.conv(x)).add_(1), m.bn(y))[1], OTHER_USER.format("add_")),
    "a layer called twice": (lambda m, x: m.bn(m.conv(m.conv(x))), SHARED.format("conv_1")),
    "a bias fetched elsewhere": (lambda m, x: m.bn(m.conv(x)) * m.conv.bias.sum(), SHARED.format("conv")),
    "a mean fetched elsewhere": (lambda m, x: m.bn(m.conv(x)) * m.bn.running_mean, SHARED.format("bn")),
    "a weight of two functions": (called_twice, SHARED.format("conv2d_1")),
    "a weight that is computed": (
        lambda m, x: normalized(m, F.conv2d(x, m.conv.weight * 2)),
        COMPUTED.format("weight", "conv2d"),
    ),
    "a setting that is computed": (
        lambda m, x: normalized(m, m.conv(x), eps=x.sum()),
        "a setting of `%batch_norm` is computed by the program",
    ),
}


@pytest.mark.parametrize("call, reason", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_are_left_alone(call: Any, reason: str, untouched: Any) -> None:
    model = untouched(own(call))
    assert_left_alone(fx.symbolic_trace(model), reason)


def test_modules_in_training_mode_or_without_statistics_are_left_alone() -> None:
    assert_left_alone(fx.symbolic_trace(pair().train()), IN_TRAINING)
    model = pair()
    model[1].train()
    assert_left_alone(fx.symbolic_trace(model), IN_TRAINING)
    assert_left_alone(fx.symbolic_trace(pair(track_running_stats=False)), NO_STATISTICS)


def test_a_functional_batch_norm_whose_parameters_are_trained_is_left_alone() -> None:
    program = inlined(pair()).train()
    assert_left_alone(program, "the program is in training mode, and its weight and bias are trained")
    assert reasons(program.eval()) == ["folded into `%conv2d`"]


def test_a_batch_norm_that_is_called_twice_is_left_alone() -> None:
    program = fx.symbolic_trace(own(lambda m, x: m.bn(m.conv(x)) + m.bn(m.other(x)), other=nn.Conv2d(2, 2, 1)))
    assert_left_alone(program, SHARED.format("bn"))
    assert reasons(program)[1] == SHARED.format("bn_1")


def test_one_module_under_two_names_is_left_alone() -> None:
    model = own(lambda m, x: m.bn(m.conv(m.alias(x))))
    model.alias = model.conv
    assert_left_alone(fx.symbolic_trace(model), SHARED.format("conv_1"))


def test_tied_weights_are_left_alone() -> None:
    model = own(lambda m, x: m.bn(m.conv(m.other(x))), other=nn.Conv2d(2, 2, 1))
    model.other.weight = model.conv.weight
    assert_left_alone(fx.symbolic_trace(model), SHARED.format("conv"))


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
            assert_left_alone(fx.symbolic_trace(model), f"`%{name}` has hooks or a forward of its own")


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
    assert_left_alone(fx.GraphModule(halved, Tracer().trace(halved)), NO_LAYER.format("_0"))
    doubled = settle(nn.Sequential(nn.Conv2d(2, 3, 1), Doubled(3)))
    assert_left_alone(fx.GraphModule(doubled, Tracer().trace(doubled)), "its class `Doubled` is not one of torch's own")


@pytest.mark.parametrize("parametrize", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal])
def test_parametrized_layers_are_left_alone(parametrize: Any) -> None:
    model = settle(nn.Sequential(parametrize(nn.Conv2d(2, 3, 1)), nn.BatchNorm2d(3)))
    assert_left_alone(fx.symbolic_trace(model), NO_LAYER.format("_0"))


@pytest.mark.parametrize("training", [False, True])
def test_weights_and_statistics_that_are_inputs_are_left_alone(training: bool) -> None:
    def function(x: Any, weight: Any, mean: Any, variance: Any) -> Any:
        return F.batch_norm(F.conv2d(x, weight), mean, variance)

    program = fx.symbolic_trace(function).train(training)
    reason = "the {} of `%{}` is the input `{}`, not known before the program runs"
    assert_left_alone(program, reason.format("weight", "conv2d", "weight"))
    program = fx.symbolic_trace(own(lambda m, x: F.batch_norm(m.conv(x), x[0, :, 0, 0], x[1, :, 0, 0]))).train(training)
    assert_left_alone(program, COMPUTED.format("running_mean", "batch_norm"))


def test_tensors_of_other_classes_are_left_alone() -> None:
    class Marked(Tensor):
        pass

    model = pair()
    model[0].weight = nn.Parameter(torch.randn(3, 2, 3, 3).as_subclass(Marked))
    assert_left_alone(fx.symbolic_trace(model), COMPUTED.format("weight", "_0"))


def test_layers_inside_a_module_that_is_called_whole_are_left_alone(untouched: Any) -> None:
    model = untouched(settle(Calling(lambda m, x: x, conv=nn.Conv2d(2, 2, 1), bn=nn.BatchNorm2d(2))))
    graph = fx.Graph()
    x = graph.placeholder("x")
    whole = graph.call_module("whole", (x,))
    graph.output(graph.call_module("whole.bn", (graph.call_module("whole.conv", (whole,)),)))
    root = nn.Module()
    root.whole = model
    program = fx.GraphModule(root, graph)
    # The call of the whole uses the parameters too, which is why they are shared as well.
    assert_left_alone(program, SHARED.format("whole_conv"))


def test_layers_inside_a_module_of_the_users_are_left_alone(untouched: Any) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

    block = untouched(settle(Block()))
    program = fx.symbolic_trace(lambda x: x)
    program.add_submodule("block", block)
    graph = program.graph
    x, output = graph.nodes
    with graph.inserting_before(output):
        output.args = (graph.call_module("block.bn", (graph.call_module("block.conv", (x,)),)),)
    program.recompile()
    reason = "`%block_conv` is inside a module that may be the user's, not a container of the program"
    assert_left_alone(program, reason)


def test_batch_norm_of_another_dtype_or_width_is_left_alone() -> None:
    reason = "`%_0` and batch norm differ in channels, dtype or device"
    mixed = settle(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3).double()))
    assert_left_alone(fx.symbolic_trace(mixed), reason)
    assert_left_alone(fx.symbolic_trace(settle(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(4)))), reason)


@pytest.mark.parametrize("variance", [1e-16, 1e12])
def test_folds_that_half_precision_cannot_hold_are_left_alone(variance: float) -> None:
    model = pair(eps=0.0)
    nn.init.constant_(model[1].running_var, variance)
    program = fx.symbolic_trace(nn.Sequential(model[0].half(), model[1]).eval())
    assert_left_alone(program, "the folded weight of `%_0` would be too large or too small for torch.float16")


@pytest.mark.parametrize("path, holder", [("conv.weight", "conv"), ("bn.weight", "bn"), ("bn.running_mean", "bn")])
def test_tensors_whose_memory_the_program_writes_to_are_left_alone(path: str, holder: str) -> None:
    def call(m: Any, x: Any) -> Any:
        m.window.mul_(x.mean())
        return m.bn(m.conv(x))

    class Reading(fx.Tracer):
        proxy_buffer_attributes = True

    model = own(call).eval()
    model.register_buffer("window", operator.attrgetter(path)(model).detach()[0])
    program = fx.GraphModule(model, Reading().trace(model))
    line = call.__code__.co_firstlineno + 1
    assert_left_alone(
        program, f"`%mul_` writes to `%window`, {__file__}:{line}, which may be memory that `%{holder}` holds or reads"
    )


def test_a_mode_that_is_set_between_the_two_is_respected() -> None:
    program = fx.symbolic_trace(pair())
    (norm,) = program.graph.find_nodes(op="call_module", target="1")
    enter: Any = torch.amp
    with program.graph.inserting_before(norm):
        program.graph.call_function(enter._enter_autocast, ("cpu", None, True, None))
    program.recompile()
    assert_left_alone(
        program, "`%_enter_autocast` changes state outside of the program, which may change what `%_0` computes"
    )

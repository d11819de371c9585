"""Localization where a pass changes several nodes together: a change that a later one compensates is not blamed."""

from __future__ import annotations

import pytest
import torch
from building import subject_of
from judged import located
from torch import nn
from torch.nn import functional

import fx
from fx.passes import close
from pytest_fx.failures.gradient_localization import localize_gradient
from pytest_fx.harness.pass_run import PassRun


class Wide(nn.Module):
    """A perceptron, half of whose hidden units are 0."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.last = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(4, 3)
        with torch.no_grad():
            self.up.weight[8:], self.up.bias[8:] = 0, 0

    def forward(self, x):
        x = self.up(x)
        x = functional.gelu(x)
        x = self.down(x)
        return self.last(torch.tanh(x))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        x = self.conv(x)
        x = functional.avg_pool2d(x, 2)
        return self.last(torch.relu(x))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer, self.last = nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 2)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 2)
            self.norm.bias.normal_()

    def forward(self, x):
        x = self.norm(x)
        x = self.layer(x)
        return self.last(torch.sigmoid(x))


def weights(module, weight, bias):
    module.weight, module.bias = (
        None if each is None else nn.Parameter(each.detach().clone()) for each in (weight, bias)
    )
    return module


def cut_width(program, bias):
    up, down = program.get_submodule("up"), program.get_submodule("down")
    program.set_submodule("up", weights(nn.Linear(8, 8), up.weight[:8], up.bias[:8]))
    program.set_submodule("down", weights(nn.Linear(8, 4), down.weight[:, :8], down.bias if bias else None))


def move_pool(program, bias):
    (conv,) = program.graph.find_nodes(op="call_module", target="conv")
    (pool,) = program.graph.find_nodes(op="call_function", target=functional.avg_pool2d)
    image = conv.args[0]
    pool.replace_all_uses_with(conv)
    pool.args = (image, *pool.args[1:])
    conv.prepend(pool)
    conv.args = (pool,)
    old = program.get_submodule("conv")
    program.set_submodule("conv", weights(nn.Conv2d(3, 4, 1), old.weight, old.bias if bias else None))


def move_gain(program, bias):
    norm, layer = program.get_submodule("norm"), program.get_submodule("layer")
    moved = layer.bias + layer.weight @ norm.bias if bias else layer.bias
    program.set_submodule("layer", weights(nn.Linear(8, 6), layer.weight * norm.weight, moved))
    program.set_submodule("norm", nn.LayerNorm(8, eps=norm.eps, elementwise_affine=False))


TOGETHER = [
    (Wide, (5, 8), cut_width, "down"),
    (Pooled, (2, 3, 8, 8), move_pool, "conv"),
    (Normed, (5, 8), move_gain, "layer"),
]


@pytest.mark.parametrize("module, shape, change, second", TOGETHER)
def test_an_intended_change_is_not_the_first_wrong_node(module, shape, change, second):
    def forget_the_bias(program):
        change(program, bias=False)
        program.recompile()

    torch.manual_seed(0)
    localization = located(subject_of(module(), torch.randn(shape)), forget_the_bias).first_wrong
    assert (
        localization.node.startswith(f"%{second} = ")
        and localization.mismatch is None
        and localization.difference is not None
    )


@pytest.mark.parametrize("module, shape, change, second", TOGETHER)
def test_a_fault_after_an_intended_change_is_found(module, shape, change, second):
    def wrong_at_the_end(program):
        change(program, bias=True)
        last = program.get_submodule("last")
        last.bias = nn.Parameter(last.bias.detach() + 1)
        program.recompile()

    torch.manual_seed(0)
    assert located(subject_of(module(), torch.randn(shape)), wrong_at_the_end).first_wrong.node.startswith("%last = ")


def test_of_two_faults_in_a_row_the_first_is_blamed():
    def spoil_both(program):
        for name in ("0", "1"):
            layer = program.get_submodule(name)
            layer.weight = nn.Parameter(layer.weight.detach() * 1.1)

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    assert "call_module[0]" in located(subject_of(module, torch.randn(5, 8)), spoil_both).first_wrong.node


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.tanh(x))
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, gradient):
        (output,) = ctx.saved_tensors
        return gradient * (1 - output)


class _Raising(_Wrong):
    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("no backward of this kernel")


def tanh_with_a_wrong_backward(x):
    return _Wrong.apply(x)


def tanh_without_backward(x):
    return _Raising.apply(x)


@pytest.mark.parametrize("function", [tanh_with_a_wrong_backward, tanh_without_backward])
def test_a_fault_in_the_backward_names_the_node_that_hands_back_a_wrong_gradient_and_its_line(function):
    def replace_tanh(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.tanh):
            node.target = function
        program.recompile()

    torch.manual_seed(0)
    localization = localize_gradient(PassRun(subject_of(Wide(), torch.randn(5, 8)), replace_tanh, contract=close))
    assert localization.node.startswith("%tanh = ")
    assert localization.where.text == "return self.last(torch.tanh(x))"
    assert ("raises NotImplementedError: no backward of this kernel" in localization.shown) == (
        function is tanh_without_backward
    )


def test_a_gradient_of_weights_alone_that_is_wrong_names_the_layer():
    class Layer(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.weight, self.bias = layer.weight, layer.bias

        def forward(self, x):
            return functional.linear(x, self.weight + self.weight.detach() * 0, self.bias) + (
                self.weight.sum() - self.weight.sum().detach()
            )

    def replace_layer(program):
        program.set_submodule("last", Layer(program.get_submodule("last")))

    torch.manual_seed(0)
    localization = localize_gradient(PassRun(subject_of(Wide(), torch.randn(5, 8)), replace_layer, contract=close))
    assert localization.node.startswith("%last = ")


fx.wrap("tanh_with_a_wrong_backward")
fx.wrap("tanh_without_backward")

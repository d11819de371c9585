"""Effects of module calls besides their values: they depend on class, mode, children and hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.operators.effects import declare_pure, effect_of, has_side_effect, is_impure, why_impure


class Own(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


class OwnPure(Own):
    _is_impure = False


class OwnRelu(nn.ReLU):
    pass


def call(module: nn.Module) -> fx.Node:
    """A call of ``module``, in a program that owns it."""
    graph = fx.Graph()
    graph.output(graph.call_module("child", (graph.placeholder("x"),)))
    program = fx.GraphModule({"child": module}, graph)
    (node,) = program.graph.find_nodes(op="call_module")
    node.graph.owning_module = program  # keeps the program alive
    return node


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda *_: None)
    return module


def replaced(module: nn.Module) -> nn.Module:
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


def marked(module: nn.Module, mark: bool) -> nn.Module:
    module._is_impure = mark  # type: ignore[assignment]
    return module


spectral = nn.utils.parametrizations.spectral_norm
weight = nn.utils.parametrizations.weight_norm


@pytest.mark.parametrize(
    "module",
    [
        nn.ReLU(),
        nn.Linear(2, 2),
        nn.BatchNorm2d(2).eval(),
        nn.BatchNorm2d(2, track_running_stats=False),
        nn.InstanceNorm2d(2),
        nn.Dropout().eval(),
        nn.Dropout(0.0),
        nn.Dropout(inplace=True).eval(),
        nn.Embedding(2, 2),
        nn.LSTM(2, 2),
        nn.LSTM(2, 2, 2, dropout=0.5).eval(),
        nn.MultiheadAttention(2, 1),
        nn.TransformerEncoderLayer(4, 2).eval(),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.FractionalMaxPool2d(2, 2, _random_samples=torch.rand(1, 1, 2)),
        spectral(nn.Linear(2, 2)).eval(),
        weight(nn.Linear(2, 2)),
        marked(nn.ReLU(), False),
        marked(nn.Dropout(), False),
        OwnPure(),
        fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
        fx.symbolic_trace(nn.Sequential(nn.Dropout())).eval(),
    ],
    ids=lambda module: f"{type(module).__name__}, {'train' if module.training else 'eval'}",
)
def test_modules_that_only_compute_are_pure(module: nn.Module) -> None:
    assert why_impure(call(module)) is None


OWN = "which is not one of torch's and not declared pure"
HOOKS = "`%child` calls a module with hooks or a forward of its own"


@pytest.mark.parametrize(
    "module, reason",
    [
        (nn.ReLU(inplace=True), "`%child` writes to `%x`"),
        (nn.Hardtanh(inplace=True), "`%child` writes to `%x`"),
        (nn.Dropout(inplace=True), "`%child` writes to `%x`"),
        (nn.BatchNorm2d(2), "`%child` updates running statistics"),
        (nn.InstanceNorm2d(2, track_running_stats=True), "`%child` updates running statistics"),
        (nn.SyncBatchNorm(2), "`%child` communicates with other processes"),
        (spectral(nn.Linear(2, 2)), "`%child` updates running statistics"),
        (nn.Embedding(2, 2, max_norm=1.0), "`%child` renormalizes its weight"),
        (nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)), "`%child` updates running statistics"),
        (nn.Sequential(nn.Sequential(nn.ReLU(inplace=True))), "`%child` writes to"),
        (hooked(nn.ReLU()), HOOKS),
        (replaced(nn.ReLU()), HOOKS),
        (nn.LazyLinear(2), HOOKS),
        (Own(), f"`%child` calls a module of class `Own`, {OWN}"),
        (Own().eval(), f"`%child` calls a module of class `Own`, {OWN}"),
        (OwnRelu(), f"`%child` calls a module of class `OwnRelu`, {OWN}"),
        (nn.Sequential(Own()), OWN),
        (marked(nn.ReLU(), True), "`%child` calls a module that is marked as impure"),
        (
            fx.symbolic_trace(nn.Sequential(nn.Dropout(), nn.ReLU(inplace=True))),
            "`%child` calls a program in which `%_1` writes to `%_0`",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_modules_with_an_effect_name_it(module: nn.Module, reason: str) -> None:
    node = call(module)
    assert reason in (why_impure(node) or "")
    assert node.is_impure(impure_random=False)


@pytest.mark.parametrize(
    "module",
    [
        nn.Dropout(),
        nn.AlphaDropout(),
        nn.RReLU(),
        nn.LSTM(2, 2, 2, dropout=0.5),
        nn.MultiheadAttention(2, 1, dropout=0.5),
        nn.TransformerEncoderLayer(4, 2),
        nn.FractionalMaxPool2d(2, 2),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout()),
        fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Dropout())),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_draw_are_effects_unless_randomness_is_ignored(module: nn.Module) -> None:
    node = call(module)
    assert "draws random numbers" in (why_impure(node) or "")
    assert not node.is_impure(impure_random=False)


def test_training_mode_is_read_again_each_time() -> None:
    module = nn.Dropout()
    node = call(module)
    assert is_impure(node)
    module.eval()
    assert not is_impure(node)


def test_classes_of_modules_can_be_declared() -> None:
    class Declared(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    node = call(Declared())
    assert is_impure(node)
    declare_pure(Declared)
    assert not is_impure(node)
    has_side_effect(Declared)
    assert why_impure(node) == "`%child` is declared to have a side effect"


def test_calls_of_modules_that_cannot_be_found_are_effects() -> None:
    graph = fx.Graph()
    node = graph.call_module("child", (graph.placeholder("x"),))
    assert "has no owning module" in (why_impure(node) or "")
    call_node = call(nn.ReLU())
    call_node.target = "nowhere"
    assert why_impure(call_node) == "`%child` calls the module `nowhere`, which does not exist"


def test_a_module_of_several_has_the_gravest_effect_and_says_whether_it_draws() -> None:
    effect = effect_of(call(nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))))
    assert effect is not None and (effect.kind, effect.draws) == ("write", True)
    effect = effect_of(call(nn.Sequential(nn.BatchNorm1d(2), nn.ReLU())))
    assert effect is not None and (effect.kind, effect.draws) == ("write", False)
    effect = effect_of(call(nn.Dropout(inplace=True)))
    assert effect is not None and (effect.kind, effect.draws) == ("write", True)

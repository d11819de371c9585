"""Layers with their tensors by name, in either spelling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import nn

import fx
from fx.modules.attributes import fetch_attribute
from fx.passes.fuse_conv_bn import FuseConvBN
from fx.passes.machinery.weighted_layers import Layers, read_layer
from fx.passes.merge_parallel_layers import MergeParallelLayers


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.conv = nn.Conv2d(2, 3, 1, groups=1)
        self.inner.weight = nn.Parameter(torch.ones(3, 2, 1, 1))
        self.norm = nn.BatchNorm2d(3, eps=0.5)

    def forward(self, x: Any) -> Any:
        return self.norm(self.inner.conv(x)) + F.conv2d(x, self.inner.weight, stride=1)


def test_modules_and_functions_are_read_alike() -> None:
    program = fx.symbolic_trace(Model().eval())
    layers = {layer.node.name: layer for layer in Layers(program)}
    assert list(layers) == ["inner_conv", "norm", "conv2d"]
    conv, norm, function = layers.values()
    x = next(iter(program.graph.nodes))
    assert conv.source is function.source is x
    assert (conv.kind, norm.kind, function.kind) == (nn.Conv2d, nn.BatchNorm2d, torch.conv2d)
    assert list(conv.tensors) == ["weight", "bias"] and list(function.tensors) == ["weight"]
    assert list(norm.tensors) == ["weight", "bias", "running_mean", "running_var"]
    assert norm.settings == {"training": False, "eps": 0.5}
    assert (conv.paths, function.paths) == (["inner.conv"], ["inner.weight"])
    assert norm.is_batch_norm and not conv.is_batch_norm and not function.is_batch_norm
    assert conv.module is program.inner.conv and function.module is None


@pytest.mark.parametrize("function", [torch.relu, torch.nn.functional.layer_norm, lambda x: x])
def test_other_operations_are_no_layers(function: Any) -> None:
    graph = fx.Graph()
    node = graph.create_node("call_function", function, (graph.placeholder("x"),), name="node")
    graph.output(node)
    program = fx.GraphModule(nn.Module(), graph)
    assert [read_layer(program, node) for node in graph.nodes] == [None, None, None]
    assert Layers(program).get(node) is None
    assert Layers(program).get(None) is None and Layers(program).get([node]) is None


def test_attributes_are_fetched_by_path() -> None:
    program = fx.symbolic_trace(Model().eval())
    assert fetch_attribute(program, "inner.weight") is program.inner.weight
    assert fetch_attribute(program, "") is program


def test_removing_a_layer_removes_the_containers_that_it_leaves_empty() -> None:
    deep = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2))
    program = fx.symbolic_trace(Calling(lambda m, x: m.a[0][0](x) + m.a[1](x), a=deep))
    layers = Layers(program)
    add = program.graph.output_node().args[0]
    first, second = layers
    program.graph.output_node().args = (second.node,)
    program.graph.erase_node(add)
    layers.remove(first)
    assert [name for name, _ in program.named_modules()] == ["", "a", "a.1"]


class Block(nn.Module):
    """Asks for its own mode, and has nothing but a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Any) -> Any:
        return self.norm(x * 2 if self.training else x)


class Freezing(nn.Module):
    """Overrides ``train()``: its program checks the mode of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.block = nn.Conv2d(2, 3, 1), Block()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.block.norm.train(False)
        return self

    def forward(self, x: Any) -> Any:
        x = self.block(self.conv(x))
        return self.a(x) + self.b(x)


def flags(program: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in program.graph.find_nodes(op="get_attr")]


def test_checks_of_a_layers_mode_are_removed_with_it_and_those_of_the_outer_modules_stay() -> None:
    model, x = Freezing().eval(), torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4)
    program = fx.symbolic_trace(model)
    layers = ["a", "b", "block", "block.norm", "conv"]
    assert sorted(flags(program)) == sorted([*(f"{layer}.training" for layer in layers), "training"])
    changed = MergeParallelLayers()(FuseConvBN()(program))
    changed.graph.lint()
    assert sorted(flags(changed)) == ["block.training", "conv.training", "training"]
    torch.testing.assert_close(changed(x), model(x))
    changed.block.train()
    with pytest.raises(fx.GuardError, match="captured in evaluation mode"):
        changed(x)


def test_layers_whose_mode_the_program_reads_are_left_alone() -> None:
    program = fx.symbolic_trace(Freezing().eval())
    [flag] = program.graph.find_nodes(op="get_attr", target="block.norm.training")
    [output] = program.graph.find_nodes(op="output")
    output.args = ((output.args[0], flag),)
    program.recompile()
    [(norm, fusion)] = [(entry.node, entry.reason) for entry in FuseConvBN().explain(program)]
    assert norm == "block_norm" and "the program reads `block.norm.training`" in fusion
    assert FuseConvBN()(program).code == program.code

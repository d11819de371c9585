"""The names of nodes, in the graph and in generated code."""

from __future__ import annotations

import operator
from types import ModuleType

import pytest
import torch
from building import names

import fx

from .libraries import refuses


def leaf() -> None:
    """A function with a name of its own."""


@pytest.mark.parametrize(
    "target, name",
    [
        ("x", "x"),
        ("camelCase", "camel_case"),
        ("PascalCase", "pascal_case"),
        ("ALL_CAPS", "all_caps"),
        ("HTTPServer", "httpserver"),
        ("layer1.0.conv", "layer1_0_conv"),
        ("0", "_0"),
        ("0.weight", "_0_weight"),
        ("my layer", "my_layer"),
        ("a--b", "a_b"),
        ("__private", "__private"),
        ("sum", "sum_1"),
        ("max", "max_1"),
        ("input", "input_1"),
        ("class", "class_1"),
        ("lambda", "lambda_1"),
        ("None", "none"),
        ("inf", "inf_1"),
        ("nan", "nan_1"),
        ("torch", "torch_1"),
        ("device", "device_1"),
        ("pytree", "pytree_1"),
        ("fx_pytree", "fx_pytree_1"),
        ("NoneType", "none_type"),
        ("*args", "_args"),
        ("**kwargs", "_kwargs"),
        ("__call__", "call"),
        ("__getitem__", "getitem"),
        ("é", "_"),
        ("x_1", "x_1"),
        ("x_", "x_"),
        ("x_01", "x_01"),
    ],
)
def test_a_target_gives_this_name(library: ModuleType, target: str, name: str) -> None:
    graph = library.Graph()
    assert graph.create_node("get_attr", target).name == name


@pytest.mark.parametrize(
    "function, name",
    [
        (torch.relu, "relu"),
        (torch.nn.functional.linear, "linear"),
        (torch.ops.aten.add.Tensor, "add_tensor"),
        (torch.ops.aten.relu.default, "relu_default"),
        (operator.add, "add"),
        (operator.and_, "and_"),
        (operator.getitem, "getitem"),
        (getattr, "getattr_1"),
        (sum, "sum_1"),
        (leaf, "leaf"),
        (torch.nn.Linear, "linear"),
    ],
)
def test_a_function_gives_this_name(library: ModuleType, function, name: str) -> None:
    assert library.Graph().call_function(function).name == name


def test_repeated_names_count_from_one(library: ModuleType) -> None:
    graph = library.Graph()
    for _ in range(3):
        graph.placeholder("x")
    for _ in range(2):
        graph.call_function(torch.sum)
    assert names(graph) == "x x_1 x_2 sum_1 sum_2"


def test_a_number_at_the_end_is_taken_as_the_count(library: ModuleType) -> None:
    graph = library.Graph()
    for target in ("x_3", "x", "x", "x_3", "x_7", "x_5", "x", "y_1_1", "y_1", "y_1"):
        graph.placeholder(target)
    counted = "x_3 x x_4 x_5 x_7 x_8 x_9 y_1_1 y_1 y_2"
    if library is torch.fx and names(graph).split()[3] == "x_1":  # torch before 2.13 renumbers a numbered name
        counted = "x_3 x x_4 x_1 x_7 x_5 x_6 y_1_1 y_1 y_2"
    assert names(graph) == counted


def test_a_given_name_is_only_a_wish(library: ModuleType) -> None:
    graph = library.Graph()
    graph.call_function(torch.relu, name="out")
    graph.call_function(torch.relu, name="out")
    graph.call_function(torch.relu, name="not an identifier!")
    graph.call_function(torch.relu, name="sum")
    graph.call_function(torch.relu, name="CamelCase")
    assert names(graph) == "out out_1 not_an_identifier_ sum_1 CamelCase"


def test_an_erased_name_is_not_given_again(library: ModuleType) -> None:
    graph = library.Graph()
    graph.erase_node(graph.placeholder("x"))
    assert graph.placeholder("x").name == "x_1"


def test_a_refused_node_has_used_up_its_name(library: ModuleType) -> None:
    graph = library.Graph()
    graph.placeholder("x")
    with refuses(library, ValueError, ours=fx.GraphError):
        graph.create_node("get_attr", 3, name="x")
    assert graph.placeholder("x").name == "x_2"


def test_copied_nodes_keep_their_names_where_free(library: ModuleType) -> None:
    source, target = library.Graph(), library.Graph()
    for graph in (source, target):
        graph.placeholder("x")
    source.placeholder("camelCase")
    for node in source.nodes:
        target.node_copy(node)
    assert names(target) == "x x_1 camel_case"
    assert [node.target for node in target.nodes] == ["x", "x", "camelCase"]


def test_module_paths_become_names(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    assert graph.call_module("features.0.Conv", (x,)).name == "features_0_conv"
    assert graph.get_attr("features.0.weight").name == "features_0_weight"
    assert graph.call_method("__add__", (x, 1)).name == "add"
    assert graph.output(x).name == "output"


def test_names_in_code_are_fresh_and_avoid_globals(library: ModuleType) -> None:
    def rename(x, y):
        return x + y

    module = library.symbolic_trace(rename)
    x, y, add, _ = module.graph.nodes
    x.name, y.name, add.name = "sum", "torch", "add"
    module.recompile()
    assert "sum_1 = x" in module.code
    assert "torch_1 = y" in module.code
    assert module(1, 2) == 3


def test_parameters_that_cannot_keep_their_name_are_bound_first(library: ModuleType) -> None:
    def clash(input, len, *args, **kwargs):
        return input + len

    code = library.symbolic_trace(clash).code
    assert "def forward(self, input, len, *args, **kwargs):" in code
    for line in ("input_1 = input\n", "len_1 = len\n", "_args = args\n", "_kwargs = kwargs\n"):
        assert line in code

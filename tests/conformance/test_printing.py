"""The printed forms of graphs, nodes and modules."""

from __future__ import annotations

import importlib.util
import operator
from types import ModuleType

import pytest
import torch
from torch import nn


def test_graph_prints_one_line_a_node(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x", type_expr=torch.Tensor)
    y = graph.placeholder("y", default_value=None)
    weight = graph.get_attr("layer.weight")
    add = graph.call_function(operator.add, (x, [y, {"k": weight}]), {"alpha": 2})
    shape = graph.call_function(getattr, (add, "shape"), type_expr=torch.Size)
    view = graph.call_method("view", (add, shape, -1), type_expr=list[int])
    module = graph.call_module("layer.0", (view, None), {"flag": True})
    graph.output((module, None), type_expr=tuple)
    assert str(graph) == (
        "graph():\n"
        "    %x : torch.Tensor [num_users=1] = placeholder[target=x]\n"
        "    %y : [num_users=1] = placeholder[target=y](default=None)\n"
        "    %weight : [num_users=1] = get_attr[target=layer.weight]\n".replace("%weight", "%layer_weight")
        + "    %add : [num_users=2] = call_function[target=operator.add]"
        "(args = (%x, [%y, {k: %layer_weight}]), kwargs = {alpha: 2})\n"
        "    %getattr_1 : torch.Size [num_users=1] = call_function[target=builtins.getattr]"
        "(args = (%add, shape), kwargs = {})\n"
        "    %view : list[int] [num_users=1] = call_method[target=view]"
        "(args = (%add, %getattr_1, -1), kwargs = {})\n"
        "    %layer_0 : [num_users=1] = call_module[target=layer.0]"
        "(args = (%view, None), kwargs = {flag: True})\n"
        "    return (layer_0, None)"
    )


def test_empty_graph_prints_its_head(library: ModuleType) -> None:
    assert str(library.Graph()) == "graph():"


@pytest.mark.parametrize(
    "function, printed",
    [
        (torch.relu, "torch.relu"),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (torch.ops.aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (operator.getitem, "operator.getitem"),
        (operator.iadd, "operator.iadd"),
        (getattr, "builtins.getattr"),
        (len, "builtins.len"),
        (torch.Tensor.add, "torch.Tensor.add"),
        (nn.Linear, "torch.nn.modules.linear.Linear"),
        (importlib.util.find_spec, "importlib.util.find_spec"),
    ],
)
def test_function_targets_print_by_their_name(library: ModuleType, function, printed: str) -> None:
    node = library.Graph().call_function(function)
    assert f"call_function[target={printed}](args = (), kwargs = {{}})" in node.format_node()


def test_nodes_format_alone(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    output = graph.output([relu])
    assert x.format_node() == "%x : [num_users=1] = placeholder[target=x]"
    assert relu.format_node() == "%relu : [num_users=1] = call_function[target=torch.relu](args = (%x,), kwargs = {})"
    assert output.format_node() == "return [relu]"


def test_placeholder_is_collected_when_formatted_into_a_signature(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    signature = ["self"]
    assert x.format_node(signature) is None
    assert len(signature) == 2
    output = graph.output(x, type_expr=torch.Tensor)
    returned = [""]
    output.format_node(signature, returned)
    assert returned == [" -> torch.Tensor"]


def test_module_prints_structure_code_and_a_hint(library: ModuleType) -> None:
    module = library.symbolic_trace(nn.Sequential(nn.Linear(2, 3)))
    printed = str(module)
    assert printed.startswith("Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=True)\n)")
    assert module.code in printed
    assert printed.endswith("# To see more debug info, please use `graph_module.print_readable()`")


def test_readable_print_is_a_class(library: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    module = library.symbolic_trace(nn.Sequential(nn.ReLU()))
    text = module.print_readable()
    assert capsys.readouterr().out == text + "\n"
    assert text.startswith("class Sequential(torch.nn.Module):\n    def forward(self, input):\n")
    assert 'getattr(self, "0")' in text
    assert module.print_readable(print_output=False) == text
    assert capsys.readouterr().out == ""


def test_readable_print_contains_children(library: ModuleType) -> None:
    child = library.symbolic_trace(nn.Sequential(nn.ReLU()))
    graph = library.Graph()
    graph.output(graph.call_module("child", (graph.placeholder("x"),)))
    text = library.GraphModule({"child": child}, graph, "Outer").print_readable(print_output=False)
    assert text.startswith("class Outer(torch.nn.Module):")
    assert "\n    class child(torch.nn.Module):\n" in text


def test_table_has_a_row_a_node(library: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    if library.__name__ == "torch.fx" and importlib.util.find_spec("tabulate") is None:
        pytest.skip("torch.fx needs tabulate for this")
    library.symbolic_trace(nn.Sequential(nn.ReLU())).graph.print_tabular()
    printed = capsys.readouterr().out
    assert [word for word in ("opcode", "name", "target", "args", "kwargs") if word not in printed] == []
    assert len([line for line in printed.splitlines() if "call_module" in line or "output" in line]) == 2


def test_proxies_and_placeholders_print_short(library: ModuleType) -> None:
    graph = library.Graph()
    assert repr(library.Proxy(graph.placeholder("x"))) == "Proxy(x)"
    assert repr(library.PH) == "PH"

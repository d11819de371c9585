"""``FxGraphDrawer`` draws the nodes and edges, with the fields, that torch.fx draws."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx.passes.shape_prop import ShapeProp as TheirShapeProp

import fx
import model_zoo
from fx.passes.graph_drawer import FxGraphDrawer
from fx.passes.shape_prop import ShapeProp


class Recorded:
    """A replacement for the classes of pydot, which keeps its arguments."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        self.args, self.attributes, self.nodes, self.edges = args, attributes, [], []

    def add_node(self, node: Any) -> None:
        self.nodes.append(node)

    def add_edge(self, edge: Any) -> None:
        self.edges.append(edge)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch.fx's class, which it defines only beside pydot."""
    pydot: Any = ModuleType("pydot")
    pydot.Dot = pydot.Node = pydot.Edge = pydot.Cluster = Recorded
    monkeypatch.setitem(sys.modules, "pydot", pydot)
    return load_theirs()


def load_theirs() -> Any:
    """The class as it is defined with the pydot that there is now."""
    spec = importlib.util.find_spec("torch.fx.passes.graph_drawer")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FxGraphDrawer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bn, self.weight = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Parameter(torch.ones(5))

    def forward(self, x):
        return torch.cat([self.bn(self.linear(x)) * self.weight, x[:, 1:]], dim=1).clamp(min=0.0, max=1.0)


CASES = {
    "net": lambda: (Net().eval(), (torch.ones(2, 4),)),
    "resnet_tiny": lambda: zoo("resnet_tiny"),
    "unet_small": lambda: zoo("unet_small"),
}


def zoo(name: str) -> Any:
    model = model_zoo.get_model(name)
    return model.build(), model.example_inputs(1)


def fields(label: str) -> list[str]:
    """The fields of a record that both write in the same way, without the marks for ends of lines."""
    plain = re.sub(r"\\[nl]", "", label.replace("\n", "|")).replace("\\", "")
    names = ("name=", "op_code=c", "op_code=p", "num_users=", "dtype=", "shape=", "requires_grad=", "stride=")
    return [field for field in plain.strip('"{}').split("|") if field.startswith(names)]


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_nodes_fields_and_edges_are_those_of_torch_fx(name: str, ignored: bool, theirs: Any) -> None:
    module, inputs = CASES[name]()
    options = {"ignore_getattr": ignored, "ignore_parameters_and_buffers": ignored}
    captured = torch.fx.symbolic_trace(module)
    TheirShapeProp(captured).propagate(*inputs)
    wanted = theirs(captured, name, **options).get_main_dot_graph()
    program = fx.symbolic_trace(module)
    ShapeProp(program).propagate(*inputs)
    text = FxGraphDrawer(program, name, **options).get_dot_graph().to_string()
    nodes = dict(re.findall(r'^  "([^"]+)" \[.*?label="((?:[^"\\]|\\.)*)"', text, re.MULTILINE))
    edges = re.findall(r'^  "([^"]+)" -> "([^"]+)";', text, re.MULTILINE)
    names = {node.name for node in captured.graph.nodes}
    assert list(nodes) == [node.args[0] for node in wanted.nodes]
    assert sorted(edges) == sorted(edge.args for edge in wanted.edges)
    for node in wanted.nodes:
        if node.args[0] in names:
            assert fields(nodes[node.args[0]]) == fields(node.attributes["label"])


def test_without_pydot_only_torch_fx_refuses_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(RuntimeError, match="requires the pydot package"):
        load_theirs()(torch.fx.symbolic_trace(Net()), "net")
    assert "digraph" in FxGraphDrawer(fx.symbolic_trace(Net()), "net").get_dot_graph().to_string()


def test_the_class_takes_the_arguments_and_has_the_methods_of_torch_fx(theirs: Any) -> None:
    for method in ("__init__", "get_dot_graph", "get_main_dot_graph", "get_submod_dot_graph", "get_all_dot_graphs"):
        mine, parameters = (inspect.signature(getattr(drawer, method)).parameters for drawer in (FxGraphDrawer, theirs))
        assert [(p.name, p.kind, p.default) for p in mine.values()] == [
            (p.name, p.kind, p.default) for p in parameters.values()
        ]

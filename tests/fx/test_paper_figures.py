"""Figures 1, 2, 3 and 5(b) of the paper as programs that run, with their output."""

from __future__ import annotations

import math
import re

import pytest
import torch
from building import WithoutLeaves

from fx import Graph, GraphModule, assertions, symbolic_trace
from fx.passes import RemoveChecks
from model_zoo import get_model


def my_func(x):
    return torch.relu(x).neg()


def replace_activation(g: Graph, old, new):
    for n in g.nodes:
        if n.op == "call_function" and n.target == old:
            with g.inserting_after(n):
                new_n = g.call_function(new, n.args)
                n.replace_all_uses_with(new_n)
            g.erase_node(n)


class SampleModule(torch.nn.Module):
    def forward(self, x):
        return self.act(x + math.pi)


def figure_code(code: str) -> str:
    """Code as the paper prints it: one blank before ``x = None``, no blank lines around."""
    return re.sub(r";  ", "; ", code.strip())


def test_figure_1_captures_a_function_and_prints_its_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    traced: GraphModule = symbolic_trace(my_func)
    for n in traced.graph.nodes:
        print(f"{n.name} = {n.op} target={n.target} args={n.args}")
    printed = re.sub(r"(<built-in method relu) [^>]*>", r"\1 ...>", capsys.readouterr().out)
    assert printed == (
        "x = placeholder target=x args=()\n"
        "relu = call_function target=<built-in method relu ...> args=(x,)\n"
        "neg = call_method target=neg args=(relu,)\n"
        "output = output target=output args=(neg,)\n"
    )
    assert figure_code(traced.code) == (
        "def forward(self, x):\n    relu = torch.relu(x); x = None\n    neg = relu.neg(); relu = None\n    return neg"
    )


def test_figure_2_replaces_one_activation_by_another() -> None:
    traced = symbolic_trace(my_func)
    replace_activation(traced.graph, torch.relu, torch.nn.functional.gelu)
    traced.recompile()
    x = torch.linspace(-2, 2, 9)
    assert torch.equal(traced(x), -torch.nn.functional.gelu(x))
    assert [n.name for n in traced.graph.nodes] == ["x", "gelu", "neg", "output"]
    traced.graph.lint()


def test_figure_2_in_the_simplified_form_assigns_the_target() -> None:
    traced = symbolic_trace(my_func)
    for n in traced.graph.nodes:
        if n.op == "call_function" and n.target == torch.relu:
            n.target = torch.nn.functional.gelu
    traced.recompile()
    x = torch.linspace(-2, 2, 9)
    assert torch.equal(traced(x), -torch.nn.functional.gelu(x))


def test_figure_3_traces_generated_code_again() -> None:
    traced = symbolic_trace(my_func)
    replace_activation(traced.graph, torch.relu, torch.nn.functional.gelu)
    traced.recompile()
    sm = SampleModule()
    sm.act = traced
    retraced: GraphModule = symbolic_trace(sm)
    assert figure_code(retraced.code) == (
        "def forward(self, x):\n"
        "    add = x + 3.141592653589793; x = None\n"
        "    gelu = torch.nn.functional.gelu(add); add = None\n"
        "    neg = gelu.neg(); gelu = None\n"
        "    return neg"
    )
    x = torch.linspace(-5, 1, 9)
    assert torch.equal(retraced(x), sm(x))


@pytest.fixture(scope="module")
def resnet50() -> torch.nn.Module:
    """The zoo's ResNet50 in evaluation mode."""
    return get_model("resnet50").build().eval()


def test_default_capture_of_resnet50_has_177_nodes(resnet50: torch.nn.Module) -> None:
    graph = symbolic_trace(resnet50).graph
    counts = {op: len([n for n in graph.nodes if n.op == op]) for op in ("call_module", "call_function")}
    assert len(graph.nodes) == 177
    assert counts == {"call_module": 158, "call_function": 17}


def test_figure_5b_and_section_6_1_describe_resnet50_without_leaves(resnet50: torch.nn.Module) -> None:
    captured = GraphModule(resnet50, WithoutLeaves().trace(resnet50), "ResNet50")
    checks = captured.graph.find_nodes(op="call_function", target=assertions.check)
    assert len(checks) == 53  # one a batch norm, whose message has the shape of its input
    simplified = RemoveChecks()(captured)
    assert len(simplified.graph.nodes) == 444
    assert len(str(simplified.graph).splitlines()) == 445
    assert {op: len([n for n in simplified.graph.nodes if n.op == op]) for op in ("get_attr", "call_function")} == {
        "get_attr": 267,
        "call_function": 175,
    }
    lines = simplified.code.strip().splitlines()
    assert lines[0] == "def forward(self, x : torch.Tensor) -> torch.Tensor:"
    assert lines[1].strip() == "conv1_weight = self.conv1.weight"
    assert lines[2].strip().startswith("conv2d = torch.conv2d(x, conv1_weight, None, (2, 2), (3, 3), (1, 1), 1)")


def test_resnet50_without_leaves_computes_the_same_bits(resnet50: torch.nn.Module) -> None:
    simplified = RemoveChecks()(GraphModule(resnet50, WithoutLeaves().trace(resnet50)))
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(simplified(x), resnet50(x))

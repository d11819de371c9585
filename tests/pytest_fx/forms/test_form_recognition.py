"""Recognition of a pass's form: by its class, annotations and code, by an option, or by trying."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from aten_passes import aten, right_pattern_clamp
from torch import nn
from torch._export.pass_base import _ExportPassBaseDeprecatedDoNotUse as ExportPass
from torch.export import ExportedProgram
from torch.fx.passes.operator_support import create_op_support

from pytest_fx.errors import CannotLoadError
from pytest_fx.forms import form_name, form_names
from pytest_fx.loading import load_pass
from pytest_fx.option_table import FORMS


class Clamp(ExportPass):
    """ReLU is a clamp."""

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        """Call another one."""
        op, args = (aten.clamp_min.default, (args[0], 0)) if op is aten.relu.default else (op, args)
        return super().call_operator(op, args, kwargs, meta)


def clamp(graph: Any) -> None:
    for node in list(graph.nodes):
        if node.target is aten.relu.default:
            node.target, node.args = aten.clamp_min.default, (node.args[0], 0)


def unannotated(graph_module):
    right_pattern_clamp.apply(graph_module.graph)


def on_graph(graph: torch.fx.Graph) -> None:
    clamp(graph)


def on_exported(exported: ExportedProgram) -> ExportedProgram:
    clamp(exported.graph)
    return exported


def on_aten(graph_module: torch.fx.GraphModule) -> None:
    clamp(graph_module.graph)


def on_functions(graph_module: torch.fx.GraphModule) -> None:
    for node in graph_module.graph.nodes:
        if node.target is torch.relu:
            node.target = nn.functional.relu


def backend(graph_module: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
    return graph_module.forward


def on_modules(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


support = create_op_support(lambda modules, node: node.target is aten.relu.default)


@pytest.mark.parametrize(
    "pass_, form",
    [
        (Clamp, "export-pass"),
        (Clamp(), "export-pass"),
        (right_pattern_clamp, "pattern-matcher"),
        (unannotated, "aten"),
        (on_graph, "graph"),
        (on_exported, "exported-program"),
        (on_aten, "aten"),
        (on_functions, "torch.fx"),
        (backend, "backend"),
        (support, "partitioner"),
        (on_modules, "module"),
        ("remove-checks", "fx"),
    ],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else type(value).__name__),
)
def test_a_pass_shows_its_form(pass_, form):
    assert form_name(load_pass(pass_)) == form


def test_the_option_has_all_forms():
    assert set(FORMS) == {"auto", *form_names()}


def test_a_form_decides_and_an_unknown_one_names_all():
    assert form_name(load_pass(on_functions, "aten")) == "aten"
    assert form_name(load_pass(load_pass(on_aten), "graph")) == "graph"
    with pytest.raises(CannotLoadError, match="exported-program"):
        load_pass(on_aten, "dialect")


MINE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x.size(0)

def net():
    return Block(), torch.linspace(-1, 1, 12).reshape(3, 4)

def compiled(graph_module: torch.fx.GraphModule):
    return torch.compile(graph_module, backend="eager")

def wrong_compiled(graph_module: torch.fx.GraphModule):
    compiled = torch.compile(graph_module, backend="eager")
    return lambda x: compiled(x) + 0.01

def one_block(graph_module: torch.fx.GraphModule):
    graph_module.linear = torch.compile(graph_module.linear, backend="eager")
    return graph_module

class Session:
    def run(self, x):
        return x

def session(graph_module: torch.fx.GraphModule):
    return Session()

def of_exported(program):
    for node in program.graph_module.graph.nodes:
        if str(node.target) == "at" + "en.relu.default":
            node.target, node.args = torch.ops.aten.clamp_min.default, (node.args[0], 0)
    return program

def of_nothing(program):
    return program.no_such_thing
"""


def test_results_and_forms_that_nothing_shows_are_judged_or_said(mine):
    names = ("compiled", "wrong_compiled", "one_block", "session", "of_exported", "of_nothing")
    chosen = [word for name in names for word in ("--fx-pass", f"mine:{name}")]
    options = ("--fx-no-timing", "-k", "pass_keeps_its_contract", "-rs", "-v", "-p", "no:logging")
    result = mine.runpytest("--fx-model", "mine:net", *options, *chosen)
    result.stdout.fnmatch_lines_random(
        [
            "*  compiled  *right*",
            "*wrong-compiled *wrong: contract*",
            "*one-block  *right*",
            "*session *not judged: *cannot be called like the model*",
            "*of-exported *exported-program *",
            "*of-nothing *not judged: it fails in all forms that were tried*",
            "*fx_equal(module)*",
        ]
    )

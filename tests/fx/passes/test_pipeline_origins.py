"""Every node of a transformed program is traced back to captured nodes and to a line of the user's."""

from __future__ import annotations

import copy
import dataclasses
import operator
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from small_passes import captured, double_the_result
from torch import nn

import fx
import model_zoo
from fx.matcher.origins import EarlierNode, complete_origins, match_origins, record_origins
from fx.passes import get_pass, list_passes
from fx.pipelines import registered_passes
from fx.pipelines.pass_options import options_of
from fx.pipelines.pipeline import PassPipeline
from fx.provenance import SourceLocation

MODELS = "dlrm_small lstm_classifier_small mlp resnet_tiny transformer_encoder_small two_heads unet_small".split()
"""Each pass changes one of them that changes any model of the zoo; ``make properties`` takes the others too."""
if hypothesis.settings().max_examples > 100:  # Hypothesis's own default
    MODELS += [name for name in model_zoo.list_models() if name.endswith("_small") and name not in MODELS]

PASSES = [
    name
    for name in list_passes()
    if not any(option.default is dataclasses.MISSING for option in options_of(registered_passes._definitions.get(name)))
]


def captured_model(name: str) -> fx.GraphModule:
    return fx.symbolic_trace(model_zoo.get_model(name).build())


def assert_complete(program: fx.GraphModule, names: set[str]) -> None:
    """Check that every node, also of inner programs, comes from nodes of ``names`` and has a line of a real file."""
    for inner in program.modules():
        if isinstance(inner, fx.GraphModule):
            for node in inner.graph.nodes:
                assert node.origins and set(node.origins) <= names, node.name
                assert node.source is not None and node.source.file.endswith(".py"), node.name


def rebuild_by_hand(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Makes a new graph node by node, without copying any notes."""
    graph, copies = fx.Graph(), {}
    for node in graph_module.graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        copies[node] = graph.create_node(node.op, node.target, args, dict(kwargs), type_expr=node.type)
    output = graph.output_node()
    with graph.inserting_before(output):
        output.args = (fx.map_arg(output.args[0], lambda node: graph.call_method("clone", (node,))),)
    graph.set_codegen(graph_module.graph._codegen)
    return fx.GraphModule(graph_module, graph)


def transform(graph_module: fx.GraphModule) -> fx.GraphModule:
    class Clone(fx.Transformer):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_module(target, args, kwargs) * 1

    return Clone(graph_module).transform()


def trace_again(graph_module: fx.GraphModule) -> fx.GraphModule:
    return fx.symbolic_trace(graph_module)


def add_check(graph_module: fx.GraphModule) -> None:
    """Adds operations that are connected with nothing."""
    graph = graph_module.graph
    for node in list(graph.nodes)[:2]:
        with graph.inserting_after(node):
            graph.call_function(torch._assert, (True, "never"))
    graph_module.recompile()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "pass_", [*PASSES, rebuild_by_hand, transform, add_check], ids=lambda p: getattr(p, "__name__", p)
)
def test_every_node_maps_back_after_a_pass(name: str, pass_: str | Callable[..., Any]) -> None:
    program = captured_model(name)
    names = {node.name for node in program.graph.nodes}
    made_pass = get_pass(pass_) if isinstance(pass_, str) else pass_
    if hasattr(made_pass, "with_data"):
        made_pass = made_pass.with_data([(model_zoo.get_model(name).example_inputs(2), {})])
    result = PassPipeline([made_pass]).run(program)
    if not result.changed:  # it found nothing to do here
        assert program.graph.history == ()
        return
    for copied in (
        result.graph_module,
        copy.deepcopy(result.graph_module),
        fx.GraphModule(result.graph_module, pickle.loads(pickle.dumps(result.graph_module.graph))),
        fx.Transformer(result.graph_module).transform(),
    ):
        assert_complete(copied, names)
        assert copied.graph.history == (result.reports[0].name,)


def test_a_program_that_was_traced_again_keeps_its_origins() -> None:
    program = captured_model("resnet_tiny")
    traced_again = PassPipeline([trace_again])(program)
    assert [node.origins for node in traced_again.graph.nodes] == [(node.name,) for node in program.graph.nodes]


def test_a_node_added_before_the_output_originates_from_its_operand() -> None:
    program = PassPipeline([double_the_result])(captured())
    (product,) = program.graph.find_nodes(op="call_function", target=operator.mul)
    assert product.origins == ("relu_2",)
    assert product.source == program.graph.find_nodes(op="call_function", target=torch.relu)[-1].source


def test_origins_of_several_passes_lead_to_the_captured_program() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).eval()
    program = PassPipeline(["fuse-conv-bn", rebuild_by_hand, double_the_result])(fx.symbolic_trace(model))
    assert {node.name: node.origins for node in program.graph.nodes} == {
        "input_1": ("input_1",),
        "_0": ("_0", "_1"),
        "_2": ("_2",),
        "clone": ("_2",),
        "mul": ("_2",),
        "output": ("output",),
    }


def test_an_unconnected_node_originates_from_the_node_before_it() -> None:
    graph = fx.Graph()
    line = SourceLocation.of("net.py", 3, "forward")
    with graph.inserting_before():
        alone = graph.call_function(torch.manual_seed, (0,))
    x = graph.placeholder("x")
    check = graph.call_function(torch._assert, (True, "never"))
    output = graph.output(x)
    x.origins, x.source = ("x",), line
    complete_origins(graph)
    assert [node.origins for node in (alone, x, check, output)] == [("x",)] * 4
    assert [node.source for node in (alone, x, check, output)] == [line] * 4


def test_origins_are_matched_by_name_and_opcode() -> None:
    program = captured()
    record_origins(program.graph)
    earlier = EarlierNode.all_of(program.graph)
    graph = fx.Graph()
    x = graph.placeholder("x")
    relu = graph.create_node("call_method", "relu", (x,), name="relu")
    again = graph.call_function(torch.relu, (relu,), name="relu_1")
    again.origins = ("other",)
    match_origins(graph, earlier)
    assert (x.origins, relu.origins, again.origins) == (("x",), (), ("other",))


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.neg(x)
        x = torch.relu(x)
        return torch.exp(x)


def test_a_node_read_in_place_of_another_represents_it() -> None:
    program = fx.symbolic_trace(Chain())
    record_origins(program.graph)
    earlier = EarlierNode.all_of(program.graph)
    (relu,) = program.graph.find_nodes(op="call_function", target=torch.relu)
    with program.graph.inserting_before(relu):
        zero = program.graph.call_function(torch.zeros_like, relu.args)
        largest = program.graph.call_function(torch.maximum, (relu.args[0], zero))
    for user in list(relu.users):
        user.args = tuple(largest if argument is relu else argument for argument in user.args)
    line = relu.source
    program.graph.erase_node(relu)
    match_origins(program.graph, earlier)
    complete_origins(program.graph)
    assert [(node.origins, node.source) for node in (zero, largest)] == [(("relu",), line)] * 2


def test_a_node_between_two_nodes_represents_the_first() -> None:
    program = fx.symbolic_trace(Chain())
    record_origins(program.graph)
    earlier = EarlierNode.all_of(program.graph)
    (relu,) = program.graph.find_nodes(op="call_function", target=torch.relu)
    (user,) = relu.users
    with program.graph.inserting_after(relu):
        scaled = program.graph.call_function(torch.mul, (relu, 2.0))
    user.args = tuple(scaled if argument is relu else argument for argument in user.args)
    match_origins(program.graph, earlier)
    assert (scaled.origins, relu.origins) == (("relu",), ("relu",))


def test_an_old_node_also_represents_the_removed_node_it_replaces() -> None:
    program = fx.symbolic_trace(Chain())
    record_origins(program.graph)
    earlier = EarlierNode.all_of(program.graph)
    (relu,) = program.graph.find_nodes(op="call_function", target=torch.relu)
    before = relu.args[0]
    for user in list(relu.users):
        user.args = tuple(before if argument is relu else argument for argument in user.args)
    program.graph.erase_node(relu)
    match_origins(program.graph, earlier)
    assert before.origins == (before.name, "relu")

"""Gradual types: inference, refinement, errors, rules of users, and checks at run time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.analysis import gradual_types
from fx.analysis.gradual_types import (
    GraphTypeChecker,
    Refine,
    TypeCheckingInterpreter,
    broadcast_types,
    get_greatest_upper_bound,
    register_inference_rule,
)
from fx.errors import AnalysisError, PassError, TensorTypeError
from fx.tensor_type import Dyn, TensorType
from model_zoo import get_model


def annotated(function: Any, *types: Any) -> fx.GraphModule:
    """Capture a program and annotate its inputs."""
    program = fx.symbolic_trace(function)
    for node, kind in zip(program.graph.find_nodes(op="placeholder"), types, strict=False):
        node.type = kind
    return program


def checked(function: Any, *types: Any) -> fx.GraphModule:
    """Capture a program, annotate its inputs and check its types."""
    program = annotated(function, *types)
    assert GraphTypeChecker({}, program).type_check()
    return program


def result(function: Any, *types: Any) -> Any:
    """Return the type of the result."""
    return checked(function, *types).graph.output_node().type


def inputs(program: fx.GraphModule) -> list[Any]:
    """Return the types of the inputs."""
    return [node.type for node in program.graph.find_nodes(op="placeholder")]


IMAGES = TensorType((Dyn, 3, 8, Dyn))


@pytest.mark.parametrize(
    "function, expected",
    [
        (nn.Conv2d(3, 5, 3, padding=1), (Dyn, 5, 8, Dyn)),
        (nn.Conv2d(3, 6, 3, stride=2, groups=3), (Dyn, 6, 3, Dyn)),
        (lambda x: F.conv_transpose2d(x, torch.ones(3, 5, 3, 3), stride=2), (Dyn, 5, 17, Dyn)),
        (nn.BatchNorm2d(3).eval(), (Dyn, 3, 8, Dyn)),
        (nn.ReLU(), (Dyn, 3, 8, Dyn)),
        (nn.MaxPool2d(3, 2, ceil_mode=True), (Dyn, 3, 4, Dyn)),
        (nn.AdaptiveAvgPool2d((None, 2)), (Dyn, 3, 8, 2)),
        (lambda x: x.flatten(1), (Dyn, Dyn)),
        (lambda x: x.flatten(1, 2), (Dyn, 24, Dyn)),
        (lambda x: x.view(x.size(0), 6, -1), (Dyn, 6, Dyn)),
        (lambda x: x.reshape(-1, 3 * 8), (Dyn, 24)),
        (lambda x: x.transpose(1, -1), (Dyn, Dyn, 8, 3)),
        (lambda x: x.permute(1, 0, 3, 2), (3, Dyn, Dyn, 8)),
        (lambda x: torch.cat([x, x], 1), (Dyn, 6, 8, Dyn)),
        (lambda x: torch.cat([x, x], 0), (Dyn, 3, 8, Dyn)),
        (lambda x: torch.stack([x, x], 1), (Dyn, 2, 3, 8, Dyn)),
        (lambda x: x.transpose(2, 3) @ x, (Dyn, 3, Dyn, Dyn)),
        (lambda x: x.mean((2, 3)), (Dyn, 3)),
        (lambda x: x.sum(-1, keepdim=True), (Dyn, 3, 8, 1)),
        (lambda x: x[:, 1:, None, 2], (Dyn, 2, 1, Dyn)),
        (lambda x: x[:5, ..., :5], (Dyn, 3, 8, Dyn)),
        (lambda x: x.squeeze(1).unsqueeze(0), (1, Dyn, 3, 8, Dyn)),
        (lambda x: x.chunk(3, 1)[2], (Dyn, 1, 8, Dyn)),
        (lambda x: F.interpolate(x, scale_factor=2.0), (Dyn, 3, 16, Dyn)),
        (lambda x: x.float().clamp_(0, 1) * 2.5, (Dyn, 3, 8, Dyn)),
        (lambda x: x == torch.ones(8, 1), (Dyn, 3, 8, Dyn)),
    ],
)
def test_types_of_results_follow_from_the_type_of_the_input(function: Any, expected: tuple[Any, ...]) -> None:
    assert result(function, IMAGES) == TensorType(expected)


def test_an_unknown_type_stays_unknown_where_nothing_is_demanded() -> None:
    program = checked(lambda x, y: (x + y).flatten(1))
    assert inputs(program) == [Dyn, Dyn]
    assert program.graph.output_node().type is Dyn


def test_the_result_is_unknown_if_its_rank_depends_on_a_size() -> None:
    assert result(lambda x: x.squeeze(0), IMAGES) is Dyn


def test_a_size_is_known_if_one_operand_determines_it() -> None:
    # the other size of the second dimension is 5 or 1
    assert result(lambda x, y: x + y, TensorType((Dyn, Dyn)), TensorType((5,))) == TensorType((Dyn, 5))


def test_a_size_of_one_becomes_that_of_the_other_operand() -> None:
    assert result(lambda x, y: x + y, TensorType((1, Dyn)), TensorType((Dyn, 3))) == TensorType((Dyn, 3))


def test_an_error_names_the_assumptions() -> None:
    with pytest.raises(TensorTypeError, match="the number of dimensions of input_1 was assumed"):
        checked(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm1d(4), nn.Conv1d(4, 1, 1)), Dyn)


def test_what_an_operator_needs_refines_the_input() -> None:
    program = annotated(nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(16, 2)))
    checker = GraphTypeChecker({}, program)
    checker.type_check()
    assert inputs(program) == [TensorType((Dyn, 3, Dyn, Dyn))]
    assert [node.name for node in checker.assumed] == ["_0"]  # the convolution also takes an image without a batch


def test_assertions_of_the_program_refine_the_input() -> None:
    class Asserting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dim() == 3, "takes a batch of matrices"
            assert x.size(1) == 4
            return x + 1

    program = annotated(Asserting(), Dyn)
    checker = GraphTypeChecker({}, program)
    checker.type_check()
    assert inputs(program) == [TensorType((Dyn, 4, Dyn))]
    assert not checker.assumed


def test_an_annotation_of_an_inner_node_refines_the_input() -> None:
    program = annotated(lambda x: torch.relu(x).sin(), Dyn)
    program.graph.find_nodes(op="call_function")[0].type = TensorType((Dyn, 7))
    GraphTypeChecker({}, program).type_check()
    assert inputs(program) == [TensorType((Dyn, 7))]


def test_refine_names_equal_sizes_equally() -> None:
    program = annotated(lambda x, y: torch.bmm(x, y).reshape(x.size(0), -1))
    Refine(program).refine()
    assert inputs(program) == [TensorType(("d0", "d1", "d2")), TensorType(("d0", "d2", "d3"))]
    assert program.graph.output_node().type == TensorType(("d0", "d4"))


def test_names_in_annotations_are_kept() -> None:
    types = TensorType(("batch", "k")), TensorType((4, 5))
    program = checked(lambda x, y: (x @ y).unsqueeze(0), *types)
    assert inputs(program) == [TensorType(("batch", 4)), types[1]]
    assert program.graph.output_node().type == TensorType((1, "batch", 5))


def test_a_reshape_determines_a_missing_size() -> None:
    program = checked(lambda x: x.reshape(6, 4), TensorType((Dyn, 8)))
    assert inputs(program) == [TensorType((3, 8))]


def test_several_results_have_the_types_of_all() -> None:
    kinds = result(lambda x: x.split([1, 2], 1), TensorType((Dyn, 3)))
    assert kinds == tuple[TensorType((Dyn, 1)), TensorType((Dyn, 2))]  # type: ignore[misc]


def test_resnet50_has_types_for_an_unknown_batch() -> None:
    program = checked(get_model("resnet50").build(), TensorType((Dyn, 3, 224, 224)))
    types = {node.name: node.type for node in program.graph.nodes}
    assert all(isinstance(kind, TensorType) for kind in types.values())
    assert types["conv1"] == TensorType((Dyn, 64, 112, 112))
    assert types["layer4_2_relu_2"] == TensorType((Dyn, 2048, 7, 7))
    assert types["output"] == TensorType((Dyn, 1000))


@pytest.mark.parametrize(
    "function, kind, why",
    [
        (nn.Conv2d(3, 4, 1), (Dyn, 4, Dyn, Dyn), "channels of the tensor and of the layer differ: 4 is not 3"),
        (nn.Conv2d(3, 4, 1), (Dyn, 3), "it takes tensors of 3 or 4 dimensions, not 2"),
        (nn.Linear(3, 4), (Dyn, 5), "features of the tensor and of the layer differ: 5 is not 3"),
        (nn.BatchNorm2d(3), (Dyn, 4, 2, 2), "channels of the tensor and of the layer differ: 4 is not 3"),
        (nn.LayerNorm(3), (Dyn, 4), "normalized sizes of the tensor and of the layer differ: 4 is not 3"),
        (nn.BatchNorm2d(3), (Dyn, 3, 2), "it takes tensors of 4 dimensions, not 3"),
        (lambda x: x + torch.ones(3), (Dyn, 4), "sizes 4 and 3 cannot be broadcast: they differ, and neither is 1"),
        (lambda x: x @ torch.ones(3, 2), (Dyn, 4), "inner sizes of the product differ: 4 is not 3"),
        (lambda x: x.reshape(5, 5), (Dyn, 3), "different numbers of elements: their known factors are 3, 25"),
        (lambda x: torch.cat([x, torch.ones(2, 3)]), (Dyn, 4), "sizes of dimension 1 of the joined tensors differ"),
        (lambda x: x.transpose(1, 2), (Dyn, 4), "Dimension out of range"),
        (lambda x: x.unsqueeze_(0) + 1, (Dyn, 4), "it changes the sizes of a tensor in place"),
    ],
)
def test_an_error_says_what_where_why_and_what_to_try(function: Any, kind: tuple[Any, ...], why: str) -> None:
    program = annotated(function, TensorType(kind))
    before = [node.type for node in program.graph.nodes]
    with pytest.raises(TensorTypeError) as failure:
        GraphTypeChecker({}, program).type_check()
    lines = str(failure.value).splitlines()
    assert lines[0].startswith("the types of ") and " do not fit: " in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["where", "value", "why", "try"]
    assert why in lines[3]
    assert [node.type for node in program.graph.nodes] == before


def test_the_error_has_the_users_line_and_the_types_of_the_operands() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + y

    with pytest.raises(TypeError, match=r"operator.add of relu TensorType\[\(2, 3\)\] and y") as failure:
        checked(function, TensorType((2, 3)), TensorType((2, 4)))
    assert "test_gradual_types.py:" in str(failure.value) and "return torch.relu(x) + y" in str(failure.value)


def test_an_annotation_that_contradicts_the_program_is_an_error() -> None:
    program = annotated(lambda x: torch.relu(x), TensorType((2, 3)))
    program.graph.find_nodes(op="call_function")[0].type = TensorType((2, 3, 1))
    with pytest.raises(TensorTypeError, match="its annotation or its use needs"):
        GraphTypeChecker({}, program).type_check()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(PassError, match="'traced' of GraphTypeChecker is a GraphModule, not a ReLU"):
        GraphTypeChecker({}, nn.ReLU())  # type: ignore[arg-type]
    with pytest.raises(PassError, match="'traced' of Refine is a GraphModule, not a ReLU"):
        Refine(nn.ReLU())  # type: ignore[arg-type]
    with pytest.raises(TensorTypeError, match="no tensor has both types"):
        get_greatest_upper_bound(TensorType((1,)), TensorType((2,)))
    with pytest.raises(TensorTypeError, match="only types of tensors can be broadcast"):
        broadcast_types(int, TensorType((2,)))


def half(x: torch.Tensor) -> torch.Tensor:
    return x[: x.size(0) // 2]


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(1, self.factor)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the rules that a test registers."""
    monkeypatch.setattr(gradual_types, "_registered", {})


@pytest.mark.usefixtures("rules")
def test_rules_of_users_give_types_to_their_functions_and_modules() -> None:
    @register_inference_rule(half)
    def rule_of_half(node: fx.Node) -> Any:
        return TensorType((Dyn, *node.args[0].type.dims[1:]))  # type: ignore[union-attr]

    @register_inference_rule(Doubled)
    def rule_of_doubled(node: fx.Node, module: Doubled) -> Any:
        rows, columns = node.args[0].type.dims  # type: ignore[union-attr]
        return TensorType((rows, columns * module.factor))

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.doubled = Doubled()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.doubled(half(x.relu())).transpose(0, 1)

    class Leaves(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, Doubled)

    tracer = Leaves(autowrap_functions=(half,))
    module = Program()
    program = fx.GraphModule(module, tracer.trace(module))
    program.graph.find_nodes(op="placeholder")[0].type = TensorType((4, 3))
    GraphTypeChecker({}, program).type_check()
    assert program.graph.output_node().type == TensorType((6, Dyn))
    program.graph.find_nodes(op="placeholder")[0].type = TensorType(("n", 3))
    kinds = [node.type for node in program.graph.nodes]
    output = program.graph.output_node()
    with program.graph.inserting_before(output):
        output.args = (program.graph.call_function(torch.bmm, (output.args[0], output.args[0])),)
    with pytest.raises(TensorTypeError, match="it takes tensors of 3 dimensions, not 2"):
        GraphTypeChecker({}, program).type_check()
    assert [node.type for node in program.graph.nodes if node.target is not torch.bmm] == kinds
    with pytest.raises(AnalysisError, match="two inference rules are registered for"):
        register_inference_rule(half)(lambda node: Dyn)


def test_a_function_without_a_rule_has_an_unknown_type_and_is_not_called() -> None:
    calls: list[Any] = []

    def unknown(x: Any) -> Any:
        calls.append(x)
        return x

    graph = fx.Graph()
    x = graph.placeholder("x", TensorType((2, 3)))
    called = graph.call_function(unknown, (x,))
    graph.output(graph.call_function(F.linear, (called, graph.call_function(torch.relu, (called,)))))
    program = fx.GraphModule(nn.Module(), graph)
    GraphTypeChecker({}, program).type_check()
    assert called.type is Dyn and not calls


@pytest.mark.parametrize("shape", [(2, 4, 5, 5), (3, 5, 5)])
def test_a_run_checks_what_was_assumed(shape: tuple[int, ...]) -> None:
    program = checked(nn.Conv2d(3, 8, 1))
    assert TypeCheckingInterpreter(program).run(torch.ones(2, 3, 5, 5)).shape == (2, 8, 5, 5)
    with pytest.raises(TensorTypeError) as failure:
        TypeCheckingInterpreter(program).run(torch.ones(shape))
    assert f"has type TensorType[(Dyn, 3, Dyn, Dyn)], but its value is a tensor of shape {shape}" in str(failure.value)
    assert [line.split()[0] for line in str(failure.value).splitlines()[1:]] == ["where", "value", "why", "try"]


def test_a_run_checks_that_a_name_stands_for_one_size() -> None:
    program = checked(lambda x, y: (x.sum(), y.sum()), TensorType(("n", Dyn)), TensorType(("n",)))
    interpreter = TypeCheckingInterpreter(program)
    for rows in (2, 3):
        interpreter.run(torch.ones(rows, 1), torch.ones(rows))
    with pytest.raises(TensorTypeError, match="size n is 2 in x, and 3 in y"):
        interpreter.run(torch.ones(2, 1), torch.ones(3))


def test_a_run_checks_results_in_tuples_and_values_that_are_no_tensors() -> None:
    program = checked(lambda x: x.split([1, 2], 1), TensorType((Dyn, 3)))
    program.graph.output_node().type = tuple[TensorType((1, 1)), TensorType((1, 2))]  # type: ignore[misc]
    TypeCheckingInterpreter(program).run(torch.ones(1, 3))
    with pytest.raises(TensorTypeError, match="output has type TensorType"):
        TypeCheckingInterpreter(program).run(torch.ones(2, 3))
    program.graph.find_nodes(op="placeholder")[0].type = TensorType(())
    with pytest.raises(TensorTypeError, match="but its value is int"):
        TypeCheckingInterpreter(program).run(3)


def test_typed_programs_run_as_before() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten())
    program = checked(module, TensorType(("n", 3, 8, 8)))
    program.recompile()
    x = torch.ones(2, 3, 8, 8)
    assert torch.equal(program(x), module(x))

"""Our passes run inside torch.compile, and the example of it runs."""

from __future__ import annotations

import copy
import operator
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import fx
from fx.interop import compile_backend

EXAMPLE = Path(__file__).parents[3] / "examples" / "compile_backend.py"


@pytest.fixture(autouse=True)
def forget_compiled_code() -> Any:
    """Compile anew in each test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_compiled_model_computes_and_learns_like_eager() -> None:
    recorded: list[fx.GraphModule] = []

    def edit(graph_module: fx.GraphModule) -> None:
        recorded.append(graph_module)
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.tanh
        graph_module.recompile()

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    x = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)
    compiled = torch.compile(
        lambda value: torch.relu(model(value)), backend=compile_backend(fx.passes.RemoveDeadCode(), edit)
    )
    result = compiled(x)
    result.sum().backward()
    weight = model[0].weight
    learned, weight.grad = weight.grad, None
    expected = torch.tanh(model(x))
    expected.sum().backward()
    assert type(recorded[0]).__mro__[1] is fx.GraphModule
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(learned, weight.grad)
    assert int(model[1].num_batches_tracked) == 2
    lines = [node.source.text for node in recorded[0].graph.nodes if node.op.startswith("call") and node.source]
    assert any("torch.relu(model(value))" in line for line in lines)


def test_the_example_equals_eager() -> None:
    example = runpy.run_path(str(EXAMPLE))
    x, y = torch.linspace(0.0, 1.0, 5), torch.linspace(3.0, -1.0, 5)
    assert torch.equal(example["distance"](x, y), ((x - y) ** 2).sum().sqrt())

    program = fx.symbolic_trace(lambda x: (x**2, x**3))
    assert "pow_1 = x * x" in example["MultiplyInsteadOfPow"]()(program).code
    assert "pow_2 = x ** 3" in program.code


def test_a_pass_that_returns_no_program_is_named() -> None:
    def wrong(graph_module: fx.GraphModule) -> Any:
        return 3

    theirs = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(fx.PassError, match=r"pass 'wrong' .* returned an int, which is not a program"):
        compile_backend(wrong)(theirs, [])


def test_passes_are_given_as_in_a_pipeline_and_refused_before_anything_is_compiled() -> None:
    theirs = torch.fx.symbolic_trace(lambda x: (x + 1, torch.relu(x))[0])
    for pass_ in ("remove-dead-code", fx.passes.RemoveDeadCode):
        assert len(compile_backend(pass_)(theirs, []).graph.nodes) == 3
    with pytest.raises(fx.PassError, match="an int is not a pass"):
        compile_backend(3)
    with pytest.raises(fx.PassError, match="did you mean 'remove-dead-code'"):
        compile_backend("remove-ded-code")


class Twice(torch.autograd.Function):
    """Has a gradient of its own, so that Dynamo makes programs of both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 5


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo itself
def test_higher_order_operators_run_their_bodies() -> None:
    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda y: y.sin(), x, use_reentrant=False)

    for function in (checkpointed, Twice.apply):
        x, copy = (torch.linspace(-1.0, 1.0, 4).requires_grad_() for _ in range(2))
        result = torch.compile(lambda value, call=function: call(value) + 1, backend=compile_backend())(x)
        result.sum().backward()
        expected = function(copy) + 1
        expected.sum().backward()
        assert torch.equal(result, expected) and torch.equal(x.grad, copy.grad)


def test_a_pass_that_leaves_old_code_behind_is_named() -> None:
    def forgetful(graph_module: fx.GraphModule) -> None:
        for node in graph_module.graph.find_nodes(op="call_function", target=operator.add):
            node.target = operator.sub

    theirs = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(fx.PassError, match="recompile"):
        compile_backend(forgetful)(theirs, [])


def conv_net() -> torch.nn.Module:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 2), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(12, 2)
    )
    model(torch.randn(4, 2, 3, 3))
    return model.eval()


class Fused:
    """A backend that fuses, and its programs and reports."""

    def __init__(self) -> None:
        self.programs: list[fx.GraphModule] = []
        self.reasons: list[str] = []
        self.backend = compile_backend(self.explain, fx.passes.FuseConvBN(), self.programs.append)

    def explain(self, program: fx.GraphModule) -> None:
        self.reasons += [entry.reason for entry in fx.passes.FuseConvBN().explain(program)]

    @property
    def norms(self) -> list[int]:
        """Return how many batch norms are left in each program."""
        return [
            sum(node.target is torch.nn.functional.batch_norm for node in program.graph.nodes)
            for program in self.programs
        ]


def test_parameters_are_known_to_passes_where_no_gradients_are_requested() -> None:
    model, fused, x = conv_net(), Fused(), torch.randn(2, 2, 3, 3)
    compiled = torch.compile(model, backend=fused.backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        compiled(x)
    assert fused.norms == [0] and fused.reasons == ["folded into `%input_1`"]


def test_parameters_whose_gradients_are_requested_stay_inputs() -> None:
    model, fused, x = conv_net(), Fused(), torch.randn(2, 2, 3, 3)
    compiled = torch.compile(model, backend=fused.backend)
    compiled(x).sum().backward()
    learned = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(learned, [parameter.grad for parameter in model.parameters()])
    assert fused.norms == [1]
    (reason,) = fused.reasons
    assert reason == (
        "the weight of `%input_1` is the input `l_fn_modules_0_parameters_weight_`, not known before the program runs"
    )

    def half_trained(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = model[1](model[0](x))
            with torch.enable_grad():
                return model[4](x.flatten(1))

    model.zero_grad()
    torch.compile(half_trained, backend=fused.backend)(x).sum().backward()
    assert model[4].weight.grad is not None and model[0].weight.grad is None
    assert fused.norms == [1, 1]


def test_parameters_that_are_not_trained_are_known_and_gradients_of_inputs_flow() -> None:
    model, fused, x = conv_net().requires_grad_(False), Fused(), torch.randn(2, 2, 3, 3).requires_grad_()
    torch.compile(model, backend=fused.backend)(x).sum().backward()
    gradient, x.grad = x.grad, None
    model(x).sum().backward()
    torch.testing.assert_close(gradient, x.grad)
    assert fused.norms == [0]


def test_values_that_change_after_compilation_are_seen() -> None:
    model, fused, x = conv_net().requires_grad_(False), Fused(), torch.randn(2, 2, 3, 3)
    compiled = torch.compile(model, backend=fused.backend)
    compiled(x)
    model[0].weight.mul_(2)
    torch.testing.assert_close(compiled(x), model(x))
    model[0].weight = torch.nn.Parameter(torch.randn(3, 2, 2, 2), requires_grad=False)
    torch.testing.assert_close(compiled(x), model(x))
    model.load_state_dict(conv_net().state_dict())
    torch.testing.assert_close(compiled(x), model(x))
    assert set(fused.norms) == {0}


def test_values_that_change_all_the_time_become_inputs_again() -> None:
    model, fused, x = conv_net().requires_grad_(False), Fused(), torch.randn(2, 2, 3, 3)
    compiled = torch.compile(model, backend=fused.backend)
    for _ in range(12):
        model[1].weight.add_(1)
        torch.testing.assert_close(compiled(x), model(x))
    assert fused.norms == [0] * 9 + [1]


def test_parameters_that_passes_cannot_use_stay_inputs() -> None:
    recorded: list[str] = []
    model, x = conv_net().requires_grad_(False), torch.randn(2, 2, 3, 3)
    backends: list[Any] = []

    def backend(theirs: torch.fx.GraphModule, examples: Any) -> Any:
        backends.append(
            compile_backend("remove-dead-code", lambda program: recorded.append(program.code))(theirs, examples)
        )
        return backends[0]

    compiled = torch.compile(model, backend=backend)
    for _ in range(3):
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
    (program,) = backends
    assert len(recorded) == 1 and "self.L_fn_modules_0_parameters_weight_" in recorded[0]
    assert not program.state_dict() and [node.name for node in program.graph.find_nodes(op="placeholder")] == [
        "l_fn_modules_0_parameters_weight_", "l_fn_modules_0_parameters_bias_", "l_args_0_",
        "l_fn_modules_1_buffers_running_mean_", "l_fn_modules_1_buffers_running_var_",
        "l_fn_modules_1_parameters_weight_", "l_fn_modules_1_parameters_bias_", "l_fn_modules_4_parameters_weight_",
        "l_fn_modules_4_parameters_bias_",
    ]  # fmt: skip


def test_statistics_that_the_program_writes_stay_inputs() -> None:
    model, fused = conv_net().requires_grad_(False).train(), Fused()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=fused.backend)
    for _ in range(3):
        x = torch.randn(2, 2, 3, 3)
        torch.testing.assert_close(compiled(x), eager(x))
    torch.testing.assert_close(model.state_dict(), eager.state_dict())
    assert fused.norms == [1]


def test_a_parameter_that_a_layer_shares_memory_with_another_one_stays_an_input() -> None:
    model, fused, x = conv_net().requires_grad_(False), Fused(), torch.randn(2, 2, 3, 3)
    model[1].bias = torch.nn.Parameter(model[1].weight.data, requires_grad=False)
    torch.testing.assert_close(torch.compile(model, backend=fused.backend)(x), model(x))
    assert fused.norms == [1]


class Drop:
    """Takes away an input that nothing uses."""

    may_change = ("signature",)

    def __call__(self, program: fx.GraphModule) -> None:
        unused = next(node for node in program.graph.find_nodes(op="placeholder") if not node.users)
        program.graph.erase_node(unused)
        program.recompile()


def test_the_error_for_a_removed_input_lists_the_inputs_of_dynamo() -> None:
    theirs = torch.fx.symbolic_trace(lambda x, unused, weight: x * weight)
    weight = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    torch._dynamo.mark_static_address(weight)
    with pytest.raises(fx.PassError) as caught:
        compile_backend(Drop())(theirs, [torch.ones(1), torch.ones(1), weight])
    assert str(caught.value) == (
        "a program of Dynamo's was left with other inputs than it had\n"
        "  value  x\n"
        "  why    it is called with x, unused, by position\n"
        "  try    keep the inputs, also those that nothing uses any more"
    )

"""Operations that return their operand are dropped; lookalikes stay, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import AllLeaves, Calling, operations
from torch import Tensor, nn

import fx
from fx.passes.remove_identities import RemoveIdentities
from model_zoo import get_model, list_models


def captured(model: nn.Module | Callable[..., Any], **shapes: tuple[int, ...]) -> fx.GraphModule:
    if not isinstance(model, nn.Module):
        function = model
        model = Calling(lambda self, x: function(x))
    program = fx.GraphModule(model, AllLeaves().trace(model))
    for node in program.graph.nodes:
        if node.name in shapes:
            node.meta["val"] = torch.empty(shapes[node.name])
    return program


def reasons(program: fx.GraphModule) -> list[str]:
    return [removal.reason for removal in RemoveIdentities().explain(program)]


def assert_left_alone(program: fx.GraphModule, reason: str) -> None:
    before, revision = operations(program), program.graph.revision
    assert reasons(program) == [reason]
    assert not RemoveIdentities().explain(program)[0].is_edited
    RemoveIdentities()(program)
    assert operations(program) == before
    assert program.graph.revision == revision


MODULES = {
    "identity": nn.Identity(),
    "empty": nn.Sequential(),
    "dropout": nn.Dropout(0.3),
    "in place": nn.Dropout(0.3, inplace=True),
    "dropout2d": nn.Dropout2d(0.3),
    "alpha": nn.AlphaDropout(0.3),
    "feature alpha": nn.FeatureAlphaDropout(0.3),
    "never": nn.Dropout(0.0).train(),
}


@pytest.mark.parametrize("module", [pytest.param(module, id=name) for name, module in MODULES.items()])
def test_modules_that_return_their_input_are_dropped(module: nn.Module) -> None:
    model = Calling(lambda self, x: self.module(x * 2) + 1, module=module)
    if module.__dict__.get("p") != 0:
        model.eval()
    x = torch.randn(2, 3, 4, 4)
    assert module(x) is x
    program = captured(model)
    expected = program(x)
    assert reasons(program) == ["returns `%mul`"]
    RemoveIdentities()(program)
    program.graph.lint()
    assert operations(program) == ["mul", "add"]
    assert not list(program.named_children())
    assert torch.equal(program(x), expected)
    assert list(dict(model.named_children())) == ["module"]  # the traced one is left as it was


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: F.dropout(x, training=False),
    "in place": lambda x: F.dropout(x, 0.5, False, True),
    "never": lambda x: F.dropout(x, p=0, training=True),
    "dropout2d": lambda x: F.dropout2d(x, 0.5, False),
    "alpha": lambda x: F.alpha_dropout(x),
    "feature alpha": lambda x: F.feature_alpha_dropout(x, training=False),
    "torch": lambda x: torch.dropout(x, 0.5, False),
    "torch by keyword": lambda x: torch.dropout(x, p=0.5, train=False),
    "torch never": lambda x: torch.dropout(x, 0.0, True),
    "torch in place": lambda x: torch.dropout_(x, 0.5, False),
    "torch feature": lambda x: torch.feature_dropout(x, 0.5, False),
    "torch alpha": lambda x: torch.alpha_dropout(x, 0.5, False),
    "torch feature alpha": lambda x: torch.feature_alpha_dropout(x, 0.5, False),
}


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in FUNCTIONS.items()])
def test_functions_that_return_their_input_are_dropped(function: Callable[[Any], Any]) -> None:
    x = torch.randn(2, 3, 4, 4)
    assert function(x) is x
    program = captured(function)
    RemoveIdentities()(program)
    assert operations(program) == []
    assert program(x) is x


CASTS: dict[str, Callable[[Any], Any]] = {
    "to dtype": lambda x: x.to(torch.float32),
    "to device": lambda x: x.to("cpu"),
    "to both": lambda x: x.to(torch.device("cpu"), torch.float32),
    "by keyword": lambda x: x.to(dtype=torch.float32, device="cpu", non_blocking=True),
    "float": lambda x: x.float(),
}


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in CASTS.items()])
def test_casts_that_return_the_tensor_itself_are_dropped(function: Callable[[Any], Any]) -> None:
    x = torch.randn(2)
    assert function(x) is x
    program = captured(function, x=(2,))
    assert reasons(program) == ["returns `%x`"]
    RemoveIdentities()(program)
    assert operations(program) == []


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: x.to(torch.float64), "`%x` has the dtype torch.float32"),
        (lambda x: x.half(), "`%x` has the dtype torch.float32"),
        (lambda x: x.to("meta"), "`%x` has the device cpu"),
        (lambda x: x.to(torch.float32, copy=True), "its arguments are not a dtype and a device alone"),
        (lambda x: x.to(x), "its arguments are not a dtype and a device alone"),
        (lambda x: x.float(memory_format=torch.channels_last), "its arguments are not a dtype and a device alone"),
        (lambda x: x.to(), "its arguments are not a dtype and a device alone"),
    ],
)
def test_casts_that_may_make_another_tensor_are_left_alone(function: Callable[[Any], Any], reason: str) -> None:
    assert_left_alone(captured(function, x=(2,)), reason)


def test_casts_of_unrecorded_tensors_are_left_alone() -> None:
    assert_left_alone(captured(lambda x: x.float()), "the dtype of `%x` is not recorded")
    assert_left_alone(captured(lambda x: x.to("cpu")), "the device of `%x` is not recorded")


@pytest.mark.parametrize("module, shape", [(nn.Dropout1d(), (2, 3, 4)), (nn.Dropout3d(), (2, 3, 4, 4, 4))])
def test_dropout_of_channels_is_dropped_only_where_there_is_a_batch(module: nn.Module, shape: tuple[int, ...]) -> None:
    model = Calling(lambda self, x: self.drop(x), drop=module).eval()
    for program in (
        captured(model),
        captured(lambda x: getattr(F, type(module).__name__.lower())(x, training=False)),
    ):
        assert_left_alone(
            program, "it returns a view of an input without batch dimension, and the shape of `%x` is not recorded"
        )
    assert_left_alone(captured(model, x=shape[1:]), f"`%x` has {len(shape) - 1} dimensions, of which it returns a view")
    assert module(x := torch.rand(shape)) is x
    assert module(x := torch.rand(shape[1:])) is not x
    program = captured(model, x=shape)
    RemoveIdentities()(program)
    assert operations(program) == []


# Left alone.


def test_dropout_in_training_mode_is_left_alone() -> None:
    model = Calling(lambda self, x: self.drop(x), drop=nn.Dropout(0.25))
    assert_left_alone(captured(model), "it is in training mode, where it drops with probability 0.25")
    reason = "it is in training mode, where it drops with probability 0.5"
    assert_left_alone(captured(lambda x: F.dropout(x)), reason)
    assert_left_alone(captured(lambda x: torch.dropout(x, 0.5, True)), reason)


def test_switches_that_the_program_computes_are_left_alone() -> None:
    reason = "the program computes whether it drops anything"
    assert_left_alone(captured(lambda x: F.dropout(x, training=x)), reason)
    assert_left_alone(captured(lambda x: F.dropout(x, x, False)), reason)


@pytest.mark.parametrize("probability", [1.5, -0.1, "half"])
def test_probabilities_that_dropout_refuses_are_left_alone(probability: Any) -> None:
    program = captured(lambda x: F.dropout(x, probability, training=False))
    assert_left_alone(program, f"its probability {probability!r} is not between 0 and 1")


def test_inputs_that_are_no_values_are_left_alone() -> None:
    graph = fx.Graph()
    graph.placeholder("x")
    graph.output(graph.call_function(F.dropout, (2.0, 0.5, False)))
    assert_left_alone(fx.GraphModule(nn.Module(), graph), "its input is not a value of the program")


def test_hooks_and_forwards_of_their_own_are_left_alone() -> None:
    for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
        module = nn.Identity()
        getattr(module, register)(lambda *_: None)
        program = captured(Calling(lambda self, x: self.module(x), module=module))
        assert_left_alone(program, "it has hooks or a forward of its own")
    module = nn.Identity()
    module.forward = lambda x: x + 1  # type: ignore[method-assign]
    program = captured(Calling(lambda self, x: self.module(x), module=module))
    assert_left_alone(program, "it has hooks or a forward of its own")


def test_subclasses_are_left_alone() -> None:
    class Doubling(nn.Identity):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * input

    program = captured(Calling(lambda self, x: self.module(x), module=Doubling()))
    assert_left_alone(program, "its class `Doubling` is not one of torch's own")


def test_operations_that_are_identities_for_some_inputs_only_are_no_candidates() -> None:
    def function(x: Any) -> Any:
        y = (x + 0) * 1
        return y.contiguous().reshape(2, 2).transpose(0, 1).transpose(0, 1).detach().clone()

    program = captured(function, x=(2, 2))
    assert reasons(program) == []
    before = operations(program)
    assert operations(RemoveIdentities()(program)) == before


# What the program is afterwards.


def test_aliases_and_writes_are_kept() -> None:
    def function(x: Any) -> Any:
        y = F.dropout(x, training=False)
        y.add_(1)
        return x, y

    program = RemoveIdentities()(captured(function))
    x = torch.zeros(2)
    first, second = program(x)
    assert first is second is x
    assert x.sum() == 2


def test_chains_of_identities_are_dropped_as_one() -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(), nn.Linear(2, 2), nn.Dropout(), nn.Identity()).eval()
    program = RemoveIdentities()(fx.symbolic_trace(model))
    assert operations(program) == ["_2"]
    assert [name for name, _ in program.named_children()] == ["2"]
    assert program.graph.find_nodes(op="call_module")[0].origins == ("_2", "_3", "_4")


def test_modules_that_are_used_otherwise_stay() -> None:
    drop = nn.Dropout().eval()
    graph = fx.Graph()
    x = graph.placeholder("x")
    fetched = graph.get_attr("a.drop")
    graph.output((graph.call_module("a.drop", (x,)), fetched))
    program = RemoveIdentities()(fx.GraphModule({"a.drop": drop}, graph))
    assert program.get_submodule("a.drop") is drop


def test_modules_inside_those_of_the_user_stay() -> None:
    block = nn.Sequential(nn.Dropout(), nn.Linear(2, 2)).eval()
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("block", (graph.call_module("block.0", (x,)),)))
    root = nn.Module()
    root.block = block
    program = RemoveIdentities()(fx.GraphModule(root, graph))
    assert operations(program) == ["block"]
    assert len(block) == 2


def test_containers_go_with_their_last_module_unless_they_hold_state() -> None:
    model = nn.Sequential(nn.Sequential(nn.Dropout()), nn.Sequential(nn.Identity(), nn.Linear(2, 2))).eval()
    program = RemoveIdentities()(fx.symbolic_trace(model))
    assert [name for name, _ in program.named_modules()] == ["", "1", "1.1"]
    holder = nn.Identity()
    holder.register_buffer("note", torch.zeros(1))
    program = RemoveIdentities()(fx.symbolic_trace(nn.Sequential(holder)))
    assert list(program.state_dict()) == ["0.note"]


def test_edits_name_the_dropped_operation() -> None:
    program = captured(lambda x: F.dropout(x, training=False) + 1)
    assert [edit.description for edit in RemoveIdentities().rewrites(program)] == ["dropout, which returns x"]


@pytest.mark.parametrize("name", [name for name in list_models() if "small" in get_model(name).tags])
def test_small_models_compute_the_same_bit_for_bit(name: str) -> None:
    model = get_model(name)
    module = model.build()
    program = RemoveIdentities()(fx.symbolic_trace(module))
    program.graph.lint()
    assert not any(isinstance(child, (nn.Dropout, nn.Identity)) for child in program.children())
    inputs = model.example_inputs(batch=2)
    torch.testing.assert_close(program(*inputs), module(*inputs), rtol=0, atol=0)

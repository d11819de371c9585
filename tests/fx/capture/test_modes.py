"""Modes that traced code sets or asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.assertions import check_value


def lines(root: Any) -> list[str]:
    return [line.split(";")[0].strip() for line in fx.symbolic_trace(root).code.strip().splitlines()[1:-1]]


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2


def test_a_block_without_gradients_sets_the_mode_and_sets_it_back_to_what_it_was() -> None:
    assert lines(without_gradients) == [
        "is_grad_enabled = torch.is_grad_enabled()",
        "_set_grad_enabled = torch.set_grad_enabled(False)"
        if "torch.set_grad_enabled" in fx.symbolic_trace(without_gradients).code
        else "_set_grad_enabled = torch._C._set_grad_enabled(False)",
        "mul = x * 2",
        "_set_grad_enabled_1 = torch._C._set_grad_enabled(is_grad_enabled)",
    ]
    captured = fx.symbolic_trace(without_gradients)
    x = torch.ones(2, requires_grad=True)
    assert not captured(x).requires_grad
    assert torch.is_grad_enabled()
    with torch.no_grad():
        captured(x)
        assert not torch.is_grad_enabled()
    assert fx.symbolic_trace(captured).code == captured.code


def test_blocks_in_blocks_without_gradients_set_back_what_each_found() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
            with torch.no_grad():
                z = y + 1
            y = y * x
        return y + z + x

    captured = fx.symbolic_trace(program)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            assert captured(torch.ones(1, requires_grad=True)).requires_grad is enabled
            assert torch.is_grad_enabled() is enabled
    assert len(captured.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)) == 4


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.set_grad_enabled(False)])
def test_inference_mode_and_the_switch_are_recorded_alike_also_as_decorators(mode: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with mode():
            return x * 2

    x = torch.ones(2, requires_grad=True)
    for root in (program, mode()(lambda x: x * 2)):
        captured = fx.symbolic_trace(root)
        assert not captured(x).requires_grad
        assert torch.is_grad_enabled()


def test_autocast_is_recorded_and_ended() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x @ x
        return x.float() @ x.float()

    captured = fx.symbolic_trace(program)
    assert [node.name for node in captured.graph.nodes][1:4] == ["_enter_autocast", "matmul", "_exit_autocast"]
    x = torch.rand(3, 3)
    assert torch.equal(captured(x), program(x))
    assert not torch.is_autocast_enabled("cpu")


class Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, self.training)


def test_a_program_that_asked_for_the_mode_of_a_module_checks_it() -> None:
    captured = fx.symbolic_trace(Dropping().eval())
    captured(torch.ones(2))
    said = r"(?s)in evaluation mode, and depends on it: .*modes.py:\d+, in (Dropping\.)?forward.*it is True now"
    with pytest.raises(fx.GuardError, match=said):
        captured.train()(torch.ones(2))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.blocks = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Dropping()), Dropping())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.first(x).relu())


def test_a_program_that_is_captured_again_checks_the_modes_of_all_its_modules_where_it_did() -> None:
    captured = fx.symbolic_trace(Deep().eval())
    again = fx.symbolic_trace(captured)
    flags = [node.target for node in again.graph.find_nodes(op="get_attr") if str(node.target).endswith("training")]
    assert flags == ["blocks.1.0.training", "blocks.2.training"]
    assert again.code == captured.code
    part = fx.symbolic_trace(nn.Sequential(nn.ReLU(), captured))
    assert [str(guard) for guard in part.guards] == [str(guard) for guard in captured.guards]
    part.get_submodule("1.blocks.1.0").train()
    with pytest.raises(fx.GuardError, match="in evaluation mode, and depends on it"):
        part(torch.ones(1, 2))


def test_a_program_that_is_captured_again_checks_the_mode_of_the_same_modules() -> None:
    captured = fx.symbolic_trace(nn.Sequential(nn.Sequential(Dropping(), nn.Linear(2, 2), Dropping())).eval())
    again = fx.symbolic_trace(captured)
    assert again.code == captured.code and captured.code.count("check_value(") == 2
    within = fx.symbolic_trace(nn.Sequential(captured, nn.ReLU()).eval())
    assert [str(node.target) for node in within.graph.find_nodes(op="get_attr")] == ["0.0.0.training", "0.0.2.training"]
    again.get_submodule("0.2").train()
    with pytest.raises(fx.GuardError, match="in evaluation mode, and depends on it"):
        again(torch.ones(2))


def test_a_program_that_calls_another_one_checks_its_own_modes_behind_that_too() -> None:
    class KeepingFirst(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return module_qualified_name == "0"

    module = nn.Sequential(fx.symbolic_trace(Dropping().eval()), Dropping()).eval()
    again = fx.symbolic_trace(fx.GraphModule(module, KeepingFirst().trace(module)))
    flags = [str(node.target) for node in again.graph.find_nodes(op="get_attr")]
    assert flags == ["0.training", "1.training"]


def test_a_check_that_a_pass_has_found_to_hold_is_no_obstacle_to_another_capture() -> None:
    captured = fx.symbolic_trace(Dropping().eval())
    [check] = captured.graph.find_nodes(op="call_function", target=check_value)
    check.args = (False, *check.args[1:])
    captured.recompile()
    assert "check_value" not in fx.symbolic_trace(captured).code


def test_modules_of_torch_that_are_traced_without_leaf_modules_are_not_checked() -> None:
    class Inlining(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return False

    graph = Inlining().trace(nn.Sequential(nn.Dropout()).eval())
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "output"]


def test_a_program_that_asks_whether_gradients_are_recorded_checks_the_answer() -> None:
    captured = fx.symbolic_trace(lambda x: x * 2 if torch.is_grad_enabled() else x)
    captured(torch.ones(2))
    with torch.no_grad(), pytest.raises(fx.GuardError, match=r"captured where is_grad_enabled was True: .*test_modes"):
        captured(torch.ones(2))


def test_a_program_that_switches_a_module_to_another_mode_is_refused() -> None:
    class Switching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.norm.eval()
            return self.norm(x)

    root = Switching()
    said = (
        r"(?s)cannot switch a module between training and evaluation.*test_modes.py:\d+, in .*self.norm.eval\(\).*try"
    )
    with pytest.raises(fx.TraceError, match=said):
        fx.symbolic_trace(root)
    assert root.norm.training


def test_an_error_between_switches_leaves_the_mode_as_it_was() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x.view(7)

    captured = fx.symbolic_trace(program)
    with pytest.raises(RuntimeError, match="shape"):
        captured(torch.ones(2))
    assert torch.is_grad_enabled()


def test_a_program_that_sets_modes_is_saved_with_them(tmp_path: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    captured = fx.symbolic_trace(program)
    fx.save(captured, tmp_path / "program")
    loaded = fx.load(tmp_path / "program")
    assert loaded.code == captured.code
    assert loaded(torch.rand(2, 2, requires_grad=True)).dtype is torch.bfloat16


def _evaluated(module: nn.Module, x: Any) -> Any:
    was = module.training
    module.eval()
    y = module(x)
    module.train(was)
    return y


def test_a_function_that_switches_the_mode_of_a_module_is_followed() -> None:
    class Evaluates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.BatchNorm1d(2)

        def forward(self, x: Any) -> Any:
            return _evaluated(self.inner, x)

    with pytest.raises(fx.TraceError, match=r"(?s)cannot switch a module.*in _evaluated:  module.train"):
        fx.symbolic_trace(Evaluates())
    captured = fx.symbolic_trace(Evaluates().eval())
    captured(torch.ones(2, 2))
    with pytest.raises(fx.FxError, match=r"captured in evaluation mode.*in _evaluated"):
        captured.train()(torch.ones(2, 2))

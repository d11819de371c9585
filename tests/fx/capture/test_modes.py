"""Modes that traced code sets or asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fx


def lines(root: Any) -> list[str]:
    return [line.split(";")[0].strip() for line in fx.symbolic_trace(root).code.strip().splitlines()[1:-1]]


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2


def test_a_no_grad_block_sets_the_mode_and_restores_it() -> None:
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


def test_nested_no_grad_blocks_each_restore_their_outer_mode() -> None:
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


def test_a_program_that_asks_whether_gradients_are_recorded_checks_the_answer() -> None:
    captured = fx.symbolic_trace(lambda x: x * 2 if torch.is_grad_enabled() else x)
    captured(torch.ones(2))
    with torch.no_grad(), pytest.raises(fx.GuardError, match=r"captured where is_grad_enabled was True: .*test_modes"):
        captured(torch.ones(2))


def test_an_error_between_switches_leaves_the_mode_as_it_was() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x.view(7)

    captured = fx.symbolic_trace(program)
    with pytest.raises(RuntimeError, match="shape"):
        captured(torch.ones(2))
    assert torch.is_grad_enabled()


def test_autocast_ends_though_an_exception_leaves_it_that_the_program_handles() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        table: dict[str, float] = {}
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = x @ x
                x = x * table["scale"]
        except KeyError:
            pass
        return x.float() @ x.float()

    captured = fx.symbolic_trace(program)
    names = [node.name for node in captured.graph.nodes]
    assert names.index("_exit_autocast") < names.index("float_1")
    x = torch.eye(2)
    assert captured(x).dtype == program(x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_an_error_behind_autocast_does_not_leave_it_again() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x * 2
        return y.view(7)

    keeping = fx.Interpreter(fx.symbolic_trace(program), garbage_collect_values=False)
    with pytest.raises(RuntimeError, match="shape"):
        keeping.run(torch.ones(2))
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    assert depth == 1


@pytest.mark.parametrize("run", [lambda program: program, lambda program: fx.Interpreter(program).run])
def test_an_error_inside_of_autocast_leaves_it(run: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False), torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return x.view(7)

    captured = fx.symbolic_trace(program)
    with pytest.raises(RuntimeError, match="shape"):
        run(captured)(torch.ones(2))
    is_enabled = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    assert not is_enabled
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

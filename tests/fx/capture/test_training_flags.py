"""The training flag of modules: operations that receive it follow it, and branches on it are checked."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import WithoutLeaves
from torch import nn

import fx
from fx.assertions import check_value
from fx.canonical import canonical_form


class Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, self.training)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) if self.training else x


def test_an_operation_that_is_given_the_flag_follows_it() -> None:
    program = fx.symbolic_trace(Dropping().eval())
    assert program.code.strip().splitlines()[1:3] == [
        "    training = self.training",
        "    dropout = torch.nn.functional.dropout(x, p = 0.5, training = training, inplace = False);  "
        "x = training = None",
    ]
    x = torch.ones(100)
    assert torch.equal(program(x), x)
    assert not torch.equal(program.train()(x), x)
    assert torch.equal(program.eval()(x), x)


def test_a_program_that_read_the_mode_of_a_module_checks_it() -> None:
    captured = fx.symbolic_trace(Branching().eval())
    captured(torch.ones(2))
    message = r"(?s)in evaluation mode, and depends on it: .*flags.py:\d+, in (Branching\.)?forward.*it is True now"
    with pytest.raises(fx.GuardError, match=message):
        captured.train()(torch.ones(2))


def test_a_flag_that_an_operation_does_not_take_is_checked_instead() -> None:
    class Inside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(self.training):
                return x * 2

    captured = fx.symbolic_trace(Inside())
    assert captured(torch.ones(2, requires_grad=True)).requires_grad
    with pytest.raises(fx.GuardError, match="in training mode, and depends on it"):
        captured.eval()(torch.ones(2))


def test_a_flag_that_is_compared_by_identity_is_checked() -> None:
    def chosen(x: torch.Tensor, training: bool) -> torch.Tensor:
        return x * 2 if training is True else x

    class Compares(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return chosen(x, self.training)

    captured = fx.symbolic_trace(Compares())
    assert captured(torch.ones(1)).item() == 2
    with pytest.raises(fx.GuardError, match="in training mode"):
        captured.eval()(torch.ones(1))


def test_a_tracer_can_be_told_to_check_all_flags() -> None:
    class Fixing(fx.Tracer):
        follows_training = False

    root = Dropping()
    program = fx.GraphModule(root, Fixing().trace(root))
    assert [node.target for node in program.graph.nodes][1] == "training"
    with pytest.raises(fx.GuardError, match="in training mode"):
        program.eval()(torch.ones(2))


def test_a_program_that_follows_a_flag_can_be_captured_again_and_saved(tmp_path: Any) -> None:
    program = fx.symbolic_trace(nn.Sequential(Dropping(), Branching()).eval())
    again = fx.symbolic_trace(program)
    assert again.code == program.code
    fx.save(program, tmp_path / "program")
    loaded = fx.load(tmp_path / "program")
    assert loaded.code == program.code
    loaded.get_submodule("0").train()
    x = torch.ones(100)
    assert not torch.equal(loaded(x), x)


def test_the_canonical_form_has_the_flag_as_it_is_now_and_checks_it() -> None:
    form = canonical_form(fx.symbolic_trace(Dropping().eval())).graph_module
    dropout = next(node for node in form.graph.nodes if node.target is F.dropout)
    assert dropout.kwargs["training"] is False
    with pytest.raises(fx.GuardError, match=r"the program was fixed to evaluation mode, .*in (Dropping\.)?forward"):
        form.train()(torch.ones(2))


def test_passes_read_the_current_flag_or_explain_how_it_is_fixed() -> None:
    program = fx.passes.RemoveIdentities()(fx.symbolic_trace(Dropping().eval()))
    assert not program.graph.find_nodes(op="call_function", target=F.dropout)
    program = fx.passes.RemoveIdentities()(fx.symbolic_trace(Dropping().train()))
    assert program.graph.find_nodes(op="call_function", target=F.dropout)

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            norm = self.norm
            x = self.layer(x)
            return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, self.training)

    program = fx.symbolic_trace(Norm().eval())
    reasons = [entry.reason for entry in fx.passes.FuseConvBN().explain(program)]
    assert reasons == ["whether it is in training mode is known when the program runs; `canonicalize` fixes the mode"]
    program = fx.passes.FuseConvBN()(fx.passes.Canonicalize()(program))
    assert not program.graph.find_nodes(op="call_function", target=F.batch_norm)


def test_other_threads_read_and_set_flags_while_a_program_is_captured() -> None:
    recorded: SimpleQueue[Any] = SimpleQueue()
    other = nn.Dropout()

    def elsewhere() -> None:
        recorded.put(other.training)
        other.eval()
        recorded.put(other.training)
        recorded.put(F.dropout(torch.ones(2), 0.5, other.training).tolist())

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            return F.dropout(x, 0.5, self.training)

    fx.symbolic_trace(Waits())
    assert [recorded.get_nowait() for _ in range(3)] == [True, False, [1, 1]]
    assert "training" not in vars(nn.Module)


def test_modules_of_torch_that_are_traced_without_leaf_modules_are_not_checked() -> None:
    graph = WithoutLeaves().trace(nn.Sequential(nn.Dropout()).eval())
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "output"]


def test_a_program_that_switches_a_module_to_another_mode_is_refused() -> None:
    class Switching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.norm.eval()
            return self.norm(x)

    root = Switching()
    message = r"(?s)cannot switch a module between training and evaluation.*flags.py:\d+, in .*self.norm.eval\(\).*try"
    with pytest.raises(fx.TraceError, match=message):
        fx.symbolic_trace(root)
    assert root.norm.training


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

    with pytest.raises(fx.TraceError, match=r"(?s)cannot switch a module.*in _evaluated:  module.eval"):
        fx.symbolic_trace(Evaluates())
    captured = fx.symbolic_trace(Evaluates().eval())
    captured(torch.ones(2, 2))
    with pytest.raises(fx.FxError, match=r"captured in evaluation mode.*in _evaluated"):
        captured.train()(torch.ones(2, 2))


def test_a_program_that_is_captured_again_checks_the_mode_of_the_same_modules() -> None:
    captured = fx.symbolic_trace(nn.Sequential(nn.Sequential(Branching(), nn.Linear(2, 2), Branching())).eval())
    again = fx.symbolic_trace(captured)
    assert again.code == captured.code and captured.code.count("check_value(") == 2
    within = fx.symbolic_trace(nn.Sequential(captured, nn.ReLU()).eval())
    assert [str(node.target) for node in within.graph.find_nodes(op="get_attr")] == ["0.0.0.training", "0.0.2.training"]
    again.get_submodule("0.2").train()
    with pytest.raises(fx.GuardError, match="in evaluation mode, and depends on it"):
        again(torch.ones(2))


def test_a_check_that_a_pass_has_found_to_hold_is_no_obstacle_to_another_capture() -> None:
    captured = fx.symbolic_trace(Branching().eval())
    [check] = captured.graph.find_nodes(op="call_function", target=check_value)
    check.args = (False, *check.args[1:])
    captured.recompile()
    assert "check_value" not in fx.symbolic_trace(captured).code


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.blocks = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Branching()), Branching())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.first(x).relu())


def test_a_part_that_was_captured_has_the_checks_that_it_had() -> None:
    captured = fx.symbolic_trace(Deep().eval())
    part = fx.symbolic_trace(nn.Sequential(nn.ReLU(), captured))
    assert [str(guard) for guard in part.guards] == [str(guard) for guard in captured.guards]
    part.get_submodule("1.blocks.1.0").train()
    with pytest.raises(fx.GuardError, match="in evaluation mode, and depends on it"):
        part(torch.ones(1, 2))


def test_a_program_that_calls_another_one_checks_its_own_modes_behind_that_too() -> None:
    class KeepingFirst(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return module_qualified_name == "0"

    module = nn.Sequential(fx.symbolic_trace(Branching().eval()), Branching()).eval()
    again = fx.symbolic_trace(fx.GraphModule(module, KeepingFirst().trace(module)))
    flags = [str(node.target) for node in again.graph.find_nodes(op="get_attr")]
    assert flags == ["0.training", "1.training"]

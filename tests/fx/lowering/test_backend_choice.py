"""``backend="auto"``: the fastest backend that keeps the contract, or the program unchanged, and what was tried."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import fx
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering import Auto, Backend, Converter, Converters, Lower, choice, register_backend
from fx.lowering import backend as registry

MILLISECONDS = 1e-3


def spin(seconds: float) -> None:
    """Use the processor, whose time is measured."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@torch.library.custom_op("backend_choice::slow_relu", mutates_args=())
def slow_relu(x: Tensor) -> Tensor:
    spin(2 * MILLISECONDS)
    return torch.relu(x)


@slow_relu.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


converters = Converters("timed")
converters.register(Converter(torch.ops.backend_choice.slow_relu))


class Timed(Backend):
    """A backend whose regions take a set time, and return a set multiple of the result."""

    name: ClassVar[str] = "timed"
    converters: ClassVar[Converters] = converters
    seconds: ClassVar[float] = 0.0
    factor: ClassVar[float] = 1.0
    builds: ClassVar[int] = 0

    def build(self, region: GraphModule) -> nn.Module:
        kind = type(self)
        kind.builds += 1

        class Region(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                spin(kind.seconds)
                return torch.relu(x) * kind.factor

        return Region()


class Quick(Timed):
    name = "quick"


class Wrong(Timed):
    name = "wrong"
    factor = 1.01


class Sluggish(Timed):
    name = "sluggish"
    seconds = 4 * MILLISECONDS


class Missing(Timed):
    name = "missing"

    def why_unavailable(self) -> str | None:
        return "pip install missing"


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the backends of this file alone, and forget earlier choices."""
    monkeypatch.setattr(registry, "_backends", type(registry._backends)("backend", "backends", LoweringError))
    monkeypatch.setattr(choice, "_remembered", {})
    monkeypatch.setattr(choice, "_ROUNDS", (7, 7))
    for kind in (Quick, Wrong, Sluggish, Missing):
        monkeypatch.setattr(kind, "builds", 0)
        register_backend(kind())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


X = torch.randn(3, 4)


def program() -> GraphModule:
    return fx.symbolic_trace(lambda x: torch.ops.backend_choice.slow_relu(x) - 1)


def reasons(lowered: GraphModule) -> dict[str, str | None]:
    return {trial.name: trial.reason for trial in lowered.meta["backend_choice"].trials}


def test_the_fastest_backend_that_keeps_the_contract_is_taken() -> None:
    captured = program()
    lowered = fx.lower(captured, "auto", (X,))
    assert lowered is not captured
    assert "quick_0 = self.quick_0(x)" in lowered.code
    assert torch.equal(lowered(X), captured(X))
    chosen = lowered.meta["backend_choice"]
    assert chosen.backend == "quick"
    by_name = {trial.name: trial for trial in chosen.trials}
    assert by_name["quick"].speedup > 2 and by_name["quick"].is_faster
    assert by_name["sluggish"].speedup < 1 and not by_name["sluggish"].is_faster


def test_it_says_what_it_tried_and_why_others_were_left_out() -> None:
    lowered = fx.lower(program(), "auto", (X,))
    by_name = reasons(lowered)
    assert by_name["missing"] == "not available: pip install missing"
    assert by_name["wrong"] is not None and "the contract close allows" in by_name["wrong"]
    line = str(lowered.meta["backend_choice"])
    assert line.startswith("auto: quick; times over eager with 1 thread: quick ") and "\n" not in line
    assert f"note     {line}" in str(lowered.meta["lowering"])


def test_the_program_is_unchanged_if_no_backend_is_faster() -> None:
    captured = program()
    assert fx.lower(captured, Auto(("sluggish", "wrong")), (X,)) is captured
    assert captured.meta["backend_choice"].backend is None
    assert "the program is unchanged, as no backend is faster" in str(captured.meta["lowering"])


def test_a_choice_is_remembered_for_equal_programs_inputs_and_threads() -> None:
    fx.lower(program(), "auto", (X,))
    assert Wrong.builds == 1
    again = fx.lower(program(), "auto", (torch.randn(3, 4),))
    assert again.meta["backend_choice"].backend == "quick"
    assert again.meta["backend_choice"].is_remembered
    assert Wrong.builds == 1
    larger = fx.lower(program(), "auto", (torch.randn(5, 4),))
    assert not larger.meta["backend_choice"].is_remembered


def test_a_choice_holds_for_equal_settings_of_lowering_alone() -> None:
    captured = program()
    assert fx.lower(captured, "auto", (X,), veto=lambda node: True) is captured
    assert fx.lower(program(), "auto", (X,)).meta["backend_choice"].backend == "quick"


def test_a_remembered_backend_that_breaks_the_contract_by_now_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fx.lower(program(), "auto", (X,))
    monkeypatch.setattr(Quick, "factor", 1.5)
    captured = program()
    assert fx.lower(captured, "auto", (X,)) is captured


def test_a_file_remembers_a_choice_for_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "choices.json"
    first = fx.lower(program(), Auto(file=str(file)), (X,)).meta["backend_choice"]
    monkeypatch.setattr(choice, "_remembered", {})  # as in another process
    second = fx.lower(program(), Auto(file=str(file)), (X,)).meta["backend_choice"]
    assert second.is_remembered
    assert second.trials == first.trials
    assert Wrong.builds == 1


def test_a_file_that_is_no_file_of_choices_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    file.write_text("[1", encoding="utf-8")
    with pytest.raises(LoweringError, match="the file of choices of backends cannot be read"):
        fx.lower(program(), Auto(file=file), (X,))


def test_a_program_that_writes_to_its_inputs_stays_as_it_is() -> None:
    captured, x = fx.symbolic_trace(lambda x: torch.ops.backend_choice.slow_relu(x.add_(1))), X.clone()
    assert fx.lower(captured, "auto", (x,)) is captured
    assert torch.equal(x, X)
    assert "writes to its inputs or its state" in str(reasons(captured)["quick"])


def test_measuring_needs_inputs() -> None:
    with pytest.raises(LoweringError, match="measures the program, for which it needs inputs"):
        fx.lower(program(), "auto")
    with pytest.raises(LoweringError, match="a dry run measures nothing"):
        fx.lower(program(), "auto", (X,), dry_run=True)


def test_a_program_that_fails_on_the_inputs_is_refused() -> None:
    with pytest.raises(LoweringError, match="the program fails on the example inputs"):
        fx.lower(fx.symbolic_trace(lambda x: torch.ops.backend_choice.slow_relu(x) @ x), "auto", (X,))


def test_the_pass_lower_takes_auto_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    lowered = Lower(backend="auto", choices=str(file)).with_data([((X,), {})])(program())
    assert lowered.meta["backend_choice"].backend == "quick"
    assert file.exists()
    assert Lower(backend="auto").why_unavailable() is None
    assert Lower(backend="auto").may_change == ("gradients",)


def test_torch_compile_is_a_yardstick_and_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda program: torch.relu)
    captured = program()
    assert fx.lower(captured, Auto(("sluggish",), yardstick=True), (X,)) is captured
    (compiled,) = [trial for trial in captured.meta["backend_choice"].trials if trial.name == "torch.compile"]
    assert compiled.is_faster

"""``fx.explain``: every obstacle of a program at once, and the nodes between them."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.errors import TraceError

CONTROL_FLOW = "symbolically traced variables cannot be used as inputs to control flow"


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        if x.sum() > 0:
            x = x * int(x.max())
        else:
            for row in x:
                x = x + row
        return x


class Looking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return {torch.float32: x}[x.dtype]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Gate(), Gate()
        self.look = Looking()
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        x = torch.reshape(x, (rows, columns))
        x = self.look(self.second(self.first(x)))
        for _ in range(columns):
            x = self.act(x)
        while x.mean() < 0:
            x = x + 1
        return x


def lines(explanation: fx.capture.explanation.CaptureExplanation) -> list[tuple[str, str]]:  # type: ignore[name-defined]
    """The first words of each obstacle, and its line's text."""
    return [
        (obstacle.cause.partition(".")[0], str(obstacle.where).partition(":  ")[2])
        for obstacle in explanation.obstacles
    ]


def test_all_obstacles_are_found_in_one_go_each_with_its_line() -> None:
    explanation = fx.explain(Model())
    assert sorted(lines(explanation)) == [
        ("Proxy object cannot be iterated", "for row in x:"),
        ("cannot use a traced value as an integer", "for _ in range(columns):"),
        ("cannot use a traced value as the key of a dict or an element of a set", "return {torch.float32: x}[x.dtype]"),
        (CONTROL_FLOW, "if x.sum() > 0:"),
        (CONTROL_FLOW, "while x.mean() < 0:"),
    ]
    assert set(explanation.obstacles[0].modules) == {"first", "second"}
    assert all(obstacle.remedy and obstacle.why and obstacle.value for obstacle in explanation.obstacles)
    assert not explanation.is_captured


def test_questions_answered_by_example_inputs_are_guards_and_no_obstacles() -> None:
    explanation = fx.explain(Model(), (torch.ones(3, 4),))
    assert lines(explanation) == [(CONTROL_FLOW, "if x.sum() > 0:"), (CONTROL_FLOW, "while x.mean() < 0:")]
    assert any("x.shape[1] was 4: " in guard for guard in explanation.guards)
    assert "depends on the elements of a tensor" in str(explanation.obstacles[0].why)


def test_parts_are_the_operations_between_obstacles() -> None:
    def gate(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        if y.sum() > 0:
            y = y + 1
        return torch.tanh(y).neg()

    explanation = fx.explain(gate)
    assert [part.operations for part in explanation.parts] in ([3, 2], [3, 3])
    assert re.fullmatch(r"3 operations, \S+test_explain\.py:\d+ to \S+test_explain\.py:\d+", str(explanation.parts[0]))
    assert next(part.modules for part in fx.explain(Model()).parts) == ("first.linear",)


def test_a_program_without_obstacles_is_one_part() -> None:
    explanation = fx.explain(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert explanation.is_captured
    assert str(explanation).startswith("no obstacles, 1 part that can be captured\n\nparts\n  1. 2 operations, ")


def listed(x: torch.Tensor) -> torch.Tensor:
    return torch.Tensor.exp(x * int(x.shape[0])).reshape(list(x.shape))


class Resized(nn.Module):
    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(4.0)[None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        return x + self.places.expand(rows, -1)[:, :columns]


@pytest.mark.parametrize("program", [Resized(), listed], ids=["buffers", "classes"])
def test_a_program_that_needs_a_second_run_has_no_obstacle(program: Any) -> None:
    fx.symbolic_trace(program)
    assert fx.explain(program).is_captured


def test_explaining_leaves_the_module_as_it_was() -> None:
    model = Model()
    before, attributes = copy.deepcopy(model.state_dict()), dict(vars(model))
    random = torch.get_rng_state()
    fx.explain(model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert vars(model) == attributes
    assert torch.equal(torch.get_rng_state(), random)
    assert not fx.is_fx_tracing()


def test_arguments_that_no_node_can_hold_are_an_obstacle_and_the_run_continues() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + object()  # type: ignore[operator]
        return y if y.sum() > 0 else x

    causes = [cause for cause, _ in lines(fx.explain(program))]
    assert causes == ["argument of type: <class 'object'> cannot be held by a node", CONTROL_FLOW]


def test_errors_of_the_program_itself_are_reported() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.missing  # type: ignore[operator]

    explanation = fx.explain(nn.Sequential(Broken(), nn.ReLU()))
    assert (
        explanation.obstacles[0].cause
        == "the program raises AttributeError: 'Broken' object has no attribute 'missing'"
    )
    assert "return x + self.missing" in str(explanation.obstacles[0].where)
    assert explanation.obstacles[0].modules == ("0",)
    assert explanation.parts[-1].modules[-1] == "1"


def test_counters_that_decide_later_calls_are_an_obstacle() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    model = Counting()
    with pytest.raises(TraceError) as info:
        fx.symbolic_trace(model)
    assert [obstacle.cause for obstacle in fx.explain(model).obstacles] == [str(info.value).partition("\n")[0]]
    assert model.calls == 0

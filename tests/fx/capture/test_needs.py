"""The second run of a program, which represents the values refused by the first in another way; there is no third."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from building import runs_of
from torch import nn

import fx


def captured(root: Any) -> tuple[fx.GraphModule, int]:
    """A program, and how often it was run to capture it."""
    with runs_of(root) as runs:
        program = fx.symbolic_trace(root)
    return program, len(runs)


def _in_other_globals(source: str) -> Any:
    namespace: dict[str, Any] = {"__name__": "other_globals", "torch": torch}
    exec(source, namespace)
    return namespace["helper"]


def test_classes_called_in_several_places_are_recorded_in_one_second_run() -> None:
    helper = _in_other_globals("def helper(x):\n    return tuple(x.shape)")

    def doubled(x: Any) -> Any:
        return x * float(x.shape[0])

    def program(x: Any) -> Any:
        return doubled(x) * int(x.shape[0] * 0.5) + len(list(x.shape)) + torch.ones(helper(x))

    traced, runs = captured(program)
    assert runs == 2
    for size in (2, 6):
        assert torch.equal(traced(torch.ones(size)), program(torch.ones(size)))


def test_methods_of_tensors_that_take_traced_values_are_recorded_in_one_second_run() -> None:
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row: torch.Tensor
            self.column: torch.Tensor
            self.register_buffer("row", torch.arange(3.0))
            self.register_buffer("column", torch.ones(3, 1))

        def forward(self, x: Any) -> Any:
            fixed = self.row.expand(2, 3).sum() * self.column.repeat(1, 3).sum()
            sized = self.row.repeat(x.size(0), 1) + self.column[0].expand(x.size(0), 3)
            return torch.Tensor.relu(x) + torch.Tensor.neg(sized) * fixed * int(x.size(0))

    root = Expanded()
    traced, runs = captured(root)
    assert runs == 2
    for size in (2, 5):
        assert torch.equal(traced(torch.ones(size, 3)), root(torch.ones(size, 3)))
    assert fx.symbolic_trace(traced).code == traced.code


def test_a_program_that_uses_the_flag_of_its_mode_runs_once() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            rate = 0.5 * self.training
            if self.training & True and max(self.training, False) == self.training:
                x = x + 1
            if math.floor(rate + 0.5) or {"True": 1, "False": 0}[str(self.training)]:
                x = x * 2
            for _ in range(1 + self.training):
                x = x * [2, 3][1 - self.training]
            self.layer.train(self.training)
            return torch.dropout(x, rate, self.training) + (0 if rate > 0.2 else 1)

    for training in (False, True):
        root = Mixed().train(training)
        traced, runs = captured(root)
        assert runs == 1
        torch.manual_seed(0)
        expected = root(torch.ones(2))
        torch.manual_seed(0)
        assert torch.equal(traced(torch.ones(2)), expected)
        with pytest.raises(fx.GuardError, match=r"captured in (training|evaluation) mode, and depends on it"):
            traced.train(not training)(torch.ones(2))


class Features(nn.Module):
    def forward(self, x: Any) -> Any:
        self.features = torch.relu(x)
        self.size = x.shape
        return self.features + 1


class Shown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = None
        self.inner = Features()

    def forward(self, x: Any) -> Any:
        self.features = self.inner(x)
        del self.inner.features
        return self.features * 2


@pytest.mark.parametrize("kind", [Features, Shown])
def test_a_module_that_assigns_attributes_and_reads_them_afterwards_runs_once(kind: Any) -> None:
    root = kind()
    traced, runs = captured(root)
    assert runs == 1
    assert torch.equal(traced(torch.ones(2)), root(torch.ones(2)))


class ReadsFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x * self.count


class AsksFirst(nn.Module):
    def forward(self, x: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen = True
            return x
        return x * 2


class AsksItsDict(nn.Module):
    def forward(self, x: Any) -> Any:
        first = "seen" not in self.__dict__
        self.seen = True
        return x if first else x * 2


class ListsItsAttributes(nn.Module):
    def forward(self, x: Any) -> Any:
        first = "seen" not in dir(self)
        self.seen = True
        return x if first else x * 2


class ChangesWhatItHeld(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = self.other = []

    def forward(self, x: Any) -> Any:
        self.one = [1]
        self.other.append(1)
        return x * len(self.other)


class OfItsClass(nn.Module):
    count = 0

    def forward(self, x: Any) -> Any:
        count, self.count = self.count, 1
        return x * (count + 1)


@pytest.mark.parametrize(
    "kind", [ReadsFirst, AsksFirst, AsksItsDict, ListsItsAttributes, ChangesWhatItHeld, OfItsClass]
)
def test_a_program_that_depends_on_an_attribute_of_an_earlier_call_is_refused(kind: Any) -> None:
    root = kind()
    with runs_of(root) as runs, pytest.raises(fx.TraceError, match="depends on what an earlier call of it left"):
        fx.symbolic_trace(root)
    assert len(runs) == 2
    assert "one" not in vars(nn.Module) and "seen" not in vars(nn.Module)


def test_a_program_that_fails_without_its_optional_input_runs_once_more_with_it() -> None:
    def program(x: Any, y: Any = None) -> Any:
        if y is None:
            raise ValueError("y is needed")
        return x * int(x.shape[0]) + y

    traced, runs = captured(program)
    assert runs == 2
    assert torch.equal(traced(torch.ones(2), torch.ones(2)), torch.full((2,), 3.0))


def test_a_second_run_that_changes_state_it_reads_is_refused_by_its_line_with_a_remedy() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * int(x.shape[0])

    root = Counts()
    message = r"(?s)may depend on what an earlier call of it left in 'count'.*test_needs.py:\d+.*why .*int.*try "
    with runs_of(root) as runs, pytest.raises(fx.TraceError, match=message):
        fx.symbolic_trace(root)
    assert len(runs) == 2 and root.count == 0


def test_explain_says_why_a_program_is_run_a_second_time() -> None:
    def program(x: Any) -> Any:
        return x * int(x.shape[0])

    explanation = fx.explain(program)
    assert explanation.is_captured
    assert len(explanation.second_run) == 1
    assert "test_needs.py" in explanation.second_run[0] and "int" in str(explanation)
    assert not fx.explain(torch.nn.Sequential(torch.nn.ReLU())).second_run
    (why,) = fx.explain(ReadsFirst()).second_run
    assert why == "to see that it does the same though it has changed 'count'"

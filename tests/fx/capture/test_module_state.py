"""The state that a trace leaves in modules, and the programs that depend on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from building import runs_of
from torch import nn

import fx


class Keeping(nn.Module):
    def __init__(self, keep: Any) -> None:
        super().__init__()
        self.count = 0
        self.seen: list[Any] = []
        self.table: dict[str, Any] = {"a": [1]}
        self.layer = nn.Linear(2, 2)
        self.keep = keep

    def forward(self, x: torch.Tensor) -> Any:
        return self.keep(self, x)


def _append(module: Keeping, x: torch.Tensor) -> torch.Tensor:
    module.seen.append(x)
    module.table["a"].append(x)
    module.table["b"] = x
    module.last = x * 2
    return module.last


def test_lists_dicts_and_attributes_are_as_before_though_the_traced_code_has_filled_them() -> None:
    root = Keeping(_append)
    captured = fx.symbolic_trace(root)
    assert (root.seen, root.table, hasattr(root, "last")) == ([], {"a": [1]}, False)
    assert captured(torch.ones(2)).tolist() == [2, 2]


def _counts(module: Keeping, x: torch.Tensor) -> torch.Tensor:
    module.count += 1
    return x * module.count


def _caches(module: Keeping, x: torch.Tensor) -> torch.Tensor:
    if not module.seen:
        module.seen.append(x.mean())
    return x - module.seen[0]


class Counting(nn.Module):
    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


@pytest.mark.parametrize("root", [Keeping(_counts), Keeping(_caches), Counting()], ids=["counts", "caches", "own"])
def test_a_program_that_depends_on_its_earlier_calls_is_refused(root: nn.Module) -> None:
    message = r"(?s)depends on what an earlier call of it left in '(count|seen)'.*where .*value .*why .*try +keep it"
    with pytest.raises(fx.TraceError, match=message) as refusal:
        fx.symbolic_trace(root)
    if isinstance(root, Counting):
        assert "test_module_state.py:" in str(refusal.value)
    assert getattr(root, "count", 0) == 0


@pytest.mark.parametrize("first, then", [(1, True), (0.0, -0.0), (2, 2.0)])
def test_an_attribute_that_gets_an_equal_value_of_another_kind_has_changed(first: Any, then: Any) -> None:
    def sets(module: Keeping, x: torch.Tensor) -> torch.Tensor:
        result = x + len(repr(module.mode))
        module.mode = then
        return result

    root = Keeping(sets)
    root.mode = first
    with pytest.raises(fx.TraceError, match="depends on what an earlier call of it left in 'mode'"):
        fx.symbolic_trace(root)
    assert root.mode is first


def test_an_attribute_that_gets_the_number_that_it_has_is_no_change() -> None:
    class Sets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.name = 2.5, "scale"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale, self.name = self.scale * 2 / 2, self.name[:2] + self.name[2:]
            return x * self.scale

    root = Sets()
    with runs_of(root) as runs:
        assert fx.symbolic_trace(root)(torch.ones(1)).item() == 2.5
    assert len(runs) == 1


def test_a_parameter_of_a_module_cannot_be_replaced_while_it_is_captured() -> None:
    def replaces(module: Keeping, x: torch.Tensor) -> torch.Tensor:
        del module.layer.bias
        module.layer.bias = x[0]
        return module.layer(x)

    root = Keeping(replaces)
    message = r"(?s)cannot replace the parameter or buffer 'bias'.*why .*try +write in place"
    with pytest.raises(fx.TraceError, match=message):
        fx.symbolic_trace(root)
    assert isinstance(root.layer.bias, nn.Parameter)


def test_objects_of_a_module_are_unchanged_after_a_trace() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counts = SimpleNamespace(calls=0, inner=[SimpleNamespace(calls=0)])
            self.counts.itself = self.counts

        def forward(self, x: Any) -> Any:
            self.counts.calls += 1
            self.counts.inner[0].calls += 1
            self.counts.added = x
            return x * 2

    module = Counts()
    assert fx.symbolic_trace(module)(torch.ones(1)).item() == 2
    assert (module.counts.calls, module.counts.inner[0].calls) == (0, 0)
    assert not hasattr(module.counts, "added")

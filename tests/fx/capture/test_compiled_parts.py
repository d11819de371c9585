"""Parts of a program that ``torch.jit`` or ``torch.compile`` has made."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fx


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


class Holder(nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + 1


def jit(make: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args)


PARTS = {
    "scripted": lambda: jit(torch.jit.script, Scaled()),
    "scripted leaf": lambda: jit(torch.jit.script, nn.Linear(3, 3)),
    "traced": lambda: jit(torch.jit.trace, Scaled(), torch.ones(2, 3)),
    "compiled": lambda: torch.compile(Scaled(), backend="eager"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_was_compiled_is_one_node_and_keeps_its_state(part: str) -> None:
    holder = Holder(PARTS[part]())
    traced = fx.symbolic_trace(holder)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_function", "output"]
    assert traced.state_dict().keys() == holder.state_dict().keys()
    if part != "compiled":  # that takes seconds
        x = torch.arange(6.0).reshape(2, 3)
        assert torch.equal(traced(x), holder(x))


def test_a_scripted_function_is_refused_by_the_line_that_calls_it() -> None:
    scripted = jit(torch.jit.script, torch.nn.functional.relu6)

    def program(x: Any) -> Any:
        return scripted(x)

    with pytest.raises(fx.TraceError, match=r"cannot use a traced value here\n *where .*test_compiled_parts.py:\d+"):
        fx.symbolic_trace(program)


def test_a_traced_device_of_a_generator_is_refused_by_its_line() -> None:
    def program(x: Any) -> Any:
        return torch.rand(2, generator=torch.Generator(device=x.device)) + x

    with pytest.raises(fx.TraceError, match=r"cannot use a traced value here\n *where .*test_compiled_parts.py:\d+"):
        fx.symbolic_trace(program)


def test_a_tracer_may_make_proxies_without_a_factory() -> None:
    class Plain(fx.Tracer):
        def create_proxy(  # type: ignore[override]
            self, kind: str, target: Any, args: Any, kwargs: Any, name: str | None = None, type_expr: Any = None
        ) -> Any:
            return super().create_proxy(kind, target, args, kwargs, name, type_expr)

        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return False

    assert len(list(Plain().trace(Scaled()).nodes)) == 7


@pytest.mark.thorough
def test_a_trace_inside_a_function_that_is_compiled_is_like_any_other() -> None:
    """Dynamo skips the function and its callees: `torch.compile` takes seconds."""
    holder = Holder(Scaled())

    def function(x: torch.Tensor) -> torch.Tensor:
        return fx.symbolic_trace(holder)(x) * 2

    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(torch.compile(function, backend="eager")(x), function(x))


def test_dynamo_skips_traces_without_being_imported() -> None:
    assert all(entrance._torchdynamo_disable for entrance in (fx.symbolic_trace, fx.Tracer.trace))

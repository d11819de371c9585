"""The effects of calling the traced root besides its forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fx


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_forward_hooks_of_the_root_are_traced() -> None:
    root = Doubling()
    root.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    root.register_forward_hook(lambda module, args, output: output - args[0])
    root.register_forward_hook(lambda module, args, kwargs, output: output * 5, with_kwargs=True)
    captured = fx.symbolic_trace(root)
    assert torch.equal(captured(torch.ones(2)), root(torch.ones(2)))
    assert captured(torch.ones(1)).item() == 10


def test_an_inner_module_with_backward_hooks_is_a_leaf() -> None:
    root = nn.Sequential(Doubling())
    root[0].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    captured = fx.symbolic_trace(root)
    assert [node.op for node in captured.graph.nodes] == ["placeholder", "call_module", "output"]
    x = torch.ones(1, requires_grad=True)
    captured(x * 1).backward()
    assert x.grad is not None
    assert x.grad.item() == 6


class OtherCall(Doubling):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x) + 1


@pytest.mark.parametrize("names_it", [False, True])
def test_a_hook_that_assigns_an_attribute_of_its_leaf_is_traced_where_the_program_names_that(names_it: bool) -> None:
    def count(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        module.operations = 3  # type: ignore[assignment]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ReLU()
            self.layer.operations = 0  # type: ignore[assignment]
            self.layer.register_forward_hook(count)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    class Reading(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.layer.operations

    model = Reading() if names_it else Model()
    captured = fx.symbolic_trace(model)
    assert model.layer.operations == 0
    assert any(node.op == "call_module" for node in captured.graph.nodes) is not names_it
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 3.0 if names_it else 1.0))


def _with_hook() -> nn.Module:
    root = Doubling()
    root.register_full_backward_hook(lambda module, into, out: None)
    return root


def _with_forward() -> nn.Module:
    root = Doubling()
    root.forward = lambda x: x  # type: ignore[method-assign]
    return root


@pytest.mark.parametrize(
    "make, what",
    [
        (OtherCall, "whose class replaces __call__"),
        (_with_hook, "that has backward hooks itself"),
        (_with_forward, "cannot trace 'forward' of a Doubling, which its instance has replaced"),
    ],
)
def test_a_root_whose_call_does_something_else_is_refused(make: Any, what: str) -> None:
    with pytest.raises(fx.TraceError, match=rf"(?s){what}.*where .*test_module_hooks.py:\d+.*why .*try "):
        fx.symbolic_trace(make())

"""Small models with batch norm, their programs in both spellings, and what tests of the fusion say about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import fx
from fx.passes import FuseConvBN, RemoveChecks


class WithoutLeaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


def settle(model: nn.Module) -> nn.Module:
    """Evaluation mode, with statistics and weights as training leaves them."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None and module.running_var is not None:
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                nn.init.normal_(module.bias)
    return model.eval()


def traced(model: nn.Module) -> fx.GraphModule:
    """The program with modules as leaves."""
    return fx.symbolic_trace(model)


def inlined(model: nn.Module) -> fx.GraphModule:
    """The program of functions on fetched tensors, without checks."""
    with mock.patch.object(nn.BatchNorm1d, "_check_input_dim", return_value=None):
        graph = WithoutLeaves().trace(model)
    return RemoveChecks()(fx.GraphModule(model, graph))


SPELLINGS = pytest.mark.parametrize("capture", [traced, inlined])


def names(program: fx.GraphModule) -> str:
    return " ".join(node.name for node in program.graph.nodes)


def reasons(program: fx.GraphModule, pass_: FuseConvBN | None = None) -> list[str]:
    return [fusion.reason for fusion in (pass_ or FuseConvBN()).explain(program)]


def assert_close(program: fx.GraphModule, model: nn.Module, *inputs: Tensor, rtol: float = 1e-10) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(*inputs), model(*inputs), rtol=rtol, atol=rtol)


def assert_left_alone(program: fx.GraphModule, reason: str, pass_: FuseConvBN | None = None) -> None:
    """Nothing changes, and the (first) batch norm's reason is the expected one."""
    before, revision = names(program), program.graph.revision
    assert reasons(program, pass_)[0] == reason
    (pass_ or FuseConvBN())(program)
    assert names(program) == before
    assert program.graph.revision == revision


def pair(**options: Any) -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, **options))
    settle(model)
    return model


class Own(nn.Module):
    """A model made of a convolution, a batch norm and a function of both."""

    def __init__(self, call: Callable[[Any, Any], Any], **extra: nn.Module) -> None:
        super().__init__()
        self.conv, self.bn, self.call = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), call
        for name, module in extra.items():
            self.add_module(name, module)
        settle(self)

    def forward(self, x: Any) -> Any:
        return self.call(self, x)

"""Small models with batch norm, their programs in both spellings, and assertions on their fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from building import Calling, WithoutLeaves, names, settle
from torch import Tensor, nn

import fx
from fx.passes import FuseConvBN, RemoveChecks


def inlined(model: nn.Module) -> fx.GraphModule:
    """The program of functions on fetched tensors, without checks."""
    with mock.patch.object(nn.BatchNorm1d, "_check_input_dim", return_value=None):
        graph = WithoutLeaves().trace(model)
    return RemoveChecks()(fx.GraphModule(model, graph))


SPELLINGS = pytest.mark.parametrize("capture", [fx.symbolic_trace, inlined])


def reasons(program: fx.GraphModule, pass_: FuseConvBN | None = None) -> list[str]:
    return [fusion.reason for fusion in (pass_ or FuseConvBN()).explain(program)]


def assert_close(program: fx.GraphModule, model: nn.Module, *inputs: Tensor, rtol: float = 1e-10) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(*inputs), model(*inputs), rtol=rtol, atol=rtol)


def assert_left_alone(program: fx.GraphModule, reason: str, pass_: FuseConvBN | None = None) -> None:
    """Check that nothing changes, and that the (first) batch norm has the expected reason."""
    before, revision = names(program), program.graph.revision
    assert reasons(program, pass_)[0] == reason
    (pass_ or FuseConvBN())(program)
    assert names(program) == before
    assert program.graph.revision == revision


def pair(**options: Any) -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, **options))
    settle(model)
    return model


def own(call: Callable[[Any, Any], Any], **extra: nn.Module) -> Any:
    """A model made of a convolution, a batch norm and a function of both."""
    return settle(Calling(call, conv=nn.Conv2d(2, 2, 1), bn=nn.BatchNorm2d(2), **extra))

"""Fixtures of the tests of passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture
def untouched() -> Iterator[Callable[[nn.Module], nn.Module]]:
    """Registers models whose tensors must be bitwise unchanged at the end of the test."""
    watched: list[tuple[nn.Module, dict[str, Tensor], list[str]]] = []

    def watch(model: nn.Module) -> nn.Module:
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        watched.append((model, state, [name for name, _ in model.named_modules()]))
        return model

    yield watch
    for model, state, modules in watched:
        assert [name for name, _ in model.named_modules()] == modules
        assert model.state_dict().keys() == state.keys()
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, state[name]), name

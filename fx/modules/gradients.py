"""Modes that are always restored: computing without gradients, and programs that raise between switches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

_torch: Any = torch
T = TypeVar("T")


def without_gradients(compute: Callable[[], T]) -> T:
    """Return ``compute()``, recording nothing for autograd.

    A signal is handled when a Python function is entered, and ``torch.no_grad`` is left by a function: an exception of
    the handler there leaves gradients off. Here no function is entered between the last step and the restoration.
    """
    enabled = torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(False)
        return compute()
    finally:
        torch._C._set_grad_enabled(enabled)


def leave_modes(enabled: bool, values: Iterable[Any]) -> None:
    """Restore the modes that a program has switched, after it has raised before it restored them itself.

    Args:
        enabled: true if gradients were recorded when it was called.
        values: its live values, including the autocast regions that it has entered.
    """
    for region in reversed([value for value in values if isinstance(value, torch.autocast)]):
        _torch.amp._exit_autocast(region)
    if torch.is_grad_enabled() != enabled:
        torch.set_grad_enabled(enabled)

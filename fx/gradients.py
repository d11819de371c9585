"""Computing without gradients, in a way that exceptions of signal handlers cannot leave them off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def without_gradients(compute: Callable[[], T]) -> T:
    """Return ``compute()``, recording nothing for autograd.

    A signal is handled when a Python function is entered, and ``torch.no_grad`` is left by one: an exception that the
    handler raises there leaves gradients off. Here nothing is entered between the last step and putting back.
    """
    enabled = torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(False)
        return compute()
    finally:
        torch._C._set_grad_enabled(enabled)

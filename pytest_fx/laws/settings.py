"""What a module is but for its tensors: its class, and what its attributes hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_HELD_APART = {"_parameters", "_buffers", "_modules"}


def settings_of(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return what each module in ``module`` is, by its name: to be compared with what it is later.

    What ``repr`` does not show counts as well: the heads of an attention, the reduction of a loss, hooks. Objects that
    have no value are told from others by their classes, functions by their names.

    >>> before = settings_of(nn.MSELoss())
    >>> before == settings_of(nn.MSELoss()), before == settings_of(nn.MSELoss(reduction="sum"))
    (True, False)
    """
    return {
        name: (
            type(part),
            tuple((key, _value(value)) for key, value in vars(part).items() if key not in _HELD_APART),
        )
        for name, part in module.named_modules(remove_duplicate=False)
    }


def _value(found: Any) -> Any:
    if isinstance(found, _PLAIN):
        return repr(found)  # in which NaN is equal to itself, and 1 is not True
    if isinstance(found, list | tuple):
        return tuple(map(_value, cast("tuple[Any, ...]", found)))
    if isinstance(found, Mapping):
        values = cast("Mapping[Any, Any]", found)
        # Hooks are kept by numbers that count up, and are others in each copy.
        return tuple((key if isinstance(key, str) else "", _value(value)) for key, value in values.items())
    return getattr(found, "__qualname__", None) or type(found)

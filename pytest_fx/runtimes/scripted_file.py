"""Modules of TorchScript in files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_fx.runtimes.runtime import Runtime, unreadable

NAME = "TorchScript"


def _load(value: Any, name: str) -> nn.Module:
    """Load a file of ``torch.jit.save``."""
    assert isinstance(value, Path), "a scripted module in memory is a module"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, which is no news to who has such a file
            module: Any = torch.jit.load(value, map_location="cpu")
    except Exception as error:
        raise unreadable(name, NAME, error) from None
    return module


SCRIPTED_FILE = Runtime(
    NAME, "a .pt or .pth file of torch.jit.save; scripted modules in memory are modules", (), (".pt", ".pth"), _load
)
"""Files of TorchScript."""

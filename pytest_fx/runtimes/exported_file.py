"""Programs of ``torch.export``, in memory or in a ``.pt2`` file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_fx.runtimes.runtime import Runtime, unreadable

NAME = "torch.export"


def _load(value: Any, name: str) -> nn.Module:
    """Return the module of an exported program, in evaluation mode."""
    if isinstance(value, Path):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = torch.export.load(value)
        except Exception as error:
            raise unreadable(name, NAME, error) from None
    module: nn.Module = value.module()
    for part in module.modules():
        part.training = False  # its train() and eval() raise
    return module


EXPORTED_FILE = Runtime(
    NAME,
    "a torch.export.ExportedProgram, or a .pt2 file of torch.export.save",
    ("torch.export:ExportedProgram",),
    (".pt2",),
    _load,
)
"""Exported programs."""

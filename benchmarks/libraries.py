"""The libraries under comparison, by the name of their column."""

from __future__ import annotations

from types import ModuleType

import torch.fx

import fx

LIBRARIES: dict[str, ModuleType] = {"torch.fx": torch.fx, "fx": fx}

"""Analyses of graphs that execute nothing: well-formedness, aliases, dependences, shapes, cost and memory."""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Moved(ModuleType):
    """The former path of a module that moved to ``fx.simulation``, which is imported on first attribute access."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("fx.simulation"), name)


for _name in ("calibration", "deployments", "known_devices", "measured_times", "profile", "simulation", "traces"):
    sys.modules[f"{__name__}.{_name}"] = _Moved(f"{__name__}.{_name}")

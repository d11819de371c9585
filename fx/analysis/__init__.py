"""What a graph says of itself without running: whether it is well formed, and what depends on what."""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Moved(ModuleType):
    """The earlier path of a module whose names are in ``fx.simulation``, which is imported when one is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("fx.simulation"), name)


for _name in ("calibration", "deployments", "known_devices", "measured_times", "profile", "simulation", "traces"):
    sys.modules[f"{__name__}.{_name}"] = _Moved(f"{__name__}.{_name}")

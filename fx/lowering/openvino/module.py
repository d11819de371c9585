"""``OpenVINORegion``: the module that replaces a region by engines of OpenVINO."""

from __future__ import annotations

from typing import ClassVar

import torch

from fx.lowering.engine_region import EngineRegion, Sizes
from fx.lowering.openvino.engine import OpenVINOEngine
from fx.lowering.openvino.importer import import_region


class OpenVINORegion(EngineRegion):
    """A part of a program as engines of OpenVINO, with the original program for inputs that no engine takes."""

    _leaf_reason: ClassVar[str] = "it runs an engine of OpenVINO"
    _runtime: ClassVar[str] = "OpenVINO"

    def _compile(self, sizes: Sizes, current: Sizes) -> OpenVINOEngine:
        network = import_region(self.program, sizes, current)
        return OpenVINOEngine(network, self.precision, torch.get_num_threads())

"""Lowering to devices and other runtimes: one way to divide and build, and a folder a backend (paper, section 6.4).

``lower`` hands the parts of a program that a backend supports to it, and leaves the rest in eager Python::

    lowered = fx.lower(fx.symbolic_trace(model), backend="onednn", example_inputs=inputs)
    print(fx.lower(fx.symbolic_trace(model), backend="onednn", example_inputs=inputs, dry_run=True))

``docs/lowering.md`` explains the steps, and writes a backend from scratch.
"""

from __future__ import annotations

from fx.lowering.backend import Backend, get_backend, list_backends, register_backend
from fx.lowering.choice import Auto, BackendChoice, BackendTrial
from fx.lowering.converters import Converter, Converters, Network, build_region
from fx.lowering.coverage import Coverage, CoveredRegion, Placement
from fx.lowering.known_program import Operation
from fx.lowering.lower import Lower, lower
from fx.lowering.onednn import OneDNN
from fx.lowering.onnxruntime import OnnxRuntimeBackend
from fx.lowering.openvino import OpenVINO
from fx.lowering.tensorrt import EmulatedEngine, EngineCache, TensorRT, TensorRTModule

__all__ = [
    "Auto",
    "Backend",
    "BackendChoice",
    "BackendTrial",
    "Converter",
    "Converters",
    "Coverage",
    "CoveredRegion",
    "EmulatedEngine",
    "EngineCache",
    "Lower",
    "Network",
    "OneDNN",
    "OnnxRuntimeBackend",
    "OpenVINO",
    "Operation",
    "Placement",
    "TensorRT",
    "TensorRTModule",
    "build_region",
    "get_backend",
    "list_backends",
    "lower",
    "register_backend",
]

"""Capture PyTorch programs, transform them, and run them as Python again: the system of the torch.fx paper.

``symbolic_trace`` runs a module on proxies and records a ``Graph`` of six kinds of ``Node``. Passes edit the graph. A
``GraphModule`` runs it through generated Python code::

    traced = fx.symbolic_trace(model)      # section 4.1
    for node in traced.graph.nodes: ...    # section 4.2
    traced.recompile()                     # section 4.3
"""

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from fx import _compatibility as _compatibility
from fx import _symbolic_trace as _symbolic_trace  # client code of torch.fx reads them as attributes
from fx import config
from fx.capture.signature import PH, PHWithMeta
from fx.capture.tracer import ProxyableClassMeta, Tracer, is_fx_symbolic_tracing, is_fx_tracing, symbolic_trace
from fx.code.wrapping import wrap
from fx.errors import (
    CaptureError,
    CodegenError,
    DrawingError,
    FxError,
    GraphError,
    GuardError,
    InteropError,
    LoadError,
    LoweringError,
    LoweringWarning,
    PassError,
    PickleError,
    SaveError,
    TraceError,
)
from fx.graph import CodeGen, Graph
from fx.graph_module import GraphModule
from fx.immutable_collections import immutable_dict, immutable_list
from fx.interpreter import Interpreter, Transformer
from fx.node import Node, has_side_effect, map_arg
from fx.proxy import Proxy

if TYPE_CHECKING:
    from fx import passes, quantize
    from fx.capture.explanation import explain
    from fx.drawing import draw
    from fx.interop.capturing import capture
    from fx.interop.match_explanation import explain_match
    from fx.interop.torch_export import from_export
    from fx.lowering import lower
    from fx.serialization import load, save
    from fx.subgraph_rewriter import replace_pattern

__all__ = [
    "PH",
    "CaptureError",
    "CodeGen",
    "CodegenError",
    "DrawingError",
    "FxError",
    "Graph",
    "GraphError",
    "GraphModule",
    "GuardError",
    "InteropError",
    "Interpreter",
    "LoadError",
    "LoweringError",
    "LoweringWarning",
    "Node",
    "PHWithMeta",
    "PassError",
    "PickleError",
    "Proxy",
    "ProxyableClassMeta",
    "SaveError",
    "TraceError",
    "Tracer",
    "Transformer",
    "capture",
    "config",
    "draw",
    "explain",
    "explain_match",
    "from_export",
    "has_side_effect",
    "immutable_dict",
    "immutable_list",
    "is_fx_symbolic_tracing",
    "is_fx_tracing",
    "load",
    "lower",
    "map_arg",
    "passes",
    "quantize",
    "replace_pattern",
    "save",
    "symbolic_trace",
    "wrap",
]
_IMPORTED_ON_USE = {
    "capture": "fx.interop.capturing",
    "draw": "fx.drawing",
    "explain": "fx.capture.explanation",
    "explain_match": "fx.interop.match_explanation",
    "from_export": "fx.interop.torch_export",
    "load": "fx.serialization",
    "lower": "fx.lowering",
    "replace_pattern": "fx.subgraph_rewriter",
    "save": "fx.serialization",
}
"""The modules of functions that are imported on first use, as are packages such as ``fx.passes``."""

globals().pop("capture", None)  # the package imported above; the function takes over its name


def _imported(name: str) -> Any:
    """Import a function of the table above, or a package or module of the library, as an attribute of ``fx``."""
    home = _IMPORTED_ON_USE.get(name)
    if home is not None:
        value = getattr(importlib.import_module(home), name)
    elif name.startswith("_") or importlib.util.find_spec(f"fx.{name}") is None:
        raise AttributeError(f"module 'fx' has no attribute {name!r}", name=name, obj=sys.modules["fx"])
    else:
        value = importlib.import_module(f"fx.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # to type checkers, any name would be an attribute
    __getattr__ = _imported

__version__ = "0.3.0"
"""Version of the package pytest-fx, which holds this library, the plugin and the models."""

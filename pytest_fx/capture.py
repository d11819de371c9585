"""How the plugin turns modules into programs. The one place that names the capture library."""

from __future__ import annotations

import torch.fx as library
from torch import nn

GraphModule = library.GraphModule


class LeaflessTracer(library.Tracer):
    """Captures through the modules of ``torch.nn`` as well, down to the functions that they call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Keep no module whole."""
        return False


def capture(module: nn.Module) -> GraphModule:
    """Return the program of ``module``, with which it shares parameters and buffers."""
    return library.symbolic_trace(module)


def capture_without_leaves(module: nn.Module) -> GraphModule:
    """Return the program of ``module`` in functions only; raises ``TraceError`` where a module branches on values."""
    tracer = LeaflessTracer()
    return library.GraphModule(tracer.root, tracer.trace(module))

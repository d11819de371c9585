"""How the plugin turns modules into programs. The one place that names the capture library."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

import fx as library
from pytest_fx.harness.evaluation import Arguments

GraphModule = library.GraphModule


class LeaflessTracer(library.Tracer):
    """Captures through the modules of ``torch.nn`` as well, down to the functions that they call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Keep no module whole."""
        return False


def capture(module: nn.Module, arguments: Arguments | None = None) -> GraphModule:
    """Return the program of ``module``, with which it shares parameters and buffers.

    Parameters of ``forward`` that ``arguments`` leave to their defaults are captured as those: a program for an
    optional argument that nobody gives would compute with it all the same.
    """
    return library.symbolic_trace(module, _defaults_left(module, arguments))


def capture_without_leaves(module: nn.Module, arguments: Arguments | None = None) -> GraphModule:
    """Return the program of ``module`` in functions only; raises ``TraceError`` where a module branches on values."""
    graph = LeaflessTracer().trace(module, _defaults_left(module, arguments))
    return library.GraphModule(module, graph)


def _defaults_left(module: nn.Module, arguments: Arguments | None) -> dict[str, Any] | None:
    """Return the parameters that a call with ``arguments`` does not give, with their defaults."""
    if arguments is None:
        return None
    bound = inspect.signature(module.forward).bind(*arguments.args, **arguments.kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    kinds = inspect.Parameter
    variable = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    left = {
        name: value
        for name, value in bound.arguments.items()
        if name not in given and bound.signature.parameters[name].kind not in variable
    }
    return left or None

"""A right pass of the eighth round."""

import inspect
import types

import torch.nn.functional as F
from torch.fx import GraphModule

from ...rows import sound


def _defaults(function):
    """The defaults of a plain function of torch.nn.functional; nothing for builtins and dispatching functions."""
    if not isinstance(function, types.FunctionType) or function.__module__ != "torch.nn.functional":
        return {}
    if hasattr(function, "__wrapped__") or getattr(F, function.__name__, None) is not function:
        return {}
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return {}
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def _is(value, default):
    """Return whether a value is the default: 1 is not True, -0.0 not 0.0."""
    if default is None:
        return value is None
    return type(default) in (bool, int, float, str) and type(value) is type(default) and repr(value) == repr(default)


@sound(8)
def drop_default_keywords(module: GraphModule) -> GraphModule:
    """Leave out keyword arguments that are the function's default."""
    for node in module.graph.nodes:
        if node.op != "call_function" or not node.kwargs:
            continue
        defaults = _defaults(node.target)
        kwargs = {
            name: value for name, value in node.kwargs.items() if name not in defaults or not _is(value, defaults[name])
        }
        if len(kwargs) < len(node.kwargs):
            node.kwargs = kwargs
    module.graph.lint()
    module.recompile()
    return module

"""What a trace replaces so that calls of functions of functions are seen (``vmap``, ``grad``, ``cond``, loops)."""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from fx import higher_order
from fx.capture.control_flow import CONTROL_FLOW, FUNCTIONS_OF, make_operator
from fx.capture.function_transforms import JACOBIANS, TRANSFORMS, make_vmap
from fx.capture.patching import Trace, replaced_together, running_tracer
from fx.capture.replacements import Replacement

_HIGHER_ORDER = "torch._higher_order_ops"
_LOOPS = ("cond", "while_loop", "map", "scan", "associative_scan")
HOMES: tuple[dict[str, Any], ...] = (
    torch.__dict__,
    torch.func.__dict__,
    *(sys.modules[name].__dict__ for name in (_HIGHER_ORDER, *(f"{_HIGHER_ORDER}.{name}" for name in _LOOPS))),
)
"""The namespaces of torch whose functions are replaced where traced code has imported them, too."""
_CLOSED = (_NormBase, torch.nn.RNNBase, torch.nn.RNNCellBase, torch.nn.MultiheadAttention, torch.nn.Transformer,
           torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer, torch.nn.TransformerEncoder,
           torch.nn.TransformerDecoder)  # fmt: skip
"""Modules that branch on what they are given, or on their mode, so that a body calls them whole."""


def replace(trace: Trace) -> None:
    """Let a trace see these calls."""
    for several in _replacements():
        trace.replace_all(several)


@functools.cache
def _replacements() -> tuple[Replacement, ...]:
    """Return what is replaced where, and by what it makes of it."""
    apis: Any = sys.modules["torch._functorch.apis"]
    transforms: Any = sys.modules["torch._functorch.eager_transforms"]
    operators = dict.fromkeys(type(getattr(torch.ops.higher_order, name)) for name in FUNCTIONS_OF)
    named = {**JACOBIANS, **CONTROL_FLOW}
    in_homes = [{name: named[name] for name in named if isinstance(home.get(name), FunctionType)} for home in HOMES]
    return (
        replaced_together(higher_order.__dict__, {"is_recorded": _make_is_recorded}),
        replaced_together(apis.__dict__, {"vmap_impl": make_vmap}),
        replaced_together(transforms.__dict__, TRANSFORMS),
        *(replaced_together(kind, {"__call__": make_operator}) for kind in operators),
        *(replaced_together(home, makers) for home, makers in zip(HOMES, in_homes, strict=True) if makers),
    )


def is_opened_in_body(tracer: Any, module: torch.nn.Module) -> bool:
    """Return whether a leaf is looked into in a body, which holds no modules: its functions take what it holds."""
    kind = type(module)
    opened = kind.__module__.startswith("torch.nn.modules.") and not isinstance(module, _CLOSED)
    if opened and tracer._state.flags is not None:
        tracer._state.flags.opened.add(id(module))
    return opened


def _make_is_recorded(original: Any) -> Any:
    """Let programs that are captured again call functions of torch, which are seen."""
    return lambda: original() or running_tracer() is not None

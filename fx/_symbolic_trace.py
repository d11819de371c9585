"""The names that client code of torch.fx imports from its module of this name; :mod:`fx.capture` defines them."""

from fx.assertions import assert_is_none as _assert_is_none
from fx.capture.signature import PH, PHBase, PHWithMeta
from fx.capture.tracer import (
    ProxyableClassMeta,
    Tracer,
    is_fx_symbolic_tracing,
    is_fx_tracing,
    symbolic_trace,
)
from fx.code.wrapping import wrap

__all__ = [
    "PH",
    "PHBase",
    "PHWithMeta",
    "ProxyableClassMeta",
    "Tracer",
    "_assert_is_none",
    "is_fx_symbolic_tracing",
    "is_fx_tracing",
    "symbolic_trace",
    "wrap",
]

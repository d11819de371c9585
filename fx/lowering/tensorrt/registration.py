"""The registry of TensorRT's converters, and how the library's own are added to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fx.lowering.converters import Converter, Converters
from fx.lowering.support import Predicate, all_of
from fx.lowering.tensorrt.library import library
from fx.lowering.tensorrt.predicates import has_known_or_stored_values, has_known_values

converters = Converters("tensorrt")
"""The converters of the backend ``tensorrt``."""


def register(
    target: Any, build: Callable[..., Any], *predicates: Predicate, counts: bool = True, stored: bool = False
) -> None:
    """Add a converter for ``target``, for operations whose operands are known and that all predicates take.

    Args:
        target: the function.
        build: what adds it to a network.
        predicates: what else has to be so.
        counts: whether it counts toward ``min_size``, the operations that a region needs at least.
        stored: whether it can work on what quantized programs store.
    """
    known = has_known_or_stored_values if stored else has_known_values
    converters.register(Converter(target, build, all_of(known, *predicates), counts))


@functools.cache
def setting(kind: str, name: str) -> Any:
    """A member of one of TensorRT's enumerations, such as ``setting("ActivationType", "RELU")``."""
    return getattr(getattr(library(), kind), name)

"""The registry of OpenVINO's converters, which the files beside this one fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fx.lowering.converters import Converter, Converters
from fx.lowering.openvino.predicates import knows_values
from fx.lowering.support import Predicate, all_of

converters = Converters("openvino")
"""The converters of the backend ``openvino``."""


def add_converter(target: Any, build: Callable[..., Any], *predicates: Predicate, counts: bool = True) -> None:
    """Register how calls of ``target`` are built, if their values are known and the predicates take them."""
    converters.register(Converter(target, build, all_of(knows_values, *predicates), counts))

"""Decorators that make a function or a module class one operation of programs, which saved programs may hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch.overrides import handle_torch_function, has_torch_function

from fx.argument_types import refuse_misfit
from fx.errors import QuantizationError
from fx.operators.effects import declare_pure
from fx.serialization.allow_list import allow

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound="Callable[..., Any]")


def listed(kind: Kind) -> Kind:
    """Let saved programs use ``kind``, and let passes drop calls of it whose results have no users."""
    declare_pure(kind)
    return allow(kind, f"fx.quantize.{kind.__name__}")


def operation(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let programs call ``function``, which only computes a value from its arguments.

    Captures do not look inside, saved programs may name it, and passes may drop calls whose results have no users.
    """

    @functools.wraps(function)
    def recorded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        values = (*args, *kwargs.values())
        if has_torch_function(values):
            return handle_torch_function(recorded, values, *args, **kwargs)
        try:
            return function(*args, **kwargs)
        except Exception:  # torch raises many types for arguments of the wrong kind
            refuse_misfit(function, args, kwargs, QuantizationError)
            raise

    return listed(recorded)

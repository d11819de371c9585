"""What makes a function or a class of modules one operation of programs, which saved programs may hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch.overrides import handle_torch_function, has_torch_function

from fx.arguments import refuse_misfit
from fx.errors import QuantizationError
from fx.operators.effects import declare_pure
from fx.serialization.allow_list import allow

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound="Callable[..., Any]")


def listed(kind: Kind) -> Kind:
    """Let saved programs use ``kind``, and passes drop calls of it whose results nobody uses."""
    declare_pure(kind)
    return allow(kind, f"fx.quantize.{kind.__name__}")


def operation(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let programs call ``function``, which only computes a value of its first argument and others.

    Captures do not look inside, saved programs may name it, and passes may drop calls whose results nobody uses.
    """

    @functools.wraps(function)
    def recorded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        values = (*args, *kwargs.values())
        if has_torch_function(values):
            return handle_torch_function(recorded, values, *args, **kwargs)
        try:
            return function(*args, **kwargs)
        except Exception:  # whatever torch raises for an argument that it is not made for
            refuse_misfit(function, args, kwargs, QuantizationError)
            raise

    return listed(recorded)

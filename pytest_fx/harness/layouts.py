"""Modes and compiler settings to find out whether results differ because of memory layout alone."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fx.analysis.kernel_calls import KernelMode

MOST_COMPILATIONS = 256
"""Limit of compilations of one function, which is called with inputs of many sizes, strides and values."""


@contextmanager
def compiled_anew() -> Generator[None]:
    """Let torch.compile compile for all inputs in the block: beyond its default limit of 8 it falls back to eager."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    config: Any = torch._dynamo.config
    with config.patch(recompile_limit=MOST_COMPILATIONS):
        yield


@contextmanager
def uncompiled() -> Generator[None]:
    """Compile nothing in the block, so that a mode can be used: ``torch.cond`` would be compiled under the mode."""
    if "torch._dynamo" not in sys.modules:  # nothing has been compiled yet
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class Unchanged(KernelMode):
    """A mode that changes nothing. A program whose output changes under it depends on modes."""

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``."""
        return func(*args, **kwargs)


class LayoutIndependent(KernelMode):
    """A mode that gives contiguous tensors to each kernel.

    PyTorch draws random numbers for elements in their order in memory, and has different kernels for different layouts.
    These add in another order, which the norm of a constant image magnifies, or spread a NaN further. No law requires a
    pass to keep a layout, so differences that are due to layout alone are accepted.
    """

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``, on contiguous tensors unless it returns a view of one."""
        schema = func._schema
        if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
            return func(*args, **kwargs)
        values = list(map(_contiguous, args))
        keywords = {name: _contiguous(value) for name, value in kwargs.items()}
        result = func(*values, **keywords)
        for argument, own, copied in zip(schema.arguments, args, values, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(own, torch.Tensor):
                written = own if own is copied else own.copy_(copied)
                result = written if result is copied else result
        return result


def _contiguous(argument: Any) -> Any:
    """Return the argument of a kernel, a tensor or a list of tensors in contiguous memory."""
    if isinstance(argument, torch.Tensor):
        return argument.contiguous() if argument.layout == torch.strided and not argument.is_nested else argument
    if isinstance(argument, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in argument):
        return list(map(_contiguous, argument))
    return argument

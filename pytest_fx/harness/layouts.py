"""What PyTorch computes otherwise for tensors that only lie otherwise in memory."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from fx.analysis.kernel_calls import KernelMode

MOST_COMPILATIONS = 256
"""Compilations of one function of a program, which is called with inputs of many sizes, strides and values."""


@contextmanager
def compiled_anew() -> Generator[None]:
    """Let torch.compile compile for all inputs in the block: past its usual limit of 8 it runs a function in eager."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    config: Any = torch._dynamo.config
    with config.patch(recompile_limit=MOST_COMPILATIONS):
        yield


@contextmanager
def uncompiled() -> Generator[None]:
    """Let nothing be compiled in the block, for a mode: ``torch.cond`` would be, while the mode is told of it."""
    if "torch._dynamo" not in sys.modules:  # nothing was yet
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class Unchanged(KernelMode):
    """A mode that changes nothing. A program that answers otherwise under it notices modes."""

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``."""
        return func(*args, **kwargs)


class LayoutIndependent(KernelMode):
    """Inside its block, each kernel gets contiguous tensors.

    PyTorch draws random numbers for elements in the order in which they lie in memory, and has other kernels for other
    layouts. They add in another order, which the norm of a constant image magnifies, or spread a NaN further. No law
    says that a pass keeps a layout, so what differs by it alone is not held against the pass.
    """

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``, on contiguous tensors unless it returns a view of one."""
        schema = func._schema
        if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
            return func(*args, **kwargs)
        values, keywords = tree_map_only(torch.Tensor, _contiguous, (tuple(args), dict(kwargs)))
        result = func(*values, **keywords)
        for argument, own, copied in zip(schema.arguments, args, values, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(own, torch.Tensor):
                written = own if own is copied else own.copy_(copied)
                result = written if result is copied else result
        return result


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if tensor.layout == torch.strided and not tensor.is_nested else tensor

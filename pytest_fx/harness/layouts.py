"""What PyTorch computes otherwise for tensors that only lie otherwise in memory."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from fx.analysis.kernel_run import KernelMode

_aten: Any = torch.ops.aten
_WRONG = frozenset({_aten.native_batch_norm_backward.default})
"""Operations that are wrong in some layouts: gradients of ``(2, 2, 3, 1)`` with the strides ``(6, 1, 2, 1)``, say,
in evaluation mode (torch 2.13)."""


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
    """Inside its block, random numbers and gradients do not depend on how tensors lie in memory.

    PyTorch draws random numbers for elements in the order in which they lie in memory. No law says that a pass keeps
    that order for values inside of a program, so what differs by it alone is not held against the pass.
    """

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``, on contiguous tensors if its output depends on that."""
        if torch.Tag.nondeterministic_seeded not in func.tags and func not in _WRONG:
            return func(*args, **kwargs)
        given = tree_map_only(torch.Tensor, torch.Tensor.contiguous, args)
        result = func(*given, **kwargs)
        for argument, one, other in zip(func._schema.arguments, args, given, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                return one if one is other else one.copy_(other)
        return result

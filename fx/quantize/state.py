"""Running a program on data without leaving traces in it, or in the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fx.errors import FxError, QuantizationError, note_lines
from fx.kept_tensors import KeptTensor

__all__ = ["run_apart"]


def run_apart(module: nn.Module, run: Callable[..., Any], args: Sequence[Any], what: str = "the program") -> Any:
    """Return what ``run`` returns for copies of ``args``, without gradients; ``module``'s buffers stay what they are.

    Raises:
        QuantizationError: ``what``, as which it is known to the user, does not run.

    >>> counter, total = nn.Module(), torch.zeros(())
    >>> counter.register_buffer("calls", torch.zeros(()))
    >>> run_apart(counter, lambda total: total.add_(counter.calls.add_(1)), [total])
    tensor(1.)
    >>> counter.calls, total
    (tensor(0.), tensor(0.))
    """
    before = [KeptTensor(buffer) for buffer in module.buffers()]
    copies = tree_map(_apart, tuple(args))
    with torch.no_grad():
        try:
            answer = run(*copies)
            return tree_map(_apart, answer) if any(kept.written for kept in before) else answer
        except FxError:
            raise
        except Exception as error:  # whatever an operation raises that does not take the values that it gets
            notes = note_lines(error)
            raise QuantizationError(
                f"{what} does not run on the data",
                why="\n".join([f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", *notes]),
                remedy="give inputs that it takes; keep in floating point what needs exact values: scheme.skip(…)",
            ) from None
        finally:
            for kept in before:
                if kept.written:
                    kept.put_back()


def _apart(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value

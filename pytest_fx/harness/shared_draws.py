"""The same random numbers for the runs of a program in its working dtype and in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from fx.analysis.kernel_calls import KernelMode
from pytest_fx.harness.evaluation import converted

_DRAWS = frozenset(
    "rand randn rand_like randn_like normal normal_ uniform uniform_ exponential exponential_ cauchy cauchy_ "
    "log_normal log_normal_ geometric geometric_ bernoulli bernoulli_ poisson multinomial _standard_gamma".split()
)
"""Operators whose results are random numbers alone, not computed from inputs."""


class SharedDraws(KernelMode):
    """A mode that draws random numbers in the working dtype wherever a program draws them in float64.

    From one seed, ``torch.randn`` draws other numbers in float64 than in float32: a float64 reference would be that of
    another program. Dropout draws booleans, which are the same in every dtype.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        """Draw numbers in ``dtype``."""
        super().__init__()
        self._dtype = dtype

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``, in the working dtype if it draws random numbers."""
        if func._schema.name.partition("::")[2] not in _DRAWS or func._overloadname.endswith("out"):
            return func(*args, **kwargs)
        if func._schema.is_mutable:  # the first argument is written to, and its elements are not read
            drawn = torch.empty_like(args[0], dtype=self._narrow(args[0].dtype))
            return args[0].copy_(func(drawn, *self._narrowed(args[1:]), **self._narrowed(dict(kwargs))))
        before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype if self._dtype in (torch.float32, torch.float64) else before)
        try:
            return converted(func(*self._narrowed(tuple(args)), **self._narrowed(dict(kwargs))), torch.float64)
        finally:
            torch.set_default_dtype(before)

    def _narrow(self, dtype: torch.dtype) -> torch.dtype:
        return self._dtype if dtype == torch.float64 else dtype

    def _narrowed(self, arguments: Any) -> Any:
        arguments = tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._narrow(tensor.dtype)), arguments)
        return tree_map_only(torch.dtype, self._narrow, arguments)

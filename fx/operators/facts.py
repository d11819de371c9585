"""The columns of the table of operators: facts about one operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import nn

from fx.operators.python import IN_PLACE_OF

Family: TypeAlias = Literal[
    "linear", "convolution", "transposed convolution", "embedding", "batch norm", "normalization", "activation",
    "function", "arithmetic", "comparison", "logic", "extreme", "product", "combination", "join", "softmax", "dropout",
    "average pooling", "max pooling", "resampling", "view", "arrangement", "split", "reduction", "size", "loss",
]  # fmt: skip
"""The kind of an operator. ``activation`` and ``function`` work on each element of one tensor, ``arithmetic`` to
``extreme`` on pairs of elements. ``view`` and ``arrangement`` move elements, a view perhaps without a copy."""
FAMILIES: frozenset[Family] = frozenset(get_args(Family))
"""Every family."""
Kept: TypeAlias = Literal["rank", "dtype"]
"""A property that the result shares with the first operand: the number of dimensions, a floating-point dtype."""
Shares: TypeAlias = Literal["nothing", "view", "perhaps"]
"""The memory of the result. ``nothing``: its own. ``view``: it is a view of the first operand, or a list of views, and
never the operand itself. ``perhaps``: it may be the operand, a view of it, or a copy."""
Bound: TypeAlias = float | str | None
"""A number, the name of the argument with the number, or none."""

BOTH: frozenset[Kept] = frozenset({"rank", "dtype"})
"""The number of dimensions and the dtype."""
RANK: frozenset[Kept] = frozenset({"rank"})
"""The number of dimensions alone."""
_DTYPE: frozenset[Kept] = frozenset({"dtype"})

_KEPT: dict[Family, frozenset[Kept]] = {
    **dict.fromkeys(("batch norm", "normalization", "activation", "function", "softmax", "dropout"), BOTH),
    **dict.fromkeys(("average pooling", "max pooling"), BOTH),
    **dict.fromkeys(("linear", "convolution", "transposed convolution"), RANK),  # with the dtype of the weight
    **dict.fromkeys(("view", "arrangement", "resampling"), _DTYPE),
}
_SHARES: dict[Family, Shares] = {
    **dict.fromkeys(("view", "arrangement", "dropout", "size"), "perhaps"),
    "split": "view",
}
"""The memory of results, for families that may share memory."""
_VALUE_PRESERVING: frozenset[Family] = frozenset({"view", "arrangement", "max pooling"})


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator."""

    function: Any
    """The function, as the canonical form spells it (:mod:`fx.canonical`)."""
    family: Family
    """The kind of operator."""
    aliases: tuple[Any, ...] = ()
    """The same function by other names, with the same parameters."""
    also: tuple[Any, ...] = ()
    """Functions that compute the same, but have other parameters or defaults."""
    modules: tuple[type[nn.Module], ...] = ()
    """The classes of modules that call it."""
    parameters: tuple[str, ...] = ()
    """For a layer: the names of its parameters, in order; they are the same in every version of torch."""
    dims: int | None = None
    """For layers, pooling and dropout of whole channels: the number of dimensions after the channels."""
    keeps: frozenset[Kept] | None = None
    """The properties that the result shares with the first operand; None: the family's usual ones."""
    commutes: bool = False
    """True if its two operands may be swapped: for every value, the result is bit for bit the same."""
    suits_lookup_table: bool = True
    """True if a table of 256 values approximates it well, for one operand and perhaps a number. For finite operands it
    is finite, without jumps, and not too steep."""
    draws: bool = False
    """True if it draws random numbers, unless its arguments forbid it."""
    bounds: tuple[Bound, Bound] | None = None
    """For a function that clamps: the smallest and the largest result."""
    value_preserving: bool | None = None
    """True if each element of the result is an element of the operand; None: as usual in the family."""
    methods: tuple[str, ...] | None = None
    """The methods that compute it; None: those with its functions' names."""
    needs: tuple[Any, ...] = ()
    """Example values of the required arguments after the operands, such as a bound."""
    domain: tuple[float | None, float | None] = (None, None)
    """For functions: the range of operands for which they are finite."""
    rounds: bool = False
    """True if its results are integers, for all operands."""
    has_statistics: bool = False
    """True if it normalizes by running statistics of its operands outside of training."""
    shares: Shares | None = None
    """The memory of the result; None: as usual in the family."""
    is_contiguous: bool = False
    """True if its result is contiguous, for operands of any memory layout."""
    parts: tuple[str, ...] = ()
    """For split-like operators: the names of the sizes argument, in its function, method and overloads."""

    @property
    def functions(self) -> tuple[Any, ...]:
        """Every function that computes it."""
        return (self.function, *self.aliases, *self.also)

    @property
    def is_new(self) -> bool:
        """True if its result shares memory with nothing."""
        return (self.shares or _SHARES.get(self.family, "nothing")) == "nothing"

    @property
    def is_view(self) -> bool:
        """True if its result always shares memory with the first operand, and is never the operand itself."""
        return (self.shares or _SHARES.get(self.family)) == "view"

    @property
    def is_value_preserving(self) -> bool:
        """True if each element of the result is an element of the operand."""
        return self.family in _VALUE_PRESERVING if self.value_preserving is None else self.value_preserving

    def keeps_the(self, what: Kept) -> bool:
        """Return whether the result has the number of dimensions, or the dtype, of the first operand."""
        return what in (_KEPT.get(self.family, frozenset()) if self.keeps is None else self.keeps)

    @property
    def spellings(self) -> Iterator[Any]:
        """Functions, module classes and names of methods that compute it and write to nothing."""
        yield from (*self.functions, *self.modules)
        yield from self.method_names

    @property
    def in_place_spellings(self) -> Iterator[Any]:
        """Functions and names of methods that overwrite the first operand with the result; PyTorch's end in ``_``."""
        for function in self.functions:
            name = getattr(function, "__name__", "")
            home = next((home for home in (torch, F) if getattr(home, name, None) is function), None)
            other = IN_PLACE_OF.get(function, getattr(home, f"{name}_", None))
            if other is not None:
                yield other
        yield from (f"{name}_" for name in self.method_names if hasattr(torch.Tensor, f"{name}_"))

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names of methods that compute it."""
        if self.methods is not None:
            return self.methods
        names = dict.fromkeys(str(getattr(function, "__name__", "")) for function in self.functions)
        return tuple(name for name in names if name and hasattr(torch.Tensor, name))

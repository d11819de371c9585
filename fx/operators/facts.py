"""What is known of an operator: the columns of the table of operators."""

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
"""What kind of operator it is. ``activation`` and ``function`` work on each element of one tensor, ``arithmetic`` to
``extreme`` on pairs of elements; ``view`` and ``arrangement`` move elements, a view perhaps without copying them."""
FAMILIES: frozenset[Family] = frozenset(get_args(Family))
"""Every family."""
Kept: TypeAlias = Literal["rank", "dtype"]
"""What the result has in common with the first operand: the number of dimensions, a floating-point dtype."""
Shares: TypeAlias = Literal["nothing", "view", "perhaps"]
"""What memory the result has. ``nothing``: its own. ``view``: that of the first operand, or it is a list of such, and
never that very tensor. ``perhaps``: it may be the operand, a view of it, or a copy."""
Bound: TypeAlias = float | str | None
"""A number, the name of the argument that gives it, or none."""

BOTH: frozenset[Kept] = frozenset({"rank", "dtype"})
"""Both of these."""
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
"""Of families some of whose results have memory of others."""
_VALUE_PRESERVING: frozenset[Family] = frozenset({"view", "arrangement", "max pooling"})


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator."""

    function: Any
    """The function, as the canonical form spells it (:mod:`fx.canonical`)."""
    family: Family
    """What kind of operator it is."""
    aliases: tuple[Any, ...] = ()
    """Functions that are the same by a different name, with the same parameters."""
    also: tuple[Any, ...] = ()
    """Functions that do the same, but have other parameters or defaults."""
    modules: tuple[type[nn.Module], ...] = ()
    """The classes of modules that call it."""
    parameters: tuple[str, ...] = ()
    """Of a layer, the names of what it is called with, in order; they are the same in every version of torch."""
    dims: int | None = None
    """Of layers, pooling and dropout of whole channels: over how many dimensions behind the channels they reach."""
    keeps: frozenset[Kept] | None = None
    """What the result has in common with the first operand; None: what is usual in the family."""
    commutes: bool = False
    """Whether its two operands may be swapped: for every value, the result is bit for bit the same."""
    suits_lookup_table: bool = True
    """Whether a table of 256 values stands for it well, or for its work with a number: where its operand is finite, it
    is finite, without jumps, and not too steep."""
    draws: bool = False
    """Whether it draws random numbers, if its arguments do not forbid it."""
    bounds: tuple[Bound, Bound] | None = None
    """Of a function that returns the nearest number between two: the smallest and the largest result."""
    value_preserving: bool | None = None
    """Whether each element of the result is one of the operand's; None: what is usual in the family."""
    methods: tuple[str, ...] | None = None
    """The methods that do it; None: those of its functions' names."""
    needs: tuple[Any, ...] = ()
    """What a call needs behind its operands, such as a bound: an example of it."""
    domain: tuple[float | None, float | None] = (None, None)
    """Of functions: between which numbers their operands have to lie for them to be finite."""
    rounds: bool = False
    """Whether its results are integers, of whatever numbers."""
    has_statistics: bool = False
    """Whether it normalizes by what it has seen of its operands where it is not in training."""
    shares: Shares | None = None
    """What memory the result has; None: what is usual in the family."""
    is_contiguous: bool = False
    """Whether its result lies in memory in the order of its elements, however the operand does."""
    parts: tuple[str, ...] = ()
    """Of what cuts a tensor: the names of the argument that says into what, in its function, method and overloads."""

    @property
    def functions(self) -> tuple[Any, ...]:
        """Every function that does it."""
        return (self.function, *self.aliases, *self.also)

    @property
    def is_new(self) -> bool:
        """Return whether its result shares memory with nothing."""
        return (self.shares or _SHARES.get(self.family, "nothing")) == "nothing"

    @property
    def is_view(self) -> bool:
        """Return whether its result always has memory of the first operand, and is never that very tensor."""
        return (self.shares or _SHARES.get(self.family)) == "view"

    @property
    def is_value_preserving(self) -> bool:
        """Return whether each element of the result is one of the operand's."""
        return self.family in _VALUE_PRESERVING if self.value_preserving is None else self.value_preserving

    def keeps_the(self, what: Kept) -> bool:
        """Return whether the result has the number of dimensions, or the dtype, of the first operand."""
        kept = _KEPT.get(self.family, frozenset()) if self.keeps is None else self.keeps
        return what in kept

    @property
    def spellings(self) -> Iterator[Any]:
        """Functions, classes of modules and names of methods that do it and write to nothing."""
        yield from (*self.functions, *self.modules)
        yield from self.method_names

    @property
    def in_place_spellings(self) -> Iterator[Any]:
        """Functions and names of methods that write the result over the first operand: PyTorch's have a ``_`` more."""
        for function in self.functions:
            name = getattr(function, "__name__", "")
            home = next((home for home in (torch, F) if getattr(home, name, None) is function), None)
            other = IN_PLACE_OF.get(function, getattr(home, f"{name}_", None))
            if other is not None:
                yield other
        yield from (f"{name}_" for name in self.method_names if hasattr(torch.Tensor, f"{name}_"))

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names of methods that do it."""
        if self.methods is not None:
            return self.methods
        names = dict.fromkeys(str(getattr(function, "__name__", "")) for function in self.functions)
        return tuple(name for name in names if name and hasattr(torch.Tensor, name))

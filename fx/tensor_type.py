"""Types of tensors with unknown sizes, and their order, for gradual typing (paper, section 6.3).

:mod:`fx.analysis.gradual_types` infers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from fx.arguments import refusal, shown

__all__ = ["Dyn", "TensorType", "is_consistent", "is_more_precise"]


class _DynType:
    """The class of :data:`Dyn`."""

    def __repr__(self) -> str:
        return "Dyn"

    def __reduce__(self) -> str:
        return "Dyn"  # copies and pickles are the same object


Dyn = _DynType()
"""The unknown type: of any value, or of the size of one dimension."""
Dimension: TypeAlias = "int | str | _DynType"
"""The size of a dimension: a number, a name, or :data:`Dyn`. Sizes of one name are equal."""


class TensorType:
    """The type of a tensor whose number of dimensions is known, as an annotation of an input or of a node.

    Each size is a number, :data:`Dyn`, or a name. Sizes of the same name are equal throughout a program. Unknown sizes,
    named or not, are at least 1.

    >>> TensorType(("batch", 3, Dyn, Dyn))
    TensorType[('batch', 3, Dyn, Dyn)]
    >>> def forward(x: TensorType((Dyn, 3))): ...
    """

    __slots__ = ("__args__",)

    def __init__(self, dim: Sequence[Dimension]) -> None:
        """Create a type from the sizes of all dimensions.

        Raises:
            GraphError: a size is neither a number of at least 0, nor a name, nor ``Dyn``.
        """
        if not isinstance(dim, Sequence) or isinstance(dim, str):
            raise refusal("a TensorType takes the sizes of all dimensions", dim, remedy="TensorType((Dyn, 3))")
        for size in dim:
            is_number = isinstance(size, int) and not isinstance(size, bool) and size >= 0
            if not (is_number or size is Dyn or (isinstance(size, str) and size.isidentifier())):
                raise refusal(
                    "a size of a TensorType is a number of at least 0, a name or Dyn",
                    size,
                    remedy=f"Dyn for an unknown size, instead of {shown(size)}",
                )
        self.__args__ = tuple(dim)

    @property
    def __origin__(self) -> type[TensorType]:
        return TensorType

    @property
    def dims(self) -> tuple[Dimension, ...]:
        """The sizes of all dimensions."""
        return self.__args__

    def __class_getitem__(cls, sizes: Any) -> TensorType:
        return cls(sizes if isinstance(sizes, tuple) else (sizes,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorType) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(self.dims)

    def __repr__(self) -> str:
        return f"TensorType[{self.dims}]"


def is_consistent(t1: object, t2: object) -> bool:
    """Return whether some value may have both types, or some number be both sizes.

    The relation is reflexive and symmetric, but not transitive.

    >>> is_consistent(TensorType((1, Dyn)), TensorType((Dyn, 2))), is_consistent(TensorType((1,)), TensorType((2,)))
    (True, False)
    """
    if isinstance(t1, TensorType) and isinstance(t2, TensorType):
        return len(t1.dims) == len(t2.dims) and all(map(is_consistent, t1.dims, t2.dims))
    return t1 is Dyn or t2 is Dyn or isinstance(t1, str) or isinstance(t2, str) or t1 == t2


def is_more_precise(t1: object, t2: object) -> bool:
    """Return whether all values of type ``t1`` also have type ``t2``, or ``t1`` is a size that ``t2`` allows.

    The relation is reflexive and transitive.

    >>> is_more_precise(TensorType((1, 2)), TensorType((1, Dyn))), is_more_precise(Dyn, TensorType((1, 2)))
    (True, False)
    """
    if isinstance(t1, TensorType) and isinstance(t2, TensorType):
        return len(t1.dims) == len(t2.dims) and all(map(is_more_precise, t1.dims, t2.dims))
    return t2 is Dyn or t1 == t2

"""The known types of a program's values, and one call with the types of its arguments (section 6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from fx.analysis.size_equations import Misfit, Size, SizeEquations
from fx.node import Argument, Node, map_arg
from fx.operators.facts import Operator
from fx.tensor_type import Dyn, TensorType


class Types:
    """The types of a program's values, as far as they are known."""

    def __init__(self, equations: SizeEquations) -> None:
        self.equations = equations
        self.values: dict[Node, Any] = {}
        """The type of each node: a ``TensorType``, a size, a tuple of types, or ``Dyn``."""
        self.assumed: dict[Node, None] = {}
        """The nodes whose number of dimensions was assumed: an operator takes several, and usually this one."""

    def of(self, argument: Argument) -> Any:
        """Return an argument with each node replaced by its type, in which sizes are simplified."""
        return map_arg(argument, lambda node: self._simplified(self.values.get(node, Dyn)))

    def _simplified(self, value: Any) -> Any:
        if isinstance(value, TensorType):
            return TensorType([self.equations.find(cast("Size", size)) for size in value.dims])
        if isinstance(value, tuple):
            return tuple(map(self._simplified, cast("tuple[Any, ...]", value)))
        return self.equations.find(value) if isinstance(value, str) else value

    def refine(self, node: Node, value: Any) -> None:
        """Note that a node also has the type ``value``.

        Raises:
            Misfit: that contradicts its known type.
        """
        old = self.of(node)
        if old is Dyn:
            self.equations.count += value is not Dyn
            self.values[node] = value
        elif isinstance(old, TensorType) and isinstance(value, TensorType):
            if len(old.dims) != len(value.dims):
                raise Misfit(f"its result has type {value}, but its annotation or its use needs {old}")
            for first, second in zip(old.dims, value.dims, strict=True):
                self.equations.equate(cast("Size", first), cast("Size", second))
        elif value is not Dyn:
            self.values[node] = value

    def refine_rank(self, node: Node, rank: int) -> None:
        """Note that the value of a node is a tensor of ``rank`` dimensions."""
        self.refine(node, TensorType([self.equations.name("dimension", node, place) for place in range(rank)]))


@dataclass(frozen=True, slots=True)
class TypedCall:
    """A call in canonical form."""

    node: Node
    """The call."""
    function: Any
    """The function: that of the operator in the table if it has a row."""
    row: Operator | None
    """The row of the operator."""
    types: Types
    """The types of all values, which a rule may refine."""

    @property
    def operands(self) -> tuple[Argument, ...]:
        """The arguments in order."""
        return (*self.node.args, *self.node.kwargs.values())

    def get(self, name: str, default: Any = None) -> Any:
        """Return the type, or the value, of the argument called ``name``."""
        return self.types.of(self.node.kwargs.get(name, default))

    def tensor(self, argument: Argument, *ranks: int) -> list[Size] | None:
        """Return the sizes of a tensor; None if their number is unknown.

        If ``ranks`` are given, the operator takes tensors with these numbers of dimensions only, and an unknown type is
        refined: to the one that the result needs, if the result has as many, else to the first.

        Raises:
            Misfit: the tensor has another number of dimensions.
        """
        if self.types.of(argument) is Dyn and isinstance(argument, Node) and ranks:
            result = self.types.of(self.node)
            needed = [rank for rank in ranks if isinstance(result, TensorType) and rank == len(result.dims)]
            if len(ranks) > 1 and not needed:
                self.types.assumed[argument] = None
            self.types.refine_rank(argument, (*needed, *ranks)[0])
        value = self.types.of(argument)
        if not isinstance(value, TensorType):
            return None
        if ranks and len(value.dims) not in ranks:
            ranks_in_words = " or ".join(map(str, sorted(ranks)))
            raise Misfit(f"it takes tensors of {ranks_in_words} dimensions, not {len(value.dims)}")
        return cast("list[Size]", list(value.dims))

    def like_result(self) -> list[Size] | None:
        """Return the sizes of the first operand, which has as many dimensions as the result."""
        result, operand = self.types.of(self.node), self.operands[0]
        is_needed = isinstance(result, TensorType) and self.types.of(operand) is Dyn
        return self.tensor(operand, len(result.dims)) if is_needed else self.tensor(operand)

    def equate(self, first: Any, second: Any, what: str) -> None:
        """Note that two sizes are equal; ``what`` says which."""
        try:
            self.types.equations.equate(first, second)
        except Misfit as misfit:
            raise Misfit(f"{what} differ: {misfit}") from None

    def unknown(self, place: object) -> Size:
        """Return the name of a size of the result about which nothing is known; equal calls have equal ones."""
        equations, key = self.types.equations, (self.function, repr(self.types.of(self.operands)), place)
        return equations.find(equations.name(*key))

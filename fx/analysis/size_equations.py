"""Equations between sizes of tensors, which are numbers or names (paper, section 6.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

Size: TypeAlias = "int | str"
"""A number of at least 0, or the name of an unknown size of at least 1."""


class Misfit(Exception):
    """Sizes that contradict each other. The message is the reason; the caller adds the operation and its place."""


class SizeEquations:
    """Known equations between sizes, and names for the results of calculations with unknown sizes.

    The same calculation on equal sizes has the same name, so two convolutions of the same strides give equal sizes.

    >>> equations = SizeEquations(["n"])
    >>> area = equations.product(["n", 4])
    >>> equations.equate("n", 3)
    >>> equations.find("n"), equations.product(["n", 4]), equations.product(["n", 4]) == area
    (3, 12, False)
    """

    def __init__(self, names: Collection[str]) -> None:
        """Begin without equations; ``names`` are those of the user, which are preferred to made ones."""
        self.names = frozenset(names)
        self.count = 0
        """The number of equations so far; while it stays the same, all results do."""
        self._equal: dict[str, Size] = {}
        self._made: dict[tuple[Any, ...], str] = {}
        self._factors: dict[str, tuple[Size, ...]] = {}

    def find(self, size: Size) -> Size:
        """Return the number or the name that represents a size."""
        while isinstance(size, str) and size in self._equal:
            size = self._equal[size]
        return size

    def equate(self, first: Size, second: Size) -> None:
        """Note that two sizes are equal.

        Raises:
            Misfit: they are different numbers.
        """
        first, second = self.find(first), self.find(second)
        if first == second:
            return
        if isinstance(first, str) and (isinstance(second, int) or first not in self.names):
            first, second = second, first
        if isinstance(second, int):
            raise Misfit(f"{first} is not {second}")
        self._equal[second] = first
        self.count += 1

    def name(self, *key: Any) -> str:
        """Return the name of an unknown size; a key always has the same one."""
        if key not in self._made:
            number = len(self._made)
            while (name := f"d{number}") in self.names or name in self._made.values():
                number += 1
            self._made[key] = name
        return self._made[key]

    def apply(self, function: Callable[..., int], *sizes: Any) -> Size:
        """Return the result of a calculation on sizes: a number if all of them are, else a name."""
        arguments = [self.find(size) if isinstance(size, str) else size for size in sizes]
        if any(isinstance(size, str) for size in arguments):
            return self.find(self.name(function, *arguments))
        return function(*arguments)

    def factors(self, sizes: Collection[Size]) -> tuple[int, Counter[str]]:
        """Return a product of sizes as a number and names, each with its power."""
        number, names = 1, Counter[str]()
        for size in map(self.find, sizes):
            if isinstance(size, int):
                number *= size
            elif size in self._factors:
                inner_number, inner_names = self.factors(self._factors[size])
                number *= inner_number
                names += inner_names
            else:
                names[size] += 1
        return number, names

    def product(self, sizes: Collection[Size]) -> Size:
        """Return the product of sizes."""
        number, names = self.factors(sizes)
        elements = sorted(names.elements())
        if not elements or number == 0:
            return number
        if number == 1 and len(elements) == 1:
            return elements[0]
        name = self.name("product", number, *elements)
        self._factors.setdefault(name, (number, *elements))
        return self.find(name)

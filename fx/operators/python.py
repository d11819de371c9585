"""The table of Python's operators: the spelling of each, and the special methods of ``Proxy`` that record it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PythonOperator:
    """One operator of the language."""

    function: Callable[..., Any]
    """The function of the standard ``operator`` module, the target of nodes."""
    template: str
    """Source, with a ``{}`` for each operand."""
    reflected: bool = False
    """True if the right operand can take over (``__radd__``)."""
    in_place: bool = False
    """True if it writes to the first operand."""

    @property
    def name(self) -> str:
        """Name in the ``operator`` module: ``and_``."""
        return self.function.__name__

    @property
    def method(self) -> str:
        """Name of the special method without its underscores: ``and``."""
        return self.name.strip("_")

    @property
    def arity(self) -> int:
        """Number of operands."""
        return self.template.count("{}")


_REFLECTED = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and_": "&", "or_": "|", "xor": "^", "matmul": "@",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}
_UNARY = {"pos": "+", "neg": "-", "invert": "~"}

OPERATORS: tuple[PythonOperator, ...] = (
    *(
        PythonOperator(getattr(operator, name), f"{{}} {sign} {{}}", reflected=True)
        for name, sign in _REFLECTED.items()
    ),
    *(PythonOperator(getattr(operator, name), f"{{}} {sign} {{}}") for name, sign in _COMPARISONS.items()),
    *(PythonOperator(getattr(operator, name), f"{sign}{{}}") for name, sign in _UNARY.items()),
    PythonOperator(operator.getitem, "{}[{}]"),
    *(
        PythonOperator(getattr(operator, f"i{name.rstrip('_')}"), f"{{}} {sign}= {{}}", in_place=True)
        for name, sign in _REFLECTED.items()
    ),
    PythonOperator(operator.setitem, "{}[{}] = {}", in_place=True),
)
"""Every operator with its own spelling."""

BY_FUNCTION: dict[Callable[..., Any], PythonOperator] = {row.function: row for row in OPERATORS}
"""The row of a node's target."""

IN_PLACE: frozenset[Callable[..., Any]] = frozenset(
    {row.function for row in OPERATORS if row.in_place} | {operator.delitem, operator.iconcat}
)
"""Operator functions that write to their first argument."""

IN_PLACE_OF: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(operator, name): getattr(operator, f"i{name.rstrip('_')}") for name in _REFLECTED
}
"""For each operator, the one that overwrites its first operand with the result."""

COMPARISONS: frozenset[Callable[..., Any]] = frozenset(getattr(operator, name) for name in _COMPARISONS)
"""Operator functions whose result is a truth value."""

BUILTINS: dict[str, str] = {
    **dict.fromkeys(
        "all any ascii bin bool bytes callable chr complex divmod float format hasattr hash hex id int isinstance "
        "issubclass len oct ord range repr str type".split(),
        "number",
    ),
    **dict.fromkeys("enumerate filter iter map reversed zip".split(), "iterator"),
    **dict.fromkeys("abs pow round".split(), "arithmetic"),
    **dict.fromkeys("max min sorted sum".split(), "any"),
    "getattr": "attribute",
}
"""Built-in functions and classes that only compute, with the kind of result: see :data:`fx.operators.sharing.Kind`."""

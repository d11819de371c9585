"""Rows of the grammar: an operation, its operands and arguments, and its spellings; and small decisions.

Decisions are drawn so that shrinking leads to the first alternative.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

import torch
from hypothesis import strategies as st

from fx.container_kinds import held_kind
from fx.naming.printing import class_name

_HOLE = re.compile(r"(?:\*(?=\{[^\W\d]))?\{(\w+|\*)\}")  # `*{0}.shape` unpacks sizes, and is no hole `*{dims}`
_WRITE = re.compile(r"^(?P<left>.+?) (?P<operator>[-+*/@&|^%]|//|\*\*|<<|>>)?= (?P<right>.+)$")


T = TypeVar("T")


@functools.lru_cache(maxsize=1024)
def _up_to(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


class Choices:
    """The decisions of one example, each one integer drawn by Hypothesis: few and small, so that drawing is fast."""

    __slots__ = ("_draw",)

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def below(self, count: int) -> int:
        """Return an integer from 0 to ``count - 1``; nothing is drawn if there is no choice."""
        return self._draw(_up_to(count)) if count > 1 else 0

    def part(self, decide: Callable[[Choices], T]) -> T:
        """Return the result of ``decide`` on decisions that Hypothesis removes all at once when it shrinks."""
        return self._draw(_part(decide))

    def pick(self, alternatives: Sequence[T]) -> T:
        """Return one of ``alternatives``, the first after shrinking."""
        return alternatives[self.below(len(alternatives))]

    def sometimes(self, one_in: int) -> bool:
        """Return True in one of ``one_in`` examples, False after shrinking."""
        return self.below(one_in) == one_in - 1

    def mostly(self, one_in: int) -> bool:
        """Return False in one of ``one_in`` examples and after shrinking."""
        return self.below(one_in) != 0

    def recent(self, values: Sequence[T]) -> T:
        """Return one of ``values``, the last one in half of the examples and after shrinking."""
        count = len(values)
        number = self.below(2 * count) if count > 1 else 0
        return values[-1 - max(0, number - count)]


@st.composite
def _part(draw: st.DrawFn, decide: Callable[[Choices], T]) -> T:
    return decide(Choices(draw))


class SeededChoices(Choices):
    """Decisions that depend on a random number generator alone.

    Hypothesis itself also draws integers, floats and texts from the user's modules, whatever their meaning.
    """

    __slots__ = ("_random",)

    def __init__(self, random: Random | None) -> None:
        """Take the generator; None always chooses the first alternative."""
        self._random = random

    def below(self, count: int) -> int:
        """Return an integer from 0 to ``count - 1``."""
        return self._random.randrange(count) if self._random is not None and count > 1 else 0

    def part(self, decide: Callable[[Choices], T]) -> T:
        """Return the result of ``decide`` on further decisions."""
        return decide(self)


class Drawing(Protocol):
    """The view of rows on the program that is being written."""

    choices: Choices
    """The source of decisions."""
    constants: tuple[float | str, ...]
    """Arguments that should be frequent."""

    @property
    def sizes(self) -> Sequence[int]:
        """Return the sizes of the dimensions of the latest value."""
        ...


MODULE = "module "
"""The prefix of the spelling of a module outside of torch.nn."""


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor that is made because no value of the program fits, or sometimes for variety."""

    shape: tuple[int, ...]
    """Its size."""
    dtype: torch.dtype = torch.float32
    """The dtype of its elements."""
    limit: int = 4
    """The bound below which integers are."""
    kind: str = ""
    """``"buffer"`` if it must be one; empty for an input, a parameter or a buffer."""


@dataclass(frozen=True, slots=True)
class Operand:
    """The values that an operation accepts in one place."""

    fits: Callable[[Any, list[Any]], bool]
    """Returns whether a value is accepted, given the values in earlier places."""
    new_tensor: Callable[[Drawing, list[Any]], NewTensor | None]
    """Returns a tensor that is accepted, given the values before it; None if there is none of a reasonable size."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that is a constant, not a value of the program."""

    name: str
    """Its keyword, or the name of a hole in the spelling."""
    draw: Callable[[Drawing, list[Any]], Any]
    """Draws it, given the operands; :data:`OMITTED` leaves it out."""
    one_in: int = 1
    """It differs from its default in one of so many examples; 1 for an argument that is always present."""
    positional: bool = False
    """True if it is written without its keyword."""
    leading: bool = False
    """True if it may be written without its keyword when the arguments before it are."""


class _Omitted:
    """The type of :data:`OMITTED`."""


OMITTED = _Omitted()
"""The result of an argument's ``draw`` that leaves it out."""


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A constant whose text differs from its ``repr``."""

    text: str
    """The text."""
    value: Any
    """The value while the program is drawn."""

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Production:
    """A row of the grammar."""

    spellings: tuple[str, ...]
    """The ways to write it: ``"torch.add"``, ``".add"`` (a method), ``"nn.ReLU"`` (a module), or an expression or
    statement with holes, ``"{0} + {1}"``, ``"{0}.permute({dims})"``, ``"{0} += {1}"``. ``{*}`` is the place of
    arguments, and ``*{dims}`` are the numbers without brackets."""
    operands: tuple[Operand, ...]
    """The values that it takes."""
    arguments: tuple[Argument, ...] = ()
    """The constants that it takes."""
    tags: frozenset[str] = frozenset()
    """The features of a program that contains it."""
    weight: int = 1
    """The frequency of its choice, relative to the others of its family."""
    call: str = "{module}({0})"
    """The call of a module, for spellings that begin with ``nn.``."""
    imports: str = ""
    """A module that the spelling imports, beside torch and math."""


def row(spellings: str, *parts: Operand | Argument | frozenset[str], **options: Any) -> Production:
    """Make a row of its spellings, separated by semicolons, and of its operands, arguments and tags in any order.

    >>> row("torch.relu; .relu; nn.ReLU", Operand(lambda value, earlier: True, lambda builder, earlier: None)).spellings
    ('torch.relu', '.relu', 'nn.ReLU')
    """
    operands = tuple(part for part in parts if isinstance(part, Operand))
    arguments = tuple(part for part in parts if isinstance(part, Argument))
    tags = frozenset[str]().union(*(part for part in parts if isinstance(part, frozenset)))
    return Production(tuple(spellings.split("; ")), operands, arguments, tags, **options)


def spell(value: Any) -> str:
    """Return an expression for a constant, as a user would write it where ``torch`` is imported.

    >>> import torch
    >>> spell({"size": (1,), "dtype": torch.float64, "bound": float("inf"), "rows": slice(None, 2)})
    "{'size': (1,), 'dtype': torch.float64, 'bound': float('inf'), 'rows': slice(None, 2)}"
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, slice) and value.step is None:
        return f"slice{spell((value.start, value.stop))}"
    kind = held_kind(value)
    if kind is None or kind.spelling is None:
        return repr(value)
    return kind.written(value, list(map(spell, kind.parts(value))), repr, class_name)


def spell_index(value: Any) -> str:
    """Return the text between the brackets of a subscript.

    >>> spell_index((..., slice(None, None, 2), 0))
    '..., ::2, 0'
    """
    match value:
        case tuple() if value:
            return ", ".join(map(spell_index, value)) + "," * (len(value) == 1)
        case slice(start=start, stop=stop, step=step):
            text = ":".join("" if bound is None else spell(bound) for bound in (start, stop))
            return text if step is None else f"{text}:{spell(step)}"
        case _ if value is Ellipsis:
            return "..."
        case _:
            return spell(value)


def spell_options(options: dict[str, Any]) -> str:
    """Return keyword arguments as written in a call.

    >>> spell_options({"dim": 1, "keepdim": True})
    'dim=1, keepdim=True'
    """
    return ", ".join(f"{name}={spell(value)}" for name, value in options.items())


@functools.lru_cache(maxsize=4096)
def written(spelling: str, operands: int) -> str:
    """Return a spelling as an expression or statement with holes.

    >>> written("torch.add", 2), written(".relu", 1), written("{0} + {1}", 2)
    ('torch.add({0}, {1}{*})', '{0}.relu({*})', '{0} + {1}')
    """
    if spelling.startswith(".") and "(" in spelling:
        return f"{{0}}{spelling}"
    if "{" in spelling or "(" in spelling:
        return spelling
    places = [f"{{{number}}}" for number in range(operands)]
    if spelling.startswith("."):
        return f"{places[0]}{spelling}({', '.join(places[1:])}{{*}})"
    return f"{spelling}({', '.join(places)}{{*}})"


def is_statement(template: str) -> bool:
    """Return whether a template has no value: a check, or an assignment to its first operand."""
    if template.startswith(("assert ", "if ", "torch._assert(")):
        return True
    return _WRITE.match(template) is not None and " == " not in template


def leading(template: str, options: dict[str, Any], keywords: tuple[Argument, ...]) -> tuple[str, ...]:
    """Return the names of the arguments that a template takes by keyword, but could take by position.

    >>> both = Argument("dim", None, leading=True), Argument("keepdim", None, leading=True)
    >>> leading("torch.sum({0}{*})", {"dim": 1, "keepdim": True}, both)
    ('dim', 'keepdim')
    >>> leading("torch.sum({0}{*})", {"keepdim": True}, both)
    ()
    """
    if not any(part.leading for part in keywords) or "{*}" not in template:
        return ()
    holes = set(_HOLE.findall(template))
    others = [part for part in keywords if not part.positional and part.name not in holes]
    first = itertools.takewhile(lambda part: part.leading and part.name in options, others)
    return tuple(part.name for part in first)


def fill(
    template: str,
    operands: list[str],
    options: dict[str, Any],
    keywords: tuple[Argument, ...],
    unnamed: frozenset[str] = frozenset(),
) -> str:
    """Return the text of a template: operands by their names, arguments in their holes, all others by keyword.

    The ``unnamed`` are written by position, without their keyword.
    """
    holes = set(_HOLE.findall(template))
    present = [part for part in keywords if part.name in options and part.name not in holes]
    positional = [spell(options[part.name]) for part in present if part.positional or part.name in unnamed]
    rest = {part.name: options[part.name] for part in present if not part.positional and part.name not in unnamed}

    def hole(match: re.Match[str]) -> str:
        name = match.group(1)
        if name.isdigit():
            return operands[int(name)]
        if name == "*":
            text = ", ".join([part for part in (*positional, spell_options(rest)) if part])
            # The first argument has no comma before it.
            return f", {text}" if text and template[match.start() - 1] != "(" else text
        if match[0][0] == "*":
            return ", ".join(map(spell, options[name]))
        return (spell_index if name == "index" else spell)(options[name])

    return _HOLE.sub(hole, template)


@functools.lru_cache(maxsize=4096)
def compiled(template: str, imports: str = "") -> Callable[[list[Any], dict[str, Any]], Any]:
    """Return a function that computes a template from the operands, and the arguments by name."""

    named = [name for name in _HOLE.findall(template) if not name.isdigit() and name != "*"]

    def hole(match: re.Match[str]) -> str:
        name = match.group(1)
        if name.isdigit():
            return f"values[{name}]"
        if name == "*":
            return f"{'' if template[match.start() - 1] == '(' else ', '}**rest"
        return f'{"*" * (match[0][0] == "*")}options["{name}"]'  # as messages are in single quotes

    body = _HOLE.sub(hole, template)
    body = body if is_statement(template) else f"return {body}"
    lines = [
        *([f"import {imports}"] if imports else []),
        "def run(values, options):",
        f"    rest = {{name: value for name, value in options.items() if name not in {named!r}}}",
        f"    {body}",
        "    return values[0]",
    ]
    defined: dict[str, Any] = dict(NAMESPACE)
    exec("\n".join(lines), defined)
    return defined["run"]


NAMESPACE: dict[str, Any] = {}
"""Names that templates and sources may use."""
exec("import math\nimport operator\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn", NAMESPACE)

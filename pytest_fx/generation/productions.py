"""Rows of the grammar: an operation, the values and arguments that it takes, how it is written; and small decisions.

These are drawn so that the first alternative is the one that shrinking goes to.
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

_HOLE = re.compile(r"\*?\{(\w+|\*)\}")
_WRITE = re.compile(r"^(?P<left>.+?) (?P<operator>[-+*/@&|^%]|//|\*\*|<<|>>)?= (?P<right>.+)$")


T = TypeVar("T")


@functools.lru_cache(maxsize=1024)
def _up_to(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


class Choices:
    """Decisions of one example, drawn through Hypothesis one integer each: few and small, so that drawing is fast."""

    __slots__ = ("_draw",)

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def below(self, count: int) -> int:
        """An integer from 0 to ``count - 1``; nothing is drawn where there is no choice."""
        return self._draw(_up_to(count)) if count > 1 else 0

    def part(self, decide: Callable[[Choices], T]) -> T:
        """Return what ``decide`` makes of decisions that Hypothesis takes out all at once when it shrinks."""
        return self._draw(_part(decide))

    def pick(self, alternatives: Sequence[T]) -> T:
        """One of ``alternatives``, the first after shrinking."""
        return alternatives[self.below(len(alternatives))]

    def sometimes(self, one_in: int) -> bool:
        """True in one of ``one_in`` examples, False after shrinking."""
        return self.below(one_in) == one_in - 1

    def mostly(self, one_in: int) -> bool:
        """False in one of ``one_in`` examples and after shrinking."""
        return self.below(one_in) != 0

    def recent(self, values: Sequence[T]) -> T:
        """One of ``values``, the last one in half of the examples and after shrinking."""
        count = len(values)
        number = self.below(2 * count) if count > 1 else 0
        return values[-1 - max(0, number - count)]


@st.composite
def _part(draw: st.DrawFn, decide: Callable[[Choices], T]) -> T:
    return decide(Choices(draw))


class SeededChoices(Choices):
    """Decisions that depend on a random number generator alone.

    Hypothesis also draws integers, floats and texts that stand in the modules of the user, whatever these are about.
    """

    __slots__ = ("_random",)

    def __init__(self, random: Random | None) -> None:
        """Take what decides; None for the first alternative in each case."""
        self._random = random

    def below(self, count: int) -> int:
        """An integer from 0 to ``count - 1``."""
        return self._random.randrange(count) if self._random is not None and count > 1 else 0

    def part(self, decide: Callable[[Choices], T]) -> T:
        """Return what ``decide`` makes of further decisions."""
        return decide(self)


class Drawing(Protocol):
    """What rows of the grammar see of the program that is being written."""

    choices: Choices
    """Decides."""
    constants: tuple[float | str, ...]
    """Arguments that are to be frequent."""

    @property
    def sizes(self) -> Sequence[int]:
        """Return the sizes of the dimensions of the latest value."""
        ...


MODULE = "module "
"""How the spelling of a module outside torch.nn begins."""


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor that is made because no value of the program fits, or now and then for variety."""

    shape: tuple[int, ...]
    """Its size."""
    dtype: torch.dtype = torch.float32
    """Of its elements."""
    limit: int = 4
    """Integers are below it."""
    kind: str = ""
    """``"buffer"`` if it has to be one; empty: an input, a parameter or a buffer."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Which values an operation can take in one place."""

    fits: Callable[[Any, list[Any]], bool]
    """Whether a value can stand there, given those in the places before it."""
    new_tensor: Callable[[Drawing, list[Any]], NewTensor | None]
    """A tensor that can, given those before it; None if there is none of a reasonable size."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that is not a value of the program, but a constant."""

    name: str
    """Its keyword, or the name of a hole in the spelling."""
    draw: Callable[[Drawing, list[Any]], Any]
    """Decides on it, given the operands; :data:`OMITTED` leaves it out."""
    one_in: int = 1
    """It is away from its default in one of so many examples; 1: always given."""
    positional: bool = False
    """Whether it is written without its keyword."""
    leading: bool = False
    """Whether it may be, where what precedes it is written so too."""


class _Omitted:
    """The type of :data:`OMITTED`."""


OMITTED = _Omitted()
"""What an argument's ``draw`` returns to have it left out."""


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A constant that is written otherwise than its ``repr``."""

    text: str
    """How it is written."""
    value: Any
    """What it is while the program is drawn."""

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Production:
    """A row of the grammar."""

    spellings: tuple[str, ...]
    """Ways to write it: ``"torch.add"``, ``".add"`` (a method), ``"nn.ReLU"`` (a module), or an expression or
    statement with holes, ``"{0} + {1}"``, ``"{0}.permute({dims})"``, ``"{0} += {1}"``; ``{*}``: where arguments go,
    ``*{dims}``: the numbers apart."""
    operands: tuple[Operand, ...]
    """The values it takes."""
    arguments: tuple[Argument, ...] = ()
    """The constants it takes."""
    tags: frozenset[str] = frozenset()
    """What a program with it is said to contain."""
    weight: int = 1
    """How often it is chosen, relative to the others of its family."""
    call: str = "{module}({0})"
    """How a module is called, for spellings that begin with ``nn.``."""
    imports: str = ""
    """A module that the spelling needs, beside torch and math."""


def row(spellings: str, *parts: Operand | Argument | frozenset[str], **options: Any) -> Production:
    """Make a row of its spellings, with semicolons between them, and of its operands, arguments and tags in turn.

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
    """Return what stands between the brackets of a subscript.

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
    """Return keyword arguments as they stand in a call.

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
    """Return whether a template has no value: a check, or a write to its first operand by an assignment."""
    if template.startswith(("assert ", "if ", "torch._assert(")):
        return True
    return _WRITE.match(template) is not None and " == " not in template


def leading(template: str, options: dict[str, Any], keywords: tuple[Argument, ...]) -> tuple[str, ...]:
    """Return the names of the arguments that a template takes by keyword, but could take in their places.

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
    """Return the text of a template: operands by their names, arguments in their holes, the others by keyword.

    Those that are ``unnamed`` are written without it, in their places.
    """
    holes = set(_HOLE.findall(template))
    given = [part for part in keywords if part.name in options and part.name not in holes]
    positional = [spell(options[part.name]) for part in given if part.positional or part.name in unnamed]
    rest = {part.name: options[part.name] for part in given if not part.positional and part.name not in unnamed}

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
    """Return a function that does what a template says: of the operands, and of the arguments by name."""

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
"""What templates and sources may use by name."""
exec("import math\nimport operator\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn", NAMESPACE)

"""Reasons why a pattern does not match where it nearly does, in sentences that name the user's lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fx.errors import with_article
from fx.matcher.occurrences import InternalMatch, at
from fx.matcher.searched_program import attribute_value, is_call
from fx.matcher.unification import PatternMismatch
from fx.naming.printing import format_argument
from fx.naming.targets import qualified_name
from fx.node import Argument, Node, nodes_in
from fx.provenance import SourceLocation


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A place where a part of a pattern matched."""

    node: Node
    """The node of the program where the search for the pattern started."""
    matched: int
    """The number of operations of the pattern that matched."""
    reason: str
    """The obstacle for the rest, as a sentence."""

    @property
    def where(self) -> SourceLocation | None:
        """The user's line of ``node``."""
        return self.node.source

    def __str__(self) -> str:
        return f"at `%{self.node}`{_in_parentheses(self.node)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The matches of a pattern, and the places where it nearly matches, with the obstacles."""

    matches: tuple[InternalMatch, ...]
    """The matches that a rewrite would replace, in order."""
    near_misses: tuple[NearMiss, ...]
    """The places where it nearly matches, in order."""
    nearest: NearMiss | None = None
    """If there is no match: the place where most operations of the pattern match; None if none of them occurs."""
    operations: tuple[str, ...] = ()
    """The names of the pattern's operations, in order."""

    @property
    def obstacle(self) -> str | None:
        """The first failed condition at the nearest place, in a sentence; None if the pattern matches."""
        if self.matches:
            return None
        if self.nearest is None:
            return f"the program has no {' and no '.join(dict.fromkeys(self.operations))}"
        return f"{self.nearest} ({self.nearest.matched} of {len(self.operations)} operations match)"

    def __str__(self) -> str:
        lines = [_count(len(self.matches), "match", "matches")]
        for match in self.matches:
            lines.append("  " + ", ".join(f"`%{node}`{_in_parentheses(node)}" for node in match.returning_nodes))
        lines.append(_count(len(self.near_misses), "near miss", "near misses"))
        lines += [f"  {miss}" for miss in self.near_misses]
        return "\n".join(lines)


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _in_parentheses(node: Node) -> str:
    return f" ({node.source.place})" if node.source is not None else ""


class Wording:
    """The words for one mismatch, with the original nodes of pattern and program for the canonical ones."""

    def __init__(
        self, mismatch: PatternMismatch, in_pattern: Mapping[Node, Node], in_program: Mapping[Node, Node]
    ) -> None:
        self.mismatch = mismatch
        self.in_pattern = in_pattern
        self.in_program = in_program

    def sentence(self) -> str:
        """Return the sentence for the user."""
        return getattr(self, f"_{self.mismatch.kind}")()

    def _there(self, node: Node) -> Node:
        return self.in_program.get(node, node)

    def _here(self) -> str:
        """Return the words for the node of the program whose arguments were compared."""
        site = self.mismatch.site
        return "it" if site is None else f"`%{self._there(site[1])}`"

    def _label(self) -> str:
        label = self.mismatch.label
        return f"{label}=" if isinstance(label, str) else ""

    def _place(self) -> str:
        label = self.mismatch.label
        return f" as argument {label + 1}" if isinstance(label, int) else ""

    def _shown(self, argument: Argument, nodes: Mapping[Node, Node]) -> str:
        if isinstance(argument, Node):
            return f"`%{nodes.get(argument, argument)}`"
        return format_argument(argument)

    def _kind(self) -> str:
        pattern, program, site = self.mismatch.pattern, self.mismatch.program, self.mismatch.site
        if site is None:
            return f"it is {called(program)}, the pattern has {called(pattern)}"
        fed = self.in_pattern.get(site[0], site[0])
        is_first = self.mismatch.label in (0, "input", "self", None)
        argument = "" if is_first else f" {self._argument_name()}"
        return f"the pattern's `%{fed}` is fed{argument} by {called(pattern)}, here by {called(program)}{self._line()}"

    def _line(self) -> str:
        site = self.mismatch.site
        return "" if site is None else at(self._there(site[1]))

    def _argument_name(self) -> str:
        label = self.mismatch.label
        return f"argument {label + 1}" if isinstance(label, int) else f"`{label}`"

    def _number(self) -> str:
        original = self.in_pattern.get(self.mismatch.pattern, self.mismatch.pattern)
        return f"it is arithmetic on numbers, the pattern's {called(original)} takes tensors{self._line()}"

    def _constant(self) -> str:
        ours, theirs = self._compared()
        label, where = self._label(), self._place()
        return (
            f"{self._here()} has {label}{self._shown(theirs, self.in_program)}{where} where the pattern has "
            f"{label}{self._shown(ours, self.in_pattern)}{self._line()}"
        )

    def _compared(self) -> tuple[Argument, Argument]:
        """Return the two values that differ: the whole arguments if these are tuples of constants, such as strides."""
        site, label = self.mismatch.site, self.mismatch.label
        if site is not None and label is not None:
            ours, theirs = ((node.kwargs[label] if isinstance(label, str) else node.args[label]) for node in site)
            if isinstance(ours, tuple) and isinstance(theirs, tuple) and not nodes_in((ours, theirs)):
                return ours, theirs
        return self.mismatch.pattern, self.mismatch.program

    def _arguments(self) -> str:
        return (
            f"{self._here()} is called with {_arguments(self.mismatch.program)}, "
            f"the pattern's with {_arguments(self.mismatch.pattern)}{self._line()}"
        )

    def _settings(self) -> str:
        ours, theirs = (_module(node) for node in (self.mismatch.pattern, self.mismatch.program))
        return f"{self._here()} calls {theirs}, the pattern has {ours}{self._line()}"

    def _attribute(self) -> str:
        return f"{self._here()} uses another value of the constant `{_target(self.mismatch.pattern)}`{self._line()}"

    def _size(self) -> str:
        ours, theirs = self.mismatch.pattern, self.mismatch.program
        name, (expected, actual) = _target(ours).rpartition(".")[2], (_sizes(node) for node in (ours, theirs))
        return (
            f"{self._here()} has {with_article(name)} of {actual}, the pattern's layer one of {expected}{self._line()}"
        )

    def _input(self) -> str:
        name = _target(self.mismatch.pattern)
        actual = self._shown(self.mismatch.program, self.in_program)
        return f"the pattern uses `{name}` more than once, and {self._here()} has {actual}, another value{self._line()}"

    def _twice(self) -> str:
        value = self._shown(self.mismatch.program, self.in_program)
        return f"{value} would be two different operations of the pattern, or one of its operations two values"

    def _taken(self) -> str:
        return f"{self._shown(self.mismatch.program, self.in_program)} belongs to another match, which comes first"

    def _absent(self) -> str:
        ours = called(self.mismatch.pattern)
        if self.mismatch.program is None:
            return f"there is no further {ours}"
        return f"{self._shown(self.mismatch.program, self.in_program)} is not used by {ours}"


def called(argument: Argument) -> str:
    """Return a name for the operation of a value."""
    if not isinstance(argument, Node):
        return f"the constant {format_argument(argument)}"
    if argument.op == "placeholder":
        return f"the input `{argument.target}`"
    if argument.op == "get_attr":
        return f"the attribute `{argument.target}`"
    if argument.op == "call_module":
        return type(attribute_value(argument)).__name__
    if isinstance(argument.target, str):
        return argument.target
    return qualified_name(argument.target).rpartition(".")[2]


def _arguments(node: Any) -> str:
    names = [*(f"argument {index + 1}" for index in range(len(node.args))), *node.kwargs]
    return ", ".join(names) or "no arguments"


def _module(node: Any) -> str:
    module = attribute_value(node)
    mode = "training" if module.training else "evaluation"
    return f"`{type(module).__name__}({module.extra_repr()})` in {mode} mode"


def _sizes(node: Any) -> str:
    return "x".join(map(str, attribute_value(node).shape)) or "a single number"


def _target(node: Any) -> str:
    return str(node.target) if isinstance(node, Node) and not is_call(node) else str(node)

"""The search for a pattern from one node of a program: every way to unify the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.nn.parameter import is_lazy

from fx.container_kinds import held_kind
from fx.matcher.patterns import Pattern, PatternStage, Wildcard
from fx.matcher.searched_program import SearchedProgram, attribute_value, is_call, kind_of, same_settings
from fx.naming.targets import torch_path
from fx.node import Argument, Node, nodes_in
from fx.operators.families import find_operator

_SEQUENCES = (str, bytes, tuple, list)
_DISTINGUISHES_SEQUENCES = frozenset({"__getitem__", "__setitem__", "index_put", "index_put_"})
"""Functions of torch for which a list differs from a tuple."""


@dataclass(frozen=True, slots=True)
class PatternMismatch:
    """The reason why a pattern does not match at one point of the search."""

    kind: str
    """The kind of mismatch:

    - ``kind``: another operation;
    - ``constant``, ``arguments``, ``settings``, ``size``, ``attribute``: these differ;
    - ``number``: the program computes with numbers there;
    - ``input``: one input of the pattern would be two values;
    - ``twice``: one operation would be two;
    - ``taken``: the operation belongs to another match;
    - ``absent``: there is no such operation.
    """
    pattern: Argument
    """The pattern's value: a canonical node or a constant."""
    program: Argument
    """The program's value."""
    site: tuple[Node, Node] | None
    """The canonical nodes, of pattern and program, with these arguments."""
    label: str | int | None
    """The position or name of the argument."""
    depth: int
    """The number of operations of the pattern that matched before."""


_Agenda: TypeAlias = "tuple[Argument, Argument, tuple[Node, Node] | None, str | int | None, _Agenda] | None"
"""A linked list of comparisons to do: values of pattern and program, the nodes with these arguments, and the rest."""


class Unifier:
    """The search for a pattern from given nodes. After each solution, its public attributes hold the solution."""

    def __init__(
        self, pattern: Pattern, subject: SearchedProgram, ignore_literals: bool = False, node_name_match: str = ""
    ) -> None:
        """Prepare for any number of searches; the options are those of ``Matcher``."""
        self.pattern = pattern
        self.subject = subject
        self.ignore_literals = ignore_literals
        self.node_name_match = node_name_match
        self.claimed: set[Node] = set()
        """Canonical nodes that belong to other matches."""
        self.observer: Callable[[PatternMismatch], object] | None = None
        """A function called with every mismatch. With an observer, values with other users are no mismatch yet."""
        self.bound: dict[Node, Argument] = {}
        """The canonical nodes of the pattern mapped to the program's values."""
        self.call_map: dict[Node, Node] = {}
        """The matched canonical calls of the program mapped to those of the pattern."""
        self.literals: dict[str, Argument] = {}
        """The constants that matched named wildcards."""
        self._kinds = {node: kind_of(node) for node in pattern.calls}
        self._inner = {node: len(node.users) for node in pattern.inner}
        self._attributes: dict[int, Node] = {}
        self._agenda: _Agenda = None
        self._stage = 1
        self._free: dict[int, int] = {}  # for each list of candidates, the index of the first without a match
        # Several ways may match: operands in either order, any user of a value. The trail records the bindings of each
        # way, so that the search can undo them back to a choice and try another way, without copying the tables.
        self._trail: list[tuple[dict[Any, Any], Any]] = []  # tables and the keys added to them, in order
        self._choices: list[tuple[int, int, Iterator[_Agenda]]] = []  # length of the trail, stage, and ways left

    def begin(self) -> None:
        """Forget the matches so far."""
        self.claimed = set()
        self._free.clear()

    def calls_of(self, root: Node) -> Sequence[Node]:
        """Return the calls of the program that may match a call of the pattern, in order."""
        return self.subject.calls(self._kinds[root])

    def anchors(self) -> list[Node]:
        """Return the nodes of the program to search from, in order."""
        root = self.pattern.stages[0].root
        calls = self.subject.calls(self._kinds[root])
        if not self.node_name_match:
            return list(calls)
        named = [node for node in self.subject.position if is_call(node) and self._is_named(node)]
        return sorted({*calls, *named}, key=self.subject.position.__getitem__)

    def solutions(self, anchor: Node, root: Node | None = None) -> Iterator[None]:
        """Search from ``anchor``; after each step, the attributes hold another solution.

        With ``root``, a call of the pattern, the search is for this call and its inputs alone.
        """
        self._undo(0)
        self._choices.clear()
        stages = self.pattern.stages if root is None else [PatternStage(root, None)]
        agenda = self._start(stages[0], anchor)
        self._stage = 1
        while agenda is not None:
            if self._compare_all(agenda):
                if self._stage == len(stages):
                    yield
                else:
                    ways = self._candidates(stages[self._stage])
                    self._choices.append((len(self._trail), self._stage + 1, ways))
            agenda = self._resume()

    def _start(self, stage: PatternStage, node: Node) -> _Agenda:
        return (stage.root, node, None, None, None)

    def _candidates(self, stage: PatternStage) -> Iterator[_Agenda]:
        """Return ways to continue with ``stage``: the users of its pivot's value, except those in other matches."""
        pivot = None if stage.pivot is None else self.bound[stage.pivot]
        kind = self._kinds[stage.root]
        nodes = self.subject.users(pivot, kind) if isinstance(pivot, Node) else self.subject.calls(kind)
        start = self._free.get(id(nodes), 0)
        while self.observer is None and start < len(nodes) and nodes[start] in self.claimed:
            start += 1
        self._free[id(nodes)] = start
        if all(node in self.call_map for node in nodes[start : start + len(self.call_map) + 1]):
            self._fail("absent", stage.root, pivot, None, None)
        free = (nodes[index] for index in range(start, len(nodes)))
        return (self._start(stage, node) for node in free if node not in self.call_map)

    def _resume(self) -> _Agenda:
        """Go back to the last choice with another way, and return it; ``None`` if there is none."""
        while self._choices:
            length, self._stage, ways = self._choices[-1]
            self._undo(length)
            if (agenda := next(ways, None)) is not None:
                return agenda
            self._choices.pop()
        return None

    def _undo(self, length: int) -> None:
        while len(self._trail) > length:
            table, key = self._trail.pop()
            del table[key]

    def _bind(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        table[key] = value
        self._trail.append((table, key))

    def _fail(self, kind: str, pattern: Argument, program: Argument, site: Any, label: Any) -> bool:
        if self.observer is not None:
            self.observer(PatternMismatch(kind, pattern, program, site, label, len(self.call_map)))
        return False

    # Comparing.

    def _compare_all(self, agenda: _Agenda) -> bool:
        self._agenda = agenda
        while self._agenda is not None:
            pattern, program, site, label, self._agenda = self._agenda
            if not self._compare(pattern, program, site, label):
                return False
        return True

    def _compare(self, pattern: Argument, program: Argument, site: Any, label: Any) -> bool:
        """Compare two arguments; put their parts on the agenda."""
        if isinstance(pattern, Node):
            if pattern.op == "placeholder":
                return self._compare_input(pattern, program, site, label)
            if not isinstance(program, Node):
                return self._fail("kind", pattern, program, site, label)
            if pattern.op == "get_attr":
                return self._compare_fetch(pattern, program, site, label)
            return self._compare_call(pattern, program, site, label)
        if type(pattern) is Wildcard:
            return self._compare_wildcard(pattern, program, site, label)
        if isinstance(program, Node):
            return self._fail("constant", pattern, program, site, label)
        if held_kind(pattern) is not None:
            return self._compare_container(pattern, program, site, label)
        if same_constant(pattern, program) or (self.ignore_literals and not nodes_in(program)):
            return True
        return self._fail("constant", pattern, program, site, label)

    def _compare_input(self, pattern: Node, program: Argument, site: Any, label: Any) -> bool:
        if pattern not in self.bound:
            self._bind(self.bound, pattern, program)
            return True
        return self._same(self.bound[pattern], program) or self._fail("input", pattern, program, site, label)

    def _compare_fetch(self, pattern: Node, program: Node, site: Any, label: Any) -> bool:
        """Compare fetches: a parameter of the pattern matches any tensor, a layer's parameter any of the same size."""
        if program.op != "get_attr":
            return self._fail("kind", pattern, program, site, label)
        expected, actual = attribute_value(pattern), self.subject.attribute(program)
        if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
            if str(pattern.target) in self.pattern.constants and not same_constant(expected, actual):
                return self._fail("attribute", pattern, program, site, label)
            if self.pattern.is_of_layer(pattern) and not _same_size(expected, actual):
                return self._fail("size", pattern, program, site, label)
        elif expected is not None and not same_constant(expected, actual):
            return self._fail("attribute", pattern, program, site, label)
        # Tied parameters of a pattern are one tensor under two paths, and match one value of the program.
        key = id(expected) if expected is not None else hash(pattern.target)
        if key not in self._attributes:
            self._bind(self._attributes, key, program)
        elif not self.subject.same_value(self._attributes[key], program):
            return self._fail("input", pattern, program, site, label)
        if pattern not in self.bound:
            self._bind(self.bound, pattern, program)
        return True

    def _compare_call(self, pattern: Node, program: Node, site: Any, label: Any) -> bool:
        if pattern in self.bound:
            return self.bound[pattern] is program or self._fail("twice", pattern, program, site, label)
        named = site is None and self._is_named(program)
        if not is_call(program) or not (named or kind_of(program) == self._kinds[pattern]):
            return self._fail("kind", pattern, program, site, label)
        if program in self.subject.numbers and pattern in self.pattern.of_tensors:
            return self._fail("number", pattern, program, site, label)
        if program in self.call_map:
            return self._fail("twice", pattern, program, site, label)
        if program in self.claimed:
            return self._fail("taken", pattern, program, site, label)
        if self.observer is None and len(program.users) != self._inner.get(pattern, len(program.users)):
            return False  # it has other users
        self._bind(self.bound, pattern, program)
        self._bind(self.call_map, program, pattern)
        return self._compare_arguments(pattern, program)

    def _is_named(self, node: Node) -> bool:
        return bool(self.node_name_match) and self.node_name_match in self.subject.stands_for[node].name

    def _compare_arguments(self, pattern: Node, program: Node) -> bool:
        site = (pattern, program)
        if kind_of(program) != self._kinds[pattern]:
            return self._compare_operands(site)
        if pattern.op == "call_module" and not same_settings(attribute_value(pattern), attribute_value(program)):
            return self._fail("settings", pattern, program, site, None)
        if len(pattern.args) != len(program.args) or pattern.kwargs.keys() != program.kwargs.keys():
            return self._fail("arguments", pattern, program, site, None)
        expected: list[tuple[str | int, Argument]] = [*enumerate(pattern.args), *pattern.kwargs.items()]
        actual: list[Argument] = [*program.args, *(program.kwargs[key] for key in pattern.kwargs)]
        rest = self._agenda
        self._agenda = _put(site, expected, actual, rest)
        if _commutes(pattern) and actual[0] is not actual[1] and not any(map(_is_sequence, actual[:2])):
            swapped = [actual[1], actual[0], *actual[2:]]
            way = _put(site, expected, swapped, rest)
            self._choices.append((len(self._trail), self._stage, iter((way,))))
        return True

    def _compare_operands(self, site: tuple[Node, Node]) -> bool:
        """Compare the computed arguments of two different operations; ignore their other arguments."""
        expected, actual = (nodes_in([node.args, node.kwargs]) for node in site)
        if len(expected) != len(actual):
            return self._fail("arguments", site[0], site[1], site, None)
        self._agenda = _put(site, list(enumerate(expected)), actual, self._agenda)
        return True

    def _compare_wildcard(self, pattern: Wildcard, program: Argument, site: Any, label: Any) -> bool:
        if nodes_in(program):
            return self._fail("constant", pattern, program, site, label)
        if not pattern.name:
            return True
        if pattern.name not in self.literals:
            self._bind(self.literals, pattern.name, program)
            return True
        bound = self.literals[pattern.name]
        return self._same(bound, program) or self._fail("constant", bound, program, site, label)

    def _compare_container(self, pattern: Any, program: Any, site: Any, label: Any) -> bool:
        if _shape_of(pattern, site) != _shape_of(program, site):
            ignored = self.ignore_literals and not nodes_in(pattern) and not nodes_in(program)
            return ignored or self._fail("constant", pattern, program, site, label)
        rest = self._agenda
        for expected, actual in reversed(list(zip(_parts(pattern), _parts(program), strict=True))):
            rest = (expected, actual, site, label, rest)
        self._agenda = rest
        return True

    def _same(self, left: Argument, right: Argument) -> bool:
        """Return whether two arguments of the program have the same value."""
        pending = [(left, right)]
        while pending:
            left, right = pending.pop()
            if isinstance(left, Node) or isinstance(right, Node):
                if not (isinstance(left, Node) and isinstance(right, Node) and self.subject.same_value(left, right)):
                    return False
            elif held_kind(left) is not None:
                if _shape_of(left, None) != _shape_of(right, None):
                    return False
                pending.extend(zip(_parts(left), _parts(right), strict=True))
            elif not same_constant(left, right):
                return False
        return True


def _put(site: tuple[Node, Node], expected: list[tuple[str | int, Argument]], actual: Any, rest: _Agenda) -> _Agenda:
    """Return an agenda that compares these arguments, the first one first."""
    for index in range(len(expected) - 1, -1, -1):
        label, value = expected[index]
        rest = (value, actual[index], site, label, rest)
    return rest


def _commutes(node: Node) -> bool:
    """Return whether its first two operands may be swapped."""
    row = find_operator(node.target)
    return (
        row is not None and row.commutes and len(node.args) + len(node.kwargs) >= 2 and node.kwargs.get("alpha", 1) == 1
    )


def _is_sequence(operand: Argument) -> bool:
    """Return whether an operand is a string, tuple or list, which ``+`` joins in order."""
    if isinstance(operand, Node):
        return operand.target in ("size", torch.Tensor.size, tuple, list) and len(operand.args) == 1
    return isinstance(operand, _SEQUENCES)


def _shape_of(value: Any, site: tuple[Node, Node] | None) -> Any:
    """Return the key of a container: containers with equal keys are compared part by part."""
    kind = held_kind(value)
    if kind is None:
        return type(value)
    if isinstance(value, (tuple, list)) and site is not None and _takes_any_sequence(site[0]):
        return list, len(value)
    return kind.shape(value)


def _takes_any_sequence(node: Node) -> bool:
    """Return whether the called function takes tuples for lists: functions of torch do, except for indexing."""
    target = node.target
    if isinstance(target, str) or torch_path(target) is None:
        return False
    return getattr(target, "__name__", "") not in _DISTINGUISHES_SEQUENCES


def _parts(container: Any) -> Sequence[Argument]:
    kind = held_kind(container)
    assert kind is not None
    return kind.parts(container)


def same_constant(left: Any, right: Any) -> bool:
    """Return whether two constants are equal in type, in value and in the sign of zero; NaN equals NaN."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, (float, complex)):
        return repr(left) == repr(right)
    if isinstance(left, torch.Tensor):
        return _same_tensor(left, right)
    return bool(left == right)


def _same_size(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors have the same size; parameters of lazy layers have none yet."""
    return not (is_lazy(left) or is_lazy(right)) and left.shape == right.shape


def _same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape or left.device != right.device or left.is_meta:
        return False
    same = (left == right) | ((left != left) & (right != right))
    return bool(same.all())

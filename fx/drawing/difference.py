"""``ProgramDifference``: what passes did with the nodes of a program, as sets of names and as text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fx.drawing.drawn_program import DrawnNode, DrawnProgram, shortened
from fx.drawing.picture import MARKS

_WIDTH = 80


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """What lies between two states of a program, by names of nodes: before the passes, or after them for new nodes.

    It prints as text: each node that is not as it was with a sign, ``-`` removed, ``+`` added, ``~`` changed and ``^``
    moved, and what became of what.
    """

    name: str
    """The pass, or the passes joined by commas."""
    edits: tuple[str, ...]
    """The edits that they named, in order."""
    seconds: float
    """How long they took."""
    removed: tuple[str, ...]
    """Nodes that are gone."""
    added: tuple[str, ...]
    """Nodes that are new."""
    changed: tuple[str, ...]
    """Nodes that call something else, or with other arguments or weights, or have another name: their names before.
    Not those that only read what does the work of what they read before."""
    moved: tuple[str, ...]
    """Nodes that run earlier or later than others that stayed; as few as explain the new order."""
    one_to_many: Mapping[str, tuple[str, ...]]
    """Nodes whose work several do now."""
    many_to_one: Mapping[str, tuple[str, ...]]
    """Nodes, by their names now, that do the work of several."""
    counterparts: tuple[tuple[str, str], ...]
    """Each node before with each node that does its work now; both names."""
    before: DrawnProgram
    """The program before."""
    after: DrawnProgram
    """The program after."""
    kept: Mapping[str, str]
    """The name now of each node that is still there, by the name before."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is different."""
        return not (self.removed or self.added or self.changed or self.moved)

    def marks(self) -> tuple[dict[str, str], dict[str, str]]:
        """The mark of each node before, and of each after, by its name then; no entry for those left alone."""
        before = dict.fromkeys(self.moved, "moved")
        before.update(dict.fromkeys(self.changed, "changed"))
        after = {self.kept[name]: mark for name, mark in before.items()}
        before.update(dict.fromkeys(self.removed, "removed"))
        after.update(dict.fromkeys(self.added, "added"))
        return before, after

    def summary(self) -> str:
        """One line: the pass, how many nodes there were and are, and how many are not as they were."""
        counts = [f"{len(names)} {what}" for what in MARKS if (names := getattr(self, what))]
        nodes = f"{len(self.before.nodes)} -> {len(self.after.nodes)} nodes"
        return f"{self.name}: {nodes}, {', '.join(counts) or 'nothing is different'}"

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(made: ProgramDifference) -> Iterator[str]:
    yield shortened(made.summary(), _WIDTH)
    marks, marks_after = made.marks()
    was = {node.name: node for node in made.before.nodes}
    name_before = {now: name for name, now in made.kept.items()}
    same = 0
    for is_new, node in _merged(made):
        mark = (marks_after if is_new else marks).get(node.name, "")
        if not mark:
            same += 1
            continue
        yield from _skipped(same)
        same = 0
        yield _node_line(MARKS[mark], node)
        if mark == "changed":
            old = was[name_before[node.name]]
            if _call(old) != _call(node):
                yield _cut(f"    was %{old.name} = {_call(old)}")
    yield from _skipped(same)
    for name, names in made.one_to_many.items():
        yield _cut(f"one to many: %{name} -> {', '.join(f'%{one}' for one in names)}")
    for name, names in made.many_to_one.items():
        yield _cut(f"many to one: {', '.join(f'%{one}' for one in names)} -> %{name}")


def _merged(made: ProgramDifference) -> Iterator[tuple[bool, DrawnNode]]:
    """All nodes in order: those that are gone where they were, among those that are there."""
    gone = set(made.removed)
    previous, after_what = "", dict[str, list[DrawnNode]]()
    for node in made.before.nodes:
        if node.name in gone:
            after_what.setdefault(previous, []).append(node)
        else:
            previous = made.kept[node.name]
    yield from ((False, node) for node in after_what.get("", ()))
    for node in made.after.nodes:
        yield True, node
        yield from ((False, other) for other in after_what.get(node.name, ()))


def _skipped(count: int) -> Iterator[str]:
    if count:
        yield f"  … {count} as {'it was' if count == 1 else 'they were'}"


def _call(node: DrawnNode) -> str:
    settings = f" {node.title}({node.settings})" if node.op == "call_module" else ""
    return f"{node.op}[{node.target}]({node.arguments}){settings}"


def _node_line(sign: str, node: DrawnNode) -> str:
    text = f"{sign} %{node.name} = {_call(node)}"
    room = _WIDTH - len(node.place) - 2
    return f"{_cut(text, room).ljust(room)}  {node.place}".rstrip() if node.place else _cut(text)


def _cut(text: str, width: int = _WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def longest_increasing(values: Sequence[int]) -> set[int]:
    """The places of as many values as possible that grow from left to right (Schensted, 1961).

    >>> sorted(longest_increasing([3, 0, 1, 2]))
    [1, 2, 3]
    """
    tails: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for place, value in enumerate(values):
        length = bisect_left(tails, value)
        before.append(places[length - 1] if length else -1)
        tails[length : length + 1] = [value]
        places[length : length + 1] = [place]
    found: set[int] = set()
    place = places[-1] if places else -1
    while place >= 0:
        found.add(place)
        place = before[place]
    return found

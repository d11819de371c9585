"""``ProgramDifference``: the edits of passes to the nodes of a program, as sets of names and as text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fx.drawing.drawn_program import DrawnNode, DrawnProgram, shortened
from fx.drawing.picture import MARKS

_WIDTH = 80


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """The difference between two states of a program, by names of nodes: their old names, or new ones for new nodes.

    It prints as text. Each edited node has a line with a sign: ``-`` removed, ``+`` added, ``~`` changed, ``^`` moved.
    The last lines are the replacements of one node by many and of many by one.
    """

    name: str
    """The pass, or the passes joined by commas."""
    edits: tuple[str, ...]
    """The edits that the passes reported, in order."""
    seconds: float
    """The time that the passes took, in seconds."""
    removed: tuple[str, ...]
    """The removed nodes."""
    added: tuple[str, ...]
    """The new nodes."""
    changed: tuple[str, ...]
    """Nodes with another target, other arguments or weights, or another name, by their old names. A node does not count
    if it only reads the replacement of an old input."""
    moved: tuple[str, ...]
    """Nodes that run earlier or later than others that stayed; the fewest that explain the new order."""
    one_to_many: Mapping[str, tuple[str, ...]]
    """Nodes whose work several nodes do now."""
    many_to_one: Mapping[str, tuple[str, ...]]
    """Nodes, by their new names, that do the work of several."""
    counterparts: tuple[tuple[str, str], ...]
    """Pairs of an old node and a new node that does its work; both names."""
    before: DrawnProgram
    """The program before."""
    after: DrawnProgram
    """The program after."""
    kept: Mapping[str, str]
    """The new name of each surviving node, by its old name."""

    def marks(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the marks of the old nodes and of the new nodes, by their names; unedited nodes have none."""
        before = dict.fromkeys(self.moved, "moved")
        before.update(dict.fromkeys(self.changed, "changed"))
        after = {self.kept[name]: mark for name, mark in before.items()}
        before.update(dict.fromkeys(self.removed, "removed"))
        after.update(dict.fromkeys(self.added, "added"))
        return before, after

    def summary(self) -> str:
        """Return one line: the pass, the number of nodes before and after, and the number of edited nodes."""
        counts = [f"{len(names)} {what}" for what in MARKS if (names := getattr(self, what))]
        nodes = f"{len(self.before.nodes)} -> {len(self.after.nodes)} nodes"
        return f"{self.name}: {nodes}, {', '.join(counts) or 'nothing is different'}"

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(difference: ProgramDifference) -> Iterator[str]:
    yield shortened(difference.summary(), _WIDTH)
    marks, marks_after = difference.marks()
    was = {node.name: node for node in difference.before.nodes}
    name_before = {now: name for name, now in difference.kept.items()}
    same = 0
    for is_new, node in _merged(difference):
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
    for name, names in difference.one_to_many.items():
        yield _cut(f"one to many: %{name} -> {', '.join(f'%{node_name}' for node_name in names)}")
    for name, names in difference.many_to_one.items():
        yield _cut(f"many to one: {', '.join(f'%{node_name}' for node_name in names)} -> %{name}")


def _merged(difference: ProgramDifference) -> Iterator[tuple[bool, DrawnNode]]:
    """Yield all nodes in order, removed ones at their old places; true marks nodes of the new state."""
    gone = set(difference.removed)
    previous, after_what = "", dict[str, list[DrawnNode]]()
    for node in difference.before.nodes:
        if node.name in gone:
            after_what.setdefault(previous, []).append(node)
        else:
            previous = difference.kept[node.name]
    yield from ((False, node) for node in after_what.get("", ()))
    for node in difference.after.nodes:
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
    """Return the places of a longest increasing subsequence of the values (Schensted, 1961).

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
    chosen: set[int] = set()
    place = places[-1] if places else -1
    while place >= 0:
        chosen.add(place)
        place = before[place]
    return chosen

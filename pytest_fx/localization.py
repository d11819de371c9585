"""Which node goes wrong: a transformed program beside the original, value by value, in one walk over both.

Nodes are matched through their origins: a node that does the work of several is compared with the last of them. The
error of each value is split into what came in with its inputs and what was made here, by running the node a second
time on the inputs that it should have had. A value is kept only until the last node that needs it has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fx import Interpreter, Node
from fx.effects import effect_of
from fx.printing import describe
from fx.provenance import SourceLocation

from .capture import GraphModule
from .equality import Difference, Leaf, pair_leaves, worst_difference
from .evaluation import Arguments, default_dtype, positional
from .structure import map_tensors

Limit = Callable[[Leaf, float], torch.Tensor]
"""From a value beside its reference, and eager's own largest error there, to the error that each element may have."""


@dataclass(frozen=True, slots=True)
class NodeError:
    """What one node of the transformed program makes of its inputs."""

    node: str
    """The node as printed."""
    original: str
    """Name of the node of the original whose value it should have."""
    origins: frozenset[str]
    """Names of all nodes of the original whose work it does."""
    where: SourceLocation | None
    """The user's line that the node comes from."""
    inherited: float
    """Largest change of its value that wrong inputs cause; 0 where all inputs are right."""
    made: float
    """Largest error of its value when it is given the right inputs."""
    eager: float | None
    """Largest error that eager makes there in the working dtype, given the right inputs; None if that is not known."""
    scale: float
    """Largest magnitude of the value."""
    difference: Difference | None = None
    """The worst element, where the error made here is larger than allowed."""
    mismatch: str | None = None
    """Why the values cannot be compared at all: another structure, shape or dtype."""

    @property
    def wrong(self) -> bool:
        """Whether more goes wrong here than is allowed."""
        return self.difference is not None or self.mismatch is not None

    def __str__(self) -> str:
        lines = [self.node]
        if self.where is not None:
            lines.append(f"  where  {self.where}")
        if self.mismatch is not None:
            lines.append(f"  why    {self.mismatch.replace('output', self.original, 1)}")
        if self.difference is not None:
            found = self.difference
            place = f"[{', '.join(map(str, found.index))}]" if found.index else ""
            lines.append(
                f"  value  {self.original}{found.path}{place} is {found.expected!r} in the original and "
                f"{found.actual!r} here, the worst of {found.count} wrong in {found.size} element(s)"
            )
        own = "" if self.eager is None else f", eager's own {self.eager:.2g}"
        lines.append(f"  error  made here {self.made:.2g}, inherited {self.inherited:.2g}{own}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Localization:
    """The errors of all nodes that could be compared, in the order of the transformed program."""

    errors: tuple[NodeError, ...]
    """One entry for each node that stands for one of the original."""

    @property
    def first_wrong(self) -> NodeError | None:
        """The first node that makes an error of its own; what is wrong behind it may be its doing."""
        return next((error for error in self.errors if error.wrong), None)

    @property
    def largest(self) -> NodeError | None:
        """The node that makes the largest error for the size of its value."""
        return max(self.errors, key=lambda error: error.made / (error.scale or 1.0), default=None)


def localize(
    original: GraphModule,
    transformed: GraphModule,
    arguments: Arguments,
    limit: Limit,
    eager: GraphModule | None = None,
) -> Localization:
    """Compare two programs node by node on one set of inputs, without changing either.

    Nodes that change state and those that draw random numbers are compared but not run a second time: an error of
    theirs counts as made there if their inputs are right.

    Args:
        original: the captured program before the pass, in float64 or in the dtype of ``transformed``.
        transformed: the program after it.
        arguments: the inputs, as the model takes them.
        limit: the largest error allowed, given a value and eager's own error there.
        eager: the captured program in the working dtype, for eager's own error.
    """
    with torch.no_grad():
        return Localization(tuple(_Walk(original, transformed, arguments, limit, eager).errors()))


class _Program(Interpreter):
    """One program that is run a node at a time."""

    def __init__(self, program: GraphModule, arguments: Arguments, dtype: torch.dtype) -> None:
        super().__init__(program)
        self.args_iter = iter(self.graph.process_inputs(*positional(program, arguments.copies(dtype))))
        self.dtype = dtype
        self.writes = any(_writes_input(node) for node in self.graph.nodes)

    def step(self, node: Node) -> Any:
        """Run ``node`` and return its value."""
        with default_dtype(self.dtype):
            value = self.env[node] = self.run_node(node)
        return value

    def forget(self, node: Node) -> None:
        """Let go of the values that nothing behind ``node`` needs."""
        for dead in self.user_to_last_uses.get(node, ()):
            del self.env[dead]

    def run_on(self, node: Node, inputs: dict[Node, Any]) -> Any:
        """The value of ``node`` on other inputs than the program's own, which stay as they are."""
        if _writes_input(node):
            inputs = {used: map_tensors(torch.clone, value) for used, value in inputs.items()}
        narrowed = {used: map_tensors(self._narrowed, value) for used, value in inputs.items()}
        own, self.env = self.env, narrowed
        try:
            with default_dtype(self.dtype):
                return self.run_node(node)
        finally:
            self.env = own

    def _narrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.dtype) if tensor.dtype == torch.float64 else tensor


class _Walk:
    """Both programs, and for each value of the transformed one the value that it should have."""

    def __init__(
        self,
        original: GraphModule,
        transformed: GraphModule,
        arguments: Arguments,
        limit: Limit,
        eager: GraphModule | None,
    ) -> None:
        self.limit = limit
        self.original = _Program(original, arguments, _dtype_of(original))
        self.transformed = _Program(transformed, arguments, _dtype_of(transformed))
        self.match = _Match(original, transformed)
        self.ahead = iter(original.graph.nodes)
        self.kept: dict[Node, tuple[Any, Any]] = {}
        """Values of the original that are awaited: as they were when computed, and as they may be written to since."""
        self.right: dict[Node, Any] = {}
        """The value that each node of the transformed program should have, as long as it is needed."""
        self.off: set[Node] = set()
        """Nodes of the transformed program whose value is not what it should be."""
        self.rounding = None if eager is None else _Rounding(self.original, eager, arguments, self.match)

    def errors(self) -> Iterator[NodeError]:
        """Run both programs to the end."""
        for node in self.transformed.graph.nodes:
            if node.op == "output":
                break
            value = self.transformed.step(node)
            again = self._again(node)
            partner = self.match.partners.get(node)
            if partner is None:
                self.right[node] = value if again is None else again[0]
                if again is None and self.off.intersection(node.all_input_nodes):
                    self.off.add(node)
            else:
                expected, self.right[node] = self._awaited(partner)
                yield self._compare(node, partner, expected, value, again)
            self.transformed.forget(node)
            for dead in self.transformed.user_to_last_uses.get(node, ()):
                del self.right[dead]

    def _again(self, node: Node) -> tuple[Any] | None:
        """The value of ``node`` on the right inputs, or None where running it twice would change something."""
        if node.op in ("placeholder", "get_attr") or not _repeats(node):
            return None
        return (self.transformed.run_on(node, {used: self.right[used] for used in node.all_input_nodes}),)

    def _awaited(self, partner: Node) -> tuple[Any, Any]:
        """Run the original up to ``partner`` and return its value."""
        while partner not in self.kept:
            node = next(self.ahead)
            value = self.original.step(node)
            if self.rounding is not None:
                self.rounding.step(node, value)
            self.original.forget(node)
            if node in self.match.awaited:
                written = self.original.writes
                self.kept[node] = (map_tensors(torch.clone, value) if written else value, value)
        return self.kept.pop(partner)

    def _compare(self, node: Node, partner: Node, expected: Any, value: Any, again: tuple[Any] | None) -> NodeError:
        same_dtype = self.transformed.dtype == self.original.dtype
        eager = None if self.rounding is None else self.rounding.errors.get(partner)
        inherited, own = 0.0, value
        if again is not None:
            inherited, own = _distance(again[0], value), again[0]
        elif self.off.intersection(node.all_input_nodes):
            inherited, own = _distance(expected, value), expected
        text, origins = describe(node), frozenset(node.origins or (partner.name,))
        pairs = pair_leaves(expected, own, same_dtype=same_dtype)
        if isinstance(pairs, str):
            self.off.add(node)
            return NodeError(text, partner.name, origins, node.source, inherited, 0.0, eager, 0.0, mismatch=pairs)
        made, scale, worst = 0.0, 0.0, None
        for leaf in pairs:
            errors, limits = leaf.errors, self.limit(leaf, eager or 0.0)
            made, scale = max(made, float(errors.max()) if errors.numel() else 0.0), max(scale, leaf.scale)
            worst = worst or worst_difference(leaf, errors > limits, errors, limits)
        if worst is not None or inherited > made:
            self.off.add(node)
        return NodeError(text, partner.name, origins, node.source, inherited, made, eager, scale, worst)


class _Match:
    """Which nodes of two programs should have the same value."""

    def __init__(self, original: GraphModule, transformed: GraphModule) -> None:
        by_name = {node.name: node for node in original.graph.nodes}
        positions = {node: position for position, node in enumerate(original.graph.nodes)}
        last: dict[Node, Node] = {}
        groups: dict[Node, Node] = {}
        for node in transformed.graph.nodes:
            found = [by_name[name] for name in node.origins or (node.name,) if name in by_name]
            if not found or node.op == "output":
                continue
            partner = max(found, key=positions.__getitem__)
            last[partner] = node  # of several nodes, what is computed last is what the others were computed for
            groups.update(dict.fromkeys(found, partner))
        self.partners = {node: partner for partner, node in last.items()}
        """For each node of the transformed program that has one: the node of the original with its value."""
        self.awaited = frozenset(last)
        """The nodes of the original that are some node's partner."""
        self.groups = groups
        """For nodes of the original whose work one node does together: the last of them."""


class _Rounding:
    """Eager's own error at each awaited node: what rounding in the working dtype does to right inputs."""

    def __init__(self, original: _Program, eager: GraphModule, arguments: Arguments, match: _Match) -> None:
        self.errors: dict[Node, float] = {}
        self._original = original
        self._eager = _Program(eager, arguments, _dtype_of(eager))
        self._nodes = {node.name: node for node in eager.graph.nodes}
        self._match = match
        self._inside: dict[Node, Any] = {}
        """Rounded values of nodes whose work one node does together with that of later ones."""

    def step(self, node: Node, expected: Any) -> None:
        """Round what ``node``, which was just run with the value ``expected``, makes of its inputs."""
        own = self._nodes.get(node.name)
        group = self._match.groups.get(node)
        if own is None or group is None:
            return
        if node.op == "placeholder":
            value = map_tensors(self._eager._narrowed, expected)
        elif node.op == "get_attr" or not _repeats(node):
            return
        else:
            value = self._eager.run_on(own, self._inputs(node, group))
        if group is not node:
            self._inside[node] = value
        if node in self._match.awaited:
            self.errors[node] = _distance(expected, value)
            for inner in [inner for inner in self._inside if self._match.groups[inner] is node]:
                del self._inside[inner]

    def _inputs(self, node: Node, group: Node) -> dict[Node, Any]:
        """The inputs of ``node`` by the nodes of the program in the working dtype."""
        inputs: dict[Node, Any] = {}
        for used in node.all_input_nodes:
            inside = self._match.groups.get(used) is group and used in self._inside
            inputs[self._nodes[used.name]] = self._inside[used] if inside else self._original.env[used]
        return inputs


def _repeats(node: Node) -> bool:
    """Whether running ``node`` a second time, on copies, changes nothing."""
    effect = effect_of(node)
    return effect is None or effect.kind == "check" or _writes_input(node)


def _writes_input(node: Node) -> bool:
    """Whether all that ``node`` writes to is a value that it is given."""
    effect = effect_of(node)
    if effect is None or effect.kind != "write" or effect.written is None:
        return False
    arguments: Any = node.args if isinstance(effect.written, int) else node.kwargs
    written = arguments[effect.written] if effect.written in arguments or isinstance(effect.written, int) else None
    return isinstance(written, Node) and written.op != "get_attr"


def _dtype_of(program: GraphModule) -> torch.dtype:
    tensors = (*program.parameters(), *program.buffers())
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float64)


def _distance(expected: Any, actual: Any) -> float:
    """The largest distance of two values, element by element; infinite where they cannot be compared."""
    pairs = pair_leaves(expected, actual, same_dtype=False)
    if isinstance(pairs, str):
        return float("inf")
    return max((float(leaf.errors.max()) for leaf in pairs if leaf.errors.numel()), default=0.0)

"""Which node goes wrong: a transformed program beside the original, value by value, in one walk over both.

Nodes are matched through their origins: a node that does the work of several is compared with the last of them. The
error of each value is split into what came in with its inputs and what was made here, by running the node a second
time on the inputs that it should have had. A value is kept only until the last node that needs it has run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fx import GraphModule, Interpreter, Node
from fx.interpreter import positional
from fx.naming.printing import describe
from fx.operators.effects import effect_of
from fx.provenance import SourceLocation
from pytest_fx.errors import ComparisonError
from pytest_fx.harness.equality import Difference, Leaf, Mismatch, pair_leaves, worst_difference
from pytest_fx.harness.evaluation import Arguments, converted, default_dtype
from pytest_fx.harness.lending import in_dtype
from pytest_fx.harness.structure import map_tensors

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
    ulps: int | None = None
    """The error made here at its largest, in steps of the value's dtype; None for integers and NaNs."""
    mismatch: str | None = None
    """Why the values cannot be compared at all: another structure, shape or dtype, or the node raises."""

    @property
    def wrong(self) -> bool:
        """Whether more goes wrong here than is allowed."""
        return self.difference is not None or self.mismatch is not None

    def __str__(self) -> str:
        lines = [self.node]
        if self.where is not None:
            lines.append(f"  where  {self.where}")
        if self.mismatch is not None:
            lines.append(f"  why    {self.mismatch}")
            return "\n".join(lines)
        found = self.difference
        if found is not None:
            place = f"{self.original}{found.path}{found.element}"
            lines.append(f"  value  {place} is {found.expected!r} in the original, {found.actual!r} here")
            lines.append(f"         {found.extent}: {found.distance.partition(', ')[2]}".removesuffix(": "))
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
    *,
    widened: bool = False,
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
        widened: run ``original``, which is in the working dtype, in float64: each module and tensor of it is converted
            when it is needed, and not kept.
    """
    programs = [program for program in (original, transformed, eager) if program is not None]
    devices = sorted({tensor.device.index for tensor in arguments.tensors if tensor.device.type == "cuda"})
    random_state: Any = torch.random.fork_rng(devices=devices)  # pyright: ignore[reportUnknownMemberType]
    with torch.no_grad(), random_state, _buffers_kept(programs):
        torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
        walk = _Walk(_Program(original, arguments, widened), _Program(transformed, arguments), arguments, limit, eager)
        return Localization(tuple(walk.errors()))


class _Program(Interpreter):
    """One program that is run a node at a time."""

    def __init__(self, program: GraphModule, arguments: Arguments, widened: bool = False) -> None:
        super().__init__(program)
        self.program = program
        self._widened = widened
        dtype = torch.float64 if widened else _dtype_of(program)
        copies = arguments.copies(dtype)
        self.args_iter = iter(self.graph.process_inputs(*positional(program, copies.args, copies.kwargs)))
        self.dtype = dtype
        self.writes = any(_writes_input(node) for node in self.graph.nodes)
        self.devices = sorted({tensor.device.index for tensor in arguments.tensors if tensor.device.type == "cuda"})
        self.random_states = self._random_states()

    def fetch_attr(self, target: str) -> Any:
        """Return the attribute at ``target``; a tensor or a module of what is widened in float64."""
        value = super().fetch_attr(target)
        if self._widened and isinstance(value, torch.nn.Module):
            return in_dtype(copy.deepcopy(value), torch.float64)
        return converted(value, torch.float64) if self._widened and isinstance(value, torch.Tensor) else value

    def step(self, node: Node) -> Any:
        """Run ``node`` and return its value. Random numbers are those that the program draws when it runs alone."""
        draws = effect_of(node) is not None and node.op not in ("placeholder", "get_attr")
        if draws:
            self._set_random_states(self.random_states)
        with default_dtype(self.dtype):
            value = self.env[node] = self.run_node(node)
        if draws:
            self.random_states = self._random_states()
        return value

    def _random_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]

    def _set_random_states(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self.devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)

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
        return converted(tensor, self.dtype) if tensor.dtype in (torch.float64, torch.complex128) else tensor


class _Walk:
    """Both programs, and for each value of the transformed one the value that it should have."""

    def __init__(
        self,
        original: _Program,
        transformed: _Program,
        arguments: Arguments,
        limit: Limit,
        eager: GraphModule | None,
    ) -> None:
        self.limit = limit
        self.original = original
        self.transformed = transformed
        self.match = _Match(original.program, transformed.program)
        self.ahead = iter(original.graph.nodes)
        self.kept: dict[Node, tuple[Any, Any]] = {}
        """Values of the original that are awaited: as they were when computed, and as they may be written to since."""
        self.right: dict[Node, Any] = {}
        """The value that each node of the transformed program should have, as long as it is needed."""
        self.off: set[Node] = set()
        """Nodes of the transformed program whose value is not what it should be."""
        self.rounding = None if eager is None else _RoundingErrors(self.original, eager, arguments, self.match)

    def errors(self) -> Iterator[NodeError]:
        """Run both programs to the end."""
        for node in self.transformed.graph.nodes:
            if node.op == "output":
                break
            partner = self.match.partners.get(node)
            try:
                value = self.transformed.step(node)
            except Exception as error:
                yield _raising(node, node if partner is None else partner, error)
                return
            again = self._again(node)
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
        try:
            return (self.transformed.run_on(node, {used: self.right[used] for used in node.all_input_nodes}),)
        except Exception:  # it is made for what it gets from the nodes before it, which are blamed themselves
            return None

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
        pairs = _pairs(expected, own, same_dtype, f"{partner.name}{{}}".format)
        if isinstance(pairs, Mismatch):
            self.off.add(node)
            why = pairs.text.replace("eager", "the original", 1)
            why = why.replace("in the program", "here").replace("the program returns", "here it is")
            return NodeError(text, partner.name, origins, node.source, inherited, 0.0, eager, 0.0, mismatch=why)
        made, scale, worst, ulps = 0.0, 0.0, None, None
        for leaf in pairs:
            errors, limits = leaf.errors, self.limit(leaf, eager or 0.0)
            scale = max(scale, leaf.scale)
            largest = worst_difference(leaf, errors > 0, errors, errors.new_zeros(()).expand_as(errors))
            if largest is not None and largest.error > made:
                made, ulps = largest.error, largest.ulps
            worst = worst or worst_difference(leaf, errors > limits, errors, limits)
        if worst is not None or inherited > made:
            self.off.add(node)
        return NodeError(
            text, partner.name, origins, node.source, inherited, made, eager, scale, difference=worst, ulps=ulps
        )


def matched(original: GraphModule, transformed: GraphModule) -> dict[Node, Node]:
    """Return for each node of the transformed program that stands for one of the original: that one."""
    return _Match(original, transformed).partners


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


class _RoundingErrors:
    """Eager's own error at each awaited node: what rounding in the working dtype does to right inputs."""

    def __init__(self, original: _Program, eager: GraphModule, arguments: Arguments, match: _Match) -> None:
        self.errors: dict[Node, float] = {}
        self._original = original
        self._eager = _Program(eager, arguments)
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


def _raising(node: Node, partner: Node, error: Exception) -> NodeError:
    """What is known of a node that raises: neither it nor what stands behind it has a value."""
    why = f"it raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    origins = frozenset(node.origins or (partner.name,))
    return NodeError(describe(node), partner.name, origins, node.source, 0.0, 0.0, None, 0.0, mismatch=why)


@contextmanager
def _buffers_kept(programs: Sequence[GraphModule]) -> Generator[None]:
    """Let programs that count or collect in their buffers do so inside the block only."""
    buffers = {id(buffer): buffer for program in programs for buffer in program.buffers()}
    before = [(buffer, buffer._version, buffer.clone()) for buffer in buffers.values()]
    try:
        yield
    finally:
        for buffer, version, values in before:
            if buffer._version != version:
                buffer.copy_(values)


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
    pairs = _pairs(expected, actual, same_dtype=False)
    if isinstance(pairs, Mismatch):
        return float("inf")
    return max((float(leaf.errors.max()) for leaf in pairs if leaf.errors.numel()), default=0.0)


def _pairs(expected: Any, actual: Any, same_dtype: bool, place: Callable[[str], str] = str) -> list[Leaf] | Mismatch:
    """Two values side by side, as ``place`` calls them; what cannot be compared by its kind is taken for equal."""
    try:
        return pair_leaves(expected, actual, same_dtype, place)
    except ComparisonError:
        return []

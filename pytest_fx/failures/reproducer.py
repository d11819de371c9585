"""A failure made small: the part of a model that a pass gets wrong, cut out, with inputs as simple as still show it.

The part starts as the operations behind the node that goes wrong first and grows until the pass goes wrong on it alone;
where no node is known, it starts as the whole program. Then operations are left out, and inputs made shorter and
plainer. "Goes wrong" always means: in the same way as on the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from fx import Graph, GraphModule, Interpreter, Node
from fx.analysis.dependence import Dependences
from fx.interpreter import positional
from pytest_fx.failures.failure import Failure
from pytest_fx.harness.capture import USUAL, Tracing
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import map_tensors
from pytest_fx.harness.subject import Subject, is_training

SECONDS = 20.0
"""How long a smaller part is looked for."""

Change = Callable[[torch.Tensor], torch.Tensor]
"""Makes a tensor shorter or plainer."""


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """A part of a program, as a program."""

    program: GraphModule
    """The part; what it reads from the rest of the program are its inputs."""
    inputs: tuple[Any, ...]
    """Values of those, as the whole program computes them."""

    def subject(self, name: str, threads: int | None = None, tracing: Tracing = USUAL) -> Subject:
        """Return the part as a model under test; the second input set and those behind it vary the first."""
        given = Arguments(self.inputs)
        inputs = lambda input_set: given.shrunk(seed=input_set) if input_set else given  # noqa: E731
        mode = "train" if is_training(self.program) else "eval"
        return Subject(name, self.program, inputs, threads=threads, mode=mode, keeps_dtypes=True, tracing=tracing)


def find_part(
    failure: Failure, names: frozenset[str] = frozenset(), input_set: int = 0, seconds: float = SECONDS
) -> ProgramPart | None:
    """Return a small part of the model on which the pass fails as it does on the whole, or None if there is none.

    Args:
        failure: the pass that fails, and how.
        names: nodes of the captured model that the part should hold, the last of which it computes.
        input_set: which inputs of the model show the failure.
        seconds: how long to look; the smallest part found until then is returned.
    """
    search = _PartSearch(failure, input_set, time.monotonic() + seconds)
    try:
        return search.run(names)
    finally:
        search.runner.restore()  # others have the tensors that it has written to


class _PartSearch:
    """Ever smaller parts of one model."""

    def __init__(self, failure: Failure, input_set: int, end: float) -> None:
        self.failure = failure
        self.end = end
        subject = failure.subject
        self.original = subject.capture(subject.shared_copy(), leaves=failure.leaves, pass_=failure.pass_)
        self.dependences = Dependences(self.original.graph)
        self.runner = subject.runner(self.original)
        arguments = failure.subject.arguments(input_set).copies()
        self.inputs = positional(self.original, arguments.args, arguments.kwargs)

    def run(self, names: frozenset[str]) -> ProgramPart | None:
        """The smallest part found."""
        nodes = next(filter(self.shows, self.candidates(names)), None)
        if nodes is None:
            return None
        values = self.values([*nodes, *_boundary(nodes)])
        return self.simplified(self.part(self.shrunk(nodes, values), values))

    def candidates(self, names: frozenset[str]) -> Iterator[list[Node]]:
        """Stretches of the program in which to look, the smaller ones first."""
        nodes = [node for node in self.original.graph.nodes if node.op not in ("placeholder", "get_attr")]
        calls = nodes[:-1]
        yield from map(self.needed, _growing(calls, names))
        low, high = 0, len(calls)
        while low < high:  # the shortest beginning that fails, if a longer one does so, too
            middle = (low + high) // 2
            if self.shows(self.needed(calls[: middle + 1])):
                high = middle
            else:
                low = middle + 1
        if low < len(calls):
            yield self.needed(calls[: low + 1])
        yield self.needed(nodes)

    def needed(self, nodes: list[Node]) -> list[Node]:
        """Those of ``nodes`` that the last of them depends on, also by what they write to in place."""
        needed, memory = {nodes[-1]}, set[int]()
        for node in reversed(nodes):
            if node in needed or memory.intersection(self.dependences.writes(node)):
                needed.update((node, *node.all_input_nodes))
                memory.update(self.dependences.reads(node))
        return [node for node in nodes if node in needed]

    def shows(self, nodes: list[Node]) -> bool:
        """Return whether the pass fails on ``nodes`` alone."""
        return self.fails(self.part(nodes, self.values(_boundary(nodes))))

    def fails(self, part: ProgramPart) -> bool:
        """Return whether the pass fails on ``part`` as on the model; no, when there is no time left to find out."""
        if time.monotonic() > self.end:
            return False
        model = self.failure.subject
        # A part is a program that was captured, whichever way the model came in.
        subject = part.subject(model.name, model.threads, replace(model.tracing, how="symbolic"))
        with model.set_aside():  # the part has tensors of its own
            found = self.failure.is_repeated_by(subject)
            subject.close()
        return found

    def part(self, nodes: list[Node], values: dict[Node, Any]) -> ProgramPart:
        """The program of ``nodes``, which returns the value of the last, or what the output does if that is last."""
        boundary = _boundary(nodes)
        graph = Graph()
        graph.constants = dict(self.original.graph.constants)
        copies = {used: graph.placeholder(used.name) for used in boundary}
        for node in nodes:
            for used in node.all_input_nodes:
                if used not in copies:  # an attribute
                    copies[used] = graph.node_copy(used)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if nodes[-1].op != "output":
            graph.output(copies[nodes[-1]])
        return ProgramPart(GraphModule(self.original, graph), tuple(values[used] for used in boundary))

    def values(self, wanted: Iterable[Node]) -> dict[Node, Any]:
        """Return what the program computes at some nodes."""
        asked, kept = set(wanted), dict[Node, Any]()

        def keep(node: Node, value: Any) -> None:
            if node in asked:
                kept[node] = map_tensors(lambda tensor: tensor.detach().clone(), value)

        state = torch.get_rng_state()
        with torch.no_grad():
            Interpreter(self.original, listeners=[keep]).run(*map_tensors(torch.clone, self.inputs))
        torch.set_rng_state(state)
        return kept

    def shrunk(self, nodes: list[Node], values: dict[Node, Any]) -> list[Node]:
        """As few of ``nodes`` as still fail, the value of each left out being an input (Zeller's delta debugging)."""
        size = len(nodes) // 2
        while size >= 1:
            start = 0
            while start < len(nodes) - 1:
                fewer = self.needed([*nodes[:start], *nodes[min(start + size, len(nodes) - 1) :]])
                if self.fails(self.part(fewer, values)):
                    nodes = fewer
                else:
                    start += size
            size //= 2
        return nodes

    def simplified(self, part: ProgramPart) -> ProgramPart:
        """The same program with inputs as short and as plain as still fail."""
        for change in _changes(part.inputs):
            while True:
                inputs = tuple(map_tensors(change, value) for value in part.inputs)
                if _same(inputs, part.inputs) or not self.fails(ProgramPart(part.program, inputs)):
                    break
                part = ProgramPart(part.program, inputs)
        return part


def _growing(calls: list[Node], names: frozenset[str]) -> Iterator[list[Node]]:
    """Ever longer stretches of ``calls`` that end with the last of the nodes called ``names``."""
    held = [position for position, node in enumerate(calls) if node.name in names]
    reach, first = 0, 1
    while held and first:
        first = max(0, min(held) - reach)
        yield calls[first : max(held) + 1]
        reach = 2 * reach + 1


def _boundary(nodes: list[Node]) -> list[Node]:
    """Return what ``nodes`` read that none of them computes, attributes aside."""
    inside = set(nodes)
    read = (used for node in nodes for used in node.all_input_nodes)
    return list(dict.fromkeys(used for used in read if used not in inside and used.op != "get_attr"))


def _changes(inputs: tuple[Any, ...]) -> Iterator[Change]:
    """Yield what makes inputs simpler, in the order to try: one sample, shorter dimensions, plain numbers.

    A size is cut wherever it occurs in a dimension of that number from the end, so that what is added stays in step.
    """
    shapes = [tensor.shape for tensor in Arguments(inputs).tensors]
    cuts = dict.fromkeys((axis - len(shape), size) for shape in shapes for axis, size in enumerate(shape))
    for samples in dict.fromkeys(shape[0] for shape in shapes if shape):
        yield lambda tensor, of=samples: tensor[:1].clone() if tensor.shape[:1] == (of,) else tensor
    yield from (_cut(axis, lambda size: 1) for axis, _ in cuts)
    yield from (_cut(axis, lambda size: (size + 1) // 2) for axis, _ in cuts)
    yield lambda tensor: torch.ones_like(tensor) if tensor.is_floating_point() else tensor
    yield lambda tensor: torch.zeros_like(tensor) if not tensor.is_floating_point() else tensor
    yield lambda tensor: tensor.sign() if tensor.is_floating_point() else tensor
    yield lambda tensor: (tensor * 8).round() / 8 if tensor.is_floating_point() else tensor


def _cut(axis: int, shorter: Callable[[int], int]) -> Change:
    """To fewer elements along one dimension, counted from the end."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < -axis or tensor.shape[axis] < 2:
            return tensor
        return tensor.narrow(axis, 0, shorter(tensor.shape[axis])).clone()

    return cut


def _same(inputs: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Return whether a change left everything as it was."""
    pairs = zip(Arguments(inputs).tensors, Arguments(others).tensors, strict=True)
    return all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs)

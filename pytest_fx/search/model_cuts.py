"""The places of a model where a pass acts, each cut out as the text of a small program: seeds of a search.

Few random programs have the sequence of operators that some passes look for, but a model has it at once. A place is the
nodes that the pass removes, rewrites or gives new users, with one step around them. Values from the rest of the model
become inputs of the same shapes, dtypes and ranges. Inputs of the model keep to their declared domain. Sizes become
small while the pass still acts.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fx import Graph, GraphModule, Interpreter, Node, map_arg
from fx.interpreter import positional
from pytest_fx.generation.record import Program
from pytest_fx.generation.tensor_expressions import RecipeInDomain, TensorRecipe
from pytest_fx.generation.transcription import MOST_ELEMENTS, CannotBeWritten, Sizes, written_program
from pytest_fx.harness.evaluation import places as tensors_by_place
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.snapshot import same_tensor, settings_of, tensors_of
from pytest_fx.harness.structure import leaves, map_tensors
from pytest_fx.harness.subject import Subject
from pytest_fx.search.nearness import running

MOST_PLACES = 6
"""The most places that are cut out of one model."""
MOST_NODES = 60
"""The most operations of a place, with those around it."""
MOST_RESULTS = 8
"""The most values that a place returns."""
FEW_ELEMENTS = 10_000
"""The number of elements of all tensors up to which a program is small enough."""
SMALL = 12
"""The size up to which sizes stay unchanged: kernels, heads, channels of images."""
LEAST = 4
"""The least size that another size becomes: a norm over fewer elements has few values."""
FACTORS = (8, 2, 7, 5, 3)
"""Divisors of larger sizes, applied to all at once, so that multiples stay multiples."""
PRIMES = (5, 7, 11)
"""Replacements of large sizes that cannot be divided."""

ActsOn = Callable[[Program], bool]
"""Returns whether the pass changes a program."""


AROUND = (1, 2, 4, 0)
"""Numbers of steps around a place to cut out with it; the first with which the pass acts is used."""


def places(
    model: Subject, pass_run: PassRun, acts_on: ActsOn, around: Sequence[Sequence[int]] = (AROUND,)
) -> Iterator[Program]:
    """Yield programs for the places of a model where a pass acts, no two with the same operations.

    Args:
        model: a model with example inputs that can be captured.
        pass_run: the pass applied to it.
        acts_on: returns whether the pass changes a program.
        around: steps around each place; with several of them each place is several programs.
    """
    after = pass_run.after
    if after is None or not pass_run.changed:
        return
    before = pass_run.capture()
    cutting = _Cutting(model, before)
    kinds: set[tuple[str, ...]] = set()
    for place in _parts(_changed(before, after), cutting):
        kind = cutting.kind(place)
        if kind in kinds:
            continue
        kinds.add(kind)
        for steps in around:
            if (program := cutting.program(place, acts_on, steps)) is not None:
                yield program
        if len(kinds) >= MOST_PLACES:
            return


def _changed(before: GraphModule, after: GraphModule) -> list[Node]:
    """Return the nodes that a pass removed, rewrote, moved, gave new users, or whose layers it changed.

    A node that only reads another value because the former one is gone does not count.
    """
    now = {node.name: node for node in after.graph.nodes}
    layers, layers_now = settings_of(before), settings_of(after)
    tensors, tensors_now = tensors_of(before), tensors_of(after)
    paths = {name for name, layer in layers.items() if layers_now.get(name) != layer}
    for name, tensor in tensors.items():
        tensor_now = tensors_now.get(name)
        if (
            tensor_now is None
            or tensor_now.requires_grad != tensor.requires_grad
            or not same_tensor(tensor, tensor_now)
        ):
            paths |= {name, name.rpartition(".")[0]}
    nodes = [node for node in before.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    gone = {node for node in nodes if node.name not in now}
    there = [node for node in nodes if node not in gone]
    rewritten = {node for node in there if _is_rewritten(node, now[node.name], now)}
    shared = {node for node in there if _is_shared(node, now[node.name]) and gone.isdisjoint(node.users)}
    changed = gone | rewritten | shared | {node for node in there if not paths.isdisjoint(_attributes(node))}
    if not changed:  # all nodes remain, in another order
        order, order_now = ([each.name for each in graph.nodes] for graph in (before.graph, after.graph))
        follows = dict(itertools.pairwise(order_now))
        names = {name for pair in itertools.pairwise(order) if follows.get(pair[0]) != pair[1] for name in pair}
        changed = {node for node in nodes if node.name in names}
    return [node for node in nodes if node in changed]


def _is_rewritten(node: Node, now: Node, others: Mapping[str, Node]) -> bool:
    """Return whether a node has another target, or reads another value although the former one still exists."""
    calls = ((each.op, each.target, map_arg((each.args, each.kwargs), lambda read: "*")) for each in (node, now))
    pairs = zip(node.all_input_nodes, now.all_input_nodes, strict=False)
    return not operator.eq(*calls) or any(old.name != new.name and old.name in others for old, new in pairs)


def _is_shared(node: Node, now: Node) -> bool:
    """Return whether a node has new users."""
    return not {user.name for user in now.users} <= {user.name for user in node.users}


def _attributes(node: Node) -> Iterator[str]:
    """Yield the paths of the layer that a node calls, or of the attributes that it reads."""
    for each in (node, *node.all_input_nodes):
        if each.op == ("call_module" if each is node else "get_attr"):
            yield str(each.target)


def _parts(changed: Sequence[Node], cutting: _Cutting) -> Iterator[list[Node]]:
    """Yield the connected parts of the changed nodes; of a part that is too large, each node with its neighbours."""
    remaining = dict.fromkeys(changed)
    while remaining:
        part = _connected(next(iter(remaining)), remaining)
        remaining = dict.fromkeys(node for node in remaining if node not in part)
        nodes = [node for node in changed if node in part]
        if len(cutting.surroundings(nodes, 1)) <= MOST_NODES:
            yield nodes
        else:
            yield from ([node, *(other for other in _beside(node) if other in part)] for node in nodes)


def _connected(node: Node, nodes: Container[Node]) -> set[Node]:
    """Return the part of a set of nodes that is connected with one of them."""
    part, pending = {node}, [node]
    while pending:
        new = [other for other in _beside(pending.pop()) if other in nodes and other not in part]
        part.update(new)
        pending += new
    return part


def _beside(node: Node) -> list[Node]:
    """Return the operations that a node reads, and its readers."""
    near = (*node.all_input_nodes, *node.users)
    return [other for other in near if other.op not in ("placeholder", "get_attr", "output")]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of a model in a call."""

    recipe: Any
    """The value, with recipes instead of tensors."""
    is_tensor: bool
    """True if it is a tensor."""
    has_tensors: bool
    """True if it is or contains a tensor."""


class _Cutting:
    """Parts of one captured model, as programs."""

    def __init__(self, model: Subject, program: GraphModule) -> None:
        """Run the program once, and record recipes of its values."""
        self._program = program
        self._places = {node: place for place, node in enumerate(program.graph.nodes)}
        self._values: dict[Node, _Value] = {}

        arguments = model.arguments().copies()
        declared = {} if model.domain is None else model.domain.tensors
        domains = {id(tensor): declared[at] for at, tensor in tensors_by_place(arguments).items() if at in declared}

        def keep(node: Node, value: Any) -> None:
            tensors = [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
            is_tensor = isinstance(value, torch.Tensor)
            recipe = map_tensors(TensorRecipe.like, value) if node.op != "output" else None
            if (domain := domains.get(id(value))) is not None and recipe is not None:
                recipe = RecipeInDomain(recipe, domain)
            self._values[node] = _Value(recipe, is_tensor, bool(tensors))

        runner = model.runner(program)
        inputs = positional(program, arguments.args, arguments.kwargs)
        state = torch.get_rng_state()
        try:
            with torch.no_grad():
                Interpreter(program, listeners=[keep]).run(*inputs)
        finally:
            torch.set_rng_state(state)
            runner.restore()  # others use the tensors that it has written to

    def kind(self, place: Sequence[Node]) -> tuple[str, ...]:
        """Return the operations of a place and around it, by which similar places are left out."""
        return tuple(map(self._operation, self.surroundings(place, 1)))

    def _operation(self, node: Node) -> str:
        if node.op != "call_module":
            return f"{node.target} {len(node.users)}"
        return f"{type(self._program.get_submodule(str(node.target)))} {len(node.users)}"

    def surroundings(self, place: Sequence[Node], steps: int) -> list[Node]:
        """Return a place with its surroundings, and the nodes that compute numbers and tuples for these."""
        near = set(place)
        for _ in range(steps):
            near |= {other for node in near for other in _beside(node)}
        pending = list(near)
        while pending:
            for used in pending.pop().all_input_nodes:
                is_input = used.op in ("placeholder", "get_attr") or self._values[used].is_tensor
                if not is_input and used not in near:
                    near.add(used)
                    pending.append(used)
        return sorted(near, key=self._places.__getitem__)

    def program(self, place: Sequence[Node], acts_on: ActsOn, steps: Sequence[int]) -> Program | None:
        """Return a place with the first number of steps around it with which the pass acts; None if there is none."""
        for count in steps:
            nodes = self.surroundings(place, count)
            if len(nodes) <= MOST_NODES and (program := self._written(nodes, acts_on)) is not None:
                return program
        return None

    def _written(self, nodes: list[Node], acts_on: ActsOn) -> Program | None:
        part, inputs = self._part(nodes)

        def at(sizes: Sizes) -> Program | None:
            program = running(written_program(part, inputs, sizes))
            return program if program is not None and acts_on(program) else None

        try:
            if _elements(part, inputs) <= FEW_ELEMENTS and (program := at({})) is not None:
                return program
            return _small(written_program(part, inputs), at)
        except CannotBeWritten:
            return None

    def _part(self, nodes: list[Node]) -> tuple[GraphModule, list[Any]]:
        """Return nodes as a program that returns the values read elsewhere, and the values of its inputs."""
        inside = set(nodes)
        read = (used for node in nodes for used in node.all_input_nodes)
        boundary = [used for used in dict.fromkeys(read) if used not in inside and used.op != "get_attr"]
        graph = Graph()
        graph.constants = dict(self._program.graph.constants)
        copies = {used: graph.placeholder(used.name) for used in boundary}
        for node in nodes:
            for used in node.all_input_nodes:
                if used not in copies:  # an attribute
                    copies[used] = graph.node_copy(used)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        results = [node for node in nodes if self._values[node].has_tensors and not inside.issuperset(node.users)]
        if not results:  # nothing uses the place; it stays unused if another value can be returned
            results = [used for used in boundary if self._values[used].has_tensors] or nodes[-1:]
        returned = [copies[node] for node in results][-MOST_RESULTS:]
        graph.output(returned[0] if len(returned) == 1 else tuple(returned))
        return GraphModule(self._program, graph), [self._values[used].recipe for used in boundary]


def _small(text: str, program_at: Callable[[Sizes], Program | None]) -> Program | None:
    """Return a program at smaller sizes, or unchanged if no others work and it is not too large."""
    sizes = {size: size for size in _sizes_in(text) if size > SMALL}
    smallest = None

    def takes(smaller: dict[int, int]) -> bool:
        nonlocal sizes, smallest
        if smaller == sizes or len({*smaller.values()}) < len(smaller):  # different sizes stay different
            return False
        if (program := program_at(smaller)) is None:
            return False
        sizes, smallest = smaller, program
        return True

    for factor in FACTORS:
        while _is_large(smallest) and takes({old: _divided(new, factor) for old, new in sizes.items()}):
            pass
    for size, prime in itertools.product(sorted(sizes, reverse=True), PRIMES):
        if _is_large(smallest) and sizes[size] > SMALL:
            takes({**sizes, size: prime})
    smallest = program_at({}) if smallest is None else smallest
    return None if _is_large(smallest, MOST_ELEMENTS) else smallest


def _is_large(program: Program | None, most: int = FEW_ELEMENTS) -> bool:
    return program is None or _elements(program.module, program.inputs.tensors) > most


def _elements(module: nn.Module, inputs: Sequence[Any]) -> int:
    """Return the number of elements of the tensors of a program, and of its inputs."""
    sizes = [each.shape for each in (*module.parameters(), *module.buffers(), *inputs) if hasattr(each, "shape")]
    return sum(map(math.prod, sizes))


def _divided(size: int, factor: int) -> int:
    return size // factor if size > SMALL and size % factor == 0 and size >= LEAST * factor else size


def _sizes_in(text: str) -> set[int]:
    """Return the integers of a text; counts of elements are written there as floating-point numbers."""
    parts = [part.value for part in ast.walk(ast.parse(text)) if isinstance(part, ast.Constant)]
    return {part for part in parts if type(part) is int}

"""Functions that the traced code hands to functions of functions: what they do is captured as programs of their own.

While a body is captured, nodes go into its graph. A value of what is around it, or a tensor or module of the root,
becomes another input of the body, and an argument of the call: nothing is held by a body but the bodies inside it.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from fx.capture.augmented import write_where_it_shows
from fx.capture.guided import Guide
from fx.errors import TraceError
from fx.frames import user_location
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.naming.names import is_identifier
from fx.naming.printing import describe
from fx.node import Node
from fx.proxy import IMMEDIATE_TYPES, Proxy

LEAF = object()
"""Stands, in the structure of a result, for a value whose own structure is not known."""


class Body:
    """A function that is being captured, or has been."""

    def __init__(self, tracer: Any, name: str) -> None:
        """The body of a call of the function that is called ``name``."""
        self._tracer = tracer
        self.name = name
        self.outer: Body | None = tracer._body
        self.outer_graph: Graph = tracer.graph
        self.outer_guide: Guide | None = tracer.guide
        self.graph = Graph(tracer_cls=type(tracer))
        self.guide: Guide | None = None if tracer.guide is None else tracer.guide.of_body(self.graph)
        self.returned: Any = None
        """What the function returned."""
        self.closed: dict[Node, Node] = {}
        """Of the values around it that it uses, the inputs that stand for them."""
        self._fetched: dict[str, Node] = {}
        self._inputs: list[Node] = []

    @property
    def first(self) -> Body:
        """The body around this one that no other is around."""
        body = self
        while body.outer is not None:
            body = body.outer
        return body

    # Capture.

    def capture(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inner: Callable[[int | str], Callable[[Any], Any]],
        varying: bool,
    ) -> None:
        """Run a function on stand-ins for its arguments.

        Args:
            function: what is captured.
            args: its positional arguments.
            kwargs: its keyword arguments.
            inner: of an argument, what the example inputs are in the body for what they are outside.
            varying: whether numbers among the arguments may be others each time the body runs.
        """
        tracer: Any = self._tracer
        real = tracer._real
        held = tracer.graph, tracer._body, tracer.guide, tracer.augmented, real._nodes, len(tracer._modes._gradients)
        tracer.graph, tracer._body, tracer.guide, tracer.augmented, real._nodes = self.graph, self, self.guide, [], []
        try:
            names = _names(function, len(args))
            given = [self._input(names[place], value, inner(place), varying) for place, value in enumerate(args)]
            named = {name: self._input(name, value, inner(name), varying) for name, value in kwargs.items()}
            self.returned = function(*given, **named)
            output = tracer.create_arg(self.returned)
            self.graph.output(output)
            if len(tracer._modes._gradients) != held[-1]:
                raise self._switches(function)
            held[4].extend(node for node in real._nodes if node.graph is not self.graph)
            real._nodes = [node for node in real._nodes if node.graph is self.graph]
            real.drop_unused()
            if self.guide is not None:
                self.guide.drop_unused()
            write_where_it_shows(tracer.augmented, tracer.root)
        finally:
            tracer.graph, tracer._body, tracer.guide, tracer.augmented, real._nodes, _ = held

    def _input(self, name: str, value: Any, known: Callable[[Any], Any], varying: bool) -> Any:
        """An input of the body, and what the function gets for it: stand-ins for the tensors in ``value``."""
        placeholder = self._placeholder(name)
        guide = self.outer_guide
        if self.guide is not None and guide is not None:
            self.guide.know_as(placeholder, lambda: known(guide.value_of(value)))
        return parts(value, self._tracer.proxy(placeholder), self._tracer, varying)

    def _placeholder(self, name: str) -> Node:
        """Another input, behind the others."""
        self._inputs = [node for node in self._inputs if not node._erased]
        following = self._inputs[-1].next if self._inputs else next(iter(self.graph.nodes), None)
        if following is None or following.op == "root":
            made = self.graph.placeholder(name)
        else:
            with self.graph.inserting_before(following):
                made = self.graph.placeholder(name)
        self._inputs.append(made)
        made.source = user_location(sys._getframe(2), self._tracer._locations)
        return made

    def _switches(self, function: Any) -> TraceError:
        return self._tracer._refusal(
            "cannot capture a function that leaves the recording of gradients switched",
            where=user_location(sys._getframe(2), {}),
            value=getattr(function, "__qualname__", repr(function)),
            why=f"{self.name} sets it back when the function returns, and a captured program would not",
            remedy="switch it in a with statement: with torch.no_grad()",
        )

    # What is around it.

    def input_for(self, node: Node) -> Node | None:
        """The input that stands for a value of what is around the body; None if it is of something else."""
        if node.graph is self.graph:
            return node
        if node.graph is not self.outer_graph:
            found = None if self.outer is None else self.outer.input_for(node)
            if found is None:
                return None
            node = found
        made = self.closed.get(node)
        if made is None or made._erased:
            made = self.closed[node] = self._placeholder(node.name)
            made.source = node.source
            guide = self.outer_guide
            if self.guide is not None and guide is not None:
                self.guide.know_as(made, lambda: guide.value_of(Proxy(node, self._tracer)))
        return made

    def fetched(self, path: str) -> Node:
        """The input that stands for an attribute of the root."""
        made = self._fetched.get(path)
        if made is None or made._erased:
            with outermost(self._tracer):
                read = self._tracer.create_node("get_attr", path, (), {})
            found = self.input_for(read)
            assert found is not None
            made = self._fetched[path] = found
        return made

    def owner(self, graph: Graph) -> Body | None:
        """The body around this one, or this one, whose graph it is; None if it is that of none of them."""
        return self if graph is self.graph else None if self.outer is None else self.outer.owner(graph)

    # As a program.

    def finish(self, order: Sequence[Node]) -> GraphModule:
        """The program of the body, whose inputs for closed values are these, in this order."""
        inputs = [self.closed[node] if node in self.closed else self.input_for(node) for node in order]
        before: Node | None = None
        for made in [*(node for node in self._inputs if node not in inputs and not node._erased), *inputs]:
            assert made is not None
            if before is None:
                next(iter(self.graph.nodes)).prepend(made)
            else:
                before.append(made)
            before = made
        for node, made in self.closed.items():
            if node.op == "get_attr":
                for user in made.users:
                    if user.args and user.args[0] is made:
                        self._tracer.attribute_used(user, str(node.target))
        holder = torch.nn.Module()
        holder.training = self._tracer.root.training
        return GraphModule.of_capture(holder, self.graph, self.name.title().replace("_", ""))

    def drop_unused(self) -> None:
        """Forget closed values that are not used after all."""
        for node, made in list(self.closed.items()):
            if made._erased or not made.users:
                del self.closed[node]
                if not made._erased:
                    self.graph.erase_node(made)


@contextmanager
def outermost(tracer: Any) -> Generator[None]:
    """Let nodes go into the program around all bodies."""
    body: Body | None = tracer._body
    if body is None:
        yield
        return
    first = body.first
    held = tracer.graph, tracer._body, tracer.guide
    tracer.graph, tracer._body, tracer.guide = first.outer_graph, None, first.outer_guide
    try:
        yield
    finally:
        tracer.graph, tracer._body, tracer.guide = held


@contextmanager
def within(tracer: Any, graph: Graph) -> Generator[None]:
    """Let nodes go into a graph, if it is that of a body around what is captured now, or of the program around all."""
    body: Body | None = tracer._body
    if body is None or graph is tracer.graph:
        yield
    elif (owner := body.owner(graph)) is not None:
        held = tracer.graph, tracer._body, tracer.guide
        tracer.graph, tracer._body, tracer.guide = owner.graph, owner, owner.guide
        try:
            yield
        finally:
            tracer.graph, tracer._body, tracer.guide = held
    elif graph is body.first.outer_graph:
        with outermost(tracer):
            yield
    else:
        yield


def attach(tracer: Any, bodies: Sequence[Body]) -> tuple[list[Proxy], tuple[Proxy, ...]]:
    """Let the graph hold bodies that are captured. Return what reads them, and the values that they close over."""
    for body in bodies:
        body.drop_unused()
    order = list(dict.fromkeys(node for body in bodies for node in body.closed))
    read: list[Proxy] = []
    for body in bodies:
        program = body.finish(order)
        name = tracer.get_fresh_qualname(f"{body.name}_")
        tracer.graph.constants[name] = program
        read.append(tracer.proxy(tracer.create_node("get_attr", name, (), {})))
    return read, tuple(tracer.proxy(node) for node in order)


def escaped(tracer: Any, proxy: Proxy, where: object) -> TraceError:
    """The refusal of a value of a body that is used outside of it."""
    return tracer._refusal(
        "a value that a function computed is used outside of it, though the function did not return it",
        where=where,
        value=describe(proxy.node),
        why="the function is called by vmap, grad, cond or the like, for many values at once or not at all",
        remedy="return it (grad, vjp and the like take has_aux=True)",
    )


# Structures.


def parts(like: Any, whole: Proxy, tracer: Any, varying: bool = False) -> Any:
    """What the traced code gets for a value of a structure: elements of the value in the place of tensors.

    Args:
        like: the structure.
        whole: the value.
        tracer: records that elements are taken.
        varying: whether numbers in the value may be others when the program runs.
    """

    def part(one: Any, key: Any) -> Any:
        return parts(one, element(whole, key, tracer), tracer, varying)

    if isinstance(like, (Proxy, torch.Tensor)) or like is LEAF:
        return whole
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*(part(one, place) for place, one in enumerate(like)))
    if type(like) in (tuple, list):
        return type(like)(part(one, place) for place, one in enumerate(like))
    if type(like) in (dict, OrderedDict):
        entries = cast("Mapping[Any, Any]", like)
        return type(like)((key, part(one, key)) for key, one in entries.items())
    if varying and isinstance(like, (int, float, complex)):
        return whole
    return like if type(like) in IMMEDIATE_TYPES or not holds_values(like) else whole


def element(whole: Proxy, key: Any, tracer: Any) -> Proxy:
    """An element of a value, whose node goes where nobody uses it."""
    return tracer._real._noted(whole[key])  # type: ignore[index]


def holds_values(value: Any) -> bool:
    """Return whether there is a tensor or traced value in a container."""
    if isinstance(value, (Proxy, torch.Tensor)):
        return True
    if isinstance(value, Mapping):
        return any(map(holds_values, value.values()))
    return isinstance(value, (tuple, list)) and any(map(holds_values, value))


def _names(function: Any, count: int) -> list[str]:
    """The names of the inputs of a body: those of the parameters of the function, as far as it has such."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)][:count]
    names = [name for name in names if is_identifier(name)]
    return names + [f"input_{number}" for number in range(len(names), count)]

"""Functions that the traced code passes to higher-order functions: their bodies are captured as separate programs.

While a body is captured, nodes go into its graph. A value from outside the body, or a tensor or module of the root,
becomes another input of the body, and an argument of the call. A body holds nothing but the bodies inside it.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from fx.capture.guided import Guide
from fx.capture.restore.reach import called_by
from fx.errors import TraceError
from fx.frames import user_location
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.naming.names import is_identifier
from fx.naming.printing import describe
from fx.node import Node
from fx.proxy import IMMEDIATE_TYPES, Proxy

Inner = Callable[[int | str, Any], Any]
"""Maps an example input outside to its value in a body, by the place or name of the argument."""


LEAF = object()
"""A value of unknown structure, in the structure of a result."""


class Body:
    """A function that is being captured, or has been."""

    def __init__(self, tracer: Any, name: str) -> None:
        self._tracer = tracer
        self.name = name
        self.outer: Body | None = tracer._state.body
        self.outer_graph: Graph = tracer.graph
        self.outer_guide: Guide | None = tracer._state.guide
        self.graph = Graph(tracer_cls=type(tracer))
        self.guide: Guide | None = None if tracer._state.guide is None else tracer._state.guide.of_body(self.graph)
        self.returned: Any = None
        """The result of the function."""
        self.closed: dict[Node, Node] = {}
        """The inputs of the body for the outer values that it uses, by these values."""
        self._fetched: dict[str, Node] = {}
        self._inputs: list[Node] = []

    @property
    def first(self) -> Body:
        """The outermost body around this one."""
        body = self
        while body.outer is not None:
            body = body.outer
        return body

    def within(self, graph: Graph) -> AbstractContextManager[None]:
        """Let nodes go into a graph, if it belongs to a body around the current one, or to the program around all."""
        if graph is self._tracer.graph:
            return nullcontext()
        body: Body | None = self
        while body is not None and graph is not body.graph:
            body = body.outer
        if body is not None:
            return body.entered()
        return outermost(self._tracer) if graph is self.first.outer_graph else nullcontext()

    def entered(self) -> AbstractContextManager[None]:
        """Let nodes go into the graph of the body."""
        return _into(self._tracer, self.graph, self, self.guide)

    # Capture.

    def capture(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], inner: Inner, varying: bool
    ) -> None:
        """Run a function on proxies for its arguments.

        ``varying`` is true if numbers among the arguments may differ each time the body runs.
        """
        tracer: Any = self._tracer
        real = tracer._state.real
        outside = tracer._state.augmented, real._nodes
        switched = len(tracer._state.modes._gradients)
        tracer._state.augmented, real._nodes = [], []
        try:
            with self.entered():
                if (called := called_by(function)) is not None and tracer._state.calls is not None:
                    tracer._state.calls.search_function(called)
                names = _names(function, len(args))
                positional = [
                    self._input(names[place], value, partial(inner, place), varying) for place, value in enumerate(args)
                ]
                named = {
                    name: self._input(name, value, partial(inner, name), varying) for name, value in kwargs.items()
                }
                self.returned = function(*positional, **named)
                tracer.create_node("output", "output", (tracer.create_arg(self.returned),), {})
                if len(tracer._state.modes._gradients) != switched:
                    raise self._switches(function)
                outside[1].extend(node for node in real._nodes if node.graph is not self.graph)
                real._nodes = [node for node in real._nodes if node.graph is self.graph]
                tracer._state.simplify()
        finally:
            tracer._state.augmented, real._nodes = outside

    def _input(self, name: str, value: Any, known: Callable[[Any], Any], varying: bool) -> Any:
        """Make an input of the body, and return the value that the function gets for it, with proxies for tensors."""
        proxy = self._placeholder(name)
        guide = self.outer_guide
        if self.guide is not None and guide is not None:
            self.guide.know_as(proxy.node, lambda: known(guide.value_of(value)))
        return parts(value, proxy, self._tracer, varying)

    def _placeholder(self, name: str) -> Proxy:
        """Make another input, after the others."""
        self._inputs = [node for node in self._inputs if not node._erased]
        following = self._inputs[-1].next if self._inputs else next(iter(self.graph.nodes), None)
        with self.entered():
            if following is None or following.op == "root":
                proxy = self._tracer.create_proxy("placeholder", name, (), {})
            else:
                with self.graph.inserting_before(following):
                    proxy = self._tracer.create_proxy("placeholder", name, (), {})
        self._inputs.append(proxy.node)
        return proxy

    def _switches(self, function: Any) -> TraceError:
        return self._tracer._refusal(
            "cannot capture a function that leaves the recording of gradients switched",
            where=user_location(sys._getframe(2), {}),
            value=getattr(function, "__qualname__", repr(function)),
            why=f"{self.name} restores it when the function returns, and a captured program would not",
            remedy="switch it in a with statement: with torch.no_grad()",
        )

    # Outer values.

    def input_for(self, node: Node) -> Node | None:
        """Return the input for a value from outside the body; None if the value belongs to something else."""
        if node.graph is self.graph:
            return node
        if node.graph is not self.outer_graph:
            outer_input = None if self.outer is None else self.outer.input_for(node)
            if outer_input is None:
                return None
            node = outer_input
        input_node = self.closed.get(node)
        if input_node is None or input_node._erased:
            input_node = self.closed[node] = self._placeholder(node.name).node
            input_node.source = node.source
            guide = self.outer_guide
            if self.guide is not None and guide is not None:
                self.guide.know_as(input_node, lambda: guide.value_of(Proxy(node, self._tracer)))
        return input_node

    def fetched(self, path: str) -> Node:
        """Return the input for an attribute of the root."""
        input_node = self._fetched.get(path)
        if input_node is None or input_node._erased:
            with outermost(self._tracer):
                read = self._tracer.create_node("get_attr", path, (), {})
            closed_input = self.input_for(read)
            assert closed_input is not None
            input_node = self._fetched[path] = closed_input
        return input_node

    # As a program.

    def finish(self, order: Sequence[Node]) -> GraphModule:
        """Return the program of the body, with the inputs for these closed values, in this order."""
        inputs = [self.closed[node] if node in self.closed else self.input_for(node) for node in order]
        before: Node | None = None
        for input_node in [*(node for node in self._inputs if node not in inputs and not node._erased), *inputs]:
            assert input_node is not None
            if before is None:
                next(iter(self.graph.nodes)).prepend(input_node)
            else:
                before.append(input_node)
            before = input_node
        for node, input_node in self.closed.items():
            if node.op == "get_attr":
                for user in input_node.users:
                    if user.args and user.args[0] is input_node:
                        self._tracer._attribute_used(user, str(node.target))
        holder = torch.nn.Module()
        holder.training = self._tracer.root.training
        return GraphModule.of_capture(holder, self.graph, self.name.title().replace("_", ""))

    def drop_unused(self) -> None:
        """Forget closed values that are not used after all."""
        for node, input_node in list(self.closed.items()):
            if input_node._erased or not input_node.users:
                del self.closed[node]
                if not input_node._erased:
                    self.graph.erase_node(input_node)


@contextmanager
def _into(tracer: Any, graph: Graph, body: Body | None, guide: Guide | None) -> Generator[None]:
    state = tracer._state
    before = tracer.graph, state.body, state.guide
    tracer.graph, state.body, state.guide = graph, body, guide
    try:
        yield
    finally:
        tracer.graph, state.body, state.guide = before


def outermost(tracer: Any) -> AbstractContextManager[None]:
    """Let nodes go into the program around all bodies."""
    body: Body | None = tracer._state.body
    return nullcontext() if body is None else _into(tracer, body.first.outer_graph, None, body.first.outer_guide)


def attach(tracer: Any, bodies: Sequence[Body]) -> tuple[list[Proxy], tuple[Proxy, ...]]:
    """Let the graph hold captured bodies. Return the nodes that read them, and the values that they close over."""
    for body in bodies:
        body.drop_unused()
    order = list(dict.fromkeys(node for body in bodies for node in body.closed))
    for node in order:  # the order in which parameters and buffers are read differs when a program is traced again
        if node.op == "get_attr" and not node.users:
            next(reversed(tracer.graph.nodes)).append(node)
    read: list[Proxy] = []
    for body in bodies:
        program = body.finish(order)
        name = _free_name(tracer, body.name)
        tracer.graph.constants[name] = program
        read.append(tracer.create_proxy("get_attr", name, (), {}))
    return read, tuple(tracer.proxy(node) for node in order)


def _free_name(tracer: Any, name: str) -> str:
    """Return a free name for a body, or the name of a body of the program that is traced again, which it replaces."""

    def is_replaced(numbered: str) -> bool:
        return tracer._opens_programs and isinstance(tracer.root._modules.get(numbered), GraphModule)

    names = (f"{name}_{number}" for number in itertools.count())
    free = (each for each in names if is_replaced(each) or not hasattr(tracer.root, each))
    return next(each for each in free if not tracer._is_constant(each))


def escaped(tracer: Any, proxy: Proxy, where: object) -> TraceError:
    """Return the error for a value of a body that is used outside of it."""
    return tracer._refusal(
        "a value that a function computed is used outside of it, though the function did not return it",
        where=where,
        value=describe(proxy.node),
        why="the function is called by vmap, grad, cond or the like, for many values at once or not at all",
        remedy="return it (grad, vjp and the like take has_aux=True)",
    )


def _names(function: Any, count: int) -> list[str]:
    """Return the names of the inputs of a body: the parameters of the function, as far as it has any."""
    program = getattr(function, "body", None) if isinstance(function, FunctionType) else None
    if isinstance(program, GraphModule):
        names = [str(node.target) for node in program.graph.find_nodes(op="placeholder")][:count]
    else:
        try:
            parameters = [] if isinstance(function, Proxy) else list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [parameter.name for parameter in parameters if parameter.kind in kinds][:count]
    names = [name for name in names if is_identifier(name)]
    return names + [f"input_{number}" for number in range(len(names), count)]


def parts(like: Any, whole: Proxy, tracer: Any, varying: bool = False) -> Any:
    """Return the value that traced code gets for one like ``like``: elements of ``whole`` in place of the tensors.

    ``varying`` is true if numbers in the value may differ when the program runs.
    """

    def part(element: Any, key: Any) -> Any:
        return parts(element, tracer._state.real.element(whole, key), tracer, varying)

    if isinstance(like, (Proxy, torch.Tensor)) or like is LEAF:
        return whole
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*(part(element, place) for place, element in enumerate(like)))
    if type(like) in (tuple, list):
        return type(like)(part(element, place) for place, element in enumerate(like))
    if type(like) in (dict, OrderedDict):
        entries = cast("Mapping[Any, Any]", like)
        return type(like)((key, part(element, key)) for key, element in entries.items())
    # The counter of a while_loop may start as the number 0, and changes in each round.
    if varying and isinstance(like, (int, float, complex)):
        return whole
    if type(like) in IMMEDIATE_TYPES:
        return like
    # a container of any kind that torch takes apart
    return whole if any(isinstance(leaf, (Proxy, torch.Tensor)) for leaf in pytree.tree_leaves(like)) else like

"""Converters: how a backend builds each operation of the canonical form, and the loop that builds a region of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fx.arguments import expect, expect_callable
from fx.errors import FxError, LoweringError
from fx.graph_module import GraphModule, expect_program
from fx.lowering.known_program import Operation
from fx.lowering.support import Predicate
from fx.modules.attributes import fetch_attribute
from fx.naming.printing import describe
from fx.naming.targets import qualified_name
from fx.node import Node, map_arg


def takes_all(operation: Operation) -> str | None:
    """The predicate of converters that can build every call of their target."""
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Converter:
    """How a backend builds the calls of one function."""

    target: Any
    """The function, as the canonical form has it (:mod:`fx.canonical`), or the class of modules that are leaves."""
    build: Callable[..., Any] | None = None
    """Called with the network and then the arguments as the canonical form has them: what was built in the place of
    values, tensors in the place of constants. Returns what stands for the result. ``None`` where the backend imports
    regions as a whole."""
    supports: Predicate = takes_all
    """Which calls of it the converter can build."""
    counts: bool = True
    """Whether it counts toward ``min_size``: the backend is the faster for it. What only keeps others together does
    not.
    """


class Converters:
    """The converters of one backend, a target each.

    >>> import torch
    >>> converters = Converters("toy")
    >>> _ = converters.register(Converter(torch.sigmoid, lambda network, input: network.sigmoid(input)))
    >>> converters.register(Converter(torch.sigmoid, print))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fx.errors.LoweringError: toy has two converters for `torch.sigmoid`
      value  ...<lambda> and builtins.print
      why    which of them builds a call must not depend on what is imported first
      try    replace it on purpose: converters.replace(...)
    """

    def __init__(self, backend: str, default: Callable[[Any], Converter | None] = lambda target: None) -> None:
        """An empty registry.

        Args:
            backend: the name of the backend, for messages.
            default: makes the converter for a target that has none, or returns None.
        """
        expect(backend, str, "Converters takes the name of a backend", error=LoweringError)
        expect_callable(default, "Converters takes a function for `default`", error=LoweringError)
        self.backend = backend
        """The name of the backend."""
        self._default = default
        self._converters: dict[Any, Converter] = {}

    def __iter__(self) -> Iterator[Converter]:
        return iter(self._converters.values())

    def register(self, converter: Converter) -> Converter:
        """Add a converter and return it.

        Raises:
            LoweringError: the target has another one already; both are named.
        """
        _expect_converter(converter, "register")
        other = self._converters.setdefault(converter.target, converter)
        if other is not converter:
            raise LoweringError(
                f"{self.backend} has two converters for `{qualified_name(converter.target)}`",
                value=f"{_builder_name(other)} and {_builder_name(converter)}",
                why="which of them builds a call must not depend on what is imported first",
                remedy="replace it on purpose: converters.replace(...)",
            )
        return converter

    def replace(self, converter: Converter) -> Converter | None:
        """Let a converter take the place of the one for its target, and return that."""
        _expect_converter(converter, "replace")
        other = self._converters.get(converter.target)
        self._converters[converter.target] = converter
        return other

    def remove(self, target: Any) -> None:
        """Forget the converter for ``target``, if there is one."""
        if isinstance(target, Hashable):
            self._converters.pop(target, None)

    def find(self, target: Any) -> Converter | None:
        """The converter for ``target``, or ``None``."""
        try:
            return self._converters.get(target) or self._default(target)
        except TypeError:  # unhashable, as a callable object may be
            return None


def _builder_name(converter: Converter) -> str:
    return "the importer" if converter.build is None else qualified_name(converter.build)


def _expect_converter(converter: object, method: str) -> None:
    remedy = "Converter(target, build)"
    expect(converter, Converter, f"Converters.{method} takes a Converter", error=LoweringError, remedy=remedy)


def has_converter(converters: Converters) -> Predicate:
    """Takes what there is a converter for, and the converter's own predicate takes."""

    def check(operation: Operation) -> str | None:
        converter = converters.find(operation.target)
        if converter is None:
            target = operation.target
            named = f"the method `{target}`" if isinstance(target, str) else f"`{qualified_name(target)}`"
            return f"{converters.backend} has no converter for {named}"
        return converter.supports(operation)

    return check


@runtime_checkable
class Network(Protocol):
    """What the converters of a backend add to: its own program, under construction."""

    def begin(self, node: Node) -> None:
        """Note which operation is built next; called before each operation."""
        ...

    def add_input(self, node: Node) -> Any:
        """Return what stands for a value that the region is given."""
        ...

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        """Take what the region returns: a single value as it is, or a tuple."""
        ...


def build_region(region: GraphModule, converters: Converters, network: Network) -> None:
    """Let converters add the operations of ``region`` to ``network``, in the order of the program.

    Raises:
        LoweringError: a converter raised or returned nothing; the message has the node, the user's line, and what the
            backend said.
    """
    expect_program(region, "build_region takes a GraphModule", error=LoweringError)
    expect(converters, Converters, "build_region takes Converters", error=LoweringError)
    what = "build_region takes a network with the methods add_input, begin and finish"
    expect(network, Network, what, error=LoweringError)
    values: dict[Node, Any] = {}
    for node in region.graph.nodes:
        if node.op == "placeholder":
            values[node] = network.add_input(node)
        elif node.op == "get_attr":
            values[node] = fetch_attribute(region, str(node.target))
        elif node.op == "output":
            returned: Any = node.args[0]
            is_single = isinstance(returned, Node)
            network.finish(tuple(values[one] for one in ((returned,) if is_single else returned)), is_single)
        else:
            values[node] = _build(region, node, values, converters, network)


def _build(region: GraphModule, node: Node, values: dict[Node, Any], converters: Converters, network: Network) -> Any:
    target: Any = node.target if node.op == "call_function" else type(region.get_submodule(str(node.target)))
    converter = converters.find(target)
    if converter is None or converter.build is None:
        raise LoweringError(
            f"{converters.backend} has no converter for `{qualified_name(target)}`",
            where=node.source,
            value=describe(node),
            remedy="register one, or leave the operation to eager",
        )
    args, kwargs = map_arg(node.args, values.__getitem__), map_arg(node.kwargs, values.__getitem__)
    network.begin(node)
    try:
        built = converter.build(network, *args, **kwargs)
    except Exception as error:
        if isinstance(error, LoweringError):
            raise
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise _failure(converters, node, "failed", said if not isinstance(error, FxError) else str(error)) from error
    if built is None:
        raise _failure(converters, node, "returned nothing", "the backend gave no reason")
    return built


def _failure(converters: Converters, node: Node, what: str, why: str) -> LoweringError:
    return LoweringError(
        f"the converter of {converters.backend} for `%{node}` {what}",
        where=node.source,
        value=describe(node),
        why=why,
        remedy='keep the operation out with veto=…, or leave what fails to eager with on_failure="eager"',
    )

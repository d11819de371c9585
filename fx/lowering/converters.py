"""Converters: a backend's functions that build the operations of the canonical form, and the loop that calls them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from fx.argument_types import checked
from fx.errors import FxError, LoweringError
from fx.graph_module import GraphModule
from fx.lowering.known_program import Operation
from fx.lowering.support import Predicate
from fx.modules.attributes import fetch_attribute
from fx.naming.printing import describe
from fx.naming.targets import qualified_name
from fx.node import Node, map_arg


def takes_all(operation: Operation) -> str | None:
    """Accept every call of the target."""
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Converter:
    """A backend's way to build the calls of one function."""

    target: Any
    """The function, as in the canonical form (:mod:`fx.canonical`), or the class of leaf modules."""
    build: Callable[..., Any] | None = None
    """The function that adds a call to the network and returns the network's value for the result. It is called with
    the network, and then with the arguments as in the canonical form: values of the network for computed values,
    tensors for constants. ``None`` where the backend imports regions as a whole."""
    supports: Predicate = takes_all
    """The predicate that accepts the calls that the converter can build."""
    counts: int = 1
    """The number of operations as which it counts toward ``min_size``; 0 for one for which the backend is not faster,
    which is only taken to keep others in one region.
    """


class Converters:
    """The converters of one backend, by target.

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

    @checked(LoweringError)
    def __init__(self, backend: str, default: Callable[[Any], Converter | None] = lambda target: None) -> None:
        """An empty registry.

        Args:
            backend: the name of the backend, for messages.
            default: returns the converter for a target without a registered one, or ``None``.
        """
        self.backend = backend
        """The name of the backend."""
        self._default = default
        self._converters: dict[Any, Converter] = {}

    def __iter__(self) -> Iterator[Converter]:
        return iter(self._converters.values())

    @checked(LoweringError)
    def register(self, converter: Annotated[Converter, "Converter(target, build)"]) -> Converter:
        """Add a converter and return it.

        Raises:
            LoweringError: the target has another one already; both are named.
        """
        other = self._converters.setdefault(converter.target, converter)
        if other is not converter:
            raise LoweringError(
                f"{self.backend} has two converters for `{qualified_name(converter.target)}`",
                value=f"{_builder_name(other)} and {_builder_name(converter)}",
                why="which of them builds a call must not depend on what is imported first",
                remedy="replace it on purpose: converters.replace(...)",
            )
        return converter

    @checked(LoweringError)
    def replace(self, converter: Annotated[Converter, "Converter(target, build)"]) -> Converter | None:
        """Register a converter in place of the current one for its target, and return that one, if any."""
        other = self._converters.get(converter.target)
        self._converters[converter.target] = converter
        return other

    def remove(self, target: Any) -> None:
        """Remove the converter for ``target``, if there is one."""
        if isinstance(target, Hashable):
            self._converters.pop(target, None)

    def find(self, target: Any) -> Converter | None:
        """Return the converter for ``target``, or ``None``."""
        try:
            return self._converters.get(target) or self._default(target)
        except TypeError:  # unhashable, as a callable object may be
            return None


def _builder_name(converter: Converter) -> str:
    return "the importer" if converter.build is None else qualified_name(converter.build)


def has_converter(converters: Converters) -> Predicate:
    """Return a predicate that accepts an operation if there is a converter for it whose own predicate accepts it."""

    def check(operation: Operation) -> str | None:
        converter = converters.find(operation.target)
        if converter is None:
            target = operation.target
            name = f"the method `{target}`" if isinstance(target, str) else f"`{qualified_name(target)}`"
            return f"{converters.backend} has no converter for {name}"
        return converter.supports(operation)

    return check


@runtime_checkable
class Network(Protocol):
    """A backend's own program under construction, to which its converters add operations."""

    def begin(self, node: Node) -> None:
        """Record the operation that is built next; called before each one."""
        ...

    def add_input(self, node: Node) -> Any:
        """Add an input of the region and return the network's value for it."""
        ...

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        """Set the values that the region returns: one as it is, if ``is_single``, or else a tuple."""
        ...


@checked(LoweringError)
def build_region(region: GraphModule, converters: Converters, network: Network) -> None:
    """Add the operations of ``region`` to ``network`` by their converters, in the order of the program.

    Raises:
        LoweringError: a converter raised or returned nothing; the message has the node, the user's line, and the
            backend's reason.
    """
    values: dict[Node, Any] = {}
    for node in region.graph.nodes:
        if node.op == "placeholder":
            values[node] = network.add_input(node)
        elif node.op == "get_attr":
            values[node] = fetch_attribute(region, str(node.target))
        elif node.op == "output":
            returned: Any = node.args[0]
            is_single = isinstance(returned, Node)
            network.finish(tuple(values[result] for result in ((returned,) if is_single else returned)), is_single)
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
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise _failure(converters, node, "failed", text if not isinstance(error, FxError) else str(error)) from error
    if built is None:
        raise _failure(converters, node, "returned nothing", "the backend gave no reason")
    return built


def _failure(converters: Converters, node: Node, what: str, why: str) -> LoweringError:
    return LoweringError(
        f"the converter of {converters.backend} for `%{node}` {what}",
        where=node.source,
        value=describe(node),
        why=why,
        remedy='exclude the operation with veto=…, or keep failing regions in eager Python with on_failure="eager"',
    )

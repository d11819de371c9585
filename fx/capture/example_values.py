"""Values of nodes for example inputs, as far as they are known without computing: fake tensors, sizes, dtypes.

A value is computed on demand, with the values that it depends on and no others. A value that depends on the elements of
tensors stays unknown.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from fx.analysis.guards import guards_of
from fx.arguments import refusal
from fx.assertions import check_given, handled_error
from fx.capture.modes import enter_autocast, exit_autocast, is_grad_enabled, set_grad_enabled
from fx.capture.patching import outside_of_trace
from fx.capture.shared_values import fails_for_none
from fx.container_kinds import leaves_of, map_parts
from fx.errors import FxError, TraceError
from fx.graph import Graph
from fx.node import Node
from fx.operators.asynchronous import remote_calls
from fx.operators.effect_rules import CONTAINER_WRITES, changes_layout

T = TypeVar("T")
_LONGEST_CAUSE = 160


class _Modes(NamedTuple):
    """The modes of a thread in which a node runs."""

    gradients: bool
    """True if gradients are recorded."""
    autocast: tuple[tuple[str, Any, bool], ...]
    """For each autocast region, outermost first: the kind of device, the dtype, and whether it is on."""

    @classmethod
    def current(cls) -> _Modes:
        """Return the modes of this thread."""
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        settings = ((kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds)
        return cls(is_grad_enabled(), tuple(settings))

    def set(self) -> None:
        """Set these modes for this thread."""
        set_grad_enabled(self.gradients)
        for kind, dtype, enabled in self.autocast:
            torch.set_autocast_enabled(kind, enabled)
            if dtype is not None:
                torch.set_autocast_dtype(kind, dtype)


class UnknownValueError(Exception):
    """The error for a value that the example inputs do not determine; its message is the reason."""


def _changes_more_than_elements(node: Node) -> bool:
    """Return whether a node changes more of an argument than elements of a tensor."""
    if node._op == "call_method":
        name = str(node._target)
        return changes_layout(name) or name in CONTAINER_WRITES or name == "requires_grad_"
    writes = node._target in (operator.setitem, operator.delitem, operator.iconcat) or "out" in node._kwargs
    return writes and node._op == "call_function"


def fake_mode_for(examples: Any) -> FakeTensorMode:
    """Return the mode of fake example inputs, else a new one. Call it before a trace: it may import much."""
    values = (examples.args, examples.kwargs) if isinstance(examples, inspect.BoundArguments) else examples
    mode: Any = detect_fake_mode(pytree.tree_leaves(values))
    if mode is not None:
        return mode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: PLC0415 - loads sympy, for most of a second

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True, static_shapes=True)


class ExampleValues:
    """The values of one graph, which may still grow."""

    def __init__(self, graph: Graph, root: torch.nn.Module, mode: FakeTensorMode) -> None:
        """Start with a graph of which nothing is known, whose paths start from ``root``."""
        self._graph = graph
        self._root = root
        self._mode: Any = mode
        self._copied: dict[int, Any] = {}
        self._attributes: dict[str, Any] = {}
        self._known: dict[Node, Any] = {}
        self._unknown: dict[Node, str] = {}
        self.failures: dict[Node, Exception] = {}
        """The exceptions of Python's own classes that operations raise, as they would for real tensors."""
        self._writes: list[Node] = []
        self._modes = self._outside = _Modes.current()
        """The modes after the last scanned node, and those around the graph."""
        self._modes_at: dict[Node, _Modes] = {}
        self._autocasts: dict[Node, tuple[str, Any, bool]] = {}
        """The autocast regions that the last node is in, by the nodes that enter them."""

    def faked(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor like ``value`` without elements."""
        return outside_of_trace(lambda: self._mode.from_tensor(value, static_shapes=True))

    def computed(self, compute: Callable[[], T]) -> T:
        """Return ``compute()``, which makes fake tensors."""

        def run() -> T:
            with self._mode:
                return compute()

        return outside_of_trace(run)

    def know(self, node: Node, value: Any) -> None:
        """Note the value of an input."""
        self._known[node] = value

    def of(self, node: Node) -> Any:
        """Return the value of a node.

        Raises:
            UnknownValueError: it is not known.
        """
        self._scan()
        needed = self._needed(node)
        if needed:
            outside_of_trace(lambda: self._evaluate(needed))
        if node in self._unknown:
            raise UnknownValueError(self._unknown[node])
        return self._known[node]

    def layout_changed_since(self, node: Node) -> bool:
        """Return whether a node after ``node`` changes more of a tensor or container than elements."""
        self._scan()
        return any(write > node for write in self._writes if not write._erased)

    def _scan(self) -> None:
        """Scan the new nodes: which of them write, and in which modes they run."""
        # While a program is traced its graph grows at the end.
        new = itertools.takewhile(lambda node: node not in self._modes_at, reversed(self._graph.nodes))
        for node in reversed(list(new)):
            target = node._target
            if _changes_more_than_elements(node):
                self._writes.append(node)
            elif target is set_grad_enabled:
                # An argument that is a node has read the mode before, as `no_grad` does to restore it.
                mode_or_node = node._args[0]
                enabled = (
                    self._modes_at[mode_or_node].gradients if isinstance(mode_or_node, Node) else bool(mode_or_node)
                )
                self._modes = self._modes._replace(gradients=enabled)
            elif target is enter_autocast or target is exit_autocast:
                if target is enter_autocast:
                    device, dtype, is_on, *_ = node._args
                    self._autocasts[node] = (str(device), dtype, bool(is_on))
                else:
                    self._autocasts.pop(cast("Node", node._args[0]), None)
                autocast = (*self._outside.autocast, *self._autocasts.values())
                self._modes = self._modes._replace(autocast=autocast)
            self._modes_at[node] = self._modes

    def _needed(self, node: Node) -> list[Node]:
        """Return the nodes to evaluate for a node, in order: its dependencies, and the nodes that write to these."""
        nodes: set[Node] = set()
        pending = [node]
        while pending:
            while pending:
                current = pending.pop()
                if current not in nodes and current not in self._known and current not in self._unknown:
                    nodes.add(current)
                    pending.extend(current.all_input_nodes)
            pending = [
                write
                for write in self._writes
                if not write._erased and write not in nodes and write not in self._known and write not in self._unknown
                and any(argument in nodes or argument in self._known for argument in _resized_by(write))
            ]  # fmt: skip
        return sorted(nodes)

    def _evaluate(self, nodes: list[Node]) -> None:
        before, cached = _Modes.current(), torch.is_autocast_cache_enabled()
        try:
            torch.set_autocast_cache_enabled(False)
            for node in nodes:
                self._evaluate_one(node)
        finally:
            torch.set_autocast_cache_enabled(cached)
            before.set()

    def _evaluate_one(self, node: Node) -> None:
        unknown = next((self._unknown[operand] for operand in node.all_input_nodes if operand in self._unknown), None)
        if unknown is None:
            try:
                self._modes_at.get(node, self._modes).set()
                with self._mode:
                    self._known[node] = self._value(node)
                return
            except Exception as error:  # an operation may raise anything for fake tensors: the cause is reported
                if type(error).__module__ == "builtins":
                    self.failures[node] = error
                unknown = f"{node}: {cause_of(error)}"
        self._unknown[node] = unknown

    def _value(self, node: Node) -> Any:
        args, kwargs = map(self._with_values, (node._args, node._kwargs))
        target: Any = node._target
        if node._op == "placeholder":
            raise UnknownValueError("no example input was given for it")
        if node._op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        if node._op == "call_function":
            if target in remote_calls():
                raise UnknownValueError("it calls another process")
            if target in (int, float) and isinstance(args[0], torch.Tensor):
                item = args[0].item()  # a symbol, which neither may return
                return torch.sym_int(item) if target is int else torch.sym_float(item)
            return target(*args, **kwargs)
        if node._op == "call_module":
            module: torch.nn.Module = self._attribute(target)
            if any(inner._forward_hooks or inner._forward_pre_hooks for inner in module.modules()):
                awaits = any(map(awaits_input, self._held(target).modules()))
                what = "no parameters yet (call the model once before it is captured)" if awaits else "hooks"
                raise UnknownValueError(f"{type(module).__name__} has {what}")
            return module(*args, **kwargs)
        return self._attribute(target)

    def _attribute(self, path: str) -> Any:
        """Return the value of the root at a path, as a copy without elements; shared tensors stay shared."""
        if path not in self._attributes:
            self._attributes[path] = without_elements(self._held(path), self._mode, self._copied)
        return self._attributes[path]

    def _held(self, path: str) -> Any:
        constants = self._graph.constants
        return constants[path] if path in constants else operator.attrgetter(path)(self._root)

    def _with_values(self, argument: Any) -> Any:
        return self._known[argument] if isinstance(argument, Node) else map_parts(self._with_values, argument)


def expect_guards_hold(program: Any, inputs: dict[str, Any]) -> None:
    """Check the guards of a program for inputs by name, as far as these determine them without computing.

    Raises:
        GuardError: one of them fails.
    """
    guards = guards_of(program.graph.nodes)
    handling = [node for node in program.graph.nodes if "handled" in node.meta]
    names = {node: str(node.target).lstrip("*") for node in program.graph.find_nodes(op="placeholder")}
    # the others are parts of inputs that concrete_args specialize
    input_nodes = {node: inputs[name] for node, name in names.items() if name in inputs}
    for node, value in input_nodes.items():
        user = next((user for user in node.users if fails_for_none(user, node)), None) if value is None else None
        if user is not None:
            check_given(value, f"the program was captured where {node.target} is given: {user.source}")
    if not guards and not handling:
        return
    values = ExampleValues(program.graph, program, fake_mode_for(inputs))
    for node, value in input_nodes.items():
        values.know(node, values.faked(value) if isinstance(value, torch.Tensor) else value)
    for guard in guards:
        check: Any = guard.node.target
        operand_nodes = guard.node.all_input_nodes
        try:
            operands = [input_nodes[node] if node in input_nodes else values.of(node) for node in operand_nodes]
        except UnknownValueError:
            continue
        check(*operands, *guard.node.args[len(operands) :])
    for node in handling:
        with suppress(UnknownValueError):
            values.of(node)
        cause = values.failures.get(node)
        if cause is not None and (error := handled_error(node.meta["handled"], node.source, cause)) is not None:
            raise error


def awaits_input(module: torch.nn.Module) -> bool:
    """Return whether a module takes the shapes of its parameters from the first input, by a hook of its own."""
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None and is_lazy(tensor) for tensor in tensors)


def _resized_by(node: Node) -> list[Node]:
    """Return the arguments that a node writes to and changes more than in elements."""
    outputs = [output for output in leaves_of(node._kwargs.get("out")) if isinstance(output, Node)]
    return outputs or node.all_input_nodes[:1]


def without_elements(value: Any, mode: FakeTensorMode, copied: dict[int, Any]) -> Any:
    """Return a copy of a tensor or module with fake tensors for its own.

    ``copied`` holds the copies so far, by the tensors' ids: tensors that modules share stay shared.
    """
    values: list[Any] = [value]
    for module in value.modules() if isinstance(value, torch.nn.Module) else ():
        values += (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
    for tensor in values:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in copied:
            copied[id(tensor)] = mode.from_tensor(tensor, static_shapes=True)
    return copy.deepcopy(value, copied)


def cause_of(error: Exception) -> str:
    """Return the reason that an error gives for an unknown value, in one line."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if not isinstance(error, (UnknownValueError, FxError)):
        causes = {
            "DataDependentOutputException": "it depends on the elements of a tensor",
            "DynamicOutputShapeException": "its shape depends on the elements of a tensor",
            "GuardOnDataDependentSymNode": "it depends on the elements of a tensor",
        }
        text = causes.get(type(error).__name__, f"{type(error).__name__}: {text}")
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}…"


def bound(function: Any, root: Any, examples: Any) -> dict[str, Any]:
    """Return the example inputs by the names of the parameters, with defaults for the others.

    Raises:
        TraceError: they do not fit.
    """
    if not isinstance(examples, (tuple, list, Mapping, inspect.BoundArguments)):
        what = "example_inputs are the inputs of a call, in a tuple or by name in a dict"
        raise refusal(what, examples, error=TraceError, remedy="example_inputs=(x,)")
    signature = inspect.signature(function)
    root_first = (root,) if isinstance(root, torch.nn.Module) else ()
    if isinstance(examples, inspect.BoundArguments):
        by_place, by_name = examples.args, examples.kwargs
    else:
        by_place, by_name = ((), examples) if isinstance(examples, Mapping) else (examples, {})
    try:
        arguments = signature.bind(*root_first, *by_place, **by_name)
    except TypeError as error:
        raise TraceError(
            f"example_inputs do not fit the program: {error}",
            value=f"{getattr(function, '__qualname__', 'it')}{signature}",
            remedy="give the inputs of a call, in a tuple or by name in a dict",
        ) from None
    arguments.apply_defaults()
    names = list(arguments.arguments)[len(root_first) :]
    return {name: arguments.arguments[name] for name in names}

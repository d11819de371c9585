"""Values of nodes for example inputs, as far as they are known without computing: fake tensors, sizes, dtypes.

A value is worked out when somebody asks for it, with what it depends on and nothing else. What depends on the elements
of tensors stays unknown.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from fx.arguments import refusal
from fx.capture import patching
from fx.capture.modes import enter_autocast, exit_autocast, is_grad_enabled, set_grad_enabled
from fx.capture.module_hooks import awaits_input
from fx.container_kinds import leaves_of, map_parts
from fx.errors import FxError, TraceError
from fx.graph import Graph
from fx.node import Node
from fx.operators.asynchronous import remote_calls
from fx.operators.effect_rules import CONTAINER_WRITES, changes_layout

T = TypeVar("T")
_LONGEST_CAUSE = 160


class _Modes(NamedTuple):
    """What is set for a thread where a node runs."""

    gradients: bool
    """Whether gradients are recorded."""
    autocast: tuple[tuple[str, Any, bool], ...]
    """Of each region of autocast, outermost first: the kind of device, the dtype, whether it is on."""

    @classmethod
    def current(cls) -> _Modes:
        """Return what is set for this thread."""
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        settings = ((kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds)
        return cls(is_grad_enabled(), tuple(settings))

    def set(self) -> None:
        """Set this for this thread."""
        set_grad_enabled(self.gradients)
        for kind, dtype, enabled in self.autocast:
            torch.set_autocast_enabled(kind, enabled)
            if dtype is not None:
                torch.set_autocast_dtype(kind, dtype)


class UnknownValueError(Exception):
    """The example inputs do not say what a value is; the message is why."""


def _changes_more_than_elements(node: Node) -> bool:
    """Return whether a node writes to an argument so that more than elements of a tensor become others."""
    if node._op == "call_method":
        name = str(node._target)
        return changes_layout(name) or name in CONTAINER_WRITES or name == "requires_grad_"
    writes = node._target in (operator.setitem, operator.delitem, operator.iconcat) or "out" in node._kwargs
    return writes and node._op == "call_function"


def fake_mode_for(given: Any) -> FakeTensorMode:
    """The mode of example inputs that are fake, else a new one. To be called before a trace, as it may import much."""
    found: Any = detect_fake_mode(pytree.tree_leaves(given))
    if found is not None:
        return found
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True, static_shapes=True)


class ExampleValues:
    """The values of one graph, which may still grow."""

    def __init__(self, graph: Graph, root: torch.nn.Module, mode: FakeTensorMode) -> None:
        """Know nothing of a graph yet.

        Args:
            graph: whose nodes are asked for.
            root: the module that its paths start from.
            mode: makes the fake tensors.
        """
        self._graph = graph
        self._root = root
        self._mode: Any = mode
        self._copied: dict[int, Any] = {}
        self._attributes: dict[str, Any] = {}
        self._known: dict[Node, Any] = {}
        self._unknown: dict[Node, str] = {}
        self._writes: list[Node] = []
        self._modes = self._outside = _Modes.current()
        """What is set behind the last node that was looked at, and what is set around the graph."""
        self._modes_at: dict[Node, _Modes] = {}
        self._autocasts: dict[Node, tuple[str, Any, bool]] = {}
        """The regions of autocast that the last node is in, by the nodes that enter them."""

    def faked(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor like ``value`` that has all but its elements."""
        return outside_of_trace(lambda: self._mode.from_tensor(value, static_shapes=True))

    def computed(self, compute: Callable[[], T]) -> T:
        """Return ``compute()``, which makes fake tensors, as what is evaluated here is."""

        def run() -> T:
            with self._mode:
                return compute()

        return outside_of_trace(run)

    def know(self, node: Node, value: Any) -> None:
        """Note what an input is."""
        self._known[node] = value

    def of(self, node: Node) -> Any:
        """The value of a node.

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
        """Return whether a node behind ``node`` makes a tensor or container another one."""
        self._scan()
        return any(write > node for write in self._writes if not write._erased)

    def _scan(self) -> None:
        """Look at the nodes that are new: which write, and in which modes they run."""
        # While a program is traced its graph grows at the end.
        new = itertools.takewhile(lambda node: node not in self._modes_at, reversed(self._graph.nodes))
        for node in reversed(list(new)):
            target = node._target
            if _changes_more_than_elements(node):
                self._writes.append(node)
            elif target is set_grad_enabled:
                # A node here is one that asked for the mode, as `no_grad` does to put it back.
                given = node._args[0]
                enabled = self._modes_at[given].gradients if isinstance(given, Node) else bool(given)
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
        """Return what is to be worked out for a node, in order: what it depends on, and what writes to that."""
        found: set[Node] = set()
        pending = [node]
        while pending:
            while pending:
                one = pending.pop()
                if one not in found and one not in self._known and one not in self._unknown:
                    found.add(one)
                    pending.extend(one.all_input_nodes)
            pending = [
                write
                for write in self._writes
                if not write._erased and write not in found and write not in self._known and write not in self._unknown
                and any(given in found or given in self._known for given in _resized_by(write))
            ]  # fmt: skip
        return sorted(found)

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
        unknown = next((self._unknown[given] for given in node.all_input_nodes if given in self._unknown), None)
        if unknown is None:
            try:
                self._modes_at.get(node, self._modes).set()
                with self._mode:
                    self._known[node] = self._value(node)
                return
            except Exception as error:  # whatever an operation raises of fake tensors: it is the cause that is reported
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
            if any(one._forward_hooks or one._forward_pre_hooks for one in module.modules()):
                awaits = any(map(awaits_input, self._held(target).modules()))
                what = "no parameters yet (call the model once before it is captured)" if awaits else "hooks"
                raise UnknownValueError(f"{type(module).__name__} has {what}")
            return module(*args, **kwargs)
        return self._attribute(target)

    def _attribute(self, path: str) -> Any:
        """Return what the root holds at a path, as a copy without elements; what is shared stays shared."""
        if path not in self._attributes:
            self._attributes[path] = without_elements(self._held(path), self._mode, self._copied)
        return self._attributes[path]

    def _held(self, path: str) -> Any:
        constants = self._graph.constants
        return constants[path] if path in constants else operator.attrgetter(path)(self._root)

    def _with_values(self, argument: Any) -> Any:
        return self._known[argument] if isinstance(argument, Node) else map_parts(self._with_values, argument)


def _resized_by(node: Node) -> list[Node]:
    """Return what a node writes to that changes more than elements."""
    outputs = [one for one in leaves_of(node._kwargs.get("out")) if isinstance(one, Node)]
    return outputs or node.all_input_nodes[:1]


def outside_of_trace(compute: Callable[[], T]) -> T:
    """Return ``compute()``, of which the trace that is running sees nothing."""

    def unseen() -> T:
        with torch._C.DisableTorchFunction():
            return compute()

    return patching.outside(unseen)


def without_elements(value: Any, mode: FakeTensorMode, copied: dict[int, Any]) -> Any:
    """Return a copy of a tensor or module with fake tensors for its own.

    ``copied`` has those that were made, by the tensors' ids: what is shared between modules stays shared.
    """
    held: list[Any] = [value]
    for module in value.modules() if isinstance(value, torch.nn.Module) else ():
        held += (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
    for tensor in held:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in copied:
            copied[id(tensor)] = mode.from_tensor(tensor, static_shapes=True)
    return copy.deepcopy(value, copied)


def cause_of(error: Exception) -> str:
    """Return what an error says of a value that is asked for, in a line."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if not isinstance(error, (UnknownValueError, FxError)):
        known = {
            "DataDependentOutputException": "it depends on the elements of a tensor",
            "DynamicOutputShapeException": "its shape depends on the elements of a tensor",
            "GuardOnDataDependentSymNode": "it depends on the elements of a tensor",
        }
        text = known.get(type(error).__name__, f"{type(error).__name__}: {text}")
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}…"


def bound(function: Any, root: Any, examples: Any) -> dict[str, Any]:
    """Example inputs by the names of the parameters, defaults for those that are left.

    Raises:
        TraceError: they do not fit.
    """
    if not isinstance(examples, (tuple, list, Mapping)):
        what = "example_inputs are the inputs of a call, in a tuple or by name in a dict"
        raise refusal(what, examples, error=TraceError, remedy="example_inputs=(x,)")
    signature = inspect.signature(function)
    root_first = (root,) if isinstance(root, torch.nn.Module) else ()
    by_place, by_name = ((), examples) if isinstance(examples, Mapping) else (examples, {})
    try:
        made = signature.bind(*root_first, *by_place, **by_name)
    except TypeError as error:
        raise TraceError(
            f"example_inputs do not fit the program: {error}",
            value=f"{getattr(function, '__qualname__', 'it')}{signature}",
            remedy="give the inputs of a call, in a tuple or by name in a dict",
        ) from None
    made.apply_defaults()
    names = list(made.arguments)[len(root_first) :]
    return {name: made.arguments[name] for name in names}


def same_elements(one: Any, other: Any) -> bool:
    """Return whether two containers of one class hold the same objects."""
    if isinstance(one, dict):
        entries, before = cast("dict[Any, Any]", one), cast("dict[Any, Any]", other)
        return list(entries) == list(before) and all(value is before[key] for key, value in entries.items())
    return len(one) == len(other) and all(map(operator.is_, one, other))

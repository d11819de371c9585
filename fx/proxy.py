"""``Proxy``, the placeholder for each value during capture, and the base of tracers (paper, section 4.1)."""

from __future__ import annotations

import abc
import copy
import enum
import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import BuiltinFunctionType, FrameType, FunctionType, GetSetDescriptorType, NoneType
from typing import Any, ClassVar

import numpy
import torch
from torch.overrides import get_overridable_functions
from torch.utils import _pytree as pytree

from fx.arguments import expect, expect_callable, explained, here, refusal, shown
from fx.bytecode.mentions import IDENTITIES, asks_for_class, is_called, is_compared_by_identity
from fx.bytecode.values import called_at
from fx.checks.questions import ask, kind_for, refuse_text, text_for, unpacked
from fx.checks.recorded_checks import record_assertion
from fx.checks.traced_values import Marks, Reading, TracedValue, asker, caller_location
from fx.container_kinds import container_kind, held_kind
from fx.errors import GraphError, MissingAttributeError, TraceError, UnsupportedTraceError
from fx.frames import is_of_torch, is_ours, is_users, user_location, user_stack
from fx.graph import Graph
from fx.immutable_collections import immutable_dict
from fx.naming.printing import describe
from fx.node import Argument, Node, Target, base_types
from fx.operator_schemas import check_for_mutable_operation
from fx.operators import effects
from fx.operators.effect_rules import changes_layout
from fx.operators.effects import effect_of
from fx.operators.python import IN_PLACE_OF, OPERATORS, PythonOperator
from fx.operators.sharing import TENSOR_METHODS
from fx.provenance import GENERATED_FILES, SourceLocation
from fx.traceback import current_meta

__all__ = [
    "Attribute",
    "GraphAppendingTracer",
    "MetaProxy",
    "ParameterProxy",
    "Proxy",
    "Scope",
    "ScopeContextManager",
    "TraceError",
    "TracerBase",
]

_OF_ABSTRACT_CLASSES: Any = abc.ABCMeta.__instancecheck__.__code__
IMMEDIATE_TYPES = frozenset(
    {int, float, bool, str, bytes, complex, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size,
     torch.memory_format, torch.layout, torch.qscheme}
)  # fmt: skip
"""Types whose values are arguments themselves."""
_CLASSES = frozenset(map(id, (list, dict, set, tuple, int, float, bool, complex, str)))
"""Python classes that are arguments themselves, as in ``defaultdict(list)`` and ``x.to(float)``."""


@dataclass
class Scope:
    """The module whose ``forward`` is being traced."""

    module_path: str
    """Dotted path from the root; empty for the root."""
    module_type: Any
    """Class of the module; None for the root."""


class ScopeContextManager:
    """Sets a tracer's scope until the end of a ``with`` block."""

    def __init__(self, scope: Scope, current_scope: Scope) -> None:
        for checked in (scope, current_scope):
            expect(checked, Scope, "a ScopeContextManager takes Scopes", error=TraceError)
        self._scope = scope
        self._previous = Scope(scope.module_path, scope.module_type)
        scope.module_path, scope.module_type = current_scope.module_path, current_scope.module_type

    def __enter__(self) -> Scope:
        return self._scope

    def __exit__(self, *exception: object) -> None:
        self._scope.module_path, self._scope.module_type = self._previous.module_path, self._previous.module_type


_PROPERTIES = frozenset(
    name
    for kind in torch.Tensor.__mro__
    for name, value in vars(kind).items()
    if isinstance(value, (property, GetSetDescriptorType))
)
"""Attributes of tensors that are not methods."""
_NOT_RECORDED = (
    *("__array_", "__cuda_array", "__deepcopy__", "__getstate__", "__setstate__"),
    *("__name__", "__qualname__", "__annotations__", "__type_params__", "__dict__", "__wrapped__"),
)
"""Beginnings of attributes that libraries look up: in the first line on objects, in the second on functions to wrap."""


class RecordingState:
    """The state of recording: for the graph that is added to or, in capture, for one run."""

    is_tracing: bool = False
    """True while a program is run."""
    is_finished: bool = False
    """True once the run is over."""
    refused: TraceError | None = None
    """The error that ends the trace, even if the traced code catches it."""
    makes_output: bool = False
    """True while the arguments that are made are the program's result."""
    returned_by: Any = None
    """The traced function, once it has returned."""
    exceptions: Any = None
    """The watcher of exceptions that the traced code handles; None if it handles none."""
    spread_shapes: Any = ()
    """The placeholders for the elements of shapes that a call spreads, until that call is recorded."""
    guide: Any = None
    """The guide that knows the example inputs, if there are any."""
    indexed: Any = ()
    """The guards of integers that instructions took, until a node is made."""
    body: Any = None
    """The body that is captured now, if it is a function that the program passes to another one."""

    def __init__(self) -> None:
        """Create the state at the start."""
        self.locations: dict[tuple[int, int], SourceLocation] = {}
        """The user's lines met so far, by code and instruction."""
        self.attributes_read: list[weakref.ref[Attribute]] = []
        """The attributes of values that were read since the last change of a layout."""
        self.augmented: list[Node] = []
        """The nodes of augmented assignments (``x += y``)."""
        self.flag_defaults: set[Node] = set()
        """The inputs with a flag as their default, which answers a test of their truth."""
        self.written: dict[str, tuple[Proxy, str]] = {}
        """The texts of traced values that were written into messages: each with its value, and the format."""


class TracerBase:
    """The base of tracers, which makes nodes and proxies; ``Tracer`` makes them for a whole module."""

    graph: Graph
    record_stack_traces: bool = False
    """Keep the text of the whole stack in ``node.meta["stack_trace"]``, not only the user's line."""
    check_mutable_operations: bool = False
    """Refuse operations that write to their arguments."""
    trace_asserts: bool = True
    """Record checks (``assert``, ``if …: raise``) on traced values as nodes; where False they are errors."""
    proxy_buffer_attributes: bool = False
    """Read buffers as ``get_attr`` nodes, like parameters, instead of as tensors."""
    traced_func_name: str = "forward"
    """The method of the root module that is traced."""

    scope: Scope
    module_stack: dict[str, tuple[str, Any]]
    _state: Any
    """A RecordingState: the state of one run, or of the graph that is added to."""

    def __init__(self) -> None:
        self.scope = Scope("", None)
        self.module_stack = {}
        self._state = RecordingState()

    def __getattr__(self, name: str) -> Any:
        if name in ("graph", "root", "root_module_name"):
            raise MissingAttributeError(
                f"this {type(self).__name__} has no {name} yet",
                where=here(),
                why="it gets one when it starts to trace",
                remedy="call tracer.trace(root) first",
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Nodes.

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        """Insert a node into the graph. Override to add notes to it, or to refuse it."""
        state = self._state
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        node.source = location = user_location(sys._getframe(1), state.locations)
        if self.check_mutable_operations:
            self._refuse_write(node)
        meta = current_meta()
        if meta is not None:
            node.meta.update(meta)
        if self.module_stack:
            node.meta["nn_module_stack"] = self.module_stack
        if args and type(args[0]) is Node and args[0]._op == "get_attr":
            self._attribute_used(node, str(args[0]._target))
        if state.exceptions is not None and (names := state.exceptions.names_at(sys._getframe(1))):
            node.meta["handled"] = names
        if self.record_stack_traces and kind != "placeholder":
            node.stack_trace = user_stack(sys._getframe(1))
        if location is not None and location.is_compared is not False and state.is_tracing:
            state.value_compared(node, location)
        return node

    def _refuse_write(self, node: Node) -> None:
        """Refuse a node that writes to its arguments."""
        if node.op == "call_function":
            check_for_mutable_operation(node.target, node.args, node.kwargs, where=node.source)  # type: ignore[arg-type]
        is_module = node.op == "call_module"
        effect = effects._effect_of_module(self.root.get_submodule(str(node.target))) if is_module else effect_of(node)
        if effect is not None and effect.kind == "write":
            does = effect.does if effect.written is None else f"{effect.does} its argument"
            raise GraphError(
                f"Tried to trace mutable operation {describe_call(node.op, node.target)}",
                where=node.source,
                why=f"the tracer was told to capture operations without side effects only, and this one {does}",
                remedy="call its functional form, or trace with check_mutable_operations=False",
            )

    def proxy(self, node: Node) -> Proxy:
        """Return the proxy for a node."""
        return Proxy(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
        proxy_factory_fn: Callable[[Node], Proxy] | None = None,
    ) -> Proxy:
        """Make a node from arguments that may hold proxies, and return its proxy.

        Override to give some values another kind of proxy (section 5.2).

        Raises:
            TraceError: a node cannot hold one of the arguments, or the trace is over.
        """
        state = self._state
        exceptions = state.exceptions
        if exceptions is not None and exceptions.pause():
            try:
                return TracerBase.create_proxy(self, kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
            finally:
                exceptions.resume()
        if state.is_finished:
            raise _outlived(describe_call(kind, target))
        if state.indexed:
            state.take_back_guards(args, kwargs)
        if state.spread_shapes:
            args, kwargs = state.take_spread(kind, target, args, kwargs)
        if type(args) is not tuple or type(kwargs) is not dict:
            expect(args, tuple, "args of create_proxy is a tuple", error=TraceError)
            expect(kwargs, (dict, NoneType), "kwargs of create_proxy is a dict", error=TraceError)
        if proxy_factory_fn is not None:
            expect_callable(
                proxy_factory_fn, "proxy_factory_fn of create_proxy makes a Proxy of a node", error=TraceError
            )
        if state.attributes_read and changes_layout(target if kind == "call_method" else _name_of(target)):
            read, state.attributes_read = state.attributes_read, []
            for attribute in [attribute for reference in read if (attribute := reference()) is not None]:
                if attribute._node is None or attribute._node._erased:  # recorded while it is the value that was read
                    state.real.noted(attribute)
        node_args = self.create_arg(args)
        node_kwargs = self.create_arg(kwargs) if kwargs else {}
        node = self.create_node(kind, target, node_args, node_kwargs, name, type_expr)
        proxy = self.proxy(node) if proxy_factory_fn is None else proxy_factory_fn(node)
        return proxy if state.guide is None else state.none_or(proxy)

    def create_arg(self, a: Any) -> Argument:
        """Return the node argument for the Python value ``a``: nodes for proxies, containers of them, immediate values.

        Raises:
            TraceError: ``a`` belongs to another trace, is a dict with traced keys, or no node can hold it.
        """
        kind = type(a)
        if kind is Proxy:
            node = a.node
            return node if node.graph is self.graph else self._node_of(a)
        if kind in IMMEDIATE_TYPES:
            # For example the result of an f-string with a traced value: the text would be a constant of the program.
            if kind is str and self._state.written and any(text in a for text in self._state.written):
                refuse_text(self, a)
            return a
        try:
            if kind is tuple:
                return tuple(map(self.create_arg, a))
            if kind is list:
                return [self.create_arg(element) for element in a]
            if kind is dict or kind is immutable_dict:
                return self._dict_arg(a)
            if kind is slice:
                return slice(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        except RecursionError as failure:
            raise explained(failure, a, TraceError) from None
        return self._other_arg(a)

    def _attribute_used(self, node: Node, path: str) -> None:
        """Called with each node whose first argument is the attribute at ``path``."""

    def _attribute_arg(self, a: Any) -> Argument:
        """Return a node that fetches ``a`` from the root, if a root can hold ``a``; ``NotImplemented`` if not."""
        return NotImplemented

    def _other_arg(self, a: Any) -> Argument:
        if isinstance(a, Proxy):
            return self._node_of(a)
        fetched = self._attribute_arg(a)
        if fetched is not NotImplemented:
            return fetched
        if hasattr(a, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        if (container := container_kind(a)) is not None:
            if container.call is None:
                return container.freeze(a, [self.create_arg(part) for part in container.parts(a)])
            if (call := container.call(a)) is not None:
                args, kwargs = call
                return self.create_node("call_function", type(a), self.create_arg(args), self.create_arg(kwargs))
        if isinstance(a, range):
            return range(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        if isinstance(a, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)) or id(a) in _CLASSES:
            return a
        if isinstance(a, (*base_types, enum.Enum)):
            return a
        if isinstance(a, numpy.generic) and not self._state.makes_output:
            return self.create_arg(a.item())  # torch functions accept both; a result keeps its class
        raise self._cannot_hold(a)

    def _cannot_hold(self, a: Any) -> UnsupportedTraceError:
        why = "arguments are traced values, numbers, strings, dtypes, devices, enums, and containers of these"
        if container_kind(a) is not None:
            why += "; the class of this one does not make an equal container of its parts"
        return UnsupportedTraceError(
            f"argument of type: {type(a)} cannot be held by a node",
            where=caller_location(self),
            value=shown(a),
            why=why,
            remedy="make it an attribute of the module, pass its parts, or put the call in a function marked fx.wrap",
        )

    def _dict_arg(self, a: Mapping[Any, Any]) -> dict[Any, Argument]:
        for key in a:
            if isinstance(key, Proxy) or (type(key) is tuple and any(isinstance(part, Proxy) for part in key)):
                raise TraceError(
                    "Keys for dictionaries used as an argument cannot contain a Node",
                    where=caller_location(self),
                    value=f"key {key!r}",
                    why="which entry it would be is known only when the module runs",
                    remedy="use a list of pairs, or a key that does not depend on the input",
                )
        return {self.create_arg(key): self.create_arg(value) for key, value in a.items()}

    def _node_of(self, proxy: Proxy) -> Node:
        node = proxy.node
        if node.graph is not self.graph:
            finished = proxy.tracer._state.is_finished or proxy.tracer is self
            raise TraceError(
                "a traced value is used in a trace that it does not belong to",
                where=caller_location(self),
                value=describe(node),
                why="its own trace is over" if finished else "Found multiple different tracers: another trace made it",
                remedy="do not keep traced values in globals or attributes; pass them as arguments",
            )
        return node

    def _refusal(self, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> TraceError:
        """Return an error that ends the trace even if the traced program catches it."""
        self._state.refused = kind(what, **lines)
        return self._state.refused

    # Queries that a proxy cannot answer. Override to decide otherwise.

    def to_bool(self, obj: Proxy) -> bool:
        """Return the truth value of a proxy. A check is recorded and passes; anything else cannot be decided.

        Raises:
            TraceError: the program branches on a traced value.
        """
        expect(obj, Proxy, "a tracer's to_bool takes a Proxy", error=TraceError)
        return ask("bool", obj, sys._getframe(1))

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """Return the elements of a proxy, if the program or its node determines their number.

        Raises:
            TraceError: nothing determines it.
        """
        expect(obj, Proxy, "a tracer's iter takes a Proxy", error=TraceError)
        return ask("iter", obj, sys._getframe(1))

    def keys(self, obj: Proxy) -> Any:
        """Return the result of ``proxy.keys()``, as in ``**proxy``; by default the call of a method."""
        return Attribute(obj, "keys")()


class GraphAppendingTracer(TracerBase):
    """Adds the operations on its proxies to an existing graph, for passes that write code as Python expressions."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        expect(graph, Graph, "a GraphAppendingTracer adds to a Graph", error=TraceError)
        self.graph = graph


class Proxy(TracedValue):
    """The placeholder for a value of the program. Operations on it are recorded as nodes.

    >>> import torch, fx
    >>> graph = fx.Graph()
    >>> x = fx.Proxy(graph.placeholder("x"))
    >>> (torch.relu(x) + x.shape[0]).node
    add
    """

    __slots__ = ("__weakref__", "node", "tracer")

    node: Node
    """The node that computes the value."""
    tracer: TracerBase
    """The tracer that records the operations."""
    _attribute: ClassVar[type[Attribute]]
    """The class of its attributes."""
    __array_priority__ = torch.Tensor.__array_priority__
    """Lets numpy's numbers leave operations to it, as they do to tensors."""

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        if type(node) is not Node:
            expect(node, Node, "a Proxy is made for a node", error=TraceError)
        if tracer is not None and not isinstance(tracer, TracerBase):
            raise refusal("the tracer of a Proxy is a Tracer", tracer, error=TraceError)
        self.tracer = GraphAppendingTracer(node.graph) if tracer is None else tracer
        self.node = node

    def __repr__(self) -> str:
        return text_for(self, self._shown(), repr, sys._getframe(1))

    def _shown(self) -> str:
        return f"Proxy({self.node.name})"

    def __str__(self) -> str:
        return text_for(self, self._as_shown(), str, sys._getframe(1))

    def __format__(self, spec: str) -> str:
        # messages of checks are formatted when these fail: see fx.checks.traced_values
        placeholder = f"{self._as_shown()[:-1]}:{spec})" if spec else self._as_shown()
        return text_for(self, placeholder, lambda value: format(value, spec), sys._getframe(1), spec)

    def _as_shown(self) -> str:
        return self._shown() if type(self).__repr__ is Proxy.__repr__ else repr(self)

    def __getattr__(self, k: str) -> Attribute:
        # reading an attribute records nothing yet: most are methods about to be called
        if k.startswith(_NOT_RECORDED):
            raise AttributeError(k)
        attribute = self._attribute(self, k)
        state = self.tracer._state
        if not state.is_tracing:
            return attribute
        frame = sys._getframe(1)
        if k not in TENSOR_METHODS:  # of an input that is an object
            is_attributes = frame.f_code is Attribute.__getattr__.__code__ and frame.f_back is not None
            return self._object_attribute(attribute, frame.f_back if is_attributes else frame)  # type: ignore[arg-type]
        if k in _PROPERTIES:
            state.attributes_read.append(weakref.ref(attribute))
        if _is_compared(frame):
            if k in IDENTITIES:
                return ask_identity(attribute, frame)
            attribute.node  # noqa: B018 - whether it may be compared is decided with its node
        return attribute

    def _object_attribute(self, attribute: Attribute, frame: FrameType) -> Any:
        """Return an attribute that tensors do not have: None where the example has None, else with its node."""
        guide = self.tracer._state.guide
        is_torchs = not is_users(frame) and not is_ours(frame) and is_compared_by_identity(frame)
        is_none = guide is not None and guide.kind_of(self) is not None and guide.kind_of(attribute) is NoneType
        if is_none or (guide is not None and is_torchs):
            return ask("identity", attribute, frame)
        if is_torchs:
            self.tracer._state.expect_given(attribute.node)
        if is_users(frame) and not is_called(frame):
            attribute.node  # noqa: B018 - it may be compared only, and then the program checks it
        return attribute

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # torch also reads it before it accepts an object as a tensor: only reads in the traced code are answered
        frame = sys._getframe(1)
        if frame.f_code is _OF_ABSTRACT_CLASSES and frame.f_back is not None:
            frame = frame.f_back
        is_asked = self.tracer._state.is_tracing and not is_ours(frame) and not is_of_torch(frame)
        if is_asked and (asks_for_class(frame) or called_at(frame) is isinstance):
            return kind_for(self, frame)
        return type(self)

    def __dir__(self) -> list[str]:
        frame = sys._getframe(1)
        return dir(kind_for(self, frame)) if self.tracer._state.is_tracing and is_users(frame) else dir(type(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Proxy:
        frame = sys._getframe(1)
        while frame.f_code.co_filename == copy.__file__ and frame.f_back is not None:
            frame = frame.f_back
        if self.tracer._state.is_tracing and is_users(frame):
            return self.tracer.create_proxy("call_function", copy.deepcopy, (self,), {})
        return self

    def __contains__(self, item: Any) -> bool:
        frame = sys._getframe(1)
        if isinstance(item, str) and issubclass(kind_for(self, frame), str):
            return item in ask("text", self, frame)
        return any(element is item or element == item for element in self)

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:
        """Record a call of the value."""
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __iter__(self) -> Iterator[Any]:
        named = unpacked(self, sys._getframe(1))
        return self.tracer.iter(self) if named is None else named

    def __abs__(self) -> Proxy:
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    def __bool__(self) -> bool:
        return self.tracer.to_bool(self)

    def __len__(self) -> int:
        return ask("len", self, sys._getframe(1))

    def __int__(self) -> int:
        return ask("int", self, sys._getframe(1))

    def __float__(self) -> float:
        return ask("float", self, sys._getframe(1))

    def __complex__(self) -> complex:
        return ask("complex", self, sys._getframe(1))

    def __array__(self, *_: Any, **__: Any) -> Any:
        return ask("array", self, sys._getframe(1))

    def __hash__(self) -> int:
        frame = sys._getframe(1)
        if self.tracer._state.is_tracing and frame.f_locals.get("self") is not self.tracer:
            return ask("hash", self, frame)
        return id(self)

    def __round__(self, ndigits: int | None = None) -> Proxy:
        return self.tracer.create_proxy("call_function", round, (self,) if ndigits is None else (self, ndigits), {})

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def keys(self) -> Any:
        """Return the result of ``TracerBase.keys``."""
        return self.tracer.keys(self)

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record a call of a torch function or method that has a proxy among its arguments."""
        args = args or ()
        kwargs = kwargs or {}
        tracer = _only_tracer(orig_method, args, kwargs)
        kind = type(orig_method)
        is_function = kind is BuiltinFunctionType or kind is FunctionType  # as most are, which takes fewer checks
        if not is_function and isinstance(orig_method, torch._C.ScriptMethod):
            return tracer.create_proxy("call_method", orig_method.name, (orig_method.owner, *args), kwargs)  # type: ignore[attr-defined]
        if orig_method in _tensor_methods() or orig_method.__name__ == "__get__":
            if orig_method is torch.Tensor.__getitem__ and _has_slice(
                args[1]
            ):  # a real tensor, indexed by a traced size
                return tracer.create_proxy("call_function", operator.getitem, args, kwargs)
            return tracer.create_proxy("call_method", orig_method.__name__, args, kwargs)
        if orig_method is torch._assert:
            condition, message = (*args, *kwargs.values())
            return record_assertion(tracer, condition, message)
        if not is_function and isinstance(orig_method, torch._ops.HigherOrderOperator):
            _refuse_callables(orig_method, args)
        return tracer.create_proxy("call_function", orig_method, args, kwargs)


def _has_slice(index: Any) -> bool:
    """Return whether an index has slices, which TorchScript accepts for operators only, not for methods."""
    return any(isinstance(part, slice) for part in (index if isinstance(index, tuple) else (index,)))


class _MatchedAsSequence(abc.ABC):  # noqa: B024 - it stands for a flag
    """Classes whose values are compared with sequence patterns (``case a, b:``).

    Values of other classes match none, without any call: a program would silently take the other branch. This class
    sets the flag that ``collections.abc.Sequence`` sets, without being one.
    """

    __abc_tpflags__ = 1 << 5  # Py_TPFLAGS_SEQUENCE


_MatchedAsSequence.register(Proxy)


class Attribute(Proxy):
    """An attribute of a proxy: a ``getattr`` node once its value is used, a method call if it is called."""

    __slots__ = ("_node", "attr", "root")

    def __init__(self, root: Proxy, attr: str) -> None:
        if not isinstance(root, Proxy):
            raise refusal("an Attribute is one of a Proxy", root, error=TraceError)
        if not isinstance(attr, str):
            raise refusal("the name of an Attribute is a string", attr, error=TraceError)
        self.root = root
        self.attr = attr
        self.tracer = root.tracer
        self._node: Node | None = None

    def __getattr__(self, k: str) -> Attribute:
        if self.attr == "shape" and not hasattr(torch.Size, k):  # numpy looks up methods before it converts
            raise AttributeError(f"'torch.Size' object has no attribute {k!r}")
        return super().__getattr__(k)

    def _shown(self) -> str:
        # printing it is no use
        return f"{self.root._shown()[:-1]}.{self.attr})" if self._node is None else super()._shown()

    def _reading(self, marks: Marks) -> Reading:
        return getattr(self.root._reading(marks), self.attr) if self._node is None else super()._reading(marks)

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The ``getattr`` node, made on first use."""
        if self._node is None or self._node._erased:  # erased with an attempt
            tracer = self.tracer
            around = tracer._state.body  # perhaps the value is made around the function that is captured now
            with nullcontext() if around is None else around.within(self.root.node.graph):
                self._node = tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:
        """Record a call of the method."""
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


Proxy._attribute = Attribute


class ParameterProxy(Proxy):
    """A parameter whose shape is real while tracing (``Tracer(param_shapes_constant=True)``)."""

    __slots__ = ("name", "param")

    def __init__(self, tracer: TracerBase, node: Node, name: str, param: torch.Tensor) -> None:
        super().__init__(node, tracer)
        self.name = name
        self.param = param

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    def __getattr__(self, k: str) -> Any:
        return getattr(self.param, k) if k in _OF_SHAPE else super().__getattr__(k)


_OF_SHAPE = frozenset({"shape", "ndim", "size", "dim", "numel", "nelement"})
"""The attributes that are real for a parameter with a real shape."""


class MetaProxy(Proxy):
    """A proxy that also computes: torch functions of it store their fake result in ``node.meta["val"]``."""

    __slots__ = ("fake_mode",)

    def __init__(self, node: Node, tracer: TracerBase | None = None, fake_mode: Any = None) -> None:
        super().__init__(node, tracer)
        self.fake_mode = fake_mode

    def __repr__(self) -> str:
        return f"MetaProxy({self.node.name})"

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record the call, and make it on the fake values too."""
        call = (args or (), kwargs or {})
        recorded = super().__torch_function__(orig_method, types, *call)
        mode = next(leaf.fake_mode for leaf in pytree.tree_leaves(call) if isinstance(leaf, MetaProxy))
        values, keywords = pytree.tree_map_only(Proxy, lambda proxy: proxy.node.meta["val"], call)
        with mode:
            recorded.node.meta["val"] = orig_method(*values, **keywords)
        return MetaProxy(recorded.node, recorded.tracer, mode)


def _add_operators() -> None:
    def method(row: PythonOperator, reflected: bool) -> Callable[..., Proxy]:
        function = row.function
        if reflected:
            return lambda self, other: self.tracer.create_proxy("call_function", function, (other, self), {})
        if row.arity == 1:
            return lambda self: self.tracer.create_proxy("call_function", function, (self,), {})
        if function is operator.pow:
            return lambda self, other, *modulus: self.tracer.create_proxy(
                "call_function", pow if modulus else function, (self, other, *modulus), {}
            )
        return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})

    def augmented_method(function: Callable[..., Any], in_place: Callable[..., Any]) -> Callable[..., Proxy]:
        def augmented(self: Proxy, other: Any) -> Proxy:
            tracer = self.tracer
            if (
                sys._getframe(1).f_code.co_filename in GENERATED_FILES
            ):  # where it was written because the write is visible
                named = function.__name__ if tracer._state.is_tracing else None
                return tracer.create_proxy("call_function", in_place, (self, other), {}, named)
            result = tracer.create_proxy("call_function", function, (self, other), {})
            tracer._state.augmented.append(result.node)
            return result

        return augmented

    for function, in_place in IN_PLACE_OF.items():
        name = f"__{in_place.__name__}__"
        if hasattr(torch.Tensor, name):
            setattr(Proxy, name, augmented_method(function, in_place))
    for row in OPERATORS:
        if row.in_place:
            continue
        setattr(Proxy, f"__{row.method}__", method(row, reflected=False))  # also __eq__, beside the __hash__ above
        if row.reflected:
            setattr(Proxy, f"__r{row.method}__", method(row, reflected=True))


_add_operators()


def is_tensor_method(function: Any) -> bool:
    """Return whether a function is a method or property of tensors."""
    return function in _tensor_methods()


@functools.cache
def _tensor_methods() -> frozenset[Callable[..., Any]]:
    """Return the methods and properties of tensors.

    ``torch.overrides.is_tensor_method_or_property`` gives the same answer, but each call sets the filters of warnings,
    which all threads share.
    """
    return frozenset(get_overridable_functions()[torch.Tensor])


# Callers.


def _is_compared(frame: FrameType) -> bool:
    """Return whether a line of the user's code compares the value it reads by identity; ours do so on purpose."""
    frame = asker(frame)
    return is_users(frame) and is_compared_by_identity(frame)


def _only_tracer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracerBase:
    """Return the tracer of all proxies among the arguments of a call."""
    if len(args) == 1 and type(args[0]) is Proxy and not kwargs:  # as most
        return args[0].tracer
    tracers: dict[int, TracerBase] = {}
    pending: list[Any] = [*args, *kwargs.values()]
    for value in pending:
        if isinstance(value, Proxy):
            # tracers that append to one graph count as one
            tracers.setdefault(id(getattr(value.tracer, "graph", value.tracer)), value.tracer)
        elif (kind := held_kind(value)) is not None:
            pending.extend(kind.parts(value))
    if len(tracers) == 1:
        return next(iter(tracers.values()))
    live = next((tracer for tracer in tracers.values() if not tracer._state.is_finished), next(iter(tracers.values())))
    raise TraceError(
        f"Found multiple different tracers {list(tracers.values())} while trying to trace operations "
        f"{getattr(function, '__name__', function)}",
        where=caller_location(live),
        why="values of different traces cannot meet in one operation",
        remedy="do not keep traced values in globals or attributes; pass them as arguments",
    )


def _refuse_callables(operator_: Any, args: tuple[Any, ...]) -> None:
    for arg in args:
        if callable(arg) and not isinstance(arg, (Proxy, torch.nn.Module)):
            raise TraceError(
                f"unable to symbolically trace the HigherOrderOperator {operator_.name()}",
                value=f"{arg!r}",
                why="it received an arbitrary callable argument, whose body a node cannot hold",
                remedy="put the call in a function marked fx.wrap",
            )


def ask_identity(attribute: Attribute, frame: FrameType) -> Any:
    """Return the value of an attribute that code in ``frame`` compares by identity, if it is known.

    Raises:
        TraceError: it is not.
    """
    what = f"cannot compare the {attribute.attr} of a traced value by identity"
    return ask("identity", attribute, frame, what, value=repr(attribute))


def describe_call(kind: str, target: Target) -> str:
    """Return a description of a call that has no node yet, for messages."""
    return f"{kind}[{target if isinstance(target, str) else _name_of(target) or target}]"


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", "")


def _outlived(call: str) -> TraceError:
    return TraceError(
        "a traced value is used after its trace is over",
        where=user_location(sys._getframe(2), {}),
        value=call,
        why="the graph it belongs to is complete",
        remedy="do not keep traced values in globals, closures or attributes; return them from the program",
    )

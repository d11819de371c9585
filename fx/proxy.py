"""``Proxy``, which stands in for every value while a program is captured, and tracers' base (paper, section 4.1)."""

from __future__ import annotations

import abc
import enum
import functools
import inspect
import itertools
import linecache
import operator
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FrameType, FunctionType, GetSetDescriptorType, NoneType
from typing import Any, ClassVar, NoReturn

import torch
from torch.overrides import get_overridable_functions
from torch.utils import _pytree as pytree

from fx.arguments import expect, expect_callable, explained, here, refusal, shown
from fx.assertions import KINDS, check, check_kind, check_value, is_false
from fx.bytecode.dialects import unknown_version
from fx.bytecode.mentions import (
    IDENTITIES,
    asks_for_class,
    count_to_unpack,
    is_compared_by_identity,
    matches_sequence,
    unpack_count,
    unpack_ends,
)
from fx.bytecode.values import Names, is_calling
from fx.checks.messages import Marks, MessageTemplate, Reading, message_given, message_made_by, message_of
from fx.checks.questions import count_of, kind_of
from fx.checks.recognition import Check, Comparison, hash_of_option, leaves, pending_check, values_of
from fx.checks.texts import is_only_shown
from fx.container_kinds import container_kind, held_kind
from fx.errors import GraphError, MissingAttributeError, TracedValueError, TraceError, UnsupportedTraceError
from fx.frames import callers, is_ours, is_users, user_location, user_stack
from fx.graph import Graph
from fx.immutable_collections import immutable_dict
from fx.naming.printing import describe
from fx.node import Argument, Node, Target, base_types
from fx.operator_schemas import check_for_mutable_operation
from fx.operators import effects
from fx.operators.effect_rules import Effect, changes_layout, find_rule
from fx.operators.python import COMPARISONS, IN_PLACE_OF, OPERATORS, PythonOperator
from fx.operators.tensor_queries import names_of
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

IMMEDIATE_TYPES = frozenset(
    {int, float, bool, str, bytes, complex, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size,
     torch.memory_format, torch.layout, torch.qscheme}
)  # fmt: skip
"""Types whose values stand in arguments as they are."""
_CLASSES = frozenset(map(id, (list, dict, set, tuple, int, float, bool, complex, str)))
"""Classes of Python's that do so themselves, as in ``defaultdict(list)`` and ``x.to(float)``."""


@dataclass
class Scope:
    """The module whose ``forward`` is being traced."""

    module_path: str
    """Dotted path from the root; empty for the root."""
    module_type: Any
    """Class of the module; None for the root."""


class ScopeContextManager:
    """Sets a tracer's scope for the time of a ``with`` block."""

    def __init__(self, scope: Scope, current_scope: Scope) -> None:
        for one in (scope, current_scope):
            expect(one, Scope, "a ScopeContextManager takes Scopes", error=TraceError)
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
"""Beginnings of attributes that libraries ask objects for, the second line of functions that they wrap."""


class RecordingState:
    """What is known while operations are recorded: that a graph is added to, or, in capture, all of one run."""

    is_tracing: bool = False
    """Whether a program is being run."""
    is_finished: bool = False
    """Whether the run is over."""
    refused: TraceError | None = None
    """What ends the trace, whether or not the traced code catches it."""
    makes_output: bool = False
    """Whether the arguments that are made are what the program returns."""
    returned_by: Any = None
    """The traced function, once it has returned."""
    caught: Any = None
    """What watches which exceptions the traced code handles; None where it handles none."""
    starred: Any = ()
    """What stands for the elements of shapes that a call spreads, until that call is recorded."""
    guide: Any = None
    """What knows example inputs, if there are some."""
    indexed: Any = ()
    """The guards of integers that instructions asked for, until a node is made."""

    def __init__(self) -> None:
        """The state at the start."""
        self.locations: dict[tuple[int, int], SourceLocation] = {}
        """The user's lines that were met, by code and instruction."""
        self.attributes_read: list[weakref.ref[Attribute]] = []
        """The attributes of values that were read since the last change of a layout."""
        self.reads_recorded: list[Node] = []
        """The nodes of those that were recorded because of one."""
        self.augmented: list[Node] = []
        """The nodes of augmented assignments (``x += y``)."""
        self.flag_defaults: set[Node] = set()
        """The inputs with a flag as their default, by which a question for their truth is answered."""
        self.written: dict[str, tuple[Proxy, str]] = {}
        """What was written of traced values into messages: each with its value, and the format."""


class TracerBase:
    """What makes nodes and proxies; ``Tracer`` adds what makes them for a whole module."""

    graph: Graph
    record_stack_traces: bool = False
    """Keep the text of the whole stack in ``node.meta["stack_trace"]``, not only the user's line."""
    check_mutable_operations: bool = False
    """Refuse operations that write to their arguments."""
    trace_asserts: bool = True
    """Record checks (``assert``, ``if …: raise``) on traced values as nodes; where False they are errors."""
    proxy_buffer_attributes: bool = False
    """Read buffers as ``get_attr`` nodes, like parameters, instead of as the tensors they are."""
    traced_func_name: str = "forward"
    """The method of the root module that is traced."""

    scope: Scope
    module_stack: dict[str, tuple[str, Any]]
    _state: RecordingState
    """What belongs to one run, or to the graph that is added to."""

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
        if self.check_mutable_operations:
            where = user_location(sys._getframe(1), state.locations)
            self._refuse_writes(kind, target, args, kwargs, where)
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        node.source = location = user_location(sys._getframe(1), state.locations)
        meta = current_meta()
        if meta is not None:
            node.meta.update(meta)
        if self.module_stack:
            node.meta["nn_module_stack"] = self.module_stack
        if args and type(args[0]) is Node and args[0]._op == "get_attr":
            self.attribute_used(node, str(args[0]._target))
        if state.caught is not None and (names := state.caught.names_at(sys._getframe(1))):
            node.meta["handled"] = names
        if self.record_stack_traces and kind != "placeholder":
            node.stack_trace = user_stack(sys._getframe(1))
        if location is not None and location.is_compared is not False and state.is_tracing:
            self.made_where_it_may_be_compared(node, location)
        return node

    def made_where_it_may_be_compared(self, node: Node, location: SourceLocation) -> None:
        """Called with a node whose value the code at its location may compare by identity."""

    def _refuse_writes(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        where: SourceLocation | None,
    ) -> None:
        if kind == "call_function":
            check_for_mutable_operation(target, args, kwargs, where=where)  # type: ignore[arg-type]
        effect = None
        if kind == "call_module":
            effect = effects._effect_of_module(self.root.get_submodule(str(target)))
        elif kind in ("call_function", "call_method"):
            rule = find_rule(target)
            effect = rule if rule is None or isinstance(rule, Effect) else rule(args, kwargs)
        if effect is not None and effect.kind == "write":
            does = effect.does if effect.written is None else f"{effect.does} its argument"
            raise GraphError(
                f"Tried to trace mutable operation {describe_call(kind, target)}",
                where=where,
                why=f"the tracer was told to capture operations without side effects only, and this one {does}",
                remedy="call its functional form, or trace with check_mutable_operations=False",
            )

    def proxy(self, node: Node) -> Proxy:
        """The proxy for a node."""
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
            TraceError: an argument cannot be held by a node, or the trace is over.
        """
        state = self._state
        caught = state.caught
        if caught is not None and caught.pause():
            try:
                return TracerBase.create_proxy(self, kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
            finally:
                caught.resume()
        if state.is_finished:
            raise _outlived(describe_call(kind, target))
        if state.indexed:
            self._take_back_guards(args, kwargs)
        if state.starred:
            args, kwargs = self._spread(kind, target, args, kwargs)
        if type(args) is not tuple or type(kwargs) is not dict:
            expect(args, tuple, "args of create_proxy is a tuple", error=TraceError)
            expect(kwargs, (dict, NoneType), "kwargs of create_proxy is a dict", error=TraceError)
        if proxy_factory_fn is not None:
            expect_callable(
                proxy_factory_fn, "proxy_factory_fn of create_proxy makes a Proxy of a node", error=TraceError
            )
        if state.attributes_read and changes_layout(
            target if kind == "call_method" else getattr(target, "__name__", "")
        ):
            read, state.attributes_read = state.attributes_read, []
            for attribute in [one for reference in read if (one := reference()) is not None]:
                if attribute._node is None or attribute._node._erased:  # recorded while it is what was read
                    state.reads_recorded.append(attribute.node)
        node_args = self.create_arg(args)
        node_kwargs = self.create_arg(kwargs) if kwargs else {}
        node = self.create_node(kind, target, node_args, node_kwargs, name, type_expr)
        return self.proxy(node) if proxy_factory_fn is None else proxy_factory_fn(node)

    def create_arg(self, a: Any) -> Argument:
        """Return what a node holds for the Python value ``a``: nodes for proxies, containers of them, immediate values.

        Raises:
            TraceError: ``a`` belongs to another trace, is a dict with traced keys, or no node can hold it.
        """
        kind = type(a)
        if kind is Proxy:
            node = a.node
            return node if node.graph is self.graph else self._node_of(a)
        if kind in IMMEDIATE_TYPES:
            # As an f-string makes it of a traced value: the text would be a constant of the program.
            if kind is str and self._state.written and any(text in a for text in self._state.written):
                self._text_refused(a)
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

    def create_attribute(self, root: Proxy, name: str) -> Node:
        """Make the node of an attribute of a proxy."""
        return self.create_proxy("call_function", getattr, (root, name), {}).node

    def attribute_used(self, node: Node, path: str) -> None:
        """Called with each node whose first argument is the attribute at ``path``."""

    def attribute_arg(self, a: Any) -> Argument:
        """A node that fetches ``a`` from the root, if ``a`` is something a root can hold; ``NotImplemented`` if not."""
        return NotImplemented

    def _other_arg(self, a: Any) -> Argument:
        if isinstance(a, Proxy):
            return self._node_of(a)
        fetched = self.attribute_arg(a)
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
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and isinstance(a, numpy.generic) and not self._state.makes_output:
            return self.create_arg(a.item())  # functions of torch take both alike; what is returned keeps its class
        raise self._cannot_hold(a)

    def _cannot_hold(self, a: Any) -> UnsupportedTraceError:
        why = "arguments are traced values, numbers, strings, dtypes, devices, enums, and containers of these"
        if container_kind(a) is not None:
            why += "; the class of this one does not make the same of its parts"
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

    # What a proxy cannot do. Override to decide otherwise.

    def to_bool(self, obj: Proxy) -> bool:
        """The truth value of a proxy. A check is recorded and passes; anything else cannot be decided.

        Raises:
            TraceError: the program branches on a traced value.
        """
        expect(obj, Proxy, "a tracer's to_bool takes a Proxy", error=TraceError)
        frame = outside_fx(sys._getframe(1))
        compared = Comparison(_name_of_operation(obj.node), Proxy)
        if self.trace_asserts and all(map(leaves, callers(frame))):
            found = pending_check(frame, compared)
            condition = None if found is None else self._condition(obj, found, frame)
            if found is not None and condition is not None:
                return self._record_check(condition, found, frame)
        return self.answer(
            "bool",
            obj,
            "symbolically traced variables cannot be used as inputs to control flow",
            where=user_location(frame, {}),
            value=describe(obj.node),
            why="whether it is true is known only when the module runs" + _unread("checks are not recognized"),
            remedy="decide from a module attribute, fix the argument with concrete_args, use torch.where, or put "
            "the branch in a function marked fx.wrap",
        )

    def _record_check(self, condition: Any, found: Check, frame: FrameType) -> bool:
        """Add nodes that raise at run time where the traced program would have; return what lets it go on."""
        if isinstance(condition, Proxy):
            message = self._message(found, frame)
            if found.raises_if:
                # "== False" is exact for what a comparison gives, and reads better than a call
                node = condition.node
                exact = node.op == "call_function" and node.target in (*COMPARISONS, operator.and_)
                condition = operator.eq(condition, False) if exact else is_false(condition)
            self._assert(condition, message)
        return not found.raises_if

    def _condition(self, asked: Proxy, found: Check, frame: FrameType) -> Any:
        """Return the condition of a check, of which ``asked`` is asked for first, or what it is if that is known; None
        where no graph can hold it.

        The program evaluates several conditions, where eager code may stop at the first; so only comparisons of what
        every tensor has (number of dimensions, dtype, …) are combined.
        """
        if found.options:
            value, first = asked.node.args[:2]
            if not isinstance(value, Node) or first is not found.options[0]:
                return None
            others = [Proxy(value, self) == option for option in found.options[1:]]
            return functools.reduce(operator.or_, others, asked)
        if not found.rest:
            return asked
        last = next(reversed(self.graph.nodes))
        conditions: list[tuple[Any, bool]] = [(asked, found.raises_if)]
        is_known = True
        try:
            conditions += values_of(found.rest, frame, Proxy)
        except (LookupError, TypeError):  # what they compute runs functions of the program
            is_known = False
        made = self._made_since(last)
        traced = [(value, raises_if) for value, raises_if in conditions if isinstance(value, Proxy)]
        real = [(value, raises_if) for value, raises_if in conditions if not isinstance(value, Proxy)]
        decided = any(bool(value) is not raises_if for value, raises_if in real)
        harmless = all(value.node.target in COMPARISONS for value, _ in traced) and all(map(_cannot_fail, made))
        if decided or not is_known or not harmless:
            for node in made:
                self.graph.erase_node(node)
            return (not found.raises_if) if decided else None
        combine = operator.and_ if found.raises_if else operator.or_
        alike = [value if raises_if is found.raises_if else operator.eq(value, False) for value, raises_if in traced]
        return functools.reduce(combine, alike)

    def record_assertion(self, condition: Any, message: Any) -> Proxy:
        """Record a check, with the message that the program gives it, or a function that makes one."""
        if not isinstance(message, FunctionType):
            return self._assert(condition, message_given(message, self._shown_in_messages))
        code = message.__code__
        source = linecache.getline(code.co_filename, code.co_firstlineno).strip() or "a check has failed"
        return self._assert(condition, message_made_by(message, self._shown_in_messages) or MessageTemplate(source))

    def _assert(self, condition: Any, message: MessageTemplate) -> Proxy:
        values = [Proxy(node, self) for node in message.values]
        target: Any = check if values else torch._assert
        return self.create_proxy("call_function", target, (condition, message.text, *values), {})

    def _message(self, found: Check, frame: FrameType) -> MessageTemplate:
        """Return what a check says when it fails; where functions of the program would have to run, its source."""
        names = Names.of_frame(frame)
        return message_of(found.raised, names, self._shown_in_messages) or MessageTemplate(found.message)

    def _shown_in_messages(self, value: Any, marks: Marks) -> Any:
        """Return what a message reads of a traced value, or of text in which some stand; other values are themselves.

        Raises:
            LookupError: the value is of another trace, or nothing reads such an attribute.
        """
        if isinstance(value, str):
            return self._marked(value, marks)
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(self._shown_in_messages(one, marks) for one in value)
        if not isinstance(value, Proxy):
            return value
        if isinstance(value, Attribute) and value._node is None:
            return getattr(self._shown_in_messages(value.root, marks), value.attr)
        if value.node.graph is not self.graph:
            raise LookupError(value.node.name)
        return Reading(value.node, marks)

    def _marked(self, text: str, marks: Marks) -> str:
        """Return text with marks for the traced values that were written in it before."""
        written = self._state.written

        def mark(place: re.Match[str]) -> str:
            value, form = written[place[0]]
            return self._shown_in_messages(value, marks).mark("", form)

        longest_first = sorted(filter(text.__contains__, written), key=len, reverse=True)
        return re.sub("|".join(map(re.escape, longest_first)), mark, text) if longest_first else text

    def _made_since(self, last: Node) -> list[Node]:
        """The nodes behind ``last``, from the end."""
        return list(itertools.takewhile(lambda node: node is not last, reversed(self.graph.nodes)))

    def _refusal(self, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> TraceError:
        """An error that ends the trace even if the traced program catches it."""
        self._state.refused = kind(what, **lines)
        return self._state.refused

    def _text_refused(self, text: str) -> NoReturn:
        raise self._refusal(_BY_TEXT, where=caller_location(self), value=text, **_WHY_NO_TEXT)

    def _text_of(self, obj: Proxy, write: Callable[[Any], str], text: str) -> str:
        """The text of a value, if it is known what that is."""
        where = caller_location(self)
        return write(self.answer("text", obj, _BY_TEXT, where=where, value=text, **_WHY_NO_TEXT))

    def answer(self, question: str, obj: Proxy, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> Any:
        """Return what the program gets where it cannot go on without the value of a proxy; here nothing is known of
        it.

        Args:
            question: what Python asks for: ``bool``, ``int``, ``float``, ``complex``, ``index``, ``len``, ``iter``,
                ``match``, ``hash``, ``text``, ``identity`` or ``array``.
            obj: the proxy.
            what: the first line of the error.
            kind: the class of the error.
            lines: its other lines.

        Raises:
            TraceError: the error.
        """
        if lines.get("remedy") and (question in ("len", "iter") or kind_of(obj.node)[0] is not torch.Tensor):
            lines["remedy"] += ", or give symbolic_trace example_inputs, which say it"
        raise self._refusal(what, kind, **lines)

    def is_of_kind(self, value: Proxy, certain: bool, kind: type, where: object) -> type:
        """Let the program check that a value is of the class that was answered to the traced code, and return it."""
        checked = (user.target is check_kind and user.args[1:2] == (kind.__name__,) for user in value.node.users)
        if not certain and kind in KINDS.values() and not any(checked):
            message = f"the program was captured for a value of {kind}: {where}"
            self.create_proxy("call_function", check_kind, (value, kind.__name__, message), {})
        return kind

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """The elements of a proxy, where its node says how many there are; the program checks that where it may differ.

        Raises:
            TraceError: it does not say so.
        """
        expect(obj, Proxy, "a tracer's iter takes a Proxy", error=TraceError)
        frame = outside_fx(sys._getframe(1))
        if (count := self._count(obj, frame)) is not None:
            return (obj[index] for index in range(count))  # type: ignore[index]
        self.real_value_needed(frame)
        before = self._state.refused
        what = "Proxy object cannot be iterated"
        lines: dict[str, Any] = {
            "where": caller_location(self),
            "value": describe(obj.node),
            "why": "how many elements it has is known only when the module runs (only `a, b = value` says it)"
            + _unread("`a, b = value` is not recognized"),
            "remedy": "index it with numbers, unpack it into names, use the * or ** parameters as they are, or put the "
            "loop in a function marked fx.wrap",
        }  # fmt: skip
        refusal = self._refusal(what, **lines)
        stands = self._stands_for(obj, frame, refusal)
        self._state.refused = before
        return iter((self._state.starred[-1],)) if stands else self.answer("iter", obj, what, **lines)

    def unpack(self, obj: Proxy, count: int, frame: FrameType) -> Iterator[Any]:
        """The elements that ``a, b = value`` names, which ``frame`` is doing with a proxy."""
        return (obj[index] for index in range(count))  # type: ignore[index]

    def _count(self, obj: Proxy, frame: FrameType) -> int | None:
        """Return how many elements a proxy has; the program checks it where its node does not promise that."""
        found = count_of(obj.node)
        if found is None and (needed := count_to_unpack(frame)) is not None:
            found = needed, False
        if found is None:
            return None
        count, certain = found
        checked = any(
            user.target is len and any(one.target is check_value for one in user.users) for user in obj.node.users
        )
        if not certain and not checked:
            message = f"the program was captured for {count} elements: {user_location(frame, self._state.locations)}"
            number = self.create_proxy("call_function", len, (obj,), {})
            self.create_proxy("call_function", check_value, (number, count, message), {})
        return count

    def _stands_for(self, obj: Proxy, frame: FrameType, refusal: TraceError) -> bool:
        """Return whether something now stands for the elements of a shape that ``frame`` spreads in a call."""
        return False

    def _is_spread(self, obj: Proxy, frame: FrameType) -> bool:
        """Return whether something stands for the elements of ``obj``, of which Python asks how many there are."""
        return any(one.whole is obj and one.frame is frame for one in self._state.starred)

    def real_value_needed(self, frame: FrameType) -> None:
        """Called where a traced value is refused because ``frame`` called what takes concrete ones."""

    def keys(self, obj: Proxy) -> Any:
        """Return what ``proxy.keys()`` gives, as in ``**proxy``; by default the call of a method."""
        return Attribute(obj, "keys")()


_BY_TEXT = "cannot decide by the text of a traced value"
_WHY_NO_TEXT: dict[str, Any] = {
    "why": "the value, and so its text, is known only when the module runs",
    "remedy": "decide from a module attribute, or put the line in a function marked fx.wrap",
}


class GraphAppendingTracer(TracerBase):
    """Adds what is done with its proxies to a graph that exists, for passes that write code as Python expressions."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        expect(graph, Graph, "a GraphAppendingTracer adds to a Graph", error=TraceError)
        self.graph = graph


class Proxy:
    """Stands for a value of the program. What is done with it is recorded as nodes.

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
    """What records the operations."""
    _attribute: ClassVar[type[Attribute]]
    """The class of what its attributes are."""
    __array_priority__ = torch.Tensor.__array_priority__
    """Lets numbers of numpy's leave operations to it, as they do to tensors."""

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        if type(node) is not Node:
            expect(node, Node, "a Proxy stands for a node", error=TraceError)
        if tracer is not None and not isinstance(tracer, TracerBase):
            raise refusal("the tracer of a Proxy is a Tracer", tracer, error=TraceError)
        self.tracer = GraphAppendingTracer(node.graph) if tracer is None else tracer
        self.node = node

    def __repr__(self) -> str:
        return self._text(self._shown(), repr, sys._getframe(1))

    def _shown(self) -> str:
        return f"Proxy({self.node.name})"

    def _text(self, text: str, write: Callable[[Any], str], frame: FrameType, spec: str = "") -> str:
        """Text for ``frame``, which asks for it: what stands for that of the value in messages, or that itself."""
        tracer = self.tracer
        if not tracer._state.is_tracing or tracer._state.is_finished:
            return text
        if not is_only_shown(frame):
            return tracer._text_of(self, write, text)
        if not is_ours(frame):
            tracer._state.written[text] = (self, spec)
        return text

    def __str__(self) -> str:
        return self._text(self._as_shown(), str, sys._getframe(1))

    def __format__(self, spec: str) -> str:
        # messages of checks are formatted when these fail: see fx.checks.messages
        shown = f"{self._as_shown()[:-1]}:{spec})" if spec else self._as_shown()
        return self._text(shown, lambda value: format(value, spec), sys._getframe(1), spec)

    def _as_shown(self) -> str:
        return self._shown() if type(self).__repr__ is Proxy.__repr__ else repr(self)

    def __getattr__(self, k: str) -> Attribute:
        # reading an attribute records nothing yet: most are methods about to be called
        if k.startswith(_NOT_RECORDED):
            raise AttributeError(k)
        attribute = self._attribute(self, k)
        if k in IDENTITIES and self.tracer._state.is_tracing and _is_compared(sys._getframe(1)):
            return self.tracer.answer(
                "identity",
                attribute,
                f"cannot compare the {k} of a traced value by identity",
                where=caller_location(self.tracer),
                value=repr(attribute),
                why="what it is is known only when the module runs, and Python compares the object that stands for it",
                remedy="decide from a module attribute, or put the line in a function marked fx.wrap",
            )
        if k in _PROPERTIES:
            self.tracer._state.attributes_read.append(weakref.ref(attribute))
        return attribute

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # torch asks too, before it takes an object for a tensor: only what is written in the traced code is answered
        frame = sys._getframe(1)
        is_asked = self.tracer._state.is_tracing and is_users(frame)
        if is_asked and (asks_for_class(frame) or is_calling(frame, isinstance)):
            return self._kind_for(frame)
        return type(self)

    def _kind_for(self, frame: FrameType) -> type:
        """The class of the value, as code in ``frame`` is told; the program checks it where it may be another."""
        kind, certain = kind_of(self.node)
        return self.tracer.is_of_kind(self, certain, kind, user_location(frame, {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Proxy:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:
        """Record a call of the value."""
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        count = unpack_count(frame)
        if count is not None:
            return self.tracer.unpack(self, count, frame)
        ends = unpack_ends(frame)
        return self.tracer.iter(self) if ends is None else self._ends(*ends, frame)

    def _ends(self, first: int, last: int, frame: FrameType) -> Iterator[Any]:
        """The elements at both ends, for a program that asks for no others."""
        tracer = self.tracer
        if first and last and ((known := count_of(self.node)) is None or not known[1] or known[0] < first + last):
            count = tracer.create_proxy("call_function", len, (self,), {})
            enough = tracer.create_proxy("call_function", operator.ge, (count, first + last), {})
            message = f"not enough values to unpack (expected at least {first + last}): "
            tracer._assert(enough, MessageTemplate(f"{message}{user_location(frame, tracer._state.locations)}"))
        return (self[index] for index in (*range(first), *range(-last, 0)))  # type: ignore[index]

    def __abs__(self) -> Proxy:
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    def __bool__(self) -> bool:
        return self.tracer.to_bool(self)

    def __hash__(self) -> int:
        tracer = self.tracer
        if tracer._state.is_tracing and sys._getframe(1).f_locals.get("self") is not tracer:
            if tracer.trace_asserts and (known := hash_of_option(sys._getframe(1))) is not None:
                return known  # the set then asks whether the value is equal to that one
            return self._answered(
                "hash",
                "cannot use a traced value as the key of a dict or an element of a set. "
                "Keys for dictionaries used as an argument cannot contain a Node",
                why="which entry it would be is known only when the module runs",
                remedy="compare it instead, use a list of pairs, or put the look-up in a function marked fx.wrap",
            )
        return id(self)

    def _answered(self, question: str, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> Any:
        """Answer what Python asks of the value, or raise what says ``what``; see ``TracerBase.answer``."""
        where, value = caller_location(self.tracer), describe(self.node)
        return self.tracer.answer(question, self, what, kind, where=where, value=value, **lines)

    def _real_number(self, kind: str) -> Any:
        self.tracer.real_value_needed(outside_fx(sys._getframe(1)))
        return self._answered(
            kind,
            f"cannot convert a traced value to {kind}",
            TracedValueError,
            why="its value is known only when the module runs",
            remedy="compute it from a module attribute, fix the argument with concrete_args, or put the line in a "
            "function marked fx.wrap",
        )

    def __int__(self) -> int:
        return self._real_number("int")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self._answered(
            "array",
            "cannot make an array of numpy's of a traced value",
            TracedValueError,
            why="its elements are known only when the module runs, and what numpy does is not recorded",
            remedy="compute it with functions of torch, or put the line in a function marked fx.wrap",
        )

    def __float__(self) -> float:
        return self._real_number("float")

    def __complex__(self) -> complex:
        return self._real_number("complex")

    def __round__(self, ndigits: int | None = None) -> Proxy:
        return self.tracer.create_proxy("call_function", round, (self,) if ndigits is None else (self, ndigits), {})

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def keys(self) -> Any:
        """See ``TracerBase.keys``."""
        return self.tracer.keys(self)

    def __len__(self) -> int:
        frame = outside_fx(sys._getframe(1))
        if (count := self.tracer._count(self, frame)) is not None and not matches_sequence(frame):
            return count
        if self.tracer._is_spread(self, frame):
            return 1
        if matches_sequence(sys._getframe(1)):
            return self._answered(
                "match",
                "cannot match a traced value against a sequence pattern",
                why="whether it is a sequence, and of how many elements, is known only when the module runs",
                remedy="unpack it (a, b = value), or put the match in a function marked fx.wrap",
            )
        return self._answered(
            "len",
            "'len' is not supported in symbolic tracing by default",
            why="Python requires len to give a real number, which is known only when the module runs",
            remedy='use value.shape[0], or call fx.wrap("len") at the top level of the module to record the call',
        )

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record a call of a torch function or method that has a proxy among its arguments."""
        args = args or ()
        kwargs = kwargs or {}
        tracer = _only_tracer(orig_method, args, kwargs)
        kind = type(orig_method)
        is_function = kind is BuiltinFunctionType or kind is FunctionType  # as most are, of which less is asked
        if not is_function and isinstance(orig_method, torch._C.ScriptMethod):
            return tracer.create_proxy("call_method", orig_method.name, (orig_method.owner, *args), kwargs)  # type: ignore[attr-defined]
        if orig_method in _tensor_methods() or orig_method.__name__ == "__get__":
            if orig_method is torch.Tensor.__getitem__ and _has_slice(args[1]):  # of a real tensor, by a traced size
                return tracer.create_proxy("call_function", operator.getitem, args, kwargs)
            return tracer.create_proxy("call_method", orig_method.__name__, args, kwargs)
        if orig_method is torch._assert:
            condition, message = (*args, *kwargs.values())
            return tracer.record_assertion(condition, message)
        if not is_function and isinstance(orig_method, torch._ops.HigherOrderOperator):
            _refuse_callables(orig_method, args)
        return tracer.create_proxy("call_function", orig_method, args, kwargs)


def _has_slice(index: Any) -> bool:
    """Return whether an index has slices, which only operators may be given in TorchScript, and no methods."""
    return any(isinstance(one, slice) for one in (index if isinstance(index, tuple) else (index,)))


class _MatchedAsSequence(abc.ABC):  # noqa: B024 - it stands for a flag
    """Classes whose values sequence patterns (``case a, b:``) are compared with.

    All others match none, of which they are not asked: a program would silently go the other way. This is the flag that
    ``collections.abc.Sequence`` sets, without being one.
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
            raise refusal("an Attribute has the name of one", attr, error=TraceError)
        self.root = root
        self.attr = attr
        self.tracer = root.tracer
        self._node: Node | None = None

    def __getattr__(self, k: str) -> Attribute:
        if self.attr == "shape" and not hasattr(torch.Size, k):  # of which numpy asks for methods before it converts
            raise AttributeError(f"'torch.Size' object has no attribute {k!r}")
        return super().__getattr__(k)

    def _shown(self) -> str:
        # printing it is no use
        return f"{self.root._shown()[:-1]}.{self.attr})" if self._node is None else super()._shown()

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The ``getattr`` node, made when first asked for."""
        if self._node is None or self._node._erased:  # by an attempt
            self._node = self.tracer.create_attribute(self.root, self.attr)
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

    @property
    def shape(self) -> torch.Size:
        """Shape of the parameter."""
        return self.param.shape

    def size(self, dim: int | None = None) -> Any:
        """Shape of the parameter, or one size of it."""
        return self.param.size() if dim is None else self.param.size(dim)

    def dim(self) -> int:
        """Number of dimensions of the parameter."""
        return self.param.dim()

    @property
    def ndim(self) -> int:
        """Number of dimensions of the parameter."""
        return self.param.ndim

    def numel(self) -> int:
        """Number of elements of the parameter."""
        return self.param.numel()

    def nelement(self) -> int:
        """Number of elements of the parameter."""
        return self.param.nelement()


class MetaProxy(Proxy):
    """A proxy that also computes: torch functions of it leave their fake result in ``node.meta["val"]``."""

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
        given = (args or (), kwargs or {})
        recorded = super().__torch_function__(orig_method, types, *given)
        mode = next(leaf.fake_mode for leaf in pytree.tree_leaves(given) if isinstance(leaf, MetaProxy))
        values, keywords = pytree.tree_map_only(Proxy, lambda proxy: proxy.node.meta["val"], given)
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
        return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})

    def augmented_method(function: Callable[..., Any], in_place: Callable[..., Any]) -> Callable[..., Proxy]:
        def augmented(self: Proxy, other: Any) -> Proxy:
            tracer = self.tracer
            if sys._getframe(1).f_code.co_filename in GENERATED_FILES:  # where it was written because it shows
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


_OF_EVERY_TENSOR = names_of("sizes", "kind", "autograd")


def _cannot_fail(node: Node) -> bool:
    """Return whether a node computes something that every tensor has, or compares."""
    if node.op == "call_method":
        return node.target in _OF_EVERY_TENSOR and len(node.args) == 1
    if node.target is getattr:
        return node.args[1] in _OF_EVERY_TENSOR
    return node.op == "call_function" and node.target in COMPARISONS


def is_tensor_method(function: Any) -> bool:
    """Return whether a function is a method or property of tensors."""
    return function in _tensor_methods()


@functools.cache
def _tensor_methods() -> frozenset[Callable[..., Any]]:
    """Methods and properties of tensors.

    ``torch.overrides.is_tensor_method_or_property`` says the same, and sets the filters of warnings for each answer,
    which are those of all threads.
    """
    return frozenset(get_overridable_functions()[torch.Tensor])


# Who is asking.


def outside_fx(frame: FrameType) -> FrameType:
    """The nearest frame that is not this package's."""
    while is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def caller_location(tracer: TracerBase) -> SourceLocation | None:
    """The user's line that uses a traced value; the last of the program where it has returned."""
    return user_location(sys._getframe(1), tracer._state.locations) or _last_line(tracer._state.returned_by)


def _is_compared(frame: FrameType) -> bool:
    """Return whether a line of the user's compares what it reads by identity; ours do so on purpose."""
    if is_ours(frame) and frame.f_code.co_name == "getattr" and frame.f_back is not None:  # which a trace replaces
        frame = frame.f_back
    return is_users(frame) and is_compared_by_identity(frame)


def _last_line(function: Any) -> SourceLocation | None:
    """Return where a function that was written in Python ends."""
    code = None if function is None else getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else SourceLocation(code, len(code.co_code) - 2)


def _name_of_operation(node: Node) -> str:
    """``eq`` for all that compares like ``operator.eq``: methods, and functions of torch."""
    target: Any = node.target
    return (target if isinstance(target, str) else str(getattr(target, "__name__", ""))).strip("_")


def _unread(consequence: str) -> str:
    """Return what to add to an error where this version of Python has byte code that cannot be read."""
    unknown = unknown_version()
    return "" if unknown is None else f"; the byte code of {unknown} is not known, so {consequence}"


def _only_tracer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracerBase:
    """The tracer of all proxies among the arguments of a call."""
    if len(args) == 1 and type(args[0]) is Proxy and not kwargs:  # as most
        return args[0].tracer
    tracers: dict[int, TracerBase] = {}
    pending: list[Any] = [*args, *kwargs.values()]
    for value in pending:
        if isinstance(value, Proxy):
            # those that append to one graph are as one
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


def describe_call(kind: str, target: Target) -> str:
    """A call that has no node yet, for messages."""
    return f"{kind}[{target if isinstance(target, str) else getattr(target, '__name__', target)}]"


def _outlived(call: str) -> TraceError:
    return TraceError(
        "a traced value is used after its trace is over",
        where=user_location(sys._getframe(2), {}),
        value=call,
        why="the graph it belongs to is complete",
        remedy="do not keep traced values in globals, closures or attributes; return them from the program",
    )

"""Capture with example inputs: they answer the queries of the traced code, and each answer becomes a guard.

A guard is a check in the program, of the queried value and nothing more: ``x.shape[0] > 1``, not the size. So each size
that the traced code never queries stays free. An input with another answer raises a ``GuardError``. Queries of elements
of tensors are never answered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import FrameType
from typing import Any, cast

import numpy
import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from fx.analysis.guards import spelled
from fx.arguments import shown
from fx.assertions import GUARDS, check_kind, check_value, is_false, name_of_kind
from fx.capture.example_values import ExampleValues, UnknownValueError, cause_of
from fx.capture.restore.places import Pairs, Place, places_of
from fx.checks.questions import refusal_of
from fx.container_kinds import leaves_of, map_leaves
from fx.errors import TraceError, with_article
from fx.frames import user_location
from fx.graph import Graph
from fx.node import Node
from fx.operators.python import COMPARISONS
from fx.operators.tensor_queries import names_of
from fx.proxy import IMMEDIATE_TYPES, Attribute, Proxy, TracerBase

_ABSENT = object()
_NUMBERS = (bool, int, float, complex)
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "complex": complex}
_QUESTIONS = names_of("sizes", "kind", "memory").union(
    "getattr getitem len int float list tuple max min is_false".split()
)
"""Queries that compute nothing from the elements of a tensor, and may be removed if unused."""


class GuidedProxy(Proxy):
    """A proxy whose value for example inputs the tracer knows."""

    __slots__ = ()

    def __index__(self) -> int:
        return _index_of(self, sys._getframe(1))


class GuidedAttribute(Attribute):
    """An attribute of such a proxy."""

    __slots__ = ()

    def __index__(self) -> int:
        return _index_of(self, sys._getframe(1))


GuidedProxy._attribute = GuidedAttribute
GuidedAttribute._attribute = GuidedAttribute


def _index_of(value: Proxy, frame: FrameType) -> int:
    return cast("Any", value.tracer)._state.index(value, frame)


class Guide:
    """The example inputs of one run of a tracer, and the answers that they give."""

    def __init__(
        self, tracer: TracerBase, examples: Mapping[str, Any], mode: FakeTensorMode, graph: Graph | None = None
    ) -> None:
        """Create a guide for queries of the nodes of a graph, by default that of the tracer."""
        self._tracer = tracer
        self.examples = examples
        """The example inputs, by the names of the parameters."""
        self._mode = mode
        self._values = ExampleValues(graph or tracer.graph, tracer.root, mode)
        self._checked: dict[Any, Node] = {}
        self._made: list[Node] = []
        self._kinds_checked: set[Node] = set()
        self._containers: list[tuple[str, Any, list[tuple[Place, Pairs]]]] = []

    # Inputs.

    def placed(self, name: str, proxy: Proxy, where: object) -> Any:
        """Return the value that an input gets: the proxy, a container of proxies, or the only value it may have."""
        plain = name.lstrip("*")
        value = self.examples.get(plain, _ABSENT)
        if name != plain:  # always a tuple or dict
            self._kinds_checked.add(proxy.node)
        return proxy if value is _ABSENT else self._part(proxy, plain, value, where)

    def is_container(self, value: Any) -> bool:
        """Return whether a value is one of the containers that the guide has made for inputs."""
        return any(value is container for _, container, _ in self._containers)

    def parts_of(self, name: str, structure: Any) -> list[Any] | None:
        """Return the examples for the parts of an input that is taken apart; None if the structures differ."""
        value = self.examples.get(name, _ABSENT)
        try:
            return pytree.tree_structure(structure).flatten_up_to(value)
        except ValueError:
            return None

    def know_part(self, node: Node, value: Any) -> None:
        """Note the value of one input."""
        if isinstance(value, torch.Tensor):
            self._values.know(node, self._values.faked(value))
        elif type(value) in IMMEDIATE_TYPES:
            self._values.know(node, value)

    # Bodies of functions that are captured as separate programs.

    def of_body(self, graph: Graph) -> Guide:
        """Return the guide for a body with this graph."""
        return Guide(self._tracer, {}, self._mode, graph)

    def know_as(self, node: Node, compute: Callable[[], Any]) -> None:
        """Note the value of an input of a body, if it can be computed."""
        try:
            self._values.know(node, self._values.computed(compute))
        except Exception:  # an operation may raise anything for fake tensors: then the value is not known
            return

    def value_of(self, value: Any) -> Any:
        """Return the known value of a proxy, or of the proxies in a container.

        Raises:
            UnknownValueError: the example inputs do not determine it.
        """

        def known(leaf: Any) -> Any:
            if isinstance(leaf, Proxy):
                return self._values.of(leaf.node)
            return self._values.faked(leaf) if isinstance(leaf, torch.Tensor) else leaf

        return map_leaves(known, value)

    def _part(self, proxy: Proxy, name: str, value: Any, where: object) -> Any:
        kind = type(value)
        if not is_replaced(value):  # of other classes than tensors and numbers, queries stay unanswered
            self.know_part(proxy.node, value)
            return proxy
        if isinstance(value, (list, tuple)) and kind is not torch.Size:
            self._check_kind(proxy, name, kind, where)
            self._check(self._question(len, proxy), len(value), f"len({name})", where)
            parts = [self._element(proxy, i, f"{name}[{i}]", element, where) for i, element in enumerate(value)]
            return self._container(name, kind(*parts) if kind not in (list, tuple) else kind(parts))
        if kind is dict:
            entries = cast("dict[Any, Any]", value)
            self._check_kind(proxy, name, dict, where)
            self._check(self._question(tuple, proxy), tuple(entries), f"tuple({name})", where)
            parts = {
                key: self._element(proxy, key, f"{name}[{key!r}]", element, where) for key, element in entries.items()
            }
            return self._container(name, parts)
        self._check(proxy, value, name, where)
        return value

    def _element(self, whole: Proxy, key: Any, name: str, value: Any, where: object) -> Any:
        element = whole[key]  # type: ignore[index]
        self._made.append(element.node)
        return self._part(element, name, value, where)

    def _container(self, name: str, container: Any) -> Any:
        self._containers.append((name, container, [(place, place.read()) for place in places_of(container)]))
        return container

    def expect_containers_kept(self, where: object) -> None:
        """Refuse a program that has changed a list or dict among its inputs: its caller would not see the change."""
        for name, container, saved in self._containers:
            if any(place.is_changed(before) for place, before in saved):
                raise TraceError(
                    f"cannot change the {type(container).__name__} {name}, which is an input",
                    where=where,
                    value=shown(container),
                    why="with example inputs the program sees a copy, so that its caller's would stay as it was",
                    remedy="copy it first, as dict(value) or list(value)",
                )

    # Answers.

    def knows(self, obj: Proxy) -> bool:
        """Return whether the value of a proxy is known."""
        try:
            self._values.of(obj.node)
        except UnknownValueError:
            return False
        return True

    def kind_of(self, obj: Proxy) -> type | None:
        """Return the class of a value; None if that is not known."""
        try:
            value = self._values.of(obj.node)
        except UnknownValueError:
            return None
        if isinstance(value, torch.Tensor):
            return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
        plain = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
        return plain.get(type(value), type(value))

    def answer(self, question: str, obj: Proxy, what: str, kind: type[TraceError], **lines: Any) -> Any:
        """Return the answer to a query of the traced code about a value, and add a guard for it.

        Raises:
            TraceError: the example inputs do not determine it.
        """
        try:
            value = self._values.of(obj.node)
            if question in _CONVERSIONS:
                return _CONVERSIONS[question](self._answer_number(obj, value, lines.get("where")))
            return getattr(self, f"_answer_{question}")(obj, value, lines.get("where"))
        except UnknownValueError as error:
            cause = str(error)
        except TraceError:
            raise
        except Exception as error:  # a size that depends on elements, represented by a symbol
            cause = cause_of(error)
        lines["why"] = f"the example inputs do not determine it: {cause}"
        raise self._tracer._refusal(what, kind, **lines)

    def _answer_bool(self, obj: Proxy, value: Any, where: object) -> bool:
        answer = bool(_of_no_tensor(value))
        if isinstance(value, (bool, torch.SymBool)):
            self._check(obj, answer, self._spelled(obj), where)
        else:
            self._check(self._question(is_false, obj), not answer, f"not {self._spelled(obj)}", where)
        return answer

    def _answer_number(self, obj: Proxy, value: Any, where: object) -> Any:
        number = _of_no_tensor(value)
        if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            number = number.node.guard_int("", 0)
        self._check(obj, number, self._spelled(obj), where)
        return number

    def _answer_len(self, obj: Proxy, value: Any, where: object) -> int:
        count = int(value.shape[0]) if isinstance(value, torch.Tensor) else len(value)
        if hasattr(type(value), "n_fields") or hasattr(type(value), "_fields"):  # the length is fixed by its class
            return count
        self._check(self._question(len, obj), count, f"len({self._spelled(obj)})", where)
        return count

    def _answer_match(self, obj: Proxy, value: Any, where: object) -> int:
        if not isinstance(value, (tuple, list)):
            raise UnknownValueError(f"it is of {type(value).__name__}, which is not a sequence")
        self._check_kind(obj, self._spelled(obj), type(value), where)
        return self._answer_len(obj, value, where)

    def _answer_iter(self, obj: Proxy, value: Any, where: object) -> Iterator[Any]:
        node = obj.node
        view = node.target if node.op == "call_method" and node.target in ("keys", "values", "items") else None
        whole = Proxy(cast("Node", node.args[0]), obj.tracer) if view else obj
        container = self._values.of(whole.node) if view else value
        if isinstance(container, Mapping):
            keys = list(cast("Mapping[Any, Any]", container))
            self._check(self._question(tuple, whole), tuple(keys), f"tuple({self._spelled(whole)})", where)
            parts = {"values": lambda key: whole[key], "items": lambda key: (key, whole[key])}  # type: ignore[index]
            return map(parts.get(str(view), lambda key: key), keys)
        return (obj[place] for place in range(self._answer_len(obj, value, where)))  # type: ignore[index]

    def _answer_identity(self, obj: Proxy, value: Any, where: object) -> Any:
        if isinstance(value, (torch.Tensor, torch.SymInt)):
            raise UnknownValueError("it is a tensor" if isinstance(value, torch.Tensor) else "it depends on elements")
        self._check(obj, value, self._spelled(obj), where)
        return value

    _answer_text = _answer_identity

    def _answer_hash(self, obj: Proxy, value: Any, where: object) -> int:
        return hash(self._answer_identity(obj, value, where))

    def _answer_array(self, obj: Proxy, value: Any, where: object) -> Any:
        return numpy.asarray(self._answer_identity(obj, value, where))

    # Integers that Python and torch take by ``__index__``.

    def index(self, obj: Proxy, frame: FrameType) -> tuple[int, Node | None]:
        """Return the integer that a value is, and the node that checks it, if that is new.

        Functions of torch also ask for it before they find that an argument is a traced value and record the call. The
        call then needs no guard: see :meth:`take_back`.
        """
        cause = "it is not an integer"
        try:
            value = self._values.of(obj.node)
            if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
                before = next(reversed(self._tracer.graph.nodes))
                where = user_location(frame, self._tracer._state.locations)
                number = self._answer_number(obj, value, where)
                last = next(reversed(self._tracer.graph.nodes))
                return number, None if last is before else last
        except Exception as error:
            cause = cause_of(error)
        raise refusal_of("index", obj, frame, why=f"the example inputs do not determine it: {cause}")

    def take_back(self, guards: list[Node | None], args: Any) -> None:
        """Remove the guards of values that are among the arguments of a call."""
        nodes = {leaf.node for leaf in leaves_of(args) if isinstance(leaf, Proxy)}
        for guard in guards:
            if guard is not None and not guard._erased and guard.args[0] in nodes:
                self._checked = {key: check for key, check in self._checked.items() if check is not guard}
                guard.graph.erase_node(guard)

    # Guards.

    def _question(self, function: Any, obj: Proxy) -> Proxy:
        return self._tracer.create_proxy("call_function", function, (obj,), {})

    def check_kind(self, obj: Proxy, kind: type, where: object) -> None:
        """Let the program check the class of a value."""
        self._check_kind(obj, self._spelled(obj), kind, where)

    def _check_kind(self, obj: Proxy, name: str, kind: type, where: object) -> None:
        called = name_of_kind(kind)
        if obj.node not in self._kinds_checked:
            self._guard(check_kind, obj, called, f"{name} was {with_article(called)}: {where}")

    def _check(self, obj: Proxy, expected: Any, name: str, where: object) -> None:
        self._guard(check_value, obj, expected, f"{name} was {expected!r}: {where}")

    def _guard(self, check: Any, obj: Proxy, expected: Any, text: str) -> None:
        key = (_key(obj.node), check, type(expected), expected)
        guard = self._checked.get(key)
        if guard is None or guard._erased or self._values.layout_changed_since(guard):
            args = (obj, expected, f"the program was captured where {text}")
            self._checked[key] = self._tracer.create_proxy("call_function", check, args, {}).node

    def drop_unused(self) -> None:
        """Remove unused queries, whose answers were already checked."""
        for node in reversed(self._tracer.graph.nodes):
            target = node.target
            name = target if isinstance(target, str) else getattr(target, "__name__", "")
            is_query = name in _QUESTIONS or (node.op == "call_function" and target in COMPARISONS)
            if node.users or node.op not in ("call_function", "call_method") or not (is_query or node in self._made):
                continue
            if node.target not in GUARDS and (node in self._made or self._is_plain(node)):
                node.graph.erase_node(node)

    def _spelled(self, obj: Proxy) -> str:
        """Return a value as the program's code spells it, with the names of tensors."""
        return spelled(obj.node, self._is_plain)

    def _is_plain(self, node: Node) -> bool:
        """Return whether a value holds no tensor."""
        try:
            value = self._values.of(node)
        except UnknownValueError:
            return False
        return type(value) in (*_NUMBERS, tuple, torch.Size, torch.dtype, torch.device, str)


def is_replaced(value: Any) -> bool:
    """Return whether the traced code sees this example itself, or a container made for it, and not a traced value."""
    kind = type(value)
    if kind is dict:
        return all(type(key) in (str, int) for key in value)
    is_sequence = kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields"))
    return is_sequence or isinstance(value, Enum) or (kind in IMMEDIATE_TYPES and kind not in (int, float, complex))


def _of_no_tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        raise UnknownValueError("it depends on the elements of a tensor, which are never guarded")
    return value


def _key(node: Any) -> Any:
    """Return a key that is equal for two nodes that make the same query of the same value."""
    if not isinstance(node, Node):
        return (type(node).__name__, repr(node))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    asks = node.op in ("call_function", "call_method") and (name in _QUESTIONS or node.target in COMPARISONS)
    if not asks or node.kwargs:
        return node
    return (node.op, name, *(_key(argument) for argument in node.args))

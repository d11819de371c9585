"""``Node``, one operation of a program, and the functions that walk its arguments (paper, section 4.2, appendix A)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral
from operator import attrgetter, is_
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import torch

from fx import operator_schemas
from fx.arguments import DEEPEST, expect, expect_callable, explained, here, nesting, refusal, shown
from fx.container_kinds import ContainerKind, expect_no_container, held_kind
from fx.errors import ArgumentIndexError, GraphError, with_article
from fx.immutable_collections import immutable_dict
from fx.naming.printing import format_argument, format_node, target_name
from fx.naming.targets import module_qualified_name
from fx.operators import effects
from fx.operators.effects import has_side_effect
from fx.provenance import SourceLocation, inherit

if TYPE_CHECKING:
    from fx.graph import Graph

__all__ = ["OPCODES", "Argument", "Node", "Target", "base_types", "has_side_effect", "map_aggregate", "map_arg"]

OPCODES = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
"""The complete instruction set (appendix A.1)."""

KEYWORD_ONLY = "keyword_only"
"""The key of ``node.meta`` that marks a keyword-only input: ``k`` of ``def forward(self, x, *, k)``."""

_T = TypeVar("_T")

Target: TypeAlias = Callable[..., Any] | str
Argument: TypeAlias = Any
"""A node, an immediate value, or a tuple, list, dict, slice or range of arguments."""
base_types = (
    str, int, float, bool, complex, torch.dtype, torch.Tensor, torch.device, torch.memory_format, torch.layout
)  # fmt: skip

_format_arg = format_argument  # names that client code of torch.fx imports
_get_qualified_name = module_qualified_name

_ATOMS = frozenset(
    {str, int, float, bool, complex, bytes, type(None), type(Ellipsis), torch.dtype, torch.device,
     torch.memory_format, torch.layout, torch.Size}
)  # fmt: skip
"""Types whose values hold no nodes and need no freezing."""

_SPACING = 1 << 20


def map_arg(a: Argument, fn: Callable[[Node], Argument]) -> Argument:
    """Return ``a`` with each node ``n`` in it, at any depth, replaced by ``fn(n)``; lists and dicts are frozen."""
    if not callable(fn):
        raise refusal("map_arg takes a function from nodes to arguments", fn)
    return map_aggregate(a, lambda leaf: fn(leaf) if isinstance(leaf, Node) else leaf)


def map_aggregate(a: Argument, fn: Callable[[Argument], Argument]) -> Argument:
    """Return ``a`` with each leaf ``x`` replaced by ``fn(x)``; tuples, lists, dicts and slices are rebuilt.

    Raises:
        GraphError: ``a`` nests too deep, or contains itself.
    """
    if not callable(fn):
        raise refusal("map_aggregate takes a function from arguments to arguments", fn)
    try:
        return _map(a, fn)
    except RecursionError as failure:
        raise explained(failure, a, GraphError) from None


def _map(a: Argument, fn: Callable[[Argument], Argument]) -> Argument:
    if isinstance(a, Node) or type(a) in _ATOMS or (kind := held_kind(a)) is None:
        return fn(a)
    return _rebuilt(kind, a, lambda element: _map(element, fn))


def _rebuilt(kind: ContainerKind, a: Any, fn: Callable[[Argument], Argument]) -> Argument:
    """Return ``a``, frozen, with ``fn`` applied to each of its parts; ``a`` itself if that changes nothing."""
    parts = kind.parts(a)
    mapped = list(map(fn, parts))
    is_frozen = isinstance(a, kind.frozen)  # type: ignore[arg-type]
    return a if is_frozen and all(map(is_, mapped, parts)) else kind.freeze(a, mapped)


def _freeze(a: Argument, inputs: dict[Node, None], levels: int = DEEPEST + 1) -> Argument:
    """Return ``a`` with its containers frozen, which may nest ``levels`` deep; nodes in it are added to ``inputs``.

    Raises:
        GraphError: ``a`` nests deeper than code can be compiled.
    """
    kind = type(a)
    if kind in _ATOMS:
        return a
    if isinstance(a, Node):
        inputs[a] = None
        return a
    if kind is tuple:
        for element in a:
            kind = type(element)
            if kind is Node:
                inputs[element] = None
            elif kind not in _ATOMS:
                break
        else:
            return a  # flat, as most are
    if (container := held_kind(a)) is None:
        return a
    if not levels:
        raise nesting(a)
    return _rebuilt(container, a, lambda element: _freeze(element, inputs, levels - 1))


def _substitute(a: Argument, old: Node, new: Node) -> Argument:
    """Return ``a`` with ``new`` in place of ``old``."""
    kind = type(a)
    if kind is Node:
        return new if a is old else a
    if kind in _ATOMS:
        return a
    if kind is tuple:
        return tuple([_substitute(element, old, new) for element in a])
    return map_arg(a, lambda node: new if node is old else node)


# Checks of the arguments of edits. Each costs a comparison or two; the message is made when it fails.


@lru_cache(maxsize=65536)
def _fits(op: str, target: str) -> bool:
    """Return whether a string can be a target for ``op``."""
    if op == "get_attr" or op == "call_module":
        return bool(target) and ".." not in target and target[0] != "." and target[-1] != "."
    return bool(target)


def _check_keywords(kwargs: object) -> None:
    if not isinstance(kwargs, dict):
        raise refusal("kwargs of a node is a dict", kwargs)
    for key in cast("dict[object, Any]", kwargs):
        if not isinstance(key, str):
            raise refusal("arguments of a node are named by strings", key)


def _check_name(name: object) -> None:
    if not (isinstance(name, str) and name):
        raise refusal("the name of a node is an identifier", name, remedy='node.name = "x"')


def _check_opcode(op: object) -> None:
    if not isinstance(op, str) or op not in OPCODES:
        raise _opcode_error(op)


def _check_target(target: object) -> None:
    # its opcode may be about to follow
    if not callable(target) and not (isinstance(target, str) and target):
        raise refusal("the target of a node is a callable, a name or a path", target)


def _opcode_error(op: object) -> GraphError:
    remedy = f"use one of {', '.join(OPCODES)}"
    return GraphError(f"unknown opcode {shown(op)}", where=here(), value=shown(op), remedy=remedy)


class Node:
    """One operation, identified by its opcode:

    ======================  ======================================================================================
    ``placeholder``         an input; ``target`` is the parameter's name, ``args`` holds its default value if any;
                            ``meta["keyword_only"]`` is True if it is given by keyword only
    ``get_attr``            fetches the attribute at the dotted path ``target`` of the module hierarchy
    ``call_function``       calls the function ``target`` with ``args`` and ``kwargs``
    ``call_method``         calls the method named ``target`` of ``args[0]``
    ``call_module``         calls the module at the dotted path ``target`` of the module hierarchy
    ``output``              returns ``args[0]``
    ======================  ======================================================================================

    ``args`` and ``kwargs`` follow Python's calling convention. They hold nodes and immediate values in any nesting of
    tuples, lists, dicts and slices, and are frozen: assign new ones to change them, and the use lists follow. Nodes are
    made by a ``Graph``, compare by identity, and order (``a < b``) by position in their graph.

    >>> import torch, fx
    >>> graph = fx.Graph()
    >>> x = graph.placeholder("x")
    >>> graph.call_function(torch.relu, (x,)).format_node()
    '%relu : [num_users=0] = call_function[target=torch.relu](args = (%x,), kwargs = {})'
    """

    __slots__ = (
        "__dict__", "__weakref__", "_args", "_erased", "_kwargs", "_meta", "_name", "_next", "_op", "_order",
        "_origins", "_prev", "_target", "_type", "graph", "source", "users",
    )  # fmt: skip

    graph: Graph
    """The graph the node belongs to."""
    users: dict[Node, None]
    """The nodes that use this one's value, in order of first use."""
    source: SourceLocation | None
    """The user's line that made this node, or None."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        op: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        return_type: Any | None = None,
    ) -> None:
        if not isinstance(op, str) or op not in OPCODES:
            raise _opcode_error(op)
        if op == "call_function":
            if not callable(target):
                raise _target_error(op, target)
        else:
            if type(target) is not str:
                if not isinstance(target, str):
                    raise _target_error(op, target)
                # A member of an enum of strings is `N.A` as text, which would become the name in the code.
                target = str.__str__(target)
            if not _fits(op, target):
                raise _target_error(op, target)
        # Most calls have a tuple and no keywords, and graphs have many of them: these are not checked any further.
        if type(args) is not tuple or type(kwargs) is not dict or kwargs:
            expect(args, tuple, "args of a node is a tuple", remedy="(value,) for a single argument")
            _check_keywords(kwargs)
        self.graph = graph
        self._name = name
        self._op = op
        self._target = target
        self._type = return_type
        self._meta: dict[str, Any] | None = None
        self.source = None
        self._origins: tuple[str, ...] | dict[str, None] = ()
        self.users = {}
        self._erased = False
        self._order = 0
        self._prev = self._next = self
        inputs: dict[Node, None] = {}
        self._args: tuple[Argument, ...] = _freeze(args, inputs) if args else ()
        self._kwargs: dict[str, Argument] = _freeze(kwargs, inputs) if kwargs else _NO_KWARGS
        for node in inputs:
            if node._erased:
                raise _used_after_erasure(node)
        for node in inputs:
            node.users[self] = None

    # Attributes. Assignments go through setters so that the graph notices the change.

    def _set(slot: str, check: Callable[[Any], None] = lambda value: None) -> Callable[[Node, Any], None]:  # type: ignore[misc]
        def setter(self: Node, value: Any) -> None:
            if self._erased:
                raise erased_error(self)
            if self._op == "root":
                raise end_error(self)
            check(value)
            graph = self.graph
            graph.about_to_change()
            if graph._index is not None:
                graph._index.remove(self)
            # methods of a subclass of str could print any text
            object.__setattr__(self, slot, str.__str__(value) if isinstance(value, str) else value)
            if graph._index is not None:
                graph._index.add(self)

        return setter

    name = property(attrgetter("_name"), _set("_name", _check_name), doc="Unique, legal name of the value.")
    op = property(attrgetter("_op"), _set("_op", _check_opcode), doc="One of the six opcodes.")
    target = property(
        attrgetter("_target"),
        _set("_target", _check_target),
        doc="What is called or fetched; its kind depends on ``op``.",
    )
    type = property(attrgetter("_type"), _set("_type"), doc="Type annotation of the value in generated code, or None.")
    next = property(attrgetter("_next"), doc="The node after this one (the graph's root after the last).")
    prev = property(attrgetter("_prev"), doc="The node before this one (the graph's root before the first).")
    del _set

    @property
    def args(self) -> tuple[Argument, ...]:
        """Positional arguments, frozen."""
        return self._args

    @args.setter
    def args(self, value: tuple[Argument, ...] | list[Argument]) -> None:
        if not isinstance(value, (tuple, list)):
            raise refusal("args of a node is a tuple", value, remedy="node.args = (value,) for a single argument")
        self._edit(value if isinstance(value, tuple) else tuple(value), self._kwargs)

    @property
    def kwargs(self) -> dict[str, Argument]:
        """Keyword arguments, frozen."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, value: Mapping[str, Argument]) -> None:
        value = dict(value) if isinstance(value, Mapping) else value
        _check_keywords(value)
        self._edit(self._args, value)

    def _edit(self, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        """Replace both, with checks."""
        if self._erased:
            raise erased_error(self)
        self._update(args, kwargs, self._check_input)

    _update_args_kwargs = _edit  # the name that client code of torch.fx calls

    def _check_input(self, node: Node) -> None:
        if (node is not self and not node._erased) or self in node.users:
            return
        if node._erased:
            raise _used_after_erasure(node)
        raise GraphError(
            f"node {node.name} would use itself",
            where=here(),
            value=node.format_node(),
            why="a node's inputs are computed before it",
            remedy="use its input, or a copy of the node: graph.node_copy(node)",
        )

    def _update(
        self, args: tuple[Argument, ...], kwargs: dict[str, Argument], check: Callable[[Node], None] | None = None
    ) -> None:
        """Replace both, and update the use lists of the old and new inputs."""
        inputs: dict[Node, None] = {}
        new_args = _freeze(args, inputs)
        new_kwargs = _freeze(kwargs, inputs) if kwargs else _NO_KWARGS
        if check is not None:
            for node in inputs:
                check(node)
        self.graph.about_to_change()
        for node in self._input_nodes:
            node.users.pop(self, None)
        self._args = new_args
        self._kwargs = new_kwargs
        for node in inputs:
            node.users[self] = None

    def _use_instead(self, old: Node, new: Argument) -> None:
        args = _substitute(self._args, old, new)
        self._update(args, _substitute(self._kwargs, old, new) if self._kwargs else self._kwargs)

    @property
    def _input_nodes(self) -> dict[Node, None]:
        """The distinct nodes that this one uses; client code of torch.fx reads it too."""
        inputs: dict[Node, None] = {}
        _freeze(self._args, inputs)
        if self._kwargs:
            _freeze(self._kwargs, inputs)
        return inputs

    @property
    def all_input_nodes(self) -> list[Node]:
        """The distinct nodes that this one uses, in their order in ``args`` and ``kwargs``."""
        return list(self._input_nodes)

    @property
    def meta(self) -> dict[str, Any]:
        """Notes of analyses and passes, for anyone to read and write; copied with the node."""
        if self._meta is None:
            self._meta = {}
        return self._meta

    @meta.setter
    def meta(self, value: dict[str, Any]) -> None:
        expect(value, dict, "meta of a node is a dict")
        self._meta = value

    @property
    def origins(self) -> tuple[str, ...]:
        """Names of the nodes of the captured program whose work this node does; empty until the first pass runs."""
        return tuple(self._origins)

    @origins.setter
    def origins(self, names: tuple[str, ...]) -> None:
        if type(names) is not tuple:
            expect(names, (list, tuple), "origins of a node is a tuple of names")
        self._origins = tuple(names)

    def add_origins(self, names: Collection[str]) -> None:
        """Add nodes of the captured program whose work this node does, in time that depends on ``names`` only."""
        if not isinstance(names, Collection):
            raise refusal("add_origins takes names of nodes", names)
        if len(self._origins) + len(names) < 8:
            self._origins = tuple(dict.fromkeys((*self._origins, *names)))
            return
        if isinstance(self._origins, tuple):
            self._origins = dict.fromkeys(self._origins)
        self._origins.update(dict.fromkeys(names))

    @property
    def stack_trace(self) -> str | None:
        """The user's line that made this node, as traceback text; the whole stack if it was recorded."""
        recorded = self._meta.get("stack_trace") if self._meta else None
        return recorded if recorded or self.source is None else self.source.traceback()

    @stack_trace.setter
    def stack_trace(self, value: str | None) -> None:
        expect(value, (str, NoneType), "stack_trace of a node is a str")
        self.meta["stack_trace"] = value

    # Order.

    def prepend(self, x: Node) -> None:
        """Move ``x`` to just before this node.

        Raises:
            GraphError: ``x`` belongs to another graph, or one of the two was erased.
        """
        if x is self and not self._erased:
            return
        if not isinstance(x, Node):
            raise refusal("prepend and append take a node to move", x)
        graph = self.graph
        if x.graph is not graph:
            raise GraphError(
                "cannot move a node between graphs",
                where=x.source,
                value=x.format_node(),
                remedy="copy it with graph.node_copy(node)",
            )
        if x._erased or self._erased:
            raise erased_error(x if x._erased else self)
        if x._op == "root":
            raise end_error(x)
        graph.about_to_change()
        if x._next is not x:  # a new node is not in the list yet
            x._prev._next, x._next._prev = x._next, x._prev
        before = self._prev
        before._next, x._prev, x._next, self._prev = x, before, self, x
        if self._op == "root" and before is not self:
            x._order = before._order + _SPACING
        else:
            _place(x)

    def append(self, x: Node) -> None:
        """Move ``x`` to just after this node.

        Raises:
            GraphError: ``x`` belongs to another graph, or one of the two was erased.
        """
        if self._erased:
            raise erased_error(self)
        if x is not self:
            self._next.prepend(x)

    def _remove_from_list(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    def __lt__(self, other: Node) -> bool:
        return self._order < other._order if isinstance(other, Node) else NotImplemented

    def __gt__(self, other: Node) -> bool:
        return self._order > other._order if isinstance(other, Node) else NotImplemented

    def __le__(self, other: Node) -> bool:
        return self._order <= other._order if isinstance(other, Node) else NotImplemented

    def __ge__(self, other: Node) -> bool:
        return self._order >= other._order if isinstance(other, Node) else NotImplemented

    # Edits of arguments.

    def update_arg(self, idx: int, arg: Argument) -> None:
        """Replace positional argument number ``idx``.

        Raises:
            GraphError: there is no such argument, the node was erased, or would use itself.
        """
        count = len(self._args)
        if not isinstance(idx, Integral) or not -count <= idx < count:
            raise _index_error(f"update_arg takes the number of one of {count} arguments", idx, self)
        args = list(self._args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx: int, arg: Argument) -> None:
        """Insert a positional argument before number ``idx``.

        Raises:
            GraphError: ``idx`` is not between 0 and the number of arguments.
        """
        if not isinstance(idx, Integral) or not 0 <= idx <= len(self._args):
            what = f"insert_arg index must be between 0 and len(self.args) = {len(self._args)}"
            raise _index_error(what, idx, self)
        self.args = (*self._args[:idx], arg, *self._args[idx:])

    def update_kwarg(self, key: str, arg: Argument) -> None:
        """Set keyword argument ``key``."""
        expect(key, str, "update_kwarg takes the name of an argument")
        self.kwargs = {**self._kwargs, key: arg}

    def replace_input_with(self, old_input: Node, new_input: Argument) -> None:
        """Use ``new_input``, a node or any other argument, wherever this node's arguments hold ``old_input``.

        Raises:
            GraphError: ``old_input`` is not a node, ``new_input`` nests too deep, or one of the nodes was erased.
        """
        if not isinstance(old_input, Node):
            raise refusal("replace_input_with replaces a node", old_input, remedy="assign node.args for other values")
        if self._erased:
            raise erased_error(self)
        _nodes_to_use(new_input)
        self._use_instead(old_input, new_input)

    def replace_all_uses_with(
        self,
        replace_with: Argument,
        delete_user_cb: Callable[[Node], bool] | None = None,
        *,
        propagate_meta: bool = False,
    ) -> list[Node]:
        """Make the users of this node use ``replace_with`` instead, and return those that changed.

        ``replace_with`` also gets the provenance of this node: its ``origins``, and its line if ``replace_with`` has
        none.

        Args:
            replace_with: the node to use, or any other argument, such as a tuple of nodes.
            delete_user_cb: called with each user; if it returns False, that user is left unchanged.
            propagate_meta: also move this node's ``meta`` to ``replace_with``, a node which must have none yet.

        Raises:
            GraphError: ``replace_with`` was erased, nests too deep, or has ``meta`` already.
        """
        replacements = _nodes_to_use(replace_with)
        if delete_user_cb is not None:
            expect_callable(delete_user_cb, "delete_user_cb of replace_all_uses_with is a function")
        if propagate_meta:
            expect(replace_with, Node, "replace_all_uses_with(propagate_meta=True) takes a node")
            if replace_with._meta:
                raise GraphError(
                    "replace_all_uses_with(propagate_meta=True) would overwrite meta",
                    value=replace_with.format_node(),
                    why=f"the replacement already has meta: {', '.join(replace_with._meta)}",
                    remedy="merge the two dicts yourself",
                )
            replace_with.meta.update(self.meta)
        changed = [user for user in self.users if delete_user_cb is None or delete_user_cb(user)]
        for user in changed:
            user._use_instead(self, replace_with)
        for node in replacements:
            inherit(node, (self,))
        return changed

    # Queries.

    def is_impure(self, impure_random: bool = True) -> bool:
        """Return whether removing this node could change the program's behaviour, apart from the node's value.

        Args:
            impure_random: count drawing random numbers, which changes the generator's state.
        """
        return effects.is_impure(self, impure_random)

    def normalized_arguments(
        self,
        root: torch.nn.Module,
        arg_types: tuple[Any, ...] | None = None,
        kwarg_types: dict[str, Any] | None = None,
        normalize_to_only_use_kwargs: bool = False,
    ) -> operator_schemas.ArgsKwargsPair | None:
        """Return this call's arguments by the signature of its target, with defaults; None if it has no signature."""
        expect(arg_types, (tuple, list, NoneType), "arg_types of normalized_arguments is a tuple")
        expect(kwarg_types, (dict, NoneType), "kwarg_types of normalized_arguments is a dict")
        if self._op == "call_function" and callable(self._target):
            return operator_schemas.normalize_function(
                self._target, self._args, self._kwargs, arg_types, kwarg_types, normalize_to_only_use_kwargs
            )
        if self._op == "call_module" and isinstance(self._target, str):
            return operator_schemas.normalize_module(
                root, self._target, self._args, self._kwargs, normalize_to_only_use_kwargs
            )
        return None

    def format_node(
        self,
        placeholder_names: list[str] | None = None,
        maybe_return_typename: list[str] | None = None,
        *,
        include_tensor_metadata: bool = False,
    ) -> str | None:
        """Return the node as ``str(graph)`` prints it.

        Args:
            placeholder_names: if given, a placeholder appends its name here and the result is None.
            maybe_return_typename: if given, an output node's type is put into element 0.
            include_tensor_metadata: show dtype and shape from ``meta["val"]`` or ``meta["tensor_meta"]``.
        """
        for names in (placeholder_names, maybe_return_typename):
            if names is not None:
                expect(names, list, "format_node adds to lists of text")
        return format_node(self, placeholder_names, maybe_return_typename, include_tensor_metadata)

    _pretty_print_target = staticmethod(target_name)  # the name that client code of torch.fx calls

    def _rename(self, candidate: str) -> None:
        """Give the node a name like ``candidate`` that no other node has, as client code of torch.fx does."""
        if candidate != self._name:
            self.name = self.graph._namespace.create_name(candidate)

    def __repr__(self) -> str:
        return self._name

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise GraphError(
            "a node cannot be copied or pickled on its own",
            where=self.source,
            value=self.format_node(),
            why="it is part of its graph's use lists",
            remedy="copy or pickle the whole graph, or use other_graph.node_copy(node)",
        )


_NO_KWARGS: dict[str, Argument] = immutable_dict()
expect_no_container(Node)


def _nodes_to_use(a: Argument) -> Sequence[Node]:
    """Return the nodes in ``a``, after a check that none was erased."""
    nodes = (a,) if type(a) is Node else nodes_in(a)
    for node in nodes:
        if node._erased:
            raise _used_after_erasure(node)
    return nodes


def _index_error(what: str, index: object, node: Node) -> GraphError:
    return ArgumentIndexError(f"{what}, not {shown(index)}", where=here(), value=node.format_node())


def end_error(root: Node) -> GraphError:
    return GraphError(
        "a graph keeps its root, which is not an operation",
        where=here(),
        value=shown(root),
        why="it is between the last node and the first: node.next of the last one is it",
    )


def _used_after_erasure(node: Node) -> GraphError:
    return GraphError(
        f"node {node.name} was erased, so it has no value to use",
        where=here(),
        value=node.format_node(),
        remedy="erase a node after its last use",
    )


def erased_error(node: Node) -> GraphError:
    return GraphError(
        f"node {node.name} was erased, so it has no place in the graph any more",
        where=node.source,
        value=node.format_node(),
        remedy="erase a node after what is put beside it, or copy it with graph.node_copy(node)",
    )


def _target_error(op: str, target: object) -> GraphError:
    text = shown(target)
    expected = "a callable" if op == "call_function" else "a string"
    if expected == "a string" and isinstance(target, str):
        expected = "a dotted path" if op in ("get_attr", "call_module") else "a name"
    what = f"the target of {with_article(op)} node is {expected}, not {type(target).__name__}: {text}"
    return GraphError(what, where=here(), value=text, remedy=_TARGETS.get(op))


_TARGETS = {
    "placeholder": 'give the name of a parameter: graph.placeholder("x")',
    "get_attr": 'give the path of an attribute: graph.get_attr("layer.weight")',
    "call_function": "give a function; methods are called by call_method, submodules by call_module",
    "call_method": 'give the name of a method: graph.call_method("neg", (x,))',
    "call_module": 'give the path of a submodule: graph.call_module("layer", (x,))',
}


def _place(node: Node) -> None:
    """Give ``node`` an order number between its neighbours' (list labelling after Dietz and Sleator, 1987)."""
    before, after = node._prev, node._next
    if after._op == "root":
        node._order = before._order + _SPACING if before._op != "root" else 0
    elif before._op == "root":
        node._order = after._order - _SPACING
    elif after._order - before._order > 1:
        node._order = (before._order + after._order) // 2
    else:
        _relabel(before)


def _relabel(start: Node) -> None:
    """Spread the numbers of the shortest stretch after ``start`` whose range is larger than its squared length."""
    stretch: list[Node] = []
    node, room = start._next, 0
    while node._op != "root":
        room = node._order - start._order
        if stretch and room > (len(stretch) + 1) ** 2:
            break
        stretch.append(node)
        node = node._next
    step = _SPACING if node._op == "root" else room // (len(stretch) + 1)
    for count, member in enumerate(stretch, 1):
        member._order = start._order + count * step


def reached(start: Iterable[_T], following: Callable[[_T], Iterable[_T]]) -> dict[_T, None]:
    """Return ``start``, and all nodes, or other values, that are reachable from it through ``following``, each once."""
    visited = dict.fromkeys(start)
    pending = list(visited)
    while pending:
        new = dict.fromkeys(value for value in following(pending.pop()) if value not in visited)
        visited |= new
        pending += new
    return visited


def nodes_in(a: Argument) -> Sequence[Node]:
    """Return the distinct nodes in ``a``, at any depth, in order."""
    inputs: dict[Node, None] = {}
    _freeze(a, inputs)
    return list(inputs)

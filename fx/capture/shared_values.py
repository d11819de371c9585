"""Traced values that may be the same object or share memory: writes to them, and comparisons by identity.

An augmented assignment (``x += y``) is recorded as ``add``, or as a write to ``x`` if the write is visible. Python
compares the proxies of traced values by identity, without calling any code.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from fx.argument_types import annotated_types
from fx.assertions import ASSERTIONS, check_given, check_kind, name_of_kind
from fx.bytecode.dataflow import dataflow
from fx.bytecode.mentions import IDENTITIES, Identity, compared_with, identities
from fx.capture.modes import enter_autocast, set_grad_enabled
from fx.checks.questions import check_once, refuse
from fx.checks.traced_values import kind_of
from fx.errors import with_article
from fx.frames import is_pythons_file, user_location, users_frame
from fx.graph import Graph
from fx.modules.attributes import find_attribute
from fx.naming.printing import describe
from fx.node import Node, nodes_in
from fx.operators.families import find_operator
from fx.operators.overloads import builtin_name
from fx.operators.python import IN_PLACE_OF
from fx.operators.sharing import TENSOR_METHODS, Sharing, find_sharing, module_sharing
from fx.provenance import GENERATED_FILES, SourceLocation
from fx.proxy import Attribute, Proxy, TracerBase, ask_identity

_CONVERSIONS = frozenset("to type type_as float double half bfloat16 int long short char byte bool".split())
"""Methods whose result may have another dtype than values computed beside it."""
_OF_PYTHON = frozenset({"_operator", "builtins", "math"})


def write_where_it_shows(nodes: Iterable[Node], root: torch.nn.Module) -> None:
    """Make those recorded augmented assignments write in place that would otherwise mean something else.

    That is the case if the assignment's target is memory of the caller or of a module, or is read afterwards under
    another name. It is also the case if a new tensor would have another dtype, or another history of gradients.
    """
    other_dtypes: set[Node] | None = None
    for node in nodes:
        if node._erased:
            continue
        if other_dtypes is None:
            other_dtypes = _of_other_dtypes(node.graph)
        if _shows(node, root) or _is_without_history(node) or (node in other_dtypes and _has_tensors(node)):
            node.target = IN_PLACE_OF[node.target]


def _shows(written: Node, root: torch.nn.Module) -> bool:
    first = written.args[0]
    if not isinstance(first, Node):
        return False
    pending, visited = [first], {first}
    for node in pending:
        if node.op in ("placeholder", "get_attr"):
            return True
        aliases = list(sources(node, root))
        for user in node.users:
            if user is written:
                continue
            if user > written:
                return True
            if node in sources(user, root):
                aliases.append(user)
        for alias in aliases:
            if alias not in visited:
                visited.add(alias)
                pending.append(alias)
    return False


def _is_without_history(written: Node) -> bool:
    """Return whether a new tensor may have another gradient history than the target of the write: the mode changed."""
    node, first = written.prev, written.args[0]
    while node is not first and node.op != "root":
        if node.target is set_grad_enabled:
            return True
        node = node.prev
    return False


def _has_tensors(written: Node) -> bool:
    """Return whether both operands may be tensors; a number does not change the dtype."""
    second = written.args[1]
    return isinstance(second, Node) and kind_of(second)[0] is torch.Tensor


def _of_other_dtypes(graph: Graph) -> set[Node]:
    """Return the nodes whose operands may have different dtypes: those after conversions, and all under autocast."""
    nodes: set[Node] = set()
    autocast = False
    for node in graph.nodes:
        autocast = autocast or node._target is enter_autocast
        converts = "dtype" in node._kwargs or (node._op == "call_method" and node._target in _CONVERSIONS)
        if autocast or converts or (nodes and not nodes.isdisjoint(node._input_nodes)):
            nodes.add(node)
    return nodes


def sources(node: Node, root: torch.nn.Module) -> Iterator[Node]:
    """Yield the values that the result of an operation may share memory with."""
    sharing = _sharing(node, root)
    if sharing is None or (sharing.places is None and sharing.kind != "arithmetic"):
        yield from node.all_input_nodes
    elif sharing.kind not in ("number", "arithmetic"):
        for place, name in sharing.places or ():
            argument = node.args[place] if place < len(node.args) else node.kwargs.get(name)
            yield from nodes_in(argument)
    elif node.target in IN_PLACE_OF.values() and isinstance(node.args[0], Node):
        yield node.args[0]


def _sharing(node: Node, root: torch.nn.Module) -> Sharing | None:
    if node.op == "call_module":
        module: torch.nn.Module | None = held_at(root, str(node.target))
        if module is None or vars(module).get("inplace", getattr(type(module), "inplace", False)):
            return None
        return module_sharing(module)
    return find_sharing(node.target) if node.op in ("call_function", "call_method") else None


def held_at(root: torch.nn.Module, path: str) -> Any:
    """Return the value that a module holds at a path, past the replacements of a trace; ``None`` if none."""
    *modules, name = path.split(".")
    owner: torch.nn.Module | None = root
    for name_of_child in modules:
        owner = None if owner is None else owner._modules.get(name_of_child)
    dictionaries = () if owner is None else (owner._modules, owner._parameters, owner._buffers, owner.__dict__)
    return next((entries[name] for entries in dictionaries if name in entries), None)


# Comparisons by identity.


def expect_known(tracer: TracerBase, node: Node, tests: tuple[Identity, ...], code: CodeType) -> None:
    """Let the program check what its comparisons by identity assume of a value; refuse those that nothing can answer.

    Args:
        tracer: the tracer of the value.
        node: the node that computes it.
        tests: the comparisons.
        code: the code that makes them.
    """
    # torch's dispatcher asks whether a handler returned NotImplemented, which is the value of no node
    if node.target in ASSERTIONS or code is torch.overrides.handle_torch_function.__code__:
        return
    if users_frame(sys._getframe(1)).f_code.co_filename in GENERATED_FILES:
        return
    for test in tests:
        where = SourceLocation(code, test.offset)
        if test.pattern:
            _expect_class(tracer, node, where, test.pattern)
        elif test.with_none:
            expect_given(tracer, node, where)
        elif test.left and test.right:
            if may_be_argument(node, tracer.root) and not is_pythons_file(code.co_filename):
                refuse("is", tracer.proxy(node), sys._getframe(1), where=where)
        elif test.with_truth and kind_of(node) != (torch.Tensor, True):
            refuse("is", tracer.proxy(node), sys._getframe(1), where=where)
        else:
            _expect_class(tracer, node, where)


def compare(tracer: TracerBase, function: Callable[[Any, Any], bool], first: Any, second: Any) -> bool:
    """Return the answer of ``operator.is_`` or ``is_not`` about traced values, as the program then checks."""
    frame = sys._getframe(3)  # of the code that calls a replacement of these functions
    where = user_location(frame, tracer._state.locations)
    if first is not second:
        first, second = (_known(value, frame) for value in (first, second))
    traced = [value for value in (first, second) if isinstance(value, Proxy)]
    for value in traced if first is not second else ():
        if len(traced) == 2 and (value.node.op == "placeholder" or may_be_argument(value.node, tracer.root)):
            refuse("is", value, frame)
        elif first is None or second is None:
            expect_given(tracer, value.node, where)
        elif len(traced) == 1:
            _expect_class(tracer, value.node, where)
    return function(first, second)


def _known(value: Any, frame: FrameType) -> Any:
    """Return the value of an attribute of tensors that programs compare by identity, if it is known."""
    is_compared = isinstance(value, Attribute) and value.attr in IDENTITIES
    return ask_identity(value, frame) if is_compared else value


def expect_given(tracer: TracerBase, node: Node, where: object) -> None:
    """Let the program check that a value is not None, if it may be."""
    if _may_be_none(node, tracer.root):
        message = f"the program was captured where this is given, and not None: {where}"
        tracer.create_proxy("call_function", check_given, (tracer.proxy(node), message), {})


def _expect_class(tracer: TracerBase, node: Node, where: object, pattern: str = "") -> None:
    """Let the program check that a value is of a class that Python's answer is right for, or refuse the comparison.

    A tensor is neither a mapping nor an object that programs compare by identity, but Python takes its proxy for a
    sequence.
    """
    value, (kind, is_certain) = tracer.proxy(node), kind_of(node)
    guide = None if is_certain else tracer._state.guide
    if guide is not None:
        kind = guide.kind_of(value)
    is_right = issubclass(kind or object, (tuple, list)) if pattern == "sequence" else kind is torch.Tensor
    if not is_right and not (is_certain and pattern != "sequence" and kind is not dict):
        refuse("match" if pattern else "is", value, sys._getframe(1), where=where)
    if not is_certain and (pattern or _may_be_none(node, tracer.root)):
        name = name_of_kind(kind)
        message = f"the program was captured where this is {with_article(name)}: {where}"
        check_once(check_kind, value, name, message)


def tests_of(node: Node, location: SourceLocation) -> tuple[Identity, ...]:
    """Return the comparisons by identity, in the code at a location, of the value that a node computes."""
    code = location._code
    if code is None or not identities(code):
        return ()
    element = node.args[1] if node.target is operator.getitem and type(node.args[1]) is int else 0
    return compared_with(code, location._offset, element)


def may_be_argument(node: Node, root: torch.nn.Module) -> bool:
    """Return whether the value of a node may be the very object of an argument, and not a view of it."""
    row = find_operator(node.target) if node.op in ("call_function", "call_method") else None
    return not (row is not None and row.is_view) and any(sources(node, root))


def _may_be_none(node: Node, root: torch.nn.Module) -> bool:
    """Return whether the value of a node is not known to be a tensor, a number or a container of these."""
    target: Any = node.target
    if node.op == "placeholder":
        return True
    if node.op == "call_method":
        return target not in TENSOR_METHODS
    if node.op == "call_module":
        return not type(find_attribute(root, str(target))).__module__.startswith("torch.nn")
    if target is operator.getitem:
        whole = node.args[0]
        return not isinstance(whole, Node) or whole.op in ("placeholder", "call_module") or _may_be_none(whole, root)
    if target is getattr:
        return True
    return node.op == "call_function" and not is_of_torch(target) and target.__module__ not in _OF_PYTHON


def check_entries(tracer: TracerBase) -> None:
    """Let the program check that entries of its inputs are given, if neither byte code nor the graph shows all uses."""
    graph = tracer.graph
    pending = [entry for node in graph.find_nodes(op="placeholder") for entry in _entries(node)]
    for entry in pending:
        pending += _entries(entry)
        location = entry.source
        if _are_shown(location) or any(
            user.target in ASSERTIONS or fails_for_none(user, entry) for user in entry.users
        ):
            continue
        message = f"the program was captured where this is given, and not None: {location or describe(entry)}"
        with graph.inserting_after(entry):
            check = graph.call_function(check_given, (entry, message))
        check.source = location


def _are_shown(location: object) -> bool:
    """Return whether byte code shows all uses of the value that is computed at a location."""
    code = location._code if isinstance(location, SourceLocation) else None
    flow = None if code is None else dataflow(code)
    return flow is not None and flow.shows_all_uses(flow.at(location._offset))  # type: ignore[attr-defined]


def _entries(node: Node) -> list[Node]:
    """Return the nodes that read an entry or attribute of a container or object."""
    by_index = [user for user in node.users if user.target is operator.getitem and user.args[0] is node]
    is_sequence = all(user in by_index or user.target is len or user.target in ASSERTIONS for user in node.users)
    return [
        user
        for user in node.users
        if (user in by_index and (type(user.args[1]) is str or (is_sequence and type(user.args[1]) is int)))
        or (user.op == "call_method" and user.target == "get" and user.args[0] is node)
        or (user.target is getattr and user.args[1] not in TENSOR_METHODS)
    ]


def fails_for_none(node: Node, operand: object) -> bool:
    """Return whether a node raises an error where this operand of it is ``None``.

    That is a method of it, an operator, a layer of torch, or a function or method of torch that needs a value there.
    """
    target: Any = node.target
    if node.args[:1] == (operand,) and (node.op in ("call_method", "call_module") or target is getattr):
        return True
    if node.op == "call_function" and getattr(target, "__module__", None) == "_operator":
        return target not in _FOR_NONE_TOO
    arguments = (*enumerate(node.args), *node.kwargs.items())
    places = [place for place, argument in arguments if any(each is operand for each in nodes_in(argument))]
    if node.op == "call_function" and str(getattr(target, "__module__", "")).partition(".")[0] == "fx":
        return any(_takes_tensor(target, place) for place in places)
    if not (node.op == "call_method" and target in TENSOR_METHODS) and not (
        node.op == "call_function" and is_of_torch(target)
    ):
        return False
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return any(_needs_value(name, place) for place in places)


def _takes_tensor(operation: Any, place: int | str) -> bool:
    """Return whether an operation of this package takes a tensor in this place, by its annotation."""
    parameters = list(inspect.signature(operation).parameters)
    name = parameters[place] if isinstance(place, int) and place < len(parameters) else place
    return annotated_types(inspect.unwrap(operation)).get(str(name)) is torch.Tensor


@functools.cache
def _needs_value(name: str, place: int | str) -> bool:
    """Return whether each overload of an operator of torch takes a value, and not ``None``, in this place."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = () if packet is None else (getattr(packet, each)._schema.arguments for each in packet.overloads())
    kinds = {
        str(argument.type)
        for arguments in overloads
        for number, argument in enumerate(arguments)
        if place in (number, argument.name) or (place == "input" and argument.name == "self")
    }
    return bool(kinds) and "None" not in kinds and not any("Optional" in kind for kind in kinds)


_FOR_NONE_TOO = frozenset({operator.eq, operator.ne, operator.is_, operator.is_not, operator.not_, operator.truth})


def is_of_torch(function: Any) -> bool:
    """Return whether a function's module says that it is torch's; torch holds replacements while a trace runs."""
    module = getattr(function, "__module__", None)
    return builtin_name(function) is not None if module is None else module.partition(".")[0] == "torch"

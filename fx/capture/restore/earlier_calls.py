"""Programs whose calls change later calls, which no graph can represent: how they are recognized and refused."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

import torch

from fx.bytecode.dialects import nested, steps
from fx.capture import patching
from fx.capture.patching import Trace
from fx.capture.restore.places import DRAWING, RANDOM, WHY_NO_DRAWING
from fx.capture.restore.reach import Facts, methods_of
from fx.capture.restore.record import Change, Record
from fx.errors import TraceError, type_in_words
from fx.frames import is_users_file, package_of_file
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import prefixes
from fx.node import Node, map_arg
from fx.provenance import SourceLocation

_MOST_NAMES = 3
_READS_OF_ALL = frozenset({"__dict__", "dir", "vars"})
"""Names by which code reads attributes without their descriptors."""


def same_program(first: Graph, second: Graph) -> bool:
    """Return whether two graphs of one tracer have the same nodes, and equal constants."""
    return same_but_for((), first, second)


def same_but_for(names: Collection[str], left_out: Graph, given: Graph) -> bool:
    """Return whether two graphs of one tracer are the same, where these inputs have their defaults.

    Args:
        names: the inputs.
        left_out: the graph of a run with their defaults, whose checks of the inputs are not compared.
        given: the graph of a run with traced values for them.
    """
    inputs = {node: node.args[0] for node in given.nodes if node.op == "placeholder" and node.target in names}
    checked = [node for node in left_out.nodes if node.op == "placeholder" and node.target in names]
    checks = {user for node in checked for user in node.users}
    first = [node for node in left_out.nodes if node not in checks]
    return (
        len(first) == len(given.nodes)
        and left_out.constants.keys() == given.constants.keys()
        and all(_same_node(node, other, inputs) for node, other in zip(first, given.nodes, strict=True))
        and all(_same_constant(value, given.constants[name]) for name, value in left_out.constants.items())
    )


def _same_node(first: Node, second: Node, values: Mapping[Node, Any] = MappingProxyType({})) -> bool:
    if (first.op, first.name) != (second.op, second.name) or (
        first.target is not second.target and first.target != second.target
    ):
        return False
    described = [
        repr(map_arg((node.args, node.kwargs), lambda used: values.get(used, used.name))) for node in (first, second)
    ]
    return described[0] == described[1]


def _same_constant(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return first is second or (
                first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second)
            )
    if isinstance(first, GraphModule) and isinstance(second, GraphModule):
        return first is second or same_program(first.graph, second.graph)
    return first is second


def dependence_on_earlier_call(
    changes: list[Change], modules: Iterable[torch.nn.Module] = (), second_run: str = ""
) -> TraceError:
    """Return the error for a program that does something else once it has been called, or may do so.

    It is not known which of the changes that a call has left matter. Code of ``modules`` may have made them.
    ``second_run`` is the difference of the run that made them from the one before: neither then shows on what the
    program depends.
    """
    where, value = _place_of(changes, map(type, modules))
    names = list(dict.fromkeys(name for _, name in changes))
    why = "a captured program has no assignment to attributes, so each call would be like the first"
    if second_run:
        why = (
            f"it was run twice, the second time {second_run}, and a third run would have to show that it does the same"
        )
    remedy = "keep it in a buffer that is written in place (self.step.add_(1)), or make the module a leaf"
    files = [owner.__code__.co_filename for owner, _ in changes if isinstance(owner, FunctionType)]
    if (package := next(filter(None, map(package_of_file, files)), None)) is not None:
        remedy = f'keep calls of {package} whole: fx.wrap("its function") at the top level of the file that calls it'
    return TraceError(
        f"what the program does {'may depend' if second_run else 'depends'} on what an earlier call of it left in "
        + " or ".join(map(repr, names[:_MOST_NAMES])),
        where=where,
        value=value,
        why=why,
        remedy=remedy,
    )


def _place_of(changes: list[Change], kinds: Iterable[type]) -> tuple[SourceLocation | str, str]:
    """Return the first known line of a change, in code of these classes, and the changed value in words."""
    others = list(kinds)
    places = [
        _assignment(owner, name, others) if isinstance(owner, torch.nn.Module) else _last_mention(owner.__code__, name)
        for owner, name in changes
    ]
    number = next((number for number, place in enumerate(places) if not isinstance(place, str)), 0)
    owner, name = changes[number]
    of_module = isinstance(owner, torch.nn.Module)
    value = f"{type(owner).__name__}.{name}" if of_module else f"{name}, which {owner.__qualname__} reaches"
    return places[number], value


def expect_nothing_drawn(record: Record, modules: Iterable[torch.nn.Module]) -> None:
    """Refuse a program that has drawn from an existing generator of random numbers."""
    if drawn := record.changed_holders(RANDOM):
        place, value = _place_of(drawn[:1], map(type, modules))
        raise TraceError(DRAWING, where=place, value=value, **WHY_NO_DRAWING)


def expect_leaves_kept(changes: list[Change], graph: Graph, paths: Mapping[torch.nn.Module, str]) -> None:
    """Refuse a program that has set an attribute named in the code of a module which it calls as one operation."""
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    for owner, name in changes:
        if not isinstance(owner, torch.nn.Module) or (path := paths.get(owner)) is None:
            continue
        if called.intersection(prefixes(path)) and name in _named_by(type(owner)):
            raise TraceError(
                f"cannot set {name!r} of a module that is one operation of the program",
                where=_assignment(owner, name, map(type, paths)),
                value=f"{path}, {type_in_words(owner)}",
                why="a captured program has no assignment to attributes, so it would run with the one from before",
                remedy="call the function of torch.nn.functional with the value, or set it before the capture",
            )


def expect_parameters_kept(record: Record, modules: Iterable[torch.nn.Module]) -> None:
    """Refuse a program that has replaced parameters or buffers; :meth:`Record.restore` handles traced values."""
    for module, name in record.replaced_parameters:
        raise TraceError(
            f"cannot replace the parameter or buffer {name!r} of a module while it is captured",
            where=_assignment(module, name, map(type, modules)),
            value=f"{type(module).__name__}.{name}",
            why="a captured program has no assignment to attributes, so it would use the one from before",
            remedy="write in place (self.weight.copy_(value)), or use torch.func.functional_call",
        )


def _named_by(kind: type) -> frozenset[str]:
    """Return the names in the code of a class and of its base classes."""
    classes = [base for base in kind.__mro__ if base is not torch.nn.Module]
    functions = [value for base in classes for value in vars(base).values() if isinstance(value, FunctionType)]
    return frozenset(name for function in functions for name in function.__code__.co_names)


def _assignment(owner: Any, name: str, others: Iterable[type] = ()) -> SourceLocation | str:
    """Return the last line of a method that names the attribute; the class if there is none."""
    for function in map(inspect.unwrap, chain(*methods_of((type(owner), *others)).values())):
        if isinstance(function, FunctionType) and function.__name__ != "__init__":
            codes = nested(function.__code__) if is_users_file(function.__code__.co_filename) else ()
            if (code := next((code for code in codes if name in code.co_names), None)) is not None:
                return _last_mention(code, name)
    return type(owner).__name__


def _last_mention(code: CodeType, name: str) -> SourceLocation:
    """Return the last line of the code that mentions a name; its first line if none does."""
    named = [step.offset for step in steps(code) if step.value == name]
    return SourceLocation(code, named[-1] if named else 0)


# Attributes that the traced code sets before it reads them.


class AssignedAttributes:
    """The attributes that the traced code of one run assigns, and those that it reads before it assigns them.

    An attribute that is only read afterwards leaves nothing for the next call. If the code assigns an attribute by its
    name, modules have a descriptor under that name while it runs, which notes reads and assignments.
    """

    def __init__(self) -> None:
        self._assigned: set[tuple[int, str]] = set()
        self._read_before: set[tuple[int, str]] = set()

    def watch(self, trace: Trace, facts: Facts) -> None:
        """Note which attributes of modules are read and assigned, as long as the trace runs."""
        if _READS_OF_ALL.isdisjoint(facts.read):
            for name in facts.stored:
                if not name.startswith("__") and not hasattr(torch.nn.Module, name):
                    trace.replace(torch.nn.Module, (name,), lambda _, name=name: _WatchedAttributes(name), absent=True)

    def read(self, module: torch.nn.Module, name: str) -> None:
        """Note that an attribute is read, or looked for."""
        if (id(module), name) not in self._assigned:
            self._read_before.add((id(module), name))

    def assign(self, module: torch.nn.Module, name: str) -> None:
        """Note that an attribute is set."""
        self._assigned.add((id(module), name))

    def seen_by_next_call(self, changes: list[Change], held: list[Change]) -> list[Change]:
        """Return the changes that the next call of the program may see before it makes them itself.

        ``held`` are those in objects that modules and functions hold.
        """
        unseen = self._assigned - self._read_before - {(id(owner), name) for owner, name in held}
        return [(owner, name) for owner, name in changes if (id(owner), name) not in unseen]


class _WatchedAttributes:
    """An attribute of all modules during traces; its value is in the ``__dict__`` of each module that has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: torch.nn.Module | None, kind: type) -> Any:
        name = self._name
        if module is None:
            raise AttributeError(f"type object {kind.__name__!r} has no attribute {name!r}")
        session: Any = patching.running_session()
        if session is not None:
            session.assigned.read(module, name)
        if name not in module.__dict__:
            raise AttributeError(name)  # Python continues with __getattr__, which finds parameters and the like
        return module.__dict__[name]

    def __set__(self, module: torch.nn.Module, value: Any) -> None:
        module.__dict__[self._name] = value
        session: Any = patching.running_session()
        if session is not None:
            session.assigned.assign(module, self._name)

    def __delete__(self, module: torch.nn.Module) -> None:
        session: Any = patching.running_session()
        if session is not None:
            session.assigned.read(module, self._name)
            session.assigned.assign(module, self._name)
        if self._name not in module.__dict__:
            raise AttributeError(self._name)
        del module.__dict__[self._name]

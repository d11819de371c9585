"""What modules hold, which a trace leaves as it was, and what the traced code may not leave for its next call."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch

from fx.capture.kept_values import DRAWING, WHY_NO_DRAWING, KeptValue, elements, keep
from fx.capture.patching import Trace
from fx.capture.surroundings import Surroundings, called_by
from fx.checks.bytecode import nested
from fx.errors import TraceError, type_in_words
from fx.frames import is_users_file, user_location
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import prefixes
from fx.modules.containers import QuickModule
from fx.node import Node, map_arg
from fx.provenance import SourceLocation
from fx.proxy import Proxy

_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_PLAIN = frozenset({int, float, str, bool, tuple, type(None), torch.Tensor, torch.dtype, torch.device, FunctionType})
"""Classes of what holds nothing that can be assigned."""
_MOST_NAMES = 3
_DEEPEST = 4
"""How deep containers in containers are looked at."""


class ModuleState:
    """What modules hold, to be put back after a trace: whatever the traced code assigned is not part of the model."""

    def __init__(self, modules: Iterable[torch.nn.Module], function: FunctionType | None = None) -> None:
        """Keep what ``modules`` hold, and what their methods and ``function`` reach outside of them."""
        self._modules = list(modules)
        self._trace: Trace | None = None
        self._saved: dict[int, dict[str, Any]] | None = None
        self._is_as_before = False
        """Whether nothing is known to have changed."""
        self._other_parameters: list[int] = []
        owns = [module.__dict__ for module in self._modules]
        self._held = _Entries([entries for own in owns for entries in (own, own["_modules"])])
        self._state = _Entries([entries for own in owns for entries in (own["_parameters"], own["_buffers"])])
        self._containers: list[tuple[torch.nn.Module, str, KeptValue]] = []
        self.held: set[int] = set()
        """The identities of the containers and objects that modules hold."""
        self._functions: list[FunctionType] = [] if function is None else [function]
        self._kinds: set[type] = set()
        """The classes of objects that are held."""
        for module, own in zip(self._modules, owns, strict=True):
            # Torch's own modules hold nothing that calls change, but for what a hook leaves in them.
            has_hooks = own["_forward_hooks"] or own["_forward_pre_hooks"]
            if has_hooks or not type(module).__module__.startswith("torch."):
                for name, value in own.items():
                    if name not in _OF_EVERY_MODULE:
                        self._keep(module, name, value, _DEEPEST)
        self.surroundings = Surroundings(self._functions, set(map(type, self._modules)), self._kinds)
        """What is reached outside of the modules."""

    def _keep(self, module: torch.nn.Module, name: str, value: Any, depth: int) -> None:
        """Keep what a container holds, or an object of a class of the user's, and what is in these."""
        kind = type(value)
        if (called := called_by(value)) is not None:
            self._functions.append(called)
        if kind in _PLAIN or id(value) in self.held or (kept := keep(value)) is None:
            return
        self.held.add(id(value))
        self._containers.append((module, name, kept))
        self._kinds.add(kind)
        for element in elements(value) if depth else ():
            self._keep(module, name, element, depth - 1)

    def expect_fresh(self, iterator: object) -> None:
        """Refuse to take an element of an iterator that was there before the trace.

        Raises:
            TraceError: it was.
        """
        held = [kept.iterator for _, _, kept in self._containers if kept.iterator is not None]
        if any(one is iterator for one in (*self.surroundings.iterators(), *held)):
            raise TraceError(
                "cannot take the next element of an iterator that is older than the trace",
                where=user_location(sys._getframe(1), {}),
                value=f"{iterator!r:.80}",
                why="each call of the program takes another one, and a captured program would have that of this call",
                remedy="index a list with a buffer that counts, or put the line in a function marked fx.wrap",
            )

    def attributes_of(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return what stood in the ``__dict__`` of a module; with buffers as they were."""
        if self._saved is None:
            self._saved = {id(entries): saved for entries, saved in (*self._held.pairs(), *self._state.pairs())}
        own = self._saved.get(id(module.__dict__), module.__dict__)
        return {**own, "_buffers": self._saved.get(id(own["_buffers"]), own["_buffers"])}

    def expect_nothing_drawn(self) -> None:
        """Refuse a program that has drawn from a generator of random numbers which it reaches.

        Raises:
            TraceError: it has.
        """
        kept = [(module, name, one) for module, name, one in self._containers if one.is_generator]
        kept += [(one.function, one.name, one.kept) for one in self.surroundings.generators()]
        drawn = next(((owner, name) for owner, name, one in kept if one.is_changed()), None)
        if drawn is not None:
            place, value = _place_of([drawn], map(type, self._modules))
            raise TraceError(DRAWING, where=place, value=value, **WHY_NO_DRAWING)

    def find_changes(self) -> list[Change]:
        """Return what is something else now, with its owner: attributes, elements of containers, names of functions."""
        changes: list[Change] = []
        differing = self._held.differing()
        for number in differing:
            entries, saved = self._held.pair(number)
            module = self._modules[number // 2]
            # a QuickModule has its children there, too, once it has run
            children = module._modules if isinstance(module, QuickModule) else ()
            names = [name for name in dict.fromkeys((*saved, *entries)) if name not in children]
            changes += [(module, name) for name in names if entries.get(name, self) is not saved.get(name, self)]
        changes += self.changed_containers()
        changes += [(one.function, one.name) for one in self.surroundings.changed()]
        self._is_as_before = not changes and not differing and not self._other_parameters
        return changes

    def changed_containers(self) -> list[Change]:
        """Return the modules that have held a container or object which is something else now, with the attribute."""
        return [(module, name) for module, name, kept in self._containers if kept.is_changed()]

    def expect_leaves_kept(self, changes: list[Change], graph: Graph, paths: Mapping[torch.nn.Module, str]) -> None:
        """Refuse a program that has changed what a module which it calls as one operation does.

        Raises:
            TraceError: it has set an attribute that the module's code names.
        """
        called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        for owner, name in changes:
            if not isinstance(owner, torch.nn.Module) or (path := paths.get(owner)) is None:
                continue
            if called.intersection(prefixes(path)) and name in _named_by(type(owner)):
                raise TraceError(
                    f"cannot set {name!r} of a module that is one operation of the program",
                    where=_assignment(owner, name, [type(one) for one in self._modules]),
                    value=f"{path}, {type_in_words(owner)}",
                    why="a captured program has no assignment to attributes, so it would run with the one from before",
                    remedy="call the function of torch.nn.functional with the value, or set it before the capture",
                )

    def expect_parameters_kept(self) -> None:
        """Refuse a program that has put other parameters or buffers in the place of a module's own.

        Raises:
            TraceError: it has; traced values are the affair of :meth:`restore`.
        """
        self._other_parameters = self._state.differing()
        for number in self._other_parameters:
            entries, saved = self._state.pair(number)
            module = self._modules[number // 2]
            for name in dict.fromkeys((*saved, *entries)):
                now = entries.get(name, self)
                if now is not saved.get(name, self) and not isinstance(now, Proxy):
                    raise TraceError(
                        f"cannot replace the parameter or buffer {name!r} of a module while it is captured",
                        where=_assignment(module, name, [type(one) for one in self._modules]),
                        value=f"{type(module).__name__}.{name}",
                        why="a captured program has no assignment to attributes, so it would use the one from before",
                        remedy="write in place (self.weight.copy_(value)), or use torch.func.functional_call",
                    )

    def keep_until_restored(self, trace: Trace) -> None:
        """Let :func:`forget_traced_values` do what it can, should nothing be put back though ``trace`` has ended."""
        self._trace = trace
        _unrestored[id(self)] = self

    def forget_traced_values(self) -> None:
        """Put back what traced values stand for, if the trace has ended.

        Other attributes may have been assigned since.
        """
        if self._trace is not None and self._trace.is_running():
            return
        for entries, saved in (*self._held.pairs(), *self._state.pairs()):
            for name in [name for name, value in list(entries.items()) if isinstance(value, Proxy)]:
                if name in saved:
                    entries[name] = saved[name]
                else:
                    entries.pop(name, None)
        _unrestored.pop(id(self), None)

    def restore(self) -> Proxy | None:
        """Put everything back. Return the traced value that was assigned to a buffer or parameter, if there is one."""
        lost: Proxy | None = None
        for entries, saved in () if self._is_as_before else (*self._held.pairs(), *self._state.pairs()):
            if _differs(entries, saved):
                if any(entries is state for state, _ in self._state.pairs()):
                    values = ((name, value) for name, value in entries.items() if isinstance(value, Proxy))
                    lost = next((value for name, value in values if not _is_written_in_place(name, value)), lost)
                # entry by entry: other threads may be using the module
                for name in entries.keys() - saved.keys():
                    del entries[name]
                for name, value in saved.items():
                    if entries.get(name, self) is not value:
                        entries[name] = value
        for _, _, kept in self._containers:
            if kept.is_changed():
                kept.restore()
        self.surroundings.restore()
        self._held = self._state = _Entries([])
        self._containers = []
        _unrestored.pop(id(self), None)
        return lost


Change = tuple[torch.nn.Module | FunctionType, str]
"""A module, or a function, and what it calls that which has changed."""
_unrestored: dict[int, ModuleState] = {}
"""What modules held that are being traced; or were, where signals have kept it from being put back."""


def forget_traced_values() -> None:
    """Take the traced values of traces that have ended out of modules."""
    for state in list(_unrestored.values()):
        state.forget_traced_values()


def same_program(one: Graph, other: Graph) -> bool:
    """Return whether two graphs of one tracer have the same nodes, and constants that are equal."""
    if len(one.nodes) != len(other.nodes) or one.constants.keys() != other.constants.keys():
        return False
    if not all(map(_same_node, one.nodes, other.nodes)):
        return False
    return all(_same_constant(value, other.constants[name]) for name, value in one.constants.items())


def _same_node(one: Node, other: Node) -> bool:
    if (one.op, one.name) != (other.op, other.name) or (one.target is not other.target and one.target != other.target):
        return False
    described = [repr(map_arg((node.args, node.kwargs), lambda used: used.name)) for node in (one, other)]
    return described[0] == described[1]


def _same_constant(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return one is other or (one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other))
    if isinstance(one, GraphModule) and isinstance(other, GraphModule):
        return one is other or same_program(one.graph, other.graph)
    return one is other


def dependence_on_earlier_call(
    changes: list[Change], modules: Iterable[torch.nn.Module] = (), second_run: str = ""
) -> TraceError:
    """The refusal of a program that does something else once it has been called, or may do so.

    Args:
        changes: what a call has left; which of it matters is not known.
        modules: those whose code may have left it.
        second_run: how the run that has left it differs from one before, so that no other one shows what it depends on.
    """
    where, value = _place_of(changes, map(type, modules))
    names = list(dict.fromkeys(name for _, name in changes))
    why = "a captured program has no assignment to attributes, so each call would be like the first"
    if second_run:
        why = (
            f"it was run twice, the second time {second_run}, and a third run would have to show that it does the same"
        )
    return TraceError(
        f"what the program does {'may depend' if second_run else 'depends'} on what an earlier call of it has left in "
        + " or ".join(map(repr, names[:_MOST_NAMES])),
        where=where,
        value=value,
        why=why,
        remedy="keep it in a buffer that is written in place (self.step.add_(1)), or make the module a leaf",
    )


def _place_of(changes: list[Change], kinds: Iterable[type]) -> tuple[SourceLocation | str, str]:
    """The line of the first change of which one is known, by code of these classes, and what has changed in words."""
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


def _named_by(kind: type) -> frozenset[str]:
    """The names in the code of a class, and of those that it inherits from."""
    classes = [one for one in kind.__mro__ if one is not torch.nn.Module]
    functions = [value for one in classes for value in vars(one).values() if isinstance(value, FunctionType)]
    return frozenset(name for function in functions for name in function.__code__.co_names)


def _assignment(module: torch.nn.Module, name: str, others: Iterable[type] = ()) -> SourceLocation | str:
    """The line of a method that names the attribute last; the class where there is none."""
    for kind in (*type(module).__mro__, *others):
        for function in vars(kind).values():
            if (
                isinstance(function, FunctionType)
                and is_users_file(function.__code__.co_filename)
                and function.__name__ != "__init__"
                and (codes := [code for code in nested(function.__code__) if name in code.co_names])
            ):
                return _last_mention(codes[0], name)
    return type(module).__name__


def _last_mention(code: CodeType, name: str) -> SourceLocation:
    """The line of some code that names something last; its first where none does."""
    named = [step.offset for step in dis.get_instructions(code) if step.argval == name]
    return SourceLocation(code, named[-1] if named else 0)


def _is_written_in_place(name: str, value: Proxy) -> bool:
    """Return whether a value is what an in-place operation on attribute ``name`` returned: ``self.count += 1``."""
    node = value.node
    while node.op == "call_method" and str(node.target).endswith("_") and isinstance(node.args[0], Node):
        node = node.args[0]
    return node is not value.node and node.op == "get_attr" and str(node.target).rpartition(".")[2] == name


_NONE: dict[str, Any] = {}


class _Entries:
    """Dictionaries, and what was in each."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries
        self._saved = [one.copy() if one else _NONE for one in entries]

    def pair(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """One of them, and what was in it."""
        return self._entries[number], self._saved[number]

    def pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Each of them, and what was in it."""
        return list(zip(self._entries, self._saved, strict=True))

    def differing(self) -> list[int]:
        """The numbers of those that have other entries now."""
        try:
            if self._entries == self._saved:  # values that are the same object are not compared further
                return []
        except Exception:  # comparing a traced value or a tensor may raise
            pass
        return [number for number, (entries, saved) in enumerate(self.pairs()) if _differs(entries, saved)]


def _differs(entries: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    try:
        return entries != saved  # values that are the same object are not compared further
    except Exception:  # comparing a traced value or a tensor may raise; that it came to that says enough
        return True

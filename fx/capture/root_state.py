"""The traced modules: attributes under the paths that nodes use, hooks, and replaced methods.

Attributes are modules, parameters, buffers and constants. The root's hooks are traced, a leaf's run in the program.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Set
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from fx.arguments import expect, shown
from fx.bytecode.mentions import stores
from fx.capture.leaf_calls import ProxyableClassMeta, behind_recording, find_proxy, is_importable
from fx.capture.restore.places import contents_of
from fx.capture.shared_values import held_at
from fx.capture.signature import function_calling
from fx.capture.trace_state import TraceState
from fx.container_kinds import NAMED_TUPLE, call_of_named_tuple, container_kind
from fx.errors import ForeignModuleError, TraceError, type_in_words
from fx.frames import user_location
from fx.modules.containers import QuickModule
from fx.node import Argument, Node
from fx.operators.python import IN_PLACE
from fx.provenance import defined_at
from fx.proxy import TracerBase


class RootTracer(TracerBase):
    """The part of a tracer that knows the traced module."""

    root: torch.nn.Module
    """The traced module; an empty one if a function is traced."""
    root_module_name: str
    submodule_paths: dict[torch.nn.Module, str] | None = None
    _state: TraceState  # pyright: ignore[reportIncompatibleVariableOverride]

    def path_of_module(self, mod: torch.nn.Module) -> str:
        """Return the dotted path of ``mod`` below the root.

        Raises:
            TraceError: ``mod`` is not below the root.
        """
        if not isinstance(mod, torch.nn.Module):
            expect(mod, torch.nn.Module, "path_of_module takes a module", error=TraceError)
        if self.submodule_paths is None:
            self.submodule_paths = paths_below(self.root)
        path = self.submodule_paths.get(mod)
        if path is None:
            path = next((name for name, module in self.root.named_modules() if module is mod), None)
        if path is None:
            raise _foreign("module is not installed as a submodule of the traced root", type(mod).__name__, self)
        return path

    def _attribute_arg(self, a: Any) -> Argument:
        """Return a ``get_attr`` node for a parameter, buffer, submodule or tensor; else ``NotImplemented``.

        Tensors that are no attribute of the root become constants of the graph. Functions that can be imported by their
        names are returned as they are.
        """
        if isinstance(a, torch.Tensor):
            return self._tensor_arg(a)
        if isinstance(a, torch.nn.Module):
            return self._fetch(self.path_of_module(a))
        if container_kind(a) is NAMED_TUPLE:
            if (call := call_of_named_tuple(a)) is None:
                raise self._cannot_hold(a)
            return self.create_node("call_function", type(a), self.create_arg(call[0]), {})
        if isinstance(a, torch.ScriptObject):
            entry = self._attributes().get(id(a))
            return self._constant("_torchbind_obj", a) if entry is None else self._fetch(entry[1])
        if isinstance(a, (FunctionType, BuiltinFunctionType)) and is_importable(function := behind_recording(a)):
            return function
        if isinstance(type(a), ProxyableClassMeta):
            return self._constant(f"_{type(a).__name__}_constant_", a)
        return NotImplemented

    def _attribute_used(self, node: Node, path: str) -> None:
        """Note that ``node`` takes an attribute first of all. If it writes to it, later reads are recorded."""
        target = node.target
        if isinstance(target, str):
            writes = target == "__setitem__" or (target.endswith("_") and not target.endswith("__"))
        else:
            writes = any(target is function for function in IN_PLACE)
        if not writes or self._state.real is None:  # a Transformer makes nodes without tracing
            return
        constant = self._constants.get(path)
        tensor = held_at(self.root, path) if constant is None else constant
        if isinstance(tensor, torch.Tensor):
            self._state.real.is_written(tensor)

    def _is_state(self, tensor: torch.Tensor) -> bool:
        """Return whether the root, or a module below it, holds a tensor. Constants of the program do not count."""
        if not self.submodule_paths:
            return False
        if id(tensor) in self._parameters():
            return True
        entry = self._attributes().get(id(tensor))
        return entry is not None and entry[1] not in self._constants

    def _takes_part(self, arguments: Any) -> bool:
        """Return whether a call with these arguments is recorded: one is a traced value, or a tensor of the root."""
        real = self._state.real
        return find_proxy(arguments) is not None or (real is not None and real.takes_part(arguments))

    def get_fresh_qualname(self, prefix: str) -> str:
        """Return a name that starts with ``prefix``, ends in a number and is not an attribute of the root yet."""
        expect(prefix, str, "get_fresh_qualname takes the beginning of a name", error=TraceError)
        names = (f"{prefix}{number}" for number in itertools.count())
        return next(name for name in names if not hasattr(self.root, name) and not self._is_constant(name))

    def _is_constant(self, name: str) -> bool:
        return any(name in constants for constants in (self.graph.constants, self._constants))

    def _tensor_arg(self, a: torch.Tensor) -> Argument:
        real = self._state.real
        if real is not None and (node := real.node_of(a)) is not None:
            return node if node.graph is self.graph else self._node_of(self.proxy(node))
        if isinstance(a, torch.nn.Parameter):
            path = self._parameters().get(id(a))
            if path is None:
                raise _foreign("parameter is not a member of this module", f"shape {tuple(a.shape)}", self)
            return self._fetch(path)
        entry = self._attributes().get(id(a))
        if entry is not None:
            return self._fetch(entry[1])
        if real is not None:
            real.is_constant(a)
        return self._constant("_tensor_constant", a)

    def _fetch(self, path: str) -> Argument:
        body = self._state.body
        return self.create_node("get_attr", path, (), {}) if body is None else body.fetched(path)

    @property
    def _constants(self) -> dict[str, Any]:
        """Return the constants of the program around all bodies."""
        body = self._state.body
        return (self.graph if body is None else body.first.outer_graph).constants

    def _constant(self, prefix: str, value: Any) -> Argument:
        name = self.get_fresh_qualname(prefix)
        self._constants[name] = value
        self._attributes()[id(value)] = (value, name)
        return self._fetch(name)

    def _parameters(self) -> dict[int, str]:
        paths = self._state.parameter_paths
        if paths is None:
            paths = self._state.parameter_paths = {id(value): path for path, value in self.root.named_parameters()}
            for path, value in _named_by_program(self.root):
                if id(value) in paths:
                    paths[id(value)] = path
        return paths

    def _attributes(self) -> dict[int, tuple[Any, str]]:
        """Return the path of each buffer, and of each tensor or script object in an attribute of a module."""
        if self._state.attribute_paths is None:
            named = ((path, value) for path, value in _named_by_program(self.root) if isinstance(value, torch.Tensor))
            attributes: dict[int, tuple[Any, str]] = {id(value): (value, path) for path, value in named}
            modules = self._state.modules
            for prefix, module in self.root.named_modules():
                if isinstance(module, torch.jit.ScriptModule):  # its attributes are not in dicts
                    continue
                own = {**module.__dict__, **module._buffers} if modules is None else modules.attributes.before(module)
                for name, value in own.items():
                    if isinstance(value, (torch.Tensor, torch.ScriptObject)):
                        attributes.setdefault(id(value), (value, f"{prefix}.{name}" if prefix else name))
            self._state.attribute_paths = attributes
        return self._state.attribute_paths

    @property
    def tensor_attrs(self) -> dict[Any, str]:
        """The path of each tensor attribute of the root that is not a parameter."""
        return dict(self._attributes().values())


def paths_below(root: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """Return each module below ``root`` with its first path, in the order of ``named_modules``."""
    paths: dict[torch.nn.Module, str] = {}
    pending: list[tuple[str, torch.nn.Module]] = [("", root)]
    while pending:
        path, module = pending.pop()
        if module in paths:
            continue
        paths[module] = path
        if module._modules and not isinstance(module, torch.jit.ScriptModule):
            prefix = f"{path}." if path else ""
            children = [(prefix + name, child) for name, child in module._modules.items() if child is not None]
            pending.extend(reversed(children))
    return paths


def _foreign(what: str, value: str, tracer: RootTracer) -> TraceError:
    return ForeignModuleError(
        what,
        where=user_location(sys._getframe(2), tracer._state.locations),
        value=value,
        why=f"a node names a path below {type(tracer.root).__name__}, and this has none",
        remedy="make it an attribute of the root or of one of its submodules (in __init__)",
    )


def _named_by_program(root: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that a program to be traced again reads, under its graph's paths, which may differ."""
    graph = vars(root).get("_graph")
    for node in graph.find_nodes(op="get_attr") if graph is not None else ():
        yield node.target, held_at(root, node.target)


# Hooks and replaced methods.


def own_method(root: torch.nn.Module, name: str) -> Any:
    """Return the function that a call of ``root.name`` runs with ``root`` as first argument; ``None`` if there is none.

    Refuse a root whose calls run more than its hooks and that method.
    """
    own = vars(root).get(name)
    if name == "forward":
        _refuse_other_calls(root)
    if own is None or isinstance(own, torch.nn.Module):
        attribute = inspect.getattr_static(type(root), name, None)
        if isinstance(attribute, (staticmethod, classmethod, functools.partialmethod)):
            return _with_owner(root, name)
        return getattr(type(root), name, None)
    if isinstance(own, MethodType) and own.__self__ is root and isinstance(own.__func__, FunctionType):
        return own.__func__
    raise TraceError(
        f"cannot trace {name!r} of {type_in_words(root)}, which its instance has replaced",
        where=defined_at(own),
        value=shown(own),
        why=f"the {name} of its class would be captured, but a call runs the replacement",
        remedy=f"override {name} in a subclass, or capture a module that calls this one",
    )


def _with_owner(root: torch.nn.Module, name: str) -> FunctionType:
    """Return a function of the root and a method's arguments, for a method that does not take the root."""
    method = getattr(root, name)
    function = function_calling(method, owner="self")
    if function is None:
        raise TraceError(
            f"cannot trace {name!r} of {type_in_words(root)}, which takes *args or **kwargs and is no plain method",
            where=defined_at(inspect.unwrap(getattr(method, "func", method))),
            value=shown(method),
            why="capture needs a function of the module with one input for each parameter",
            remedy=f"write def {name}(self, ...) that calls it",
        )
    return function


def _refuse_other_calls(root: torch.nn.Module) -> None:
    call = type(root).__call__
    is_plain = isinstance(root, (QuickModule, torch.jit.ScriptModule)) or getattr(call, "__module__", "").startswith(
        ("torch.", "fx.")
    )
    if not is_plain and isinstance(call, FunctionType):
        raise TraceError(
            f"cannot trace {type_in_words(root)}, whose class replaces __call__",
            where=defined_at(call),
            value=shown(root),
            why="its forward would be captured alone, without what its __call__ does",
            remedy="move that into forward, or capture a module that calls this one",
        )
    for hooks in (root._backward_hooks, root._backward_pre_hooks):
        for hook in hooks.values():
            raise TraceError(
                f"cannot trace {type_in_words(root)} that has backward hooks itself",
                where=defined_at(hook),
                value=shown(hook),
                why="they belong to the call of this module, which the program replaces",
                remedy="capture it without, and register them on the program; inner modules may have some",
            )


def with_hooks(root: torch.nn.Module, called: Callable[..., Any], tracer: TracerBase) -> Callable[..., Any]:
    """Return ``called``, a function of the root first, with the forward hooks of the root around it."""
    if tracer.traced_func_name != "forward" or not (root._forward_pre_hooks or root._forward_hooks):
        return called

    def hooked(_: Any, *args: Any) -> Any:
        kwargs: dict[str, Any] = {}
        for number, hook in list(root._forward_pre_hooks.items()):
            if number in root._forward_pre_hooks_with_kwargs:
                changed: Any = hook(root, args, kwargs)  # type: ignore[call-arg]
                args, kwargs = (args, kwargs) if changed is None else changed
            elif (changed := hook(root, args)) is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = called(root, *args, **kwargs)
        for number, hook in list(root._forward_hooks.items()):
            if number in root._forward_hooks_with_kwargs:
                changed = hook(root, args, kwargs, result)  # type: ignore[call-arg]
            else:
                changed = hook(root, args, result)
            result = result if changed is None else changed
        return result

    hooked.__annotations__ = getattr(called, "__annotations__", {})
    return hooked


def leaves_something(
    module: torch.nn.Module, modules: Collection[torch.nn.Module], held: Collection[int], read: Set[str]
) -> bool:
    """Return whether a forward hook of a module may change objects that the traced code may read.

    ``held`` are the identities of the containers and objects that modules hold and functions name, ``read`` the names
    of attributes in the traced code.
    """
    state = {**vars(module), **module._parameters, **module._buffers}
    tensors = {name for name, value in state.items() if isinstance(value, torch.Tensor)}  # read when the program runs
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        function, owners = _function(hook)
        if function is None:
            continue
        code = function.__code__
        _, attributes = stores(code)
        others = (owner for owner in owners if isinstance(owner, torch.nn.Module) and owner is not module)
        if attributes & read - tensors or (attributes and any(owner in modules for owner in others)):
            return True  # the former may be of the module, which the hook takes
        if any(id(value) in held for value in _reached(function, code, [module, *owners])):
            return True
    return False


def _function(hook: Any) -> tuple[FunctionType | None, list[Any]]:
    """Return the function behind a hook, with the objects that it is bound to."""
    owners: list[Any] = []
    while isinstance(hook, functools.partial):
        owners += [*hook.args, *hook.keywords.values()]
        hook = hook.func
    if not isinstance(hook, (FunctionType, MethodType)):
        hook = getattr(hook, "__call__", None)  # noqa: B004 - its method is what is looked at
    if isinstance(hook, MethodType):
        owners.append(hook.__self__)
        hook = hook.__func__
    return hook if isinstance(hook, FunctionType) else None, owners


def _reached(function: FunctionType, code: CodeType, owners: list[Any]) -> Iterator[Any]:
    """Yield the values that a function names: attributes of its owners, variables of outer functions, and globals."""
    cells = map(contents_of, function.__closure__ or ())
    for owner in (*owners, *cells):
        yield owner
        attributes = getattr(owner, "__dict__", {})
        yield from (attributes[name] for name in code.co_names if name in attributes)
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)

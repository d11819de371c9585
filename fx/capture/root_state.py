"""The attributes of the traced root under the paths that nodes use: modules, parameters, buffers and constants."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from fx.arguments import expect
from fx.capture.leaf_calls import ProxyableClassMeta, behind_recording, find_proxy, is_importable
from fx.capture.shared_values import held_at
from fx.capture.trace_state import TraceState
from fx.container_kinds import NAMED_TUPLE, call_of_named_tuple, container_kind
from fx.errors import ForeignModuleError, TraceError
from fx.frames import user_location
from fx.node import Argument, Node
from fx.operators.python import IN_PLACE
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
        number = 0
        all_constants = (self.graph.constants, self._constants)
        while hasattr(self.root, f"{prefix}{number}") or any(
            f"{prefix}{number}" in constants for constants in all_constants
        ):
            number += 1
        return f"{prefix}{number}"

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

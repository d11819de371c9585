"""Convolutions, linear layers and batch norms with their tensors by name, for calls of modules and of functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from fx.analysis.dependence import Dependences
from fx.assertions import check_value
from fx.graph_module import GraphModule
from fx.modules.attributes import does_as_its_class, fetch_attribute, free_path, is_own, put_attribute, remove_attribute
from fx.node import Node
from fx.operators.families import find_operator, is_one_of

TENSORS = ("weight", "bias", "running_mean", "running_var")
_SETTINGS = ("training", "eps", "groups")
_COMPUTED = "is computed by the program, or is not a plain tensor"
_DEFAULTS = {"training": False, "eps": 1e-5, "groups": 1}


@dataclass(frozen=True, slots=True, eq=False)
class WeightedLayer:
    """One call of a layer."""

    node: Node
    """The call."""
    kind: Any
    """The module's class, or the function."""
    module: nn.Module | None
    """The module, unless it is called as a function."""
    source: Any
    """Its input."""
    tensors: dict[str, Any]
    """The ``weight``, ``bias``, ``running_mean`` and ``running_var`` that it has; computed ones are nodes."""
    settings: dict[str, Any]
    """The ``training``, ``eps`` and ``groups`` that it has."""
    fetched: dict[str, Node]
    """The ``get_attr`` nodes of the tensors of a function call."""

    @property
    def paths(self) -> list[str]:
        """The paths of the attributes that it uses: its module, or else each of its tensors."""
        return [str(node.target) for node in ([self.node] if self.module is not None else self.fetched.values())]

    @property
    def label(self) -> str:
        """The label in messages: the path of its module, or the name of its node."""
        return self.node.name if self.module is None else str(self.node.target)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the function's parameters, in order."""
        row = find_operator(self.kind)
        return () if row is None else row.parameters

    @property
    def dims(self) -> int:
        """The number of spatial dimensions: 2 for ``conv2d``, 0 for a linear layer."""
        row = find_operator(self.kind)
        return 0 if row is None else row.dims or 0

    @property
    def is_batch_norm(self) -> bool:
        """True for a batch norm, including subclasses."""
        return is_one_of(self.kind, "batch norm") or isinstance(self.module, _BatchNorm)


def read_layer(graph_module: GraphModule, node: Node) -> WeightedLayer | None:
    """Return the layer that ``node`` calls, or ``None`` for other nodes. Subclasses of torch's layers are included."""
    kind = node.target
    if node.op == "call_module":
        module = graph_module.get_submodule(str(kind))
        if not isinstance(module, (_ConvNd, nn.Linear, _BatchNorm)):
            return None
        tensors = {name: getattr(module, name, None) for name in TENSORS}
        settings = {name: getattr(module, name) for name in _SETTINGS if hasattr(module, name)}
        source = node.args[0] if node.args else node.kwargs.get("input")
        return WeightedLayer(node, type(module), module, source, _present(tensors), settings, {})
    row = find_operator(kind) if node.op == "call_function" else None
    if row is None or not row.parameters:
        return None
    arguments = {**_DEFAULTS, **dict(zip(row.parameters, node.args, strict=False)), **node.kwargs}
    tensors = _present({name: arguments.get(name) for name in TENSORS})
    fetched = {name: value for name, value in tensors.items() if isinstance(value, Node) and value.op == "get_attr"}
    tensors |= {name: fetch_attribute(graph_module, str(used.target)) for name, used in fetched.items()}
    settings = {name: arguments[name] for name in _SETTINGS}
    return WeightedLayer(node, kind, None, arguments.get("input"), tensors, settings, fetched)


def _present(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


class Layers:
    """The layers of one program, and edits of them that leave modules and tensors of the user's untouched."""

    def __init__(self, graph_module: GraphModule) -> None:
        self._graph_module = graph_module
        self._layers: dict[Node, WeightedLayer] = {}
        self._uses: Counter[int] = Counter()  # of each module and tensor, by id, under whatever names
        self._flags: dict[str, list[Node]] = {}  # nodes that read the training flag of a module, by its path
        for node in graph_module.graph.nodes:
            if (layer := read_layer(graph_module, node)) is not None:
                self._layers[node] = layer
            if node.op in ("call_module", "get_attr"):
                used = fetch_attribute(graph_module, str(node.target))
                tensors = (*used.parameters(), *used.buffers()) if isinstance(used, nn.Module) else ()
                self._uses.update(map(id, (used, *tensors)))
                if not isinstance(used, (nn.Module, Tensor)):
                    self._flags.setdefault(str(node.target).rpartition(".")[0], []).append(node)

    def __iter__(self) -> Iterator[WeightedLayer]:
        return iter(self._layers.values())

    def get(self, node: Any) -> WeightedLayer | None:
        """Return the layer with the result ``node``, or ``None`` for any other value."""
        return self._layers.get(node) if isinstance(node, Node) else None

    @cached_property
    def dependences(self) -> Dependences:
        """The dependences in the program at the time of their first use."""
        return Dependences(self._graph_module.graph)

    def forget_dependences(self) -> None:
        """Drop the dependences, and the references to tensors that they hold."""
        vars(self).pop("dependences", None)

    def why_not_joined(self, layer: WeightedLayer, after: WeightedLayer) -> str | None:
        """Return why one operation cannot replace ``layer`` and the layer ``after`` it, or ``None`` if it can."""
        return self.dependences.why_not_fuse((layer.node, after.node))

    def obstacle(self, layer: WeightedLayer) -> str | None:
        """Return why the tensors of ``layer`` cannot be replaced, or ``None`` if they can."""
        if layer.module is not None and not does_as_its_class(layer.module):
            return f"`%{layer.node}` has hooks or a forward of its own"
        for name, tensor in layer.tensors.items():
            if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
                is_input = isinstance(tensor, Node) and tensor.op == "placeholder"
                why = f"is the input `{tensor}`, not known before the program runs" if is_input else _COMPUTED
                return f"the {name} of `%{layer.node}` {why}"
        if any(isinstance(setting, Node) for setting in layer.settings.values()):
            return f"a setting of `%{layer.node}` is computed by the program"
        state, holders = [layer.module, *layer.tensors.values()], [layer.node, *layer.fetched.values()]
        if any(self._uses[id(value)] > 1 for value in state) or any(
            len(node.users) > 1 for node in layer.fetched.values()
        ):
            return f"`%{layer.node}` shares its module or its tensors with another operation"
        if (written := next(filter(None, map(self.dependences.why_state_varies, holders)), None)) is not None:
            return written
        if not all(is_own(self._graph_module, path) for path in layer.paths):
            return f"`%{layer.node}` is inside a module that may be the user's, not a container of the program"
        # Checks of the training flag are removed with the layer (`remove`); other reads of it need the module.
        flags = self._flags.get(str(layer.node.target), []) if layer.module is not None else []
        if (read := next((flag for flag in flags if not all(map(_is_check, flag.users))), None)) is not None:
            return f"the program reads `{read.target}`"
        return None

    def replace_tensors(self, layer: WeightedLayer, tensors: dict[str, Tensor]) -> None:
        """Make ``layer`` use other ``tensors``, without writing to its module or its old tensors.

        A module is replaced by a copy under the same name. A function gets new attributes beside its weight, called
        ``fused_weight`` and so on, and the old ones are removed. The layer is removed from this collection.
        """
        node, graph = layer.node, self._graph_module.graph
        self._layers.pop(node, None)
        if layer.module is not None:
            self._graph_module.add_submodule(str(node.target), copy_with(layer.module, tensors))
            return
        args, kwargs, names = list(node.args), dict(node.kwargs), layer.parameters
        prefix = str(layer.fetched["weight"].target).rpartition(".")[0]
        for name, tensor in tensors.items():
            path = self.add_attribute(prefix, f"fused_{name}", tensor)
            with graph.inserting_before(node):
                fetched = graph.get_attr(path)
            if (position := names.index(name)) < len(args):
                args[position] = fetched
            else:
                kwargs[name] = fetched
        node.args, node.kwargs = tuple(args), kwargs
        self._remove_fetched(layer)

    def remove(self, layer: WeightedLayer) -> None:
        """Remove an unused call, and its module or tensors unless another operation shares them.

        Checks of the module's training mode are removed too.
        """
        graph = self._graph_module.graph
        graph.erase_node(layer.node)
        self._layers.pop(layer.node, None)
        if layer.module is not None:
            path = str(layer.node.target)
            for flag in self._flags.pop(path, ()):
                for node in (*flag.users, flag):
                    graph.erase_node(node)
            remove_attribute(self._graph_module, path, self._flags.keys())
        self._remove_fetched(layer)

    def add_attribute(self, prefix: str, wish: str, value: Tensor | nn.Module) -> str:
        """Add a tensor or module to the attributes below ``prefix`` under a unique name, and return its path."""
        path = free_path(self._graph_module, f"{prefix}.{wish}" if prefix else wish)
        put_attribute(self._graph_module, path, value)
        return path

    def _remove_fetched(self, layer: WeightedLayer) -> None:
        for node in layer.fetched.values():
            self._graph_module.graph.erase_node(node)
            remove_attribute(self._graph_module, str(node.target), self._flags.keys())


def _is_check(node: Node) -> bool:
    return node.target is check_value and not node.users


def copy_with(module: nn.Module, tensors: dict[str, Any]) -> nn.Module:
    """Return a copy of ``module`` with other parameters and its own dicts and sets, so that edits change only one."""
    copied = type(module).__new__(type(module))
    for name, value in vars(module).items():
        vars(copied)[name] = value.copy() if isinstance(value, (dict, set)) else value
    for name, tensor in tensors.items():
        copied.register_parameter(name, tensor)
    return copied

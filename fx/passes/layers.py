"""A convolution, linear layer or batch norm with its tensors by name, whether it is called as a module or as a function."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from fx.containers import Container
from fx.graph_module import GraphModule
from fx.node import Node

TENSORS = ("weight", "bias", "running_mean", "running_var")
"""Names of the tensors that a layer may have."""

_SETTINGS = ("training", "eps", "groups")
_CONVOLUTION = "input weight bias stride padding dilation groups".split()
_TRANSPOSED = "input weight bias stride padding output_padding groups dilation".split()
_ARGUMENTS: dict[Any, list[str]] = {
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _CONVOLUTION),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), _TRANSPOSED),
    F.linear: "input weight bias".split(),
    F.batch_norm: "input running_mean running_var weight bias training momentum eps".split(),
    torch.batch_norm: "input weight bias running_mean running_var training momentum eps".split(),
}
_DEFAULTS = {"training": False, "eps": 1e-5, "groups": 1}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One call of a layer."""

    node: Node
    """The call."""
    kind: Any
    """The module's class, or the function."""
    module: nn.Module | None
    """The module, unless it is called as a function."""
    source: Any
    """What it is applied to."""
    tensors: dict[str, Any]
    """Those of ``TENSORS`` that it has; one that the program computes is a node."""
    settings: dict[str, Any]
    """``training``, ``eps`` and ``groups``, as far as the layer has them."""
    fetched: dict[str, Node]
    """The ``get_attr`` nodes of the tensors, where it is called as a function."""

    @property
    def paths(self) -> list[str]:
        """The attributes that it uses: its module, or else each of its tensors."""
        return [str(node.target) for node in ([self.node] if self.module is not None else self.fetched.values())]

    def is_customized(self) -> bool:
        """Whether calling it may run the user's code: hooks, or a forward set on the module itself."""
        state = {} if self.module is None else vars(self.module)
        return "forward" in state or any(state.get(name) for name in _HOOKS)


def read_layer(graph_module: GraphModule, node: Node) -> Layer | None:
    """Return ``node`` as a layer, or ``None`` if it is none. Subclasses of torch's layers count as layers too."""
    kind = node.target
    if node.op == "call_module":
        module = graph_module.get_submodule(str(kind))
        if not isinstance(module, (_ConvNd, nn.Linear, _BatchNorm)):
            return None
        tensors = {name: getattr(module, name, None) for name in TENSORS}
        settings = {name: getattr(module, name) for name in _SETTINGS if hasattr(module, name)}
        source = node.args[0] if node.args else node.kwargs.get("input")
        return Layer(node, type(module), module, source, _present(tensors), settings, {})
    names = next((names for function, names in _ARGUMENTS.items() if function is kind), None)
    if node.op != "call_function" or names is None:
        return None
    given = {**_DEFAULTS, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    tensors = _present({name: given.get(name) for name in TENSORS})
    fetched = {name: value for name, value in tensors.items() if isinstance(value, Node) and value.op == "get_attr"}
    tensors |= {name: fetch_attribute(graph_module, str(used.target)) for name, used in fetched.items()}
    settings = {name: given[name] for name in _SETTINGS}
    return Layer(node, kind, None, given.get("input"), tensors, settings, fetched)


def _present(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def fetch_attribute(graph_module: GraphModule, path: str) -> Any:
    """Return what a ``get_attr`` node with the target ``path`` fetches."""
    value: Any = graph_module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def count_uses(graph_module: GraphModule) -> Counter[int]:
    """Count how many nodes use each module, parameter and buffer, by ``id``, under whatever names."""
    uses: Counter[int] = Counter()
    for node in graph_module.graph.nodes:
        if node.op in ("call_module", "get_attr"):
            used = fetch_attribute(graph_module, str(node.target))
            held = (*used.parameters(), *used.buffers()) if isinstance(used, nn.Module) else ()
            uses.update(map(id, (used, *held)))
    return uses


def find_own_parent(graph_module: GraphModule, path: str) -> nn.Module | None:
    """Return what holds the attribute ``path`` if only ``graph_module`` owns it, or ``None``.

    The containers that a ``GraphModule`` makes are its own, so what they hold can be replaced. A module below a called
    one may be the user's, and what it holds is not ours to replace.
    """
    parent: nn.Module = graph_module
    for name in path.split(".")[:-1]:
        child = parent._modules.get(name)  # pyright: ignore[reportPrivateUsage]
        if not isinstance(child, Container):
            return None
        parent = child
    return parent


def replace_tensors(graph_module: GraphModule, layer: Layer, tensors: dict[str, Tensor]) -> None:
    """Make ``layer`` use other ``tensors``; its module and the old ones stay as they are, but are no longer used by it.

    A called module is replaced by a copy of it under the same name. A function gets new attributes beside its weight,
    called ``fused_weight`` and so on, and the old ones are removed.
    """
    if layer.module is not None:
        module = layer.kind.__new__(layer.kind)
        # The copy keeps mode, settings and state-dict hooks, but must not share the dicts that hold them.
        for name, value in vars(layer.module).items():
            vars(module)[name] = value.copy() if isinstance(value, (dict, set)) else value
        module._parameters.update(tensors)  # pyright: ignore[reportPrivateUsage]
        graph_module.add_submodule(str(layer.node.target), module)
        return
    args, kwargs = list(layer.node.args), dict(layer.node.kwargs)
    names = _ARGUMENTS[layer.kind]
    prefix = str(layer.fetched["weight"].target).rpartition(".")[0]
    for name, tensor in tensors.items():
        path = _add_attribute(graph_module, prefix, f"fused_{name}", tensor)
        with graph_module.graph.inserting_before(layer.node):
            fetched = graph_module.graph.get_attr(path)
        position = names.index(name)
        if position < len(args):
            args[position] = fetched
        else:
            kwargs[name] = fetched
    layer.node.args, layer.node.kwargs = tuple(args), kwargs
    _remove_fetched(graph_module, layer)


def remove_layer(graph_module: GraphModule, layer: Layer) -> None:
    """Remove a call that nothing uses, with its module or tensors, which must be used by no other node."""
    graph_module.graph.erase_node(layer.node)
    if layer.module is not None:
        graph_module.delete_submodule(str(layer.node.target))
    _remove_fetched(graph_module, layer)


def _add_attribute(graph_module: GraphModule, prefix: str, wish: str, tensor: Tensor) -> str:
    """Add ``tensor`` beside the attributes below ``prefix`` and return its path, the name made unique."""
    parent: nn.Module = fetch_attribute(graph_module, prefix) if prefix else graph_module
    names = (wish if count == 0 else f"{wish}_{count}" for count in itertools.count())
    name = next(name for name in names if not hasattr(parent, name))
    if isinstance(tensor, nn.Parameter):
        parent.register_parameter(name, tensor)
    else:
        parent.register_buffer(name, tensor)
    return f"{prefix}.{name}" if prefix else name


def _remove_fetched(graph_module: GraphModule, layer: Layer) -> None:
    for node in layer.fetched.values():
        prefix, _, name = str(node.target).rpartition(".")
        graph_module.graph.erase_node(node)
        delattr(fetch_attribute(graph_module, prefix) if prefix else graph_module, name)

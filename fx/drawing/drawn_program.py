"""``DrawnProgram``: the drawable facts of a program, as records that do not change when passes edit the program."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.graph_module import GraphModule
from fx.naming.printing import format_argument, target_name
from fx.node import Node
from fx.passes.shape_prop import ShapeProp
from fx.passes.tensor_metadata import TensorMetadata

LONGEST_TEXT = 300
"""The longest text of an argument or a line of code, in characters: constants of thousands of elements help nobody."""

Path = tuple[str, ...]
"""The modules around a node, outermost first; empty in the root."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """The drawable facts of one node."""

    name: str
    """Its name, unique in its program."""
    op: str
    """Its opcode."""
    target: str
    """Its target, with the package."""
    title: str
    """A short name of its target: the class of a module, the name of a function."""
    arguments: str
    """Its arguments as text, with nodes as ``%name``."""
    settings: str
    """The settings of the called module (its ``extra_repr``), as ``3, 64, kernel_size=(7, 7)``; otherwise empty."""
    modules: Path
    """The modules around it, each by its path."""
    inputs: tuple[str, ...]
    """Names of the nodes that it reads."""
    shape: str
    """The sizes of its value, as ``1x64x56x56``, of several values joined by commas; empty if not known."""
    dtype: str
    """The dtypes of its value; empty if not known."""
    file: str
    """The user's file with the call; empty if not known."""
    line: int
    """The line in that file, from 1; 0 if not known."""
    code: str
    """The text of that line."""

    @property
    def place(self) -> str:
        """File and line in short, as ``resnet.py:48``; empty if not known."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True)
class DrawnProgram:
    """The drawable facts of a program."""

    nodes: tuple[DrawnNode, ...]
    """Its nodes, in order."""
    classes: Mapping[str, str]
    """The class names of the modules around nodes, by path."""

    @classmethod
    def of(cls, graph_module: GraphModule, inputs: Iterable[Any] | None = None) -> DrawnProgram:
        """Read a program, which stays as it is.

        Args:
            graph_module: the program.
            inputs: example inputs, to find sizes on fake tensors; by default sizes are those in the ``meta`` of nodes.

        Raises:
            PassError: the program takes another number of inputs.
        """
        nodes = list(graph_module.graph.nodes)
        values = {} if inputs is None else sizes_of(graph_module, inputs)
        stacks = [_stack(node) for node in nodes]
        chains: dict[str, Path] = {}
        for node, stack in zip(nodes, stacks, strict=True):
            around = _modules_around(node, stack, {})
            chains.update((stack[key][0], around[: number + 1]) for number, key in enumerate(around))
        drawn = tuple(
            _drawn(graph_module, node, _modules_around(node, stack, chains), values.get(node, node))
            for node, stack in zip(nodes, stacks, strict=True)
        )
        classes = {key: kind for stack in stacks for key, (_, kind) in stack.items()}
        return cls(drawn, classes)


class _Sizes(ShapeProp):
    """An interpreter on fake tensors that keeps the metadata of each value outside of the program."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__(graph_module, fake=True)
        self.metadata: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        """Run one node, and restore its ``meta``."""
        notes = dict(n.meta)
        try:
            result = super().run_node(n)
            self.metadata[n] = n.meta.get("tensor_meta")
        finally:
            n.meta = notes
        return result


def sizes_of(graph_module: GraphModule, inputs: Iterable[Any]) -> dict[Node, Any]:
    """Return the metadata of the tensors of each node, from a run on fake tensors."""
    run = _Sizes(graph_module)
    run.propagate(*inputs)
    return run.metadata


def _stack(node: Node) -> dict[str, tuple[str, str]]:
    """Return the modules that were running when the node was recorded: path and class, by a key for each call."""
    recorded: Any = (node.meta.get("nn_module_stack") if node._meta else None) or {}
    stack: dict[str, tuple[str, str]] = {}
    for key, (path, kind) in recorded.items():
        if path:  # torch.export has the root, too
            call = re.search(r"@\d+$", str(key))  # a later call of the same module
            name = getattr(kind, "__name__", str(kind)).rpartition(".")[2]
            stack[f"{path}{call[0] if call else ''}"] = (str(path), name)
    return stack


def _modules_around(node: Node, stack: dict[str, tuple[str, str]], chains: dict[str, Path]) -> Path:
    """Return the keys of the modules around a node; without a record, those of the module that holds its target."""
    around = tuple(stack)
    if around:
        is_own = node.op == "call_module" and stack[around[-1]][0] == node.target
        return around[:-1] if is_own else around
    path = str(node.target) if node.op in ("call_module", "get_attr") else ""
    while path:
        path = path.rpartition(".")[0]
        if path in chains:
            return chains[path]
    return ()


def _drawn(graph_module: GraphModule, node: Node, modules: Path, value: Any) -> DrawnNode:
    if isinstance(value, Node):
        value = (node.meta.get("val", node.meta.get("tensor_meta"))) if node._meta else None
    shape, dtype = _sizes_and_types(value)
    title, settings = _title(graph_module, node)
    arguments = ", ".join(
        [format_argument(argument) for argument in node.args]
        + [f"{key}={format_argument(argument)}" for key, argument in node.kwargs.items()]
    )
    source = node.source
    return DrawnNode(
        node.name,
        node.op,
        shortened(target_name(node.target)),
        shortened(title, 60),
        shortened(arguments),
        shortened(settings),
        modules,
        tuple(used.name for used in node.all_input_nodes),
        shape,
        dtype,
        "" if source is None else source.file,
        0 if source is None else source.line,
        "" if source is None else shortened(source.text),
    )


def _title(graph_module: GraphModule, node: Node) -> tuple[str, str]:
    """Return a short name of a node's target, and the settings of a module."""
    if node.op == "call_module":
        try:
            module = graph_module.get_submodule(str(node.target))
        except AttributeError:
            return str(node.target), ""
        return module._get_name(), " ".join(module.extra_repr().split())
    if node.op == "call_method":
        return f".{node.target}()", ""
    if node.op == "get_attr":
        return str(node.target).rpartition(".")[2], ""
    if node.op == "call_function":
        return target_name(node.target).rpartition(".")[2] or "function", ""
    return str(node.target), ""


def _sizes_and_types(value: Any) -> tuple[str, str]:
    if value is None:
        return "", ""
    leaves = pytree.tree_leaves(value, is_leaf=lambda leaf: isinstance(leaf, TensorMetadata))
    tensors = [leaf for leaf in leaves if isinstance(leaf, (TensorMetadata, torch.Tensor))]
    shapes = ["x".join(map(str, tensor.shape)) or "scalar" for tensor in tensors]
    types = dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return shortened(", ".join(shapes), 60), ", ".join(types)


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return ``text`` in one line, cut in the middle if it is too long."""
    text = " ".join(text.split())
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]} … {text[len(text) - half :]}"

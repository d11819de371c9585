"""``DrawnProgram``: what is drawn of a program, as records that stay as they are when passes edit it."""

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
"""Characters of an argument or a line of code that are kept: constants of thousands of elements help nobody."""

Path = tuple[str, ...]
"""The modules around a node, outermost first; empty in the root."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """What is drawn of one node."""

    name: str
    """Its name, unique in its program."""
    op: str
    """Its opcode."""
    target: str
    """What it calls or fetches, with the package it is from."""
    title: str
    """What it calls or fetches, in a word or two: the class of a module, the name of a function."""
    arguments: str
    """Its arguments as text, with nodes as ``%name``."""
    settings: str
    """What the module that it calls says of itself, as ``3, 64, kernel_size=(7, 7)``; empty for other nodes."""
    modules: Path
    """The modules around it, each by its path."""
    inputs: tuple[str, ...]
    """Names of the nodes that it reads."""
    shape: str
    """Sizes of its value, as ``1x64x56x56``, of several values joined by commas; empty where they are not known."""
    dtype: str
    """Types of elements of its value; empty where they are not known."""
    file: str
    """The user's file that made it; empty where it is not known."""
    line: int
    """The line in that file, from 1; 0 where it is not known."""
    code: str
    """The text of that line."""

    @property
    def place(self) -> str:
        """File and line in short, as ``resnet.py:48``; empty where they are not known."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True)
class DrawnProgram:
    """What is drawn of a program."""

    nodes: tuple[DrawnNode, ...]
    """Its nodes, in order."""
    classes: Mapping[str, str]
    """Names of the classes of the modules around nodes, by path."""

    @classmethod
    def of(cls, graph_module: GraphModule, inputs: Iterable[Any] | None = None) -> DrawnProgram:
        """Read a program, which stays as it is.

        Args:
            graph_module: the program.
            inputs: example inputs, with which sizes are found out on fake tensors; by default they are those that
                are in the notes of nodes already.

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
    """Runs a program on fake tensors and keeps what is known of each value beside the program."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__(graph_module, fake=True)
        self.found: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        """Run one node, and put its notes back."""
        notes = dict(n.meta)
        try:
            result = super().run_node(n)
            self.found[n] = n.meta.get("tensor_meta")
        finally:
            n.meta = notes
        return result


def sizes_of(graph_module: GraphModule, inputs: Iterable[Any]) -> dict[Node, Any]:
    """The metadata of the tensors of each node, found out on fake tensors."""
    run = _Sizes(graph_module)
    run.propagate(*inputs)
    return run.found


def _stack(node: Node) -> dict[str, tuple[str, str]]:
    """The modules that were running when the node was made: path and class, by a key for each call."""
    recorded: Any = (node.meta.get("nn_module_stack") if node._meta else None) or {}
    stack: dict[str, tuple[str, str]] = {}
    for key, (path, kind) in recorded.items():
        if path:  # torch.export has the root, too
            call = re.search(r"@\d+$", str(key))  # a module that is called again
            name = getattr(kind, "__name__", str(kind)).rpartition(".")[2]
            stack[f"{path}{call[0] if call else ''}"] = (str(path), name)
    return stack


def _modules_around(node: Node, stack: dict[str, tuple[str, str]], chains: dict[str, Path]) -> Path:
    """The keys of the modules around a node; of one that knows none, those of a module that its target is in."""
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
        [format_argument(one) for one in node.args]
        + [f"{key}={format_argument(one)}" for key, one in node.kwargs.items()]
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
    """Return what a node calls or fetches in a word or two, and what a module says of itself."""
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
    leaves = pytree.tree_leaves(value, is_leaf=lambda one: isinstance(one, TensorMetadata))
    tensors = [leaf for leaf in leaves if isinstance(leaf, (TensorMetadata, torch.Tensor))]
    shapes = ["x".join(map(str, one.shape)) or "scalar" for one in tensors]
    types = dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in tensors)
    return shortened(", ".join(shapes), 60), ", ".join(types)


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """``text`` in one line, cut in the middle where it is too long."""
    text = " ".join(text.split())
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]} … {text[len(text) - half :]}"

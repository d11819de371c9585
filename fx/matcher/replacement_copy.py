"""Copies of replacements in a program: nodes in the place of a match, tensors and modules under free names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fx.errors import PassError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.matcher.searched_program import same_settings
from fx.modules.attributes import MISSING, find_attribute, free_path, is_own, put_attribute
from fx.naming.printing import describe
from fx.node import Argument, Node, map_arg
from fx.provenance import inherit


def copy_replacement(
    replacement: Graph,
    graph: Graph,
    inputs: Mapping[Node, Argument],
    attribute_path: Callable[[Node], str],
    matched: list[Node],
    result: Node,
) -> tuple[Argument, list[Node]]:
    """Copy ``replacement`` to the insertion point of ``graph``, and return its result and the new nodes.

    Args:
        replacement: the graph to copy.
        graph: the program.
        inputs: values for the placeholders of the replacement.
        attribute_path: returns the program's path for the attribute to which a node of the replacement refers.
        matched: the replaced nodes, whose origins the copies get.
        result: the node whose line and place in the module hierarchy they get.
    """
    values, nodes = dict(inputs), list[Node]()
    stack = result.meta.get("nn_module_stack")
    for node in replacement.nodes:
        if node.op in ("placeholder", "output"):
            continue
        copied = values[node] = graph.node_copy(node, values.__getitem__)
        if node.op in ("get_attr", "call_module"):
            copied.target = attribute_path(node)
        copied.source = result.source
        copied.origins = ()
        if stack is not None:
            copied.meta["nn_module_stack"] = dict(stack)
        inherit(copied, matched)
        nodes.append(copied)
    return map_arg(replacement.output_node().args[0], values.__getitem__), nodes


class Attributes:
    """The tensors and modules to which replacements refer: the program's, and those that replacements bring."""

    def __init__(self, graph_module: GraphModule, pattern: Graph) -> None:
        """Start with the attributes of the program.

        Args:
            graph_module: the program.
            pattern: an attribute of it that a replacement has, too, under the same path, means the matched attribute.
        """
        self._program = graph_module
        self._pattern: Any = pattern.owning_module
        self._installed: dict[tuple[int, str], str] = {}
        self._owners: list[Any] = []  # kept alive, as they are known by their ids
        self._copies: dict[int, Any] = {}

    def check(self, replacement: Graph) -> None:
        """Check that all attributes to which ``replacement`` refers exist.

        Raises:
            PassError: neither the replacement nor the program has an attribute.
        """
        for node in replacement.nodes:
            target = str(node.target)
            if node.op not in ("get_attr", "call_module") or self._brought(replacement, target) is not MISSING:
                continue
            if find_attribute(self._program, target, MISSING) is MISSING:
                raise PassError(
                    f"the replacement refers to `{target}`, which neither it nor the program has",
                    where=node.source,
                    value=describe(node),
                    remedy="give the replacement as a module that has it, or add it to the program first",
                )

    def _brought(self, replacement: Graph, target: str) -> Any:
        """Return the attribute of a replacement itself at a path."""
        owner: Any = replacement.owning_module
        return replacement.constants.get(target, MISSING) if owner is None else find_attribute(owner, target, MISSING)

    def path(self, replacement: Graph, node: Node, matched: Mapping[str, str]) -> str:
        """Return the program's path for the attribute of ``node`` of ``replacement``; copy it there if needed."""
        target = str(node.target)
        value = self._brought(replacement, target)
        if value is MISSING:
            return target
        if target in matched and _alike(find_attribute(self._pattern, target, MISSING), value):
            return matched[target]
        owner = replacement.owning_module
        return self.install(owner if owner is not None else replacement, target, value)

    def install(self, owner: object, target: str, value: Any) -> str:
        """Return the path of a copy of ``value``, the attribute ``target`` of ``owner``: ``target`` itself if free."""
        if find_attribute(self._program, target, MISSING) is value:
            return target
        path = self._installed.get((id(owner), target))
        if path is None:
            self._owners.append(owner)
            path = self._installed[id(owner), target] = self.free_path(target)
            put_attribute(self._program, path, copy.deepcopy(value, self._copies))
        return path

    def free_path(self, wish: str) -> str:
        """Return a free path at which a value may be put, as similar to ``wish`` as possible."""
        return free_path(self._program, wish if is_own(self._program, wish) else wish.replace(".", "_"))


def _alike(left: Any, right: Any) -> bool:
    """Return whether two attributes differ in nothing but the values of their tensors."""
    if isinstance(left, torch.nn.Module) and isinstance(right, torch.nn.Module):
        return same_settings(left, right)
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and left.dtype == right.dtype
    return left is right

"""Replacements put into a program: their nodes in the place of a match, their tensors and modules under free names."""

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
    """Copy ``replacement`` to the insertion point of ``graph``, and return what it returns, and the nodes made.

    Args:
        replacement: what to copy.
        graph: the program.
        inputs: for placeholders of the replacement what to use instead.
        attribute_path: the path under which the program has what a node of the replacement refers to.
        matched: the nodes that are replaced, whose origins the copies get.
        result: the node whose line and place in the module hierarchy they get.
    """
    values, nodes = dict(inputs), list[Node]()
    stack = result.meta.get("nn_module_stack")
    for node in replacement.nodes:
        if node.op in ("placeholder", "output"):
            continue
        made = values[node] = graph.node_copy(node, values.__getitem__)
        if node.op in ("get_attr", "call_module"):
            made.target = attribute_path(node)
        made.source = result.source
        made.origins = ()
        if stack is not None:
            made.meta["nn_module_stack"] = dict(stack)
        inherit(made, matched)
        nodes.append(made)
    return map_arg(replacement.output_node().args[0], values.__getitem__), nodes


class Attributes:
    """The tensors and modules of a program that replacements refer to, and those that they bring with them."""

    def __init__(self, graph_module: GraphModule, pattern: Graph) -> None:
        """Start with what the program has.

        Args:
            graph_module: the program.
            pattern: where a replacement has the same attribute under the same path, it means what matched that one.
        """
        self._program = graph_module
        self._pattern: Any = pattern.owning_module
        self._installed: dict[tuple[int, str], str] = {}
        self._owners: list[Any] = []  # kept alive, as they are known by their ids
        self._copies: dict[int, Any] = {}

    def check(self, replacement: Graph) -> None:
        """Check that all that ``replacement`` refers to exists.

        Raises:
            PassError: neither it nor the program has something.
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
        """Return what a replacement itself has under a path."""
        owner: Any = replacement.owning_module
        return replacement.constants.get(target, MISSING) if owner is None else find_attribute(owner, target, MISSING)

    def path(self, replacement: Graph, node: Node, matched: Mapping[str, str]) -> str:
        """Return where the program has what ``node`` of ``replacement`` refers to; copy it there if need be."""
        target = str(node.target)
        value = self._brought(replacement, target)
        if value is MISSING:
            return target
        if target in matched and _alike(find_attribute(self._pattern, target, MISSING), value):
            return matched[target]
        owner = replacement.owning_module
        return self.install(owner if owner is not None else replacement, target, value)

    def install(self, owner: object, target: str, value: Any) -> str:
        """The path of a copy of ``value``, which is ``target`` of ``owner``: that one if it is free."""
        if find_attribute(self._program, target, MISSING) is value:
            return target
        known = self._installed.get((id(owner), target))
        if known is None:
            self._owners.append(owner)
            known = self._installed[id(owner), target] = self.free_path(target)
            put_attribute(self._program, known, copy.deepcopy(value, self._copies))
        return known

    def free_path(self, wish: str) -> str:
        """A path at which nothing is and a value may be put, as much like ``wish`` as possible."""
        return free_path(self._program, wish if is_own(self._program, wish) else wish.replace(".", "_"))


def _alike(left: Any, right: Any) -> bool:
    """Return whether two attributes differ in nothing but the values of their tensors."""
    if isinstance(left, torch.nn.Module) and isinstance(right, torch.nn.Module):
        return same_settings(left, right)
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and left.dtype == right.dtype
    return left is right

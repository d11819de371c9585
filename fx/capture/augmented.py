"""Augmented assignments: ``x += y`` is recorded as ``add``, and as what writes to ``x`` where somebody can tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from fx.modules.attributes import find_attribute
from fx.node import Node, map_arg
from fx.operators.python import IN_PLACE_OF
from fx.operators.sharing import Sharing, find_sharing, module_sharing


def write_where_it_shows(nodes: Iterable[Node], root: torch.nn.Module) -> None:
    """Let those of the recorded augmented assignments write to what they name that would otherwise mean something else.

    That is where what they write to is memory of the caller or of a module, or is read afterwards under another name.

    Args:
        nodes: the operations that stand for augmented assignments.
        root: the traced module.
    """
    for node in nodes:
        if not node._erased and _shows(node, root):
            node.target = IN_PLACE_OF[node.target]


def _shows(written: Node, root: torch.nn.Module) -> bool:
    first = written.args[0]
    if not isinstance(first, Node):
        return False
    pending, seen = [first], {first}
    for node in pending:
        if node.op in ("placeholder", "get_attr"):
            return True
        aliases = list(sources(node, root))
        for user in node.users:
            if user is written:
                continue
            if user > written:
                return True
            if node in sources(user, root):
                aliases.append(user)
        for alias in aliases:
            if alias not in seen:
                seen.add(alias)
                pending.append(alias)
    return False


def sources(node: Node, root: torch.nn.Module) -> Iterator[Node]:
    """The values that the result of an operation may share memory with."""
    sharing = _sharing(node, root)
    if sharing is None or (sharing.places is None and sharing.kind != "arithmetic"):
        yield from node.all_input_nodes
    elif sharing.kind not in ("number", "arithmetic"):
        for place, name in sharing.places or ():
            given = node.args[place] if place < len(node.args) else node.kwargs.get(name)
            yield from nodes_in(given)
    elif node.target in IN_PLACE_OF.values() and isinstance(node.args[0], Node):
        yield node.args[0]


def nodes_in(argument: Any) -> list[Node]:
    """The nodes in an argument."""
    found: list[Node] = []

    def note(node: Node) -> Node:
        found.append(node)
        return node

    map_arg(argument, note)
    return found


def _sharing(node: Node, root: torch.nn.Module) -> Sharing | None:
    if node.op == "call_module":
        module: Any = find_attribute(root, str(node.target))
        if getattr(module, "inplace", False):
            return None
        return module_sharing(module) if isinstance(module, torch.nn.Module) else None
    return find_sharing(node.target) if node.op in ("call_function", "call_method") else None

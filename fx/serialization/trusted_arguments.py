"""Arguments of allowed functions that torch does not check, and that programs in files may therefore not choose.

- ``torch.nn.functional.embedding_bag`` checks only the first offset and the last. Any other offset that is out of range
  makes it read other memory. So a program may pass on offsets of its caller, but not compute any.
- The division of the smallest integer by -1 with truncation ends the process. So integers are divided with
  ``rounding_mode="floor"``.
- Higher-order functions may call only programs of the file, which are checked in the same way.
"""

from __future__ import annotations

from typing import Any

import torch

from fx.graph_module import GraphModule
from fx.higher_order import BODIES
from fx.modules.attributes import find_attribute
from fx.node import Node
from fx.serialization.allow_list import Refused, own_name

_OWN_BAGS: dict[str | None, int] = {"fx.quantize.embedding_bag": 3}
"""Our own embedding bags, with the positions of their offsets."""
_DIVISIONS = frozenset({"div", "div_", "divide", "divide_"})


def check_trusted_arguments(program: GraphModule, *, is_outermost: bool) -> None:
    """Refuse a program that passes unchecked arguments, which a file could choose badly, to a function of torch.

    The inputs of a program that ``is_outermost`` come from the user, not from a program around it.
    """
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target in BODIES:
            _check_bodies(program, node)
        elif "rounding_mode" in node.kwargs:
            _check_rounding(node)
        elif (position := _position_of_offsets(program, node)) is not None:
            _check_offsets(program, node, position, is_outermost)


def _check_bodies(program: GraphModule, node: Node) -> None:
    """Refuse a call of a higher-order function with anything but programs of the file, which are checked, too."""
    for place in BODIES[node.target]:
        read = node.args[place] if place < len(node.args) else None
        body = find_attribute(program, str(read.target)) if isinstance(read, Node) and read.op == "get_attr" else None
        if not isinstance(body, GraphModule):
            raise Refused(
                f"{node.name!r} is given something else than a program of this one to call",
                why="what functions of functions call in a file is a program of the file, whose calls are checked",
                remedy="capture the function with the program, or use pickle",
            )


def _check_rounding(node: Node) -> None:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.partition(".")[0] in _DIVISIONS and node.kwargs["rounding_mode"] not in (None, "floor"):
        raise Refused(
            f"the division {node.name!r} does not round down",
            why="truncating the quotient of the smallest integer and -1 ends the process",
            remedy='rounding_mode="floor", or torch.trunc(x / y) for floating-point numbers',
        )


def _check_offsets(program: GraphModule, node: Node, position: int, is_outermost: bool) -> None:
    offsets: Any = node.args[position] if len(node.args) > position else node.kwargs.get("offsets")
    if offsets is not None and not (is_outermost and _is_untouched_input(program, offsets)):
        raise Refused(
            f"the embedding bag {node.name!r} is called with offsets that are not an input of the program",
            why="offsets out of range are read without a check, so only the caller may give them",
            remedy="pass bags of one length as a matrix, without offsets, or make the offsets an input of their own",
        )


def _position_of_offsets(program: GraphModule, node: Node) -> int | None:
    """Return the position of the offsets among a node's arguments, if it calls an embedding bag."""
    if node.op == "call_function":
        return 2 if node.target is torch.nn.functional.embedding_bag else _OWN_BAGS.get(own_name(node.target))
    if node.op != "call_module":
        return None
    return 1 if isinstance(program.get_submodule(str(node.target)), torch.nn.EmbeddingBag) else None


def _is_untouched_input(program: GraphModule, value: object) -> bool:
    """Return whether ``value`` is an input without a default that only embedding bags read: nothing writes it."""
    if not isinstance(value, Node) or value.op != "placeholder" or value.args or value.target.startswith("*"):
        return False
    return all(_position_of_offsets(program, user) is not None for user in value.users)

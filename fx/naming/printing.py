"""Programs as text for people: ``str(graph)``, one node, the table (paper, figure 1), and comments of verbose code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fx.container_kinds import held_kind
from fx.naming.targets import qualified_name

if TYPE_CHECKING:
    from fx.graph import Graph
    from fx.node import Node


def format_graph(graph: Graph) -> str:
    """Return the whole graph, a line for each node, between ``graph():`` and the ``return`` line."""
    lines = ["graph():"]
    lines.extend(f"    {line}" for node in graph.nodes if (line := format_node(node)) is not None)
    return "\n".join(lines)


def format_node(
    node: Node,
    placeholder_names: list[str] | None = None,
    return_typename: list[str] | None = None,
    tensor_metadata: bool = False,
) -> str | None:
    """Return one node as text, as documented in ``Node.format_node``."""
    op = node.op
    if op == "output":
        if return_typename is not None and node.type is not None:
            return_typename[0] = f" -> {type_name(node.type)}"
        return f"return {node.args[0] if node.args else None}"
    if op == "placeholder" and placeholder_names is not None:
        typename = f": {type_name(node.type)}" if node.type is not None else ""
        default = f"(default={node.args[0]})" if node.args else ""
        placeholder_names.append(f"%{node.target}{typename}{default}")
        return None
    typename = f" : {type_name(node.type)}" if node.type is not None else ""
    tensor = _tensor_note(node) if tensor_metadata else ""
    # As torch.fx prints it: `%x : [num_users=1]`, and with a type `%x : torch.Tensor [num_users=1]`.
    head = f"%{node.name}{typename} : {tensor}" if not typename else f"%{node.name}{typename} {tensor}"
    head = f"{head}[num_users={len(node.users)}] = {op}[target={target_name(node.target)}]"
    if op == "placeholder":
        return f"{head}(default={node.args[0]})" if node.args else head
    if op == "get_attr":
        return head
    return f"{head}(args = {format_argument(node.args)}, kwargs = {format_argument(node.kwargs)})"


def _tensor_note(node: Node) -> str:
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return "" if shape is None else f"{dtype}{list(shape)} "


def target_name(target: Any) -> str:
    """Return a target for people: built-in functions as ``builtins.len``."""
    return target if isinstance(target, str) else qualified_name(target)


def format_argument(argument: Any) -> str:
    """Return an argument with nodes as ``%name``."""
    kind = held_kind(argument)
    if kind is not None and kind.spelling is not None:
        return kind.written(argument, list(map(format_argument, kind.parts(argument))), str, class_name)
    if hasattr(argument, "users") and hasattr(argument, "op"):
        return f"%{argument}"
    try:
        return str(argument)
    except Exception:  # its own method fails, or it is an integer with more digits than Python converts
        return hex(argument) if isinstance(argument, int) else f"<{type(argument).__name__}>"


def class_name(kind: type) -> str:
    """Return the name of a class in code that imports its module: ``torch.Size``, ``slice``."""
    return qualified_name(kind).removeprefix("builtins.")


def type_name(annotation: Any) -> str:
    """Return a type annotation for people."""
    if isinstance(annotation, str):
        return annotation
    if getattr(annotation, "__args__", None):
        return str(annotation)
    name = getattr(annotation, "__qualname__", None)
    if name is None:
        return str(annotation)
    module = annotation.__module__
    if module == "builtins":
        return name
    if module.partition(".")[0] == "torch" and getattr(torch, name, None) is annotation:
        module = "torch"
    return f"{module}.{name}"


def format_table(graph: Graph) -> str:
    """Return the graph as an aligned table: opcode, name, target, args, kwargs."""
    header = ("opcode", "name", "target", "args", "kwargs")
    rows = [(n.op, n.name, target_name(n.target), str(n.args), str(n.kwargs)) for n in graph.nodes]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, rule, *rows)
    )


def describe(node: Node) -> str:
    """Return a node for an error message, without the number of users: ``%gt = call_function[operator.gt](%x, 0)``."""
    arguments = [format_argument(a) for a in node.args]
    arguments += [f"{key}={format_argument(value)}" for key, value in node.kwargs.items()]
    return f"%{node.name} = {node.op}[{target_name(node.target)}]({', '.join(arguments)})"


@dataclass
class Comments:
    """The comments of verbose code: the user's line above its nodes, shapes after them."""

    include_stride: bool
    """True for strides after shapes."""
    include_device: bool
    """True for devices after shapes."""
    colored: bool
    """True for terminal colours."""
    additional_meta: tuple[str, ...]
    """Keys of ``meta`` to show."""
    _previous: str | None = None

    def above(self, node: Node) -> str:
        """Return a comment line if the origin of this node differs from that of the node before."""
        if node.op in ("placeholder", "output") or node.source is None:
            return ""
        source = node.source
        origin = f"# File: {source.place} in {source.function}, code: {source.text}"
        if origin == self._previous:
            return ""
        self._previous = origin
        return f"\n{self._paint(_one_line(origin), '2')}\n"

    def behind(self, node: Node) -> str:
        """Return a comment with the known facts of the node's value."""
        notes: list[str] = []
        value: Any = node.meta.get("val", node.meta.get("tensor_meta"))
        shape: Any = getattr(value, "shape", None)
        if shape is not None:
            notes.append(f"{getattr(value, 'dtype', '')}{list(shape)}")
            if self.include_stride:
                stride: Any = getattr(value, "stride", ())
                steps: Any = stride() if callable(stride) else stride
                notes.append(f"stride {list(steps)}")
            if self.include_device and hasattr(value, "device"):
                notes.append(f"device {value.device}")
        notes += [f"{key}: {node.meta[key]}" for key in self.additional_meta if key in node.meta]
        return f"  {self._paint(_one_line('# ' + ', '.join(notes)), '34')}" if notes else ""

    def _paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colored else text


def _one_line(comment: str) -> str:
    """Return a comment in one line: everything that ends a line in Python source becomes a blank."""
    return " ".join(comment.split("\0", maxsplit=1)[0].splitlines())

"""``FxGraphDrawer``: programs as Graphviz graphs, with the classes and methods of ``torch.fx`` (paper, section 6.3).

Making and writing the text needs neither pydot nor Graphviz; :func:`fx.draw` makes pictures without either.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.argument_types import checked
from fx.errors import DrawingError, GraphError, MissingDrawingError
from fx.graph_module import GraphModule
from fx.modules.attributes import MISSING, find_attribute
from fx.naming.dot_text import DotGraph, attributes, quoted, record_field
from fx.naming.printing import format_argument, target_name
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

__all__ = ["FxGraphDrawer"]

_FILLS = {
    "placeholder": "AliceBlue",
    "call_module": "LemonChiffon1",
    "get_attr": "LightGrey",
    "output": "PowderBlue",
}
_TARGET_FILLS = (
    "CadetBlue1 Coral DarkOliveGreen1 DarkSeaGreen1 GhostWhite Khaki1 LavenderBlush1 LightSkyBlue MistyRose1 "
    "PaleTurquoise2 PeachPuff1 Salmon Thistle1 Wheat1"
).split()
"""Fill colors of calls; the target's name selects one, so equal targets have equal colors."""
_LONGEST_LIST = 8


class FxGraphDrawer:
    """A drawing of a program, and of the programs that it calls as modules, as Graphviz graphs.

    >>> import fx
    >>> program = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 5)))
    >>> graph = FxGraphDrawer(program, "linear").get_dot_graph()
    >>> '"_0" -> "output";' in graph.to_string()
    True
    """

    @checked(DrawingError)
    def __init__(
        self,
        graph_module: GraphModule,
        name: str,
        ignore_getattr: bool = False,
        ignore_parameters_and_buffers: bool = False,
        skip_node_names_in_args: bool = True,
        parse_stack_trace: bool = False,
        dot_graph_shape: str | None = None,
        normalize_args: bool = False,
    ) -> None:
        """Draw a program.

        Args:
            graph_module: the program.
            name: name of the graph.
            ignore_getattr: leave out ``get_attr`` nodes.
            ignore_parameters_and_buffers: leave out the parameters and buffers of modules.
            skip_node_names_in_args: show only arguments that are not nodes.
            parse_stack_trace: show the user's file and line.
            dot_graph_shape: Graphviz's shape of nodes; ``"record"`` by default.
            normalize_args: show arguments by the names of the signature, with defaults.
        """
        self._name = name
        self.dot_graph_shape = "record" if dot_graph_shape is None else dot_graph_shape
        self.normalize_args = normalize_args
        self._ignore_getattr = ignore_getattr
        self._ignore_tensors = ignore_parameters_and_buffers
        self._skip_names = skip_node_names_in_args
        self._show_lines = parse_stack_trace
        self._dot_graphs = {name: DotGraph(name, self._statements(graph_module))}
        for node in graph_module.graph.find_nodes(op="call_module"):
            inner = find_attribute(graph_module, str(node.target), MISSING)
            if isinstance(inner, GraphModule):
                inner_name = f"{name}_{node.target}"
                self._dot_graphs[inner_name] = DotGraph(inner_name, self._statements(inner))

    def get_dot_graph(self, submod_name: str | None = None) -> DotGraph:
        """Return the graph of the program, or of the program at the path ``submod_name`` in it."""
        return self.get_main_dot_graph() if submod_name is None else self.get_submod_dot_graph(submod_name)

    def get_main_dot_graph(self) -> DotGraph:
        """Return the graph of the program."""
        return self._dot_graphs[self._name]

    def get_submod_dot_graph(self, submod_name: str) -> DotGraph:
        """Return the graph of the program at the path ``submod_name`` in the drawn one.

        Raises:
            MissingDrawingError: the program calls no ``GraphModule`` at that path.
        """
        graph = self._dot_graphs.get(f"{self._name}_{submod_name}")
        if graph is None:
            paths = [name.removeprefix(f"{self._name}_") for name in self._dot_graphs if name != self._name]
            raise MissingDrawingError(
                f"there is no drawing of a program at {submod_name!r}",
                why=f"programs are at {', '.join(paths)}" if paths else "the program calls no GraphModule",
            )
        return graph

    def get_all_dot_graphs(self) -> dict[str, DotGraph]:
        """Return all graphs by name: the program has the drawing's name, a program inside it ``name_path``."""
        return self._dot_graphs

    def _statements(self, graph_module: GraphModule) -> Iterator[str]:
        yield "rankdir=TB;"
        nodes = [node for node in graph_module.graph.nodes if not (self._ignore_getattr and node.op == "get_attr")]
        clusters: dict[str, list[str]] = {}
        for node in nodes:
            statement = f"{quoted(node.name)}{attributes(self._look(graph_module, node))};"
            # TorchInductor records the buffer that a node is computed into; fused nodes share one.
            buffer: Any = node.meta.get("buf_meta")
            if buffer is not None and buffer.n_origin > 1:
                clusters.setdefault(str(buffer.name), []).append(statement)
            else:
                yield statement
            if node.op == "call_module" and not self._ignore_tensors:
                yield from self._tensors(graph_module, node)
        for name, statements in clusters.items():
            yield f"subgraph {quoted(f'cluster_{name}')} {{"
            yield f"  label={quoted(name)}; color=royalblue; penwidth=2;"
            yield from (f"  {statement}" for statement in statements)
            yield "}"
        for node in nodes:
            for user in node.users:
                yield f"{quoted(node.name)} -> {quoted(user.name)};"

    def _look(self, graph_module: GraphModule, node: Node) -> dict[str, str]:
        fill = _FILLS.get(node.op)
        if fill is None:
            fill = _TARGET_FILLS[zlib.crc32(target_name(node.target).encode(errors="replace")) % len(_TARGET_FILLS)]
        return self._box(self._label(graph_module, node), fill)

    def _box(self, fields: Iterable[str], fill: str) -> dict[str, str]:
        """Return the Graphviz attributes of a box with these fields."""
        texts = [text.encode(errors="replace").decode() for text in fields if text]
        is_record = self.dot_graph_shape in ("record", "Mrecord")
        label = '"{' + "|".join(map(_spelled_field, texts)) + '}"' if is_record else quoted("\n".join(texts))
        return {
            "shape": quoted(self.dot_graph_shape),
            "label": label,
            "fillcolor": quoted(fill),
            "style": '"filled,rounded"',
            "fontcolor": '"#000000"',
        }

    def _label(self, graph_module: GraphModule, node: Node) -> Iterator[str]:
        """Yield the fields of a node's box."""
        yield f"name=%{node.name}"
        yield f"op_code={node.op}"
        if node.op == "call_module":
            module = find_attribute(graph_module, str(node.target), MISSING)
            yield torch.typename(module) if isinstance(module, torch.nn.Module) else str(node.target)
            constants: Any = getattr(module, "__constants__", ())
            yield "\n".join(f"{name}: {getattr(module, name)}" for name in constants if hasattr(module, name))
        else:
            yield f"target={target_name(node.target)}"
            yield from self._arguments(graph_module, node)
            yield f"num_users={len(node.users)}"
        yield from _tensor_fields(node.meta.get("tensor_meta"))
        buffer: Any = node.meta.get("buf_meta")
        if buffer is not None:
            yield f"buf={buffer.name}"
            yield f"n_origin={buffer.n_origin}"
        if self._show_lines and node.source is not None:
            short = "/".join(node.source.file.replace("\\", "/").split("/")[-2:])
            yield f"file={short}:{node.source.line} {node.source.text}"

    def _arguments(self, graph_module: GraphModule, node: Node) -> Iterator[str]:
        args, kwargs = node.args, node.kwargs
        if self.normalize_args:
            args, kwargs = _normalized(graph_module, node)
        positional = self._shown(map(_short, args))
        named = self._shown(f"{name}: {_short(value)}" for name, value in kwargs.items())
        yield f"args=({', '.join(positional)},)" if positional else ""
        yield f"kwargs={{{', '.join(named)},}}" if named else ""

    def _shown(self, texts: Iterable[str]) -> list[str]:
        return [text for text in texts if not (self._skip_names and "%" in text)]

    def _tensors(self, graph_module: GraphModule, node: Node) -> Iterator[str]:
        """Yield statements for the parameters and buffers of the module that ``node`` calls."""
        module = find_attribute(graph_module, str(node.target), MISSING)
        if not isinstance(module, torch.nn.Module) or isinstance(module, GraphModule):
            return
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):
            full = f"{node.name}.{name}"
            what = "get_parameter" if isinstance(tensor, torch.nn.Parameter) else "get_buffer"
            box = self._box([full, f"op_code={what}", f"{tensor.dtype}{list(tensor.shape)}"], "Salmon")
            yield f"{quoted(full)}{attributes(box)};"
            yield f"{quoted(full)} -> {quoted(node.name)};"


def _normalized(graph_module: GraphModule, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by name, or as they are if the signature is unknown or ambiguous."""
    try:
        normalized = node.normalized_arguments(graph_module, normalize_to_only_use_kwargs=True)
    except GraphError:
        normalized = None
    return (node.args, node.kwargs) if normalized is None else (normalized.args, normalized.kwargs)


def _spelled_field(text: str) -> str:
    """Return ``text`` as one field of a record, its lines one below the other."""
    return "\\n".join(record_field(line).replace('"', '\\"') for line in text.split("\n"))


def _short(argument: Any) -> str:
    """Return an argument as text, a long list cut short."""
    if isinstance(argument, (list, tuple)) and len(argument) > _LONGEST_LIST:
        return f"[{', '.join(map(_short, argument[:_LONGEST_LIST]))}, ...]"
    return format_argument(argument)


def _tensor_fields(value: Any) -> Iterator[str]:
    """Yield the fields for the recorded metadata of a value."""
    for tensor in pytree.tree_leaves(value, is_leaf=lambda leaf: isinstance(leaf, TensorMetadata)):
        if not isinstance(tensor, (TensorMetadata, torch.Tensor)):
            continue
        stride = tensor.stride if isinstance(tensor, TensorMetadata) else tensor.stride()
        yield f"dtype={tensor.dtype}"
        yield f"shape={tuple(tensor.shape)}"
        yield f"requires_grad={tensor.requires_grad}"
        yield f"stride={tuple(stride)}"
        if isinstance(tensor, TensorMetadata) and tensor.is_quantized:
            names = {"qscheme": "qscheme", "scale": "q_scale", "zero_point": "q_zero_point", "axis": "q_axis"}
            for name, label in names.items():
                if name in tensor.qparams:
                    yield f"{label}={tensor.qparams[name]}"

"""The import of regions as networks of OpenVINO: by ``torch.export`` and OpenVINO's own importer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.export.decomp_utils import CustomDecompTable

from fx.canonical.inlining import copy_graph
from fx.capture.quiet_export import quiet_export
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.engine_region import Sizes, check_of, exported, order_in_memory
from fx.lowering.openvino.package import decoder, element_types, importer, load, operators, whole_operators
from fx.lowering.openvino.spelling import extensions, spell_for_importer
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

_VIEWS = frozenset(
    {"Reshape", "Squeeze", "Unsqueeze", "Convert", "ConvertLike", "Transpose", "Slice", "StridedSlice", "Split",
     "VariadicSplit", "Concat"}
)  # fmt: skip
"""Operations that OpenVINO may implement as views of their operand's memory."""


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a network."""

    dtype: torch.dtype
    """The dtype of its elements."""
    is_alone: bool
    """Whether it shares memory with no other result and no input, so that the engine can write it into our memory."""
    order: tuple[int, ...] | None
    """Its dimensions as eager Python lays them out in memory, the slowest first; ``None`` if they are in their own
    order. The engine returns them in this order."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportedNetwork:
    """A region imported as a network of OpenVINO."""

    model: Any
    """The network."""
    results: tuple[Result, ...]
    """Its distinct results."""
    places: tuple[int, ...]
    """For each result of the region, its index in ``results``; two are equal if an operation returned its operand."""
    is_single: bool
    """Whether the region returns its only result as it is, not in a tuple."""
    check: Callable[..., object] | None
    """A function that raises ``AssertionError`` for inputs whose sizes violate the network's assumptions; ``None`` if
    all sizes are fixed."""


def import_region(region: GraphModule, sizes: Sizes, current: Sizes) -> ImportedNetwork:
    """Import ``region`` as a network.

    Args:
        region: a canonical program, with recorded shapes; it is only read.
        sizes: the sizes for which the network is built.
        current: the sizes and values of a call that the network must take.

    Raises:
        LoweringError: ``torch.export`` or OpenVINO refuses it; the message has the reason.
    """
    try:
        with torch.no_grad(), quiet_export():
            return _imported(region, sizes, current)
    except Exception as error:
        operation = next(node for node in region.graph.nodes if node.op == "call_function")
        raise LoweringError(
            f"OpenVINO's importer does not take the region from `%{operation}` on",
            where=operation.source,
            why=_reason(error),
            remedy='exclude operations with veto=…, or keep failing regions in eager Python with on_failure="eager"',
        ) from error


def _reason(error: Exception) -> str:
    """Return the reason of a failure, without the locations in OpenVINO's sources."""
    lines = str(error).splitlines()
    return "; ".join(line[3:] for line in lines if line.startswith("-- ")) or f"{type(error).__name__}: {error}"


def _imported(region: GraphModule, sizes: Sizes, current: Sizes) -> ImportedNetwork:
    program = GraphModule.of_capture(region, copy_graph(region.graph), "Region")
    spell_for_importer(program)
    kinds = [node.meta.get("tensor_meta") for node in region.graph.find_nodes(op="placeholder")]
    program_of_torch = exported(program, sizes, current).run_decompositions(_decompositions())
    check = check_of(program_of_torch, sizes)
    returned: Any = region.graph.output_node().args[0]
    is_single = isinstance(returned, Node)
    module = program_of_torch.module(check_guards=False)
    distinct = _return_once(module, (returned,) if is_single else returned)
    model = _converted(module, kinds)
    results = _finish(model, [nodes[0] for nodes in distinct.values()])
    places = {node: place for place, nodes in enumerate(distinct.values()) for node in nodes}
    return ImportedNetwork(
        model, results, tuple(map(places.__getitem__, [returned] if is_single else returned)), is_single, check
    )


def _return_once(program: torch.fx.GraphModule, returned: Sequence[Node]) -> dict[torch.fx.Node, list[Node]]:
    """Make the program return each value once, as the importer requires; map it to the results that it represents."""
    output = program.graph.output_node()
    distinct: dict[Any, list[Node]] = {}
    for value, node in zip(output.args[0], returned, strict=True):  # type: ignore[arg-type]
        distinct.setdefault(value, []).append(node)
    output.args = (tuple(distinct),)
    return distinct


def _converted(program: torch.fx.GraphModule, kinds: Sequence[TensorMetadata | None]) -> Any:
    """Return the network of a program of ATen's operators."""
    reader = decoder()(program, dynamic_shapes=False)  # the importer keeps no reference to it
    frontend = importer(*extensions())
    model = frontend.convert(frontend.load(reader))
    for parameter, kind in zip(model.inputs, kinds, strict=True):
        if kind is None:
            parameter.get_node().set_element_type(element_types()[torch.int64])
            parameter.get_node().set_partial_shape(load().PartialShape([]))
    model.validate_nodes_and_infer_types()
    return model


def _decompositions() -> CustomDecompTable:
    table = CustomDecompTable()
    for operator in whole_operators():
        if operator in table:
            table.pop(operator)
    return table


def _finish(model: Any, returned: Sequence[Node]) -> tuple[Result, ...]:
    """Convert the network's results to eager Python's dtypes and orders of dimensions, and describe them."""
    build, roots = operators(), set[Any]()
    results: list[Result] = []
    for result, node in zip(model.get_results(), returned, strict=True):
        recorded = node.meta["tensor_meta"]
        output, order = result.input_value(0), order_in_memory(recorded)
        is_alone = _is_alone(output, roots)
        if output.get_element_type() != element_types()[recorded.dtype]:
            output = build.convert(output, element_types()[recorded.dtype]).output(0)
        if order is not None:
            output = build.transpose(output, build.constant(list(order), dtype=np.int64)).output(0)
        result.input(0).replace_source_output(output)
        results.append(Result(recorded.dtype, is_alone, order))
    model.validate_nodes_and_infer_types()
    return tuple(results)


def _is_alone(output: Any, roots: set[Any]) -> bool:
    """Return whether OpenVINO computes an output for this result alone, as far as is known: it merges equal operations.

    Args:
        output: the output.
        roots: the outputs that own the memory of earlier results; the owner for this one is added.
    """
    node = output.get_node()
    while node.get_type_name() in _VIEWS and node.get_input_size():
        output = node.input_value(0)
        node = output.get_node()
    root = (node.get_friendly_name(), output.get_index())
    is_first = root not in roots
    roots.add(root)
    return is_first and node.get_type_name() not in ("Parameter", "Constant")

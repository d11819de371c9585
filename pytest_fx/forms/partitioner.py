"""The form ``partitioner``: operator supports, by which torch fuses the supported nodes into partitions."""

from __future__ import annotations

import importlib
from typing import Any

from torch.fx.passes.operator_support import OperatorSupportBase, create_op_support

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, Snapshot, result_of_module


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Fuse each partition of supported nodes into a submodule."""
    library: Any = importlib.import_module("torch.fx.passes.infra.partitioner")
    graph_module = source.graph_module(level)
    before = Snapshot.of(graph_module)
    partitioner = library.CapabilityBasedPartitioner(graph_module, pass_, allows_single_node_partition=True)
    return result_of_module(graph_module, partitioner.partition_and_fuse(), before)


PARTITIONER = Form(
    "partitioner",
    "each node of ep.module(), and says whether it is supported: an OperatorSupportBase; "
    "CapabilityBasedPartitioner fuses by it",
    lambda pass_: isinstance(pass_, OperatorSupportBase),
    _apply,
    create_op_support(lambda modules, node: False),
    laws=("form well formed", "form signature", "form round trips"),
)
"""Operator supports of partitioners."""

"""The form ``partitioner``: a support of operators, by which torch fuses what is supported into partitions."""

from __future__ import annotations

import importlib
from typing import Any

from torch.fx.passes.operator_support import OperatorSupportBase, create_op_support

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, result_of_module, written


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Fuse partitions of supported nodes, each into a module that is called."""
    partitioner: Any = importlib.import_module("torch.fx.passes.infra.partitioner")
    given = source.graph_module(level)
    before = written(given)
    made = partitioner.CapabilityBasedPartitioner(given, pass_, allows_single_node_partition=True)
    return result_of_module(given, made.partition_and_fuse(), before)


PARTITIONER = Form(
    "partitioner",
    "each node of ep.module(), and says whether it is supported: an OperatorSupportBase; "
    "CapabilityBasedPartitioner fuses by it",
    lambda pass_: isinstance(pass_, OperatorSupportBase),
    _apply,
    create_op_support(lambda modules, node: False),
    laws=("form well formed", "form signature", "form round trips"),
)
"""Supports of partitioners."""

"""The exported programs of a module: fresh copies that share its tensors, decomposed or not."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.export import ExportedProgram

from fx.capture.quiet_export import quiet_export
from fx.interop.exporting import Call, export_program

Level = Literal["exported", "decomposed", "inductor", "fixed", "strict"]
"""Stages of an exported program, with a dynamic batch size where possible.

``decomposed`` is after ``run_decompositions()``. ``inductor`` has Inductor's decompositions, and no assertions on
dtypes. ``fixed`` has the sizes of the example, since ``torch.export`` adds nodes for dynamic sizes. Nodes of
``strict``, which is exported with ``strict=True``, also have ``meta["source_fn_stack"]``.
"""


class ExportedSource:
    """A module and one call of it. Each program is a fresh copy, and comes from torch alone."""

    def __init__(
        self,
        copied: Callable[[], nn.Module],
        call: Call,
        data: Callable[[], Sequence[Call]] = list[Call],
        *,
        has_fixed_sizes: bool = False,
    ) -> None:
        """Take the model and its arguments. The export comes later.

        Args:
            copied: returns copies of the model that share their tensors, as do all programs.
            call: the arguments for the export; the batch size stays dynamic where possible.
            data: returns arguments of other calls, for calibration.
            has_fixed_sizes: whether all levels have the sizes of the call, which takes a third of the time.
        """
        self.has_fixed_sizes = has_fixed_sizes
        """Whether all levels have the sizes of the call."""
        self.copied, self.call, self.data = copied, call, data
        self.module = copied()
        """The copy that is exported."""
        self._levels: dict[Level, ExportedProgram] = {}

    def prepare(self, level: Level) -> None:
        """Export the program of a level, so that a pass does not run while torch initializes for the export."""
        self._program(level)

    def is_alike(self, level: Level, other: Level) -> bool:
        """Return whether the graph has the same nodes at two levels."""
        graphs = [self._program(each).graph for each in (level, other)]
        first, second = ([(node.format_node(), node.target) for node in graph.nodes] for graph in graphs)
        return first == second

    def exported(self, level: Level) -> ExportedProgram:
        """Return a fresh copy of the exported program. Errors of ``torch.export`` propagate."""
        original = self._program(level)
        shared = {id(tensor): tensor for tensor in tensors_in(original).values()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own classes warn when they are copied
            return copy.deepcopy(original, dict(shared))

    def graph_module(self, level: Level) -> torch.fx.GraphModule:
        """Return a fresh graph module with the call signature, parameter names and buffer names of the model."""
        module: Any = self.exported(level).module()
        return module

    def _program(self, level: Level) -> ExportedProgram:
        level = "exported" if level == "fixed" and self.has_fixed_sizes else level
        if level not in self._levels:
            self._levels[level] = self._export(level)
        return self._levels[level]

    def _export(self, level: Level) -> ExportedProgram:
        if level in ("exported", "fixed", "strict"):
            is_fixed = level == "fixed" or self.has_fixed_sizes
            return export_program(self.module, *self.call, fixed=is_fixed, strict=level == "strict")[0]
        with quiet_export():
            if level == "decomposed":
                return self.exported("exported").run_decompositions()
            decompositions: Any = importlib.import_module("torch._inductor.decomposition")
            program = self.exported("exported").run_decompositions(decompositions.select_decomp_table())
            return _without_metadata_assertions(program)


def _without_metadata_assertions(program: ExportedProgram) -> ExportedProgram:
    """Remove the assertions on dtypes and devices from a program's graph, and return the program.

    ``torch.export`` adds one for each cast. Graphs of ``torch.compile`` have none, and Inductor removes any left. As a
    second use of a value, they would prevent matches.
    """
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        program.graph.erase_node(node)
    program.graph_module.recompile()
    return program


def tensors_in(program: Any) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and constants of a program, by name."""
    if isinstance(program, ExportedProgram):
        state: dict[str, Any] = {**program.state_dict, **program.constants}
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    named = (program.named_parameters(remove_duplicate=False), program.named_buffers(remove_duplicate=False))
    return {name: tensor for tensors in named for name, tensor in tensors}

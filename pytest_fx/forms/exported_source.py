"""The exported programs of a module: fresh copies that share its tensors, decomposed or not."""

from __future__ import annotations

import copy
import functools
import importlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.export import ExportedProgram

from fx.capture.quiet_export import quiet_export
from fx.interop.exporting import Call, export_program
from pytest_fx.forms.recorded_export import NotRecordedError, RecordedProgram, record

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
        self._levels: dict[Level, Any] = {}

    def prepare(self, level: Level) -> None:
        """Export the program of a level, so that a pass does not run while torch initializes for the export."""
        self._program(level)

    def is_alike(self, level: Level, other: Level) -> bool:
        """Return whether the graph has the same nodes at two levels."""
        first, second = ([(node.format_node(), node.target) for node in self._nodes(each)] for each in (level, other))
        return first == second

    def operators(self) -> set[Any]:
        """Return the operators of the programs at all levels so far."""
        return {getattr(node.target, "overloadpacket", None) for level in self._levels for node in self._nodes(level)}

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

    def _nodes(self, level: Level) -> Iterable[torch.fx.Node]:
        return self._program(level).graph.nodes

    def _program(self, level: Level) -> Any:
        level = "exported" if level == "fixed" and self.has_fixed_sizes else level
        if level not in self._levels:
            self._levels[level] = self._export(level)
        return self._levels[level]

    def _export(self, level: Level) -> Any:
        if level in ("exported", "fixed", "strict"):
            is_fixed = level == "fixed" or self.has_fixed_sizes
            return export_program(self.module, *self.call, fixed=is_fixed, strict=level == "strict")[0]
        with quiet_export():
            if level == "decomposed":
                return self.exported("exported").run_decompositions()
            program = self.exported("exported").run_decompositions(decompositions_of_inductor())
            erase_metadata_assertions(program.graph)
            program.graph_module.recompile()
            return program


class RecordedSource(ExportedSource):
    """A module and one call of it, whose programs are recorded. Only ``torch.export`` itself gives other levels.

    Each method raises :class:`NotRecordedError` if the model cannot be recorded.
    """

    def exported(self, level: Level) -> ExportedProgram:
        """Return a fresh exported program."""
        return self._program(level).exported()

    def graph_module(self, level: Level) -> torch.fx.GraphModule:
        """Return a fresh graph module with the call signature, parameter names and buffer names of the model."""
        return self._program(level).graph_module()

    def _export(self, level: Level) -> Any:
        if level == "exported":
            return record(self.module, self.call)
        if level not in ("decomposed", "inductor"):
            raise NotRecordedError(f"there is no recorded program at the level {level!r}")
        program: RecordedProgram = self._program("exported")
        if level == "decomposed":
            return program.decomposed(default_decompositions())
        program = program.decomposed(decompositions_of_inductor())
        erase_metadata_assertions(program.graph)
        return program


@functools.cache
def default_decompositions() -> dict[Any, Any]:
    """Return the decompositions of ``run_decompositions()``."""
    return dict(torch.export.default_decompositions().items())


def decompositions_of_inductor() -> dict[Any, Any]:
    """Return the decompositions of Inductor."""
    return importlib.import_module("torch._inductor.decomposition").select_decomp_table()


def erase_metadata_assertions(graph: torch.fx.Graph) -> None:
    """Remove the assertions on dtypes and devices from a graph.

    ``torch.export`` adds one for each cast. Graphs of ``torch.compile`` have none, and Inductor removes any left. As a
    second use of a value, they would prevent matches.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        graph.erase_node(node)


def tensors_in(program: Any) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and constants of a program, by name."""
    if isinstance(program, ExportedProgram):
        state: dict[str, Any] = {**program.state_dict, **program.constants}
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    named = (program.named_parameters(remove_duplicate=False), program.named_buffers(remove_duplicate=False))
    return {name: tensor for tensors in named for name, tensor in tensors}

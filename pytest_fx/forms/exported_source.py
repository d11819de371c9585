"""A module as ``torch.export`` gives it: new programs that share its tensors, decomposed or not."""

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

Level = Literal["exported", "decomposed", "inductor"]
"""As ``torch.export`` gives it; after ``run_decompositions()``; after that with Inductor's decompositions."""


class ExportedSource:
    """One module and a call of it. Each program is a new one, with nothing in it that torch did not write."""

    def __init__(
        self, copied: Callable[[], nn.Module], call: Call, data: Callable[[], Sequence[Call]] = list[Call]
    ) -> None:
        """Export nothing yet.

        Args:
            copied: makes copies of the model, which share the tensors with which all programs compute.
            call: arguments that it is exported for, its batch free where it can be.
            data: makes arguments of other calls, for a pass that calibrates.
        """
        self.copied, self.call, self.data = copied, call, data
        self.module = copied()
        """The copy that is exported."""
        self._levels: dict[Level, ExportedProgram] = {}

    def prepare(self, level: Level) -> None:
        """Make the program of a level, so that nothing of torch runs for the first time while a pass does."""
        self._known(level)

    def exported(self, level: Level) -> ExportedProgram:
        """Return a new exported program; what ``torch.export`` raises comes through."""
        known = self._known(level)
        shared = {id(tensor): tensor for tensor in tensors_in(known).values()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own classes warn when they are copied
            return copy.deepcopy(known, dict(shared))

    def graph_module(self, level: Level) -> torch.fx.GraphModule:
        """Return a new program that can be called as the model is, which has its state where the model had it."""
        module: Any = self.exported(level).module()
        return module

    def _known(self, level: Level) -> ExportedProgram:
        if level not in self._levels:
            self._levels[level] = self._made(level)
        return self._levels[level]

    def _made(self, level: Level) -> ExportedProgram:
        if level == "exported":
            return export_program(self.module, *self.call)[0]
        with quiet_export():
            if level == "decomposed":
                return self.exported("exported").run_decompositions()
            decompositions: Any = importlib.import_module("torch._inductor.decomposition")
            return self.exported("exported").run_decompositions(decompositions.select_decomp_table())


def tensors_in(program: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that a program computes with, by name."""
    if isinstance(program, ExportedProgram):
        held: dict[str, Any] = {**program.state_dict, **program.constants}
        return {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    named = (program.named_parameters(remove_duplicate=False), program.named_buffers(remove_duplicate=False))
    return {name: tensor for tensors in named for name, tensor in tensors}

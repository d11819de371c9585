"""Conversion of exported programs to the form that a pass of ``torch.fx`` expects: functions of torch or ATen."""

from __future__ import annotations

from typing import Any

import torch.fx

from fx.canonical.forms import FIXED, OVERLOAD, Form, is_written_in_aten, to_aten, to_functional
from fx.canonical.inlining import copy_graph
from fx.graph_module import GraphModule
from fx.interop.torch_fx import ToTorch
from fx.node import map_arg

_CONVERSIONS = {"functional": to_functional, "aten": to_aten}


def form_of_program(program: GraphModule) -> Form | None:
    """Return the form of an exported program; None for a program that was not exported."""
    if any(node._meta and OVERLOAD in node._meta for node in program.graph.nodes):
        return "functional"
    return "aten" if is_written_in_aten(program) else None


class PassForm:
    """The conversion of a program to the form of a pass, and back to its original form."""

    def __init__(self, program: GraphModule, form: Form | None) -> None:
        """Take the form of the pass; None if the pass sees the program in its own form."""
        self._program = program
        self._before = form_of_program(program)
        self._form: Form = form or self._before or "functional"
        self._rewritten: dict[torch.fx.Node, tuple[_Call, _Call]] = {}
        self.differs = self._before not in (None, self._form) and not program.meta.get(FIXED)
        """Whether the program has to be converted."""

    def enter(self, torch_program: torch.fx.GraphModule, conversion: ToTorch) -> None:
        """Convert ``torch_program``, the copy of the program made by ``conversion``, to the form of the pass."""
        graph = self._program.graph
        converted = _CONVERSIONS[self._form](GraphModule.of_capture(self._program, copy_graph(graph), "GraphModule"))
        pairs = list(zip(graph.nodes, converted.graph.nodes, strict=True))
        counterparts = {copied: conversion.nodes[node] for node, copied in pairs}
        for node, copied in pairs:
            if copied.target is node.target or copied.op in ("placeholder", "output"):
                continue
            torch_node, before = counterparts[copied], _call_of(counterparts[copied])
            args, kwargs = map_arg((copied.args, copied.kwargs), counterparts.__getitem__)
            _write(torch_node, (copied.op, copied.target, args, kwargs))
            self._rewritten[torch_node] = before, _call_of(torch_node)
        torch_program.recompile()

    def leave(self, result: torch.fx.GraphModule, conversion: ToTorch) -> None:
        """Restore the original form of each call that the pass did not change."""
        is_current = result.code == result.graph.python_code("self").src
        for node in result.graph.nodes:
            before, after = self._rewritten.get(node, (None, None))
            if before is not None and _call_of(node) == after:
                _write(node, before)
                conversion._arguments[node] = (node.args, node.kwargs)
        if is_current:
            result.recompile()

    def restore(self, program: GraphModule) -> None:
        """Convert the calls that the pass added to the original form of the program."""
        _CONVERSIONS[self._before or "functional"](program)


_Call = tuple[str, Any, Any, Any]


def _call_of(node: torch.fx.Node) -> _Call:
    return node.op, node.target, node.args, node.kwargs


def _write(node: torch.fx.Node, call: _Call) -> None:
    node.op, node.target, node.args, node.kwargs = call

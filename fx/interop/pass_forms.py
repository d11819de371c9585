"""Exported programs for passes of ``torch.fx``: in functions of torch or in operators of ATen, as a pass knows them."""

from __future__ import annotations

from typing import Any

import torch.fx

from fx.canonical.forms import FIXED, OVERLOAD, Form, is_written_in_aten, to_aten, to_functional
from fx.canonical.inlining import copy_graph
from fx.graph_module import GraphModule
from fx.interop.torch_fx import ToTorch
from fx.node import Node, map_aggregate

_CONVERSIONS = {"functional": to_functional, "aten": to_aten}


def form_of_program(program: GraphModule) -> Form | None:
    """The form of an exported program; None where it is none, so that nothing is known of one."""
    if any(node._meta and OVERLOAD in node._meta for node in program.graph.nodes):
        return "functional"
    return "aten" if is_written_in_aten(program) else None


class PassForm:
    """The form in which a pass gets a program, and that in which the program was."""

    def __init__(self, program: GraphModule, form: Form | None) -> None:
        """``form`` is that of the pass; None for that of the program, whichever it is."""
        self._program = program
        self._before = form_of_program(program)
        self._form: Form = form or self._before or "functional"
        self._rewritten: dict[torch.fx.Node, tuple[_Call, _Call]] = {}
        self.differs = self._before not in (None, self._form) and not program.meta.get(FIXED)
        """Whether these are two."""

    def enter(self, theirs: torch.fx.GraphModule, there: ToTorch) -> None:
        """Bring ``theirs``, the copy that ``there`` made of the program, into the form of the pass."""
        graph = self._program.graph
        other = _CONVERSIONS[self._form](GraphModule.of_capture(self._program, copy_graph(graph), "GraphModule"))
        pairs = list(zip(graph.nodes, other.graph.nodes, strict=True))
        counterparts = {copied: there.nodes[node] for node, copied in pairs}
        for node, copied in pairs:
            if copied.target is node.target or copied.op in ("placeholder", "output"):
                continue
            made, before = counterparts[copied], _call_of(counterparts[copied])
            args, kwargs = (_in_terms_of(counterparts, given) for given in (copied.args, copied.kwargs))
            _write(made, (copied.op, copied.target, args, kwargs))
            self._rewritten[made] = before, _call_of(made)
        theirs.recompile()

    def leave(self, result: torch.fx.GraphModule, there: ToTorch) -> None:
        """Put back the calls that the pass left as they were, so that what it did not change did not change."""
        is_current = result.code == result.graph.python_code("self").src
        for node in result.graph.nodes:
            before, after = self._rewritten.get(node, (None, None))
            if before is not None and _call_of(node) == after:
                _write(node, before)
                there._arguments[node] = (node.args, node.kwargs)
        if is_current:
            result.recompile()

    def restore(self, program: GraphModule) -> None:
        """Bring the calls that the pass made into the form in which the program was."""
        _CONVERSIONS[self._before or "functional"](program)


_Call = tuple[str, Any, Any, Any]


def _call_of(node: torch.fx.Node) -> _Call:
    return node.op, node.target, node.args, node.kwargs


def _write(node: torch.fx.Node, call: _Call) -> None:
    node.op, node.target, node.args, node.kwargs = call


def _in_terms_of(counterparts: dict[Node, Any], given: Any) -> Any:
    return map_aggregate(given, lambda leaf: counterparts[leaf] if isinstance(leaf, Node) else leaf)

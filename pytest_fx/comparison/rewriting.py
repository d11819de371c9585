"""Applying a pass to a fresh capture of a model, and what must hold whatever the pass does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from fx.passes import Pass, pass_name
from fx.passes.pipeline import PassPipeline
from fx.provenance import complete_origins, record_origins
from pytest_fx.errors import ContractViolation

from .capture import GraphModule
from .evaluation import Arguments, default_dtype
from .state import same_tensor, tensors_of
from .subject import Subject

FIRST_OF_DATA = 1000
"""The first draw of inputs that is data for a pass: none that answers are compared for."""
CALLS_OF_DATA = 32
"""How many draws a pass gets."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A program that a pass made, beside what it was made from."""

    original: nn.Module
    """The module that was captured, whose tensors the program shares where the pass kept them."""
    program: GraphModule
    """The program after the pass."""
    nodes_before: int
    """Nodes that the graph had before the pass."""
    nodes_after: int
    """Nodes that it has now."""
    changed: bool
    """Whether the graph, a module that it calls, a parameter or a buffer is another than before."""


def rewrite(subject: Subject, pass_: Pass, *, leaves: bool = True) -> Rewriting:
    """Capture ``subject``, with or without leaf modules, and apply ``pass_``.

    Raises :class:`ContractViolation` if the pass wrote to the original's tensors or returned something that is no
    program, or one that takes other arguments; the graph's own error if it left a graph that is not well formed.
    """
    __tracebackhide__ = True
    with default_dtype(subject.dtype):
        original = subject.fresh()
        program = subject.capture(original, leaves=leaves)
        before, shared = tensors_of(program), tensors_of(original)
        # What is shared with the original is known to be as before when the original is.
        before |= {name: it.detach().clone() for name, it in before.items() if it is not shared.get(name)}
        text, nodes, signature = _text_of(program), len(program.graph.nodes), _signature_of(program)
    program = _applied(pass_, program, subject, subject.dtype)
    written = _changed_tensors(subject.tensors, tensors_of(original))
    if written:
        raise ContractViolation(
            f"{pass_name(pass_)} wrote to tensors of the original {subject.name}",
            value=", ".join(written[:3]) + (f" and {len(written) - 3} more" if len(written) > 3 else ""),
            why="the module that was captured shares them with its program and must keep computing what it did",
            remedy="give the program new parameters instead of changing the old ones in place",
            kind="writes to the original",
        )
    if "signature" not in may_change(pass_) and _signature_of(program) != signature:
        raise ContractViolation(
            f"{pass_name(pass_)} changes the signature of {subject.name}",
            value=f"({', '.join(_signature_of(program))}) instead of ({', '.join(signature)})",
            why="whoever calls the program gives the arguments that the model takes",
            remedy="keep every placeholder, its default and their order; a pass that must not has may_change",
            kind="signature",
        )
    changed = _text_of(program) != text or bool(_changed_tensors(before, tensors_of(program)))
    return Rewriting(original, program, nodes, len(program.graph.nodes), changed)


def rewrite_in(subject: Subject, pass_: Pass, dtype: torch.dtype, *, leaves: bool = True) -> GraphModule:
    """What :func:`rewrite` makes in another dtype, once it was checked in the model's own what the pass does."""
    with default_dtype(dtype):
        program = subject.capture(subject.fresh(dtype), leaves=leaves)
    return _applied(pass_, program, subject, dtype)


def _applied(pass_: Pass, program: GraphModule, subject: Subject, dtype: torch.dtype) -> GraphModule:
    """What the pass makes of a program, well formed and with its code up to date."""
    __tracebackhide__ = True
    record_origins(program.graph)
    with default_dtype(dtype):
        result = cast("object", with_data(pass_, lambda: data_of(subject, dtype))(program))  # anything, if a user's
    if result is not None:
        if not isinstance(result, GraphModule):
            raise ContractViolation(
                f"{pass_name(pass_)} returned no program",
                value=f"an object of type {type(result).__name__}",
                why="a pass returns a GraphModule, or None if it edited the one that it was given",
                kind="no program",
            )
        program = result
    program.graph.lint()
    complete_origins(program.graph)
    program.recompile()
    return program


def rewritten(subject: Subject, pass_: Pass, *, leaves: bool = True) -> Rewriting:
    """What :func:`rewrite` returns, to be read and called, never changed: the latest is kept for who asks next."""
    kept: _Kept | None = subject.findings.get("rewriting")
    if kept is None or kept.pass_ is not pass_ or kept.leaves != leaves or kept.version != _version_of(kept.rewriting):
        subject.findings.pop("rewriting", None)  # two programs need not be there at once
        rewriting = rewrite(subject, pass_, leaves=leaves)
        kept = subject.findings["rewriting"] = _Kept(pass_, leaves, rewriting, _version_of(rewriting))
    return kept.rewriting


@dataclass(frozen=True, slots=True)
class _Kept:
    """The latest rewriting of a model."""

    pass_: Pass
    leaves: bool
    rewriting: Rewriting
    version: int


def _version_of(rewriting: Rewriting) -> int:
    """A number that grows with each write to a tensor of the program."""
    return sum(tensor._version for tensor in tensors_of(rewriting.program).values())


def changes(subject: Subject, pass_: Pass, *, leaves: bool = True) -> bool:
    """Whether a pass finds anything to do in a model, which is found out once."""
    key = "changed", id(pass_), leaves
    if key not in subject.findings:
        subject.findings[key] = pass_, rewritten(subject, pass_, leaves=leaves).changed  # which keeps the id
    return subject.findings[key][1]


def with_data(pass_: Any, calls: Callable[[], Sequence[Arguments]]) -> Any:
    """A pass that asks for data (by a method ``with_data``), or a pipeline of some, with the arguments of ``calls``."""
    if isinstance(pass_, PassPipeline):
        return PassPipeline([with_data(part, calls) for part in pass_.passes], pass_.listeners, pass_.name)
    if isinstance(pass_, type) or not hasattr(pass_, "with_data"):
        return pass_
    return pass_.with_data([(arguments.args, arguments.kwargs) for arguments in calls()])


def data_of(subject: Subject, dtype: torch.dtype) -> list[Arguments]:
    """Arguments of calls that are not among those that answers are compared for."""
    if not subject.has_inputs:
        return []
    return [subject.arguments(FIRST_OF_DATA + number).copies(dtype) for number in range(CALLS_OF_DATA)]


def may_change(pass_: Pass) -> set[str]:
    """What a pass, or one of a pipeline, changes on purpose."""
    parts = pass_.passes if isinstance(pass_, PassPipeline) else (pass_,)
    return {kept for part in parts for kept in getattr(part, "may_change", ())}


def _signature_of(program: GraphModule) -> list[str]:
    """Return what callers rely on: the inputs in order with their defaults, as text."""
    inputs = program.graph.find_nodes(op="placeholder")
    return [str(node.target) + (f"={node.args[0]!r}" if node.args else "") for node in inputs]


def _text_of(program: GraphModule) -> str:
    """Return the graph and the modules with their settings, as printed."""
    return f"{program.graph}\n{program}"


def _changed_tensors(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that are absent on one side or differ."""
    return [
        name
        for name in dict.fromkeys((*before, *after))
        if name not in before
        or name not in after
        or not (before[name] is after[name] or same_tensor(before[name], after[name]))
    ]

"""Verification around each pass: well-formedness, current code, and an unchanged interface (paper, section 5.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from fx.analysis.verify import Violation, find_violation
from fx.argument_types import checked
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.containers import Container
from fx.pipelines.interface import Interface, result_is_kept, signature_is_kept, writes_are_kept


@checked()
def verify(graph_module: GraphModule) -> None:
    """Check that a program and those inside it obey the rules of ``fx.analysis.verify`` and have current code.

    Raises:
        GraphError: a rule is broken; the message names the node, and its user's line where known.
    """
    violation = find_violation_in(graph_module) or find_stale_code(graph_module)
    if violation is not None:
        raise violation.error()


def find_violation_in(graph_module: GraphModule) -> Violation | None:
    """Return the first rule that ``graph_module`` or a program inside it breaks, or None."""
    for path, program in _programs(graph_module):
        if (violation := find_violation(program.graph)) is not None:
            return _inside(path, violation)
    return None


def find_stale_code(graph_module: GraphModule) -> Violation | None:
    """Return a violation for the first program, ``graph_module`` or one inside it, with older code than its graph."""
    for path, program in _programs(graph_module):
        if "_written" in vars(program) and program._code_revision != program.graph.revision:
            return _inside(
                path,
                Violation(
                    "the graph was edited, but the program not recompiled",
                    why="it still runs the code of the graph as it was",
                    remedy="call recompile() on the GraphModule after the last edit",
                ),
            )
    return None


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A parameter or buffer of a program, with its version."""

    path: str
    """Its path."""
    tensor: torch.Tensor
    """The tensor itself."""
    version: tuple[int | None, int | None]
    """Torch's count of writes to it, and the address of its elements; None where it has none."""


@dataclass(frozen=True, slots=True)
class ProgramSnapshot:
    """The state of a program at one point in time, to be compared with the result of a pass."""

    interface: Interface
    """Its interface to callers."""
    programs: tuple[tuple[Graph, int], ...]
    """Its graph and those inside it, each with its revision."""
    modules: tuple[tuple[str, torch.nn.Module], ...]
    """The modules that it holds, with their paths, without plain containers."""
    tensors: tuple[HeldTensor, ...]
    """The parameters and buffers that it holds."""

    @classmethod
    def of(cls, graph_module: GraphModule) -> ProgramSnapshot:
        """Return the current state of ``graph_module``."""
        named_modules = graph_module.named_modules(remove_duplicate=False)
        modules = tuple((path, module) for path, module in named_modules if type(module) is not Container)
        return cls(
            Interface.of(graph_module.graph),
            tuple((module.graph, module.graph.revision) for _, module in modules if isinstance(module, GraphModule)),
            modules,
            tuple(
                HeldTensor(f"{path}.{name}" if path else name, tensor, _version(tensor))
                for path, module in graph_module.named_modules(remove_duplicate=False)
                for state in (module._parameters, module._buffers)
                for name, tensor in state.items()
                if tensor is not None
            ),
        )

    def has_other_graph(self, before: ProgramSnapshot) -> bool:
        """Return whether the graph, or one inside it, was replaced or edited since ``before``."""
        return self.programs != before.programs

    def has_other_state(self, before: ProgramSnapshot) -> bool:
        """Return whether it holds other modules or tensors than ``before``, or the same under other paths."""
        ours, theirs = self._held(), before._held()
        pairs = zip(ours, theirs, strict=False)
        return len(ours) != len(theirs) or any(new[0] != old[0] or new[1] is not old[1] for new, old in pairs)

    def _held(self) -> list[tuple[str, object]]:
        """Return its modules and tensors by path, without the program itself, which may be a copy."""
        return [*self.modules[1:], *((entry.path, entry.tensor) for entry in self.tensors)]


def _tensors(before: ProgramSnapshot, after: ProgramSnapshot) -> Violation | None:
    """Check that no tensor that the program held before was written to, or got other elements.

    This detects writes that torch counts and an assignment to ``.data``. Torch does not count writes to the elements of
    ``.data``.
    """
    for entry in before.tensors:
        if _version(entry.tensor) != entry.version:
            return Violation(
                f"the tensor {entry.path!r} of the program was written to",
                why="the traced module holds the same tensor and would compute something else from now on",
                remedy="put a new one in its place: setattr(module, name, torch.nn.Parameter(...))",
            )
    return None


KEPT: dict[str, tuple[Callable[[ProgramSnapshot, ProgramSnapshot], Violation | None], str]] = {
    "signature": (
        lambda before, after: signature_is_kept(before.interface, after.interface),
        "the program's signature",
    ),
    "result": (
        lambda before, after: result_is_kept(before.interface, after.interface),
        "the structure of the program's result",
    ),
    "writes": (lambda before, after: writes_are_kept(before.interface, after.interface), "what the program writes to"),
    "tensors": (_tensors, "the program's tensors"),
}
"""The properties that a pass must keep unless it lists their names in its attribute ``may_change``: the check of each,
and its description in messages."""
MAY_CHANGE = (*KEPT, "gradients", "non-finite", "metadata", "checks", "sizes", "tracing")
"""The names that a pass may list in ``may_change``. The pytest plugin checks the last six: gradients, outputs for NaN
and infinities, the ``meta`` of nodes, recorded checks of inputs, other input sizes, and capture of the generated code.
"""


def says_may_change(names: Iterable[str]) -> str:
    """Return the line of Python by which a pass declares intended changes.

    >>> says_may_change(["gradients"])
    'may_change = ("gradients",)'
    """
    quoted = [f'"{name}"' for name in names]
    return f"may_change = ({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"


def _programs(graph_module: GraphModule) -> list[tuple[str, GraphModule]]:
    return [(path, module) for path, module in graph_module.named_modules() if isinstance(module, GraphModule)]


def _inside(path: str, violation: Violation) -> Violation:
    if not path:
        return violation
    return Violation(f"in submodule {path!r}: {violation.what}", violation.node, violation.why, violation.remedy)


def _version(tensor: torch.Tensor) -> tuple[int | None, int | None]:
    try:
        count = tensor._version
    except RuntimeError:  # made in inference mode
        count = None
    try:
        return count, tensor.data_ptr()
    except RuntimeError:  # no elements, such as a fake tensor
        return count, None

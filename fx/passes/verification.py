"""Programs checked around each pass: well formed, up to date, and the same to their callers (paper, section 5.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from fx.analysis.verify import Violation, find_violation
from fx.errors import GraphError
from fx.graph import Graph
from fx.graph_module import GraphModule, expect_program
from fx.modules.containers import Container
from fx.passes.interface import Interface, result_is_kept, signature_is_kept, writes_are_kept


def verify(graph_module: GraphModule) -> None:
    """Check that a program and those in it keep the rules of ``fx.analysis.verify``, and that their code is current.

    Raises:
        GraphError: a rule is broken; the message names the node, and its user's line where known.
    """
    expect_program(graph_module, "verify checks a GraphModule", error=GraphError)
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
    """Return the first program, ``graph_module`` or one inside it, whose graph was edited after its code was made."""
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
    """A parameter or buffer of a program, and how often it had been written to."""

    path: str
    """Where it is."""
    tensor: torch.Tensor
    """The tensor itself."""
    version: tuple[int | None, int | None]
    """Torch's count of writes to it, and the address of its elements, as far as it has such."""


@dataclass(frozen=True, slots=True)
class ProgramSnapshot:
    """A program as it was at one time, to be compared with what a pass makes of it."""

    interface: Interface
    """What its callers rely on."""
    programs: tuple[tuple[Graph, int], ...]
    """Its graph and those inside it, each with its revision."""
    modules: tuple[tuple[str, torch.nn.Module], ...]
    """The modules that it holds, with their paths; but not those that merely hold others."""
    tensors: tuple[HeldTensor, ...]
    """The parameters and buffers that it holds."""

    @classmethod
    def of(cls, graph_module: GraphModule) -> ProgramSnapshot:
        """``graph_module`` as it is now."""
        found = graph_module.named_modules(remove_duplicate=False)
        modules = tuple((path, module) for path, module in found if type(module) is not Container)
        return cls(
            Interface.of(graph_module.graph),
            tuple((module.graph, module.graph.revision) for _, module in modules if isinstance(module, GraphModule)),
            modules,
            tuple(
                HeldTensor(f"{path}.{name}" if path else name, tensor, _version(tensor))
                for path, module in graph_module.named_modules(remove_duplicate=False)
                for held in (module._parameters, module._buffers)
                for name, tensor in held.items()
                if tensor is not None
            ),
        )

    def has_other_graph(self, before: ProgramSnapshot) -> bool:
        """Return whether the graph, or one inside it, is another one or was edited since ``before``."""
        return self.programs != before.programs

    def has_other_state(self, before: ProgramSnapshot) -> bool:
        """Return whether it holds other modules or tensors, or under other names, than ``before``."""
        ours, theirs = self._held(), before._held()
        pairs = zip(ours, theirs, strict=False)
        return len(ours) != len(theirs) or any(new[0] != old[0] or new[1] is not old[1] for new, old in pairs)

    def _held(self) -> list[tuple[str, object]]:
        """Return what it holds, by path, without the program itself, which may be a copy."""
        return [*self.modules[1:], *((held.path, held.tensor) for held in self.tensors)]


def _tensors(before: ProgramSnapshot, after: ProgramSnapshot) -> Violation | None:
    """No tensor that the program held before was written to, nor given other elements.

    Seen are writes that torch counts and a new ``.data``; one into the elements of ``.data`` it does not count.
    """
    for held in before.tensors:
        if _version(held.tensor) != held.version:
            return Violation(
                f"the tensor {held.path!r} of the program was written to",
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
"""What a pass must keep, unless it lists the name in its attribute ``may_change``: the check, and words for it."""
MAY_CHANGE = (*KEPT, "gradients", "non-finite", "metadata", "checks", "sizes", "tracing")
"""What a pass may list in ``may_change``. Pytest's plugin looks at the last six: at gradients, at outputs for NaN and
infinities, at what nodes keep in ``meta``, at the checks by which a program refuses inputs, at inputs of other sizes,
and at whether its code can be captured again."""


def says_may_change(names: Iterable[str]) -> str:
    """Return the line of Python by which a pass says what it changes on purpose.

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
    except RuntimeError:  # without elements, as fake ones
        return count, None

"""The cause of a change and of a broken law: the pass, the capture, or torch.fx's tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch.fx
from torch.export import ExportedProgram
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from fx import Interpreter, Node
from fx.interop import AdaptedPass, adapt
from fx.interpreter import positional
from fx.operators.effects import effect_of
from fx.passes import exact
from pytest_fx.errors import LawViolation
from pytest_fx.forms import FormedPass
from pytest_fx.harness.pass_run import PassRun, leave_alone, parts_of
from pytest_fx.harness.structure import leaves
from pytest_fx.laws import Law, broken_laws, is_kept_without
from pytest_fx.search.coverage import PassCode
from pytest_fx.search.placement import PutBack
from pytest_fx.search.references import PassReferences, references_of

_FRACTION = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+")


class Blame:
    """Decides whether a pass causes a change or breaks a law, by comparison with runs without the pass."""

    def __init__(self, pass_: Any, about: PassReferences | None = None) -> None:
        """Take a pass, and its references if they are known."""
        self._pass = pass_
        self._tools: list[AdaptedPass | FormedPass] = []
        self._replaces = False
        about = about or references_of(pass_)
        self._edits = not PassCode(about.codes, pass_).only_cleans_up
        active = _CLEAN_UPS if self._edits else {}
        clean_ups = [clean_up for clean_up, names in active.items() if names <= about.names]
        self._no_changes: list[Any] = clean_ups
        if isinstance(pass_, FormedPass):
            self._tools = [FormedPass(_DeadCodeRemoval(), pass_.form)] if about.removes else []
        if any(isinstance(part, AdaptedPass) for part in parts_of(pass_)):
            self._tools = [adapt(_pass_through), *([adapt(_remove_dead_code)] if about.removes else [])]
            tools: list[Any] = [leave_alone, _pass_through, *clean_ups]
            self._no_changes = [adapt(tool) for tool in tools]
            self._replaces = about.replaces

    def changed_by_pass(self, pass_run: PassRun) -> bool:
        """Return whether the pass itself changed a program, beyond what its clean-up does to any program.

        A call of ``eliminate_dead_code`` at the end of a pass also changes programs in which the pass finds nothing. If
        a pass does nothing else, this is its purpose.
        """
        if not pass_run.changed:
            return False
        if pass_run.edits:  # the pass reports its edits
            return True
        if isinstance(self._pass, FormedPass):
            return not (pass_run.only_tidied and self._edits)
        others = (PassRun(pass_run.subject, tool, leaves=pass_run.leaves) for tool in self._no_changes)
        return not any(map(pass_run.left_the_same_as, others))

    def caused_by_pass(self, law: Law, pass_run: PassRun) -> bool:
        """Return whether the pass breaks ``law``, and not the capture or a tool of torch.fx."""
        if not is_kept_without(law, pass_run):
            return False
        # After another broken law it was not judged a second time, as tools are below.
        violations = broken_laws([law], pass_run)
        if not violations or _lacks_kernel(violations[0], pass_run):
            return False
        if any(self._does_the_same(tool, law, pass_run) for tool in self._tools):
            return False
        if pass_run.error is not None and any(isinstance(tool, AdaptedPass) for tool in self._tools):
            again = PassRun(pass_run.subject, adapt(_trace_again), leaves=pass_run.leaves).error
            if type(again) is type(pass_run.error) and str(again) == str(pass_run.error):
                return False
        if not self._replaces:
            return True
        if _writes_inside_match(pass_run):
            return False
        put_back = PassRun(pass_run.subject, PutBack(self._pass), contract=pass_run.contract, leaves=pass_run.leaves)
        return bool(broken_laws([law], put_back))

    @staticmethod
    def _run_of(tool: Any, pass_run: PassRun) -> PassRun:
        """Apply a tool to the program that the pass got."""
        result = pass_run.form_result
        if isinstance(tool, FormedPass) and result is not None and result.level is not None:
            tool = tool.at(result.level)
        return PassRun(pass_run.subject, tool, contract=exact, leaves=pass_run.leaves)

    def _does_the_same(self, tool: AdaptedPass | FormedPass, law: Law, pass_run: PassRun) -> bool:
        """Return whether ``tool`` alone breaks ``law`` in the same way as the pass."""
        tool_run = self._run_of(tool, pass_run)
        if not broken_laws([law], tool_run):
            return False
        tool_run.contract = pass_run.contract
        return _texts(law, tool_run) == _texts(law, pass_run)


def _lacks_kernel(violation: LawViolation, pass_run: PassRun) -> bool:
    """Return whether torch has no kernel of an operator of the program for a dtype that eager also computes with.

    A formula of elementary operations accepts integers and half precision, which the operator of its name may not
    support on some devices. A dtype that the pass itself introduces is not excused.
    """
    error = None if pass_run.program is None else pass_run.actual(violation.inputs).error
    if not isinstance(error, NotImplementedError):
        return False
    before, arguments = pass_run.untouched().after, pass_run.subject.arguments(violation.inputs).copies()
    assert before is not None, "a program that is captured can be captured again"
    kinds: set[str] = set()

    def note(node: Node, value: Any) -> None:
        kinds.update(leaf.type() for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor))

    with torch.no_grad():
        Interpreter(before, listeners=[note]).run(*positional(before, arguments.args, arguments.kwargs))
    names = (kind.removeprefix("torch.").removesuffix("Tensor") for kind in kinds)
    return any(f"not implemented for '{name}'" in str(error) for name in names)


def _writes_inside_match(pass_run: PassRun) -> bool:
    """Return whether a write is between replaced nodes: torch.fx's matcher does not check for writes."""
    before, after = pass_run.untouched().after, pass_run.after
    if before is None or after is None:
        return False
    names, nodes = {node.name for node in after.graph.nodes}, list(before.graph.nodes)
    removed = [at for at, node in enumerate(nodes) if node.name not in names]
    between = nodes[removed[0] : removed[-1]] if removed else []
    return any((effect := effect_of(node)) is not None and effect.kind == "write" for node in between)


def _texts(law: Law, pass_run: PassRun) -> list[str]:
    """Return how a law is broken, without the name of the pass and without rounding errors in numbers.

    Two programs that break a law in the same way may add in another order: 0.98765432 and 0.98765439.
    """
    texts = (str(violation).replace(pass_run.name, "the pass") for violation in broken_laws([law], pass_run))
    return [_FRACTION.sub(lambda number: f"{float(number[0]):.3g}", text) for text in texts]


class _DeadCodeRemoval(PassBase):
    """Torch's own removal of dead code, as a pass in any form: it drops the updates of an unused batch norm."""

    def __call__(self, graph_module: Any) -> Any:
        result = super().__call__(graph_module)
        return None if isinstance(graph_module, ExportedProgram) else result

    def call(self, graph_module: Any) -> PassResult:
        graph: Any = getattr(graph_module, "graph", graph_module)
        graph.eliminate_dead_code()
        return PassResult(graph_module, True)


def _remove_dead_code(program: Any) -> Any:
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def _remove_dead_code_and_modules(program: Any) -> Any:
    return _remove_modules(_remove_dead_code(program))


def _remove_modules(program: Any) -> Any:
    program.delete_all_unused_submodules()
    return program


_CLEAN_UPS: Mapping[Callable[[Any], Any], frozenset[str]] = {
    _remove_dead_code: frozenset({"eliminate_dead_code"}),
    _remove_modules: frozenset({"delete_all_unused_submodules"}),
    _remove_dead_code_and_modules: frozenset({"eliminate_dead_code", "delete_all_unused_submodules"}),
}
"""Clean-ups, which also change programs in which a pass finds nothing, and the names in a pass that uses one."""


def _pass_through(program: Any) -> Any:
    """Apply torch.fx's conversion of arguments to each node: a ``torch.Size`` becomes a tuple."""
    for node in program.graph.nodes:
        node.args = torch.fx.map_arg(node.args, lambda read: read)
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda read: read)
    program.recompile()
    return program


def _trace_again(program: Any) -> Any:
    """Capture the program again by torch.fx, as some passes do first; torch.fx cannot capture some of our programs."""
    return torch.fx.symbolic_trace(program)

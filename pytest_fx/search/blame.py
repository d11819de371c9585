"""Whose work a change is, and whose fault a broken law: the pass's, the capture's, or that of torch.fx's tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

from fx import Interpreter, Node
from fx.interop import AdaptedPass, adapt
from fx.interpreter import positional
from fx.operators.effects import effect_of
from fx.passes import exact
from pytest_fx.errors import LawViolation
from pytest_fx.harness.pass_run import PassRun, leave_alone, parts_of
from pytest_fx.harness.structure import leaves
from pytest_fx.laws import Law, broken_laws, is_kept_without
from pytest_fx.search.coverage import PassCode
from pytest_fx.search.placement import PutBack
from pytest_fx.search.references import PassReferences, references_of

_FRACTION = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+")


class Blame:
    """Tells whether it is a pass that changes a program or breaks a law, by what does so without it."""

    def __init__(self, pass_: Any, about: PassReferences | None = None) -> None:
        """Take a pass, and what it mentions if that is known."""
        self._pass = pass_
        self._tools: list[AdaptedPass] = []
        self._replaces = False
        about = about or references_of(pass_)
        known = {} if PassCode(about.codes, pass_).only_cleans_up else _CLEAN_UPS
        clean_ups = [clean_up for clean_up, names in known.items() if names <= about.names]
        self._no_changes: list[Any] = clean_ups
        if any(isinstance(part, AdaptedPass) for part in parts_of(pass_)):
            self._tools = [adapt(_pass_through), *([adapt(_remove_dead_code)] if about.removes else [])]
            tools: list[Any] = [leave_alone, _pass_through, *clean_ups]
            self._no_changes = [adapt(tool) for tool in tools]
            self._replaces = about.replaces

    def changed_by_pass(self, pass_run: PassRun) -> bool:
        """Return whether the pass itself changed a program, which need not be what its clean-up does to any program.

        A call of ``eliminate_dead_code`` at the end of a pass changes programs in which the pass finds nothing. Where a
        pass does nothing else, it is what the pass is for.
        """
        if not pass_run.changed:
            return False
        if pass_run.edits:  # a pass that says which edits it makes
            return True
        others = (PassRun(pass_run.subject, tool, leaves=pass_run.leaves) for tool in self._no_changes)
        return not any(map(pass_run.left_the_same_as, others))

    def caused_by_pass(self, law: Law, pass_run: PassRun) -> bool:
        """Return whether it is the pass that breaks ``law``, not the capture or what torch.fx offers to passes."""
        if not is_kept_without(law, pass_run):
            return False
        # Beside another broken law it was not judged a second time, as tools are below.
        violations = broken_laws([law], pass_run)
        if not violations or _lacks_kernel(violations[0], pass_run):
            return False
        if any(self._does_the_same(tool, law, pass_run) for tool in self._tools):
            return False
        if self._tools and pass_run.error is not None:
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
    def _does_the_same(tool: AdaptedPass, law: Law, pass_run: PassRun) -> bool:
        """Return whether ``tool`` alone breaks ``law`` in the very way in which the pass breaks it."""
        made = PassRun(pass_run.subject, tool, contract=exact, leaves=pass_run.leaves)
        if not broken_laws([law], made):
            return False
        made.contract = pass_run.contract
        return _texts(law, made) == _texts(law, pass_run)


def _lacks_kernel(violation: LawViolation, pass_run: PassRun) -> bool:
    """Return whether torch has no kernel of an operator of the program for a dtype that eager computes with, too.

    A formula of elementary operations takes integers and half precision where the operator of its name may not, on
    some devices. A dtype that the pass itself brings in is its own affair.
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
    """Return whether a write stands between replaced nodes: torch.fx's matcher does not look for any."""
    before, after = pass_run.untouched().after, pass_run.after
    if before is None or after is None:
        return False
    names, nodes = {node.name for node in after.graph.nodes}, list(before.graph.nodes)
    removed = [at for at, node in enumerate(nodes) if node.name not in names]
    between = nodes[removed[0] : removed[-1]] if removed else []
    return any((effect := effect_of(node)) is not None and effect.kind == "write" for node in between)


def _texts(law: Law, pass_run: PassRun) -> list[str]:
    """Return how a law is broken, but for the name of the pass and, in numbers, for rounding errors.

    Two programs that break a law alike may compute the same sum in another order: 0.98765432 and 0.98765439.
    """
    texts = (str(found).replace(pass_run.name, "the pass") for found in broken_laws([law], pass_run))
    return [_FRACTION.sub(lambda number: f"{float(number[0]):.3g}", text) for text in texts]


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
"""Clean-ups, which change programs in which a pass finds nothing, and the names that a pass with one mentions."""


def _pass_through(program: Any) -> Any:
    """Return what torch.fx does to the arguments of each node that it touches: a ``torch.Size`` becomes a tuple."""
    for node in program.graph.nodes:
        node.args = torch.fx.map_arg(node.args, lambda read: read)
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda read: read)
    program.recompile()
    return program


def _trace_again(program: Any) -> Any:
    """Return what a pass does first that lets torch.fx capture the program again, as it cannot some of ours."""
    return torch.fx.symbolic_trace(program)

"""Laws about a pass, and about its graph and code; they run no program."""

from __future__ import annotations

from fx.analysis.verify import Violation
from fx.naming.printing import describe
from fx.pipelines.verification import find_stale_code, find_violation_in
from pytest_fx.errors import LawViolation
from pytest_fx.harness.pass_run import MARK, PassRun, inputs_of, may_change
from pytest_fx.laws.law import broken, failure_class, said
from pytest_fx.tracebacks import users_line


def terminates(pass_run: PassRun) -> None:
    """The pass ends on each program within ten seconds, or within ``seconds``."""
    if pass_run.too_long is not None:
        broken(
            "terminates",
            f"{pass_run.name} was still running after {pass_run.seconds:g} seconds",
            where=users_line(pass_run.too_long),
            why="it may match its own result again, or wait for a change of the graph that never comes",
            remedy="go over a list of the nodes, list(graph.nodes), or count the rounds",
        )


def refusal(pass_run: PassRun) -> None:
    """The pass refuses a program that it cannot take by a ``PassError``, never by another exception."""
    error = pass_run.error
    if error is not None:
        raise LawViolation(
            "refusal",
            f"{pass_run.name} crashed with {type(error).__name__}",
            value=said(error),
            where=users_line(error),
            remedy="skip nodes that the pass does not handle, or raise fx.errors.PassError with the reason",
            kind=failure_class(error),
        ) from error


def returns_a_program(pass_run: PassRun) -> None:
    """The pass returns a ``GraphModule``, or nothing if it edited its argument."""
    if pass_run.refusal is None and pass_run.after is None:
        broken(
            "returns a program",
            f"{pass_run.name} returned no program",
            value=f"an object of type {type(pass_run.result).__name__}",
            remedy="return the GraphModule, or nothing after editing it in place",
        )


def original_untouched(pass_run: PassRun) -> None:
    """The captured module keeps its parameters, buffers, modes and settings, even if the pass refuses or fails.

    A pass with ``"tensors"`` in ``may_change`` gets a program with tensors of its own, and may edit these.
    """
    may_edit = pass_run.pass_ is not None and "tensors" in may_change(pass_run.pass_)
    damage = pass_run.damage_beside_tensors if may_edit else pass_run.damage
    if damage is not None:
        # `may_change` has no entry for the settings of modules.
        may_say = pass_run.damage_beside_tensors is None
        broken(
            "original untouched",
            f"{pass_run.name} changed the module that was captured: {damage}",
            why="the program shares its tensors and modules with the module, which must keep computing what it did",
            remedy="put new parameters and modules into the program instead of changing the old ones, or let the pass "
            'declare that it consumes its argument: may_change = ("tensors",)'
            if may_say
            else "work on a copy: graph_module = copy.deepcopy(graph_module); or put new modules into the program",
        )


def process_untouched(pass_run: PassRun) -> None:
    """The process is as before: functions of torch, global hooks, gradients, default dtype and device, environment.

    The law covers the pass itself, and each call of the program that other laws make.
    """
    if pass_run.disturbance:
        when = "" if pass_run.disturbed_by_pass else ", when it is called"
        broken(
            "process untouched",
            f"{pass_run.name} changed the process{when}: {pass_run.disturbance[0]}",
            value="\n         ".join(pass_run.disturbance[1:]) or None,
            why="code that runs next would compute something else, or fail; the change was undone",
            remedy="undo in a `finally`, or use a `with` statement, which does that itself",
        )


def mode(pass_run: PassRun) -> None:
    """The program is in the same mode, training or evaluation, as the argument of the pass."""
    if pass_run.after is not None and pass_run.after.training != (pass_run.mode == "train"):
        now = "training" if pass_run.after.training else "evaluation"
        broken(
            "mode",
            f"{pass_run.name} leaves the program in {now} mode",
            why="later passes, and code that reads `program.training`, rely on the mode",
            remedy="make programs from the argument, GraphModule(graph_module, graph), or set `training`",
        )


def well_formed(pass_run: PassRun) -> None:
    """The graph, and the graph of each program inside it, keeps every rule of ``fx.analysis.verify.RULES``."""
    if pass_run.after is not None:
        _require_none("well formed", find_violation_in(pass_run.after))


def code_and_graph_agree(pass_run: PassRun) -> None:
    """The code that runs matches the graph: the program was recompiled after the last edit."""
    if pass_run.after is None:
        return
    _require_none("code and graph agree", find_stale_code(pass_run.after))
    if pass_run.written != pass_run.after.code:
        broken("code and graph agree", "the program runs other code than its graph says", remedy="call recompile()")


def signature(pass_run: PassRun) -> None:
    """The inputs of the program keep their names, order and defaults."""
    if pass_run.after is None or pass_run.before is None:
        return
    before, now = pass_run.before.inputs, inputs_of(pass_run.after)
    if now != before:
        difference = " instead of ".join(f"({', '.join(map(_parameter, inputs))})" for inputs in (now, before))
        remedy = "keep every placeholder with its name and default, also one that nothing uses any more"
        broken("signature", f"the program's inputs are {difference}", remedy=remedy)


def metadata_kept(pass_run: PassRun) -> None:
    """A node that keeps its name, target and arguments also keeps its entries in ``meta`` and the user's line."""
    before = pass_run.before
    if pass_run.after is None or before is None:
        return
    for node in pass_run.after.graph.nodes:
        if node.op == "output" or node.name not in before.nodes:
            continue
        printed, source = before.nodes[node.name]
        if printed != describe(node):
            continue
        lost = [
            what
            for what, is_lost in (
                ("what analyses wrote into its meta", node.meta.get(MARK) is None),
                ("the user's line", source is not None and node.source is None),
            )
            if is_lost
        ]
        if lost:
            broken(
                "metadata kept",
                f"a node that stays has lost {' and '.join(lost)}",
                where=source,
                value=describe(node),
                remedy="copy nodes by graph.node_copy, which copies their meta and source, too, and keep node.meta",
            )


def _parameter(written: tuple[str, str]) -> str:
    name, default = written
    return f"{name}={default}" if default else name


def _require_none(name: str, violation: Violation | None) -> None:
    if violation is not None:
        raise LawViolation.of(name, violation.error())

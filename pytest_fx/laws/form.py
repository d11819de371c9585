"""Laws on what a pass does, and on the graph and the code that it leaves; nothing is run."""

from __future__ import annotations

from fx.analysis.verify import Violation
from fx.naming.printing import describe
from fx.passes.verification import find_stale_code, find_violation_in
from pytest_fx.errors import LawViolation
from pytest_fx.harness.pass_run import MARK, PassRun, inputs_of, may_change
from pytest_fx.laws.law import broken, failure_class, said
from pytest_fx.tracebacks import users_line


def terminates(pass_run: PassRun) -> None:
    """The pass comes to an end, on each program within ten seconds or what ``seconds`` says."""
    if pass_run.too_long is not None:
        broken(
            "terminates",
            f"{pass_run.name} was still running after {pass_run.seconds:g} seconds",
            where=users_line(pass_run.too_long),
            why="it may find again what it has just made, or wait for a graph that no longer changes to change",
            remedy="go over a list of the nodes, list(graph.nodes), or count the rounds",
        )


def refusal(pass_run: PassRun) -> None:
    """A program that the pass cannot take is refused by a ``PassError``, never by another exception."""
    error = pass_run.error
    if error is not None:
        raise LawViolation(
            "refusal",
            f"{pass_run.name} crashed with {type(error).__name__}",
            value=said(error),
            where=users_line(error),
            remedy="leave alone what the pass does not handle, or raise fx.errors.PassError with the reason",
            kind=failure_class(error),
        ) from error


def returns_a_program(pass_run: PassRun) -> None:
    """The pass returns a ``GraphModule``, or nothing where it edited the one that it was given."""
    if pass_run.refusal is None and pass_run.after is None:
        broken(
            "returns a program",
            f"{pass_run.name} returned no program",
            value=f"an object of type {type(pass_run.result).__name__}",
            remedy="return the GraphModule, or nothing after editing it in place",
        )


def original_untouched(pass_run: PassRun) -> None:
    """The captured module keeps its parameters, buffers, modes and settings, also where the pass refuses or fails.

    A pass that says in ``may_change`` that it changes ``"tensors"`` is given a program whose own it may edit.
    """
    may_edit = pass_run.pass_ is not None and "tensors" in may_change(pass_run.pass_)
    damage = pass_run.damage_beside_tensors if may_edit else pass_run.damage
    if damage is not None:
        # What a pass may say that it changes does not include the settings of modules.
        may_say = pass_run.damage_beside_tensors is None
        broken(
            "original untouched",
            f"{pass_run.name} changed the module that was captured: {damage}",
            why="the program shares its tensors and modules with the module, which must keep computing what it did",
            remedy="put new parameters and modules into the program instead of changing the old ones, or let the pass "
            'say that it uses up what it is given: may_change = ("tensors",)'
            if may_say
            else "work on a copy: graph_module = copy.deepcopy(graph_module); or put new modules into the program",
        )


def process_untouched(pass_run: PassRun) -> None:
    """The process is as before: functions of torch, global hooks, gradients, default dtype and device, environment.

    That holds for the pass and for each call of what it made, of those that other laws are about.
    """
    if pass_run.disturbance:
        when = "" if pass_run.disturbed_by_pass else ", when it is called"
        broken(
            "process untouched",
            f"{pass_run.name} changed the process{when}: {pass_run.disturbance[0]}",
            value="\n         ".join(pass_run.disturbance[1:]) or None,
            why="whatever runs next computes something else, or fails, for no fault of its own; it was put back",
            remedy="undo in a `finally`, or use a `with` statement, which does that itself",
        )


def mode(pass_run: PassRun) -> None:
    """The program is in the mode, training or evaluation, of the one that the pass was given."""
    if pass_run.after is not None and pass_run.after.training != (pass_run.mode == "train"):
        now = "training" if pass_run.after.training else "evaluation"
        broken(
            "mode",
            f"{pass_run.name} leaves the program in {now} mode, in which it was not",
            why="later passes, and whoever asks `program.training`, take it for what it is not",
            remedy="make programs from the one that was given, GraphModule(graph_module, graph), or set `training`",
        )


def well_formed(pass_run: PassRun) -> None:
    """The graph keeps every rule of ``fx.analysis.verify.RULES``, and those of programs inside it do."""
    if pass_run.after is not None:
        _require_none("well formed", find_violation_in(pass_run.after))


def code_and_graph_agree(pass_run: PassRun) -> None:
    """The code that runs is that of the graph: the program was recompiled after the last edit."""
    if pass_run.after is None:
        return
    _require_none("code and graph agree", find_stale_code(pass_run.after))
    if pass_run.written != pass_run.after.code:
        broken("code and graph agree", "the program runs other code than its graph says", remedy="call recompile()")


def signature(pass_run: PassRun) -> None:
    """Callers pass the same inputs: names, order and defaults are kept."""
    if pass_run.after is None or pass_run.before is None:
        return
    before, now = pass_run.before.inputs, inputs_of(pass_run.after)
    if now != before:
        shown = " instead of ".join(f"({', '.join(map(_parameter, inputs))})" for inputs in (now, before))
        remedy = "keep every placeholder with its name and default, also one that nothing uses any more"
        broken("signature", f"the program's inputs are {shown}", remedy=remedy)


def metadata_kept(pass_run: PassRun) -> None:
    """A node that stays, with its name, target and arguments, keeps its entries in ``meta`` and the user's line."""
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
                remedy="copy nodes by graph.node_copy, which copies them with what they know, and keep node.meta",
            )


def _parameter(written: tuple[str, str]) -> str:
    name, default = written
    return f"{name}={default}" if default else name


def _require_none(name: str, violation: Violation | None) -> None:
    if violation is not None:
        raise LawViolation.of(name, violation.error())

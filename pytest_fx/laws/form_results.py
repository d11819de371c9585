"""Laws about the results of passes in other forms: programs of ``torch.fx`` and ``torch.export``."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fx.capture.quiet_export import quiet_export
from pytest_fx.errors import LawViolation
from pytest_fx.forms import FormResult
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.laws.law import broken, said
from pytest_fx.laws.output_laws import contract
from pytest_fx.processes.pickled import unpickled


def form_well_formed(pass_run: PassRun) -> None:
    """The graph passes torch's own checks: ``graph.lint()``, and the verifier of an exported program."""
    result = pass_run.form_result
    if result is None or result.graph_module is None:
        return
    try:
        result.graph_module.graph.lint()
        if result.exported is not None:
            result.exported.validate()
    except Exception as error:
        remedy = "put nodes before those that use them, keep the output's arguments, and copy meta['val'] to new nodes"
        broken("form well formed", "torch's own check of the program fails", value=said(error), remedy=remedy)


def form_signature(pass_run: PassRun) -> None:
    """The program keeps the names and order of its inputs, and the structure of its inputs and outputs.

    Writes are not compared: before decomposition a program writes in place, and its signature lists no writes.
    """
    result, before = pass_run.form_result, pass_run.with_nothing_changed().form_result
    if result is None or before is None:
        return
    expected, now = _signature(before.exported or before.graph_module), _signature(result.exported or result.program)
    for what, value in expected.items():
        if now.get(what, value) != value:
            broken("form signature", f"the program has other {what}", value=f"{now[what]} instead of {value}")


def _signature(program: Any) -> dict[str, Any]:
    """Return the parts of a signature that callers rely on, each with its description as key."""
    if isinstance(program, ExportedProgram):
        signature, spec = program.graph_signature, program.call_spec
        return {
            "inputs": list(signature.user_inputs),
            "structure of the inputs": str(spec.in_spec),
            "structure of the outputs": str(spec.out_spec),
        }
    if isinstance(program, torch.fx.GraphModule):
        return {"inputs": [str(node.target) for node in program.graph.find_nodes(op="placeholder")]}
    return {}


def form_round_trips(pass_run: PassRun) -> None:
    """The program computes the same after a copy, and after pickling or, if exported, ``torch.export``'s own file.

    A round trip that fails without the pass need not succeed after it.
    """
    result, before = pass_run.form_result, pass_run.with_nothing_changed().form_result
    if result is None:
        return
    for how, trip in (_TRIPS if result.exported is None else _TRIPS_OF_EXPORTED).items():
        if before is not None and before is not result and not _succeeds(trip, before):
            pass_run.leave_out("form round trips", f"what torch makes without the pass cannot be {how} either")
        else:
            _require_same(pass_run, "form round trips", how, lambda trip=trip: trip(result))


def decomposes_again(pass_run: PassRun) -> None:
    """The exported program can be decomposed, and then computes the same."""
    result = pass_run.form_result
    if result is not None and result.exported is not None:
        exported = result.exported
        _require_same(pass_run, "decomposes again", "decomposed", lambda: exported.run_decompositions().module())


def _loaded(result: FormResult) -> nn.Module:
    file = io.BytesIO()
    assert result.exported is not None, "only an exported program is saved so"
    torch.export.save(result.exported, file)
    file.seek(0)
    return torch.export.load(file).module()


_COPIED = {"copied": lambda result: copy.deepcopy(result.program)}
_TRIPS: dict[str, Callable[[FormResult], Any]] = {**_COPIED, "pickled": lambda result: unpickled(result.program)}
_TRIPS_OF_EXPORTED: dict[str, Callable[[FormResult], Any]] = {**_COPIED, "saved and loaded": _loaded}


def _succeeds(trip: Callable[[FormResult], Any], result: FormResult) -> bool:
    try:
        with quiet_export():
            trip(result)
    except Exception:
        return False
    return True


def _require_same(pass_run: PassRun, law: str, how: str, make: Callable[[], Any]) -> None:
    """Report a program for which ``make`` raises, or returns a program that computes something else."""
    try:
        with quiet_export():
            program = make()
    except Exception as error:
        broken(law, f"the program cannot be {how}", value=said(error))
    again = PassRun.given(pass_run.subject, program, pass_run.contract, f"{pass_run.name}, {how},", 1)
    try:
        contract(again)
    except LawViolation as violation:
        try:
            contract(pass_run)
        except LawViolation:
            return  # its outputs were already wrong
        raise LawViolation.of(law, violation) from violation

"""The built-in suite of ``pytest --fx-model NAME``: tests of a model, and of each pass on it.

Not all of them apply to every model. The others are skipped with the reason (``pytest -rs`` shows it).
"""

from __future__ import annotations

import copy
import importlib
import sys
import uuid
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from fx import GraphModule, load, save
from fx.capture.quiet_export import without_trace_log
from fx.errors import CaptureError, FxError, TraceError, add_note
from fx.passes import Pass, exact, pass_name
from pytest_fx.checks.drawings import draw_capture, draw_pass
from pytest_fx.checks.equality_check import WITHOUT_LEAVES, EqualityCheck, require_inputs
from pytest_fx.checks.timing_check import TimingCheck
from pytest_fx.checks.training_mode import computes_otherwise, why_not_in_training
from pytest_fx.errors import first_line
from pytest_fx.forms import FormedPass
from pytest_fx.harness.capture import capture
from pytest_fx.harness.pass_run import changes
from pytest_fx.harness.run import Runner
from pytest_fx.harness.structure import describe
from pytest_fx.harness.subject import Subject
from pytest_fx.laws.law import broken
from pytest_fx.laws.repetition import first_difference
from pytest_fx.options import OPTIONS
from pytest_fx.processes.pickled import unpickled
from pytest_fx.report.recording import record_row
from pytest_fx.report.rows import WRONG, SummaryRow


def __tracebackhide__(raised: pytest.ExceptionInfo[BaseException]) -> bool:
    """Show the source of these tests only if one of their own assertions fails: other messages are complete."""
    return raised.errisinstance(FxError) or not raised.errisinstance(AssertionError)


REPORTED = pytest.StashKey[list[Any]]()
"""The parameters of ``fx_model`` for models that cannot be captured, which a test has reported."""


@pytest.fixture(autouse=True)
def fails_once(request: pytest.FixtureRequest, fx_model: Subject) -> None:
    """Fail one test, with the reason, for a model that cannot be captured, and skip its other tests."""
    if fx_model.capture_error is None or request.function is test_capture_is_well_formed:
        return
    case, reported = request.node.callspec.params["fx_model"], request.config.stash.setdefault(REPORTED, [])
    if case not in reported:
        reported.append(case)
        if not any(_captures(item, case) for item in request.session.items):  # the test of the capture is not selected
            raise fx_model.capture_error
    pytest.skip(f"{fx_model.name} cannot be captured: another of its tests says why")


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest, fx_model: Subject) -> Generator[None]:
    """Draw the capture after the test of the capture, and the pass after the test of its contract."""
    yield
    folder = request.config.stash[OPTIONS].draw
    if folder is None or fx_model.capture_error is not None:
        return
    target = request.config.invocation_params.dir / folder
    if request.function is test_capture_is_well_formed:
        draw_capture(fx_model, target)
    elif request.function is test_pass_keeps_its_contract:
        draw_pass(fx_model, request.getfixturevalue("fx_pass"), target)


def _captures(item: pytest.Item, case: Any) -> bool:
    """Return whether ``item`` is the test of the capture of a model."""
    is_capture = getattr(item, "function", None) is test_capture_is_well_formed
    return is_capture and cast("pytest.Function", item).callspec.params["fx_model"] == case


def test_capture_is_well_formed(request: pytest.FixtureRequest, fx_model: Subject) -> None:
    """The captured graph obeys the rules of the IR."""
    if fx_model.capture_error is not None:
        show_refusals(request, fx_model.capture_error)
        record_row(request.node, SummaryRow(fx_model.name, "capture", outcome="refuses"))
        raise fx_model.capture_error
    nodes, record = len(fx_model.captured.graph.nodes), fx_model.capture_record
    row = SummaryRow(
        fx_model.name,
        "capture",
        nodes_after=nodes,
        way=record.way,
        batch=record.batch,
        note=record.note,
        refusals=list(map(str, record.refusals)) or None,
        refusal_messages=[f"{refusal.way}: {refusal.message}" for refusal in record.refusals] or None,
    )
    record_row(request.node, row)
    fx_model.captured.graph.lint()


def test_capture_equals_eager(request: pytest.FixtureRequest, fx_model: Subject, fx_equal: EqualityCheck) -> None:
    """The captured program computes the same bits as the module, also in training mode if the factory returns that."""
    fx_equal(
        fx_model.captured,
        contract=exact,
        label="capture",
        input_sets=fx_model.input_set_count if fx_model.has_inputs else None,
    )
    model = fx_model.in_training
    if model is None or why_not_in_training(model) is not None or not computes_otherwise(fx_model, model):
        return
    equal = EqualityCheck(model, request.node)
    equal(model.captured, contract=exact, label="capture", input_sets=model.input_set_count)


def test_capture_without_leaf_modules_equals_eager(fx_model: Subject, fx_equal: EqualityCheck) -> None:
    """Captured through torch.nn, down to functions, the program still computes the same bits."""
    skip_unless_captured_without_leaves(fx_model)
    program = fx_model.capture(fx_model.shared_copy(), leaves=False)
    fx_equal(program, contract=exact, label=f"capture{WITHOUT_LEAVES}", input_sets=1)


def test_generated_code_can_be_captured_again(
    request: pytest.FixtureRequest, fx_model: Subject, fx_equal: EqualityCheck
) -> None:
    """The generated code is a program that captures to the same graph."""
    skip_if_exported(fx_model, "its code is not traced again")
    try:
        again = capture(fx_model.captured, tracing=fx_model.tracing)
    except TraceError:
        if fx_model.capture_record.way != "guided":
            raise
        # The example inputs guide this capture, too, and each answer is checked again: it has other checks.
        fx_equal(
            capture(fx_model.captured, fx_model.arguments(), guided=True), contract=exact, label="capture", input_sets=1
        )
        return
    if calls_in(again) != calls_in(fx_model.captured):
        require_code(request, fx_model, again, "captured from its own code", "retraceable")
        what = f"captured from its own code, the program of {fx_model.name} calls something else"
        capture_breaks(request, fx_model, "retraceable", what)
    fx_equal(again, contract=exact, label="capture", input_sets=1)


def test_code_is_deterministic(request: pytest.FixtureRequest, fx_model: Subject) -> None:
    """Two captures of the model are written as the same code."""
    skip_if_exported(fx_model, "that is done once in a session, and programs are copies")
    require_code(request, fx_model, fx_model.capture(fx_model.shared_copy()), "captured a second time", "deterministic")


def test_state_keeps_its_names(request: pytest.FixtureRequest, fx_model: Subject) -> None:
    """The program has the parameters and buffers of the model, under the model's names, and its own constants."""
    program = fx_model.captured
    state = {*fx_model.state_names, *program.graph.constants}
    unknown = [name for name in program.state_dict() if name not in state]
    if unknown:
        what = f"the program has entries that {fx_model.name} does not have"
        capture_breaks(request, fx_model, "state", what, value=", ".join(unknown))


def test_copy_equals_eager(request: pytest.FixtureRequest, fx_model: Subject, fx_equal: EqualityCheck) -> None:
    """A copy of the program computes the same bits, and has the same code."""
    program = copy.deepcopy(fx_model.captured)
    require_code(request, fx_model, program, "copied")
    fx_equal(program, contract=exact, label="capture", input_sets=1)


def test_pickle_equals_eager(request: pytest.FixtureRequest, fx_model: Subject, fx_equal: EqualityCheck) -> None:
    """An unpickled copy of the program computes the same bits, and has the same code."""
    try:
        program = unpickled(fx_model.captured)
    except Exception:
        skip_if_refused(lambda: unpickled(fx_model.fresh()), f"{fx_model.name} itself cannot be pickled")
        raise
    require_code(request, fx_model, program, "unpickled")
    fx_equal(program, contract=exact, label="capture", input_sets=1)


def test_saved_file_equals_eager(
    request: pytest.FixtureRequest, fx_model: Subject, fx_equal: EqualityCheck, tmp_path: Path
) -> None:
    """The program loaded from a data-only file computes the same bits, and has the same code."""
    skip_if_placed(fx_model, "a data-only file is loaded on one")
    path = tmp_path / "program.safetensors"
    skip_if_refused(lambda: save(fx_model.captured, path), "it holds what a data-only file cannot")
    program = load(path, device=fx_model.device)
    require_code(request, fx_model, program, "loaded")
    fx_equal(program, contract=exact, label="capture", input_sets=1)


def test_folder_equals_eager(fx_model: Subject, fx_equal: EqualityCheck, tmp_path: Path) -> None:
    """The package that is written from the program computes the same."""
    skip_if_placed(fx_model, "a package is loaded on one")
    name = f"fx_{uuid.uuid4().hex}"
    skip_if_refused(
        lambda: fx_model.captured.to_folder(tmp_path / name, "Program"), "it cannot be written as a package"
    )
    with import_path(tmp_path):
        program = importlib.import_module(name).Program()
    for path, module in fx_model.captured.named_modules():
        program.get_submodule(path).training = module.training
    fx_equal(program.to(fx_model.device), label="capture", input_sets=1)


def test_torchscript_equals_eager(fx_model: Subject, fx_equal: EqualityCheck) -> None:
    """Compiled by TorchScript, if TorchScript accepts it, the program computes the same."""
    scripted = skip_if_refused(lambda: script(fx_model.captured), "TorchScript does not take it")
    skip_unless_run(fx_model, scripted, script, "TorchScript")
    fx_equal(scripted, label="capture", input_sets=1)


def test_torch_compile_equals_eager(fx_model: Subject, fx_equal: EqualityCheck) -> None:
    """Captured once more by torch.compile, which runs its capture unchanged here, the program computes the same."""
    if any(str(node.target) == "scan" for node in fx_model.captured.graph.nodes if node.op == "call_function"):
        pytest.skip("torch.compile takes a torch.scan of functions, and of programs of torch.fx, only")
    program = compiled(fx_model.captured)
    with without_trace_log():
        skip_unless_run(fx_model, program, compiled, "torch.compile")
        fx_equal(program, label="capture", input_sets=1)


def test_pass_keeps_its_contract(fx_pass: Pass, fx_equal: EqualityCheck) -> None:
    """The pass keeps its contract and those laws of :mod:`pytest_fx.laws` that a model of this size can afford."""
    fx_equal(fx_pass)


def test_pass_without_leaf_modules_keeps_its_contract(
    fx_model: Subject, fx_pass: Pass, fx_equal: EqualityCheck
) -> None:
    """The same holds for the pass on the program in functions only; a failure is reported only if it is a new one."""
    if isinstance(fx_pass, FormedPass):
        pytest.skip(f"{pass_name(fx_pass)} is given {fx_pass.form.takes}, which has no leaf modules anyway")
    skip_unless_captured_without_leaves(fx_model)
    skip_unless_changed(fx_model, fx_pass, leaves=False)
    fx_equal(fx_pass, leaves=False, input_sets=1, unless_reported=True)


def test_pass_timing(fx_model: Subject, fx_pass: Pass, fx_timing: TimingCheck) -> None:
    """The transformed program is timed beside eager. No time is too long: the table shows it."""
    skip_unless_changed(fx_model, fx_pass)
    fx_timing(fx_pass)


def require_code(
    request: pytest.FixtureRequest, model: Subject, program: GraphModule, how: str, law: str = "round trips"
) -> None:
    """Raise the violation of ``law`` unless ``program`` has the code of the capture; no ``assert``, because of -O."""
    if program.code != model.captured.code:
        difference = "\n         ".join(first_difference(model.captured.code, program.code))
        capture_breaks(request, model, law, f"{how}, the program of {model.name} has other code", value=difference)


def capture_breaks(
    request: pytest.FixtureRequest, model: Subject, law: str, what: str, value: str | None = None
) -> None:
    """Raise the violation of ``law`` by a captured program, and record it in the program's row."""
    record_row(request.node, SummaryRow(model.name, "capture", outcome=f"{WRONG}: {law}"))
    broken(law, what, value=value)


def calls_in(program: GraphModule) -> list[tuple[str, Any]]:
    """Return the nodes of a program that compute something, in order, after its inputs and attributes.

    In code, inputs come first, even if checks are between them in the graph. An attribute that ``forward`` fetches at
    two places has a node at each in one capture, and a single node in the next.
    """
    nodes = [(node.op, node.target) for node in program.graph.nodes]
    attributes = sorted({node for node in nodes if node[0] == "get_attr"})
    inputs = [node for node in nodes if node[0] == "placeholder"]
    return [*inputs, *attributes, *(node for node in nodes if node[0] not in ("placeholder", "get_attr"))]


def skip_unless_changed(model: Subject, pass_: Pass, *, leaves: bool = True) -> None:
    """Skip the test if the pass changes nothing in the model."""
    if not changes(model, pass_, leaves=leaves):
        pytest.skip(f"{pass_name(pass_)} finds nothing to change in {model.name}")


def skip_if_refused(act: Callable[[], Any], what: str) -> Any:
    """Return the result of ``act``, or skip the test with the first line of its exception."""
    try:
        return act()
    except Exception as error:
        pytest.skip(f"{what}: {first_line(error)}")


def skip_unless_run(model: Subject, program: nn.Module, make: Callable[[nn.Module], Any], compiler: str) -> None:
    """Skip the test if ``program`` fails or returns another structure, and the model after ``make`` does, too.

    A failure of ``program`` is its own only if the model itself fares better.
    """
    wanted = describe(require_inputs(model).eager().output)
    run = model.runner(program)(model.arguments(), model.dtype)
    if run.error is None and describe(run.output) == wanted:
        return
    not_run = f"{compiler} does not run {model.name} itself"
    itself = Runner(skip_if_refused(lambda: make(model.fresh()), not_run))(model.arguments(), model.dtype)
    if itself.error is not None:
        pytest.skip(f"{not_run}: {first_line(itself.error)}")
    if (actual := describe(itself.output)) != wanted:
        pytest.skip(f"{not_run} as it is: it returns {actual} instead of {wanted}")


def script(program: nn.Module) -> Any:
    """Return ``program`` as TorchScript; its deprecation is not tested here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(program)


def compiled(program: nn.Module) -> Any:
    """Return ``program`` behind torch.compile, without a compiler, and forget earlier compilations."""
    torch.compiler.reset()
    return torch.compile(program, backend="eager", fullgraph=True, dynamic=False)


@contextmanager
def import_path(folder: Path) -> Generator[None]:
    """Let modules be imported from ``folder`` inside the block."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def show_refusals(request: pytest.FixtureRequest, error: Exception) -> None:
    """Add the full refusal of each way of capture to the report of a verbose run; the message has them shortened."""
    if isinstance(error, CaptureError) and request.config.get_verbosity() > 0:
        for refusal in error.refusals:
            request.node.add_report_section("call", f"{refusal.way} in full", refusal.message)


def skip_if_exported(model: Subject, why: str) -> None:
    """Skip a test of symbolic tracing for a model that is captured by ``torch.export``."""
    if model.is_exported:
        pytest.skip(f"{model.name} is captured by torch.export: {why}")


def skip_if_placed(model: Subject, why: str) -> None:
    """Skip a test that would move a model whose parts the user has put on several devices."""
    if model.is_placed:
        pytest.skip(f"the parts of {model.name} are on several devices: {why}")


def skip_unless_captured_without_leaves(model: Subject) -> None:
    """Skip the test if the model cannot be captured in functions only, which is no fault of the model.

    A model of the zoo declares this (``needs_leaves``). If it does not, the fault is of the capture.
    """
    skip_if_exported(model, "its program has no modules to trace through, only operators")
    try:
        model.capture(model.shared_copy(), leaves=False)
    except TraceError as error:
        if model.inlines:
            add_note(error, f"{model.name} does not say needs_leaves, so it can be captured without leaf modules")
            raise
        pytest.skip(f"a module of torch.nn in it branches on values: {str(error).splitlines()[0]}")

"""After an interrupt by a signal at any moment of a capture, the next capture is as if nothing had happened."""

from __future__ import annotations

import copy
import dis
import linecache
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from selection import thorough_except
from torch import nn

import fx
from fx.capture import patching, real_tensors, tracer
from fx.capture.restore import record
from fx.modules.gradients import without_gradients


class Interrupted(BaseException):
    """The exception that a handler of signals raises."""


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None
        self.register_buffer("seen", torch.zeros(1))
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        self.seen.copy_(x.sum().reshape(1))
        self.last = self.linear(x)
        return self.last * self.seen + torch.relu(self.seen) + math.ceil(x.shape[0] / 2)


@pytest.mark.thorough
def test_nothing_is_left_of_exceptions_at_random_moments() -> None:
    """``make interrupts`` raises forty times as many."""
    program = Path(__file__).with_name("interrupted.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(program), "--attempts=100"], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert " 0 survivors" in run.stdout
    interrupted = int(run.stdout.split(" interrupted")[0].split()[-1])
    assert interrupted > 25


FILES = {module.__file__ for module in (patching, tracer, real_tensors, record)}
EVERY_STEP = "FX_EVERY_STEP" in os.environ
"""Whether a capture is interrupted at each of its steps, which ``make interrupts`` asks for, or at a tenth of them."""


def raising_at(left: list[int]) -> Callable[..., Any]:
    """A trace function that raises after so many steps of the code that captures, and again so many later."""

    def in_file(frame: Any, event: str, argument: Any) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Python itself raises nothing where a block of a lock ends: the lock would stay locked
        if event == "line" and left and line != "with _lock:":
            left[0] -= 1
            if left[0] == 0:
                del left[0]
                if not left:
                    sys.settrace(None)
                raise Interrupted
        return in_file

    return lambda frame, event, argument: in_file if frame.f_code.co_filename in FILES else None


@pytest.fixture
def settrace() -> Iterator[None]:
    before = sys.gettrace()
    yield
    sys.settrace(before)


def interrupted_twice(model: nn.Module, *steps: int) -> bool:
    """Return whether a capture was interrupted."""
    return interrupted_after(model, list(steps))


def interrupted_after(model: nn.Module, left: list[int]) -> bool:
    """Return whether a capture was interrupted; ``left`` are the steps to go."""
    sys.settrace(raising_at(left))
    try:
        fx.symbolic_trace(model)
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def steps_to_interrupt(model: nn.Module) -> list[int]:
    """All steps of a capture; or the first and last, which change and restore most, and some between."""
    counts: list[int] = []
    for _ in range(3):  # one of them may have had a cache to fill, or to clear
        remaining = [1_000_000]
        assert not interrupted_after(model, remaining)
        counts.append(1_000_000 - remaining[0])
    count = min(counts)
    assert count > 300
    if EVERY_STEP:
        return [*range(1, count + 1)]
    # strides that no loop's number of lines divides, so that each of its lines is among them
    return [*range(1, 60, 3), *range(60, count - 100, 6 * (count // 360) + 1), *range(count - 100, count + 1, 3)]


@pytest.mark.parametrize("then", thorough_except([4], [1, 4, 1_000_000]))
def test_a_capture_that_is_interrupted_twice_while_it_ends_leaves_nothing_to_the_next(
    then: int, settrace: None
) -> None:
    model = Writing()
    x = torch.ones(3, 2)
    methods = vars(nn.Module)["__call__"], vars(nn.Module)["__getattr__"]
    functions = dict(vars(math))
    code, expected = fx.symbolic_trace(model).code, model(x)
    steps = steps_to_interrupt(model)
    interrupted = 0
    for step in steps:
        interrupted += interrupted_twice(model, step, then)  # a capture has fewer steps where caches have been filled
        # the remaining steps do nothing
        assert not fx.is_fx_tracing()
        model.last = None
        assert torch.equal(model(x), expected)
        # the next capture puts it right
        assert fx.symbolic_trace(model).code == code
        assert (vars(nn.Module)["__call__"], vars(nn.Module)["__getattr__"]) == methods
        assert vars(math) == functions
        assert not torch._C._len_torch_function_stack()
        assert patching.are_patches_restored() and not patching._replacements and not record._unrestored
    assert interrupted > len(steps) / 2


def test_a_traced_value_that_is_left_in_a_module_is_taken_out_and_the_rest_stays() -> None:
    model = Writing()
    state = record.Record([model])
    state.keep_until_restored(ended := patching.Trace(None, lambda trace: None))  # type: ignore[arg-type]
    model.last = fx.Proxy(fx.Graph().placeholder("x"))
    model.name = "assigned since"
    assert not ended.is_running()
    fx.symbolic_trace(lambda x: x)
    assert model.last is None
    assert model.name == "assigned since"


def test_a_trace_in_another_thread_continues_after_an_interrupt_here(settrace: None) -> None:
    started, go_on = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            started.set()
            assert go_on.wait(60)
            return self.linear(x) + math.ceil(x.shape[0] / 2)

    codes: list[Any] = []

    def capture() -> None:
        try:
            codes.append(fx.symbolic_trace(Waiting()).code)
        except Exception as error:
            codes.append(error)
        started.set()

    thread = threading.Thread(target=capture)
    thread.start()
    assert started.wait(60) and not codes
    replaced = vars(nn.Module)["__call__"]
    for step in range(1, 400, 23):
        interrupted_twice(Writing(), step, 2)
        assert vars(nn.Module)["__call__"] is replaced
    sys.settrace(None)
    go_on.set()
    thread.join(60)
    started.set()
    assert codes == [fx.symbolic_trace(Waiting()).code]
    assert vars(nn.Module)["__call__"] is not replaced


def test_a_stop_iteration_of_the_traced_code_comes_through() -> None:
    def program(x: Any) -> Any:
        return next(iter(()))

    with pytest.raises(StopIteration):
        fx.symbolic_trace(program)


def test_gradients_are_on_again_after_any_interrupt_while_off() -> None:
    repeating = False

    def interrupt(*_: Any) -> None:
        if repeating:
            raise Interrupted
        signal.setitimer(signal.ITIMER_REAL, 1e-4)

    def repeat(function: Callable[..., Any], *args: Any) -> None:
        nonlocal repeating
        repeating = True
        try:
            while True:
                function(*args)
        finally:
            repeating = False

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in range(1, 400):
            signal.setitimer(signal.ITIMER_REAL, 1e-3 + delay * 1e-7)
            with pytest.raises(Interrupted):
                repeat(without_gradients, torch.is_grad_enabled)
            assert torch.is_grad_enabled()
    finally:
        signal.signal(signal.SIGALRM, before)


class Normalized(nn.Module):
    """Has buffers, and something to fold."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.weight = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return self.norm(x) + (self.weight * 2 + 1)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("work", [copy.deepcopy, fx.passes.FoldConstants()], ids=["copy", "fold"])
def test_an_interrupt_at_the_end_of_an_autograd_mode_restores_the_modes(
    work: Callable[[Any], Any], mode: Any, settrace: None
) -> None:
    program = fx.symbolic_trace(Normalized())

    def interrupt(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_name == "__exit__" and frame.f_code.co_filename.endswith("grad_mode.py"):
            sys.settrace(None)
            raise Interrupted

    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        sys.settrace(interrupt)
        try:
            work(program)
        except Interrupted as interrupted:
            error = interrupted  # with its traceback, as a report keeps it
            assert error.__traceback__ is not None
        finally:
            sys.settrace(None)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


@pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions set up handlers, and no table of ranges")
def test_no_jump_back_to_a_loop_is_outside_of_the_block_that_holds_the_lock() -> None:
    """Python looks for signals there, and leaves some of these out of the blocks that they are written in."""
    methods = [value for value in vars(patching.Trace).values() if isinstance(value, FunctionType)]
    functions = [*methods, *(value for value in vars(patching).values() if isinstance(value, FunctionType))]
    holding = [function.__code__ for function in functions if "_lock" in function.__code__.co_names]
    assert {code.co_name for code in holding} >= {"replace_all", "_run", "restore_patches"}
    for code in holding:
        blocks = [(entry.start, entry.end) for entry in dis.Bytecode(code).exception_entries]  # type: ignore[attr-defined]
        first, last = min(start for start, _ in blocks), max(end for _, end in blocks)
        jumps = [step.offset for step in dis.get_instructions(code) if step.opname == "JUMP_BACKWARD"]
        outside = [at for at in jumps if first <= at < last and not any(start <= at < end for start, end in blocks)]
        assert not outside, code.co_name

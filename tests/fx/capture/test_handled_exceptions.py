"""Handled exceptions of the traced code: refused if the capture causes them, reported if a run does."""

from __future__ import annotations

import contextlib
import functools
import sys

import pytest
import torch
from torch import nn

import fx
from fx.errors import GuardError, TraceError


def counted(x):
    try:
        return x * len(range(x.shape[0]))
    except TypeError:
        return x * 7


def test_an_exception_that_a_traced_value_causes_is_refused_though_the_program_handles_it() -> None:
    with pytest.raises(TraceError, match="cannot use a traced value as an integer") as raised:
        fx.symbolic_trace(counted)
    assert "in counted:  return x * len(range(x.shape[0]))" in str(raised.value)
    assert sys.gettrace() is None


def test_a_type_error_of_a_python_function_on_a_traced_value_is_refused_too() -> None:
    def joined(x):
        try:
            return x * len("".join([x.shape[0]]))
        except TypeError:
            return x

    with pytest.raises(TraceError, match=r"expected str instance, \w*Proxy found"):
        fx.symbolic_trace(joined)


def test_methods_of_classes_that_handle_the_exception_are_inspected() -> None:
    class Steps:
        def of(self, x):
            with contextlib.suppress(TypeError):
                return list(range(x.shape[0]))
            return [7]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = Steps()

        def forward(self, x):
            return x * len(self.steps.of(x))

    with pytest.raises(TraceError, match="cannot use a traced value as an integer"):
        fx.symbolic_trace(Model())


def careful(function):
    @functools.wraps(function)
    def inner(*args):
        try:
            return function(*args)
        except TypeError:
            return args[-1] * 7

    return inner


def counts(x):
    return x * len(range(x.shape[0]))


careful_counts = careful(counts)
TABLE = {"counted": counted}
PARTIAL = functools.partial(counted)


class Careful(nn.Module):
    @careful
    def forward(self, x):
        return counts(x)


@pytest.mark.parametrize(
    "program",
    [careful_counts, lambda x: careful_counts(x), lambda x: TABLE["counted"](x), lambda x: PARTIAL(x), Careful()],
    ids=["the decorator of the program", "a decorator", "a function in a dict", "a partial", "a method"],
)
def test_every_kind_of_handler_is_recognized(program) -> None:
    with pytest.raises(TraceError, match="cannot use a traced value as an integer"):
        fx.symbolic_trace(program)


class Counting(nn.Module):
    def forward(self, x):
        return counted(torch.relu(x) + 1)


class Around(nn.Module):
    """Calls functions, operators and methods before, and a leaf, so that watching has been left and taken up again."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.inner = nn.ReLU(), nn.Sequential(nn.Sequential(Counting()))

    def forward(self, x):
        try:
            return self.inner(torch.neg(self.leaf(x) * 2).abs())
        except ValueError:
            return x


def test_exceptions_are_watched_in_modules_within_modules_too() -> None:
    with pytest.raises(TraceError, match="cannot use a traced value as an integer") as raised:
        fx.symbolic_trace(Around())
    assert "in counted:" in str(raised.value)
    assert sys.gettrace() is None


def test_exceptions_of_the_programs_own_that_it_handles_are_its_affair() -> None:
    table = {"a": 2}

    def looked_up(x):
        try:
            scale = table["b"]
        except KeyError:
            scale = table["a"]
        return x * scale

    assert fx.symbolic_trace(looked_up)(torch.ones(1)).item() == 2


def viewed(x):
    try:
        return x.view(3, 5)
    except RuntimeError:
        return x * 7


def test_an_operation_that_raises_a_handled_exception_is_refused_when_it_runs() -> None:
    program = fx.symbolic_trace(viewed)
    assert program(torch.ones(15)).shape == (3, 5)
    with pytest.raises(GuardError) as raised:
        program(torch.ones(12))
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("the program was captured where this raised nothing: ")
    assert lines[0].endswith("in viewed:  return x.view(3, 5)")
    assert lines[1:] == [
        "  value  RuntimeError: shape '[3, 5]' is invalid for input of size 12",
        "  why    the traced code continues where this is handled (RuntimeError), and a graph cannot",
        "  try    test a condition instead of handling the exception, or put the lines in a function marked fx.wrap",
    ]
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_an_interpreter_and_a_loaded_program_refuse_it_too(tmp_path) -> None:
    program = fx.symbolic_trace(viewed)
    fx.save(program, tmp_path / "viewed.fx")
    for run in (fx.Interpreter(program).run, fx.load(tmp_path / "viewed.fx")):
        with pytest.raises(GuardError, match=r"this raised nothing: .*in viewed"):
            run(torch.ones(12))


def test_handlers_around_the_call_of_a_function_count() -> None:
    def folded(x):
        return x.view(3, 5)

    def outer(x):
        with contextlib.suppress(ValueError):
            fx.symbolic_trace(counted)
        return x

    with pytest.raises(TraceError, match="cannot use a traced value as an integer") as raised:
        fx.symbolic_trace(outer)
    assert "in counted:" in str(raised.value)
    assert sys.gettrace() is None


def test_a_debugger_started_by_the_program_stays_on_after_its_capture() -> None:
    def debugger(frame, event, argument):
        return None

    def program(x):
        with contextlib.suppress(ValueError):
            sys.settrace(debugger)
        return x + 1

    before = sys.gettrace()
    try:
        fx.symbolic_trace(program)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    "handler",
    ["except (ValueError, RuntimeError)", "except RuntimeError as error", "except", "with quiet", "with Quiet()",
     "with contextlib.suppress(RuntimeError)", "finally"],
)  # fmt: skip
def test_handlers_are_known_without_source(handler: str) -> None:
    way = "try:" if "with" not in handler else f"{handler}:"
    behind = f"    {handler}:\n        " if "with" not in handler else "    if True:\n        "
    end = "return x * 3" if handler != "finally" else "x = x * 3"
    namespace = {"contextlib": contextlib, "Quiet": Quiet, "quiet": Quiet()}
    exec(f"def program(x):\n    {way}\n        return x.view(3, 5)\n{behind}{end}\n    return x", namespace)
    captured = fx.symbolic_trace(namespace["program"])
    with pytest.raises(RuntimeError if handler == "finally" else GuardError, match=r"invalid for input|raised nothing"):
        captured(torch.ones(2))


class Quiet:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> bool:
        return True

"""Functions that handle exceptions are distinguished from ones that only leave a block; the handled kinds are read."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fx.bytecode.values import handled_at, handling, swallowed_by


def in_modes(call: Callable[[], object]) -> None:
    with torch.no_grad(), contextlib.nullcontext(), torch.autocast("cpu"):
        call()


def repeated(values: list[int]) -> Iterator[int]:
    for value in values:
        yield value + 1


def caught(call: Callable[[], object]) -> None:
    with contextlib.nullcontext():
        try:
            call()
        except (KeyError, queue.Empty, OSError):
            return


def caught_all(call: Callable[[], object]) -> None:
    try:
        call()
    except:  # noqa: E722 - what it is about
        return


def suppressed(call: Callable[[], object]) -> None:
    with contextlib.suppress(ValueError, TypeError):
        call()


def raised_again(call: Callable[[], object]) -> None:
    try:
        call()
    except ValueError:
        raise
    finally:
        pass


def enclosing(call: Callable[[], object]) -> Callable[[], None]:
    def inner() -> None:
        try:
            call()
        except ValueError:
            return

    return inner


def raised_perhaps(call: Callable[[], object]) -> None:
    try:
        call()
    except ValueError as error:
        if not error.args:
            return
        raise


@pytest.mark.parametrize("function", [in_modes, repeated, raised_again])
def test_blocks_generators_and_reraised_exceptions_handle_nothing(function: Callable[..., object]) -> None:
    assert not handling(function)


@pytest.mark.parametrize("function", [caught, caught_all, suppressed, raised_perhaps])
def test_functions_with_except_or_suppress_handle_something(function: Callable[..., object]) -> None:
    assert handling(function) == [function.__code__]


def test_a_function_that_returns_from_a_finally_handles_all(tmp_path: Path) -> None:
    file = tmp_path / "left.py"
    file.write_text("def left(call):\n    try:\n        call()\n    finally:\n        return\n")
    namespace: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.14 warns of it
        exec(compile(file.read_text(), str(file), "exec"), namespace)
    assert handling(namespace["left"])


def test_a_function_that_is_written_in_another_handles_for_itself() -> None:
    assert [code.co_name for code in handling(enclosing)] == ["inner"]


@pytest.mark.parametrize(
    "function, names",
    [
        (caught, ("KeyError", "Empty", "OSError")),
        (caught_all, ("BaseException",)),
        (suppressed, ("ValueError", "TypeError")),
        (raised_again, ()),
    ],
)
def test_handlers_around_a_line_are_read_from_its_byte_code(
    function: Callable[..., object], names: tuple[str, ...]
) -> None:
    results: list[tuple[str, ...]] = []
    function(lambda: results.append(handled_at(sys._getframe(1))))
    assert results == [names]


class Quiet:
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        return True


class Raising(Quiet):
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        return False


class Silent(Quiet):
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        self.kind = kind


class Asking(Quiet):
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        return kind is ValueError


@contextlib.contextmanager
def quietly() -> Generator[None]:
    with contextlib.suppress(ValueError):
        yield


@contextlib.contextmanager
def loudly() -> Generator[None]:
    try:
        yield
    finally:
        pass


@pytest.mark.parametrize(
    "manager, names",
    [
        (Quiet, ("BaseException",)),
        (Quiet(), ("BaseException",)),
        (Asking, ("BaseException",)),
        (quietly, ("BaseException",)),
        (contextlib.suppress, ()),
        (contextlib.suppress(ValueError), ("BaseException",)),
        *(
            (manager, None)
            for manager in (Raising, Silent, loudly, contextlib.nullcontext, torch.no_grad, torch.autocast)
        ),
    ],
)
def test_exceptions_swallowed_by_a_context_manager_are_read_from_its_return_value(manager: Any, names: Any) -> None:
    assert swallowed_by(manager) == names


@pytest.mark.parametrize("manager", [open, threading.Lock(), lambda: Quiet(), 1])
def test_exceptions_swallowed_by_other_context_managers_are_unknown(manager: Any) -> None:
    with pytest.raises(LookupError):
        swallowed_by(manager)


def test_functions_with_a_context_manager_that_may_swallow_are_found() -> None:
    def inner() -> None:
        with Quiet():
            pass

    def other() -> None:
        with Raising(), loudly():
            print(Quiet)

    def by_attribute(held: Any) -> None:
        with held.quiet:
            pass

    def given(manager: Any) -> None:
        with manager:
            pass

    assert [bool(handling(handler)) for handler in (inner, other, by_attribute, given)] == [True, False, True, True]


def test_a_context_manager_handles_the_exceptions_it_swallows_around_a_line() -> None:
    results: list[tuple[str, ...]] = []

    def note() -> None:
        results.append(handled_at(sys._getframe(1)))

    ignoring = contextlib.suppress
    with Quiet():
        note()
    with Raising(), ignoring(KeyError, ValueError):
        note()
    note()
    assert results == [("BaseException",), ("KeyError", "ValueError"), ()]

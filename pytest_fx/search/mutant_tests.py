"""The user's tests on mutants of a pass: which mutants they notice.

The tests run in a fresh process, which has no state of the search, and there in a fork for each mutant.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from fx.errors import FxError
from pytest_fx.loading import load_pass
from pytest_fx.named_objects import import_from
from pytest_fx.processes.child import Channel, Child, ChildEnded, Limits, unavailable
from pytest_fx.search.mutants import Mutant, mutants_of

LEAST_SECONDS = 30.0
"""The least limit of seconds for the tests on one mutant."""
SLOWDOWN = 5.0
"""The same limit in multiples of the time that the tests take on the pass itself."""
_PASSED = bytes([pytest.ExitCode.OK])


def unnoticed_by(
    tests: Sequence[str],
    name: str,
    mutants: Sequence[Mutant],
    folder: Path,
    on_mutant: Callable[[int, int], object] = lambda number, count: None,
) -> list[Mutant]:
    """Return the mutants with which the user's tests pass; tests that end their process or hang do not pass.

    Args:
        tests: files, folders and single tests, as arguments of pytest.
        name: the name of the pass, as ``load_pass`` takes it.
        mutants: mutants of that pass.
        folder: the folder in which pytest is started.
        on_mutant: called before each mutant with its number and the number of all.

    Raises:
        FxError: the tests fail with the pass itself, or there are none, or child processes are impossible.
    """
    if (why := unavailable()) is not None:
        raise FxError("mutants cannot be tried on tests on this system", why=why, remedy="leave out the paths of tests")
    request = json.dumps([name, list(tests), [str(mutant) for mutant in mutants]])
    command = [sys.executable, "-m", __spec__.name, request]
    unnoticed: list[Mutant] = []
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, mutant in enumerate([None, *mutants]):
            on_mutant(number, len(mutants))
            passed = process.stdout.readline().strip()
            if passed not in ("passed", "failed"):
                raise FxError("the tests could not be run on mutants", why=passed or "their process has ended")
            if mutant is None and passed == "failed":
                process.kill()
                raise FxError(f"the tests do not pass with {name} itself", remedy=f"see pytest {' '.join(tests)}")
            if mutant is not None and passed == "passed":
                unnoticed.append(mutant)
    return unnoticed


def _answers(name: str, tests: Sequence[str], mutants: Sequence[str]) -> Iterator[bool]:
    """Yield whether the tests pass, first with the pass itself and then with each mutant, given as text."""
    every = {str(mutant): mutant for mutant in mutants_of(load_pass(name))}
    seconds = None
    for text in (None, *mutants):
        started = time.monotonic()
        yield _pass(tests, None if text is None else every[text], Limits(seconds))
        seconds = seconds or max(LEAST_SECONDS, SLOWDOWN * (time.monotonic() - started))


def _pass(tests: Sequence[str], mutant: Mutant | None, limits: Limits) -> bool:
    """Return whether the tests pass with a mutant, or with the pass itself for None."""

    def run(channel: Channel) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        in_one_process = ["-n0"] if importlib.util.find_spec("xdist") else []  # workers would have no mutant
        with nullcontext() if mutant is None else mutant.installed():
            options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "fx_mutate="]
            channel.send(bytes([pytest.main([*options, *in_one_process, *tests], [_WithoutMutants()])]))

    try:
        with Child(run) as child:
            return child.receive(limits) == _PASSED
    except ChildEnded:
        return False


class _WithoutMutants:
    """A plugin for the inner run, in which ``--fx-mutate`` of ``addopts`` would start another one."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Drop the option."""
        config.option.fx_mutate = None


if __name__ == "__main__":
    import_from(Path.cwd())
    for answer in _answers(*json.loads(sys.argv[1])):
        sys.stdout.write("passed\n" if answer else "failed\n")
        sys.stdout.flush()

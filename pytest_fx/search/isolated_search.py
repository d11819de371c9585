"""A search in a child process, for passes that end their process, hang in native code or take all memory.

The child searches, and announces each program before the pass is applied to it. So the program on which it ended is
known. That program is made smaller, each try in a child of its own, and is a counterexample like any other.
"""

from __future__ import annotations

import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from fx.arguments import expect, shown
from fx.errors import FxError, add_note
from pytest_fx.errors import LawViolation
from pytest_fx.harness.pass_run import leave_alone
from pytest_fx.processes.child import Channel, Child, ChildEnded, Ending, Limits, raised, unavailable
from pytest_fx.search.check_report import Counts
from pytest_fx.search.counterexample import describe
from pytest_fx.search.nearness import running
from pytest_fx.search.reduction import reduced
from pytest_fx.search.search import SHORT, SHRINKING, Search

LONGEST = 60.0
"""The default limit of seconds for one program, with all checks on it."""
_MOST_SKIPPED = 3
"""The most programs that may end the process without the pass before the search is given up."""


def isolation_limits(isolate: bool, timeout: float | None, memory: int | None) -> Limits | None:
    """Return the limits that ``check_pass`` was asked for, None for no child process.

    Raises :class:`~fx.errors.FxError` for limits without a child process, for invalid ones, and if none is possible.
    """
    expect(isolate, bool, "isolate= is True or False", error=FxError)
    for name, limit in (("timeout", timeout), ("memory", memory)):
        if limit is not None and not isolate:
            raise FxError(f"{name}= is a limit of a child process, and there is none", remedy="give isolate=True, too")
        if limit is not None and (not isinstance(limit, Real) or not 0 < limit < 2**63):
            raise FxError(f"{name}={shown(limit)} is not a limit", remedy="give a number above 0")
    if not isolate:
        return None
    if (why := unavailable()) is not None:
        raise FxError("isolate=True is not for this system", why=why, remedy="leave it out")
    return Limits(LONGEST if timeout is None else timeout, memory)


def judge_isolated(judge: Callable[[], list[LawViolation]], name: str, limits: Limits) -> list[LawViolation]:
    """Return the findings of ``judge`` in a child process, or a violation if the pass called ``name`` ended it."""
    try:
        with Child(partial(answer_by, judge)) as child:
            return received_from(child, limits)[1]
    except ChildEnded as ended:
        return [_violation(name, ended.ending)]


def search_isolated(
    find: Callable[[], LawViolation | None], search: Search, limits: Limits, folder: Path, *, shrink: bool
) -> LawViolation | None:
    """Return the finding of ``find`` in a child process, and take over the counts of ``search`` from there.

    A program on which the child ends is the counterexample, unless it ends the child without the pass: then the search
    starts again without it. With ``shrink`` the program is made smaller. ``folder`` is for its test.
    """

    def announcing(channel: Channel) -> None:
        """Search, in the child."""
        search.announce = lambda program, mode: send_to(channel, "trying", program.source, mode, search.progress)
        search.on_program = lambda number, count: send_to(channel, "at", number, count)
        answer_by(lambda: (find(), search.progress), channel)

    skipped = 0
    while True:
        source = mode = ""
        try:
            with Child(announcing) as child:
                while (message := received_from(child, limits))[0] != "done":
                    if message[0] == "at":
                        search.on_program(*message[1:])
                        continue
                    _, source, mode, progress = message
                    search.resume(progress)
                violation, progress = message[1]
                search.resume(progress)
                return violation
        except ChildEnded as ended:
            ending = ended.ending
        if not mode:
            raise ending.error(f"the search for programs for {search.name}")
        search.counts = search.counts.plus(programs=1)  # it was announced before it was tried
        crash = Crash(search, ending, limits, source, mode)
        if crash.needs_the_pass():
            if shrink and source:
                crash.shrink()
            return crash.explained(folder)
        skipped += 1
        if skipped > _MOST_SKIPPED:
            raise ending.error("a random program, without the pass,", source)
        search.skip(source, mode)
        search.counts = Counts(programs=skipped, unjudged=skipped)  # the others are tried again


class Crash:
    """A program on which a pass has ended the process."""

    def __init__(self, search: Search, ending: Ending, limits: Limits, source: str, mode: str) -> None:
        self.ending = ending
        self.source = source
        self._search = search
        self._limits = limits
        self.mode = mode
        self._is_repeated = True

    def needs_the_pass(self) -> bool:
        """Return whether the process goes on if the pass does nothing."""
        return not self.source or self._ending(self.source, self.mode, leave_alone) is None

    def shrink(self) -> None:
        """Make the program smaller while the process ends in the same way, in evaluation mode if it ends so there."""
        if self.ending.kind == "time":  # each try takes the whole limit
            seconds = min(self._limits.seconds or LONGEST, 3 * SHORT)
            self._limits = Limits(seconds, self._limits.memory)
        self._is_repeated = self._shows(self.source, self.mode)
        if self._is_repeated:
            if self.mode != "eval":
                self._shows(self.source, "eval")
            self._search.on_program(self._search.counts.programs, None)
            reduced(self.source, lambda text: self._shows(text, self.mode), SHRINKING)

    def explained(self, folder: Path) -> LawViolation:
        """Return the violation, with the program."""
        violation, search = _violation(self._search.name, self.ending), self._search
        details = [search.tried]
        if not self.source:
            details.append("on a program that has no text, such as a whole model of models=")
        if not self._is_repeated:
            details.append("it was not made smaller: tried once more, it did not end in this way")
        program = running(self.source, self.mode) if self.source else None
        if program is not None:
            details.append(describe(search.untouched(program, self.mode), violation, folder, isolate=True))
        return violation.with_details("\n".join(details))

    def _shows(self, text: str, mode: str) -> bool:
        """Return whether the process ends in the same way on another program; if so, take that program."""
        ending = self._ending(text, mode, None)
        if ending is None or ending.kind != self.ending.kind:
            return False
        self.ending, self.source, self.mode = ending, text, mode
        return True

    def _ending(self, text: str, mode: str, pass_: Any) -> Ending | None:
        """Return the ending of the process when a pass is judged on a program, if it ends."""
        runs = False
        try:
            with Child(lambda channel: self._judge(channel, text, mode, pass_)) as child:
                while (kind := received_from(child, self._limits)[0]) == "runs":
                    runs = True
        except ChildEnded as ended:
            return ended.ending if runs or pass_ is not None else None
        assert kind == "done", kind
        return None

    def _judge(self, channel: Channel, text: str, mode: str, pass_: Any) -> None:
        def judge() -> None:
            program = running(text, mode)
            if program is not None:
                send_to(channel, "runs")
                self._search.judge(program, mode, pass_)

        answer_by(judge, channel)


def answer_by(work: Callable[[], Any], channel: Channel) -> None:
    """Send the result or the exception of ``work``."""
    torch.set_num_threads(1)  # further threads are not in a forked process, and waiting for them would hang
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in the search: warnings of programs do not matter
            answer = work()
    except Exception as error:
        send_to(channel, "raised", _sendable(error))
    except BaseException as error:
        send_to(channel, "ended", type(error).__name__)
    else:
        sys.stdout.flush()
        send_to(channel, "done", answer)


def _sendable(error: Exception) -> Exception:
    """Return the error, or a similar one if it cannot be sent; a note says where it was raised."""
    formatted = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = FxError(f"{type(error).__name__}: {error}")
    add_note(error, f"in the child process:\n{formatted}")
    return error


def send_to(channel: Channel, *message: Any) -> None:
    """Send a message to the parent; its first part is its kind."""
    channel.send(pickle.dumps(message))


def received_from(child: Child, limits: Limits) -> Any:
    """Return the next message, whose first part is its kind. Raises the exceptions of the child."""
    message = pickle.loads(child.receive(limits))
    if message[0] == "raised":
        raise message[1]
    if message[0] == "ended":
        raise ChildEnded(raised(message[1]))
    return message


def _violation(name: str, ending: Ending) -> LawViolation:
    law = "terminates" if ending.kind == "time" else "process untouched"
    why = "a child process had applied it, or ran the program that it made; in the process of pytest, all would be lost"
    return LawViolation(
        law, f"{name} {ending.cause}", where=ending.where, why=why, remedy=ending.remedy, kind=ending.kind
    )

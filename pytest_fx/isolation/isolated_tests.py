"""Tests in a child process (``--fx-isolate``), replaced when a test ends it. Imports no torch.

All tests of a run share one child as long as it lives: fixtures of modules and of the session are set up once, and a
model is captured once. The parent runs no tests, so it never starts threads that a fork would lose.
"""

from __future__ import annotations

import builtins
import json
import sys
import time
import warnings
from collections.abc import Generator, Iterable
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_fx import lines
from pytest_fx.collection import subject_of
from pytest_fx.fixtures import BROKEN
from pytest_fx.lazy import load
from pytest_fx.options import OPTIONS, options_of
from pytest_fx.parallel.distribution import leave_turns
from pytest_fx.processes.child import Channel, Child, ChildEnded, Ending, Limits, raised, unavailable
from pytest_fx.records.running import REPORT, time_limit
from pytest_fx.report.progress import PROGRESS, Progress, progress_of

_START = Limits(seconds=60.0)
"""The time for a child to start, and to end in order."""
_INTERRUPTED = Limits(seconds=5.0)
"""The time for a child to end an interrupted test."""


def require_isolation(config: pytest.Config) -> None:
    """Raise :class:`pytest.UsageError` if tests cannot run in a child process."""
    options = config.stash[OPTIONS]
    if options.memory_limit is not None and not options.isolate:
        raise pytest.UsageError("--fx-memory-limit needs --fx-isolate: the memory of pytest itself is not limited")
    if not options.isolate:
        return
    if (why := unavailable()) is not None:
        raise pytest.UsageError(f"--fx-isolate is not for this system: {why}\n  try    --fx-timeout alone")
    if config.getoption("usepdb", False) or config.getoption("trace", False):
        raise pytest.UsageError("--fx-isolate and --pdb exclude each other: a child process has no terminal")
    if config.getoption("fx_tables") is not None:
        raise pytest.UsageError("--fx-isolate and --fx-tables exclude each other: measure in a run of its own")


class IsolatedRun:
    """Runs each test in the child; the part in the child reports its results to the parent."""

    def __init__(self, config: pytest.Config, fixtures: Iterable[str]) -> None:
        """``fixtures`` are the names of those whose tests have a time limit."""
        self._config = config
        self._fixtures = frozenset(fixtures)
        self._child: Child | None = None
        self._channel: Channel | None = None
        self._positions: dict[str, int] = {}
        self._runs = False

    # The parent.

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test in the child; in the child, run it."""
        if self._channel is not None:
            runtestprotocol(item, log=False, nextitem=nextitem)  # the parent logs, once
            return True
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            self._delegate(item, nextitem)
        except pytest.exit.Exception:
            raise
        except KeyboardInterrupt:
            self._interrupt()
            raise
        except BaseException:  # of a plugin that limits time
            self._end()
            raise
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Let the child tear down its fixtures, and end it."""
        if self._child is not None:
            try:
                self._child.send(_written("end"))
                while json.loads(self._child.receive(_START))[0] != "done":
                    pass  # warnings that come too late for the summary
            except ChildEnded:
                pass
            finally:
                self._end()

    def _delegate(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Send the test to the child, and pass its reports on."""
        reports = _ChildReports(item)
        limits = Limits(time_limit(item, self._fixtures), options_of(item).memory_limit)
        try:
            child = self._living(item.session)
            until = float("inf") if limits.seconds is None else time.monotonic() + limits.seconds
            child.send(_written("run", self._position(item), self._position(nextitem)))
            while not reports.done:
                reports.take(*json.loads(child.receive(limits, until)))
            if reports.exit is not None:
                pytest.exit(*reports.exit)
        except ChildEnded as ended:
            self._end()
            reports.report_end(ended.ending)
        except pytest.fail.Exception as failed:  # of pytest-timeout, whose alarm rings in both processes
            self._end()
            reports.report_failure(str(failed))

    def _interrupt(self) -> None:
        """Interrupt the test in the child, too, so that its fixtures can be torn down."""
        try:
            if self._child is not None:
                self._child.interrupt()
                while json.loads(self._child.receive(_INTERRUPTED))[0] != "done":
                    pass
        except ChildEnded:
            self._end()

    def _living(self, session: pytest.Session) -> Child:
        """Return the child, a new one if there is none."""
        if self._child is None:
            self._positions = {item.nodeid: position for position, item in enumerate(session.items)}
            factory = getattr(self._config, "_tmp_path_factory", None)
            if factory is not None:
                factory.getbasetemp()  # one folder for the run, which the parent removes
            capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
            if capture is not None:
                capture.read_global_capture()  # earlier output belongs to no test
            self._child = Child(lambda channel: self._serve(session, channel))
            try:
                self._child.receive(_START)
            except ChildEnded as ended:
                raise pytest.UsageError(
                    f"--fx-isolate: a child process {ended.ending.cause} when it computed for the first time\n"
                    "  why    something computed with several threads while tests were collected; they are not forked\n"
                    "  try    OMP_NUM_THREADS=1, or compute in a fixture instead of at import"
                ) from None
        return self._child

    def _position(self, item: pytest.Item | None) -> int | None:
        return None if item is None else self._positions[item.nodeid]

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    # The child.

    def _serve(self, session: pytest.Session, channel: Channel) -> None:
        """Run the tests that the parent names until there are no more."""
        self._channel = channel
        config = self._config
        config.stash[REPORT] = self._report
        if PROGRESS in config.stash:
            config.stash[PROGRESS] = Progress(lambda test, what: self._report("progress", what))
        leave_turns(config)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        for plugin in list(config.pluginmanager.get_plugins()):
            reports_itself = plugin is reporter or isinstance(plugin, Progress)
            if reports_itself or hasattr(plugin, "sendevent"):  # pytest-xdist's would report as the parent
                config.pluginmanager.unregister(plugin)
        _require_threads()
        self._report("ready")
        while True:
            command, *positions = json.loads(channel.receive())
            if command == "end":
                session._setupstate.teardown_exact(None)
                self._report("done")
                return
            item, nextitem = (None if place is None else session.items[place] for place in positions)
            assert item is not None, "the parent names a test"
            try:
                config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            except pytest.exit.Exception as exit_:
                self._report("exit", exit_.msg, exit_.returncode)
            except BaseException as error:
                self._report("raised", type(error).__name__)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self._report("done")

    def _report(self, *message: Any) -> None:
        assert self._channel is not None, "asked of the parent"
        self._channel.send(_written(*message))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Report the start and end of making a model: an end of the process there is no fault of a pass."""
        if self._channel is None or fixturedef.argname != "fx_model":
            return (yield)
        self._report("making", True)
        try:
            return (yield)
        finally:
            self._report("making", False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """Record that the test runs: reports in the meantime belong to its subtests."""
        self._runs = True
        try:
            return (yield)
        finally:
            self._runs = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Send each report at once, so that none is lost if the process ends later."""
        report = yield
        if not self._runs:
            self._send(report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send the report of a subtest, which logs it itself."""
        if self._runs:
            self._send(report)

    def _send(self, report: pytest.TestReport) -> None:
        if self._channel is not None:
            config = self._config
            config.hook.pytest_report_teststatus(report=report, config=config)  # fails a test for its subtests
            self._report("report", config.hook.pytest_report_to_serializable(config=config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Send each warning."""
        if self._channel is not None:
            category = warning_message.category
            names = category.__module__, category.__qualname__
            place = warning_message.filename, warning_message.lineno
            self._report("warning", str(warning_message.message), names, place, when, nodeid, location)


class _ChildReports:
    """The reports of the child on one test so far."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._progress = progress_of(item.config)
        self._last: str | None = None
        self._records: list[Any] = []
        self._doing: str | None = None
        self._making = False
        self._started = time.time()
        self.done = False
        self.exit: list[Any] | None = None
        """The arguments of ``pytest.exit``, if it was called."""

    def take(self, kind: str, *values: Any) -> None:
        """Take one message."""
        item, hook = self._item, self._item.config.hook
        match kind:
            case "report":
                report = hook.pytest_report_from_serializable(config=item.config, data=_with_tuples(values[0]))
                if values[0].get("_report_type") != "SubTestReport":  # it comes before the end of the call
                    self._last = report.when
                self._log(report)
            case "progress":
                self._progress.doing(values[0])
            case "record":
                self._records.append(values[0])
                load("pytest_fx.report.recording").keep(item.config, item.nodeid, values[0])
            case "doing":
                self._doing = values[0]
            case "making":
                self._making = values[0]
            case "warning":
                _warn_again(hook, *values)
            case "exit":
                self.exit = list(values)
            case "raised":
                raise ChildEnded(raised(*values))
            case _:
                assert kind == "done", kind
                self.done = True

    def report_end(self, ending: Ending) -> None:
        """Report that the child ended during the test."""
        item = self._item
        who = self._doing or subject_of(item)
        if self._making:
            case = item.callspec.params["fx_model"]  # type: ignore[attr-defined]
            # each of its tests would end another child
            item.config.stash.setdefault(BROKEN, []).append((case, "cannot be made"))
            who = f"the model {getattr(case, 'label', case)}"
        error = ending.error(who)
        text = f"{type(error).__module__}.{type(error).__name__}: {error}"
        self.report_failure(lines.fit(text, lines.terminal_width()))

    def report_failure(self, text: str) -> None:
        """Report that the test failed in its current phase, with its output and its measurements so far."""
        item, when = self._item, {None: "setup", "setup": "call"}.get(self._last, "teardown")
        capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
        written = ("", "") if capture is None else capture.read_global_capture()
        names = f"Captured stdout {when}", f"Captured stderr {when}"
        report = pytest.TestReport(
            item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed", text, when,  # type: ignore[arg-type]
            sections=[(name, part) for name, part in zip(names, written, strict=True) if part],
            duration=time.time() - self._started, start=self._started, stop=time.time(),
            user_properties=[("fx", record) for record in self._records],
        )  # fmt: skip
        self._log(report)
        if when != "teardown":  # plugins that count tests count teardowns
            self._log(pytest.TestReport(item.nodeid, item.location, report.keywords, "passed", None, "teardown"))

    def _log(self, report: pytest.TestReport) -> None:
        """Log a report; pytest writes it on the line of the progress display."""
        self._item.ihook.pytest_runtest_logreport(report=report)


def _written(*message: Any) -> bytes:
    return json.dumps(message, default=str).encode()


def _with_tuples(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report as pytest made it, with tuples that JSON has turned into lists."""
    for name in ("longrepr", "location"):
        if isinstance(report[name], list):
            report[name] = tuple(report[name])
    return report | {name: [tuple(pair) for pair in report[name]] for name in ("sections", "user_properties")}


def _warn_again(
    hook: Any, text: str, names: list[str], place: list[Any], when: str, nodeid: str, location: list[Any] | None
) -> None:
    category = getattr(sys.modules.get(names[0], builtins), names[1], UserWarning)
    message = warnings.WarningMessage(text, category, *place)
    location_ = None if location is None else tuple(location)
    hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": location_}
    )


def _require_threads() -> None:
    """Compute with several threads if tests will; in a process that has lost some threads, this hangs."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.ones(2**17).exp_()

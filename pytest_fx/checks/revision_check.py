"""A pass beside the same pass at the base of ``--fx-against``: both judged, and timed by turns."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import pytest

from fx.errors import add_note
from fx.passes import Pass
from pytest_fx.checks.equality_check import EqualityCheck
from pytest_fx.checks.timing_check import TimingCheck
from pytest_fx.collection import id_of_pass_on_model, label_of
from pytest_fx.errors import RevisionError, first_line
from pytest_fx.harness.pass_run import changes
from pytest_fx.harness.subject import Subject
from pytest_fx.loading import default_passes, load_pass, modules_in
from pytest_fx.named_objects import is_path
from pytest_fx.option_table import TABLE
from pytest_fx.options import OPTIONS
from pytest_fx.records.running import announce
from pytest_fx.report.recording import record_row
from pytest_fx.report.rows import NOT_JUDGED, PROPERTY, SummaryRow, at_base, collect_rows
from pytest_fx.revisions.base_code import LoadedCode, Place, find_base, here
from pytest_fx.revisions.served_run import ServedRun, ServedVerdict
from pytest_fx.revisions.serving import defining_modules, file_of

_SENT = (
    *("model", "pass", "device", "dtype", "batch", "mode", "threads", "contract", "rtol", "atol", "error-factor"),
    *("detect", "capture", "form", "leaf", "tracer", "size", "seed"),
)
"""Options that decide what is judged, and how."""


class RevisionPair:
    """The head, which is the code of this process, and the base of ``--fx-against``: a process for each."""

    def __init__(self, config: pytest.Config, stack: ExitStack) -> None:
        """Start nothing yet; ``stack`` ends the processes, and removes the checkout."""
        options = config.stash[OPTIONS]
        assert options.against is not None
        self.name = options.against
        """The base, as the user typed it."""
        self._config, self._stack = config, stack
        self._folder = config.invocation_params.dir
        self._base = find_base(options.against, self._folder)
        self._error: RevisionError | None = None
        self.verdicts: dict[str, ServedVerdict] = {}
        """The base's results so far, by the id of the parameters of a pass on a model."""

    @property
    def base(self) -> ServedRun:
        """The process of the base. If it cannot run, one test fails with the reason, and others are skipped."""
        __tracebackhide__ = True
        if self._error is not None:
            pytest.skip(f"{self.name} cannot be run: another test says why")
        try:
            return self._started[1]
        except RevisionError as error:
            self._error = error
            raise

    @cached_property
    def _started(self) -> tuple[Place, ServedRun]:
        options = self._config.stash[OPTIONS]
        announce(self._config, f"the processes of {self._base}")
        models = [name.partition(":")[0] for name in options.models if is_path(name)]
        named = [module for name in options.passes if isinstance(name, str) for module in modules_in(name)]
        place = self._stack.enter_context(self._base.place(self._folder, [*models, *named, *self._defining_modules()]))
        return place, self._stack.enter_context(ServedRun(str(self._base), place, arguments_of(self._config)))

    @cached_property
    def head(self) -> ServedRun:
        """The process of the head."""
        return self._stack.enter_context(ServedRun("this code", here(self._folder), arguments_of(self._config)))

    def require_other_code(self, loaded: LoadedCode | None) -> None:
        """Raise :class:`RevisionError` if the base has loaded the code of the head."""
        __tracebackhide__ = True
        if loaded is None:
            return
        own = [file for module in self._defining_modules() if (file := file_of(module)) is not None]
        try:
            self._base.require_other_code(self._started[0], loaded, own)
        except RevisionError as error:
            self._error = error
            raise

    def judge(self, item: str) -> ServedVerdict:
        """Return the base's result for a pass on a model, which is judged once."""
        __tracebackhide__ = True
        if item not in self.verdicts:
            verdict = self.base.judge(item)
            self.require_other_code(verdict.loaded)
            self.verdicts[item] = verdict
        return self.verdicts[item]

    def _defining_modules(self) -> Iterator[str]:
        for name in self._config.stash[OPTIONS].passes or default_passes():
            yield from defining_modules(load_pass(name))


@contextmanager
def revision_pair_of(config: pytest.Config) -> Generator[RevisionPair]:
    """Yield the pair of a run; its processes and its checkout are gone afterwards."""
    with ExitStack() as stack:
        yield RevisionPair(config, stack)


def arguments_of(config: pytest.Config) -> list[str]:
    """Return the command line of pytest for a process of a revision: the run's models, passes and how it judges."""
    options, arguments = config.stash[OPTIONS], ["-o", "addopts=", "-p", "no:cacheprovider"]
    for plugin in config.getoption("plugins") or ():
        arguments += ["-p", str(plugin)]
    if config.getoption("inifilename"):
        arguments += ["-c", str(config.getoption("inifilename"))]
    for option in TABLE:
        value = getattr(options, option.name)
        if option.flag not in _SENT or value == option.default:
            continue
        several = value if option.repeatable else [",".join(map(str, value)) if isinstance(value, tuple) else value]
        arguments += [f"--fx-{option.flag}={each}" for each in several]
    return [*arguments, *(["--fx-inference"] if options.inference else [])]


def require_no_new_fault(
    pair: RevisionPair, item: pytest.Item, subject: Subject, pass_: Pass, equal: EqualityCheck
) -> None:
    """Judge a pass at the base and here, and record rows of both.

    The test fails if the pass is wrong here and was not there. A pass that is wrong at both is an expected failure.
    """
    __tracebackhide__ = True
    label = label_of(item, pass_)
    verdict = _base_verdict(pair, item, subject, label)
    for row in _rows_of(verdict):
        record_row(item, replace(row, program=at_base(row.program, pair.name)))
    try:
        equal(pass_)
    except Exception as error:
        if verdict.outcome == "failed":
            pytest.xfail(f"{label} fails on {subject.name} at {pair.name}, too: {first_line(error)}")
        note = "it is right" if verdict.outcome == "passed" else f"it is skipped: {verdict.text}"
        add_note(error, f"  base   at {pair.base.name} {note}")
        raise


def time_beside_base(pair: RevisionPair, item: pytest.Item, subject: Subject, pass_: Pass, timing: TimingCheck) -> None:
    """Time a pass and the same pass at the base by turns, unless one of them is wrong, or neither changes anything.

    Raises what :meth:`~pytest_fx.checks.timing_check.TimingCheck.against` raises.
    """
    __tracebackhide__ = True
    timing.skip_unless_timed()
    label, item_id = label_of(item, pass_), id_of_pass_on_model(item)
    if (law := subject.wrong.get(label)) is not None:
        pytest.skip(f"{label} breaks the law {law!r} on {subject.name}, and is not timed")
    verdict = _base_verdict(pair, item, subject, label)
    if verdict.outcome != "passed":
        pytest.skip(f"{label} is not right on {subject.name} at {pair.name}, and is not timed")
    if not changes(subject, pass_) and not any(row.changed for row in _rows_of(verdict)):
        pytest.skip(f"{label} changes nothing in {subject.name}, neither here nor at {pair.name}")
    with pair.base.timed(item_id, timing.threads) as base, pair.head.timed(item_id, timing.threads) as head:
        timing.against(base, head, pair.name, label)


def _base_verdict(pair: RevisionPair, item: pytest.Item, subject: Subject, label: str) -> ServedVerdict:
    """Return the base's result, or skip the test if the base does not have the pass."""
    __tracebackhide__ = True
    item_id = id_of_pass_on_model(item)
    if item_id not in pair.base.items:
        why = f"{NOT_JUDGED}: it does not exist there"
        record_row(item, SummaryRow(subject.name, at_base(label, pair.name), outcome=why))
        pytest.skip(f"{pair.name} has no {label}")
    return pair.judge(item_id)


def _rows_of(verdict: ServedVerdict) -> list[SummaryRow]:
    """Return the rows that the test of the base recorded; an older plugin may lack some fields, or have others."""
    names = {field.name for field in fields(SummaryRow)}
    properties: list[Any] = []
    for record in verdict.records:
        row = {name: value for name, value in record["row"].items() if name in names}
        properties.append((PROPERTY, {**record, "row": row, "timing": None}))
    report = SimpleNamespace(when="call", user_properties=properties, failed=verdict.outcome == "failed")
    return collect_rows([report])

"""What is known of one program of one model, from the records of its tests, and the verdict on it in a word."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pytest_fx.options import TOO_NOISY
from pytest_fx.records.baseline import Change

if TYPE_CHECKING:
    from pytest_fx.timing.paired import PairedTiming

PROPERTY = "fx"
"""The user property that carries a record on a test's report: a dict whose ``"row"`` is a :class:`SummaryRow`."""
FAILURE = "fx-failure"
"""The user property that carries what is known of a failure, for reports."""
RIGHT, WRONG, REFUSED, NOT_JUDGED = "right", "wrong", "refused", "not judged"
RIGHT_WITH_WAIVER = "right, with a waiver"
"""The verdicts on a program."""
CHANGES_NOTHING = "changes nothing"
"""That on a pass which found nothing to change."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """What is known of one program of one model. A part that no test has found out yet is None."""

    model: str
    """The model's name."""
    program: str
    """The pass, or what else made the program."""
    way: str | None = None
    """How the model was captured: ``"symbolic"``, ``"guided"`` or ``"export"``."""
    batch: str | None = None
    """Of an exported one: ``"free"``, or why it takes one number of samples only."""
    note: str | None = None
    """What was changed in the model to export it, if anything."""
    refusals: Sequence[str] | None = None
    """Why the ways that were tried before refused it, a line each."""
    refusal_messages: Sequence[str] | None = None
    """The same in full."""
    form: str | None = None
    """The form in which the pass was given the model (see ``pytest_fx.forms``)."""
    nodes_before: int | None = None
    """Nodes of the captured graph."""
    nodes_after: int | None = None
    """Nodes of the program's graph."""
    edits: int | None = None
    """Edits that the pass made, where it says which it makes."""
    changed: bool | None = None
    """Whether the pass changed anything."""
    outcome: str | None = None
    """What came of it where that is not a right program: ``"raises …"``, ``"refuses"``, ``"takes too long"``,
    ``"wrong: …"`` with the law that it breaks, ``"fails"``, or ``"not judged: …"`` with the reason."""
    reason: str | None = None
    """The reason for a wrong verdict in a line: law, distance and first wrong node, if these are known."""
    kept: bool | None = None
    """Whether it was held to its contract and to the laws, and keeps them."""
    less: str | None = None
    """How it changes less than in the run that is compared with, in a sentence, if it does."""
    dtype: str | None = None
    """The working dtype."""
    float64_error: float | None = None
    """Largest error in float64."""
    error: float | None = None
    """Largest error in the working dtype, against eager in float64."""
    eager_error: float | None = None
    """Largest error of eager itself in the working dtype, against eager in float64."""
    allowed_error: float | None = None
    """What the element with the largest error may be off in the working dtype, under a contract that limits that."""
    waiver: str | None = None
    """Why a difference beyond the contract is not held against the program, in words."""
    not_asked: Mapping[str, str] | None = None
    """The reason for each law that it was not held to."""
    detects: float | None = None
    """Detection limit: the smallest relative change of all outputs that would have broken the contract."""
    detects_largest: float | None = None
    """The same of the largest element alone."""
    detects_median: float | None = None
    """The same of an element of median size alone."""
    is_coarse: bool | None = None
    """Whether a change of all outputs by a thousandth would not have been caught, where the contract asks for more."""
    eager_seconds: float | None = None
    """Median time of an eager call."""
    seconds: float | None = None
    """Median time of a call of the program."""
    speedup: float | None = None
    """Median of the ratios of paired calls, eager over transformed."""
    speedup_low: float | None = None
    """Lower end of the ratio's 95 % interval."""
    speedup_high: float | None = None
    """Upper end of the ratio's 95 % interval."""
    verdict: str | None = None
    """What the interval says in words."""
    pairs: int | None = None
    """Pairs of calls, where they were added until they decided."""
    is_open: bool | None = None
    """Whether they did not within the time that there was."""
    noisy: bool | None = None
    """Whether the interval is too wide for the ratio to mean anything."""
    outliers: float | None = None
    """Share of pairs far outside of the quartiles."""
    noise: float | None = None
    """Median deviation of the ratios, relative to their median."""
    processors: float | None = None
    """Part of the time in which the calls had a processor, where that was not all of it: the machine was loaded."""
    contents_repeat: bool | None = None
    """Whether calls were given contents that earlier ones had, as there were no others: a cache would be fast."""
    eager_estimated: float | None = None
    """Seconds that an eager call was estimated to take, from its kernels measured one by one."""
    estimated: float | None = None
    """The same of the program."""
    eager_host_seconds: float | None = None
    """On a GPU, median time until an eager call has launched its work."""
    host_seconds: float | None = None
    """On a GPU, median time until a call of the program has launched its work."""
    kernels: str | None = None
    """The kernels of its layers on 8-bit integers, each with the number of layers that used it."""
    eager_peak_memory: int | None = None
    """Bytes that an eager call holds at a time."""
    peak_memory: int | None = None
    """Bytes that a call of the program holds at a time."""
    baseline_speedup: float | None = None
    """The speed-up in the run that is compared with."""
    measured_elsewhere: str | None = None
    """The host of the run that is compared with, where it was another one, so that nothing is compared."""
    slowdown: float | None = None
    """Share by which the program takes longer, relative to eager, than in the run that is compared with."""
    slowdown_low: float | None = None
    """Lower end of its 95 % interval."""
    slowdown_high: float | None = None
    """Upper end of its 95 % interval."""
    change_verdict: str | None = None
    """What that interval says in words."""

    def with_detection(self, limits: tuple[float, float, float], *, is_coarse: bool) -> SummaryRow:
        """Return the row with the smallest changes that would have been caught."""
        everywhere, largest, median = limits
        return replace(self, detects=everywhere, detects_largest=largest, detects_median=median, is_coarse=is_coarse)

    def with_timing(self, timing: PairedTiming) -> SummaryRow:
        """Return the row with what a timing found."""
        low, high = timing.interval
        return replace(
            self,
            eager_seconds=statistics.median(timing.eager),
            seconds=statistics.median(timing.transformed),
            speedup=timing.speedup,
            speedup_low=low,
            speedup_high=high,
            verdict=timing.verdict,
            pairs=len(timing.eager) if timing.looks > 1 else None,
            is_open=timing.is_open or None,
            noisy=timing.noisy,
            outliers=timing.outliers,
            noise=timing.noise,
            processors=timing.processors if timing.loaded else None,
            contents_repeat=timing.contents_repeat or None,
            eager_host_seconds=statistics.median(timing.eager_host) if timing.eager_host else None,
            host_seconds=statistics.median(timing.transformed_host) if timing.transformed_host else None,
        )

    def with_kernels(self, used: Mapping[str, int]) -> SummaryRow:
        """Return the row with the kernels that were used, and by how many layers each."""
        return replace(self, kernels=", ".join(f"{name} ({count})" for name, count in used.items()) or None)

    def with_change(self, change: Change, limit: float | None = None) -> SummaryRow:
        """Return the row with how its speed-up compares with that of an earlier run, where ``limit`` is allowed."""
        low, high = change.interval
        return replace(
            self,
            baseline_speedup=change.before.speedup,
            slowdown=change.slowdown,
            slowdown_low=low,
            slowdown_high=high,
            change_verdict=TOO_NOISY if change.too_noisy(limit) else change.verdict,
        )

    def nodes(self, arrow: str = " -> ") -> str:
        """Return the nodes before and after, as far as they are known."""
        return arrow.join(str(count) for count in (self.nodes_before, self.nodes_after) if count is not None)

    def merged(self, other: SummaryRow) -> SummaryRow:
        """Return the row with the parts that ``other`` knows in place of its own."""
        known = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in known.items() if value is not None})


def records_on(report: Any) -> list[dict[str, Any]]:
    """Return what the test of ``report`` recorded, in order; only the report of its call has it."""
    if getattr(report, "when", None) != "call":
        return []
    return [value for name, value in getattr(report, "user_properties", ()) if name == PROPERTY]


def verdict_of(row: SummaryRow) -> str:
    """Return the verdict on a program: one of the words above.

    It is right only if it was held to its contract and to the laws, and every test of it kept them. It is right with a
    waiver if a difference beyond the contract was forgiven.

    >>> verdict_of(SummaryRow("resnet50", "fuse-conv-bn", changed=True, kept=True))
    'right'
    >>> verdict_of(SummaryRow("resnet50", "fuse-conv-bn", changed=True, outcome="wrong: contract"))
    'wrong'
    >>> verdict_of(SummaryRow("resnet50", "capture", nodes_after=177))
    'not judged'
    """
    outcome = (row.outcome or "").partition(":")[0]
    if outcome in ("refuses", NOT_JUDGED):
        return REFUSED if outcome == "refuses" else NOT_JUDGED
    if outcome:
        return WRONG
    if row.changed is False:
        return CHANGES_NOTHING
    if not row.kept:
        return NOT_JUDGED
    return RIGHT_WITH_WAIVER if row.waiver else RIGHT


def merge_rows(rows: Iterable[SummaryRow]) -> list[SummaryRow]:
    """Return one row for each program of each model, in the order of first appearance."""
    merged: dict[tuple[str, str], SummaryRow] = {}
    for row in rows:
        key = (row.model, row.program)
        merged[key] = merged[key].merged(row) if key in merged else row
    return list(merged.values())


def collect_rows(reports: Iterable[Any]) -> list[SummaryRow]:
    """Return the rows on the reports, one for each program of each model.

    A test that failed before it could say what came of a program leaves the program with the outcome ``"fails"``.
    """
    return merge_rows(row for report in reports for row in _rows_on(report))


def _rows_on(report: Any) -> list[SummaryRow]:
    records = records_on(report)
    rows = [SummaryRow(**record["row"]) for record in records]
    if not getattr(report, "failed", False):
        return rows
    timed = {record["row"]["program"] for record in records if record["timing"] is not None}
    judged = timed | {row.program for row in rows if row.kept or row.outcome or row.changed is False}
    return [row if row.program in judged else replace(row, outcome="fails") for row in rows]

"""Results for one program of one model, from the records of its tests, and the verdict on the program."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pytest_fx.options import TOO_NOISY
from pytest_fx.records.baseline import Change

if TYPE_CHECKING:
    from pytest_fx.harness.metrics import MetricDrop
    from pytest_fx.timing.paired import PairedTiming

PROPERTY = "fx"
"""The user property that carries a record on a test's report: a dict whose ``"row"`` is a :class:`SummaryRow`."""
FAILURE = "fx-failure"
"""The user property that carries the facts on a failure, for reports."""
RIGHT, WRONG, REFUSED, NOT_JUDGED = "right", "wrong", "refused", "not judged"
RIGHT_WITH_WAIVER = "right, with a waiver"
"""The verdicts on a program."""
CHANGES_NOTHING = "changes nothing"
"""The verdict on a pass that found nothing to change."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """Results for one program of one model; a field that no test has recorded yet is None."""

    model: str
    """The model's name."""
    program: str
    """The name of the pass, or of the other source of the program."""
    way: str | None = None
    """The way of capture: ``"symbolic"``, ``"guided"`` or ``"export"``."""
    batch: str | None = None
    """For an exported model: ``"free"``, or the reason why it takes one batch size only."""
    note: str | None = None
    """The change that was made to the model during capture, if any."""
    refusals: Sequence[str] | None = None
    """The reasons why earlier ways of capture failed, one line each."""
    refusal_messages: Sequence[str] | None = None
    """The full messages of these failures."""
    form: str | None = None
    """The form of the model that the pass received (see ``pytest_fx.forms``)."""
    nodes_before: int | None = None
    """Nodes of the captured graph."""
    nodes_after: int | None = None
    """Nodes of the program's graph."""
    kept_bytes: int | None = None
    """The bytes that the program keeps between forward and backward, parameters and inputs aside."""
    kept_bytes_before: int | None = None
    """The same without the pass."""
    edits: int | None = None
    """Number of edits of the pass, if it reports them."""
    changed: bool | None = None
    """Whether the pass changed anything."""
    choice: str | None = None
    """The backend that ``lower{backend=auto}`` chose, and the times of all that it tried, in a line."""
    outcome: str | None = None
    """The outcome, unless the program is right: ``"raises …"``, ``"refuses"``, ``"takes too long"``, ``"fails"``,
    ``"wrong: …"`` with the broken law, or ``"not judged: …"`` with the reason."""
    reason: str | None = None
    """The reason for a wrong verdict in a line: law, distance and first wrong node, if these are known."""
    kept: bool | None = None
    """Whether its contract and the laws were checked, and hold."""
    less: str | None = None
    """A sentence if the pass changes less than in the baseline."""
    unmatched: str | None = None
    """Of a pass whose patterns match nothing: the nearest place, and the first condition that failed there."""
    dtype: str | None = None
    """The working dtype."""
    float64_error: float | None = None
    """Largest error in float64."""
    error: float | None = None
    """Largest error in the working dtype, against eager in float64."""
    eager_error: float | None = None
    """Largest error of eager itself in the working dtype, against eager in float64."""
    allowed_error: float | None = None
    """Permitted error of the element with the largest error in the working dtype, if the contract limits it."""
    waiver: str | None = None
    """The reason why a difference beyond the contract is accepted."""
    not_asked: Mapping[str, str] | None = None
    """The reason for each law that was not checked."""
    metric: str | None = None
    """The name of the metric on labelled data that decides."""
    reference_metric: float | None = None
    """The metric of the model."""
    program_metric: float | None = None
    """The metric of the program."""
    metric_drop: float | None = None
    """The loss of quality, in units of the metric."""
    metric_drop_low: float | None = None
    """Lower end of the 95 % interval of the drop over samples."""
    metric_drop_high: float | None = None
    """Upper end of this interval."""
    max_drop: float | None = None
    """The largest allowed drop."""
    samples: int | None = None
    """Number of labelled samples."""
    samples_changed: int | None = None
    """Number of samples whose prediction changed."""
    changed_samples: Sequence[int] | None = None
    """The numbers of the first of these samples."""
    metric_sentence: str | None = None
    """The result of the metric in words."""
    training: str | None = None
    """The result of training steps in words: the largest error of a parameter or loss, and the allowed one."""
    detects: float | None = None
    """Detection limit: the smallest relative change of all outputs that would have broken the contract."""
    detects_largest: float | None = None
    """Detection limit for a change of the largest element alone."""
    detects_median: float | None = None
    """Detection limit for a change of an element of median size alone."""
    is_coarse: bool | None = None
    """Whether a change of all outputs by a thousandth would be missed, although the contract requires more."""
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
    """The verdict on the speed, from this interval."""
    pairs: int | None = None
    """Number of pairs of calls, if pairs were added until the interval decided."""
    is_open: bool | None = None
    """Whether the interval was still undecided when the time ran out."""
    noisy: bool | None = None
    """Whether the interval is too wide for the ratio to mean anything."""
    outliers: float | None = None
    """Share of pairs far outside of the quartiles."""
    noise: float | None = None
    """Median deviation of the ratios, relative to their median."""
    processors: float | None = None
    """Share of the time in which the calls had a processor, if the machine was loaded."""
    contents_repeat: bool | None = None
    """Whether input contents were repeated for lack of others, so that a cache of results would look fast."""
    eager_estimated: float | None = None
    """Estimated seconds of an eager call, from its kernels measured one by one."""
    estimated: float | None = None
    """Estimated seconds of a call of the program."""
    eager_host_seconds: float | None = None
    """On a GPU, median time until an eager call has launched its work."""
    host_seconds: float | None = None
    """On a GPU, median time until a call of the program has launched its work."""
    kernels: str | None = None
    """The kernels of its 8-bit layers, each with the number of layers that used it."""
    eager_peak_memory: int | None = None
    """Peak memory of an eager call, in bytes."""
    peak_memory: int | None = None
    """Peak memory of a call of the program, in bytes."""
    baseline_speedup: float | None = None
    """The speed-up in the baseline."""
    measured_elsewhere: str | None = None
    """The host of the baseline if it is another one, so that timings are not compared."""
    slowdown: float | None = None
    """Relative increase of the program's time over eager since the baseline."""
    slowdown_low: float | None = None
    """Lower end of its 95 % interval."""
    slowdown_high: float | None = None
    """Upper end of its 95 % interval."""
    change_verdict: str | None = None
    """The verdict on the change since the baseline, from this interval."""

    def with_detection(self, limits: tuple[float, float, float], *, is_coarse: bool) -> SummaryRow:
        """Return the row with its detection limits: for all outputs, the largest element, and a median one."""
        everywhere, largest, median = limits
        return replace(self, detects=everywhere, detects_largest=largest, detects_median=median, is_coarse=is_coarse)

    def with_metric(self, drop: MetricDrop) -> SummaryRow:
        """Return the row with the result of a metric on labelled data."""
        low, high = drop.interval or (None, None)
        return replace(
            self,
            metric=drop.metric,
            reference_metric=drop.reference,
            program_metric=drop.candidate,
            metric_drop=drop.drop,
            metric_drop_low=low,
            metric_drop_high=high,
            max_drop=drop.max_drop,
            samples=drop.samples,
            samples_changed=drop.changed,
            changed_samples=drop.changed_samples,
            metric_sentence=str(drop),
        )

    def with_timing(self, timing: PairedTiming) -> SummaryRow:
        """Return the row with the results of a timing."""
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
        """Return the row with the change of its speed-up since the baseline, judged with the permitted ``limit``."""
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
        """Return the numbers of nodes before and after, as far as they are known."""
        return arrow.join(str(count) for count in (self.nodes_before, self.nodes_after) if count is not None)

    def merged(self, other: SummaryRow) -> SummaryRow:
        """Return the row updated with the fields of ``other`` that are not None."""
        values = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in values.items() if value is not None})


def records_on(report: Any) -> list[dict[str, Any]]:
    """Return the records of a test in order; only the report of its call has them."""
    if getattr(report, "when", None) != "call":
        return []
    return [value for name, value in getattr(report, "user_properties", ()) if name == PROPERTY]


def verdict_of(row: SummaryRow) -> str:
    """Return the verdict on a program, one of the constants above.

    A program is right only if its contract and the laws were checked and hold. It is right with a waiver if a
    difference beyond the contract was accepted.

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


def at_base(program: str, base: str) -> str:
    """Return the name in tables of a program at the base of ``--fx-against``."""
    return f"{program} at {base}"


def compared_with_base(rows: Sequence[SummaryRow], base: str) -> list[SummaryRow]:
    """Return the rows of programs with a counterpart at ``base``: both were judged, or they were timed by turns.

    A pass that changes nothing at either was not compared.
    """
    others = {(row.model, row.program): row for row in rows}
    judged = {RIGHT, RIGHT_WITH_WAIVER, WRONG, CHANGES_NOTHING}
    compared: list[SummaryRow] = []
    for row in rows:
        other = others.get((row.model, at_base(row.program, base)))
        verdicts = {verdict_of(row), verdict_of(other)} if other is not None else {NOT_JUDGED}
        if row.slowdown is not None or (verdicts <= judged and verdicts != {CHANGES_NOTHING}):
            compared.append(row)
    return compared


def merge_rows(rows: Iterable[SummaryRow]) -> list[SummaryRow]:
    """Return one row for each program of each model, in the order of first appearance."""
    merged: dict[tuple[str, str], SummaryRow] = {}
    for row in rows:
        key = (row.model, row.program)
        merged[key] = merged[key].merged(row) if key in merged else row
    return list(merged.values())


def collect_rows(reports: Iterable[Any]) -> list[SummaryRow]:
    """Return the rows on the reports, one for each program of each model.

    If a test failed before it recorded the outcome of a program, the outcome is ``"fails"``.
    """
    return merge_rows(row for report in reports for row in _rows_on(report))


def _rows_on(report: Any) -> list[SummaryRow]:
    records = records_on(report)
    rows = [SummaryRow(**record["row"]) for record in records]
    if not getattr(report, "failed", False):
        return rows
    timed = {record["row"]["program"] for record in records if record["timing"] is not None}
    timed |= {row.program for row in rows if row.seconds is not None}
    judged = timed | {row.program for row in rows if row.kept or row.outcome or row.changed is False}
    return [row if row.program in judged else replace(row, outcome="fails") for row in rows]

"""Errors of the plugin: broken contracts and laws, unknown names, and failed tests of other kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fx.errors import FxError


class ContractViolation(FxError, AssertionError):
    """Raised when a transformed program breaks the contract of its pass. The message has the place and both values."""

    def __init__(
        self,
        what: str,
        *,
        where: object | None = None,
        value: object | None = None,
        why: str | None = None,
        remedy: str | None = None,
        kind: str = "values",
        share: float = 1.0,
        sqnr_db: float | None = None,
    ) -> None:
        """Describe the violation.

        ``kind`` names it in a word or two: violations of one kind count as one failure. ``share`` is the share of wrong
        elements in a tensor, and ``sqnr_db`` the signal-to-quantization-noise ratio of all elements.
        """
        super().__init__(what, where=where, value=value, why=why, remedy=remedy)
        self.kind = kind
        self.share = share
        self.sqnr_db = sqnr_db


class LawViolation(FxError, AssertionError):
    """Raised when a pass breaks a law on a program. The message has the law, the difference and why it matters."""

    reason = ""
    """The failure in one line, if known: the law, the size of the error, and the first wrong node."""

    def __init__(
        self,
        law: str,
        what: str,
        *,
        where: object | None = None,
        value: object | None = None,
        why: str | None = None,
        remedy: str | None = None,
        kind: str = "",
        inputs: int | str = 0,
    ) -> None:
        """Take the name of the ``law``, and the parts of the message.

        ``kind`` names the violation in a word or two: violations of one law and kind count as one failure. ``inputs``
        are the inputs on which the law is broken.
        """
        super().__init__(f"law {law!r}: {what}", where=where, value=value, why=why, remedy=remedy)
        self.law = law
        self.kind = kind
        self.inputs = inputs

    @classmethod
    def of(cls, law: str, error: Exception, inputs: int | str = 0) -> LawViolation:
        """Return a violation with the message and kind of ``error``."""
        violation = cls(law, "", kind=getattr(error, "kind", ""), inputs=inputs)
        violation.args = (f"law {law!r}: {error}",)
        return violation

    def with_message(self, text: str) -> LawViolation:
        """Return the same violation with another message."""
        violation = LawViolation(self.law, "", kind=self.kind, inputs=self.inputs)
        violation.args = (text,)
        violation.__cause__, violation.reason = self.__cause__, self.reason
        return violation

    def __reduce__(self) -> tuple[Any, ...]:
        return _law_violation, (self.law, str(self), self.kind, self.inputs)

    def with_details(self, text: str) -> LawViolation:
        """Return the same violation with ``text`` below its message."""
        return self.with_message(f"{self}\n{text}")

    def with_others(self, others: Sequence[LawViolation]) -> LawViolation:
        """Return the same violation with a line for each kind of the other violations; equal kinds share a line."""
        by_kind: dict[object, tuple[list[str], list[str]]] = {}  # by kind: one line, and the other laws of the kind
        for other in others:
            lines, likewise = by_kind.setdefault(other.kind or other, ([], []))
            if lines or (other.kind and other.kind == self.kind):
                likewise.append(repr(other.law))
            else:
                lines.append(str(other).partition("\n")[0])
        own = by_kind.pop(self.kind, None)  # laws with this violation's kind come first
        also: list[str] = []
        for lines, likewise in (*([] if own is None else [own]), *by_kind.values()):
            also += lines + ([f"same error under {', '.join(likewise)}"] if likewise else [])
        return self.with_details("\n".join(f"  also   {line}" for line in also)) if also else self


def _law_violation(law: str, text: str, kind: str, inputs: int | str) -> LawViolation:
    """Return the violation that another process has pickled."""
    return LawViolation(law, "", kind=kind, inputs=inputs).with_message(text)


class LawError(FxError, ValueError):
    """Raised for an invalid law of the caller: without name or function, or one that reports another law as broken."""


class ComparisonError(FxError, TypeError):
    """Raised when an output of the model itself cannot be compared. The message has its place."""


class NothingJudged(FxError):
    """Raised when a pass changed too few random programs to be judged: no law is broken, and none is shown to be kept.

    The message has the counts, the parts of the pass's code that no program reached, and what to try.
    """

    def __init__(self, name: str, programs: int, changed: int, wanted: float, unreached: str = "") -> None:
        """Take the ``name`` of the pass, and the numbers of ``programs``, ``changed`` ones and ``wanted`` changed ones.

        ``unreached`` lists the lines and conditions of the pass's code that no program reached.
        """
        super().__init__(
            f"{name} changed {changed} of {programs} programs: too few to judge it",
            where=unreached.replace("\n", f"\n{' ' * 9}") or None,
            why=f"a law says little where a pass does nothing; at least {wanted:g} were to be changed, and programs "
            "near to those that reached most of its code were tried, too",
            remedy="give by like=… a program that it changes, or require fewer by min_changed=…",
        )
        self.programs, self.changed = programs, changed


class MemoryLayoutWarning(UserWarning):
    """Issued when a program keeps its contract, but returns another memory layout, or memory that is shared.

    ``-W error::pytest_fx.errors.MemoryLayoutWarning`` turns it into a failure, ``-W ignore::…`` silences it.
    """


class CoarseVerdict(FxError, AssertionError):
    """Raised when a kept contract would not have caught an error of the size in ``--fx-detect``.

    Also raised if nothing was compared, or, under ``--fx-strict``, if a difference was waived.
    """


class CannotLoadError(FxError, LookupError):
    """Raised for a name on the command line without a model or pass. The message lists the nearest names."""


class ConversionError(FxError, ValueError):
    """Raised for a converted model that cannot be loaded or run here, or that is converted from another model.

    The message has the file, the reason, and both sides' inputs or outputs if these differ.
    """


class AnswerError(FxError, ValueError):
    """Raised for a file of saved answers that is damaged, or holds answers of another model, weights or inputs."""


class AnswerViolation(FxError, AssertionError):
    """Raised when a model or a program does not give the saved answers of another machine, release or device.

    The message has the output, both machines, and the first saved layer that differs.
    """


class RevisionError(FxError, ValueError):
    """Raised for a base of ``--fx-against`` that cannot be run, or that would run the same code.

    The message has the cause in the other process, and what to name instead.
    """


class InputError(FxError, LookupError):
    """Raised when a model has no example inputs, or cannot be called with them, so that no pass can be judged on it.

    The message has the arguments and the user's line, or how to give example inputs.
    """


class MetricError(FxError, ValueError):
    """Raised when a metric raises on outputs and labels, or returns no number. The message has the samples and why."""


class TimingRegression(FxError, AssertionError):
    """Raised when a program's slowdown, against eager or the run of ``--fx-baseline``, exceeds ``--fx-fail-slower``.

    The message has the speed-ups with their intervals and the machines of the measurements.
    """


class NoisyTiming(FxError, AssertionError):
    """Raised under ``--fx-strict`` when times vary too much to decide whether ``--fx-fail-slower`` allows them.

    The message has the speed-ups with their intervals and the machines of the measurements.
    """


class MissingBaseline(FxError, AssertionError):
    """Raised under ``--fx-strict`` when the baseline has no comparable timing for ``--fx-fail-slower``.

    The message has the conditions by which timings are matched.
    """


class TimedOutputError(FxError, AssertionError):
    """Raised when a timed program does not compute its outputs from its inputs, so that its times mean nothing.

    The outputs stay when the contents of the inputs change, as those of a cache do, or are objects other than eager's
    tensors, which may be computed later. The message has the distance of the outputs from eager's.
    """


class LostRewrite(FxError, AssertionError):
    """Raised under ``--fx-strict`` when a pass changes less in a model than in the run of ``--fx-baseline``.

    The message has the changes of both runs, and near misses of the pass's patterns.
    """


class TooFewChanges(FxError, AssertionError):
    """Raised when a pass changes less in a model than ``--fx-require-change`` or ``--fx-min-changes`` requires.

    The message has the changes, and near misses of the pass's patterns.
    """


class ProcessEnded(FxError, RuntimeError):
    """Raised when code in a child process ended the process, closed its channel, or exceeded a limit.

    The message has the test or pass, how the process ended, and the user's line if known.
    """


class TimeLimitExceeded(FxError, AssertionError):
    """Raised when a test runs longer than ``--fx-timeout``. The message has the pass, the model and the user's line."""


class TableError(FxError, LookupError):
    """Raised for a name of no table of the evaluation, or of two. The message lists the nearest names."""


class ReportError(FxError, ValueError):
    """Raised when a folder holds no report of a run, or an unreadable one. The message has the reason."""


class FetchError(FxError, RuntimeError):
    """Raised when a server's reply is late, an error, or not the requested content. The message has the cause."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's class if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def in_a_line(error: BaseException) -> str:
    """Return the type of an error, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"

"""What the plugin reports: a program that computes something else, and names that lead nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fx.errors import FxError


class ContractViolation(FxError, AssertionError):
    """A transformed program breaks the contract of its pass. The message has the place and both values."""

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
        """Say what is broken.

        ``kind`` says so in a word or two: two violations of one kind are one failure. ``share`` is that of the elements
        of a tensor that are wrong, ``sqnr_db`` the signal-to-quantization-noise ratio of all of them.
        """
        super().__init__(what, where=where, value=value, why=why, remedy=remedy)
        self.kind = kind
        self.share = share
        self.sqnr_db = sqnr_db


class LawViolation(FxError, AssertionError):
    """A pass breaks a law on some program. The message has the law's name, what differs and why it matters."""

    reason = ""
    """The same in a line, where that is known: the law, how far the program is off, and the first wrong node."""

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
        """``law`` is the name of the law; the rest makes the message.

        ``kind`` says in a word or two how it is broken: two violations of one law and kind are one failure. ``inputs``
        are those on which it shows.
        """
        super().__init__(f"law {law!r}: {what}", where=where, value=value, why=why, remedy=remedy)
        self.law = law
        self.kind = kind
        self.inputs = inputs

    @classmethod
    def of(cls, law: str, error: Exception, inputs: int | str = 0) -> LawViolation:
        """A violation that says what ``error`` says."""
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
        """Return the same violation with a line on each other law that is broken; one on all that are so likewise."""
        by_kind: dict[object, tuple[list[str], list[str]]] = {}  # lines, and laws that are broken like those, by kind
        for other in others:
            lines, likewise = by_kind.setdefault(other.kind or other, ([], []))
            if lines or (other.kind and other.kind == self.kind):
                likewise.append(repr(other.law))
            else:
                lines.append(str(other).partition("\n")[0])
        own = by_kind.pop(self.kind, None)  # first, below what they are like
        found: list[str] = []
        for lines, likewise in (*([] if own is None else [own]), *by_kind.values()):
            found += lines + ([f"same error under {', '.join(likewise)}"] if likewise else [])
        return self.with_details("\n".join(f"  also   {line}" for line in found)) if found else self


def _law_violation(law: str, text: str, kind: str, inputs: int | str) -> LawViolation:
    """The violation that another process has found."""
    return LawViolation(law, "", kind=kind, inputs=inputs).with_message(text)


class LawError(FxError, ValueError):
    """A law of the caller's own is not usable as one: it has no name or function, or reports another law as broken."""


class ComparisonError(FxError, TypeError):
    """What a model returns cannot be compared, whatever a pass does to it. The message says where it is."""


class NothingJudged(FxError):
    """A pass found too little to do in random programs to be judged: no law is broken, and none is shown to be kept.

    The message has the counts, what of the pass's own code no program reached, and what to show it.
    """

    def __init__(self, name: str, programs: int, changed: int, wanted: float, unreached: str = "") -> None:
        """``name`` is that of the pass, ``programs`` it was tried on, ``wanted`` of which it had to change.

        ``unreached`` lists the lines and conditions of its code that no program reached.
        """
        super().__init__(
            f"{name} changed {changed} of {programs} programs: too few to judge it",
            where=unreached.replace("\n", f"\n{' ' * 9}") or None,
            why=f"a law says little where a pass does nothing; at least {wanted:g} were to be changed, and programs "
            "near to those on which it went furthest were tried, too",
            remedy="show by like=… a program that it changes, or ask for fewer with min_changed=…",
        )
        self.programs, self.changed = programs, changed


class MemoryLayoutWarning(UserWarning):
    """A program keeps its contract, but returns memory of another layout, or shared with other tensors.

    ``-W error::pytest_fx.errors.MemoryLayoutWarning`` makes a failure of it, ``-W ignore::…`` silences it.
    """


class CoarseVerdict(FxError, AssertionError):
    """A program keeps its contract, but so would a program that is off by more than ``--fx-detect`` says.

    Or nothing was compared, or a difference was forgiven under ``--fx-strict``.
    """


class CannotLoadError(FxError, LookupError):
    """A name on the command line leads to no model and no pass. The message lists the nearest names."""


class InputError(FxError, LookupError):
    """A model has no example inputs, or cannot be called with those that it has. No pass can be judged on it.

    The message has what it was called with and the user's line, or how example inputs are given.
    """


class TimingRegression(FxError, AssertionError):
    """A program takes longer, relative to eager, than in the run that ``--fx-baseline`` names, by more than is allowed.

    The message has both speed-ups with their intervals and where each was measured.
    """


class NoisyTiming(FxError, AssertionError):
    """Under ``--fx-strict``, times differ too much from each other to tell whether ``--fx-fail-slower`` allows them.

    The message has both speed-ups with their intervals and where each was measured.
    """


class MissingBaseline(FxError, AssertionError):
    """Under ``--fx-strict``, ``--fx-fail-slower`` has no timing to compare with: the baseline has none like it.

    The message has what timings are matched by.
    """


class TimedOutputError(FxError, AssertionError):
    """A program under the clock does not compute its outputs from its inputs: its times would mean nothing.

    Its outputs do not follow when the contents of its inputs change, as those of a cache, or are something else than
    eager's tensors, which may be computed later. The message has how far outputs are from eager's.
    """


class LostRewrite(FxError, AssertionError):
    """Under ``--fx-strict``, a pass changes less in a model than in the run that ``--fx-baseline`` names.

    The message has what it changed in both, and where a pattern that it looks for nearly matches.
    """


class TooFewChanges(FxError, AssertionError):
    """A pass changes less in a model than ``--fx-require-change`` or ``--fx-min-changes`` asks for.

    The message has what it changed, and where a pattern that it looks for nearly matches.
    """


class ProcessEnded(FxError, RuntimeError):
    """What ran in a child process ended that process, closed what it answers by, or took more than it may.

    The message has what it was, how it ended, and the user's line where that is known.
    """


class TimeLimitExceeded(FxError, AssertionError):
    """A test ran longer than ``--fx-timeout`` allows. The message has the pass, the model and the user's line."""


class TableError(FxError, LookupError):
    """A name leads to no table of the evaluation, or to two. The message lists the nearest names."""


class ReportError(FxError, ValueError):
    """A folder holds no report of a run, or one that cannot be read. The message says why."""


class FetchError(FxError, RuntimeError):
    """A server gave no answer in time, an error, or something else than it was asked for. The message says which."""

"""The verdict on a candidate: right, wrong, not judged, or that its reference is degenerate."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from fx.errors import FxError

RIGHT, WRONG, NOT_JUDGED, DEGENERATE = "right", "wrong", "not judged", "degenerate reference"
Kind = Literal["right", "wrong", "not judged", "degenerate reference"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging a candidate."""

    verdict: Kind
    """One of the four kinds."""
    reference: str
    """The name of the reference."""
    candidate: str
    """The name of the candidate."""
    law: str = ""
    """The broken law; empty if there is none."""
    evidence: str = ""
    """The evidence of it: the worst element, or the error; or the reason why nothing was judged."""
    inputs: str = ""
    """The smallest inputs that show it: their description and shapes."""
    intermediate: str = ""
    """The first wrong value of a submodule or node that the reference has, too; empty if none is known."""
    test: str = ""
    """The path of a test file that fails alone, for a wrong candidate; empty if there is none."""
    why_no_test: str = ""
    """The reason why no test file of a wrong candidate was written; empty if it was, or was not asked for."""
    laws: tuple[str, ...] = ()
    """The laws that were checked."""
    input_sets: int = 0
    """The number of input sets that both were called with."""
    most_elements: int = 0
    """The most elements of an input for which outputs were compared; of larger inputs nothing is known."""
    refused: tuple[str, ...] = ()
    """Input sets that the reference refuses; the candidate is not called with them."""
    detection_limit: float | None = None
    """The smallest relative change of all outputs that the judgement would detect; None if unknown."""
    speedup: float | None = None
    """The speed-up over the reference: its time divided by the candidate's; None if not timed."""
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval of the speed-up."""
    why_no_speedup: str = ""
    """The reason why it was not timed; empty if it was."""
    device: str = ""
    """The name of the GPU that a right candidate ran on, with its clock if known; empty for a CPU."""
    seconds: float = 0.0
    """The seconds of the judgement."""

    def __bool__(self) -> bool:
        """Return whether the candidate is right."""
        return self.verdict == RIGHT

    def __str__(self) -> str:
        lines = [f"{self.candidate} in the place of {self.reference}: {self.verdict}"]
        if self.law:
            lines[0] += f", law {self.law!r}"
        if self.inputs:
            lines.append(f"  on     {self.inputs}")
        lines += [f"  {line}" for line in self.evidence.splitlines()]
        if self.intermediate:
            lines.append(f"    first wrong intermediate value  {self.intermediate}")
        if self.test:
            lines.append(f"  a test of it alone: {self.test}")
        if self.verdict == RIGHT:
            lines.append(f"  {self.input_sets} input sets, {len(self.laws)} laws: {', '.join(self.laws)}")
            if self.most_elements:
                lines.append(f"  inputs of up to {self.most_elements:,} elements were compared")
            if self.detection_limit is not None:
                lines.append(f"  outputs off by {self.detection_limit:.1e} would have been caught")
        if self.speedup is not None and self.interval is not None:
            where = f" on {self.device}" if self.device else ""
            interval = f"{self.interval[0]:.2f} to {self.interval[1]:.2f}"
            lines.append(f"  {self.speedup:.2f} times as fast, {interval}{where}")
        elif self.verdict == RIGHT:
            lines.append(f"  not timed: {self.why_no_speedup}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the verdict as JSON, with the names of the fields as keys."""
        return json.dumps(asdict(self), indent=2)


class RefusedCandidate(FxError, AssertionError):
    """A candidate may not replace its reference: it is wrong, or it could not be judged."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict
        """The verdict on the candidate."""

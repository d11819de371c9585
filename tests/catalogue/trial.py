"""Trying the harness on a pass of the catalogue: whether it finds something, which law, after how many programs."""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import hypothesis
from hypothesis import Phase

from pytest_fx import NothingJudged
from pytest_fx.laws import LawViolation
from pytest_fx.search.pass_check import FEWEST_CHANGES, check_pass

from . import RIGHT, WRONG
from .rounds import ROUNDS
from .rows import Right, Wrong

ROWS: dict[str, Wrong | Right] = {**WRONG, **RIGHT, **ROUNDS}
"""Every pass by name."""

SECONDS = 60.0
"""Seconds of a processor within which it is to be found, whatever else the machine does."""
SEEDS = 5
"""Seeds with which no right pass is to be flagged."""
_FOUND = re.compile(r"found after (\d+) program\(s\), of which .* changed (\d+)(?=;|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Trial:
    """The verdict of the harness on a pass."""

    name: str
    """The pass."""
    kind: str
    """The kind of mistake; empty for a right pass."""
    expected: str
    """The laws that may catch it."""
    seed: int
    """The seed of the programs."""
    law: str
    """The law that was found broken; empty if none was."""
    judged: bool
    """False if the pass changed too few programs to be judged."""
    programs: int
    """Programs that were tried."""
    changed: int
    """Those of them that the pass changed."""
    seconds: float
    """Seconds that a processor computed for that, without shrinking."""
    message: str = ""
    """The message of the harness; it is not recorded."""
    commit: str = ""
    """The commit of the harness."""

    @property
    def caught(self) -> bool:
        """Return True if the mistake was found within the limits: a broken law, or no change where that is wrong."""
        is_caught = bool(self.law) if self.judged else "changes" in self.expected
        return is_caught and self.seconds <= SECONDS

    @property
    def in_words(self) -> str:
        """The trial in one line."""
        result = self.law or ("nothing" if self.judged else "not judged")
        counts = f"{self.changed} of {self.programs} programs changed"
        return f"{self.name} (seed {self.seed}): {result}; {counts}, {self.seconds:.1f} s"


def try_named(name: str, seed: int) -> Trial:
    """Try a pass by its name, also in another process."""
    warnings.simplefilter("ignore")  # of passes that are wrong
    return try_pass(ROWS[name], seed)


def try_pass(row: Wrong | Right, seed: int = 0, examples: int | None = None) -> Trial:
    """Hold a pass to the laws on random programs; a failure is not shrunk, and leaves no file behind."""
    # A user wants neither: the first failure is enough here, and must not depend on earlier runs.
    settings = hypothesis.settings(database=None, phases=[Phase.generate])
    # A rare rewrite is no mistake, changing nothing is one. Passes of rounds are tried as users' passes are.
    is_asked = bool(row.round) or (isinstance(row, Wrong) and "changes" in row.laws)
    least = FEWEST_CHANGES if is_asked else 0
    kind, laws = (row.kind, ", ".join(row.laws)) if isinstance(row, Wrong) else ("", "")
    started = time.process_time()
    examples = row.programs if examples is None else examples
    law, judged, message, programs, changed = "", True, "", examples, 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = check_pass(
                row.pass_,
                contract=row.contract,
                modes=row.modes,
                max_examples=examples,
                min_changed=least,
                seed=seed,
                settings=settings,
                folder=Path(folder),
                form=row.form,
            )
            programs, changed = report.programs, report.changed
        except LawViolation as violation:
            law, message = violation.law, str(violation)
            counts = _FOUND.search(message)
            assert counts is not None, f"the message does not say after how many programs:\n{message}"
            programs, changed = map(int, counts.groups())
        except NothingJudged as error:
            judged, message, programs, changed = False, str(error), error.programs, error.changed
    seconds = time.process_time() - started
    return Trial(row.name, kind, laws, seed, law, judged, programs, changed, seconds, message)

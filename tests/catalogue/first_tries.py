"""The results of the search on the passes of each blind round, before anything was mended for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstTry:
    """The figures of a round, whose passes were tried once, with the defaults of ``check_pass``."""

    round: int
    """Its number."""
    date: str
    """The day on which it was run."""
    commit: str
    """The commit with which it was run."""
    caught: int
    """Wrong passes that were caught for their fault: the same pass without it keeps the law there."""
    otherwise: int
    """Wrong passes that were caught for another true fault, which the pass without the intended one has, too."""
    unjudged: int
    """Wrong passes that changed too few programs to be judged; the others were green, or caught for a false reason."""
    flagged: int
    """Right passes that were flagged."""
    right_unjudged: int
    """Right passes that changed too few programs to be judged."""
    mended: str
    """The changes that followed it, in a few words."""
    wrong: int = 20
    """Wrong passes of the round."""
    right: int = 8
    """Right passes of the round."""


FIRST_TRIES = (
    FirstTry(1, "2026-11-28", "ef0df280", 12, 2, 3, 0, 2, "programs grow toward a pass; numbers of another type"),
    FirstTry(2, "2026-11-28", "1021a5f4", 6, 3, 5, 0, 1, "unused results, written buffers, weights that others read"),
    FirstTry(3, "2026-11-28", "7a3b122a", 12, 3, 1, 0, 0, "other overloads, kept views, writes by modules"),
    FirstTry(5, "2026-11-28", "5a306629", 11, 3, 4, 0, 1, "growth by whole lists; a bound on memory"),
    FirstTry(6, "2026-11-28", "e1c1e6b1", 11, 2, 2, 0, 0, "what gradients need; other broadcasts"),
    FirstTry(4, "2026-11-28", "829352bb", 10, 4, 0, 0, 1, "exploration of places, not of slices"),
    FirstTry(7, "2026-11-29", "69bc4b86", 16, 0, 3, 1, 0, "calls of helpers told apart; indices; scores of ctc_loss"),
    FirstTry(8, "2026-11-29", "80e00081", 18, 1, 1, 0, 1, "nothing"),
    FirstTry(9, "2026-11-29", "80e00081", 13, 0, 1, 0, 0, "lines for programs without layers; parallel layers; lists"),
    # one of its passes was written as a right one, and loses a gradient, as the search found
    FirstTry(12, "2026-11-29", "d535889a", 13, 4, 3, 0, 0, "patterns noted as looked for", wrong=21, right=7),
    FirstTry(11, "2026-11-29", "41c7a8e9", 13, 2, 3, 0, 3, "pairs of arguments sooner; places of several sizes"),
    FirstTry(13, "2026-11-29", "043445fe", 16, 0, 0, 0, 1, "names that the pass makes; slices with colons"),
    FirstTry(14, "2026-11-29", "043445fe", 13, 1, 1, 0, 0, "settings that are None; tuples; cuts while growing"),
    FirstTry(15, "2026-11-29", "043445fe", 15, 0, 2, 0, 0, "arguments left out; numbers beyond others; indices"),
    FirstTry(16, "2026-11-29", "043445fe", 15, 1, 0, 0, 0, "larger seeds; any operation instead; assignments"),
    FirstTry(17, "2026-11-29", "043445fe", 16, 0, 2, 0, 0, "slices; integer buffers written; inputs instead"),
    # the search failed on one right pass of round 23 and one wrong
    # one of round 24, which count as not judged
    FirstTry(23, "2026-11-29", "fc45afb1", 10, 6, 2, 0, 1, "each operation that a pass mentions; unused results"),
    FirstTry(24, "2026-11-29", "77ea9fc7", 12, 4, 4, 0, 0, "shapes that a pass compares"),
    FirstTry(25, "2026-11-30", "76bb331a", 15, 1, 1, 0, 1, "inputs and parameters that a pass asks for; ranks"),
    FirstTry(26, "2026-11-30", "f8e62c4b", 9, 3, 5, 0, 0, "places alone; conditions still open; copies of chains"),
    # one of its passes was written as a right one, and makes a backward pass raise, as the search found
    FirstTry(27, "2026-11-30", "b210ed56", 18, 1, 0, 0, 0, "nothing", wrong=21, right=7),
    # another one was caught for a difference of four units in the last place of float16, which is not counted
    FirstTry(28, "2026-11-30", "2488f503", 13, 1, 1, 0, 0, "draws at two places; values of new operations"),
    FirstTry(29, "2026-11-30", "46a07089", 14, 2, 0, 1, 1, "finite weights; ranks behind a last dimension; integers"),
    FirstTry(30, "2026-11-30", "3383da9a", 19, 0, 1, 0, 0, "nothing"),
    # one of its passes was written as a right one, and makes a float64 loss of a float32 one, as the search found
    FirstTry(
        31,
        "2026-11-30",
        "3383da9a",
        18,
        0,
        1,
        0,
        0,
        "results of layers with state that nobody reads",
        wrong=21,
        right=7,
    ),
    # other faults: two results in one tensor, a write to a table of the original module, and a product of
    # matrices that does not broadcast
    FirstTry(32, "2026-12-01", "7fb9b9e1", 17, 3, 0, 0, 0, "nothing"),
)
"""One row a round, the latest one last."""


def section() -> list[str]:
    """Return the figures as lines of Markdown."""
    lines = [
        "## First try, by round",
        "",
        "A round is 20 wrong and 8 right passes, whose authors knew neither the search nor this catalogue. They are",
        "tried once, with the defaults of `pytest --fx-check`, before anything is mended for them. A wrong pass is",
        "caught for its fault if the pass without it keeps the law on the program that is shown. Else it is caught for",
        "another fault, which both have.",
        "",
        f"**First try, in the last two rounds: {_sum_of(FIRST_TRIES[-2:])}.**",
        "",
        "| round | date | commit | wrong: caught for its fault | for another | not judged | right: flagged "
        "| not judged | mended for it |",
        "|--:|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in FIRST_TRIES:
        wrong, right = f"{row.caught} of {row.wrong}", f"{row.flagged} of {row.right}"
        counts = f"{wrong} | {row.otherwise} | {row.unjudged} | {right} | {row.right_unjudged}"
        lines.append(f"| {row.round} | {row.date} | {row.commit} | {counts} | {row.mended} |")
    return lines


def _sum_of(rows: Sequence[FirstTry]) -> str:
    caught, wrong, flagged, right = (
        sum(getattr(row, field) for row in rows) for field in ("caught", "wrong", "flagged", "right")
    )
    return f"{caught} of {wrong} wrong passes caught for their fault, {flagged} of {right} right ones flagged"


def sentence() -> str:
    """Return the figures of the latest round as the README quotes them."""
    row = FIRST_TRIES[-1]
    return (
        f"caught {row.caught + row.otherwise} of {row.wrong} wrong passes, "
        f"and flagged {row.flagged} of {row.right} right ones"
    )

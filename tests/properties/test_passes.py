"""Every pass of the library on random programs; ``make properties`` tries thousands."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis
import pytest
from selection import thorough_except

from fx.passes import get_pass, list_passes
from pytest_fx import check_pass

QUICK = 6
"""Programs for each pass unless a profile of Hypothesis sets more."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The settings for trying one pass."""

    text: str
    """The pass."""
    min_changed: float = 0.05
    """The part of the programs that it must change."""
    without: tuple[str, ...] = ()
    """Laws that are not checked for the pass."""


REGISTERED = [name for name in list_passes() if type(get_pass(name)).__module__.startswith("fx.")]
"""Passes of the library; other tests register some of their own."""
SETTINGS = {
    "fold-constants": Trial("fold-constants", min_changed=0),
    # results need not be continuous in values, as those of histogram are not; tests/fx/quantize judges the numbers
    "quantize": Trial("quantize", without=("contract", "batch sizes", "non-contiguous inputs", "non-finite inputs")),
}
"""The passes that are not tried like all others."""
SEVERAL = Trial("fuse-conv-bn,remove-identities,eliminate-common-subexpressions,remove-dead-code")
TRIALS = [*(SETTINGS.get(name, Trial(name)) for name in REGISTERED), SEVERAL]
QUICKLY_TRIED = [trial for trial in TRIALS if trial.text in ("fuse-conv-bn", "fold-constants")]


@pytest.mark.parametrize("trial", thorough_except(QUICKLY_TRIED, TRIALS), ids=lambda trial: trial.text)
def test_a_pass_keeps_the_laws_on_random_programs(trial: Trial, request: pytest.FixtureRequest) -> None:
    wanted = hypothesis.settings().max_examples
    examples = wanted if wanted > 100 else QUICK  # 100 is Hypothesis's own default
    if examples == QUICK:
        request.getfixturevalue("little_explored")
    check_pass(
        trial.text,
        max_examples=examples,
        min_changed=trial.min_changed if examples > QUICK else 0,
        without=trial.without,
        seed=None if examples > QUICK else 0,  # the same programs in every quick run
    )


@pytest.mark.usefixtures("little_explored")
@pytest.mark.parametrize("name", thorough_except(("split",), REGISTERED))
def test_a_search_with_defaults_has_a_pass_change_one_program_in_twenty(name: str) -> None:
    report = check_pass(name, seed=0, max_examples=4 if name in ("overlap", "split") else 100)
    assert report.changed >= report.programs / 20

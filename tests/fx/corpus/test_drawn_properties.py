"""Random Python programs are captured and mean what eager means, in all that is compared, or are refused by a line."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings

import fx

from .judge import REFUSED, RIGHT, judge
from .source_programs import program_of, source_programs

WANTED = settings().max_examples
FEW = settings(
    deadline=None,
    max_examples=WANTED if WANTED > 100 else 12,  # the usual 100 is no wish
    suppress_health_check=[HealthCheck.too_slow],
)


@FEW
@given(source_programs())
def test_a_random_python_program_means_what_eager_means_or_is_refused_by_its_line(text: str) -> None:
    verdict = judge(program_of(text), fx)
    assert verdict.kind in (RIGHT, REFUSED), f"{verdict.kind}: {verdict.why}\n{text}"


def test_many_of_them_are_captured_and_some_refused() -> None:
    kinds: Counter[str] = Counter()

    @settings(FEW, max_examples=25, derandomize=True, database=None)
    @given(source_programs())
    def count(text: str) -> None:
        kinds[judge(program_of(text), fx).kind] += 1

    count()
    assert kinds[RIGHT] >= 3, kinds
    assert kinds[REFUSED] >= 3, kinds

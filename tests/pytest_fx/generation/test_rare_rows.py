"""Programs of campaigns: what public reports about compilers are made of."""

from __future__ import annotations

import re
from functools import cache
from random import Random

import pytest

from pytest_fx.generation.strategy import HUNTED, Bias, program_of

FORMS = {
    "integers of all widths": r"\.to\(torch\.u?int(8|16|32)\)",
    "integers of two widths": r"\.to\(torch\.u?int\d+\).*\.to\(torch\.u?int\d+\)",
    "shifts": r"<< \d|>> \d|shift\(",
    "floor division by negative numbers": r"// -\d",
    "two dtypes in a call": r"\.to\(torch\.float64\)|\.half\(\)",
    "views as another dtype": r"\.view\(torch\.\w+\)",
    "strides of a user's own": r"as_strided\(",
    "writes by a mask or an index": r"\[\w+ [<>] 0\] |\[torch\.tensor\(\[0, -1\]\)\] ",
    "scatters into slices": r"slice_scatter\(\w+, \w+\[|select_scatter\(\w+, \w+\[",
    "optional arguments": r"decimals=|correction=|dtype=torch\.float64",
    "negative zero": r"\* -0\.0",
}


@cache
def sources() -> list[str]:
    return [program_of(Random(seed), Bias((), HUNTED), 14).source for seed in range(80)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_programs_of_campaigns_have(form: str) -> None:
    assert any(re.search(form, source) for source in sources())

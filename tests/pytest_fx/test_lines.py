"""pytest_fx.lines: messages follow the width of the terminal."""

import pytest

from pytest_fx.lines import fit

MESSAGE = """law 'contract': a-pass-with-a-long-name changes what my.models:factory computes
  where  output[0, 462], the worst of 998 wrong in 1000 element(s), float32
  value  eager -1.6610798835754395
         in float64 -1.6610982367280016, transformed -1.655156151847562, which is far
  try    promise less: approximate(sqnr_db=30), or do not fold /a/path/that/is/longer/than/the/terminal/is/wide"""


@pytest.mark.parametrize("width", [30, 50, 80])
def test_lines_are_broken_at_spaces_and_keep_all_words(width):
    lines = fit(MESSAGE, width).splitlines()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(MESSAGE.split())


def test_what_goes_on_stands_below_the_part_that_it_belongs_to():
    assert fit("  why    they are 0.0059 apart", 24) == "  why    they are 0.0059\n           apart"
    assert fit("         in float64 too", 20) == "         in float64\n           too"


def test_the_first_line_may_be_narrower():
    assert fit("one two three\nfour five six", 13, first=9) == "one two\n  three\nfour five six"

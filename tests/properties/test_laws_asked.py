"""The documentation and the results say which laws are checked on which kind of subject, as the harness does."""

from pathlib import Path

import pytest
from verdicts.laws_asked import ASKED, laws_asked, laws_asked_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["docs/properties.md", "results/verdicts.md"])
def test_the_pages_have_the_table_of_laws_that_are_asked(page):
    assert laws_asked_table().strip() in (ROOT / page).read_text("utf-8")


def test_a_pass_on_a_small_model_is_judged_by_every_law_about_passes():
    assert set(laws_asked()["pass"].values()) == {ASKED, "-"}

"""The patterns of ``prose.py``, which ``make lint`` runs."""

from pathlib import Path

import pytest
from prose import LONGEST_SENTENCE, candidates_of

PYTHON = '''"""{docstring}"""

class Match:
    done: bool
    """{field}"""

def count(rows):
    # {comment}
    {name} = len(rows)
    return {name}
'''
PLAIN = {
    "docstring": "Count rows.",
    "field": "Whether all rows are read.",
    "comment": "An empty table has no rows.",
    "name": "rows_read",
}


def kinds(**changed: str) -> list[str]:
    source = PYTHON.format(**{**PLAIN, **changed})
    return [candidate.kind for candidate in candidates_of(Path("module.py"), source)]


def test_plain_prose_has_no_candidates() -> None:
    assert kinds() == []


@pytest.mark.parametrize(
    "place, words, kind",
    [
        ("docstring", "What the rows are.", "headless"),
        ("docstring", "Whether all rows are read.", "headless"),
        ("field", "Where the rows begin.", "headless"),
        ("comment", "The rows of which the table is that of a user.", "clauses"),
        ("comment", "The rows hang on the table.", "coined"),
        ("field", "Rows " + "of rows " * LONGEST_SENTENCE, "long"),
        ("name", "found", "vague"),
    ],
)
def test_hard_prose_is_a_candidate_of_its_kind(place: str, words: str, kind: str) -> None:
    assert kinds(**{place: words}) == [kind]


def test_code_counts_as_one_word() -> None:
    assert kinds(comment="The program " + f"`{'x ' * LONGEST_SENTENCE}`" + " is short.") == []


def test_a_page_is_read_without_its_code_and_headings() -> None:
    page = "# The rows hang on the table\n\n```\nThe rows hang on the table.\n```\n\nA row.\nIt hangs on the table.\n"
    assert [(candidate.line, candidate.kind) for candidate in candidates_of(Path("page.md"), page)] == [(7, "coined")]

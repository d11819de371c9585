"""pytest_fx.report.layout: the table fits the terminal."""

import re
from dataclasses import replace

import pytest

from pytest_fx.report.columns import CHANGE, COLUMNS, SummaryColumn
from pytest_fx.report.layout import format_rows, text_of
from pytest_fx.report.rows import SummaryRow

RIGHT = SummaryRow(
    "resnet_tiny",
    "fuse-conv-bn",
    nodes_before=67,
    nodes_after=47,
    changed=True,
    kept=True,
    dtype="float32",
    float64_error=1.5e-14,
    error=1e-5,
    eager_error=1.1e-5,
    allowed_error=8.5e-5,
    eager_seconds=0.46e-3,
    seconds=0.27e-3,
    speedup=1.714,
    speedup_low=1.699,
    speedup_high=1.731,
    verdict="faster",
    noisy=False,
)
WRONG = replace(RIGHT, program="my-fusion", outcome="wrong: contract")
LONG = replace(RIGHT, model="mypackage.models:a_factory", program="mypackage.passes:fuse_gelu, no leaf modules")
ROWS = [RIGHT, WRONG, LONG, replace(LONG, program="capture, no leaf modules", speedup=None)]


def table(rows, width=None, columns=COLUMNS, **options):
    return [text_of(line) for line in format_rows(rows, columns, width, **options)]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_of_the_table_is_wider_than_the_terminal(width, verbose):
    lines = table(ROWS, width, (*COLUMNS, CHANGE), verbose=verbose)
    assert max(map(len, lines)) <= width
    text = re.sub(r"\s+", " ", " ".join(lines))
    assert all(word in text for word in ("resnet_tiny", "my-fusion", "wrong", "1.714", "mypackage.models:a_factory"))


@pytest.mark.parametrize(
    "width, head, row",
    [
        (80, "", ""),
        (120, "  nodes     error (by rounding)", "  67 -> 47  1.0e-05 (1.1e-05)  "),
    ],
)
def test_a_terminal_of_80_columns_has_verdict_and_speed_up_and_one_of_120_nodes_and_errors_too(width, head, row):
    assert table([RIGHT], width) == [
        f"model        program       verdict{head}  speed-up (95 % interval)",
        f"resnet_tiny  fuse-conv-bn  right  {row}  1.714 (1.699 to 1.731), faster",
    ]


def test_a_verbose_table_has_everything():
    heading, row = table([RIGHT], verbose=True)
    for word in ("nodes", "float64 error", "error (by rounding)", "eager", "transformed", "speed-up"):
        assert word in heading
    assert "1.0e-05 (1.1e-05) float32, 8.5e-05 allowed" in row


def test_a_wrong_program_is_marked_and_not_praised():
    lines = table([RIGHT, WRONG], 80)
    assert lines[1:] == [
        "   resnet_tiny  fuse-conv-bn  right    1.714 (1.699 to 1.731), faster",
        "!  resnet_tiny  my-fusion     wrong    -",
    ]
    assert "wrong: contract" in table([WRONG], verbose=True)[1]


def test_rows_are_below_their_models_where_names_are_long():
    assert table([RIGHT, replace(LONG, program="fuse-gelu, no leaf modules"), replace(LONG, program="p")], 70) == [
        "  program                     verdict  speed-up (95 % interval)",
        "resnet_tiny",
        "  fuse-conv-bn                right    1.714 (1.699 to 1.731), faster",
        "mypackage.models:a_factory",
        "  fuse-gelu, no leaf modules  right    1.714 (1.699 to 1.731), faster",
        "  p                           right    1.714 (1.699 to 1.731), faster",
    ]


def test_names_that_are_longer_still_go_on_in_the_next_line():
    assert table([LONG], 70) == [
        "  program                      verdict  speed-up (95 % interval)",
        "mypackage.models:a_factory",
        "  mypackage.passes:fuse_gelu,  right    1.714 (1.699 to 1.731), faster",
        "    no leaf modules",
    ]


def test_columns_that_do_not_fit_follow_in_another_part_for_the_rows_that_have_them():
    note = SummaryColumn("note", lambda row: "x" * 30 if row is RIGHT else "-")
    assert table([RIGHT, replace(RIGHT, program="other")], 70, (*COLUMNS, note)) == [
        "  program       verdict  speed-up (95 % interval)",
        "resnet_tiny",
        "  fuse-conv-bn  right    1.714 (1.699 to 1.731), faster",
        "  other         right    1.714 (1.699 to 1.731), faster",
        "",
        "  program       note",
        "resnet_tiny",
        "  fuse-conv-bn  " + "x" * 30,
    ]


def test_verdicts_and_speed_ups_have_colours_and_a_wrong_row_is_red():
    lines = format_rows(
        [RIGHT, replace(RIGHT, verdict="slower"), WRONG, replace(RIGHT, outcome="refuses")], COLUMNS, 80
    )
    markups = [{text: markup for text, markup in line if markup} for line in lines]
    faster = "1.714 (1.699 to 1.731), faster"
    assert markups[1] == {"right": {"green": True}, faster: {"green": True}}
    assert markups[2][faster.replace("faster", "slower")] == {"red": True}
    assert set(map(str, markups[3].values())) == {str({"red": True, "bold": True})}
    assert markups[4]["refused"] == {"yellow": True}

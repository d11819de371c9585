"""pytest_fx.report.progress: what a run does, on a real terminal."""

import os
import subprocess
import sys
import types

import pytest

from pytest_fx.report.progress import Progress


def session_of(*names):
    """Tests of the functions that their names begin with."""
    session = types.SimpleNamespace()
    session.items = [
        types.SimpleNamespace(name=name, nodeid=name, originalname=name[:2], session=session) for name in names
    ]
    return session.items


def test_the_line_has_the_test_and_how_long_the_rest_takes_by_what_others_of_its_kind_took(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pytest_fx.report.progress.time.monotonic", lambda: now[0])
    written = []
    progress = Progress(written.append, lambda: 7)
    items = session_of("a_1", "b_1", "a_2", "b_2")
    for item, seconds in zip(items, (10.0, 40.0, 10.0), strict=False):
        with progress.of(item):
            progress.show_test()
            now[0] += seconds
    with progress.of(items[3]):
        progress.show_test()
        progress.doing("30 pairs, about 40 s")
    shown = [text for text in written if "fx:" in text]
    assert shown[0] == "\n\x1b[2Kfx: test 1 of 4: a_1\x1b[1A\x1b[8G"
    assert "fx: test 3 of 4, about 50 s left: a_2" in shown[2]
    assert "fx: test 4 of 4, about 40 s left: b_2" in shown[3]
    assert "b_2: 30 pairs, about 40 s" in shown[4]
    assert written[-1] == "\n\x1b[2K\x1b[1A\x1b[8G"


def test_a_search_says_which_program_it_tries_and_how_long_the_others_take(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("pytest_fx.report.progress.time.monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", "120")
    written = []
    progress = Progress(written.append, lambda: 0)
    with progress.of(*session_of("checks")):
        for number in (1, 2, 11):
            progress.show_program(number, 31)
            now[0] += 2
        progress.show_program(11, None)
    shown = [text.partition("checks: ")[2].partition("\x1b")[0] for text in written if "fx:" in text]
    assert shown == [
        "program 1 of 31",
        "program 2 of 31, about 60 s left",
        "program 11 of 31, about 8 s left",
        "program 11 breaks a law; making it smaller",
    ]


def test_a_row_of_a_table_has_its_own_name_and_one_that_was_measured_before_says_nothing_of_others(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pytest_fx.report.progress.time.monotonic", lambda: now[0])
    written = []
    progress = Progress(written.append, lambda: 0)
    items = session_of("row 1", "row 2", "row 3")
    for item in items:
        table, row = types.SimpleNamespace(name="speed"), types.SimpleNamespace(name=item.name)
        item.callspec = types.SimpleNamespace(params={"table": table, "row": row})
    for item, seconds in zip(items, (0.01, 30.0, 30.0), strict=True):
        with progress.of(item):
            progress.show_test()
            now[0] += seconds
            if seconds < 1:
                progress.expect_longer()
    shown = [text for text in written if "fx:" in text]
    assert "fx: row 1 of 3: speed: row 1\x1b" in shown[0]
    assert "fx: row 3 of 3, about 30 s left: speed: row 3\x1b" in shown[2]


def on_the_line(pytester, monkeypatch, *options):
    """Return what a run writes in its line, as on a terminal of 120 columns."""
    written = []
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("pytest_fx.plugin.progress_of", lambda config: Progress(written.append, lambda: 0))
    pytester.runpytest_inprocess(*options)
    return "".join(written)


def test_a_check_of_random_programs_shows_them_on_the_line(pytester, monkeypatch):
    line = on_the_line(pytester, monkeypatch, "--fx-check", "fuse-conv-bn", "--fx-examples", "2")
    assert "test_pass_keeps_the_laws[fuse-conv-bn]: program 2 of 2\x1b" in line


def test_a_run_of_tables_shows_the_row_on_the_line(pytester, monkeypatch):
    options = ("--fx-size", "small", "--fx-rounds", "2", "-k", "resnet_tiny and torch.fx and not leaf")
    line = on_the_line(pytester, monkeypatch, "--fx-tables=ir-complexity", *options)
    assert "fx: row 1 of 1: ir-complexity: resnet_tiny" in line


def test_a_long_line_is_cut_to_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    written = []
    Progress(written.append, lambda: 0).show("x" * 50)
    assert "x" * 17 + " …" in written[0] and "x" * 18 not in written[0]


def test_nothing_of_it_is_in_a_pipe(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "--fx-no-timing", "-k", "test_capture_equals")
    assert "fx: test 1" not in str(result.stdout) and "\x1b[2K" not in str(result.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("ci", ["", "true"])
def test_it_is_on_a_terminal_while_pytest_captures_but_not_in_ci(pytester, ci):
    reading, writing = os.openpty()
    command = [sys.executable, "-m", "pytest", "--fx-model", "resnet_tiny", "--fx-rounds", "2"]
    command += ["--fx-pass", "fuse-conv-bn", "-k", "test_pass_timing or well_formed"]
    environment = {**os.environ, "CI": ci, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdout=writing, stderr=writing, stdin=subprocess.DEVNULL, env=environment)
    os.close(writing)
    written = b""
    while True:
        try:
            part = os.read(reading, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(reading)
    assert process.wait() == 0
    assert (b"fx: test 1 of " in written) == (b"2 pairs, about 0 s" in written) == (not ci)

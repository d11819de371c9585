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


def test_continuation_lines_are_aligned_with_their_part():
    assert fit("  why    they are 0.0059 apart", 24) == "  why    they are 0.0059\n           apart"
    assert fit("         in float64 too", 20) == "         in float64\n           too"


def test_code_and_a_line_of_code_at_a_place_stay_whole():
    message = """found after two programs, and more words
the smallest program found:
    def forward(self, x, y, and_another):

        return x + y + and_another
an answer of several words:
  where  model.py:3, in Model.forward:  y = self.a(self.b(x)) + 2"""
    assert fit(message, 30).splitlines() == [
        "found after two programs, and",
        "  more words",
        "the smallest program found:",
        "    def forward(self, x, y, and_another):",
        "",
        "        return x + y + and_another",
        "an answer of several words:",
        "  where  model.py:3, in",
        "           Model.forward:",
        "           y = self.a(self.b(x)) + 2",
    ]


def test_a_longer_path_stays_aligned_with_its_part():
    path = f".pytest_fx/{'a' * 30}.py"
    assert fit(f"a test:\n  {path}", 20) == f"a test:\n  {path}"


USERS_TEST = """
import pytest
from fx.errors import FxError
from pytest_fx.errors import LawViolation

class TestOfTheUser:
    def test_ours(self):
        raise LawViolation("contract", "a pass with a long name changes " + 12 * "what ", why=30 * "words ")

@pytest.mark.parametrize("what", ["short", "long " * 20])
def test_theirs(what):
    raise ValueError(what)

def test_short():
    raise FxError("is short")
"""


@pytest.mark.parametrize("style", ["auto", "short"])
def test_no_line_of_an_error_is_longer_than_the_terminal(pytester, monkeypatch, style):
    monkeypatch.setenv("COLUMNS", "60")
    result = pytester.runpytest(pytester.makepyfile(USERS_TEST), f"--tb={style}")
    result.assert_outcomes(failed=4)
    output = str(result.stdout)
    ours = [line for line in output.splitlines() if line.startswith("E ") and "long long" not in line]
    assert max(map(len, ours)) <= 60
    assert "".join(ours).count("words") == 30
    assert " LawViolation: law 'contract': a pass with a long" in output
    assert f"ValueError: {'long ' * 20}".rstrip() in output  # that of others is left alone
    assert "fx.errors.FxError: is short" in output  # as is one that fits


def test_an_error_with_a_line_of_code_is_broken_around_it_without_the_note_on_hidden_frames(pytester, monkeypatch):
    monkeypatch.setattr("pytest_fx.lines.terminal_width", lambda: 80)
    pytester.makepyfile(
        mine="""
        def crash(graph_module):
            raise KeyError("a text that is long enough", "to go past the end of a line of 80")
        """
    )
    output = str(
        pytester.runpytest("--fx-model", "mlp", "--fx-pass", "mine:crash", "--fx-no-timing", "-k", "keeps").stdout
    )
    code = 'raise KeyError("a text that is long enough", "to go past the end of a line of 80")'
    message = output[output.index("LawViolation: law 'refusal'") : output.index("short test summary")]
    assert f", in crash:\n               {code}\n" in message
    assert max(len(line) for line in message.splitlines() if code not in line and len(line.split()) > 2) <= 80
    assert "All traceback entries are hidden" not in output


def test_messages_on_ended_processes_and_checks_follow_the_width(pytester, monkeypatch):
    for module in ("lines", "report.summary"):
        monkeypatch.setattr(f"pytest_fx.{module}.terminal_width", lambda: 70)
    pytester.makepyfile(
        mine="""
        import os

        def ends(graph_module):
            os._exit(7)

        def nothing(graph_module):
            return graph_module
        """,
        test_ours="""
        def test_check(fx_check_pass):
            import mine
            fx_check_pass(mine.nothing, min_changed=0, max_examples=1, isolate=False)
        """,
    )
    run = ("--fx-model", "mlp", "--fx-pass", "mine:ends", "--fx-no-timing", "-k", "test_pass_keeps", "--fx-isolate")
    output = str(pytester.runpytest(*run).stdout)
    message = output[output.index("pytest_fx.errors.ProcessEnded: ") : output.index("short test summary")]
    assert "with status 7" in " ".join(message.split()) and max(map(len, message.splitlines()[:-1])) <= 70
    output = str(pytester.runpytest("test_ours.py").stdout)
    assert (
        "nothing changed 0 of 1 programs and kept 27 laws; 1 of 1 lines and\n  branches of its code were reached"
        in output
    )

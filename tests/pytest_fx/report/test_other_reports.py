"""pytest_fx.report.other_reports: JUnit's XML and pytest-html have the facts of a test."""

from __future__ import annotations

from xml.etree import ElementTree

MINE = """
import copy, torch
def shifted(program):
    program = copy.deepcopy(program)
    with torch.no_grad():
        for parameter in program.parameters():
            parameter.add_(0.1)
    return program
"""
RUN = ("--fx-model", "mlp", "--fx-size", "small", "--fx-no-timing", "-k", "pass_keeps_its_contract")


def properties_of(path):
    (case,) = ElementTree.parse(path).getroot().iter("testcase")
    return {element.get("name"): element.get("value") for element in case.iter("property")}


def test_junit_has_the_verdict_and_the_numbers_of_a_test_as_properties(mine):
    mine.runpytest(*RUN, "--fx-pass", "mine:shifted", "--junitxml", "junit.xml", "--fx-report", "report")
    properties = properties_of(mine.path / "junit.xml")
    assert (properties["fx model"], properties["fx program"], properties["fx result"]) == ("mlp", "shifted", "wrong")
    assert float(properties["fx error"]) > 1e-3 and properties["fx law"] == "contract"
    assert properties["fx first wrong node"].startswith("%") and ":" in properties["fx where"]
    assert not any("{" in name or name == "fx" for name in properties)
    assert (mine.path / "junit.xml").stat().st_size < 20_000


def test_pytest_html_is_given_a_text(mine):
    class Collector:
        def __init__(self):
            self.extras = []

        def pytest_runtest_logreport(self, report):
            self.extras += getattr(report, "extras", ())

    collector = Collector()
    mine.makeconftest(
        """
        class Html: pass
        def pytest_configure(config):
            if not config.pluginmanager.has_plugin("html"):
                config.pluginmanager.register(Html(), "html")
        """
    )
    mine.inline_run(*RUN, "--fx-pass", "mine:shifted", plugins=[collector])
    (failure,) = collector.extras
    assert failure["format_type"] == "text" and failure["content"].startswith("fx model: mlp\nfx program: shifted\n")


def test_properties_of_the_users_own_tests_stay(pytester):
    pytester.makepyfile("def test_one(record_property): record_property('mine', 1)")
    pytester.runpytest("--junitxml", "junit.xml", "-o", "junit_family=xunit1").assert_outcomes(passed=1)
    assert properties_of(pytester.path / "junit.xml") == {"mine": "1"}

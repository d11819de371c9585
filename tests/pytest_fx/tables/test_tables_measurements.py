"""Valid and outdated measurements, and lines that are no records."""

import pytest

from pytest_fx.records.records import describe_machine
from pytest_fx.tables import NotRun, Row, Scale
from pytest_fx.tables import measurements as measurements_module
from pytest_fx.tables.measurements import Measurements, code_fingerprint, measure

DAISY = Row("daisy", lambda: {"petals": 34}, {"garden": "north"})


@pytest.fixture
def measurements(tmp_path):
    return Measurements(tmp_path / "raw")


def test_a_measurement_holds_under_the_same_conditions(measurements, petals):
    assert measurements.still_holds(petals, DAISY) is None
    measurements.keep(petals, measure(DAISY))
    assert measurements.still_holds(petals, DAISY)["values"] == {"petals": 34}


@pytest.mark.parametrize(
    "change",
    [
        {"machine": "Abacus"},
        {"device": "Slide Rule"},
        {"python": "2.7"},
        {"cpu_capability": "none"},
        {"versions": {"torch": "1.0"}},
    ],
    ids=str,
)
def test_a_measurement_does_not_hold_under_other_conditions(measurements, petals, monkeypatch, change):
    measurements.keep(petals, measure(DAISY))
    here = {**describe_machine(), **change}
    monkeypatch.setattr(measurements_module, "describe_machine", lambda: here)
    assert measurements.still_holds(petals, DAISY) is None


def test_a_measurement_does_not_hold_for_other_code_or_settings(measurements, petals, monkeypatch):
    measurements.keep(petals, measure(DAISY))
    assert measurements.still_holds(petals, Row("daisy", dict, {"garden": "south"})) is None
    monkeypatch.setattr(measurements_module, "code_fingerprint", lambda: "other")
    assert measurements.still_holds(petals, DAISY) is None


def test_rows_of_other_code_are_counted(measurements, petals, monkeypatch):
    (daisy, *_), scale = petals.rows(Scale()), Scale()
    assert measurements.stale(petals, scale) == 0
    measurements.keep(petals, measure(daisy))
    assert measurements.stale(petals, scale) == 0
    monkeypatch.setattr(measurements_module, "code_fingerprint", lambda: "other")
    assert measurements.stale(petals, scale) == 1


def test_other_versions_of_test_tools_change_nothing(measurements, petals, monkeypatch):
    measurements.keep(petals, measure(DAISY))
    here = describe_machine()
    here = {**here, "commit": "other", "versions": {**here["versions"], "pytest": "1.0"}}
    monkeypatch.setattr(measurements_module, "describe_machine", lambda: here)
    assert measurements.still_holds(petals, DAISY) is not None


def test_only_the_last_measurement_of_a_row_can_hold(measurements, petals):
    measurements.keep(petals, measure(DAISY))
    measurements.keep(petals, measure(Row("daisy", lambda: {"petals": 33}, {"garden": "south"})))
    assert measurements.still_holds(petals, DAISY) is None


def test_a_reason_never_holds_so_that_it_is_looked_at_again(measurements, petals):
    def absent():
        raise NotRun("not run: no garden")

    measurements.keep(petals, measure(Row("daisy", absent)))
    assert measurements.last(petals, DAISY)["reason"] == "not run: no garden"
    assert measurements.still_holds(petals, Row("daisy", absent)) is None
    measurements.keep(petals, measure(DAISY))
    assert measurements.last(petals, DAISY)["values"] == {"petals": 34}


@pytest.mark.parametrize("line", ['{"row": "daisy"}', "[1]", "daisy", '{"row": "daisy", "values": {"pet'])
def test_a_line_that_is_no_record_is_counted_and_left_out(measurements, petals, line):
    measurements.keep(petals, measure(DAISY))
    with measurements.path(petals).open("a") as file:
        file.write(line + "\n\n")
    assert measurements.damaged(petals) == 1
    assert [record["row"] for record in measurements.read(petals)] == ["daisy"]


def test_the_fingerprint_of_the_code_changes_with_a_source_file(tmp_path, monkeypatch):
    source = tmp_path / "fx" / "node.py"
    source.parent.mkdir()
    source.write_text("first")
    monkeypatch.setattr(measurements_module.fx, "__path__", [str(source.parent)])

    def fingerprint():
        code_fingerprint.cache_clear()
        return code_fingerprint()

    try:
        first = fingerprint()
        assert fingerprint() == first
        source.write_text("second")
        assert fingerprint() != first
    finally:
        code_fingerprint.cache_clear()

"""Valid and outdated measurements, and lines that are no records."""

import sys
import types

import pytest

from pytest_fx.records.records import describe_machine
from pytest_fx.tables import NotRun, Row, Scale, __main__, used_files
from pytest_fx.tables import measurements as measurements_module
from pytest_fx.tables.measurements import Measurements, measure
from pytest_fx.tables.used_files import code_fingerprint, note_used_files
from pytest_fx.timing.paired import time_pairs

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
    monkeypatch.setattr(measurements_module, "code_fingerprint", lambda files: "other")
    assert measurements.still_holds(petals, DAISY) is None


def test_rows_of_other_code_are_counted(measurements, petals, monkeypatch):
    (daisy, *_), scale = petals.rows(Scale()), Scale()
    assert measurements.stale(petals, scale) == []
    measurements.keep(petals, measure(daisy))
    assert measurements.stale(petals, scale) == []
    monkeypatch.setattr(measurements_module, "code_fingerprint", lambda files: "other")
    assert measurements.stale(petals, scale) == ["daisy"]


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


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Writes files of a package in the place of ``fx``, and clears the caches."""
    folder = tmp_path / "fx"
    folder.mkdir()
    package = types.ModuleType("fx", "")
    package.__path__ = [str(folder)]
    monkeypatch.setattr(used_files, "_PACKAGES", (package,))

    def forget():
        for cached in (used_files._names_by_path, used_files._trees, used_files._fingerprint_of):
            cached.cache_clear()

    def write(name, text):
        (folder / name).write_text(text)
        forget()
        return folder / name

    yield write
    forget()


def test_the_fingerprint_of_the_code_changes_with_the_code_and_not_with_its_words(sources):
    sources("node.py", "first = 1")
    first = code_fingerprint()
    sources("node.py", '"""What it is."""\nfirst = 1  # the first\n"""Its meaning."""\n')
    assert code_fingerprint() == first
    sources("node.py", "first = 2")
    assert code_fingerprint() != first


def test_a_measurement_holds_until_a_file_that_it_used_changes(sources, measurements, petals):
    sources("rows.py", "ROWS = 1")
    path = sources("passes.py", "from fx.rows import ROWS")
    namespace = {}
    exec(compile("def apply(): return 34", str(path), "exec"), namespace)
    sources("drawing.py", "LINES = 1")
    daisy = Row("daisy", lambda: {"petals": namespace["apply"]()})
    record = measure(daisy)
    assert record["files"] == ["fx/passes.py", "fx/rows.py"]
    measurements.keep(petals, record)
    sources("drawing.py", "LINES = 2")
    assert measurements.still_holds(petals, daisy) is not None
    sources("rows.py", "ROWS = 2")
    assert measurements.still_holds(petals, daisy) is None


def test_no_profiler_slows_down_the_timed_calls():
    active = []
    with note_used_files():
        time_pairs(lambda: active.append(sys.getprofile()), lambda: None, rounds=2)
        assert sys.getprofile() is not None
    assert any(active)
    assert active[-1] is None


def test_the_rows_to_measure_again_are_listed_with_their_time(petals, register, write, tmp_path, monkeypatch, capsys):
    register(petals)
    machine = {part: describe_machine()[part] for part in ("machine", "cores", "device")}
    write("daisy", {"petals": 34}, **machine, took=90.0, code="0123")
    monkeypatch.setattr(sys, "argv", ["tables", str(tmp_path)])
    __main__.main()
    assert capsys.readouterr().out == (
        "petals: 1 of 2 rows to measure again; 1 of them took 1.5 minutes; 1 not measured here\n"
        "  daisy\n"
        "  pytest --fx-tables=petals\n"
    )

"""The documents made of measurements, as Markdown and CSV."""

import re
from dataclasses import replace

import pytest

from pytest_fx.tables.documents import OLDER, read_results, read_sections, write_documents
from pytest_fx.tables.table import Entry, Row, Scale


@pytest.fixture
def documents(petals, register, tmp_path):
    register(petals)
    return lambda figures=(): write_documents(read_sections(tmp_path), frozenset(figures))


def test_a_page_tells_claims_rows_and_circumstances(documents, write):
    write("daisy", {"petals": 1034})
    write("rose", {"petals": 5}, measured="2026-11-22T10:00:00+00:00", load=1.25)
    assert documents()["petals.md"] == (
        "# Petals\n\nPaper: section 7.\n\n"
        "Measured 2026-11-21 to 2026-11-22, at 1 commit.\n\n"
        "> A daisy has 34 petals.\n\nCounted by hand.\n\n## Abacus, 2 cores\n\n"
        "|  | petals | the paper |\n| --- | --- | --- |\n| daisy | 1,034 | 34 |\n| rose | 5 | - |\n\n"
        "Measured 2026-11-21 and 2026-11-22 at commit abc1234 with Python 3.11.7, torch 2.13.0, AVX512. "
        "The load average before each row, which includes the load of earlier rows, was 0.5 to 1.2.\n"
    )


def test_a_page_begins_with_the_age_of_its_rows(documents, write):
    write("daisy", {"petals": 34}, commit="abc1234-dirty", measured="2026-10-01T10:00:00+00:00")
    write("rose", {"petals": 5}, commit="def5678")
    top = documents()["petals.md"].partition("\n## ")[0]
    assert "Measured 2026-10-01 to 2026-11-21, at 2 commits; 1 of 2 rows with uncommitted changes." in top


def test_a_page_and_the_overview_begin_with_the_rows_that_are_older_than_the_code(documents, write):
    write("daisy", {"petals": 34})
    assert OLDER not in documents()["petals.md"]
    write("daisy", {"petals": 34}, code="0123")
    write("rose", {"petals": 5})
    page = documents()["petals.md"].split("\n\n")
    assert page[2].startswith(f"{OLDER}: 1 of 2 of `petals`. ")
    assert "`pytest --fx-tables=petals` measures such rows again" in page[2]
    assert f"{OLDER}: 1 of 2 of `petals`. " in documents()["README.md"].partition("| the paper")[0]


def test_a_figure_is_shown_if_there_is_one(documents, write):
    write("daisy", {"petals": 34})
    assert "svg" not in documents()["petals.md"]
    assert "\n![Petals by flower](petals-abacus-2-cores.svg)\n" in documents(["petals-abacus-2-cores.svg"])["petals.md"]


def test_the_overview_has_a_row_for_each_claim(documents, write):
    write("daisy", {"petals": 33})
    assert documents()["README.md"].endswith(
        "| the paper says | its number | here | table |\n| --- | --- | --- | --- |\n"
        "| A daisy has 34 petals. | 34 | 33 petals | [Petals](petals.md) |\n"
    )


def test_numbers_are_written_as_they_are_and_the_papers_under_their_own_name(documents, write):
    write("daisy", {"petals": 1034})
    write("rose", reason="not run: no | garden")
    assert documents()["petals.csv"] == (
        "machine,row,reason,petals,paper_petals\n"
        '"Abacus, 2 cores",daisy,,1034,34\n'
        '"Abacus, 2 cores",rose,not run: no | garden,,\n'
    )


def test_a_row_that_was_not_run_shows_the_reason_and_no_number(documents, write):
    write("daisy", reason="not run: no | garden")
    assert "| daisy | not run: no \\| garden | 34 |\n| rose | not measured yet | - |" in documents()["petals.md"]
    assert "| 34 | not run: no \\| garden |" in documents()["README.md"]


def test_the_last_record_of_a_row_is_reported(documents, write):
    write("daisy", {"petals": 33})
    write("daisy", {"petals": 34})
    assert "| daisy | 34 | 34 |" in documents()["petals.md"]
    assert "33" not in documents()["petals.md"]


def test_each_machine_has_a_section_and_is_named_in_the_overview(documents, write):
    write("daisy", {"petals": 33})
    write("daisy", {"petals": 34}, cores=1, device="Slide Rule")
    page = documents(["petals-abacus-1-core-slide-rule.svg"])["petals.md"]
    assert page.index("## Abacus, 2 cores\n") < page.index("## Abacus, 1 core, Slide Rule\n") < page.index("![Petals")
    assert "| Abacus, 2 cores: 33 petals<br>Abacus, 1 core, Slide Rule: 34 petals |" in documents()["README.md"]


def test_rows_that_machines_of_a_kind_shared_out_are_merged_and_their_hosts_named(documents, write):
    write("daisy", {"petals": 33}, host="one")
    assert "was measured on one host" not in documents()["petals.md"]
    write("rose", {"petals": 5}, host="two")
    page = documents()["petals.md"]
    assert page.count("## Abacus, 2 cores\n") == 1 and "| daisy | 33 | 34 |" in page and "| rose | 5 |" in page
    assert (
        "Each row was measured on one host; times of other hosts do not compare. one: daisy; two: all other rows."
        in page
    )


def test_a_row_that_the_table_has_no_more_is_left_out(documents, write):
    write("tulip", {"petals": 6})
    assert documents().keys() == {"README.md"}
    write("rose", {"petals": 5})
    assert "tulip" not in documents()["petals.md"]


def test_rows_of_small_models_are_reported_only_where_they_were_measured(documents, write):
    write("small daisy", {"petals": 8})
    page = documents()["petals.md"]
    assert "| small daisy | 8 | - |" in page and "rose" not in page
    assert "| not measured |" in documents()["README.md"]


def test_a_small_row_answers_a_claim_until_the_row_of_full_size_is_measured(petals, register, write, tmp_path):
    def rows(scale):
        small = [replace(row, stands_for="daisy") for row in petals.rows(Scale(size="small"))]
        return petals.rows(scale) if scale.size == "full" else small

    def overview():
        return write_documents(read_sections(tmp_path), frozenset())["README.md"]

    register(replace(petals, rows=rows))
    write("small daisy", {"petals": 8})
    assert "8 petals (measured: small daisy)" in overview() and "not measured" not in overview()
    write("daisy", {"petals": 34})
    assert "34 petals" in overview() and "small daisy" not in overview()


def test_an_address_in_a_reason_is_left_out(documents, write):
    write("daisy", reason="no object at 0x56383ad008a0")
    assert "no object at 0x…" in documents()["petals.md"] and "56383ad008a0" not in documents()["petals.csv"]


def test_hosts_are_listed_with_their_rows_except_for_the_one_with_most(petals, register, write, tmp_path):
    names = ("daisy, batch 1", "daisy, batch 8", "rose, batch 1", "rose, batch 8")
    register(replace(petals, rows=lambda scale: [Row(name, dict) for name in names] if scale.size == "full" else []))
    for name, host in zip(names, ("one", "one", "one", "two"), strict=True):
        write(name, {"petals": 1}, host=host)
    page = write_documents(read_sections(tmp_path), frozenset())["petals.md"]
    assert "two: rose, batch 8; one: all other rows." in page


def test_many_rows_of_a_host_are_counted(petals, register, write, tmp_path):
    names = [f"daisy, batch {number}" for number in range(30)]
    register(replace(petals, rows=lambda scale: [Row(name, dict) for name in names] if scale.size == "full" else []))
    for number, name in enumerate(names):
        write(name, {"petals": 1}, host="two" if number < 9 else "one")
    page = write_documents(read_sections(tmp_path), frozenset())["petals.md"]
    assert "two: 9 rows, which `raw/` names; one: all other rows." in page


def test_a_cell_without_its_number_cannot_be_shown():
    entry = Entry("rose", {"petals": 5}, {}, None)
    assert entry.format("{petals}") == "5"
    assert entry.format("{paper_petals}") is None


def test_rows_that_are_worked_out_of_others_are_below_them(petals, register, write, tmp_path):
    def sum_up(entries):
        return [Entry("all", {"petals": sum(entry.numbers.get("petals", 0) for entry in entries)}, {}, None)]

    register(replace(petals, totals=sum_up))
    write("daisy", {"petals": 30})
    write("rose", {"petals": 5})
    text = write_documents(read_sections(tmp_path), frozenset())["petals.md"]
    assert "| rose | 5 | - |\n| all | 35 | - |\n\nMeasured" in text


def test_rows_of_a_gpu_are_reported_under_the_machine_that_has_one(petals, register, write, tmp_path):
    register(
        replace(petals, rows=lambda scale: [Row("daisy", dict), Row("rose", dict, on_gpu=True), Row("lily", dict)])
    )

    def rows_by_machine():
        parts = write_documents(read_sections(tmp_path), frozenset())["petals.md"].split("\n## ")[1:]
        return {part.partition("\n")[0]: re.findall(r"^\| (\w+) \| ([\w :]+)", part, re.MULTILINE) for part in parts}

    write("daisy", {"petals": 34})
    write("rose", reason="not run: no GPU")
    alone = [("daisy", "34 "), ("rose", "not run: no GPU "), ("lily", "not measured yet ")]
    assert rows_by_machine() == {"Abacus, 2 cores": alone}
    write("rose", {"petals": 5}, cores=16, device="Loom")
    del alone[1]
    assert "| Abacus, 2 cores: 34 petals |" in write_documents(read_sections(tmp_path), frozenset())["README.md"]
    assert rows_by_machine() == {"Abacus, 2 cores": alone, "Abacus, 16 cores, Loom": [("rose", "5 ")]}


def test_the_overview_quotes_the_results_of_pages_that_other_commands_write(petals, register, tmp_path, write):
    register(petals)
    write("rose", {"petals": 34})
    (tmp_path / "models.md").write_text("# Models\n\n- **ours: 3 of 4** (all)\n\n**5 out.**\n\n| a | **b** |\n")
    overview = write_documents(read_sections(tmp_path), frozenset(), read_results(tmp_path))["README.md"]
    question = "[Which models of libraries can be captured?](models.md)"
    assert f"| {question} | ours: 3 of 4; 5 out | `make models` |" in overview.split("## Beyond the paper")[1]
    assert "catalogue.md" not in overview

"""The tables that come with the plugin: complete, and true to the paper and to the measurements."""

import os
from pathlib import Path

import pytest
import torch

from pytest_fx.tables import NotRun, Scale, get_table, list_tables, rows
from pytest_fx.tables.documents import OLDER, PAGES_OF_MAKE, read_results, read_sections, write_documents
from pytest_fx.tables.pairs import record_pairs, tell_pairs
from pytest_fx.tables.peers import OTHERS
from pytest_fx.tables.tables_run import files_in
from pytest_fx.timing.paired import PairedTiming

RESULTS = Path(__file__).parents[3] / "results"
OURS = ("fusion", "ir-complexity", "scheduling", "transform-times")
WITH_OWN_ROWS = [name for name in list_tables() if name != "simulation"]
"""Tables whose claims are about rows that are measured, and whose small rows have names of their own."""


def names(table, size="full"):
    return [row.name for row in get_table(table).rows(Scale(size=size))]


@pytest.fixture(scope="module")
def committed():
    """Return the committed records."""
    return read_sections(RESULTS)


def test_the_committed_tables_match_the_committed_records(committed):
    documents = write_documents(committed, files_in(RESULTS), read_results(RESULTS))
    tables = {path.name for path in RESULTS.iterdir() if path.suffix in (".md", ".csv")} - PAGES_OF_MAKE.keys()
    assert documents.keys() == tables
    for name, text in documents.items():
        written = (RESULTS / name).read_bytes().decode()
        assert _ageless(written) == _ageless(text), f"{name} is not what the records say: pytest --fx-tables"


def _ageless(text):
    """Return a page without the paragraph on rows that are older than the code, which each change of it may change."""
    return "\n\n".join(paragraph for paragraph in text.split("\n\n") if not paragraph.startswith(OLDER))


@pytest.mark.parametrize("table", WITH_OWN_ROWS)
def test_every_number_of_the_paper_and_every_claim_belongs_to_a_row(table):
    assert set(get_table(table).paper) <= set(names(table))
    for claim in get_table(table).claims:
        assert set(claim.found) <= set(names(table))


@pytest.mark.parametrize("table", OURS)
def test_every_measured_row_has_the_values_of_all_columns_and_claims(committed, table):
    for section in committed[table]:
        for entry in section.entries:
            if entry.reason is None:
                for column in section.table.columns:
                    is_optional = "paper" in column.template or column.heading in OTHERS.values()
                    assert entry.format(column.template) or is_optional
                for claim in section.table.claims:
                    assert entry.name not in claim.found or entry.format(claim.found[entry.name])


@pytest.mark.parametrize("table", WITH_OWN_ROWS)
def test_rows_have_names_of_their_own_that_do_not_depend_on_the_machine(table, monkeypatch):
    here = names(table) + names(table, "small")
    assert len(set(here)) == len(here)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert names(table) + names(table, "small") == here


def test_every_file_of_rows_is_imported():
    files = {path.stem for path in Path(rows.__path__[0]).glob("*.py")} - {"__init__"}
    assert files <= {name.replace("-", "_") for name in list_tables()}


def test_tables_are_known_by_name():
    assert set(OURS) <= set(list_tables())


def test_resnet50_has_the_papers_445_lines():
    (row,) = (row for row in get_table("ir-complexity").rows(Scale()) if row.name == "resnet50, fx, no leaf modules")
    assert row.measure() == {"nodes": 444, "lines": 445}


@pytest.mark.thorough
def test_nodes_inside_of_blocks_are_counted_in_a_process_of_its_own():
    (row,) = (
        row
        for row in get_table("ir-complexity").rows(Scale(size="small"))
        if row.name == "resnet_tiny, torch.jit.script"
    )
    size = row.measure()
    assert 169 < size["nodes"] < size["lines"]


def test_fusion_leaves_no_output_outside_of_the_papers_bound_in_float64():
    row = get_table("fusion").rows(Scale(size="small", rounds=2))[1]
    values = row.measure()
    assert row.name == "resnet_tiny, CPU, 1 thread, batch 2" and row.timed
    assert (values["outputs"], values["outside"]) == (20, 0)
    assert values["float64_error"] < 1e-12
    assert [len(values[name]) for name in ("unfused", "fused", "peer_unfused", "peer_fused")] == [2] * 4
    assert len(values["inductor"]) == 2
    assert {"inductor_speedup", "peer_fused_speedup", "fused_speedup"} <= set(get_table("fusion").numbers(values))


def test_every_model_of_the_zoo_is_captured_and_those_with_batch_norm_are_fused():
    row = next(
        row
        for row in get_table("transform-times").rows(Scale("small", 2))
        if "actor" in row.name and "fuse" in row.name
    )
    values = row.measure()
    assert row.timed and len(values["fx"]) == len(values["torch_fx"]) == 2
    captured = {name.removesuffix(", capture") for name in names("transform-times") if name.endswith(", capture")}
    assert captured >= {"resnet50", "deep_recommender", "transformer_encoder", "unet", "bert", "gpt2", "vit", "llama"}


def test_a_model_that_torch_fx_does_not_capture_has_a_row_that_says_so():
    rows = {row.name: row for row in get_table("transform-times").rows(Scale("small", 2))}
    with pytest.raises(NotRun, match=r"^torch\.fx cannot capture it: slice indices must be integers"):
        rows["gpt2_small, capture"].measure()


def test_pairs_are_reported_as_in_the_paper_and_as_a_ratio():
    timing = PairedTiming((2.0, 2.0, 3.0), (1.0, 2.0, 1.0), threads=1, iterations=1)
    numbers = tell_pairs(record_pairs(timing, "eager", "fused"), "eager", "fused")
    assert numbers["trials"] == 3
    assert numbers["eager_mean"] == pytest.approx(7 / 3) and numbers["eager_stdev"] == pytest.approx(0.57735, abs=1e-5)
    assert (numbers["fused_speedup"], numbers["fused_speedup_low"], numbers["fused_speedup_high"]) == (2, 1, 3)
    assert (numbers["fused_relative"], numbers["fused_relative_low"]) == (0.5, 0.333333)
    assert numbers["fused_relative_high"] == 1


def test_one_pair_has_no_deviation():
    timing = PairedTiming((2.0,), (1.0,), threads=1, iterations=1)
    assert tell_pairs(record_pairs(timing, "eager", "fused"), "eager", "fused")["fused_stdev"] == 0


@pytest.mark.parametrize("table", WITH_OWN_ROWS)
def test_a_small_row_answers_each_claim(table):
    full_rows = {row.stands_for for row in get_table(table).rows(Scale(size="small"))}
    assert full_rows - {""} <= set(names(table))
    for claim in get_table(table).claims:
        assert full_rows & set(claim.found), claim.sentence

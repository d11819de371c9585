"""A table that nobody registers, and records of it by hand."""

import json
from functools import partial

import pytest

from pytest_fx.tables import Chart, Claim, Column, Row, Series, Table, peers, register_table, table
from pytest_fx.tables.used_files import code_fingerprint


@pytest.fixture(autouse=True)
def no_other_compilers(monkeypatch):
    """Takes eager in the place of other compilers, which need seconds for each model."""
    for name in ("_by_inductor", "_by_onnxruntime"):
        monkeypatch.setattr(peers, name, lambda module, inputs: partial(module, *inputs))


@pytest.fixture
def petals():
    return Table(
        name="petals",
        title="Petals",
        section="section 7",
        protocol="Counted by hand.",
        claims=(Claim("A daisy has 34 petals.", "34", {"daisy": "{petals} petals"}),),
        rows=lambda scale: [
            Row(name, lambda: {"petals": 5})
            for name in (("daisy", "rose") if scale.size == "full" else ("small daisy",))
        ],
        columns=(Column("petals", "{petals:,}"), Column("the paper", "{paper_petals:,}")),
        chart=Chart(
            "Petals by flower",
            "petals",
            (
                Series("here", "petals", "ours", "petals_low", "petals_high"),
                Series("the paper", "paper_petals", "paper"),
            ),
        ),
        paper={"daisy": {"petals": 34}},
    )


@pytest.fixture
def register(monkeypatch):
    """Makes a table the only registered one."""

    def register(made):
        monkeypatch.setattr(table, "_tables", table.Registry("table", "tables"))
        return register_table(made)

    return register


@pytest.fixture
def write(tmp_path):
    """Appends a complete record of the table by hand."""

    def write(row, values=None, reason=None, **others):
        record = {
            "measured": "2026-11-21T10:00:00+00:00",
            "row": row,
            "reason": reason,
            "values": values,
            "load": 0.5,
            "settings": {},
            "code": code_fingerprint(),
            "machine": "Abacus",
            "cores": 2,
            "device": None,
            "cpu_capability": "AVX512",
            "python": "3.11.7",
            "system": "Linux",
            "versions": {"torch": "2.13.0"},
            "commit": "abc1234",
            **others,
        }
        path = tmp_path / "raw" / "petals.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    return write

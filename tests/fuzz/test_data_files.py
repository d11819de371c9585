"""Damaged files of the plugin and of the lowering's cache: an error that names the damage, or the intact rest."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import bytes_damaged, damaged_tree, text_damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fx.errors import LoweringError
from fx.lowering.tensorrt.engine import TensorRTEngine
from fx.lowering.tensorrt.network import EngineBinding
from pytest_fx.records.baseline import Baseline, Measurement, read_baseline
from pytest_fx.records.journal import Journal
from pytest_fx.records.records import describe_machine, read_records
from pytest_fx.tables.documents import read_sections, write_documents
from pytest_fx.tables.measurements import Measurements
from pytest_fx.tables.table import get_table, list_tables

RAW = Path(__file__).resolve().parents[2] / "results" / "raw"
TIMING = {
    "model": "resnet50", "pass": "fuse-conv-bn", "batch": 8, "dtype": "float32", "device": "cpu", "threads": 1,
    "speedup": 1.2, "speedup_interval": [1.1, 1.3], "role": "transformed",
}  # fmt: skip
ROW = {
    "model": "resnet50", "program": "fuse-conv-bn", "edits": 53, "nodes_before": 177, "nodes_after": 124,
    "changed": True,
}  # fmt: skip
"""Records as in a journal."""
NOW = Measurement("resnet50", "fuse-conv-bn", 8, "float32", "cpu", 1, 1.1, 1.0, 1.2, "this machine")


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def baselines() -> list[Any]:
    machine = describe_machine()
    record = {
        "time": "2026-11-22T10:00:00+00:00",
        "test": "t",
        "row": ROW,
        "timing": {"info": TIMING},
        "machine": machine,
    }
    return [
        {"journal": "runs/a.jsonl", "records": [record, record]},
        record,
        {"machine_info": {"fx": machine}, "benchmarks": [{"extra_info": TIMING, "stats": {"median": 0.1}}]},
    ]


def look_at_baseline(path: Path) -> None:
    try:
        baseline = read_baseline(path, path.name)
    except pytest.UsageError:
        return
    again = Baseline.from_data(json.loads(json.dumps(baseline.as_data())))
    for measurement in again.measurements.values():
        assert str(measurement)
        for change in (again.change(NOW), Baseline.of("now", [NOW]).change(measurement)):
            if change is not None:
                assert not math.isnan(change.slowdown)
                assert change.verdict in ("slower", "faster", "no change shown")
                assert isinstance(change.exceeds(0.1) or change.too_noisy(), bool)
    for match_count in again.match_counts.values():
        assert str(match_count)
        assert isinstance(match_count.less_than(match_count), bool)


def journals() -> list[Any]:
    return baselines()[:2]


def look_at_journal(path: Path) -> None:
    assert all(isinstance(record, dict) for record in read_records(path))
    journal = Journal(path.parent)
    journal.path = path
    journal.append({"row": ROW})
    journal.finish()
    written = json.loads((journal.folder / "last_run.json").read_text("utf-8"))
    assert written["records"][-1]["row"] == ROW


def records() -> list[Any]:
    lines = [path.read_text("utf-8").splitlines()[-1] for path in sorted(RAW.glob("*.jsonl"))]
    return [json.loads(line) for line in lines]


def look_at_records(path: Path) -> None:
    folder = path.parent / "raw"
    folder.mkdir(exist_ok=True)
    for name in list_tables():
        (folder / f"{name}.jsonl").write_bytes(path.read_bytes())
    for text in write_documents(read_sections(path.parent), frozenset()).values():
        text.encode()
    assert all(Measurements(folder).damaged(get_table(name)) >= 0 for name in list_tables())


def engine() -> bytes:
    binding = EngineBinding("x", torch.float32, (1, 3), (8, 3), (64, 3))
    return TensorRTEngine(b"plan", (binding,), (binding,), True, "tensorrt 10", ("9.0",), 1.5).to_bytes()


def look_at_engine(path: Path) -> None:
    try:
        loaded = TensorRTEngine.load(path)
    except LoweringError:
        return
    assert TensorRTEngine.from_bytes(loaded.to_bytes()) == loaded
    assert all(isinstance(size, int) for binding in (*loaded.inputs, *loaded.outputs) for size in binding.least)


def engine_with(header: str) -> bytes:
    text = as_bytes(header)
    return b"fx-engine-1\n" + struct.pack("<Q", len(text)) + text + b"plan"


def engine_headers() -> list[Any]:
    content = engine()
    start = len(b"fx-engine-1\n") + 8
    (length,) = struct.unpack("<Q", content[start - 8 : start])
    return [json.loads(content[start : start + length])]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file."""

    trees: Callable[[], list[Any]]
    written: Callable[[str], bytes]
    look: Callable[[Path], None]


KINDS = {
    "baseline": Kind(baselines, as_bytes, look_at_baseline),
    "journal": Kind(journals, as_bytes, look_at_journal),
    "records": Kind(records, as_bytes, look_at_records),
    "engine": Kind(engine_headers, engine_with, look_at_engine),
}


@st.composite
def damaged(draw: st.DrawFn, kind: Kind) -> bytes:
    """A file with other values in its JSON, or with other bytes."""
    tree = copy.deepcopy(draw(st.sampled_from(kind.trees())))
    how = draw(st.sampled_from(["tree", "tree", "text", "bytes"]))
    if how == "tree":
        for _ in range(draw(st.integers(1, 3))):
            tree = damaged_tree(draw, tree) if isinstance(tree, (dict, list)) else tree
        return kind.written(json.dumps(tree))
    if how == "text":
        return kind.written(text_damaged(draw, json.dumps(tree)))
    return bytes_damaged(
        draw, kind.written(json.dumps(tree)), [kind.written(json.dumps(tree)) for tree in kind.trees()]
    )


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_damaged_file_is_reported_or_read_as_far_as_it_goes(kind: Kind, tmp_path: Path) -> None:
    @settings(
        max_examples=min(10_000, max(100, settings().max_examples)),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(kind))
    def look(content: bytes) -> None:
        path = tmp_path / "damaged"
        path.write_bytes(content)
        kind.look(path)

    look()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_whole_file_is_read(kind: Kind, tmp_path: Path) -> None:
    for tree in kind.trees():
        path = tmp_path / "whole"
        path.write_bytes(kind.written(json.dumps(tree)))
        kind.look(path)

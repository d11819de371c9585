"""The table of lowering: small models are measured, and rows without a device report that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fx.lowering import get_backend
from pytest_fx.tables import Entry, NotRun, Scale, get_table, peers
from pytest_fx.tables.peers import OTHERS, compiled_by_others

BY_OTHERS = {name: getattr(peers, name) for name in ("_by_inductor", "_by_onnxruntime")}


def rows() -> dict[str, object]:
    return {row.name: row for row in get_table("lowering").rows(Scale(size="small", rounds=2))}


@pytest.mark.parametrize(
    "model, backend", [("resnet_tiny", "onednn"), ("resnet_tiny", "openvino"), ("bert_small", "openvino")]
)
def test_a_small_model_is_lowered_timed_and_compared(model, backend):
    if (why := get_backend(backend).why_unavailable()) is not None:
        pytest.skip(why)
    values = rows()[f"{model}, {backend}, batch 2"].measure()
    numbers = get_table("lowering").numbers(values)
    assert numbers["trials"] == len(values["eager"]) == 2
    assert numbers["error"] < 1e-4
    assert 0 <= numbers["outside"] <= numbers["outputs"]
    assert numbers["lowering"] > 0
    assert len(values["inductor"]) == 2 and numbers["inductor_speedup"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_row_for_a_gpu_says_that_there_is_none():
    with pytest.raises(NotRun, match=r"^not run: no GPU; "):
        rows()["learning_to_paint_actor_small, tensorrt, batch 4"].measure()


def test_a_compiler_that_fails_leaves_its_column_empty(monkeypatch):
    def fail(module, inputs):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(peers, "_by_inductor", fail)
    monkeypatch.setattr(peers, "_by_onnxruntime", fail)
    values = rows()["resnet_tiny, onednn, batch 1"].measure()
    assert not set(OTHERS) & set(values)
    entry = Entry("resnet_tiny", get_table("lowering").numbers(values), {}, None)
    cells = {column.heading: entry.format(column.template) for column in get_table("lowering").columns}
    assert cells["torch.compile"] is cells["ONNX Runtime"] is None and cells["speed-up"]


@pytest.mark.thorough  # Inductor compiles C++
def test_other_compilers_compute_what_eager_computes(monkeypatch):
    module, image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    for name, compile_module in BY_OTHERS.items():
        monkeypatch.setattr(peers, name, compile_module)
    calls = compiled_by_others(module, [image])
    assert set(calls) == set(OTHERS)
    for call in calls.values():
        with torch.no_grad():
            torch.testing.assert_close(call(), module(image))


def test_the_papers_speed_up_is_worked_out_of_its_times():
    assert get_table("lowering").paper["resnet50, tensorrt, batch 256"]["lowered_speedup"] == 3.69

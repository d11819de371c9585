"""The table of lowering: small models are measured, and rows without a device report that."""

from __future__ import annotations

import pytest
import torch

from fx.lowering import get_backend
from pytest_fx.tables import NotRun, Scale, get_table


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_row_for_a_gpu_says_that_there_is_none():
    with pytest.raises(NotRun, match=r"^not run: no GPU; "):
        rows()["learning_to_paint_actor_small, tensorrt, batch 4"].measure()


def test_the_papers_speed_up_is_worked_out_of_its_times():
    assert get_table("lowering").paper["resnet50, tensorrt, batch 256"]["lowered_speedup"] == 3.69

"""The models of the zoo, captured, go through data-only files and compute the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fx
from fx import serialization
from fx.errors import SaveError
from model_zoo import get_model, list_models
from model_zoo.small_models import Scores

serialization.allow(Scores)

SMALL = [name for name in list_models() if name.endswith("_small")]


@pytest.mark.parametrize(
    "name", ["functional_convnet", "mlp", "resnet50", "resnet_tiny", "shared_convnet", "two_heads", *SMALL]
)
def test_a_saved_model_is_the_model(name: str, tmp_path: Path) -> None:
    model = get_model(name)
    program = fx.symbolic_trace(model.build())
    path = tmp_path / "program"
    if "critic" in name:  # parametrized: its weights are computed
        with pytest.raises(SaveError, match="remove_parametrizations"):
            serialization.save(program, path)
        return
    serialization.save(program, path)
    loaded = serialization.load(path)
    assert loaded.code == program.code
    assert str(loaded.graph) == str(program.graph)
    inputs = model.example_inputs(batch=2)
    with torch.no_grad():
        torch.testing.assert_close(loaded(*inputs), program(*inputs), rtol=0, atol=0, equal_nan=True)

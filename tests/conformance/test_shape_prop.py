"""``ShapeProp`` writes what torch.fx's writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.passes import shape_prop as theirs

from fx.passes import shape_prop as ours

from .libraries import OURS, THEIRS
from .programs import Program
from .test_corpus_runs import interprets, positional_inputs

pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")


def notes(program: Program, library: Any, analysis: Any, fake: bool) -> list[tuple[str, Any]]:
    """Type and metadata of each node; torch.fx runs on frozen lists and dicts, this library on plain ones."""
    captured = copy.deepcopy(program.captured(library))
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
    analysis(captured, mode).propagate(*positional_inputs(program, captured))
    return [
        (node.meta["type"].__name__.removeprefix("immutable_"), plain(node.meta.get("tensor_meta")))
        for node in captured.graph.nodes
    ]


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return repr(value)


def test_notes_of_a_real_run_are_equal(program: Program) -> None:
    if not interprets(program):
        pytest.skip("an interpreter takes no keyword arguments")
    if program.name in ("ModuleFlags", "containers_of_other_classes"):
        pytest.skip("has other nodes: see differences.py")
    assert notes(program, OURS, ours.ShapeProp, False) == notes(program, THEIRS, theirs.ShapeProp, False)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 3),
        lambda: torch.ones(2, 3).t(),
        lambda: torch.tensor(1),
        lambda: torch.ones(0, 3),
        lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.ones(1, 1, 1, 1),
        lambda: torch.ones(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.ones(3).expand(2, 3),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 3, torch.quint8),
        lambda: torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8),
    ],
)
def test_metadata_of_a_tensor_is_equal(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    assert ours.TensorMetadata._fields == theirs.TensorMetadata._fields
    for contiguity in (True, False):
        assert tuple(ours._extract_tensor_metadata(tensor, contiguity)) == tuple(
            theirs._extract_tensor_metadata(tensor, contiguity)
        )

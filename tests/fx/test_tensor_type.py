"""Types of tensors: their order, and their way through captures, code, copies and files."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import fx
from fx.errors import GraphError
from fx.tensor_type import Dyn, TensorType, is_consistent, is_more_precise


def test_consistency_is_symmetric_and_not_transitive() -> None:
    full, other, unknown = TensorType((1, 2)), TensorType((1, 3)), TensorType((1, Dyn))
    assert is_consistent(full, unknown) and is_consistent(unknown, full) and is_consistent(unknown, other)
    assert not is_consistent(full, other)
    assert is_consistent(full, Dyn) and not is_consistent(full, TensorType((1, 2, 3)))
    assert is_consistent(TensorType(("n",)), TensorType((3,)))


def test_a_type_is_more_precise_if_it_knows_more_sizes() -> None:
    assert is_more_precise(TensorType((1, 2)), TensorType((1, Dyn)))
    assert is_more_precise(TensorType(("n", 2)), TensorType((Dyn, Dyn)))
    assert not is_more_precise(TensorType((1, Dyn)), TensorType((1, 2)))
    assert is_more_precise(TensorType((1,)), Dyn) and not is_more_precise(Dyn, TensorType((1,)))


@pytest.mark.parametrize("size", [-1, 1.5, True, None, "h w", "2"])
def test_a_size_is_a_number_a_name_or_dyn(size: Any) -> None:
    with pytest.raises(GraphError, match=r"a size of a TensorType is a number of at least 0, a name or Dyn, not"):
        TensorType((3, size))


def test_the_sizes_are_a_sequence() -> None:
    with pytest.raises(GraphError, match="takes the sizes of all dimensions, not an int"):
        TensorType(3)  # type: ignore[arg-type]


def typed() -> fx.GraphModule:
    class Typed(torch.nn.Module):
        def forward(self, x: TensorType(("n", 3, Dyn))):  # type: ignore[valid-type]
            return torch.relu(x)

    return fx.symbolic_trace(Typed())


def test_annotations_of_inputs_become_types_of_nodes() -> None:
    (x,) = typed().graph.find_nodes(op="placeholder")
    assert x.type == TensorType["n", 3, Dyn]
    assert "%x : TensorType[('n', 3, Dyn)]" in str(x.format_node())


@pytest.mark.parametrize("through", ["copy", "pickle", "file"])
def test_types_survive_copies_pickles_and_files(through: str, tmp_path: Path) -> None:
    program = typed()
    program.graph.find_nodes(op="call_function")[0].type = Dyn
    program.graph.output_node().type = tuple[TensorType((0, Dyn)), Dyn]  # type: ignore[misc]
    program.recompile()
    if through == "file":
        fx.save(program, tmp_path / "typed")
        restored = fx.load(tmp_path / "typed")
    else:
        restored = copy.deepcopy(program) if through == "copy" else pickle.loads(pickle.dumps(program))
    types = [node.type for node in restored.graph.nodes]
    assert types == [TensorType(("n", 3, Dyn)), Dyn, tuple[TensorType((0, Dyn)), Dyn]]  # type: ignore[misc]
    assert types[1] is Dyn
    assert torch.equal(restored(-torch.ones(2, 3, 1)), torch.zeros(2, 3, 1))

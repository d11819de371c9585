"""Every program of the corpus computes the same bits as eager, however it is run, copied or stored."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fx import serialization
from fx.errors import SaveError

from . import function_programs
from .differences import assert_equal_unless_intended
from .libraries import OURS, THEIRS, assert_identical, describe_graph
from .programs import Program

pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")


def eager(program: Program) -> Any:
    """Return the result of the program itself."""
    return program.build()(*program.inputs(), **program.keywords)


def positional_inputs(program: Program, graph_module: Any) -> tuple[Any, ...]:
    """The inputs in order of the placeholders, keywords included, as an interpreter takes them."""
    inputs = list(program.inputs())
    if not program.keywords:
        return tuple(inputs)
    remaining = dict(program.keywords)
    for node in list(graph_module.graph.find_nodes(op="placeholder"))[len(inputs) :]:
        if node.target.startswith("**"):
            break
        if not node.target.startswith("*"):
            inputs.append(remaining.pop(node.target) if node.target in remaining else node.args[0])
    return tuple(inputs)


def interprets(program: Program) -> bool:
    """Return whether an interpreter, which takes positional arguments only, can be given this program's inputs."""
    return not any(parameter in program.name for parameter in ("keyword_variadic", "every_kind"))


def test_generated_code_computes_what_eager_does(library: ModuleType, program: Program) -> None:
    assert_identical(program.captured(library)(*program.inputs(), **program.keywords), eager(program))


def test_interpreter_computes_what_eager_does(library: ModuleType, program: Program) -> None:
    if not interprets(program):
        pytest.skip("an interpreter takes no keyword arguments")
    captured = program.captured(library)
    assert_identical(library.Interpreter(captured).run(*positional_inputs(program, captured)), eager(program))


def test_interpreter_keeps_and_frees_the_same_values(program: Program) -> None:
    if not interprets(program):
        pytest.skip("an interpreter takes no keyword arguments")
    if program.name == "containers_of_other_classes":
        pytest.skip("has other nodes: see differences.py")
    recorded = []
    for library in (OURS, THEIRS):
        captured = program.captured(library)
        names = []
        for collects in (True, False):
            interpreter = library.Interpreter(captured, garbage_collect_values=collects)
            interpreter.run(*positional_inputs(program, captured))
            names.append([node.name for node in interpreter.env])
        recorded.append(names)
    assert_equal_unless_intended(recorded[0], recorded[1], program.name, "names")


def test_transformed_module_computes_what_eager_does(program: Program) -> None:
    transformed = OURS.Transformer(program.captured(OURS)).transform()
    if transformed.graph._codegen.__class__.__name__ == "_PyTreeCodeGen":
        pytest.skip("torch.fx's Transformer does not give flattened inputs back to the module")
    assert_identical(transformed(*program.inputs(), **program.keywords), eager(program))


def test_retraced_module_computes_what_eager_does(library: ModuleType, program: Program) -> None:
    if library is THEIRS and not program.retraces_in_torch_fx:
        pytest.skip("torch.fx cannot trace its own code again here")
    retraced = library.symbolic_trace(program.captured(library))
    assert_identical(retraced(*program.inputs(), **program.keywords), eager(program))


def test_deepcopy_computes_the_same_and_shares_nothing(program: Program) -> None:
    captured = program.capture(OURS)
    copied = copy.deepcopy(captured)
    assert_identical(copied(*program.inputs(), **program.keywords), eager(program))
    assert copied.graph is not captured.graph
    assert copied.code == captured.code
    assert describe_graph(copied.graph) == describe_graph(captured.graph)
    assert type(copied) is not type(captured)
    originals = {tensor.data_ptr() for tensor in captured.state_dict().values()}
    assert originals.isdisjoint(tensor.data_ptr() for tensor in copied.state_dict().values())


def test_shallow_copy_shares_graph_and_state(program: Program) -> None:
    captured = program.capture(OURS)
    copied = copy.copy(captured)
    assert copied.graph is captured.graph or describe_graph(copied.graph) == describe_graph(captured.graph)
    for name, tensor in captured.state_dict().items():
        assert copied.state_dict()[name].data_ptr() == tensor.data_ptr()
    assert_identical(copied(*program.inputs(), **program.keywords), eager(program))


def test_pickle_carries_the_graph_itself(program: Program) -> None:
    if not program.pickles:
        pytest.skip("torch does not pickle parametrized modules")
    captured = program.captured(OURS)
    restored = pickle.loads(pickle.dumps(captured))
    assert_identical(restored(*program.inputs(), **program.keywords), eager(program))
    assert describe_graph(restored.graph) == describe_graph(captured.graph)
    assert restored.code == captured.code
    assert list(restored.state_dict()) == list(captured.state_dict())
    assert type(restored).__name__ == type(captured).__name__
    restored.graph.lint()


def test_saved_module_computes_the_same(program: Program) -> None:
    if not program.pickles:
        pytest.skip("torch does not pickle parametrized modules")
    buffer = io.BytesIO()
    torch.save(program.captured(OURS), buffer)
    buffer.seek(0)
    restored = torch.load(buffer, weights_only=False)
    assert_identical(restored(*program.inputs(), **program.keywords), eager(program))


def test_code_is_kept_when_recompiled(program: Program) -> None:
    captured = program.capture(OURS)
    before = captured.code
    captured.recompile()
    assert captured.code == before
    captured.graph = captured.graph
    assert captured.code == before
    captured.graph.lint()


# Data-only files.

for _name in "Mode Point Settings decorated_leaf leaf leaf_of_objects leaf_of_pair".split():
    serialization.allow(getattr(function_programs, _name))

CANNOT_BE_SAVED = {"Parametrized": "remove_parametrizations"}
"""Programs that a file cannot hold, with a part of the error's advice."""


def test_a_saved_program_is_the_program(program: Program, tmp_path: Path) -> None:
    captured = program.captured(OURS)
    path = tmp_path / "program"
    if program.name in CANNOT_BE_SAVED:
        with pytest.raises(SaveError, match=CANNOT_BE_SAVED[program.name]):
            serialization.save(captured, path)
        return
    serialization.save(captured, path)
    loaded = serialization.load(path)
    assert describe_graph(loaded.graph) == describe_graph(captured.graph)
    assert str(loaded.graph) == str(captured.graph)
    assert loaded.code == captured.code
    assert [node.source for node in loaded.graph.nodes] == [node.source for node in captured.graph.nodes]
    assert_identical(dict(loaded.state_dict()), dict(captured.state_dict()))
    assert [name for name, _ in loaded.named_modules()] == [name for name, _ in captured.named_modules()]
    results = []
    for module in (captured, loaded):
        torch.manual_seed(3)
        results.append(module(*program.inputs(), **program.keywords))
    assert_identical(results[1], results[0])
    first = path.read_bytes()
    serialization.save(loaded, path)
    again = serialization.load(path)
    assert again.code == captured.code
    serialization.save(again, path)
    assert len(path.read_bytes()) <= len(first)

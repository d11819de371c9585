"""Generated source at work: compiled when needed, visible to tracebacks, inspect and pdb, gone with its module."""

from __future__ import annotations

import gc
import inspect
import io
import linecache
import pdb
import sys
import traceback

import pytest
import torch

import fx


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        big = x * 2
        return big + torch.ones(3, 4)  # shapes do not match


def generated_files() -> set[str]:
    gc.collect()  # drop the entries of other tests
    return {name for name in linecache.cache if name.startswith("<eval_with_key>")}


def test_forward_is_compiled_on_first_use_only() -> None:
    before = generated_files()
    module = fx.symbolic_trace(Scale())
    assert not generated_files() - before
    module(torch.ones(4))
    assert len(generated_files() - before) == 1
    module(torch.ones(4))
    assert len(generated_files() - before) == 1


def test_source_disappears_with_its_module() -> None:
    before = generated_files()
    module = fx.symbolic_trace(Scale())
    module(torch.ones(4))
    del module
    gc.collect()
    assert generated_files() <= before


def test_source_of_replaced_code_disappears() -> None:
    before = generated_files()
    module = fx.symbolic_trace(Scale())
    module(torch.ones(4))
    first = generated_files() - before
    module.recompile()
    module(torch.ones(4))
    gc.collect()
    assert not first & generated_files()
    assert len(generated_files() - before) == 1


def test_a_forward_that_outlives_its_module_keeps_its_source() -> None:
    forward = fx.symbolic_trace(lambda x: x + 1).forward
    gc.collect()
    assert "x + 1" in inspect.getsource(forward)
    assert forward(1) == 2


def test_inspection_shows_the_generated_source() -> None:
    module = fx.symbolic_trace(Scale())
    source = inspect.getsource(module.forward)
    assert source.strip() == module.code.strip()
    assert inspect.getsource(type(module).forward) == source
    assert list(inspect.signature(module.forward).parameters) == ["x"]
    assert module.forward.__code__.co_filename in generated_files()


def test_errors_show_the_generated_line_and_carry_node_and_users_line() -> None:
    module = fx.symbolic_trace(Scale())
    with pytest.raises(RuntimeError, match="must match the size") as caught:
        module(torch.ones(5))
    text = "".join(traceback.format_exception(caught.value))
    assert 'File "<eval_with_key>.' in text
    assert "    add = mul + _tensor_constant0" in text
    (note,) = caught.value.__notes__
    generated, node, where = note.splitlines()
    assert generated.startswith("in generated code of Scale, line ")
    assert generated.endswith("add = mul + _tensor_constant0;  mul = _tensor_constant0 = None")
    assert node == "  node   %add = call_function[operator.add](%mul, %_tensor_constant0)"
    assert where.startswith(f"  where  {__file__}:")
    assert where.endswith(
        "in Scale.forward:  return big + torch.ones(3, 4)  # shapes do not match"
    ) or sys.version_info < (3, 11)


def test_errors_name_the_users_line_but_no_node_once_the_graph_is_edited() -> None:
    module = fx.symbolic_trace(Scale())
    with module.graph.inserting_before():
        module.graph.placeholder("early")
    with pytest.raises(RuntimeError) as caught:
        module(torch.ones(5))
    (note,) = caught.value.__notes__
    generated, where = note.splitlines()
    assert generated.startswith("in generated code of Scale, line 7:  add = mul + _tensor_constant0")
    assert "return big + torch.ones(3, 4)" in where


def test_errors_of_nested_programs_carry_a_note_of_each() -> None:
    inner = fx.symbolic_trace(Scale())
    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    outer = fx.GraphModule({"inner": inner}, graph, "Outer")
    with pytest.raises(RuntimeError) as caught:
        outer(torch.ones(5))
    notes = caught.value.__notes__
    assert [note.split(",")[0] for note in notes] == ["in generated code of Scale", "in generated code of Outer"]


def test_errors_of_wrong_calls_have_no_note() -> None:
    module = fx.symbolic_trace(Scale())
    with pytest.raises(TypeError, match="missing 1 required positional argument") as caught:
        module()
    assert not hasattr(caught.value, "__notes__")


def test_debugger_steps_through_the_generated_lines() -> None:
    module = fx.symbolic_trace(lambda x: torch.relu(x + 1) * 2)
    output = io.StringIO()
    commands = io.StringIO("step\np add\nlist\nnext\nbt\ncontinue\n")
    debugger = pdb.Pdb(stdin=commands, stdout=output, nosigint=True, readrc=False)
    forward = module.forward
    debugger.use_rawinput = False
    result = debugger.runcall(forward, torch.zeros(1))
    assert torch.equal(result, torch.full((1,), 2.0))
    text = output.getvalue()
    assert "-> add = x + 1;  x = None" in text
    assert "-> relu = torch.relu(add);  add = None" in text
    assert "tensor([1.])" in text
    assert "def forward(self, x):" in text


def test_postmortem_finds_the_values_of_the_generated_frame() -> None:
    module = fx.symbolic_trace(Scale())
    try:
        module(torch.ones(5))
    except RuntimeError as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    frame = next(frame for frame in frames if frame.f_code.co_filename.startswith("<eval_with_key>"))
    assert torch.equal(frame.f_locals["mul"], torch.full((5,), 2.0))

"""Functions that tracing records whole."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import pytest
import torch

import fx
from fx.code import wrapping
from fx.errors import UnsupportedTraceError


@fx.wrap
def leaf(x: Any, scale: int = 1) -> Any:
    if isinstance(x, torch.Tensor) and x.sum() < 0:
        return -x * scale
    return x * scale


def plain_leaf(x: Any) -> Any:
    return [x] if x is None else x


fx.wrap("plain_leaf")
fx.wrap("len")

elsewhere = types.ModuleType("elsewhere_for_wrap")
exec("def far(x):\n    return x if x.sum() > 0 else -x\ndef calls_far(x):\n    return far(x)\n", elsewhere.__dict__)
sys.modules["elsewhere_for_wrap"] = elsewhere
fx.wrap(elsewhere.far)


def targets(traced: fx.GraphModule) -> list[Any]:
    return [node.target for node in traced.graph.find_nodes(op="call_function")]


def test_a_decorated_function_is_one_node_and_stays_itself() -> None:
    original = leaf
    traced = fx.symbolic_trace(lambda x: leaf(x, scale=2) + 1)
    assert targets(traced)[0] is original
    assert leaf is original
    assert torch.equal(traced(torch.tensor([-1.0])), torch.tensor([3.0]))


def test_a_function_wrapped_by_name_is_one_node() -> None:
    assert targets(fx.symbolic_trace(lambda x: plain_leaf(x))) == [plain_leaf]


def test_a_wrapped_builtin_is_one_node_and_the_module_is_left_without_it() -> None:
    traced = fx.symbolic_trace(lambda x: x * len(x))
    assert targets(traced)[0] is len
    assert "len" not in globals()
    assert torch.equal(traced(torch.ones(3)), torch.full((3,), 3.0))


def test_a_wrapped_function_of_another_module_is_one_node_at_every_call() -> None:
    assert targets(fx.symbolic_trace(lambda x: elsewhere.far(x))) == [elsewhere.far]
    assert targets(fx.symbolic_trace(lambda x: elsewhere.calls_far(x))) == [elsewhere.far]


def test_a_function_that_a_library_marked_with_torch_fx_is_one_node() -> None:
    library = types.ModuleType("library_for_wrap")
    source = "import torch.fx\n@torch.fx.wrap\ndef marked(x):\n    return x if x.sum() > 0 else -x\n"
    exec(source + "def calls_marked(x):\n    return marked(x)\n", library.__dict__)
    sys.modules["library_for_wrap"] = library
    traced = fx.symbolic_trace(lambda x: library.calls_marked(x))
    assert targets(traced) == [library.marked]
    assert torch.equal(traced(torch.tensor([-1.0])), torch.tensor([1.0]))


def test_generated_code_keeps_wrapped_calls_whole_when_traced_again() -> None:
    traced = fx.symbolic_trace(lambda x: leaf(x))
    assert 'wrap("' in traced.code
    assert targets(fx.symbolic_trace(fx.symbolic_trace(traced))) == [leaf]


def test_a_wrapped_function_that_a_pass_calls_is_kept_whole_when_traced_again() -> None:
    traced = fx.symbolic_trace(lambda x: x + 1)
    output = traced.graph.output_node()
    with traced.graph.inserting_before(output):
        output.args = (traced.graph.call_function(leaf, (output.args[0],)),)
    traced.recompile()
    assert leaf in targets(fx.symbolic_trace(traced))


def test_a_function_marked_with_torch_fx_that_a_pass_calls_is_kept_whole_when_traced_again() -> None:
    library = types.ModuleType("helpers_for_wrap")
    source = "import torch.fx\n@torch.fx.wrap\ndef marked(x):\n    return x if x.sum() > 0 else -x\n"
    exec(source + "def unmarked(x):\n    return -x\n", library.__dict__)
    sys.modules["helpers_for_wrap"] = library
    traced = fx.symbolic_trace(lambda x: x + 1)
    output = traced.graph.output_node()
    with traced.graph.inserting_before(output):
        output.args = (traced.graph.call_function(library.marked, (output.args[0],)),)
    traced.recompile()
    assert targets(fx.symbolic_trace(fx.symbolic_trace(traced)))[-1] is library.marked
    output.args[0].target = library.unmarked
    traced.recompile()
    assert library.unmarked not in targets(fx.symbolic_trace(traced))


def test_another_function_of_the_same_name_is_not_taken_for_the_wrapped_one() -> None:
    def leaf(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    assert leaf.__name__ in {name for _, name in wrapping.wrapped_globals()}
    graph = fx.Graph()
    graph.output(graph.call_function(leaf, (graph.placeholder("x"),)))
    assert 'wrap("' not in fx.GraphModule({}, graph).code


def test_wrapped_globals_of_generated_code_are_forgotten_with_it() -> None:
    traced = fx.symbolic_trace(lambda x: leaf(x))
    traced(torch.ones(1))
    gc.collect()
    before = len(wrapping._generated)
    assert before >= 1
    del traced
    gc.collect()
    assert len(wrapping._generated) == before - 1


def test_wrapping_inside_a_function_is_refused() -> None:
    with pytest.raises(
        NotImplementedError, match="must be called at the top level of a module, not inside test_"
    ) as info:
        fx.wrap("leaf")
    assert isinstance(info.value, fx.TraceError)


def test_wrapping_an_object_that_is_no_function_is_refused() -> None:
    with pytest.raises(RuntimeError, match="takes a function or the name of one, not 3"):
        fx.wrap(3)  # type: ignore[type-var]


METHODS = """
import fx


class Holder:
    {decorator}
    def helper(self, x):
        return x if x.sum() > 0 else -x


{call}
"""


@pytest.mark.parametrize(
    "decorator, call, place",
    [
        ("@fx.wrap", "", "inside Holder"),
        ("", "fx.wrap(Holder.helper)", "on a method"),
        ("", "fx.wrap(Holder().helper)", "on a method"),
    ],
)
def test_a_method_is_refused_with_a_working_remedy(decorator: str, call: str, place: str) -> None:
    with pytest.raises(UnsupportedTraceError) as info:
        exec(METHODS.format(decorator=decorator, call=call), {"__name__": "holds_methods"})
    assert str(info.value).splitlines() == [
        f"fx.wrap must be called at the top level of a module, not {place}",
        "  why    it replaces the global 'helper' while a program is traced, so it is declared once, where globals are",
        "  try    put the lines of the method into a function of the module, mark that, and call it from the method",
    ]


def test_a_static_method_that_is_a_global_too_is_recorded_by_that_name() -> None:
    namespace = {"__name__": "holds_methods"}
    exec(METHODS.format(decorator="@staticmethod", call="helper = Holder.helper").replace("self, ", ""), namespace)
    exec("fx.wrap(helper)\ndef program(x): return helper(x)\n", namespace)
    assert targets(fx.symbolic_trace(namespace["program"])) == [namespace["helper"]]

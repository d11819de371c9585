"""Caches from one trace to the next: they hold for the next one, whatever has changed between the two."""

from __future__ import annotations

import builtins
import gc
import importlib
import math
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.bytecode.dialects import once_for_code
from fx.capture import patching
from fx.errors import TraceError


def code_of(program: Any) -> str:
    return fx.symbolic_trace(program).code.strip().splitlines()[1].strip()


def targets(program: Any) -> list[Any]:
    return [node.target for node in fx.symbolic_trace(program).graph.find_nodes(op="call_function")]


def in_namespace(source: str, **names: Any) -> dict[str, Any]:
    """The globals of a module of its own that ``source`` makes, with annotations that stay text, as in this file."""
    namespace = vars(types.ModuleType("between_traces"))
    namespace.update(torch=torch, **names)
    exec(source, namespace)
    return namespace


def test_a_function_that_is_defined_again_is_captured_as_it_is_now() -> None:
    namespace = in_namespace("def inner(x): return x.neg()\ndef program(x): return inner(x)")
    assert code_of(namespace["program"]).startswith("neg = x.neg()")
    exec("def inner(x): return x.abs()", namespace)
    assert code_of(namespace["program"]).startswith("abs_1 = x.abs()")
    namespace["inner"].__code__ = (lambda x: x.exp()).__code__
    assert code_of(namespace["program"]).startswith("exp = x.exp()")


def test_a_variable_of_an_outer_function_that_changes_is_followed() -> None:
    scale = 2.0

    def program(x: Any) -> Any:
        return x * scale

    assert code_of(program).startswith("mul = x * 2.0")
    scale = 3.0
    assert code_of(program).startswith("mul = x * 3.0")


def test_a_global_that_becomes_a_function_of_torch_is_recorded() -> None:
    namespace = in_namespace("def program(x): return asked(x.dtype).max * x", asked=lambda dtype: torch.finfo(dtype))
    assert "torch.finfo(" in fx.symbolic_trace(namespace["program"]).code
    namespace["asked"] = torch.finfo
    assert "torch.finfo(" in fx.symbolic_trace(namespace["program"]).code
    namespace["asked"] = lambda dtype: torch.iinfo(torch.int8)
    assert code_of(namespace["program"]).startswith("mul = 127 * x")


def test_a_global_with_the_name_of_a_builtin_that_comes_and_goes_is_called_while_it_is_there() -> None:
    namespace = in_namespace("def program(x): return x * len([x, x])\ndef asks(x): return x * len(x)")
    program, asks = namespace["program"], namespace["asks"]
    assert code_of(program).startswith("mul = x * 2")
    namespace["len"] = own = lambda value: 7
    assert code_of(program).startswith("mul = x * 7")
    assert targets(asks)[0] is own
    assert namespace["len"] is own
    del namespace["len"]
    assert code_of(program).startswith("mul = x * 2")
    assert targets(asks)[0] is len
    assert "len" not in namespace and "isinstance" not in namespace


def test_a_function_of_math_that_is_replaced_is_the_one_that_is_recorded_and_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(x: Any) -> Any:
        return math.floor(x) * math.floor(2.5)

    original = math.floor
    assert targets(program)[0] is original
    monkeypatch.setattr(math, "floor", own := lambda value: 9)
    assert targets(program)[0] is own
    assert "* 9" in fx.symbolic_trace(program).code
    assert math.floor is own
    monkeypatch.undo()
    assert targets(program)[0] is original


def test_a_replaced_query_of_torch_is_called_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        return (x.neg() if torch.is_tensor(3) else x.abs()) if torch.is_tensor(x) else x

    assert ".abs()" in fx.symbolic_trace(program).code
    monkeypatch.setattr(torch, "is_tensor", own := lambda value: type(value) is int)
    assert ".neg()" in fx.symbolic_trace(program).code
    assert torch.is_tensor is own


def test_the_current_class_attribute_and_forward_are_used() -> None:
    class Scales(nn.Module):
        factor = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.factor

    model = Scales()
    assert code_of(model).startswith("mul = x * 2.0")
    Scales.factor = 3.0
    assert code_of(model).startswith("mul = x * 3.0")
    Scales.forward = lambda self, x: x + self.factor  # type: ignore[method-assign]
    assert code_of(model).startswith("add = x + 3.0")


def test_a_forward_set_on_the_instance_runs() -> None:
    class Inner(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.neg()

    model = nn.Sequential(Inner())
    assert "input_1.neg()" in fx.symbolic_trace(model).code
    model[0].forward = lambda x: x.abs()  # type: ignore[method-assign]
    assert "input_1.abs()" in fx.symbolic_trace(model).code


def test_a_text_annotation_is_resolved_to_the_current_value_of_its_name() -> None:
    namespace = in_namespace("def program(x: Kind) -> Kind: return x", Kind=int)
    kinds = [next(iter(fx.symbolic_trace(namespace["program"]).graph.nodes)).type]
    namespace["Kind"] = float
    kinds += [next(iter(fx.symbolic_trace(namespace["program"]).graph.nodes)).type]
    assert kinds == [int, float]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], types.ModuleType]]:
    """Write a module, and import or reload it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(source: str) -> types.ModuleType:
        (tmp_path / "reloaded_between_traces.py").write_text(source)
        importlib.invalidate_caches()
        loaded = sys.modules.get("reloaded_between_traces")
        return importlib.import_module("reloaded_between_traces") if loaded is None else importlib.reload(loaded)

    yield written
    sys.modules.pop("reloaded_between_traces", None)


HANDLING = """
def program(x):
    try:
        return x * len(range(x.shape[0]))
    except TypeError:
        return x
"""


def test_exceptions_are_watched_in_a_module_that_is_loaded_again(module: Callable[[str], types.ModuleType]) -> None:
    """The new code object is equal to the old one, and not identical."""
    programs = [module(HANDLING).program for _ in range(3)]
    assert len({id(program.__code__) for program in programs}) == 3
    for program in programs:
        with pytest.raises(TraceError, match="cannot use a traced value as an integer"):
            fx.symbolic_trace(program)


def test_a_module_that_is_loaded_with_other_text_is_captured_by_that(module: Callable[[str], types.ModuleType]) -> None:
    assert code_of(module("def program(x): return x.neg()").program).startswith("neg = x.neg()")
    assert code_of(module("def program(x):\n    return x.abs()\n").program).startswith("abs_1 = x.abs()")


def test_facts_cached_for_a_code_object_die_with_it() -> None:
    recorded: list[str] = []

    @once_for_code
    def name_of(code: types.CodeType) -> str:
        recorded.append(code.co_name)
        return code.co_name

    first, other = (compile("def f(): pass", "same", "exec") for _ in range(2))
    assert first == other
    assert [name_of(first), name_of(first), name_of(other)] == ["<module>"] * 3
    assert len(recorded) == 2
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def negated(x: Any) -> Any:
    return x.neg()


@pytest.mark.parametrize("kind", ["function", "object"])
def test_a_replaced_module_call_is_used_outside_of_traces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's caches of a class and its subclasses are renewed when a trace begins and ends."""

    class Below(nn.ReLU):
        pass

    calls: list[str] = []
    original = nn.Module.__call__

    def counting(self: nn.Module, *args: Any) -> Any:
        calls.append(type(self).__name__)
        return original(self, *args)

    class Counting:
        def __get__(self, module: Any, kind: type) -> Any:
            return lambda *args: counting(module, *args)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return counting(*args, **kwargs)

    own = counting if kind == "function" else Counting()
    below, x = Below(), torch.ones(1)
    for _ in range(3):
        below(x)
        fx.symbolic_trace(negated)
        monkeypatch.setattr(nn.Module, "__call__", own)
        calls.clear()
        below(x)
        fx.symbolic_trace(negated)
        below(x)
        assert calls == ["Below", "Below"]
        assert vars(nn.Module)["__call__"] is own
        monkeypatch.undo()
    assert nn.Module.__call__ is original
    assert not patching._replacements


def test_a_module_that_has_run_is_captured_and_runs_again() -> None:
    """Python caches look-ups in a class and its subclasses."""
    kinds = [nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.Identity, nn.SELU, nn.ELU, nn.Softplus]
    model, x, call = nn.Sequential(*(kind() for kind in kinds)), torch.ones(1), nn.Module.__call__
    for _ in range(8):
        model(x)
        assert all(kind.__call__ is call for kind in kinds)
        calls = [node.op for node in fx.symbolic_trace(model).graph.nodes][1:-1]
        assert calls == ["call_module"] * len(kinds)
        assert all(kind.__call__ is call for kind in kinds)


def test_functions_under_other_names_stay_replaced_until_the_last_of_two_threads_has_traced() -> None:
    namespace = in_namespace(
        "import builtins as python\nfrom builtins import type as kind\nfrom functools import partial\n"
        "own = partial(map, type)\n"
        "def program(x):\n"
        "    reached()\n"
        "    kinds = [kind(x), python.type(x), *own([x])]\n"
        "    return x.neg() if kinds == [torch.Tensor] * 3 else x.abs()"
    )
    program, first_began, second_began = namespace["program"], threading.Event(), threading.Event()
    codes: list[str] = []
    first = threading.Thread(target=lambda: codes.append(fx.symbolic_trace(program).code))

    def reached() -> None:
        if threading.current_thread() is first:
            first_began.set()
            assert second_began.wait(60)
        else:
            second_began.set()
            first.join()

    namespace["reached"] = reached
    first.start()
    assert first_began.wait(60)
    codes.append(fx.symbolic_trace(program).code)
    assert ["x.neg()" in code for code in codes] == [True, True]
    assert [namespace["kind"], namespace["python"], namespace["own"].args] == [type, builtins, (type,)]

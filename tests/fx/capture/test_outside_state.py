"""Objects outside of the modules that traced code reaches: a trace leaves them as before, and no program may depend on
it.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx

HERE = os.path.abspath(__file__)
STATE: dict[str, Any] = {"seen": [], "n": 0}
ARRAY = np.zeros(2)
NUMBERS = random.Random(1)
GENERATOR = np.random.default_rng(1)
COUNT = itertools.count(5)


def fills(x: Any) -> Any:
    STATE["seen"].append(x)
    STATE["last"] = x
    ARRAY[0] = 3
    return x * 2


def test_globals_are_as_before_though_traced_code_has_left_values_in_them() -> None:
    captured = fx.symbolic_trace(fills)
    assert STATE == {"seen": [], "n": 0}
    assert ARRAY.tolist() == [0, 0]
    assert captured(torch.ones(2)).tolist() == [2, 2]


def fails(x: Any) -> Any:
    STATE["n"] += 1
    NUMBERS.random()
    GENERATOR.normal()
    return x if x.sum() > 0 else -x


def test_globals_are_as_before_though_the_trace_has_failed() -> None:
    before = NUMBERS.getstate(), repr(GENERATOR.bit_generator.state)
    with pytest.raises(fx.TraceError, match="control flow"):
        fx.symbolic_trace(fails)
    assert STATE["n"] == 0
    assert (NUMBERS.getstate(), repr(GENERATOR.bit_generator.state)) == before


def counts(x: Any) -> Any:
    STATE["n"] += 1
    return x * STATE["n"]


def test_the_refusal_of_a_program_that_counts_in_a_global_names_the_function_and_its_line() -> None:
    with pytest.raises(fx.TraceError) as info:
        fx.symbolic_trace(counts)
    assert str(info.value).splitlines() == [
        "what the program does depends on what an earlier call of it left in 'STATE'",
        f'  where  {HERE}:{LINE}, in counts:  return x * STATE["n"]',
        "  value  STATE, which counts reaches",
        "  why    a captured program has no assignment to attributes, so each call would be like the first",
        "  try    keep it in a buffer that is written in place (self.step.add_(1)), or make the module a leaf",
    ]


LINE = counts.__code__.co_firstlineno + 2


def takes(x: Any) -> Any:
    return x * next(COUNT)


def test_an_iterator_that_is_older_than_the_trace_is_not_advanced() -> None:
    with pytest.raises(fx.TraceError) as info:
        fx.symbolic_trace(takes)
    assert next(COUNT) == 5
    assert str(info.value).splitlines() == [
        "cannot take the next element of an iterator that is older than the trace",
        f"  where  {HERE}:{takes.__code__.co_firstlineno + 1}, in takes:  return x * next(COUNT)",
        "  value  count(5)",
        "  why    each call of the program takes the next one, and a captured program would repeat this one",
        "  try    index a list with a buffer that counts, or put the line in a function marked fx.wrap",
    ]


class Sets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        self.drop.p = 0.1
        return self.drop(x)


def test_a_program_that_sets_state_of_a_leaf_is_refused_and_the_leaf_is_unchanged() -> None:
    root = Sets()
    with pytest.raises(fx.TraceError) as info:
        fx.symbolic_trace(root)
    assert root.drop.p == 0.5
    assert str(info.value).replace("Sets.forward", "forward").splitlines() == [  # Python 3.10 names no class
        "cannot set 'p' of a module that is one operation of the program",
        f"  where  {HERE}:{Sets.forward.__code__.co_firstlineno + 1}, in forward:  self.drop.p = 0.1",
        "  value  drop, a Dropout",
        "  why    a captured program has no assignment to attributes, so it would run with the one from before",
        "  try    call the function of torch.nn.functional with the value, or set it before the capture",
    ]


def test_an_event_that_another_thread_may_wait_for_stays_set() -> None:
    happened = threading.Event()

    def program(x: Any) -> Any:
        happened.set()
        return x

    fx.symbolic_trace(program)
    assert happened.is_set()


@pytest.mark.parametrize("fails", [False, True])
def test_lists_in_variables_of_outer_functions_are_restored_also_where_a_trace_fails(fails: bool) -> None:
    lists: dict[str, list[Any]] = {"values": [1]}

    def program(x: Any) -> Any:
        lists["values"].append(x)
        lists["last"] = [x]
        return x * 2 if not fails or x.sum() > 0 else x

    if fails:
        with pytest.raises(fx.TraceError, match="control flow"):
            fx.symbolic_trace(program)
    else:
        fx.symbolic_trace(program)
    assert lists == {"values": [1]}


def with_setting(x: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    return x


def with_saved_hooks(x: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return x * x


def of_identity(x: Any) -> Any:
    return x * (id(x.contiguous()) == id(x))


@pytest.mark.parametrize(
    "program, message",
    [
        (with_setting, "cannot change a setting of torch while a program is captured"),
        (with_saved_hooks, "cannot capture hooks on tensors that are saved for the backward pass"),
        (of_identity, "cannot take the identity of a traced value"),
    ],
)
def test_effects_that_a_graph_cannot_hold_are_refused_by_their_line(program: Any, message: str) -> None:
    with pytest.raises(fx.TraceError) as info:
        fx.symbolic_trace(program)
    what, where, _, why, remedy = str(info.value).splitlines()
    assert (what, why[:9], remedy[:9]) == (message, "  why    ", "  try    ")
    assert where.startswith(f"  where  {HERE}:{program.__code__.co_firstlineno + 1}, in {program.__name__}:")
    assert torch.get_default_dtype() == torch.float32


def test_names_that_a_traced_value_has_are_those_of_a_tensor() -> None:
    captured = fx.symbolic_trace(lambda x: x * 2 if "softmax" in dir(x) and "node" not in dir(x) else x)
    assert captured(torch.ones(1)).item() == 2


steps: list[str] = []


def test_an_attribute_reaches_no_global_that_has_its_name() -> None:
    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = (1, 2)

        def forward(self, x: Any) -> Any:
            return sum((x * step for step in self.steps), x)

    class Noting(fx.Tracer):
        def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
            steps.append("a node")
            return super().create_node(*args, **kwargs)

    Noting().trace(Repeated())
    assert steps  # notes of a tracer are no state of the program


def test_an_assert_of_a_test_reaches_nothing_of_the_test_runner() -> None:
    from _pytest.assertion import util

    class Asserting(nn.Module):
        def forward(self, x: Any) -> Any:
            assert x.dim() < 5
            return x + 1

    class Noting(fx.Tracer):
        def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
            util._config.append("a node")
            return super().create_node(*args, **kwargs)

    before, util._config = util._config, []  # functions behind pytest's asserts read it
    try:
        Noting().trace(Asserting(), example_inputs=(torch.ones(2),))
        assert util._config
    finally:
        util._config = before

"""Functions that a trace sees though nobody tells it of their calls."""

from __future__ import annotations

import functools
import importlib
import os
import queue
import random
import secrets
import sys
import threading
import types
import uuid
from os import urandom
from pathlib import Path
from random import random as draw
from random import uniform
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import rand as np_rand
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import fx


class Doubled(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


doubled = Doubled.apply


@pytest.mark.parametrize("program", [lambda x: Doubled.apply(x), lambda x: doubled(x)], ids=["looked up", "bound"])
def test_a_function_with_a_derivative_of_its_own_keeps_it(program: Any) -> None:
    captured = fx.symbolic_trace(program)
    x = torch.ones(2, requires_grad=True)
    captured(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


class Calling(nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.net, x)


def test_a_functional_call_is_one_operation_with_the_parameters_it_is_given() -> None:
    root = Calling(lambda net, x: torch.func.functional_call(net, {"weight": net.weight * 2, "bias": x[0]}, x))
    captured = fx.symbolic_trace(root)
    assert captured.graph.find_nodes(op="call_function", target=torch.func.functional_call)
    x = torch.rand(3, 2)
    assert torch.equal(captured(x), root(x))


def test_a_checkpoint_of_a_submodule_is_one_operation_and_so_is_one_of_a_function_with_its_body() -> None:
    root = Calling(lambda net, x: checkpoint(net, x, use_reentrant=False))
    captured = fx.symbolic_trace(root)
    assert "torch.utils.checkpoint.checkpoint(net, x, use_reentrant = False)" in captured.code
    x = torch.rand(3, 2)
    assert torch.equal(captured(x), root(x))
    root = Calling(lambda net, x: checkpoint(lambda y, scale: net(y) * scale, x, scale=x[0], use_reentrant=False))
    captured = fx.symbolic_trace(root)
    read = "net_weight = self.net.weight\n    net_bias = self.net.bias\n"
    called = (
        "torch.utils.checkpoint.checkpoint(checkpoint_body_0, x, getitem, net_weight, net_bias, use_reentrant = False)"
    )
    assert read in captured.code and called in captured.code
    assert "torch.nn.functional.linear(y, net_weight, net_bias)" in captured.checkpoint_body_0.code
    assert torch.equal(captured(x), root(x)) and list(captured.state_dict()) == list(root.state_dict())


def test_limits_of_a_traced_dtype_are_recorded() -> None:
    captured = fx.symbolic_trace(lambda x: x.clamp(max=torch.iinfo(x.dtype).max - 1))
    assert captured(torch.tensor([200], dtype=torch.uint8)).tolist() == [200]
    assert captured(torch.tensor([127], dtype=torch.int8)).tolist() == [126]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * random.random(),
        lambda x: x * float(np.random.rand()),
        lambda x: (torch.manual_seed(0), x)[1],
    ],
    ids=["random", "numpy", "seed"],
)
def test_random_numbers_of_python_and_seeds_are_refused_and_leave_the_generators_alone(program: Any) -> None:
    before = random.getstate(), torch.get_rng_state().tolist()
    expected = (
        r"(?s)cannot draw random numbers in Python, or seed a generator.*test_recorded_calls.py:.*why .*try +draw with"
    )
    with pytest.raises(fx.TraceError, match=expected):
        fx.symbolic_trace(program)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


_DRAW_PARTLY = functools.partial(uniform, 0, 1)
_DRAWING = {"draw": draw, "own": [random.Random(3).random]}
_OWN = random.Random(3).random
_OF_NUMPY = np.random.default_rng(3).random
_OF_CLASS = random.SystemRandom().random


class Held(torch.nn.Module):
    chosen = staticmethod(random.choice)

    def __init__(self, how: str) -> None:
        super().__init__()
        self.drawn, self.generator, self.how = draw, random.Random(3), how

    def forward(self, x: Any) -> Any:
        value = {"attribute": lambda: self.drawn(), "class": lambda: self.chosen([0.1, 0.9]),
                 "generator": lambda: self.generator.random()}[self.how]()  # fmt: skip
        return x if value < 0.5 else x + 1


def _looping(x: Any) -> Any:
    for layer in (torch.relu, torch.neg):
        if draw() < 0.5:
            continue
        x = layer(x)
    return x


def _imported_inside(x: Any) -> Any:
    from random import uniform as chosen

    return x * chosen(0, 1)


def _in_closure() -> Any:
    drawn = draw
    return lambda x: x * drawn()


def _drawn(drawn: Any = draw) -> Any:
    return drawn()


@pytest.mark.parametrize(
    "program",
    [
        _looping,
        lambda x: x * _DRAW_PARTLY(),
        lambda x: x * _DRAWING["draw"](),
        lambda x: x * _DRAWING["own"][0](),
        lambda x: x * _OWN(),
        lambda x: x * float(_OF_NUMPY()),
        lambda x: x * float(np_rand()),
        lambda x: x * _OF_CLASS(),
        lambda x: x * secrets.randbelow(4),
        lambda x: x * os.urandom(1)[0],
        lambda x: x * urandom(1)[0],
        lambda x: x * uuid.uuid4().int,
        lambda x: x * random.Random().random(),
        _imported_inside,
        _in_closure(),
        lambda x: x * _drawn(),
        Held("attribute"),
        Held("class"),
        Held("generator"),
    ],
)
def test_random_numbers_are_refused_for_any_name_and_module_of_the_function(program: Any) -> None:
    generators = random, program.generator if isinstance(program, Held) else random, _OWN.__self__
    for seed in range(3):  # some of them would decide a branch as in the run before
        random.seed(seed)
        before = [generator.getstate() for generator in generators]
        with pytest.raises(
            fx.TraceError, match=r"(?s)cannot draw random numbers in Python.*test_recorded_calls.py:\d+"
        ):
            fx.symbolic_trace(program)
        assert [generator.getstate() for generator in generators] == before
    assert not isinstance(draw, types.FunctionType)


def test_random_numbers_of_a_generator_that_the_program_makes_and_seeds_are_constants() -> None:
    assert fx.symbolic_trace(lambda x: x * random.Random(3).random())(torch.ones(1)).item() == pytest.approx(
        random.Random(3).random()
    )
    state = fx.symbolic_trace(lambda x: x * len(random.getstate()))
    assert state(torch.ones(1)).item() == 3


def test_another_thread_draws_random_numbers_while_a_program_is_captured() -> None:
    def program(x: Any) -> Any:
        thread = threading.Thread(target=lambda: (draw(), random.random(), os.urandom(1)))  # an error would be seen
        thread.start()
        thread.join()
        return x + 1

    assert fx.symbolic_trace(program)(torch.ones(1)).item() == 2


@pytest.mark.parametrize(
    "ask, answer",
    [
        (lambda x: isinstance(x, torch.Tensor), True),
        (lambda x: isinstance(x, (list, tuple)), False),
        (lambda x: type(x) is torch.Tensor, True),
        (lambda x: torch.is_tensor(x), True),
        (lambda x: hasattr(x, "shape"), True),
        (lambda x: hasattr(x, "tensors"), False),
        (lambda x: getattr(x, "note", 1) == 1, True),
        (lambda x: callable(x), False),
        (lambda x: isinstance(x.shape, torch.Size), True),
        (lambda x: isinstance(x.size(0), int), True),
        (lambda x: isinstance(x, torch.fx.Proxy), True),  # as it would be in a trace of torch.fx
        (lambda x: isinstance(x.shape, (list, torch.fx.Proxy)), True),
        (lambda x: isinstance(x, fx.proxy.ParameterProxy), False),
    ],
)
def test_questions_about_a_traced_value_are_answered_as_for_the_value(ask: Any, answer: bool) -> None:
    captured = fx.symbolic_trace(lambda x: x * 2 if ask(x) else x * 3)
    assert captured(torch.ones(1)).item() == (2 if answer else 3)
    if "check_kind" in captured.code:
        message = r"(?s)for a value of <class 'torch.Tensor'>: .*test_recorded_calls.*it is of <class 'int'>.*annotate"
        with pytest.raises(fx.GuardError, match=message):
            captured(1)


def test_a_value_with_two_class_queries_is_checked_once() -> None:
    def asked(x: Any) -> Any:
        return x + 1 if isinstance(x, torch.Tensor) and torch.is_tensor(x) and type(x) is torch.Tensor else x

    captured = fx.symbolic_trace(asked)
    assert len(captured.guards) == 1
    assert fx.symbolic_trace(captured).code == captured.code


OUTPUTS = """
from dataclasses import dataclass

@dataclass
class Output:
    value: object

    def __post_init__(self):
        if not isinstance(self.value, torch.Tensor) or not isinstance(self.value, torch.Tensor):
            self.value = [*self.value]
"""


def test_questions_of_a_class_from_an_untraced_module_are_answered_and_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outputs_of_users.py").write_text(f"import torch\n{OUTPUTS}")
    (tmp_path / "program_of_users.py").write_text(
        "from outputs_of_users import Output\n\ndef program(x):\n    return Output(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    torch.utils._pytree.register_dataclass(importlib.import_module("outputs_of_users").Output)
    captured = fx.symbolic_trace(importlib.import_module("program_of_users").program)
    assert captured.code.count("check_kind(") == 1 and torch.equal(captured(torch.ones(1)).value, torch.ones(1))
    assert fx.symbolic_trace(captured).code == captured.code


@fx.wrap
def rows_through(x: Any, weight: Any) -> Any:
    return torch.vmap(lambda row: weight @ row)(x)


class Mapped(nn.Module):
    def __init__(self, marked: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2, 3))
        self.marked = marked

    def forward(self, x: Any) -> Any:
        return rows_through(x, self.weight) if self.marked else torch.vmap(lambda row: self.weight @ row)(x)


def test_a_transform_of_a_function_is_captured_with_its_body_and_in_a_marked_function_as_one_call() -> None:
    for marked in (False, True):
        root, x = Mapped(marked), torch.rand(4, 3)
        program = fx.symbolic_trace(root)
        assert torch.equal(program(x), root(x))
        assert ("vmap_body_0" in program.code) is not marked
        program(x).sum().backward()
        assert program.weight.grad is not None


def test_modules_of_this_library_are_left_alone_while_a_function_with_their_globals_is_captured() -> None:
    tracer = sys.modules["fx.capture.tracer"]

    def replaced(x: Any) -> Any:
        ours = [vars(module) for name, module in sys.modules.items() if name.startswith("fx.")]
        results.put(sum("isinstance" in names for names in ours))
        return x

    results: queue.SimpleQueue[int] = queue.SimpleQueue()
    namespace: dict[str, Any] = {**vars(tracer), "replaced": replaced}  # as a doctest has them
    exec("def program(x):\n    return replaced(x).relu()", namespace)
    fx.symbolic_trace(namespace["program"])
    assert results.get_nowait() == 0

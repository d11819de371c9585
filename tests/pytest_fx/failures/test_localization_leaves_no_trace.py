"""Localization on programs of many kinds: it watches them without changing them or keeping their values."""

import weakref

import pytest
import torch
from building import Calling, Counting, subject_of
from judged import located, made_in_float64, tolerance, violations_of
from torch import nn

import fx
from fx.passes import close, exact
from pytest_fx.failures.localization import localize


def unchanged(program):
    return None


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x) + nn.functional.dropout(x, 0.5, True)


class Keyed(nn.Module):
    def forward(self, x, *, mask=None, scale=2.0):
        masked = x if mask is None else x * mask
        return {"kept": masked, "parts": [masked * scale, (masked > 0, masked.argmax(-1))]}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.also = self.linear

    def forward(self, x):
        return self.also(torch.relu_(self.linear(self.linear(x))))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))

    def forward(self, x):
        return torch.fft.ifft(torch.fft.fft(x) * self.phase)


SUBJECTS = {
    "random numbers": lambda: subject_of(Noisy(), torch.ones(4)),
    "counters": lambda: subject_of(Counting(), torch.ones(4)),
    "keywords and dicts": lambda: subject_of(Keyed(), torch.randn(3, 4), mask=torch.ones(3, 4)),
    "shared modules in place": lambda: subject_of(Shared(), torch.randn(3, 4)),
    "infinities": lambda: subject_of(
        Calling(lambda m, x: torch.log(x - 1) + 1 / (x - 1)), torch.tensor([0.0, 1.0, 2.0])
    ),
    "complex numbers": lambda: subject_of(Complex(), torch.ones(2)),
    "no elements": lambda: subject_of(Calling(lambda m, x: (x[:0] * 2, x.sum())), torch.ones(3)),
}


@pytest.mark.parametrize("kind", SUBJECTS)
def test_no_program_differs_from_itself(kind):
    subject = SUBJECTS[kind]()
    for contract in (exact, close):
        assert not violations_of(subject, unchanged, contract)
    localization = located(subject, unchanged)
    assert localization.errors
    assert not any(error.wrong or error.made or error.inherited for error in localization.errors)


def test_random_states_buffers_hooks_and_code_are_as_they_were():
    subject = subject_of(nn.Sequential(Counting(), Noisy(), nn.Linear(4, 4)), torch.ones(2, 4))
    original, eager = subject.capture(subject.fresh(torch.float64)), subject.capture()
    transformed = made_in_float64(subject, unchanged)
    programs = (original, transformed, eager)
    recorded = []
    for program in programs:
        program.register_forward_hook(lambda *parts: recorded.append(parts))

    def state():
        return [
            (program.code, dict(program._forward_hooks), {n: t.clone() for n, t in program.state_dict().items()})
            for program in programs
        ]

    before, random_state = state(), torch.get_rng_state()
    localize(original, transformed, subject.arguments(), tolerance, eager)
    assert torch.equal(torch.get_rng_state(), random_state)
    for (code, hooks, tensors), (code_now, hooks_now, tensors_now) in zip(before, state(), strict=True):
        assert (code, hooks) == (code_now, hooks_now)
        assert all(torch.equal(tensor, tensors_now[name]) for name, tensor in tensors.items())
    assert torch.get_default_dtype() == torch.float32
    assert not recorded


def test_values_are_freed_during_the_walk(monkeypatch):
    alive, most = weakref.WeakSet(), []

    class Chain(nn.Module):
        def forward(self, x):
            for _ in range(100):
                x = watched(x)
            return x

    subject = subject_of(Chain(), torch.rand(4))

    def count(leaf, eager):
        most.append(len(alive))
        return tolerance(leaf, eager)

    def noted(value):
        alive.add(value)
        return value

    original = subject.capture(subject.fresh(torch.float64))
    transformed = made_in_float64(subject, unchanged)
    original_call = fx.Interpreter.call_function
    monkeypatch.setattr(fx.Interpreter, "call_function", lambda self, *parts: noted(original_call(self, *parts)))
    localization = localize(original, transformed, subject.arguments(), count, subject.capture())
    assert len(localization.errors) == 101
    assert max(most) <= 10  # of more than 400 values


@fx.wrap
def watched(x):
    return x * 1.01


def test_the_node_that_raises_is_named_and_the_walk_ends_there():
    class Steps(nn.Module):
        def forward(self, x):
            return torch.relu(torch.exp(x).reshape(6)) + 1

    def to_five(program):
        (node,) = program.graph.find_nodes(op="call_method", target="reshape")
        node.args = (node.args[0], 5)
        program.recompile()

    localization = located(subject_of(Steps(), torch.rand(2, 3)), to_five)
    assert localization.errors[-1] is localization.first_wrong
    assert localization.first_wrong.node == "%reshape = call_method[reshape](%exp, 5)"
    assert "why    it raises RuntimeError: shape '[5]' is invalid for input of size 6" in str(localization.first_wrong)
    assert "return torch.relu(torch.exp(x).reshape(6)) + 1" in str(localization.first_wrong)


def test_errors_are_counted_in_steps_of_the_dtype():
    class Double(nn.Module):
        def forward(self, x):
            return x * 2

    def slightly_more(program):
        for node in program.graph.find_nodes(op="call_function"):
            node.args = (node.args[0], 2.0000000000000004)
        program.recompile()

    (_, error) = located(subject_of(Double(), torch.ones(3)), slightly_more).errors
    assert (error.ulps, error.wrong) == (1, False)

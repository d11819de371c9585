"""Pickling without the tensors: the result is the same as after a pickle of everything."""

import pickle

import pytest
import torch
from torch import nn

import fx
from pytest_fx.processes.pickled import unpickled


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("row", torch.arange(3.0), persistent=False)

    def forward(self, x):
        return self.second(self.first(x)) + self.row


def test_a_program_comes_back_with_the_same_code_names_and_values():
    program = fx.symbolic_trace(Tied())
    again = unpickled(program)
    assert again.code == program.code and again is not program
    x = torch.ones(2, 3)
    assert torch.equal(again(x), program(x))
    assert again.state_dict().keys() == pickle.loads(pickle.dumps(program)).state_dict().keys()


def test_tied_parameters_stay_tied():
    again = unpickled(fx.symbolic_trace(Tied()))
    assert again.first.weight is again.second.weight and isinstance(again.first.weight, nn.Parameter)


def test_memory_is_not_shared_with_the_program_that_was_pickled():
    program = fx.symbolic_trace(Tied())
    again = unpickled(program)
    with torch.no_grad():
        again.first.weight.zero_()
    assert program.first.weight.any()


def test_unpicklable_values_are_refused_as_pickle_does():
    program = fx.symbolic_trace(Tied())
    program.first.note = lambda: None
    with pytest.raises((pickle.PicklingError, AttributeError)) as refused:
        pickle.dumps(program)
    with pytest.raises(refused.type):
        unpickled(program)

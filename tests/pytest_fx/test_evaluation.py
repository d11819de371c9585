"""pytest_fx.comparison.evaluation: the same program gives the same answer."""

import torch
from torch import nn

from pytest_fx.comparison.evaluation import Arguments, default_dtype, evaluate


def test_a_program_that_draws_random_numbers_gives_the_same_answer_twice():
    def program(x):
        return x + torch.rand(3)

    first = evaluate(program, Arguments((torch.ones(3),)), torch.float32)
    torch.rand(1)
    state = torch.get_rng_state()
    second = evaluate(program, Arguments((torch.ones(3),)), torch.float32)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_program_that_writes_to_its_inputs_writes_to_copies():
    x = torch.zeros(3)
    answer = evaluate(lambda x: x.add_(1), Arguments((x,)), torch.float32)
    assert answer.tolist() == [1, 1, 1]
    assert x.tolist() == [0, 0, 0]


def test_no_gradients_are_recorded():
    assert not evaluate(nn.Linear(2, 2), Arguments((torch.ones(1, 2),)), torch.float32).requires_grad


def test_floating_point_inputs_and_new_tensors_have_the_dtype_asked_for():
    arguments = Arguments((torch.ones(2), torch.ones(2, dtype=torch.int64)), {"nested": [torch.ones(2)]})

    def program(x, index, nested):
        return x.dtype, index.dtype, nested[0].dtype, torch.zeros(1).dtype

    answer = evaluate(program, arguments, torch.float64)
    assert answer == (torch.float64, torch.int64, torch.float64, torch.float64)
    assert torch.get_default_dtype() == torch.float32


def test_the_default_dtype_stays_where_pytorch_has_no_such_default():
    with default_dtype(torch.bfloat16):
        assert torch.get_default_dtype() == torch.float32


def test_shrunk_inputs_are_others_of_the_same_signs_and_ranges():
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0])
    labels = torch.tensor([1, 2])
    shrunk = Arguments((x, labels)).shrunk(seed=1)
    again = Arguments((x, labels)).shrunk(seed=1)
    other = Arguments((x, labels)).shrunk(seed=2)
    assert torch.equal(shrunk.args[0], again.args[0])
    assert not torch.equal(shrunk.args[0], other.args[0])
    assert not torch.equal(shrunk.args[0], x)
    assert torch.equal(shrunk.args[0].sign(), x.sign())
    assert bool((shrunk.args[0].abs() <= x.abs()).all())
    assert bool((shrunk.args[0].abs() >= 0.97 * x.abs()).all())
    assert torch.equal(shrunk.args[1], labels)

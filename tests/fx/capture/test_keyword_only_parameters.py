"""Keyword-only parameters stay keyword-only in a captured program, and positional ones keep their places."""

import copy
import inspect
import pickle

import pytest
import torch

import fx
from fx import interop
from fx.interpreter import positional
from fx.passes.split_module import split_module


def summed(x, *rest, k=1):
    return x * k + sum(rest)


def bare(x, y=2, *, z=3):
    return x + y * 10 + z * 100


def required(x, *, z, y=1):
    return x + y * 10 + z * 100


def everything(x, y=2, *rest, k=1, **options):
    return x + y * 10 + k * 100 + options["bias"]


class Scaled(torch.nn.Module):
    def forward(self, x, *, scale=2.0):
        return x * scale


@pytest.fixture(params=["captured", "retraced", "transformed", "copied", "pickled", "saved"])
def remake(request, tmp_path):
    """Return a function that copies a captured program in one of these ways."""

    def saved(program):
        fx.save(program, tmp_path / "program.fx")
        return fx.load(tmp_path / "program.fx")

    return {
        "captured": lambda program: program,
        "retraced": fx.symbolic_trace,
        "transformed": lambda program: fx.Transformer(program).transform(),
        "copied": copy.deepcopy,
        "pickled": lambda program: pickle.loads(pickle.dumps(program)),
        "saved": saved,
    }[request.param]


def test_parameters_after_a_bare_star_stay_keyword_only(remake):
    program = fx.symbolic_trace(bare)
    x = torch.tensor(1.0)
    program = remake(program)
    assert program(x) == bare(x)
    assert program(x, 5, z=7) == bare(x, 5, z=7)
    with pytest.raises(TypeError, match="positional argument"):
        program(x, 5, 7)
    assert str(inspect.signature(program.forward)) == "(x, y=2, *, z=3)"


def test_a_required_keyword_may_be_in_front_of_an_optional_one(remake):
    program = remake(fx.symbolic_trace(required))
    x = torch.tensor(1.0)
    assert program(x, z=7, y=5) == required(x, z=7, y=5)
    with pytest.raises(TypeError, match="'z'"):
        program(x)


def test_keywords_behind_a_starred_parameter_keep_their_defaults():
    program = fx.symbolic_trace(lambda x, *rest, k=1: x * k + rest[0])
    assert program(torch.tensor(1.0), 7) == 8
    assert program(torch.tensor(1.0), 7, k=3) == 10


def test_all_kinds_of_parameters_together(remake):
    program = remake(fx.symbolic_trace(everything))
    x = torch.tensor(1.0)
    assert program(x, bias=3) == everything(x, bias=3)
    assert program(x, 4, 5, 6, k=2, bias=3) == everything(x, 4, 5, 6, k=2, bias=3)
    assert list(inspect.signature(program.forward).parameters) == ["x", "y", "rest", "k", "options"]


def test_a_method_keeps_them_and_so_does_a_split_program():
    program = fx.symbolic_trace(Scaled())
    assert program.code.strip().startswith("def forward(self, x, *, scale = 2.0):")
    parts = split_module(program, program, lambda node: 0)
    assert parts(torch.ones(2), scale=3.0).tolist() == [3.0, 3.0]
    with pytest.raises(TypeError, match="positional argument"):
        parts(torch.ones(2), 3.0)


def test_structured_inputs_leave_the_star_where_it_was(tmp_path):
    def structured(pair, *, z=3):
        return pair[0] * 10 + pair[1] * z

    program = fx.symbolic_trace(structured, concrete_args={"pair": (fx.PH, fx.PH)})
    x = torch.tensor(1.0)
    fx.save(program, tmp_path / "program.fx")
    for each in (program, fx.load(tmp_path / "program.fx"), copy.deepcopy(program)):
        assert each((x, 2 * x), z=5) == 20
        with pytest.raises(TypeError, match="positional argument"):
            each((x, 2 * x), 5)


def test_structured_inputs_beside_a_starred_parameter():
    def structured(pair, *rest, k=1):
        return pair[0] * k + pair[1] + rest[0]

    program = fx.symbolic_trace(structured, concrete_args={"pair": (fx.PH, fx.PH)})
    x = torch.tensor(1.0)
    assert program((x, x), 7.0, k=3) == 11


def test_an_input_added_later_is_positional_and_is_before_the_star():
    program = fx.symbolic_trace(bare)
    last = program.graph.find_nodes(op="placeholder")[-1]
    with program.graph.inserting_after(last):
        program.graph.placeholder("mask", default_value=0)
    program.recompile()
    assert str(inspect.signature(program.forward)) == "(x, y=2, mask=0, *, z=3)"


def test_torch_fx_writes_them_as_positional_and_they_come_back_as_they_were():
    theirs = interop.to_torch(fx.symbolic_trace(bare))
    x = torch.tensor(1.0)
    assert theirs(x, 5, z=7) == bare(x, 5, z=7)
    assert str(inspect.signature(interop.from_torch(theirs).forward)) == "(x, y=2, *, z=3)"


def test_calls_with_keywords_reach_an_interpreter_in_the_order_of_its_inputs():
    def mixed(x, *rest, k, mask=1):
        return x * k + rest[0] * mask

    scalar = torch.tensor(1.0)
    plain = fx.symbolic_trace(mixed)
    assert fx.Interpreter(plain).run(*positional(plain, (scalar, 7), {"k": 3})) == mixed(scalar, 7, k=3)
    specialized = fx.symbolic_trace(mixed, concrete_args={"mask": 1})
    assert fx.Interpreter(specialized).run(*positional(specialized, (scalar, 7), {"k": 3})) == mixed(scalar, 7, k=3)

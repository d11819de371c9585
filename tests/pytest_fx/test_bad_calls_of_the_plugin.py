"""Bad arguments of ``check_pass`` and its kin are refused before a search begins; the error names the accepted ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fx
import pytest_fx
from pytest_fx.laws import affordable, broken_laws, choose_laws
from pytest_fx.loading import load_contract, load_dtype, load_pass

NAME = "remove-dead-code"


def _inputs() -> Any:
    return (torch.ones(2),), {}


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: pytest_fx.check_pass(3), "an int is not a pass"),
        (lambda: pytest_fx.check_pass(NAME, contract=[]), "a list is not a contract"),
        (lambda: pytest_fx.check_pass(NAME, modes=3), "modes are 'eval' and 'train', not an int"),
        (lambda: pytest_fx.check_pass(NAME, max_examples=0), "max_examples= is a number of programs from 1 on"),
        (lambda: pytest_fx.check_pass(NAME, without=3), "'without' of choose_laws is a str or an Iterable, not an int"),
        (
            lambda: pytest_fx.check_pass(NAME, demand=[3]),
            "element of 'demand' of choose_laws is a str or a Law, not an int",
        ),
        (lambda: pytest_fx.check_pass(NAME, like=3), "like= is a captured program, not an int"),
        (lambda: pytest_fx.check_pass(NAME, programs=3), "programs= is a strategy of Hypothesis, not an int"),
        (lambda: pytest_fx.check_pass(NAME, min_changed="x"), "min_changed= is a number of programs"),
        (lambda: pytest_fx.check_pass(NAME, seed="x"), "seed= is an integer, not a str"),
        (lambda: pytest_fx.check_pass(NAME, settings=3), "settings= are Hypothesis's"),
        (lambda: pytest_fx.check_pass(NAME, seconds=-1), "seconds= is a number above 0"),
        (lambda: pytest_fx.check_pass(NAME, folder=3), "folder= is the path of a folder, not an int"),
        (lambda: pytest_fx.check_pass(NAME, isolate=3), "isolate= is True or False, not an int"),
        (lambda: pytest_fx.check_pass(NAME, isolate=True, timeout="x"), "timeout='x' is not a limit"),
        (lambda: pytest_fx.check_program(NAME, 3, _inputs), "takes a function that makes the module, not an int"),
        (lambda: pytest_fx.check_program(NAME, dict, _inputs), "takes a function that makes the module, not a dict"),
        (lambda: pytest_fx.check_program(NAME, torch.nn.ReLU, list), "makes the arguments of a call"),
        (lambda: pytest_fx.programs(ops=3), "'ops' of programs is an Iterable, not an int"),
        (
            lambda: pytest_fx.programs(constants=[[]]),
            "element of 'constants' of programs is a number or a str, not a list",
        ),
        (lambda: pytest_fx.programs(steps=-1), "'steps' of programs is an int from 1 to"),
        (lambda: pytest_fx.shapes(most=10**5000), "'most' of shapes is an int, not an int of more than 64 bits"),
        (lambda: pytest_fx.tensors(3), "'shape' of tensors is a SearchStrategy or a tuple or None, not an int"),
        (lambda: pytest_fx.tensors(dtype="float32"), "'dtype' of tensors is a dtype, not a str"),
        (lambda: choose_laws(demand=3), "'demand' of choose_laws is a str or an Iterable, not an int"),
        (lambda: broken_laws((), None), "'pass_run' of broken_laws is a PassRun, not None"),
        (lambda: affordable((), None), "'pass_run' of affordable is a PassRun, not None"),
        (lambda: load_contract([]), "a list is not a contract"),
        (lambda: load_dtype(3), "an int names no dtype"),
        (lambda: load_pass(None), "a NoneType is not a pass"),
    ],
)
def test_a_bad_argument_is_refused_by_name(call: Any, says: str) -> None:
    with pytest.raises(fx.FxError) as raised:
        call()
    assert says in str(raised.value).splitlines()[0]  # the next line quotes the call

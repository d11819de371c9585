"""Text that is made of traced values goes into messages; where something may be decided by it, it is asked for."""

# ruff: noqa: UP031, UP032 - how text is made is what matters here
from __future__ import annotations

import logging
import string
import warnings
from typing import Any

import pytest
import torch

import fx

TABLE = {"n2": 2.0, "n 2": 2.0, "2": 2.0}
LOG = logging.getLogger(__name__)


def _named(x: Any) -> str:
    return f"n{x.shape[1]}"


def _kept(x: Any) -> Any:
    name = f"n{x.shape[1]}"
    again = name
    return x * TABLE.get(again, 3.0)


def _grown(x: Any) -> Any:
    name = "n"
    name += f"{x.shape[1]}"
    return x * TABLE.get(name, 3.0)


DECIDING = [
    lambda x: x * TABLE.get(f"n{x.shape[1]}", 3.0),
    lambda x: x * TABLE[f"n{x.shape[1]}"],
    lambda x: x * TABLE.get(f"n{x.shape[1]:2}", 3.0),
    lambda x: x * TABLE.get("n" + str(x.shape[1]), 3.0),
    lambda x: x * TABLE.get(str(x.shape[1]) + "", 3.0),
    lambda x: x * TABLE.get("n%s" % x.shape[1], 3.0),
    lambda x: x * TABLE.get("n{}".format(x.shape[1]), 3.0),
    lambda x: x * TABLE.get("".join(["n", str(x.shape[1])]), 3.0),
    lambda x: x * TABLE.get("".join(map(str, [x.shape[1]])), 3.0),
    lambda x: x * TABLE.get(format(x.shape[1], "d"), 3.0),
    lambda x: x * TABLE.get(_named(x), 3.0),
    lambda x: x * (2.0 if str([x.shape[1]]) == "[2]" else 3.0),
    lambda x: x * (1.0 + len(f"{x.shape[1]}")),
    lambda x: x * (1.0 + len(str(x.shape[1]))),
    lambda x: x * (2.0 if str(x.shape[1]).rjust(2) == " 2" else 3.0),
    lambda x: x * (2.0 if "a" + str(x.shape[1]) + str(x.shape[1]) == "a22" else 3.0),
    lambda x: x * (2.0 if hasattr(torch, "Siz" + "e" * len(str(x.shape[1]))) else 3.0),
    lambda x: x * (3.0 if getattr(x, "m" + str(x.shape[1]), None) else 2.0),
    _kept,
    _grown,
]


@pytest.mark.parametrize("program", DECIDING)
def test_text_that_something_is_decided_by_is_refused_by_its_line(program: Any) -> None:
    said = r"(?s)cannot decide by the text of a traced value.*test_texts.py:\d+.*value +.*Proxy\(.*why .*try "
    with pytest.raises(fx.TraceError, match=said):
        fx.symbolic_trace(program)


@pytest.mark.parametrize("program", DECIDING)
def test_with_example_inputs_it_is_the_text_of_the_value_and_guarded(program: Any) -> None:
    captured = fx.symbolic_trace(program, example_inputs=(torch.ones(3, 2),))
    assert captured(torch.ones(1, 2)).tolist() == [[2.0, 2.0]] == program(torch.ones(1, 2)).tolist()
    with pytest.raises(fx.GuardError, match=r"x.shape\[1\] was 2"):
        captured(torch.ones(1, 3))


def _warned(x: Any) -> Any:
    if x.dim() != 2:
        raise TypeError(f"{x.dim()}")
    if x is None:
        warnings.warn(f"shape {x}", stacklevel=1)
    return x


def _collected(x: Any) -> Any:
    said = f"shape {x.shape}"
    said += f" of {x.dtype}"
    print(said, sep="")
    return x


def _raising(x: Any) -> Any:
    message = "shape " + f"{x.shape}".strip()
    if x.dim() != 2:
        raise ValueError(message)
    return x


SHOWING = [
    lambda x: print(f"{x.shape}", "n%s" % x.shape[0], "{}".format(x.dtype), ", ".join(map(str, [x.shape]))) or x,
    lambda x: print(_named(x)) or x,
    lambda x: LOG.debug(f"shape {x.shape}") or x,
    lambda x: LOG.debug("shape %s", x.shape) or x,
    lambda x: [torch._assert(x.dim() == 2, f"two, not {x.dim()}"), x][1],
    lambda x: [torch._assert(x.dim() == 2, "not " + str(x.dim())), x][1],
    lambda x: [x, str(x.shape)][0],
    lambda x: print(string.Template("$a").substitute(a=x.shape)) or x,
    _warned,
    _collected,
    _raising,
]


@pytest.mark.parametrize("program", SHOWING)
def test_text_that_is_only_shown_is_no_obstacle_and_no_guard(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(3, 2)
    assert torch.equal(fx.symbolic_trace(program)(x), x)
    guided = fx.symbolic_trace(program, example_inputs=(x,))
    assert not guided.guards and torch.equal(guided(torch.zeros(1, 3)), torch.zeros(1, 3))
    assert "Proxy(" not in guided.code


def test_text_of_a_program_without_source_is_shown_as_ever() -> None:
    made: dict[str, Any] = {}
    exec("def program(x):\n    text = f'a{x.shape}'\n    return x if text.islower() else -x", made)
    assert fx.symbolic_trace(made["program"])(torch.ones(1)).item() == -1.0

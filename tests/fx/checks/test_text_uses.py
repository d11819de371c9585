"""Text made of traced values goes into messages; if control flow may depend on it, it is guarded or refused."""

# ruff: noqa: UP031, UP032 - how text is made is what matters here
from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import pytest
import torch

import fx
from fx.assertions import check

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
    message = r"(?s)cannot branch on the text of a traced value.*test_text_uses.py:\d+.*value +.*Proxy\(.*why .*try "
    with pytest.raises(fx.TraceError, match=message):
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
    text = f"shape {x.shape}"
    text += f" of {x.dtype}"
    print(text, sep="")
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
    lambda x: [print(", ".join(f"{part}" for part in (x.shape, x.dtype))), x][1],
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


# The name of a function, and its file, decide nothing about its effects.


def get_info(text: str) -> Any:
    return TABLE.get(text, 3.0)


my_log = _check_shape = mark = write = warning_of = LookupTableError = get_info


class Table:
    info = debug = staticmethod(get_info)

    def print(self, text: str) -> Any:
        return TABLE.get(text, 3.0)


def told(text: str, *more: str) -> None:
    print(text, *more)


def checked(holds: Any, message: str) -> None:
    if not holds:
        raise ValueError(message)


class Speaking:
    def tell(self, text: str, level: int = 2) -> None:
        if level > 1:
            told("said: " + text)


class Label:
    def __add__(self, text: str) -> Any:
        return TABLE.get(text, 3.0)


def _printed(x: Any) -> Any:
    stream = io.StringIO()
    print(f"n{x.shape[1]}", file=stream, end="")
    return x * TABLE.get(stream.getvalue(), 3.0)


OF_ANY_NAME = [
    lambda x: x * (Label() + f"n{x.shape[1]}"),
    _printed,
    lambda x: x * get_info(f"n{x.shape[1]}"),
    lambda x: x * my_log(f"n{x.shape[1]}"),
    lambda x: x * _check_shape(f"n{x.shape[1]}"),
    lambda x: x * mark(f"n{x.shape[1]}"),
    lambda x: x * write(f"n{x.shape[1]}"),
    lambda x: x * warning_of(f"n{x.shape[1]}"),
    lambda x: x * LookupTableError(f"n{x.shape[1]}"),
    lambda x: x * Table().print(f"n{x.shape[1]}"),
    lambda x: x * Table.debug(f"n{x.shape[1]}"),
    lambda x: x * Table.info("n" + str(x.shape[1])),
    lambda x: x * TABLE.get("".join(["n", repr(x.shape[1])]), 3.0),
]


@pytest.mark.parametrize("program", OF_ANY_NAME)
def test_text_for_a_function_that_is_called_like_a_logger_decides_as_any_other(program: Any) -> None:
    with pytest.raises(fx.TraceError, match="cannot branch on the text of a traced value"):
        fx.symbolic_trace(program)
    x = torch.ones(1, 2)
    assert torch.equal(fx.symbolic_trace(program, example_inputs=(x,))(x), program(x))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: told(f"{x.shape}") or x,
        lambda x: told("a", f"{x.shape}") or x,
        lambda x: SPEAKING.tell(f"{x.shape}", 1) or x,
        lambda x: SPEAKING.tell(text=f"{x.shape}") or x,
        lambda x: checked(x.dim() == 2, f"two, not {x.dim()}") or x,
    ],
)
def test_text_for_a_function_that_only_shows_it_is_no_obstacle(program: Any) -> None:
    x = torch.ones(3, 2)
    captured = fx.symbolic_trace(program)
    assert torch.equal(captured(x), x)
    if captured.graph.find_nodes(op="call_function", target=check):
        with pytest.raises(AssertionError, match="two, not 3"):
            captured(torch.ones(1, 1, 1))


SPEAKING = Speaking()
PROGRAM = """
def program(x):
    text = f"n{x.shape[1]}"
    return x * (2.0 if text.endswith("n2") else 3.0)

def telling(x):
    print(f"{x.shape}")
    if x.dim() != 2:
        raise ValueError(f"two, not {x.dim()}")
    return x
"""


def test_uses_of_text_are_recognized_without_source() -> None:
    namespace: dict[str, Any] = {}
    exec(PROGRAM, namespace)
    x = torch.ones(1, 2)
    with pytest.raises(fx.TraceError, match="cannot branch on the text of a traced value"):
        fx.symbolic_trace(namespace["program"])
    assert fx.symbolic_trace(namespace["program"], example_inputs=(x,))(x).tolist() == [[2.0, 2.0]]
    with pytest.raises(AssertionError, match="two, not 3"):
        fx.symbolic_trace(namespace["telling"])(torch.ones(1, 1, 1))

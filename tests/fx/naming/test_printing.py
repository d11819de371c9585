"""Programs as text for people."""

from __future__ import annotations

import enum
import operator
from typing import Any

import pytest
import torch

import fx
from fx.errors import type_in_words, with_article
from fx.naming.printing import describe, format_argument, type_name


class Colour(enum.Enum):
    RED = 1


@pytest.fixture
def graph() -> fx.Graph:
    return fx.Graph()


@pytest.mark.parametrize(
    "argument, text",
    [((1,), "(1,)"), ([], "[]"), ({"a": (1, 2)}, "{a: (1, 2)}"),
     (slice(1, None), "slice(1, None, None)"),
     (Colour.RED, "Colour.RED"), ("text", "text"), (torch.float16, "torch.float16"), (None, "None"),
     (1 << 20000, hex(1 << 20000))],
    ids=lambda value: str(value)[:20] if not isinstance(value, int) else "int",
)  # fmt: skip
def test_arguments_print_short(argument: Any, text: str) -> None:
    assert format_argument(argument) == text


@pytest.mark.parametrize(
    "annotation, text",
    [(int, "int"), (torch.Tensor, "torch.Tensor"), ("text", "text"), (list[int], "list[int]"),
     (Colour, f"{__name__}.Colour"), (None, "None"), (torch.nn.Linear, "torch.nn.modules.linear.Linear")],
    ids=str,
)  # fmt: skip
def test_annotations_print_short(annotation: Any, text: str) -> None:
    assert type_name(annotation) == text


def test_descriptions_are_calls(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    node = graph.call_function(operator.gt, (x, 0), {"k": [x]})
    assert describe(node) == "%gt = call_function[operator.gt](%x, 0, k=[%x])"
    assert describe(x) == "%x = placeholder[x]()"


def test_the_table_is_aligned(graph: fx.Graph, capsys: pytest.CaptureFixture[str]) -> None:
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    graph.print_tabular()
    assert capsys.readouterr().out.splitlines() == [
        "opcode         name    target      args     kwargs",
        "-------------  ------  ----------  -------  ------",
        "placeholder    x       x           ()       {}",
        "call_function  relu    torch.relu  (x,)     {}",
        "output         output  output      (relu,)  {}",
    ]


def test_the_article_of_a_type_follows_its_pronunciation() -> None:
    an = ["int", "Identity", "_Odd", "AvgPool2d", "object", "output", "Unflatten", "Upsample"]
    a = ["tuple", "UNet", "Union", "uint8", "OneHot", "NoneType", "get_attr"]
    assert [with_article(noun) for noun in an + a] == [*(f"an {noun}" for noun in an), *(f"a {noun}" for noun in a)]
    assert type_in_words(3) == "an int"

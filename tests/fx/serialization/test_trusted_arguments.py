"""Arguments that torch does not check and files may not choose: offsets of embedding bags, truncating divisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_files import edited, reload

import fx
from fx import serialization
from fx.errors import LoadError, SaveError

REFUSAL = "is called with offsets that are not an input of the program"
embedding_bag = torch.nn.functional.embedding_bag


class Bags(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(5, 3)
        self.weight = torch.nn.Parameter(torch.randn(5, 3))
        self.register_buffer("own", torch.tensor([0, 2]))


class OfCallers(Bags):
    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> Any:
        by_name = embedding_bag(x, self.weight, offsets=offsets)
        return self.bag(x, offsets), embedding_bag(x, self.weight, offsets), by_name


class OfMatrices(Bags):
    def forward(self, x: torch.Tensor) -> Any:
        return self.bag(x), embedding_bag(x, self.weight), embedding_bag(x, self.weight, None)


def test_offsets_of_the_caller_are_passed_on(path: Path) -> None:
    program = fx.symbolic_trace(OfCallers())
    x, offsets = torch.tensor([1, 2, 4, 0]), torch.tensor([0, 3])
    for ours, theirs in zip(reload(program, path)(x, offsets), program(x, offsets), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_bags_of_one_length_need_no_offsets(path: Path) -> None:
    program = fx.symbolic_trace(OfMatrices())
    x = torch.tensor([[1, 2], [4, 0]])
    for ours, theirs in zip(reload(program, path)(x), program(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


MADE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a buffer": lambda self, x, offsets: self.bag(x, self.own),
    "a buffer of the function": lambda self, x, offsets: embedding_bag(x, self.weight, self.own),
    "a computed one": lambda self, x, offsets: self.bag(x, offsets + 1),
    "a part of an input": lambda self, x, offsets: self.bag(x, offsets[1:]),
    "one by keyword": lambda self, x, offsets: embedding_bag(x, self.weight, offsets=offsets * 2),
    "one that is written": lambda self, x, offsets: (offsets.fill_(-5), self.bag(x, offsets))[1],
    "one written through a view": lambda self, x, offsets: (offsets.view(-1).fill_(-5), self.bag(x, offsets)),
}


@pytest.mark.parametrize("name", MADE)
def test_offsets_that_the_program_makes_are_refused(path: Path, name: str) -> None:
    forward = MADE[name]
    kind = type("Made", (Bags,), {"forward": lambda self, x, offsets: forward(self, x, offsets)})
    with pytest.raises(SaveError, match=REFUSAL) as caught:
        serialization.save(fx.symbolic_trace(kind()), path)
    assert "make the offsets an input of their own" in str(caught.value)


def test_a_file_with_contradicting_arguments_is_refused(path: Path) -> None:
    def with_default(stored: Any) -> None:
        stored["modules"][-1]["graph"]["nodes"][1]["args"] = [[0, -5, 3]]

    def of_the_weight(stored: Any) -> None:
        nodes = stored["modules"][-1]["graph"]["nodes"]
        call = next(node for node in nodes if node["target"] == "bag")
        call["args"] = [{"node": 0}, {"tensor": 0}]

    program = fx.symbolic_trace(OfCallers())
    for edit in (with_default, of_the_weight):
        with pytest.raises(LoadError, match=REFUSAL):
            serialization.load(edited(program, path, edit))


def test_programs_inside_others_get_no_offsets(path: Path) -> None:
    graph = fx.Graph()
    x, offsets = graph.placeholder("x"), graph.placeholder("offsets")
    graph.output(graph.call_module("inner", (x, offsets)))
    with pytest.raises(SaveError, match=REFUSAL):
        serialization.save(fx.GraphModule({"inner": fx.symbolic_trace(OfCallers())}, graph), path)


@pytest.mark.parametrize(
    "divide",
    [
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda x, y: x.div(y, rounding_mode="trunc"),
        lambda x, y: x.divide_(y, rounding_mode="trunc"),
        lambda x, y: torch.ops.aten.div.Tensor_mode(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, x, rounding_mode=y),
    ],
)
def test_divisions_that_truncate_are_refused(path: Path, divide: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(SaveError, match="does not round down") as caught:
        serialization.save(fx.symbolic_trace(lambda x, y: divide(x, y)), path)
    assert "the quotient of the smallest integer and -1 ends the process" in str(caught.value)


def test_divisions_that_round_down_are_kept(path: Path) -> None:
    program = fx.symbolic_trace(lambda x, y: (torch.div(x, y, rounding_mode="floor"), x.div(y, rounding_mode=None)))
    smallest = torch.tensor([-(2**63), 7]), torch.tensor([-1, 2])
    assert reload(program, path)(*smallest)[0].tolist()[1] == 3

"""``split_module`` against that of torch.fx: the same programs where it is right, and where it is not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.fx
from building import Calling
from torch import Tensor, nn
from torch.fx.passes.split_module import split_module as torch_split_module

import fx
from fx.passes.split_module import split_module

from .corpus import PROGRAMS
from .libraries import assert_identical
from .programs import Program

SPLITTERS: dict[ModuleType, Callable[..., Any]] = {fx: split_module, torch.fx: torch_split_module}

POLICIES: dict[str, Callable[[int, int], int]] = {
    "whole": lambda index, count: 0,
    "halves": lambda index, count: 2 * index // count,
    "thirds": lambda index, count: 3 * index // count,
    "alternating": lambda index, count: index % 2,
    "single": lambda index, count: index,
}

KNOWN = inspect.signature(torch_split_module).parameters
"""The parameters of torch.fx's function in the installed version: torch 2.11 has no ``tuple_return``."""

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"keep_original_order": True, "keep_original_node_name": True},
    {
        name: value
        for name, value in {
            "keep_original_input_name": False,
            "tuple_return": True,
            "partition_affix": "part",
        }.items()
        if name in KNOWN
    },
)


def calls_of(program: Any) -> list[Any]:
    return [node for node in program.graph.nodes if node.op.startswith("call")]


def divide(library: ModuleType, program: Any, policy: str, **options: Any) -> Any:
    calls = calls_of(program)
    parts = {node.name: POLICIES[policy](index, len(calls)) for index, node in enumerate(calls)}
    return SPLITTERS[library](program, program, lambda node: parts[node.name], **options)


def is_written_alike(program: Program) -> bool:
    """Return whether both libraries write the undivided program alike, and torch.fx can keep its signature and its
    paths.
    """
    ours, theirs = program.captured(fx), program.captured(torch.fx)
    return (
        ours.code == theirs.code
        and type(theirs.graph._codegen) is torch.fx.graph.CodeGen
        and "->" not in ours.code
        and all(node.op != "get_attr" and "." not in str(node.target) for node in theirs.graph.nodes)
        and all(node.name == node.target for node in theirs.graph.nodes if node.op == "placeholder")
        and all(node.target is not getattr(torch, "_assert") for node in theirs.graph.nodes)  # noqa: B009
    )


ALIKE = [program for program in PROGRAMS if is_written_alike(program)]


def test_most_programs_of_the_corpus_are_compared() -> None:
    assert len(ALIKE) > 30


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "original", "renamed"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("program", ALIKE, ids=lambda program: program.name)
def test_divided_programs_have_the_code_that_torch_fx_writes(
    program: Program, policy: str, options: dict[str, Any]
) -> None:
    names: tuple[dict[str, str], dict[str, str]] = ({}, {})
    try:
        theirs = divide(torch.fx, program.captured(torch.fx), policy, qualname_map=names[1], **options)
    except (RuntimeError, KeyError) as error:
        theirs = error
    if isinstance(theirs, RuntimeError):
        with pytest.raises(RuntimeError, match="cycle exists between partitions!"):
            divide(fx, program.captured(fx), policy, **options)
        return
    ours = divide(fx, program.captured(fx), policy, qualname_map=names[0], **options)
    if isinstance(theirs, KeyError):
        assert options.get("keep_original_order")  # it runs partitions before their operands
        return
    assert names[0] == names[1]
    assert ours.code == theirs.code
    assert {name: part.code for name, part in ours.named_children()} == {
        name: part.code for name, part in theirs.named_children()
    }
    if "partition_names" in theirs.meta:  # torch 2.11 does not report them
        assert ours.meta["partition_names"] == theirs.meta["partition_names"]


@pytest.mark.parametrize("policy", ["whole", "halves", "thirds"])
def test_every_program_of_the_corpus_computes_the_same_in_parts(program: Program, policy: str) -> None:
    captured = program.capture(fx)
    divided = divide(fx, captured, policy, keep_original_node_name=True)
    inputs = program.inputs()
    torch.manual_seed(0)
    expected = captured(*program.inputs(), **program.keywords)
    torch.manual_seed(0)
    assert_identical(divided(*inputs, **program.keywords), expected)


# Where torch.fx differs.


def both(function: Any, callback: Callable[[Any], Any], **options: Any) -> tuple[Any, Any]:
    results = []
    for library, splitter in SPLITTERS.items():
        program: Any = library.symbolic_trace(function)
        results.append(splitter(program, program, callback, **options))
    return results[0], results[1]


def test_torch_fx_reorders_a_write_against_a_read() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        z = y + 1
        y.add_(1)
        return y + z

    parts = {"mul": 0, "add": 1, "add_": 0, "add_1": 1}
    program: Any = torch.fx.symbolic_trace(function)
    x = torch.ones(2)
    assert not torch.equal(torch_split_module(program, program, lambda node: parts[node.name])(x), function(x))
    with pytest.raises(RuntimeError, match="writes to `%mul`"):
        split_module(fx.symbolic_trace(function), None, lambda node: parts[node.name])


def test_torch_fx_reorders_random_numbers() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.rand_like(x) - torch.bernoulli(x)

    ours, theirs = both(function, lambda node: node.name)
    results = []
    for run in (function, ours, theirs):
        torch.manual_seed(0)
        results.append(run(torch.full((20,), 0.5)))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_torch_fx_confuses_paths_that_differ_in_dots_and_underscores() -> None:
    model = Calling(lambda self, x: self.a_0(self.a(x)), a=nn.Sequential(nn.Linear(2, 2)), a_0=nn.Linear(2, 2))
    ours, theirs = both(model, lambda node: 0)
    x = torch.rand(1, 2)
    assert torch.equal(ours(x), model(x))
    assert not torch.equal(theirs(x), model(x))
    assert set(ours.state_dict()) == {f"submod_0.{name}" for name in model.state_dict()}


def test_torch_fx_leaves_parameters_outside_of_the_partition_that_uses_them() -> None:
    ours, theirs = both(Calling(lambda self, x: x * self.weight, weight=nn.Parameter(torch.rand(2))), lambda node: 0)
    assert list(ours.state_dict()) == ["submod_0.weight"]
    assert list(theirs.state_dict()) == ["weight"]


def test_torch_fx_puts_divided_programs_into_training_mode() -> None:
    ours, theirs = both(nn.Sequential(nn.Dropout()).eval(), lambda node: 0)
    assert (ours.training, ours.submod_0.training) == (False, False)
    assert (theirs.training, theirs.submod_0.training) == (True, True)


def test_torch_fx_loses_stars_annotations_and_trees() -> None:
    def function(x: Tensor, *rest: Tensor) -> Tensor:
        return x + rest[0]

    ours, theirs = both(function, lambda node: 0, keep_original_node_name=True)
    assert "*rest" in ours.code and "-> torch.Tensor" in ours.code
    assert "*rest" not in theirs.code and "-> torch.Tensor" not in theirs.code
    for library, splitter in SPLITTERS.items():
        program = library.symbolic_trace(lambda pair: pair["a"] + 1, concrete_args={"pair": {"a": library.PH}})
        divided = splitter(program, program, lambda node: 0)
        assert ("fx_pytree" in divided.code) is (library is fx)


def test_torch_fx_fails_where_the_order_of_the_program_is_not_possible() -> None:
    def function(x: Tensor) -> Tensor:
        first, second = torch.relu(x), torch.neg(x)
        return first + second

    parts = {"relu": 0, "neg": 1, "add": 0}
    program: Any = torch.fx.symbolic_trace(function)
    with pytest.raises(KeyError):
        torch_split_module(program, program, lambda node: parts[node.name], keep_original_order=True)
    divided = split_module(fx.symbolic_trace(function), None, lambda node: parts[node.name], keep_original_order=True)
    assert torch.equal(divided(x := torch.randn(2)), function(x))

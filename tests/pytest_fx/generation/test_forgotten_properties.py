"""Properties of programs that passes forget, and how often some programs have them."""

from __future__ import annotations

import operator
import re
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from selection import thorough_except
from torch import nn

import fx
from pytest_fx.generation import Program
from pytest_fx.generation.bias import choices_for
from pytest_fx.generation.strategy import bias_toward, program_of
from pytest_fx.generation.tensor_expressions import TensorRecipe
from pytest_fx.generation.unnamed_arguments import further_arguments


@cache
def drawn(count: int, *ops: Any) -> list[Program]:
    bias = bias_toward(ops)
    return [program_of(Random(seed), bias, 14) for seed in range(count)]


ANY: tuple[Any, ...] = ()
CONVOLUTIONS = (nn.Conv2d, nn.BatchNorm2d)
TRANSPOSED = (nn.ConvTranspose2d,)
ATTENTION = (operator.matmul, F.softmax)
PARTS = (torch.split, torch.cat)
FORMS: dict[str, tuple[tuple[Any, ...], str]] = {
    "modules with hooks": (CONVOLUTIONS, r"self\.\w+\.register_forward_hook\("),
    "modules with hooks before them": (CONVOLUTIONS, r"self\.\w+\.register_forward_pre_hook\("),
    "frozen modules": (CONVOLUTIONS, r"self\.\w+\.requires_grad_\(False\)"),
    "frozen parameters": (ATTENTION, r"nn\.Parameter\(.*, requires_grad=False\)"),
    "rows of zeros in weights": (CONVOLUTIONS, r"self\.\w+\.weight\.data\[.*\] = 0"),
    "rows of zeros": (ATTENTION, r"\.index_fill\(0, torch\.tensor\(\[\d+\]\), 0\)"),
    "tied parameters": (ATTENTION, r"self\.tied\d+ = self\.weight\d+"),
    "tied layers": (CONVOLUTIONS, r"self\.\w+\.weight = self\.\w+\.weight"),
    "equal constants": (ANY, r'buffer\d+", (torch.*)\)\n(.*\n)*.*buffer\d+", \1\)'),
    "groups of several channels": (CONVOLUTIONS, r"nn\.Conv2d\(.*(8, (8|16),.*groups=(2|4)|[46], .*groups=2)"),
    "groups of transposed convolutions": (TRANSPOSED, r"nn\.ConvTranspose2d\(.*groups=[2-4]"),
    "output padding": (TRANSPOSED, r"nn\.ConvTranspose2d\(.*output_padding=1"),
    "scales that give no whole size": ((F.interpolate,), r"scale_factor=(1\.5|2\.5)"),
    "another diagonal": ((torch.tril, "triu"), r"(tril|triu)\(.*(diagonal=|, |\()[-12]"),
    "masks of another diagonal": (
        ATTENTION, r"softmax\(.*tri[ul]\((diagonal=)?-?[12]|tri[ul]\((diagonal=)?-?[12].*softmax"
    ),
    "parts in another order": (PARTS, r"cat\((\w+)(\[::-1\]|\[-1:\] \+ \1|\[1:\])|cat\(\[(\w+)\[1\], \3\[0\]\]"),
    "dropout between two operations": (ATTENTION, r"F\.dropout\(.*training=False\).* @ |= self\.dropout"),
    "results of writes that nobody uses": (ANY, r"^ {8}(\w+)\.(add|mul|relu|fill|neg)_\("),
    "values of plain numbers": (ANY, r"= torch\.(zeros|ones|full|arange)\(\(?\d"),
    "new values of plain numbers": (ANY, r"\.new_(zeros|ones|full)\(\(\d"),
    "values that are all negative": (ANY, r"\.sin\(\)\.sub\(2\)"),
    "the last row": (ANY, r"\w\[-1\]|\[-1:\]|select\(0, -1\)|size\(0\) - 1\]"),
    "rows of a parameter that an input chooses": (
        (F.embedding, operator.getitem), r"self\.weight\d+\[\w+\]|embedding\([yzw], self\.weight"
    ),
    "results in another value": ((torch.exp,), r"torch\.exp\(\w+, out=\w+\)"),
}  # fmt: skip
"""The options of each property, and its spelling in a source."""
QUICK = [name for name in FORMS if FORMS[name][0] in (ANY, CONVOLUTIONS)]


@pytest.mark.parametrize("name", thorough_except(QUICK, FORMS))
def test_one_program_in_fifty_has(name: str) -> None:
    ops, form = FORMS[name]
    sources = [program.source for program in drawn(150, *ops)]
    assert sum(re.search(form, source, re.MULTILINE) is not None for source in sources) >= 3


def test_a_view_is_read_after_a_write_to_its_base() -> None:
    def is_read(program: Program) -> bool:
        text, write = program.source, r"(\.\w+_\(| [-+*]=|\[.*\] [-+*]?=).*\n(.*\n)*.*[= (]"
        views = re.findall(r"(\w+) = (\w+)\.(?:mT|T|t\(|transpose\(|permute\()", text)
        return any(
            re.search(rf"^ +(?:\w+ = )?{first}{write}{other}\b", text, re.MULTILINE)
            for view, base in views
            for first, other in ((view, base), (base, view))
        )

    assert sum(map(is_read, drawn(150))) >= 3


@pytest.mark.parametrize("name", ["modules with hooks", "values of plain numbers", "frozen parameters"])
def test_a_capture_keeps_the_form(name: str) -> None:
    ops, form = FORMS[name]
    programs_found = [
        program for program in drawn(150, *ops) if re.search(form, program.source) and not program.uses_random
    ]
    assert programs_found
    for program in programs_found[:5]:
        captured = fx.symbolic_trace(program.build(), program.concrete_args)
        expected, actual = program.inputs.copies(), program.inputs.copies()
        wanted = program.build()(*expected.args, **expected.kwargs)
        assert str(captured(*actual.args, **actual.kwargs)) == str(wanted)


def test_gaps_are_rows_of_zeros_and_depths_are_negative() -> None:
    gaps = eval(TensorRecipe((3, 2), elements="gaps").text)
    assert gaps[:-1].all()
    assert not gaps[-1].any()
    assert (eval(TensorRecipe((2, 3, 4), elements="depths").text) < 0).all()


def test_values_of_arguments_come_from_types_and_documentation() -> None:
    values = {part.name for part in further_arguments("F.grid_sample({0}, {1}{*})", frozenset())}
    assert {"mode", "padding_mode", "align_corners"} <= values
    values = {part.name for part in further_arguments("{0}.scatter_reduce_(0, {1}, {2}{*})", frozenset())}
    assert "include_self" in values
    values = {part.name for part in further_arguments("F.interpolate({0}{*})", frozenset())}
    assert "recompute_scale_factor" in values


def test_taking_a_part_of_the_result_is_a_way_to_call_a_function() -> None:
    assert any("[::-1]" in choice.spelling for choice in choices_for(torch.cat))

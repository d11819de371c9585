"""The grammar against torch's own lists: each operator has a row, or a reason why programs have none of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_fx.generation.bias import choices_for
from pytest_fx.generation.grammar import ROWS
from pytest_fx.generation.schema_rows import reason_of, rows_of
from pytest_fx.generation.signatures import documented_texts
from pytest_fx.generation.spelled_targets import targets_of
from pytest_fx.generation.strategy import bias_toward, program_of
from pytest_fx.generation.torch_operators import is_listed, torch_operators

LISTED = torch_operators()
IN_ROWS = frozenset(
    target
    for row in ROWS
    for spelling in (*row.spellings, row.call)
    for target in targets_of(spelling, len(row.operands))
)
"""The functions that rows of the grammar call."""
OTHERS = [name for name, target in LISTED.items() if target not in IN_ROWS]


def test_the_lists_have_all_that_torch_says_can_be_overridden() -> None:
    listed = {id(target) for target in LISTED.values() if not isinstance(target, str)}
    overridable: dict[Any, list[Any]] = torch.overrides.get_overridable_functions()
    for namespace in (torch, F, torch.linalg, torch.fft, torch.special):
        for function in overridable[namespace]:
            if function.__name__[0] != "_":
                assert id(function) in listed, function
    for method in overridable[torch.Tensor]:
        name = getattr(method, "__name__", "_")
        if name[0] != "_" and inspect.isroutine(getattr(torch.Tensor, name, None)):
            assert LISTED[f".{name}"] == name
    assert {f"nn.{name}" for name in nn.modules.__all__} <= LISTED.keys()


def has_neither(names: list[str]) -> list[str]:
    return [name for name in names if not rows_of(LISTED[name]) and reason_of(name) is None]


def test_operators_have_a_row_or_a_stated_reason() -> None:
    assert has_neither(OTHERS[::12]) == []


@pytest.mark.thorough
def test_every_operator_has_a_row_or_a_stated_reason() -> None:
    assert has_neither(OTHERS) == []
    drawn = [name for name in OTHERS if is_listed(LISTED[name]) and rows_of(LISTED[name])]
    assert len(drawn) > len(OTHERS) * 0.75


def never_drawn(names: list[str], count: int) -> list[str]:
    """Return the operators that no program calls, though the programs were requested with them."""
    missing: list[str] = []
    for name in names:
        bias = bias_toward([LISTED[name]])
        if not any(f"{name}(" in program_of(Random(seed), bias, 14).source for seed in range(count)):
            missing.append(name)
    return missing


def test_operators_that_are_requested_are_drawn() -> None:
    names = [name for name in OTHERS[5::40] if rows_of(LISTED[name])]
    assert len(names) > 10
    missing = never_drawn(names, 12)
    assert len(missing) < len(names) / 8, missing


@pytest.mark.thorough
def test_most_operators_are_drawn_where_they_are_requested() -> None:
    names = [name for name in OTHERS[1::3] if rows_of(LISTED[name])]
    missing = never_drawn(names, 12)
    assert len(missing) < len(names) / 25, missing


@pytest.mark.parametrize(
    "target, spelling",
    [
        ("index_add", "{0}.index_add({dim}, {1}, {2}{*})"),
        ("index_copy_", "{0}.index_copy_({dim}, {1}, {2}{*})"),
        ("index_fill", "{0}.index_fill({dim}, {1}, {value}{*})"),
        ("scatter_reduce", "{0}.scatter_reduce({dim}, {1}, {2}, {reduce}{*})"),
        (torch.fft.fft, "torch.view_as_real(torch.fft.fft({0}{*}))"),
        (nn.Fold, "nn.Fold({output_size}, {kernel_size}{*})"),
        (torch.block_diag, "torch.block_diag({0}, {1}{*})"),
    ],
)
def test_signatures_become_rows(target: Any, spelling: str) -> None:
    assert spelling in [row.spellings[0] for row in rows_of(target)]


def test_calls_show_whether_they_write_share_and_draw() -> None:
    (write,), (view,) = rows_of("index_fill_")[:1], rows_of("swapdims")
    assert write.tags == {"in-place"}
    assert view.tags == {"view"}
    assert {"random"} <= rows_of("exponential_")[0].tags | rows_of(F.gumbel_softmax)[0].tags
    assert [row.tags for row in rows_of("addcdiv")] == [frozenset()]


def test_a_function_is_also_called_with_out() -> None:
    spellings = [choice.spelling for choice in choices_for(torch.exp)]
    assert "torch.exp({1}, out={0}{*})" in spellings
    assert spellings.count("torch.exp") == 3


def test_texts_for_arguments_are_those_of_the_documentation() -> None:
    assert documented_texts(F.grid_sample, "padding_mode") == ("zeros", "border", "reflection")
    assert documented_texts("scatter_reduce", "reduce") == ("sum", "prod", "mean", "amax", "amin")


def test_no_operator_is_called_when_the_generator_is_imported() -> None:
    code = (
        "import pytest_fx.generation, pytest_fx.generation.schema_rows as rows;print(rows.rows_of.cache_info().misses)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_rows_leave_the_random_state_alone_and_warn_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    before = torch.get_rng_state()
    rows_of.__wrapped__("cross")
    rows_of.__wrapped__("multinomial")
    assert torch.equal(before, torch.get_rng_state())
    assert not recwarn.list

"""Passes by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import fx
from fx.errors import PassError
from fx.passes import close, contract_of, exact, get_pass, list_passes, pass_name, register_pass

BUILT_IN = [name for name in list_passes() if type(get_pass(name)).__module__.startswith("fx.passes.")]
CLOSE = {"fuse-conv-bn", "merge-parallel-layers"}
"""The passes that may change how results are rounded."""


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_pass_has_its_name_and_its_contract(name: str) -> None:
    pass_: Any = get_pass(name)
    assert pass_ == type(pass_)()
    assert pass_.name == pass_name(pass_) == name
    assert contract_of(pass_) is (close if name in CLOSE else exact)


def test_built_in_passes_are_listed_in_order() -> None:
    assert set(BUILT_IN) > CLOSE and sorted(BUILT_IN) == BUILT_IN


ROOM = Path(fx.passes.__path__[0])
FILES = [path.stem for path in sorted(ROOM.glob("*.py")) if "\n@register_pass" in path.read_text("utf-8")]


@pytest.mark.parametrize("file", FILES)
def test_the_pass_in_a_file_is_imported_and_has_tests_and_a_row_in_the_guide(file: str) -> None:
    assert f"\nfrom fx.passes.{file} import" in (ROOM / "__init__.py").read_text("utf-8")
    assert list(Path(__file__).parent.glob(f"test_{file}.py"))
    guide = (ROOM.parents[1] / "docs" / "transforms.md").read_text("utf-8")
    names = re.findall(r'name: ClassVar\[str\] = "(.+)"', (ROOM / f"{file}.py").read_text("utf-8"))
    assert names
    assert [name for name in names if not re.search(rf"^\|.*`{name}\b.*\|", guide, re.MULTILINE)] == []


def test_a_class_is_registered_under_its_name_and_made_when_requested() -> None:
    @register_pass
    @dataclass(frozen=True)
    class Shorten:
        name: ClassVar[str] = "shorten-it"
        limit: int = 3

        def __call__(self, graph_module: Any) -> Any:
            return graph_module

    assert get_pass("shorten-it") == Shorten(limit=3)


def test_a_function_is_registered_under_its_name_with_hyphens() -> None:
    @register_pass
    def fuse_gelu(graph_module: Any) -> Any:
        return graph_module

    assert get_pass("fuse-gelu") is fuse_gelu


def test_registering_the_same_definition_again_changes_nothing() -> None:
    def fuse_gelu(graph_module: Any) -> Any:
        return graph_module

    register_pass(fuse_gelu)
    register_pass(fuse_gelu)
    assert get_pass("fuse-gelu") is fuse_gelu


def test_a_second_definition_is_refused_and_both_are_named() -> None:
    def make(number: int) -> Any:
        def fuse_gelu(graph_module: Any) -> Any:
            return number

        return fuse_gelu

    class Other:
        name = "fuse-gelu"

    register_pass(make(1))
    with pytest.raises(PassError, match="two passes are named 'fuse-gelu'") as caught:
        register_pass(Other)
    message = str(caught.value)
    assert "fuse_gelu (line " in message and "Other (line " in message
    assert get_pass("fuse-gelu")(None) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("miss", ["fuse-conv-bm", "fuse_conv_bn", "FUSE-CONV-BN", "conv-bn"])
def test_a_miss_lists_the_nearest_names(miss: str) -> None:
    with pytest.raises(PassError, match=f"there is no pass named '{miss}'") as caught:
        get_pass(miss)
    assert "did you mean 'fuse-conv-bn'" in str(caught.value)


def test_a_miss_without_similar_names_lists_all_names() -> None:
    with pytest.raises(PassError) as caught:
        get_pass("zzzz")
    assert "known passes: " in str(caught.value) and "remove-checks" in str(caught.value)


def test_names_are_derived_for_passes_without_one() -> None:
    class FuseLinearBN:
        pass

    class Named:
        name = "other"

    def fuse_gelu() -> None: ...

    assert pass_name(FuseLinearBN) == pass_name(FuseLinearBN()) == "fuse-linear-bn"
    assert pass_name(Named) == pass_name(Named()) == "other"
    assert pass_name(fuse_gelu) == "fuse-gelu"


@pytest.mark.parametrize("junk", [3, "x", torch.nn.ReLU()])
def test_objects_that_are_no_pass_are_not_registered(junk: object) -> None:
    with pytest.raises(PassError, match="is not a pass"):
        register_pass(junk)  # type: ignore[type-var]

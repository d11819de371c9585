"""Names: legal, unique, and different from names with a meaning in Python."""

from __future__ import annotations

import builtins
import copy
import keyword
import random
from math import inf, isnan

import hypothesis
import pytest
import torch
from hypothesis import strategies

from fx.naming.names import GENERATED_GLOBALS, Namespace, is_identifier, snake_case


@hypothesis.given(
    strategies.lists(strategies.text(max_size=6) | strategies.sampled_from(["x", "x_1", "x_2", "_", "add", "0"]))
)
def test_every_name_is_legal_and_new(candidates: list[str]) -> None:
    namespace = Namespace()
    names = [namespace.create_name(candidate) for candidate in candidates]
    assert len(set(names)) == len(names)
    for name in names:
        assert is_identifier(name)
        assert name.isascii()
        assert name == "_" or not hasattr(builtins, name)  # which doctest, like an interactive Python, sets there
        assert name not in GENERATED_GLOBALS


def test_the_first_keeps_its_wish_and_others_are_counted() -> None:
    namespace = Namespace()
    assert [namespace.create_name("x") for _ in range(3)] == ["x", "x_1", "x_2"]
    assert namespace.create_name("x_7") == "x_7"
    assert namespace.create_name("x_1") == "x_8"
    assert namespace.create_name("0") == "_0"
    assert namespace.create_name("a b") == "a_b"


def test_reserved_names_get_a_number() -> None:
    namespace = Namespace()
    for name in ("len", "class", "torch", "inf", "None", "device", "__debug__", "match"):
        new_name = namespace.create_name(name)
        assert new_name == ("match" if name == "match" else f"{name}_1")


def test_an_object_has_one_name_and_may_have_the_reserved_one_that_means_it() -> None:
    namespace = Namespace()
    first, other = object(), object()
    assert namespace.create_name("thing", first) == "thing"
    assert namespace.create_name("another", first) == "thing"
    assert namespace.create_name("thing", other) == "thing_1"
    assert namespace.create_name("torch", torch) == "torch"
    assert namespace.create_name("len", first) == "thing"
    assert namespace.create_name("len", len) == "len"
    assert namespace.create_name("torch", object()) == "torch_1"


def test_names_are_claimed_only_where_legal_free_and_not_reserved() -> None:
    class Text(str):
        __slots__ = ()

    namespace = Namespace()
    assert namespace.claim("x")
    assert not namespace.claim("x")
    for name in ("len", "torch", "class", "a b", "", "1", "x;y", "ﬁ", Text("y")):
        assert not namespace.claim(name), name
    assert namespace.create_name("y") == "y"


def test_a_copied_namespace_is_independent() -> None:
    namespace = Namespace()
    namespace.create_name("x")
    copied = copy.deepcopy(namespace)
    assert copied.create_name("x") == "x_1"
    assert namespace.create_name("x") == "x_1"


def test_many_names_of_one_wish_take_no_longer_each() -> None:
    namespace = Namespace()
    names = [namespace.create_name(random.choice(["x", "x_1", "x_5"])) for _ in range(20_000)]
    assert len(set(names)) == 20_000


@pytest.mark.parametrize(
    "text", [*keyword.kwlist, "", "1x", "a b", "a.b", "x\n", "__debug__", "ﬁ", "\N{MATHEMATICAL BOLD SMALL X}", "x;"]
)
def test_text_with_another_meaning_in_source_is_no_identifier(text: str) -> None:
    assert not is_identifier(text)


@pytest.mark.parametrize("text", ["x", "_", "__x__", "é", "名", "match", "self", "print"])
def test_identifiers_mean_themselves(text: str) -> None:
    assert is_identifier(text)
    namespace: dict[str, int] = {}
    exec(f"{text} = 1", namespace)
    assert namespace[text] == 1


def test_a_string_of_a_subclass_is_no_identifier() -> None:
    assert not is_identifier(type("Text", (str,), {"isidentifier": lambda self: True})("x; y"))
    assert not is_identifier(type("Text", (str,), {})("x"))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("MaxPool2d", "max_pool2d"),
        ("relu", "relu"),
        ("ALL_CAPS", "all_caps"),
        ("aB", "a_b"),
        ("HTTPServer", "httpserver"),
        ("", ""),
    ],
)
def test_snake_case(text: str, expected: str) -> None:
    assert snake_case(text) == expected


def test_generated_globals_have_the_values_of_their_names() -> None:
    assert GENERATED_GLOBALS["torch"] is torch
    assert GENERATED_GLOBALS["inf"] is inf
    assert isnan(GENERATED_GLOBALS["nan"])
    assert GENERATED_GLOBALS["NoneType"] is type(None)


def test_a_name_may_end_in_more_digits_than_python_converts() -> None:
    namespace = Namespace()
    name = f"x_{'1' * 5000}"
    assert namespace.create_name(name) == name
    assert namespace.create_name(name) == f"{name}_1"

"""``@checked``: arguments are checked against annotations, and a wrong one is named with what it should be."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import pytest
from torch import nn

import fx
import pytest_fx
from fx.argument_types import Bounds, annotated_types, checked, holds, in_words

FITTING: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [3, np.int64(3), -(2**63)], [True, 1.0, "1", None, 2**63]),
    (float, [3, 0.5, float("nan"), np.float32(1)], [True, "1", 10**5000, 1j]),
    (bool, [True], [1, None]),
    (str, ["", "a"], [b"a", None]),
    (None, [None], [0]),
    (nn.Module, [nn.ReLU()], [nn.ReLU, None]),
    (type[nn.Module], [nn.ReLU], [int, nn.ReLU()]),
    (int | str | None, [3, "a", None], [1.0]),
    (Literal["a", 1], ["a", 1], ["b", True]),
    (Callable[[int], int], [len, nn.ReLU()], [3]),
    (Any, [3, None], []),
    (Sequence[str], [["a"], ("a", "b"), ()], ["ab", {"a"}, [1], None]),
    (list[int], [[1]], [(1,), ["a"]]),
    (tuple[int, ...], [(1, 2), [1], ()], [(1, "a"), {1}]),
    (tuple[int, str], [(1, "a"), [1, "a"]], [(1,), ("a", 1), (1, "a", 2)]),
    (Mapping[str, int], [{"a": 1}], [{1: 1}, {"a": "b"}, [("a", 1)]]),
    (Iterable[Sequence[int]], [[[1]], {(1, 2)}], [[1], [["a"]], 3]),
    (Annotated[int, Bounds(2, 8)], [2, 8], [1, 9, 2.0]),
    (Annotated[float, Bounds(0, excludes_least=True)], [1, 0.1], [0, -1, float("inf"), float("nan"), "1"]),
]


@pytest.mark.parametrize("annotation, fitting, wrong", FITTING, ids=[str(row[0]) for row in FITTING])
def test_values_are_of_the_annotated_type_or_not(annotation: Any, fitting: list[Any], wrong: list[Any]) -> None:
    assert [value for value in fitting if not holds(annotation, value)] == []
    assert [value for value in wrong if holds(annotation, value)] == []


def test_a_protocol_is_checked_if_python_can_check_it() -> None:
    class Unchecked(Protocol):
        def run(self) -> None: ...

    assert holds(Unchecked, 3)
    assert not holds(fx.lowering.Network, 3)


class Layer:
    @checked(fx.PassError)
    def __init__(self, sizes: Sequence[Annotated[int, Bounds(0)]], groups: int = "all") -> None:  # type: ignore[assignment]
        self.sizes, self.groups = sizes, groups


@checked(fx.TraceError)
@dataclass(frozen=True, slots=True)
class Settings:
    mode: Literal["fast", "exact"] = "fast"
    rates: Mapping[str, float] | None = None

    @classmethod
    def read(cls, path: str | Path) -> Settings:
        return cls()

    def scaled(self, *factors: float, by: Annotated[float, "give a number, such as 2"] = 1.0, **other: int) -> float:
        return by

    @staticmethod
    def of(node: fx.Node) -> None:
        """Do nothing."""

    def _inner(self, value: int) -> int:
        return value


def run(program: fx.GraphModule, sizes: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the sizes."""
    return tuple(sizes)


checked_run = checked()(run)
run_on = checked_run


@pytest.mark.parametrize(
    "call, what",
    [
        (lambda: Layer((1, -2)), "an element of 'sizes' of Layer is an int of at least 0, not -2"),
        (lambda: Layer("ab"), "'sizes' of Layer is a Sequence, not a str"),  # type: ignore[arg-type]
        (lambda: Settings("slow"), "'mode' of Settings is 'fast' or 'exact', not 'slow'"),  # type: ignore[arg-type]
        (lambda: Settings(rates={"a": "b"}), "a value of 'rates' of Settings is a number, not a str"),  # type: ignore[dict-item]
        (lambda: Settings(rates={1: 1.0}), "a key of 'rates' of Settings is a str, not an int"),  # type: ignore[dict-item]
        (lambda: Settings(rates=3), "'rates' of Settings is a Mapping or None, not an int"),  # type: ignore[arg-type]
        (lambda: Settings.read(3), "'path' of Settings.read is a str or a Path, not an int"),  # type: ignore[arg-type]
        (lambda: Settings().scaled(by="x"), "'by' of Settings.scaled is a number, not a str"),  # type: ignore[arg-type]
        (lambda: Settings.of(nn.ReLU), "'node' of Settings.of is a Node, not the class ReLU"),  # type: ignore[arg-type]
        (
            lambda: Layer([2**64]),
            "an element of 'sizes' of Layer is an int of at least 0, not an int of more",
        ),
        (lambda: checked_run(nn.ReLU()), "'program' of run is a GraphModule, not a ReLU"),  # type: ignore[arg-type]
    ],
)
def test_the_first_wrong_argument_is_named(call: Callable[[], object], what: str) -> None:
    with pytest.raises(fx.FxError) as caught:
        call()
    first, where, *_ = str(caught.value).splitlines()
    assert first.startswith(what)
    assert where.startswith(f"  where  {__file__}:")


def test_the_error_is_of_the_given_class_and_says_what_to_try() -> None:
    with pytest.raises(fx.TraceError, match="  try    give a number, such as 2"):
        Settings().scaled(by=None)  # type: ignore[arg-type]
    with pytest.raises(fx.PassError):
        Layer(3)  # type: ignore[arg-type]
    with pytest.raises(fx.GraphError, match=r"  try    capture it first: fx\.symbolic_trace"):
        checked_run(nn.ReLU())  # type: ignore[arg-type]
    with pytest.raises(fx.GraphError, match=r"  try    make one: fx\.GraphModule\(root, graph\)"):
        checked_run(fx.Graph())  # type: ignore[arg-type]


def test_right_calls_reach_the_function_as_they_are() -> None:
    program = fx.symbolic_trace(nn.ReLU())
    assert checked_run(program, (size for size in (1, 2))) == (1, 2)  # the check left the iterator whole
    assert checked_run(program, sizes=[3]) == (3,)
    assert Layer([1], groups="all").groups == "all"  # type: ignore[arg-type]  the default
    assert Settings().scaled("a", by=2, other="b") == 2  # type: ignore[arg-type]  several at once are not checked
    assert Settings()._inner("private") == "private"  # type: ignore[arg-type]


def test_what_python_refuses_stays_a_type_error() -> None:
    for call in (lambda: checked_run(), lambda: checked_run(3, (), 4), lambda: checked_run(3, size=4)):
        with pytest.raises(TypeError, match=r"run\(\)"):
            call()  # type: ignore[call-arg]


def test_a_checked_function_looks_like_itself() -> None:
    assert inspect.signature(checked_run) == inspect.signature(run)
    assert (checked_run.__name__, checked_run.__doc__) == ("run", "Return the sizes.")
    assert pickle.loads(pickle.dumps(fx.lower)) is fx.lower
    assert inspect.getsource(Settings.scaled).lstrip().startswith("def scaled")


def test_types_are_said_in_words() -> None:
    words = [in_words(row[0]) for row in FITTING]
    assert words[:6] == ["an int", "a number", "True or False", "a str", "None", "a Module"]
    assert words[7:10] == ["an int or a str or None", "'a' or 1", "a function"]
    assert words[-2:] == ["an int from 2 to 8", "a number above 0"]


def _checked_functions() -> Iterator[Any]:
    for package in (fx, pytest_fx):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith("__main__"):
                continue
            module = importlib.import_module(info.name)
            owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
            for member in (member for owner in owners for member in vars(owner).values()):
                function = getattr(member, "__func__", member)
                if inspect.isfunction(function) and function.__code__.co_name == "guarded":
                    yield function


def test_the_annotations_of_every_checked_function_can_be_resolved() -> None:
    functions = [inspect.unwrap(function) for function in _checked_functions()]
    assert len(functions) > 100
    for function in functions:
        kinds = annotated_types(function)
        assert kinds.keys() <= inspect.signature(function).parameters.keys(), function.__qualname__


def test_a_field_whose_type_is_not_imported_leaves_the_other_fields_checked() -> None:
    @checked(fx.errors.PassError)
    @dataclass
    class Options:
        elsewhere: OnlyForTypeCheckers  # type: ignore[name-defined]  # noqa: F821
        depth: Literal[1, 2] | None = None

    assert Options(3, 2).elsewhere == 3
    with pytest.raises(fx.errors.PassError, match=r"^'depth' of Options is 1 or 2 or None, not 3"):
        Options(3, 3)  # type: ignore[arg-type]

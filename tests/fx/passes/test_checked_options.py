"""Wrong values for options of every pass, set in Python: each raises one of our errors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import pytest

import fx
from fx.errors import PassError
from fx.passes import MergeParallelLayers, get_pass, list_passes, parse_pipeline, register_pass
from fx.passes.split_module import Split
from fx.pipelines.pass_options import options_of
from fx.pipelines.rewriting import RewritingPass

WRONG = {
    "None": None,
    "an integer": 3,
    "a number": 1.5,
    "NaN": float("nan"),
    "a boolean": True,
    "a word": "zzz",
    "bytes": b"zzz",
    "a list": [1],
    "a tuple": (None,),
    "a dict": {"a": 1},
    "a set": {1},
    "an object": object(),
    "a function": lambda: None,
    "a class": int,
}  # fmt: skip

OWN = [name for name in list_passes() if type(get_pass(name)).__module__.partition(".")[0] == "fx"]
OPTIONS = [(type(get_pass(name)), option) for name in OWN for option in options_of(get_pass(name))]


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The classes of values that an option takes, and of those in its tuples."""
    return get_args(annotation) or (annotation,)


def _may_fit(annotation: Any, value: Any) -> bool:
    """Return whether a value is of an option's kind, so that only the pass itself can judge it."""
    kinds = _kinds(annotation)
    integer = isinstance(value, int) and not isinstance(value, bool)
    numbers = (integer and (int in kinds or float in kinds)) or (isinstance(value, float) and float in kinds)
    return numbers or type(value) in kinds


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("pass_class, option", OPTIONS, ids=[f"{kind.name}-{option.name}" for kind, option in OPTIONS])
def test_wrong_values_of_options_are_refused(pass_class: Any, option: Any, value: Any) -> None:
    if _may_fit(option.annotation, value):
        try:
            pass_class(**{option.name: value})
        except PassError:
            return
        return
    with pytest.raises(PassError, match=f"'{option.name}' of {pass_class.__name__} is ") as failure:
        pass_class(**{option.name: value})
    assert "\n  value  " in str(failure.value)


def test_the_test_sees_every_option() -> None:
    assert {kind.name for kind, _ in OPTIONS} >= {"lower", "merge-parallel-layers", "quantize", "split", "fuse-conv-bn"}


@pytest.mark.parametrize("least", ["x", None, [2], 2.0, True, 1, 0, -3])
def test_least_of_merge_parallel_layers_is_an_integer_from_two_on(least: Any) -> None:
    with pytest.raises(PassError, match="least"):
        MergeParallelLayers(least=least)
    assert MergeParallelLayers(least=3).least == 3


@pytest.mark.parametrize(
    "text",
    ["quantize{activation-bits=99}", "quantize{weight-bits=0}", "quantize{sqnr-db=nan}"],
)
def test_numbers_of_quantize_are_refused_where_it_is_made(text: str) -> None:
    with pytest.raises(PassError):
        parse_pipeline(text)


def test_split_takes_one_place_or_several() -> None:
    assert Split(at="layer3").at == ("layer3",)
    assert Split(at=["a", "b"]).at == ("a", "b")  # type: ignore[arg-type]
    assert parse_pipeline("split{at=layer3}") == [Split(at=("layer3",))]
    assert parse_pipeline("split{at=a+b}") == [Split(at=("a", "b"))]


def test_options_are_checked_before_the_pass_uses_them() -> None:
    @register_pass
    @dataclass(frozen=True, slots=True)
    class Careless(RewritingPass):
        times: int = 1
        words: tuple[str, ...] = ()

        name: ClassVar[str] = "careless-about-its-options"

        def __post_init__(self) -> None:
            object.__setattr__(self, "times", self.times + 1)

        def rewrites(self, graph_module: fx.GraphModule) -> Any:
            yield from ()

    assert Careless(3).times == 4
    assert dataclasses.replace(Careless(3), words=("a",)).times == 5
    with pytest.raises(PassError, match="'times' of Careless is an int, not a str"):
        Careless("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'time'"):
        Careless(time=1)  # type: ignore[call-arg]

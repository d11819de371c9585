"""Passes and their options as text: reading, writing back, and refusals with the place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from fx.errors import PassError
from fx.passes import FuseConvBN, RemoveDeadCode, register_pass
from fx.pipelines.option_text import parse_text
from fx.pipelines.pass_options import options_of
from fx.pipelines.registered_passes import describe_pass, get_pass, parse_pipeline, write_pass


@dataclass(frozen=True)
class Tune:
    """Tune a program.

    Much more could be said.
    """

    name: ClassVar[str] = "tune"
    at: tuple[str, ...] | str = ()
    """The places to act on."""
    limit: int | None = None
    """The largest number of times."""
    mode: Literal["fast", "slow", 3] = "fast"
    exactly: bool = False
    loss: float = 0.001
    pair: tuple[int, int] = (1, 2)
    hook: dict[str, int] = field(default_factory=dict)

    def __call__(self, graph_module: Any) -> Any:
        return graph_module


@dataclass(frozen=True)
class Needy:
    name: ClassVar[str] = "needy"
    at: str

    def __call__(self, graph_module: Any) -> Any:
        return graph_module


@dataclass(frozen=True)
class Picky:
    name: ClassVar[str] = "picky"
    limit: int = 1

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError("limit must be positive")

    def __call__(self, graph_module: Any) -> Any:
        return graph_module


def leave_it(graph_module: Any) -> Any:
    return graph_module


@pytest.fixture(autouse=True)
def _registered() -> None:
    for definition in (Tune, Needy, Picky, leave_it):
        register_pass(definition)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("tune", Tune()),
        ("tune{}", Tune()),
        ("tune{at=layer3}", Tune(at="layer3")),
        ("tune{at=layer2+layer3}", Tune(at=("layer2", "layer3"))),
        ("tune{ limit = 3 , mode = slow }", Tune(limit=3, mode="slow")),
        ("tune{mode=3}", Tune(mode=3)),
        ("tune{limit=none,exactly}", Tune(exactly=True)),
        ("tune{exactly=True}", Tune(exactly=True)),
        ("tune{loss=1e-5,pair=3+4}", Tune(loss=1e-5, pair=(3, 4))),
        ("""tune{at="a, {b} = 'c'"}""", Tune(at="a, {b} = 'c'")),
    ],
)
def test_options_are_read_by_the_types_of_their_fields(text: str, expected: Tune) -> None:
    pass_ = get_pass(text)
    assert pass_ == expected
    assert get_pass(write_pass(pass_)) == expected


def test_a_pipeline_is_read_in_order_and_written_back() -> None:
    passes = parse_pipeline("fuse-conv-bn, tune{limit=3,at=a+b},leave-it , remove-dead-code")
    assert passes == [FuseConvBN(), Tune(limit=3, at=("a", "b")), leave_it, RemoveDeadCode()]
    assert ",".join(map(write_pass, passes)) == "fuse-conv-bn,tune{at=a+b,limit=3},leave-it,remove-dead-code"


def test_values_that_need_quotes_are_written_with_them() -> None:
    assert write_pass(Tune(at="a b")) == 'tune{at="a b"}'
    assert write_pass(Tune(at='say "a"')) == "tune{at='say \"a\"'}"
    assert write_pass(Needy(at="")) == 'needy{at=""}'


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "tune{lmit=3}",
            "pass 'tune' has no option 'lmit'\n  value  tune{lmit=3}\n              ^\n"
            "  try    did you mean 'limit'? its options are at: ",
        ),
        ("tune{limit=abc}", "option 'limit' of pass 'tune' takes an integer or 'none', not 'abc'\n"),
        ("tune{exactly=yes}", "option 'exactly' of pass 'tune' takes 'true' or 'false', not 'yes'\n"),
        ("tune{mode=medium}", "option 'mode' of pass 'tune' takes 'fast' or 'slow' or '3', not 'medium'\n"),
        ("tune{loss=low}", "option 'loss' of pass 'tune' takes a number, not 'low'\n"),
        ("tune{pair=1}", "option 'pair' of pass 'tune' takes 2 values of type int joined by '+', not '1'\n"),
        ("tune{hook=1}", "option 'hook' of pass 'tune' cannot be written as text\n"),
        ("tune{limit=1,limit=2}", "option 'limit' of pass 'tune' is given twice\n"),
        ("tune{limit}", "option 'limit' needs a value\n"),
        ("tune{limit=1", "a brace is not closed\n  value  tune{limit=1\n             ^\n  try    add the closing }"),
        ("tune{limit=", "a brace is not closed\n"),
        ("tune{", "a brace is not closed\n"),
        ("tune{limit=1,}", "the name of an option is expected here, not '}'\n"),
        ("tune{limit=1 exactly}", "a comma or a closing brace is expected here, not 'exactly'\n"),
        ("tune{at='x}", "a quote is not closed\n  value  tune{at='x}\n                 ^\n  try    add the closing '"),
        ("tune{at=}", "a value of 'at' is expected here, not '}'\n"),
        ("tune}", "a comma or the end is expected here, not '}'\n"),
        ("tune,leave-it{at=1}", "pass 'leave-it' takes no options\n  value  tune,leave-it{at=1}\n" + " " * 23 + "^\n"),
        ("fuse-conv-bn{at=1}", "pass 'fuse-conv-bn' has no option 'at'\n"),
        ("needy", "pass 'needy' needs option 'at'\n"),
        (
            "tune,",
            "the name of a pass is expected here, not the end\n  value  tune,\n              ^\n"
            "  why    there is a comma before it\n  try    drop the comma",
        ),
        ("", "the name of a pass is expected here, not the end\n"),
    ],
)
def test_invalid_text_is_refused_with_its_position(text: str, message: str) -> None:
    with pytest.raises(PassError) as caught:
        parse_pipeline(text)
    assert str(caught.value).startswith(message)


def test_an_unknown_pass_in_a_pipeline_is_refused_with_its_place() -> None:
    with pytest.raises(PassError, match="there is no pass named 'tun'") as caught:
        parse_pipeline("leave-it,tun{limit=1}")
    assert "did you mean 'tune'" in str(caught.value)
    assert caught.value.__notes__ == ["at character 10 of 'leave-it,tun{limit=1}'"]


def test_get_pass_makes_one_pass_only() -> None:
    with pytest.raises(PassError, match="get_pass makes one pass"):
        get_pass("tune,tune")


def test_places_are_counted_in_characters() -> None:
    first, second = parse_text("a ,b{ c = 'd' }")
    assert (first.start, second.start) == (0, 3)
    (option,) = second.options
    assert (option.name, option.value, option.start, option.value_start) == ("c", "d", 6, 10)


def test_help_shows_the_first_paragraph_the_contract_and_the_options() -> None:
    assert describe_pass("tune").splitlines()[:4] == [
        "tune: Tune a program.",
        "  contract  close(rtol=1e-05, atol=1e-08)",
        '  option    at: tuple[str, ...] | str = ""  (The places to act on.)',
        "  option    limit: int | None = none  (The largest number of times.)",
    ]
    assert describe_pass("needy").splitlines()[-1] == "  option    at: str"
    assert describe_pass("leave-it").startswith("leave-it: not documented")
    assert describe_pass("quantize").splitlines()[1] == "  contract  depends on the options"


def test_a_type_that_is_imported_for_checking_only_is_named() -> None:
    @dataclass(frozen=True)
    class Local:
        name: ClassVar[str] = "local"
        at: Missing = None  # type: ignore[name-defined]  # noqa: F821, RUF100

    with pytest.raises(PassError, match=r"the type of option 'at' of .*Local cannot be resolved"):
        options_of(Local)


def test_options_that_the_pass_itself_refuses_are_shown_with_its_error() -> None:
    with pytest.raises(PassError) as caught:
        parse_pipeline("tune,picky{limit=-1}")
    assert str(caught.value) == (
        "pass 'picky' cannot be made with these options\n"
        "  value  tune,picky{limit=-1}\n"
        "              ^\n"
        "  why    ValueError: limit must be positive"
    )
    assert isinstance(caught.value.__context__, ValueError)

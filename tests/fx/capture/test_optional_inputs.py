"""Inputs that a program asks for being ``None``."""

from __future__ import annotations

import enum
import inspect
import os
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.assertions import check_given, check_not_given
from fx.errors import GuardError


def masked(x: Any, mask: Any = None) -> Any:
    if mask is not None:
        x = x * mask
    return x + 1


HERE = os.path.abspath(__file__)


def test_a_program_is_that_without_its_optional_input_and_refuses_to_run_with_one() -> None:
    traced = fx.symbolic_trace(masked)
    assert torch.equal(traced(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(GuardError) as info:
        traced(torch.ones(2), torch.zeros(2))
    assert str(info.value).splitlines() == [
        "the program was captured where mask is not given (concrete_args={'mask': fx.PH} captures it with): "
        f"{HERE}:20, in masked:  if mask is not None:",
        "  value  it is of <class 'torch.Tensor'> now",
        "  why    the program was specialized to it, once, while it was captured",
        "  try    leave it out, or capture the program with it (concrete_args)",
    ]


@pytest.mark.parametrize("concrete", [None, {"mask": fx.PH}])
def test_that_an_optional_input_is_given_or_not_is_a_guard(concrete: dict[str, Any] | None) -> None:
    traced = fx.symbolic_trace(masked, concrete_args=concrete)
    (guard,) = traced.guards
    state = "given" if concrete else "not given"
    assert str(guard).startswith(f"the program was captured where mask is {state} (concrete_args=")
    free = fx.passes.RemoveChecks(guards=True)(traced) or traced
    assert not free.guards


def test_the_suggested_remedy_captures_the_program_with_its_optional_input() -> None:
    traced = fx.symbolic_trace(masked, concrete_args={"mask": fx.PH})
    assert torch.equal(traced(torch.ones(2), torch.zeros(2)), torch.ones(2))
    with pytest.raises(GuardError) as info:
        traced(torch.ones(2))
    assert str(info.value).splitlines() == [
        "the program was captured where mask is given (concrete_args={'mask': None} captures it without): "
        f"{HERE}:20, in masked:  if mask is not None:",
        "  value  it is None",
        "  why    the program was specialized to it, once, while it was captured",
        "  try    pass it, or capture the program without it (concrete_args)",
    ]


def _biased(q: Any, bias: Any = None) -> Any:
    return q if bias is None else q + bias


class Attending(nn.Module):
    def forward(self, x: Any, bias: Any = None) -> Any:
        return self.attend(x, bias)

    def attend(self, x: Any, added: Any) -> Any:
        return _biased(x, bias=added)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Attending()

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.inner(x, mask)


def any_given(x: Any, one: Any = None, other: Any = None) -> Any:
    return x + 1 if any(part is not None for part in (one, other)) else x


def by_truth(x: Any, scale: Any = None) -> Any:
    return x * (scale or 2.0)


def by_class(x: Any, y: Any = None) -> Any:
    return x + y if isinstance(y, torch.Tensor) else x


@pytest.mark.parametrize("root", [Around(), Attending(), any_given, by_truth, by_class])
def test_an_input_is_followed_to_every_kind_of_test_for_none(root: Any) -> None:
    traced, x = fx.symbolic_trace(root), torch.ones(2)
    assert torch.equal(traced(x), root(x))
    with pytest.raises(GuardError, match="is not given"):
        traced(x, x)


def needed(x: Any, y: Any = None) -> Any:
    if y is None:
        raise ValueError("y is needed")
    return x + y


def test_an_input_without_which_the_program_fails_is_captured_as_given() -> None:
    traced = fx.symbolic_trace(needed)
    assert torch.equal(traced(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(GuardError, match="where y is given"):
        traced(torch.ones(2))


def masked_or_causal(x: Any, mask: Any = None, causal: bool = False) -> Any:
    if mask is not None or causal:
        return x * 2
    return x + 1 if not causal else x


def test_a_flag_that_is_tested_is_left_out_with_the_optional_input_beside_it() -> None:
    traced, x = fx.symbolic_trace(masked_or_causal), torch.ones(2)
    assert torch.equal(traced(x), x + 1)
    assert [str(guard).partition(": ")[0] for guard in traced.guards] == [
        "the program was captured where mask is not given (concrete_args={'mask'",
        "the program was captured where causal was False (concrete_args={'causal'",
    ]
    with pytest.raises(GuardError, match="where causal was False"):
        traced(x, None, True)
    causal = fx.symbolic_trace(masked_or_causal, concrete_args={"causal": True})
    assert torch.equal(causal(x, None, True), x * 2)


def test_a_flag_that_is_marked_to_stay_an_input_decides_nothing() -> None:
    with pytest.raises(fx.TraceError, match="cannot be used as inputs to control flow"):
        fx.symbolic_trace(masked_or_causal, concrete_args={"causal": fx.PH})
    free = fx.symbolic_trace(lambda x, up=False: x.flip(0) * up, concrete_args={"up": fx.PH})
    assert torch.equal(free(torch.ones(2), True), torch.ones(2))


def test_a_call_that_gives_a_flag_is_not_captured_by_its_default() -> None:
    class Model(nn.Module):
        def forward(self, x: Any, mask: Any = None, causal: bool = False) -> Any:
            return masked_or_causal(x, mask, causal)

    x = torch.ones(2)
    assert torch.equal(fx.capture(Model(), (x,), {"causal": True})(x, causal=True), x * 2)


def test_a_program_refused_without_its_optional_input_is_not_captured_with_it_instead() -> None:
    def program(x: Any, mask: Any = None) -> Any:
        return x * 2 if mask is not None or x.sum() > 0 else x

    with pytest.raises(fx.TraceError, match="cannot be used as inputs to control flow"):
        fx.symbolic_trace(program)
    fx.symbolic_trace(program, concrete_args={"mask": fx.PH})


def test_a_program_that_fails_with_its_optional_input_and_without_says_both() -> None:
    def program(x: Any, y: Any = None) -> Any:
        if y is None:
            raise ValueError("y is needed")
        return x if y > 0 else y

    with pytest.raises(ValueError, match="y is needed") as info:
        fx.symbolic_trace(program)
    assert "it fails too: symbolically traced variables" in info.value.__notes__[0]  # type: ignore[attr-defined]


def test_a_captured_program_is_captured_again_with_its_check() -> None:
    traced = fx.symbolic_trace(masked)
    again = fx.symbolic_trace(traced)
    assert again.code == traced.code
    assert len(again.graph.find_nodes(op="call_function", target=check_not_given)) == 1


def test_example_inputs_say_which_optional_inputs_are_given() -> None:
    class Masked(nn.Module):
        def forward(self, x: Any, mask: Any = None) -> Any:
            return masked(x, mask)

    x = torch.ones(2)
    assert torch.equal(fx.capture(Masked(), (x, x * 0))(x, x * 0), x)
    assert torch.equal(fx.capture(Masked(), (x,))(x), x + 1)


@pytest.mark.parametrize("given", [0.5, 0])
def test_another_value_than_a_tensor_is_given_too(given: float) -> None:
    traced = fx.symbolic_trace(masked, concrete_args={"mask": fx.PH})
    assert torch.equal(traced(torch.ones(2), given), masked(torch.ones(2), given))


def test_an_optional_input_that_is_passed_on_is_not_checked() -> None:
    traced = fx.symbolic_trace(lambda x, w, b=None: torch.nn.functional.linear(x, w, b))
    for target in (check_given, check_not_given):
        assert not traced.graph.find_nodes(op="call_function", target=target)
    assert traced(torch.ones(1, 2), torch.ones(1, 2)).item() == 2


class CallsItsParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x, *, z=None):
        return self.weight.mm(z) + x


class CallsItsProperty(CallsItsParameter):
    @property
    def doubled(self):
        return self.weight * 2

    def forward(self, x, *, z=None):
        return self.doubled.mm(z) + x


@pytest.mark.parametrize("root", [CallsItsParameter(), CallsItsProperty()])
def test_an_input_with_a_default_is_before_a_parameter_whose_method_gets_it(root):
    program = fx.symbolic_trace(root)
    program.graph.lint()
    assert not program.graph.eliminate_dead_code()
    assert [node.op for node in program.graph.nodes][:2] == ["placeholder", "placeholder"]
    x, z = torch.rand(3, 3), torch.rand(3, 3)
    assert torch.allclose(program(x, z=z), root(x, z=z))


class Helper:
    def attend(self, x, mask):
        return self.masked(x, mask)

    @staticmethod
    def masked(x, mask):
        return x if mask is None else x * mask


class WithHelper(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.helper = getattr(Helper(), name)

    def forward(self, x, mask=None):
        return self.helper(x, mask)


class WithHelpers(WithHelper):
    def __init__(self):
        nn.Module.__init__(self)
        self.helpers = Helper()

    def forward(self, x, mask=None):
        return self.helpers.attend(x, mask)


@pytest.mark.parametrize("root", [*map(WithHelper, ("attend", "masked")), WithHelpers()])
def test_an_input_is_followed_into_methods_of_every_kind(root):
    x = torch.ones(2)
    assert torch.equal(fx.symbolic_trace(root)(x), x)


WAYS_TO_ASK = """
x * 2 if any(part is not None for part in (mask,)) else x * 3
x * 2 if any([part for part in (mask, None) if part]) else x * 3
x * 2 if mask else x * 3
x * 2 if not mask else x * 3
x * 2 if isinstance(mask, torch.Tensor) else x * 3
x * 2 if (lambda: mask is not None)() else x * 3
x * 2 if helper(1, given=mask) else x * 3
x * 2 if (other := mask) is not None else x * 3
x * 2 if (mask, 1)[0] is not None else x * 3
x * 2 if dict(part=mask).get("part") is not None else x * 3
x * 2 if Box(mask).part is not None else x * 3
x * 2 if Box(mask).is_empty() else x * 3
x * 2 if same(mask) is not None else x * 3
x * 2 if starred(mask) else x * 3
x * 2 if named(part=mask) else x * 3
x * 2 if list(map(lambda part: part is None, (mask,)))[0] else x * 3
x * 2 if next(iter((mask,))) is None else x * 3
x * 2 if locals()["mask"] is None else x * 3
x * len([*filter(lambda part: part is None, (mask, 1))])
x * len({name: part for name, part in {"a": mask}.items() if part is not None})
x * [mask, None].count(None)
x * sum(part is not None for part in (x, mask))
x * 2 if type(mask) is type(None) else x * 3
"""

STATEMENTS_THAT_ASK = {
    "alias": "other = mask; return x * 2 if other is not None else x * 3",
    "unpacked": "other, one = mask, 1; return x * 2 if other is not None else x * 3",
    "starred": "first, *rest = x, mask; return x * 2 if rest[0] is not None else x * 3",
    "stored": "parts = {}; parts['mask'] = mask; return x * 2 if parts['mask'] is not None else x * 3",
    "attribute": "box = Box(None); box.part = mask; return x * 2 if box.part is not None else x * 3",
    "loop": "for part in (mask, None):\n        if part is not None: x = x * 2\n    return x",
    "zip": "for one, part in zip((1,), (mask,)):\n        if part is not None: x = x * 2\n    return x",
    "closure": "other = mask\n    def ask(): return other is None\n    return x * 2 if ask() else x * 3",
    "generator": "def parts(): yield mask\n    return x * 2 if [*parts()][0] is None else x * 3",
    "match": "match mask:\n        case None: return x * 3\n    return x * 2",
    **{text: f"return {text}" for text in WAYS_TO_ASK.strip().splitlines()},
}

HELPERS = """
class Box:
    def __init__(self, part): self.part = part
    def is_empty(self): return self.part is None

def helper(x, given): return given is not None
def same(part): return part
def starred(*parts): return parts[0] is None
def named(**parts): return parts["part"] is None
"""


@pytest.mark.parametrize("given", [None, "example", "no example"])
@pytest.mark.parametrize("body", STATEMENTS_THAT_ASK.values(), ids=STATEMENTS_THAT_ASK)
def test_however_an_input_is_tested_the_program_is_right_or_refuses(body: str, given: str | None) -> None:
    namespace: dict[str, Any] = {"torch": torch}
    exec(f"{HELPERS}\ndef program(x, mask=None):\n    {body}", namespace)  # without source
    program, x = namespace["program"], torch.ones(1)
    examples = {None: None, "example": (x, x), "no example": (x,)}[given]
    try:
        traced = fx.symbolic_trace(program, example_inputs=examples)
    except fx.TraceError:
        assert given is not None  # the truth of a tensor
        return
    captured, other = [(x,), (x, x)][:: -1 if given == "example" else 1]
    assert traced(*captured).item() == program(*captured).item()
    with pytest.raises(GuardError, match=r"mask (is|was|is not) (given|None)"):
        traced(*other)


@pytest.mark.parametrize(
    "body",
    [
        "other = mask; return x if other is None else x + other",
        "kwargs = {'bias': mask}; return torch.nn.functional.linear(x, x, **kwargs)",
        "return x + torch.nn.functional.linear(x, x, *(mask,))",
        "return x, [mask]",
    ],
)
def test_an_input_that_makes_no_difference_is_given_or_not(body: str) -> None:
    namespace: dict[str, Any] = {"torch": torch}
    exec(f"def program(x, mask=None):\n    {body}", namespace)
    x = torch.ones(1, 1)
    traced = fx.symbolic_trace(namespace["program"])
    assert str(traced(x)) == str(namespace["program"](x))
    if "is None" not in body:
        assert str(traced(x, x)) == str(namespace["program"](x, x))


class Way(enum.Enum):
    FIRST, SECOND = 1, 2


@pytest.mark.parametrize(
    "default, other, body",
    [
        (True, False, "return x * 2 if how is True else x * 3"),
        (False, True, "flag = how; return x * 2 if flag is not False else x * 3"),
        (Way.FIRST, Way.SECOND, "return x * 2 if how is Way.FIRST else x * 3"),
        (Way.SECOND, Way.FIRST, "return x * 2 if (how, 1)[0] is Way.FIRST else x * 3"),
        (torch.float32, torch.float64, "return x * 2 if how is torch.float32 else x * 3"),
        (..., None, "return x * 2 if how is ... else x * 3"),
        (torch.relu, torch.neg, "return x * 2 if how is torch.relu else x * 3"),
    ],
)
def test_an_input_that_is_compared_by_identity_is_checked(default: Any, other: Any, body: str) -> None:
    namespace: dict[str, Any] = {"torch": torch, "Way": Way, "default": default}
    exec(f"def program(x, how=default):\n    {body}", namespace)
    program, x = namespace["program"], torch.ones(1)
    for traced in (fx.symbolic_trace(program), fx.symbolic_trace(program, example_inputs=(x,))):
        assert traced(x).item() == program(x).item()
        with pytest.raises(GuardError, match="captured where how is"):
            traced(x, other)


def test_an_input_without_a_default_that_is_compared_is_checked_or_refused() -> None:
    x = torch.ones(1)
    traced = fx.symbolic_trace(lambda x, mask: x if mask is None else x * 2)
    assert traced(x, x).equal(x * 2)
    with pytest.raises(GuardError, match="mask is given"):
        traced(x, None)
    with pytest.raises(fx.TraceError, match="cannot compare the input 'flag' by identity"):
        fx.symbolic_trace(lambda x, flag: x if flag is True else x * 2)


PART = {"a": fx.PH, "b": [fx.PH]}


def _of_parts(x, pair, scale=2.0, *, flag=True):
    return (x + pair["a"] + pair["b"][0]) * scale if flag else x


def _with_default_parts(x, pair={"a": 1.0, "b": [2.0]}, scale=2.0):  # noqa: B006
    return (x + pair["a"] + pair["b"][0]) * scale


def _behind_a_default(x=1.0, pair=None, *, scale=3.0):
    return (x + pair["a"]) * scale


@pytest.mark.parametrize(
    "function, fixed, signature",
    [
        (_of_parts, {"flag": True}, "(x, pair, scale=2.0, *, flag=True)"),
        (_with_default_parts, {}, "(x, pair={'a': 1.0, 'b': [2.0]}, scale=2.0)"),
        (_behind_a_default, {}, "(x=1.0, pair=None, *, scale=3.0)"),
        (lambda x=1.0, pair=(), *rest, scale=3.0: x * pair["b"][0] * scale, {}, "(x=1.0, pair=(), *rest, scale=3.0)"),
    ],
)
def test_a_program_with_an_unpacked_container_has_the_defaults_of_the_function(function, fixed, signature):
    program = fx.symbolic_trace(function, concrete_args={"pair": PART, **fixed})
    assert str(inspect.signature(program.forward)) == signature
    x, pair = torch.ones(2), {"a": torch.ones(2), "b": [torch.ones(2)]}
    assert torch.equal(program(x, pair), function(x, pair))
    assert torch.equal(program(x, pair, scale=4.0), function(x, pair, scale=4.0))

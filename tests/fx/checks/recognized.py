"""The checks that are recognized in the byte code of the running interpreter. Needs neither torch nor pytest.

    python3.13 tests/fx/checks/recognized.py

prints each case with another result, and exits with status 1 if there is one. The cases are programs on stand-ins for
traced values, which log the answer whenever the program takes their truth value.
"""

# ruff: noqa: RUF005, SIM102, SIM117, SIM201, SIM300 - how programs are written is what matters here
from __future__ import annotations

import dis
import operator
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if "fx" not in sys.modules:  # its __init__ imports torch, which other interpreters lack
    sys.modules["fx"] = types.ModuleType("fx")
    sys.modules["fx"].__path__ = [str(Path(__file__).resolve().parents[3] / "fx")]

from fx.bytecode.dialects import DIALECTS, JUMPS, RAISES, RETURNS, dialect, is_jump, steps
from fx.bytecode.mentions import identities, unpack_count
from fx.checks.recognition import DecidingComparison, pending_check


class Refused(Exception):
    """The program takes a truth value that no check depends on."""


class Traced:
    """A stand-in for a traced value. Its truth value lets the program pass the check, and is logged."""

    def __init__(self, log: list[str], operation: str = "", of: str = "x") -> None:
        self.log, self.operation, self.of = log, operation, of

    def __bool__(self) -> bool:
        check = pending_check(sys._getframe(1), DecidingComparison(self.operation, Traced))
        if check is None:
            raise Refused
        compound = " and more" if check.rest else f" in {check.options}" if check.options else ""
        self.log.append(f"{self.operation or 'truth'} is {not check.raises_if}{compound}: {check.message}")
        return not check.raises_if

    def __iter__(self) -> Iterator[Traced]:
        count = unpack_count(sys._getframe(1))
        if count is None:
            raise Refused
        self.log.append(f"{count} elements")
        return iter([self] * count)

    def __getattr__(self, name: str) -> Traced:
        if name.startswith("__"):
            raise AttributeError(name)
        return Traced(self.log, name)

    def __call__(self, *args: object) -> Traced:
        return Traced(self.log, "call")

    def __getitem__(self, key: object) -> Traced:
        return Traced(self.log, "getitem")

    def __add__(self, other: object) -> Traced:
        return Traced(self.log, "add")

    def __format__(self, spec: str) -> str:
        return "traced"

    __hash__ = None  # type: ignore[assignment]


for comparison in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Traced, f"__{comparison}__", lambda self, other, name=comparison: Traced(self.log, name))


CASES: list[tuple[Callable[..., Any], list[str] | None]] = []
"""A program of one traced value, and its expected log; None if it is refused."""


def case(*expected: str, refused: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append((function, None if refused else list(expected)))
        return function

    return note


LIMIT = 3
KIND = types.ModuleType("kind")
KIND.floating = object()
SETTINGS = SimpleNamespace(size=3, sizes=(3, 4))


@contextmanager
def nullcontext() -> Iterator[None]:
    yield


@contextmanager
def suppress() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        print(end=str(error)[:0])


# Conversions and branches.


@case("ne is False: four")
def a_comparison(x: Any) -> None:
    if x.dim() != 4:
        raise ValueError("four")


@case("ne is True: four")
def a_comparison_negated(x: Any) -> None:
    if not x.dim() != 4:
        raise ValueError("four")


@case("lt is False: more")
def the_operands_the_other_way_round(x: Any) -> None:
    if 4 > x.dim():
        raise ValueError("more")


@case("gt is True: positive")
def an_assert_of_a_comparison(x: Any) -> None:
    assert x.sum() > 0, "positive"


@case("eq is True: assertion failed: x.ndim == 4")
def an_assert_without_a_message(x: Any) -> None:
    assert x.ndim == 4


@case("truth is False: empty")
def the_value_itself(x: Any) -> None:
    if x:
        raise ValueError("empty")


@case("truth is True: empty")
def the_value_itself_negated(x: Any) -> None:
    if not x:
        raise ValueError("empty")


@case("truth is True: wrong size")
def a_message_in_two_parts(x: Any) -> None:
    if not x:
        raise ValueError("wrong " + "size")


@case("truth is False: expected {LIMIT + 1}D, got {x.ndim}")
def a_formatted_message(x: Any) -> None:
    if x:
        raise ValueError(f"expected {LIMIT + 1}D, got {x.ndim}")


@case("truth is False: 'a' if LIMIT else 'b'")
def a_message_that_depends_on_something(x: Any) -> None:
    if x:
        raise ValueError("a" if LIMIT else "b")


@case("truth is False: RuntimeError")
def a_class_alone(x: Any) -> None:
    if x:
        raise RuntimeError


@case("call is True: got {x.shape}")
def a_call(x: Any) -> None:
    assert x.all(), f"got {x.shape}"


@case("ge is True: between", "le is True: between")
def a_chained_comparison(x: Any) -> None:
    low, high = x.ndim, x.ndim
    assert 1 <= low, "between"
    assert high <= 3, "between"


@case("gt is True: assertion failed: 1 < x.ndim < 5", "lt is True: assertion failed: 1 < x.ndim < 5")
def two_comparisons_in_a_chain(x: Any) -> None:
    assert 1 < x.ndim < 5


@case("ne is False: wide")
def a_raise_behind_a_real_condition(x: Any) -> None:
    if LIMIT == 3 and x.ndim != 3:
        raise ValueError("wide")


@case("ne is False: in a loop", "ne is False: in a loop")
def a_check_in_a_loop(x: Any) -> None:
    for size in (2, 3):
        if x.shape[0] != size:
            raise ValueError("in a loop")


@case("eq is True: else")
def the_else_raises(x: Any) -> int:
    if x.ndim == 2:
        n = 1
    else:
        raise KeyError("else")
    return n


@case("ne is False: transparent")
def below_a_transparent_with(x: Any) -> None:
    with nullcontext():
        if x.ndim != 2:
            raise ValueError("transparent")


@case("ne is False: both")
def below_two_transparent_withs(x: Any) -> None:
    with nullcontext():
        with nullcontext():
            if x.ndim != 2:
                raise ValueError("both")


@case("ne is False: two, and three")
def below_a_transparent_with_of_two_managers(x: Any) -> None:
    with nullcontext(), nullcontext():
        with nullcontext():
            if x.ndim != 2:
                raise ValueError("two, and three")


@case(refused=True)
def swallowed_by_the_outer_of_two(x: Any) -> int:
    with suppress():
        with nullcontext():
            if x.ndim != 2:
                raise ValueError("swallowed")
    return 1


@case(refused=True)
def swallowed_by_the_inner_of_two(x: Any) -> int:
    with nullcontext():
        with suppress():
            if x.ndim != 2:
                raise ValueError("swallowed")
    return 1


@case(refused=True)
def swallowed_by_the_first_of_two_managers(x: Any) -> int:
    with suppress(), nullcontext():
        if x.ndim != 2:
            raise ValueError("swallowed")
    return 1


@case("ne is False: got {[size + 1 for size in (1, 2)]}")
def a_comprehension_in_the_message(x: Any) -> None:
    if x.ndim != 2:
        raise ValueError(f"got {[size + 1 for size in (1, 2)]}")


@case("eq is True: {[[n + 1 for n in range(m)] for m in range(2)]}")
def comprehensions_in_the_message_of_an_assert(x: Any) -> None:
    assert x.ndim == 2, f"{[[n + 1 for n in range(m)] for m in range(2)]}"


@case("ne is False: names")
def a_loop_before_the_raise(x: Any) -> None:
    if x.ndim != 2:
        names: list[int] = []
        for size in (1, 2):
            names.append(size)
        raise ValueError(names)


@case(refused=True)
def a_loop_before_the_raise_that_returns(x: Any) -> int:
    if x.ndim != 2:
        for size in (1, 2):
            if size == LIMIT:
                return size
        raise ValueError("none")
    return 2


@case(refused=True)
def a_loop_before_the_raise_that_goes_on_in_the_loop_around_it(x: Any) -> None:
    for size in (1, 2):
        if x.ndim != size:
            for other in (1, 2):
                if other == size:
                    break
            else:
                raise ValueError("none")


@case(refused=True)
def a_search_that_ends_in_a_raise(x: Any) -> int:
    for size in (1, 2):
        if x.ndim == size:
            return size
    raise ValueError("none")


@case("ne is False: cleans up")
def above_a_finally(x: Any) -> int:
    n = 0
    try:
        if x.ndim != 2:
            raise ValueError("cleans up")
    finally:
        n += 1
    return n


@case("ne is False: another")
def a_handler_that_raises(x: Any) -> None:
    try:
        if x.ndim != 2:
            raise ValueError("another")
    except ValueError as error:
        raise KeyError("wrapped") from error


@case(refused=True)
def both_sides_go_on(x: Any) -> int:
    if x.ndim == 3:
        return 1
    return 2


@case(refused=True)
def a_conditional_expression(x: Any) -> int:
    return 1 if x.ndim > 3 else 2


@case(refused=True)
def a_negated_value(x: Any) -> bool:
    return not x.ndim == 3


@case(refused=True)
def a_value_of_bool(x: Any) -> bool:
    return bool(x.ndim == 3)


@case(refused=True)
def a_value_of_or(x: Any) -> Any:
    return x.ndim == 3 or 2


@case(refused=True)
def a_loop_that_ends(x: Any) -> None:
    while x.ndim < 3:
        break


@case("eq is True in (2, 3): two or three")
def an_element_of_a_container(x: Any) -> None:
    if x.ndim in (2, 3):
        return
    raise ValueError("two or three")


@case(refused=True)
def swallowed_by_a_handler(x: Any) -> int:
    try:
        if x.ndim != 2:
            raise ValueError("caught")
    except ValueError:
        return 2
    return 1


@case(refused=True)
def swallowed_by_the_handler_behind_another(x: Any) -> int:
    try:
        try:
            if x.ndim != 2:
                raise ValueError("passes the inner handler")
        except KeyError:
            return 3
    except ValueError:
        return 2
    return 1


@case(refused=True)
def a_side_that_raises_sometimes(x: Any) -> int:
    if x.ndim != 2:
        if LIMIT:
            return 2
        raise ValueError("not always")
    return 1


@case(refused=True)
def swallowed_by_a_context_manager(x: Any) -> int:
    with suppress():
        if x.ndim != 2:
            raise ValueError("swallowed")
    return 1


@case(refused=True)
def the_end_of_an_iteration(x: Any) -> None:
    if x.ndim == 2:
        raise StopIteration


# Checks that depend on a comparison whose result is converted to a bool.


@case("eq is False: equal")
def equal_to_a_constant(x: Any) -> None:
    if x.ndim == 3:
        raise ValueError("equal")


@case("eq is False: equal")
def a_constant_on_the_left(x: Any) -> None:
    if 3 == x.shape[0]:
        raise ValueError("equal")


@case("eq is False: equal")
def equal_to_a_variable(x: Any) -> None:
    size = 3
    if x.shape[0] == size:
        raise ValueError("equal")


@case("eq is False: equal")
def equal_to_a_global(x: Any) -> None:
    if x.shape[0] == LIMIT:
        raise ValueError("equal")


@case("eq is False: equal")
def equal_to_an_attribute_of_a_module(x: Any) -> None:
    if x.dtype == KIND.floating:
        raise ValueError("equal")


@case("eq is False: equal")
def equal_to_an_attribute(x: Any) -> None:
    if x.shape[0] == SETTINGS.size:
        raise ValueError("equal")


@case("eq is False: equal")
def equal_to_another_traced_value(x: Any) -> None:
    if x.size(0) == x.shape[1] + 1:
        raise ValueError("equal")


@case("eq is False: equal")
def two_variables(x: Any) -> None:
    n, m = x.size(0), x.size(1)
    if n == m:
        raise ValueError("equal")


@case("eq is False: equal")
def equal_in_a_closure(x: Any) -> None:
    def inner() -> None:
        if x == 3:
            raise ValueError("equal")

    inner()


@case("eq is False: equal")
def what_a_tuple_indexes(x: Any) -> None:
    if x[0, 1] == (3, 4):
        raise ValueError("equal")


@case("eq is False: equal")
def equal_to_a_tuple(x: Any) -> None:
    if x.shape == (3, 4):
        raise ValueError("equal")


def pair(x: Any) -> tuple[Any, int]:
    return x.ndim, 5


@case(refused=True)
def an_element_decides_for_a_tuple(x: Any) -> None:
    if (x.ndim, 5) == (3, 4):
        raise ValueError("equal")


@case(refused=True)
def an_element_decides_for_a_tuple_of_a_call(x: Any) -> None:
    if pair(x) == (3, 4):
        raise ValueError("equal")


@case(refused=True)
def an_element_decides_for_a_tuple_in_a_variable(x: Any) -> None:
    sizes = (x.ndim, 5)
    if sizes == SETTINGS.sizes:
        raise ValueError("equal")


@case(refused=True)
def an_element_decides_for_a_list(x: Any) -> None:
    if not [x.ndim, 5] != [3, 4]:
        raise ValueError("equal")


@case(refused=True)
def an_element_decides_for_a_sum_of_tuples(x: Any) -> None:
    if (x.ndim,) + (5,) == (3, 4):
        raise ValueError("equal")


@case(refused=True)
def an_element_decides_for_a_dict(x: Any) -> None:
    if {"n": x.ndim, "m": 5} == {"n": 3, "m": 4}:
        raise ValueError("equal")


@case(refused=True)
def an_element_decides_for_less(x: Any) -> None:
    if (x.ndim, 5) < (3, 4):
        raise ValueError("less")


@case("eq is True: unequal")
def each_element_decides_for_unequal(x: Any) -> None:
    if (x.ndim, 4) != (3, 4):
        raise ValueError("unequal")


@case(refused=True)
def an_element_decides_for_the_first_of_two(x: Any) -> None:
    if (x.ndim, 5) == (3, 4) and x.ndim == 2:
        raise ValueError("equal")


# Several conditions.


@case("ne is False and more: both")
def two_conditions(x: Any) -> None:
    if x.ndim != 2 and x.ndim != 3:
        raise ValueError("both")


@case("eq is True and more: either")
def an_assert_of_either(x: Any) -> None:
    assert x.ndim == 2 or x.ndim == 3, "either"


@case("eq is False and more: equal")
def equal_to_a_constant_and_more(x: Any) -> None:
    if x.ndim == 3 and x.dtype == KIND.floating:
        raise ValueError("equal")


@case("ne is False and more: on two lines")
def two_conditions_on_two_lines(x: Any) -> None:
    if (
        x.ndim != 2
        and not x.ndim == 3
    ):  # fmt: skip
        raise ValueError("on two lines")


@case("ne is False and more: inner")
def two_conditions_below_another_statement(x: Any) -> None:
    if LIMIT == 3:
        for _ in range(1):
            if x.ndim != 2 and x.dtype is not None and x.ndim != 4:
                raise ValueError("inner")


@case(refused=True)
def two_conditions_of_which_the_second_is_two(x: Any) -> None:
    if LIMIT == 3 and (x.ndim == 3 or x.ndim != 2) and x.dtype == KIND.floating:
        raise ValueError("three")


@case("ne is False and more: nested")
def two_conditions_of_two_statements(x: Any) -> None:
    if x.ndim != 2:
        if x.ndim != 3:
            raise ValueError("nested")


@case(refused=True)
def two_conditions_with_something_between(x: Any) -> int:
    n = 0
    if x.ndim != 2:
        n = 1
        if x.ndim != 3:
            raise ValueError("nested")
    return n


@case("ne is False: first", "ne is False: first")
def either_condition(x: Any) -> None:
    if x.ndim != 2 or x.dtype != KIND.floating:
        raise ValueError("first")


# Unpacking.


@case("2 elements")
def two_names(x: Any) -> None:
    a, b = x.shape
    assert a is not b or a is b


@case(refused=True)
def names_and_a_rest(x: Any) -> None:
    _, *_ = x.shape


@case(refused=True)
def a_loop_over_elements(x: Any) -> None:
    for _ in x:
        pass


many = {}
exec(f"def three_hundred_names(x):\n    {', '.join(f'n{i}' for i in range(300))} = x\n", many)
case("300 elements")(many["three_hundred_names"])

branches_far_apart = {}
exec(
    "def a_branch_over_much_code(x):\n    if x.ndim != 2:\n        y = 0\n"
    + "".join(f"        y = y + x.a{i}\n" for i in range(300))
    + "        raise ValueError(y)\n",
    branches_far_apart,
)
case("ne is False: check in a_branch_over_much_code, line 2")(branches_far_apart["a_branch_over_much_code"])


def outcome(function: Callable[..., Any]) -> list[str] | None:
    """Return the log of a program; None if it is refused."""
    log: list[str] = []
    try:
        function(Traced(log))
    except Refused:
        return None
    return log


def mistakes() -> list[str]:
    """Return the cases with another result on the running interpreter, and gaps in its dialect."""
    messages = [
        f"{function.__name__}: expected {expected}, found {result}"
        for function, expected in CASES
        if (result := outcome(function)) != expected
    ]
    own_dialect = dialect()
    if own_dialect is None:
        return [*messages, "its byte code is not known"]
    jumps = {dis.opname[number] for number in (*dis.hasjrel, *dis.hasjabs) if not dis.opname[number].startswith("<")}
    # pseudo-instructions, and from Python 3.14 the end of a loop, whose argument is where it comes from
    jumps -= {name for name in jumps if name.startswith(("INSTRUMENTED", "JUMP_NO", "SETUP", "END_"))}
    messages += [f"the jump {name} is not known" for name in sorted(jumps) if not is_jump(name)]
    for names in ({own_dialect.conversion}, JUMPS, RAISES, RETURNS):
        if names.isdisjoint(dis.opmap):
            messages.append(f"no instruction is called {sorted(names)}")

    def of_two_variables(a: object, b: object) -> bool:
        return operator.eq(a, b)

    loads = [step.value for step in steps(of_two_variables.__code__) if step.name.startswith("LOAD_FAST")]
    if loads != ["a", "b"]:
        messages.append(f"two variables are read as {loads}")

    def of_patterns(a: object, b: object) -> object:
        match a:
            case [*_]:
                return a
            case [first, *_]:
                return first
            case {"key": value}:
                return value
        return b is Refused

    patterns = [test.pattern for test in identities(of_patterns.__code__) if "a" in test.left or "b" in test.left]
    if patterns != ["sequence", "mapping", ""]:
        messages.append(f"the patterns are {patterns}")
    return messages


if __name__ == "__main__":
    wrong = mistakes()
    print("\n".join(wrong) or f"{len(CASES)} cases, {len(DIALECTS)} versions known")
    sys.exit(bool(wrong))

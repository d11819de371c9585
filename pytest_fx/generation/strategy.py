"""The strategy of random programs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import re
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import nn

from fx import GraphModule
from fx.argument_types import Bounds, checked
from fx.arguments import expect_all
from fx.errors import FxError
from pytest_fx.generation import campaign_lines, composition, custom_functions
from pytest_fx.generation.bias import Chain, chains, compounds, formulas_about, walks
from pytest_fx.generation.grammar import FAMILIES
from pytest_fx.generation.operands import size_beside
from pytest_fx.generation.productions import Choices, SeededChoices
from pytest_fx.generation.program_builder import ProgramBuilder, Value, evaluated
from pytest_fx.generation.record import Input, Program, load, noted_warnings, seeded
from pytest_fx.generation.source import source
from pytest_fx.generation.spelled_targets import CHECK
from pytest_fx.generation.tensor_expressions import draw_extent, draw_tensor, in_unusual_form

COMPOSED: dict[str, Callable[[ProgramBuilder], bool]] = {
    "repeat": composition.repeat_line,
    "again": composition.call_again,
    "between": composition.write_between,
    "after": composition.read_after_write,
    "sibling": composition.make_sibling,
    "optional": composition.read_optional,
    "tie": composition.tie_weights,
    "any": composition.call_any,
    "unusual": campaign_lines.call_unusual,
    "dynamic": campaign_lines.call_of_dynamic_size,
    "onward": campaign_lines.call_onward,
    "behind": campaign_lines.write_behind,
    "itself": campaign_lines.write_from_itself,
    "python": campaign_lines.call_python,
    "custom": custom_functions.call_custom_function,
    "state": campaign_lines.keep_state,
}
"""Lines of several operations."""
# A frequent kind occurs several times in a tuple instead of having a weight. A choice is then one integer for
# Hypothesis, which shrinks toward the first entry. Tuples are joined if more is asked for.
PLAIN = (
    *("nothing",) * 6,
    *(name for name, (weight, _) in FAMILIES.items() for _ in range(weight)),
    *("repeat",) * 8,
    *("again",) * 4,
    *("idiom",) * 4,
    *("nest",) * 3,
    *("between",) * 4,
    *("after",) * 3,
    *("sibling",) * 5,
    *("optional",) * 2,
    *("tie",) * 3,
    *("any",) * 2,
)
"""The kinds of lines, each as often as it should be chosen; shrinking leads to the first."""
_SHARE = len(PLAIN) // 4
HUNTED = (
    *PLAIN,
    *("rare",) * 2 * _SHARE,
    *("any",) * _SHARE,
    *("unusual",) * 2 * _SHARE,
    *("block",) * (_SHARE // 2),
    *("state",) * (_SHARE // 2),
    *("onward",) * _SHARE,
    *("itself",) * (_SHARE // 2),
    *("behind",) * (_SHARE // 4),
    *("python",) * (_SHARE // 2),
    *("custom",) * (_SHARE // 8),
    *("dynamic",) * (_SHARE // 8),
)
"""The kinds of lines in campaigns."""
BIASED = (*PLAIN, *("wanted",) * len(PLAIN))
"""The kinds of lines if operations are wanted."""
MODULES = (*BIASED, *("again",) * (len(PLAIN) // 5))
"""The kinds of lines if modules are wanted."""
LAYERED = (*MODULES, *("sibling",) * (len(PLAIN) // 3))
"""The kinds of lines if layers are wanted."""
_OF_MODULES = ("again", "again", "modules", "dense", "norms", "sibling")
ANY_MODULES = (*PLAIN, *(kind for kind in _OF_MODULES for _ in range(len(PLAIN) // 9)))
"""The kinds of lines if only calls of modules are wanted."""
DTYPES = (torch.float32,) * 10 + (torch.float64, torch.bfloat16, torch.float16) * 2
"""Dtypes of inputs."""
ALL_DTYPES = (*DTYPES, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
"""Dtypes of inputs in campaigns."""
MIXED = (torch.float32,) * 6 + (torch.float64, torch.bfloat16, torch.float16) * 2
"""Dtypes of inputs if arithmetic with numbers is wanted; numbers take no part in promotion."""
STEPS = 14
"""The most lines of programs by default."""
MOST_STEPS = 1000
"""The most lines that can be asked for; Hypothesis draws no more than a few thousand choices."""
CHECKED = 6
"""The number of other lines for each check, if checks are asked for."""
FEW = 12
"""The number of operations up to which each of them also follows each other one."""

FAMILIAR: tuple[tuple[Any, ...], ...] = (
    (nn.Conv2d, nn.BatchNorm2d, F.relu),
    (nn.Conv2d, nn.BatchNorm2d),
    (nn.Conv1d, nn.BatchNorm1d),
    (nn.ConvTranspose2d, nn.BatchNorm2d),
    (nn.Linear, nn.BatchNorm1d),
    (F.conv2d, F.batch_norm),
    (F.linear, F.batch_norm),
    (nn.Linear, nn.Linear),
    (nn.Linear, nn.ReLU),
    (nn.Linear, F.gelu, nn.Linear),
    (nn.Linear, F.relu, nn.Dropout, nn.Linear),
    (nn.LayerNorm, nn.Linear),
    ("permute", "permute"),
    ("transpose", "transpose"),
    ("transpose", "reshape", nn.Linear),
    (torch.matmul, operator.mul, F.softmax, torch.matmul),
    (operator.matmul, "masked_fill", F.softmax, operator.matmul),
    (operator.matmul, F.softmax, nn.Dropout, operator.matmul),
    (torch.chunk, torch.cat),
    ("pow", "mean", operator.add, torch.rsqrt, operator.mul),
    (nn.Linear, operator.add, nn.LayerNorm),
    ("reshape", "reshape"),
    ("unsqueeze", "squeeze"),
    (torch.cat, torch.split),
    (operator.mul, operator.add),
    (torch.flatten, nn.Linear),
    ("to", "to"),
    ("half", operator.mul),
    ("double", operator.add),
)
"""Sequences of operations in real models."""


@functools.cache
def idioms() -> tuple[Chain, ...]:
    """Return the familiar sequences as rows of the grammar."""
    return chains(FAMILIAR)


@checked(FxError)
def programs(
    *,
    like: GraphModule | None = None,
    ops: Iterable[Any] = (),
    constants: Iterable[float | str] = (),
    steps: Annotated[int, Bounds(1, MOST_STEPS)] = STEPS,
) -> st.SearchStrategy[Program]:
    """Return a strategy of random programs: modules with their inputs.

    Every program runs in eager mode and can be captured, with its ``concrete_args`` if it has some. If ``like`` or
    ``ops`` ask for operations, half of the lines are those.

    Args:
        like: a captured program (a ``GraphModule``) whose operations, and chains of them, should be frequent.
        ops: the operations that should be frequent. Each is a function (``torch.relu``, ``operator.add``), a method's
            name (``"view"``), a class of modules (``nn.Linear``), ``"get_attr"`` for buffers that are read and written,
            or a tuple of operations in sequence.
        constants: numbers that should be frequent in arithmetic, and numbers and texts that should be frequent among
            the other arguments that accept them.
        steps: about the most lines of ``forward``, not counting those of nested modules.
    """
    return _programs(bias_toward(ops, like, constants), steps)


@checked(FxError)
def bias_toward(
    ops: Iterable[Any] = (), like: GraphModule | None = None, constants: Iterable[float | str] = ()
) -> Bias:
    """Return the bias that the arguments of :func:`programs` ask for."""
    requested = tuple(constants)
    what = "ops= holds functions, names of methods, classes of modules, and tuples of these"
    targets = list(expect_all(ops, _can_be_asked, what, error=FxError))
    bias = _bias_to([target for target in targets if target is not CHECK], like)
    if CHECK in targets:  # a line of its own kind, at any place
        bias = replace(bias, kinds=(*bias.kinds, *("checks",) * (len(bias.kinds) // CHECKED)))
    if "call_module" in requested and not bias.wanted:
        bias = replace(bias, kinds=ANY_MODULES)
    return replace(bias, constants=requested)


def _can_be_asked(target: Any) -> bool:
    if isinstance(target, (tuple, list)):
        return all(isinstance(part, str) or callable(part) for part in cast("tuple[Any, ...]", target))
    return isinstance(target, str) or callable(target)


@dataclass(frozen=True, slots=True)
class Bias:
    """The preferences of random programs."""

    wanted: tuple[Chain, ...]
    """Operations, and chains of them, that should be frequent."""
    kinds: tuple[str, ...]
    """The kinds of lines, each as often as it should be chosen."""
    dtypes: tuple[torch.dtype, ...] = DTYPES
    """The dtypes of the first input, each as often as it should be chosen."""
    constants: tuple[float | str, ...] = ()
    """Arguments that should be frequent."""
    no_side_effects: bool = True
    """True if some programs write nothing in place, and check nothing."""
    is_campaign: bool = False
    """True if inputs may have unusual layouts and share memory, and extreme values are frequent."""
    keeps_state: bool = False
    """True if programs may keep state in Python."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print it in short, since Hypothesis prints its arguments."""
        printer.text(f"<{len(self.wanted)} chains>")


def _bias_to(ops: list[Any], like: Any) -> Bias:
    """Return a bias to the operations asked for, their familiar sequences, and the rows that passes look back along."""
    requested = chains(ops, like)
    if not requested:
        return Bias((), PLAIN)
    single = dict.fromkeys(target for target in ops if not isinstance(target, tuple | list))
    rows = [row for row in FAMILIAR if single.keys() >= {*row}]
    rows += itertools.product(single, repeat=2) if len(single) <= FEW else []
    repeated = chains((target, target) for target in single)  # most passes on one operation merge two of it
    followed = (*chains(rows), *repeated, *compounds(single.keys()))
    # Repeated to reach their shares: one half was asked for, and the other half follows from it. Then a quarter of all
    # looks back, and half of all are formulas.
    wanted = (*requested, *followed * max(1, len(requested) // max(1, len(followed))))
    back = walks(single)
    wanted += back * (len(wanted) // (3 * max(1, len(back))))
    formulas = formulas_about(single.keys())
    wanted += formulas * (1 + len(wanted) // len(formulas)) if formulas else ()
    choices = [choice for chain in requested for step in chain for choice in step]
    no_side_effects = not any(
        all("in-place" in choice.row.tags for choice in step) for chain in requested for step in chain
    )
    if any("layer" in choice.row.tags for choice in choices):
        return Bias(wanted, LAYERED, no_side_effects=no_side_effects)
    if any(choice.spelling.startswith("nn.") for choice in choices):
        return Bias(wanted, MODULES, no_side_effects=no_side_effects)
    with_numbers = any("{number}" in choice.spelling for choice in choices)
    return Bias(wanted, BIASED, MIXED if with_numbers else DTYPES, no_side_effects=no_side_effects)


def campaign_bias(*, keeps_state: bool, keeps_blocks: bool = True) -> Bias:
    """Return the bias of campaigns, for compilers that keep state in Python, and blocks such as ``torch.no_grad()``."""
    kinds = tuple(kind for kind in HUNTED if keeps_blocks or kind != "block")
    return Bias((), kinds, ALL_DTYPES, is_campaign=True, keeps_state=keeps_state)


@st.composite
def _programs(draw: st.DrawFn, bias: Bias, steps: int) -> Program:
    program = _drawn(Choices(draw), bias, steps)
    assume(program is not None)
    assert program is not None
    return program


def program_of(random: Random | None, bias: Bias, steps: int) -> Program:
    """Return a program that depends on a random number generator alone; None gives the simplest program."""
    while (program := _drawn(SeededChoices(random), bias, steps)) is None:
        pass
    return program


def _drawn(choices: Choices, bias: Bias, steps: int) -> Program | None:
    with seeded(), noted_warnings() as noted:
        return _draw_program(choices, bias, steps, noted)


@contextlib.contextmanager
def warnings_as_errors() -> Generator[None]:
    """Turn the warnings of torch into errors, also those that it gives only once."""
    before = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor, ")  # deprecated, but old passes look for it
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(before)


def _draw_program(choices: Choices, bias: Bias, steps: int, noted: list[Any]) -> Program | None:
    """Draw a program, or None if it refuses its own inputs; ``noted`` collects the warnings of torch."""
    is_extreme = choices.sometimes(4 if bias.is_campaign else 7)
    builder = ProgramBuilder(choices, "Program", extreme_values=is_extreme, constants=bias.constants)
    builder.keeps_state = bias.keeps_state
    builder.noted = noted
    if builder.extreme_values:
        builder.features.add("non-finite")
    builder.no_side_effects = bias.no_side_effects and choices.sometimes(3)
    batch = choices.pick((2, 3, 2, 1))
    shape = _first_shape(choices, batch)
    dtype = choices.pick(bias.dtypes)
    recipe = draw_tensor(choices, shape, dtype, extreme_values=builder.extreme_values)
    builder.input(in_unusual_form(choices, recipe) if bias.is_campaign else recipe)
    if bias.is_campaign and choices.sometimes(12):
        _add_views_of_one(builder)
    else:
        _add_unusual_input(builder)
    if bias.wanted:  # in two of three programs at once, while its operands exist or can be made
        _add_line(builder, replace(bias, kinds=("nothing", "wanted", "wanted")), choices)
    for _ in range(steps):
        _add_line(builder, bias, choices)
    result = _result(builder)
    if choices.sometimes(4):
        _reverse_inputs(builder)
    # An input with a default is checked where it is read, and passes need not look for inputs behind a check.
    builder.inputs.sort(key=lambda part: not part.passed)
    last = [place for place, part in enumerate(builder.inputs) if not part.keyword][-1]
    if last > 0 and choices.sometimes(8):
        builder.inputs[last] = replace(builder.inputs[last], default="None")
    if not choices.sometimes(3):
        _drop_unread_inputs(builder, result)
    text = source(builder, result)
    program = load(text, frozenset(builder.features), tuple(builder.inputs), batch)
    if "check" in builder.features and builder.features & {"norm", "batch-norm"}:
        return program if program.takes(program.inputs) else None  # norms had other values when the check passed
    return program


def _add_unusual_input(builder: ProgramBuilder) -> None:
    """Add, in some programs, a number with a default, an input that nothing reads, or tensors in a container."""
    kind = builder.choices.below(8)
    if kind == 1:
        is_passed = builder.choices.sometimes(2)
        builder.features.add("default")
        builder.inputs.append(Input("scale", "0.5", "2.0", keyword=True, passed=is_passed))
        builder.values.insert(0, Value("scale", 0.5 if is_passed else 2.0))
    elif kind == 3:
        builder.inputs.append(Input("spare", draw_tensor(builder.choices, builder.values[0].object.shape)))
    elif kind in (2, 4):
        recipes = [draw_tensor(builder.choices, builder.values[0].object.shape) for _ in range(2)]
        keys, form = builder.choices.pick((((0, 1), "({}, {})"), (('"a"', '"b"'), '{{"a": {}, "b": {}}}')))
        builder.features.add("container-input")
        builder.inputs.append(Input("given", form.format(*(recipe.text for recipe in recipes))))
        for key, recipe in zip(keys, recipes, strict=True):
            builder.values.append(Value(f"given[{key}]", evaluated(recipe.text)))


def _add_views_of_one(builder: ProgramBuilder) -> None:
    """Add two inputs that share memory."""
    recipe = replace(draw_tensor(builder.choices, builder.values[0].object.shape), layout="contiguous")
    rank = len(recipe.shape)
    views = ("x", "x.view(-1)") + ("x[:1]", "x[..., 1:]", "x.unsqueeze(0)") * (rank > 0) + ("x.mT",) * (rank > 1)
    other = builder.choices.pick(views)
    text = f"(lambda x: (x, {other}))({recipe.text})"
    builder.inputs.append(Input("given", text))
    builder.features.add("container-input")
    for key, tensor in enumerate(evaluated(text)):
        builder.values.append(Value(f"given[{key}]", tensor))


def _reverse_inputs(builder: ProgramBuilder) -> None:
    """Reverse the inputs without a default: callers pass them in another order than the program reads them."""
    count = sum(not part.keyword for part in builder.inputs)
    builder.inputs[:count] = reversed(builder.inputs[:count])


def _drop_unread_inputs(builder: ProgramBuilder, result: str) -> None:
    read = set(re.findall(r"\w+", " ".join([*(line.text for line in builder.lines), result])))
    builder.inputs = [part for part in builder.inputs if part.name in read] or builder.inputs[:1]


def _first_shape(choices: Choices, batch: int) -> tuple[int, ...]:
    rank = choices.pick((2, 4, 3, 4, 2, 3, 4, 3, 2, 1, 5, 0))
    if rank == 0:
        return ()
    if rank == 4 and choices.mostly(3):  # an image
        return (batch, size_beside(choices, (batch,)), draw_extent(choices), draw_extent(choices))
    shape = (batch,)
    for _ in range(rank - 1):
        shape += (size_beside(choices, shape, empty=choices.sometimes(30)),)
    return shape


def _add_line(builder: ProgramBuilder, bias: Bias, choices: Choices) -> None:
    """Append a line, or nothing if the chosen kind does not fit."""

    def add(part: Choices) -> None:
        builder.choices = part
        builder.attempt(lambda: _step(builder, bias))

    choices.part(add)
    builder.choices = choices


def _step(builder: ProgramBuilder, bias: Bias) -> bool:
    choices = builder.choices
    name = choices.pick(bias.kinds)
    match name:
        case "nothing":
            return False
        case "wanted":
            return composition.follow(builder, choices.pick(bias.wanted))
        case "idiom":
            return composition.follow(builder, choices.pick(idioms()))
        case "block":
            return campaign_lines.write_in_block(builder, lambda inner: _add_line(inner, bias, choices))
        case "nest":
            return composition.nest(builder, lambda inner: _add_line(inner, bias, choices))
        case _ if name in COMPOSED:
            return COMPOSED[name](builder)
        case _:
            rows = FAMILIES[name][1]
            row = rows.at(choices.below(rows.total))
            return composition.write(builder, row, choices.pick(row.spellings))


def _result(builder: ProgramBuilder) -> str:
    """Return the result: the last value, all values that nothing reads, or one more, in a usual container."""
    choices = builder.choices
    values = [value for value in builder.values if not value.name.startswith("self.") and _is_usable(value.object)]
    last = values[-1]
    inputs = {part.name for part in builder.inputs}
    unread = [value for value in values if value.uses == 0 and value.name.partition("[")[0] not in inputs]
    kind = choices.below(8)
    if kind == 0 or not unread:
        return last.name
    names = [value.name for value in (unread if kind < 6 else [*unread, choices.recent(values)])]
    if len(names) == 1 and choices.sometimes(2):
        names = list(dict.fromkeys([*names, choices.recent(values).name]))
    if len(names) == 1:
        return f"({names[0]},)" if choices.sometimes(6) else names[0]
    match choices.below(5):
        case 1:
            # `b[0]` and `b0` would both have the key `b0`: the dict below keeps one of them.
            keys = [re.sub(r"\W", "", name) for name in names]
            pairs = [f'"{key}": {name}' for key, name in dict(zip(keys, names, strict=True)).items()]
            return "{" + ", ".join(pairs[::-1] if choices.sometimes(2) else pairs) + "}"
        case 2:
            return f"[{', '.join(names)}]"
        case 3:
            return f"Pair({names[0]}, [{', '.join(names[1:])}])"
        case 4:
            return f'({names[0]}, {{"rest": ({", ".join(names[1:])},)}})'
        case _:
            return ", ".join(names)


def _is_usable(result: Any) -> bool:
    """Return whether autograd still accepts a value: views made together become invalid when their base is written."""
    if isinstance(result, tuple | list):
        return all(map(_is_usable, result))
    try:
        getattr(result, "grad_fn", None)
    except RuntimeError:
        return False
    return True

"""The strategy of random programs."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from . import composition
from .bias import Chain, chains
from .choices import Choices
from .grammar import FAMILIES
from .record import Input, Program, load, seeded
from .sketch import Sketch, Value, evaluated
from .source import source
from .tensors import draw_size, draw_tensor

PLAIN = (
    *("nothing",) * 6,
    *(name for name, (weight, _) in FAMILIES.items() for _ in range(weight)),
    *("repeat",) * 6,
    *("again",) * 4,
    *("idiom",) * 4,
    *("nest",) * 3,
    "tie",
)
"""What a line can be, as often as it should be chosen; the first is what shrinking goes to."""
BIASED = (*PLAIN, *("wanted",) * len(PLAIN))
"""The same where something is wanted."""

IDIOMS = chains(
    [
        (nn.Conv2d, nn.BatchNorm2d, F.relu),
        (nn.Conv2d, nn.BatchNorm2d),
        (nn.Conv1d, nn.BatchNorm1d),
        (nn.Linear, F.gelu, nn.Linear),
        (nn.Linear, F.relu, nn.Dropout, nn.Linear),
        (nn.LayerNorm, nn.Linear),
        ("permute", "permute"),
        ("transpose", "transpose"),
        ("transpose", "reshape", nn.Linear),
        (torch.matmul, operator.mul, F.softmax, torch.matmul),
        (nn.Linear, operator.add, nn.LayerNorm),
        ("reshape", "reshape"),
        ("unsqueeze", "squeeze"),
        (torch.cat, torch.split),
        (operator.mul, operator.add),
        (torch.flatten, nn.Linear),
        ("to", "to"),
    ]
)
"""What real models do in a row."""


def programs(*, like: Any = None, ops: Iterable[Any] = (), steps: int = 14) -> st.SearchStrategy[Program]:
    """Random programs: modules with what they are called with.

    Every program runs in eager mode and can be captured. Half of the lines are what ``like`` and ``ops`` ask for, if
    they ask for anything.

    Args:
        like: a captured program (a ``GraphModule``) whose operations, and chains of them, are to be frequent.
        ops: what is to be frequent: functions (``torch.relu``, ``operator.add``), names of methods (``"view"``),
            classes of modules (``nn.Linear``), and tuples of these that follow each other.
        steps: about as many lines ``forward`` has at most, not counting those of nested modules.
    """
    return _programs(chains(ops, like), steps)


@st.composite
def _programs(draw: st.DrawFn, wanted: tuple[Chain, ...], steps: int) -> Program:
    with seeded():
        return _draw_program(Choices(draw), wanted, steps)


def _draw_program(choices: Choices, wanted: tuple[Chain, ...], steps: int) -> Program:
    sketch = Sketch(choices, "Program", hostile=choices.sometimes(10))
    if sketch.hostile:
        sketch.features.add("non-finite")
    batch = choices.pick((2, 3, 2, 1))
    shape = _first_shape(choices, batch)
    dtype = choices.pick((torch.float32,) * 10 + (torch.float64,))
    sketch.input(draw_tensor(choices, shape, dtype, hostile=sketch.hostile))
    _add_unusual_input(sketch)
    line = _line(sketch, wanted)
    for _ in range(steps):
        choices.draw(line)
    sketch.choices = choices
    result = _result(sketch)
    last = [place for place, part in enumerate(sketch.inputs) if not part.keyword][-1]
    if last > 0 and choices.sometimes(8):
        sketch.inputs[last] = replace(sketch.inputs[last], default="None")
    if not choices.sometimes(6):
        _drop_unread_inputs(sketch, result)
    text = source(sketch, result)
    return load(text, frozenset(sketch.features), tuple(sketch.inputs), batch)


def _add_unusual_input(sketch: Sketch) -> None:
    """In some programs, a number with a default, or tensors in a container."""
    kind = sketch.choices.below(12)
    if kind == 1:
        is_passed = sketch.choices.sometimes(2)
        sketch.features.add("default")
        sketch.inputs.append(Input("scale", "0.5", "2.0", keyword=True, passed=is_passed))
        sketch.values.insert(0, Value("scale", 0.5 if is_passed else 2.0))
    elif kind == 2:
        recipes = [draw_tensor(sketch.choices, sketch.values[0].object.shape) for _ in range(2)]
        keys, form = sketch.choices.pick((((0, 1), "({}, {})"), (('"a"', '"b"'), '{{"a": {}, "b": {}}}')))
        sketch.features.add("container-input")
        sketch.inputs.append(Input("given", form.format(*(recipe.text for recipe in recipes))))
        for key, recipe in zip(keys, recipes, strict=True):
            sketch.values.append(Value(f"given[{key}]", evaluated(recipe.text)))


def _drop_unread_inputs(sketch: Sketch, result: str) -> None:
    read = {value.name.partition("[")[0] for line in sketch.lines for value in line.operands}
    read |= set(re.findall(r"\w+", result))
    sketch.inputs = [part for part in sketch.inputs if part.name in read] or sketch.inputs[:1]


def _first_shape(choices: Choices, batch: int) -> tuple[int, ...]:
    rank = choices.pick((2, 4, 3, 4, 2, 3, 4, 3, 2, 1, 5, 0))
    if rank == 0:
        return ()
    return (batch, *(draw_size(choices, empty=choices.sometimes(30)) for _ in range(rank - 1)))


@st.composite
def _line(draw: st.DrawFn, sketch: Sketch, wanted: tuple[Chain, ...]) -> bool:
    """Append a line, or nothing where what was chosen has no place; True if there is a new line.

    A strategy of its own, so that Hypothesis takes out all choices of a line at once when it shrinks.
    """
    sketch.choices = Choices(draw)
    return sketch.attempt(lambda: _step(sketch, wanted))


def _step(sketch: Sketch, wanted: tuple[Chain, ...]) -> bool:
    choices = sketch.choices
    name = choices.pick(BIASED if wanted else PLAIN)
    match name:
        case "nothing":
            return False
        case "repeat":
            return composition.repeat_line(sketch)
        case "again":
            return composition.call_again(sketch)
        case "wanted":
            return composition.follow(sketch, choices.pick(wanted))
        case "idiom":
            return composition.follow(sketch, choices.pick(IDIOMS))
        case "tie":
            return composition.tie_weights(sketch)
        case "nest":
            return composition.nest(sketch, lambda inner: choices.draw(_line(inner, wanted)))
        case _:
            rows = FAMILIES[name][1]
            return sketch.perform(rows.at(choices.below(rows.total)))


def _result(sketch: Sketch) -> str:
    """What is returned: the last value, all values that nothing reads, or one more, in one of the usual containers."""
    choices = sketch.choices
    values = [value for value in sketch.values if not value.name.startswith("self.") and _is_usable(value.object)]
    last = values[-1]
    inputs = {part.name for part in sketch.inputs}
    unread = [value for value in values if value.uses == 0 and value.name.partition("[")[0] not in inputs]
    kind = choices.below(8)
    if kind == 0 or not unread:
        return last.name
    names = [value.name for value in (unread if kind < 6 else [*unread, choices.recent(values)])]
    if len(names) == 1:
        return names[0]
    match choices.below(5):
        case 1:
            keys = [re.sub(r"\W", "", name) for name in names]
            return "{" + ", ".join(f'"{key}": {name}' for key, name in zip(keys, names, strict=True)) + "}"
        case 2:
            return f"[{', '.join(names)}]"
        case 3:
            return f"Pair({names[0]}, [{', '.join(names[1:])}])"
        case 4:
            return f'({names[0]}, {{"rest": ({", ".join(names[1:])},)}})'
        case _:
            return ", ".join(names)


def _is_usable(result: Any) -> bool:
    """Whether autograd still takes a value: one of several views made at once is lost when their base is written to."""
    if isinstance(result, tuple | list):
        return all(map(_is_usable, result))
    try:
        getattr(result, "grad_fn", None)
    except RuntimeError:
        return False
    return True

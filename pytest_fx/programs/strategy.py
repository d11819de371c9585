"""The strategy of random programs."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from . import composition
from .choices import Choices
from .grammar import FAMILIES
from .record import Program, load, seeded
from .sketch import Sketch, Value
from .source import source
from .tensors import draw_size, draw_tensor

_FAMILY_OF = ["nothing"] * 6
for _name, (_weight, _) in FAMILIES.items():
    _FAMILY_OF += [_name] * _weight
_FAMILY_OF += ["repeat"] * 6 + ["again"] * 4 + ["tie"] * 1 + ["nest"] * 3


@st.composite
def programs(draw: st.DrawFn, *, like: Any = None, ops: Any = (), steps: int = 14) -> Program:
    """Random programs.

    Args:
        draw: given by Hypothesis.
        like: a captured program whose operations are to be frequent.
        ops: functions, names of methods and classes of modules that are to be frequent.
        steps: the most lines of ``forward``, not counting those of nested modules.
    """
    with seeded():
        return _draw_program(Choices(draw), steps)


def _draw_program(choices: Choices, steps: int) -> Program:
    sketch = Sketch(choices, "Program", hostile=choices.sometimes(10))
    if sketch.hostile:
        sketch.features.add("non-finite")
    batch = choices.pick((2, 3, 2, 1))
    shape = _first_shape(choices, batch)
    dtype = choices.pick((torch.float32,) * 10 + (torch.float64,))
    sketch.input(draw_tensor(choices, shape, dtype, hostile=sketch.hostile))
    for _ in range(steps):
        step(sketch)
    text = source(sketch, _result(sketch))
    return load(text, frozenset(sketch.features), tuple(sketch.inputs), batch)


def _first_shape(choices: Choices, batch: int) -> tuple[int, ...]:
    rank = choices.pick((2, 4, 3, 4, 2, 3, 4, 3, 2, 1, 5, 0))
    if rank == 0:
        return ()
    return (batch, *(draw_size(choices, empty=choices.sometimes(30)) for _ in range(rank - 1)))


def step(sketch: Sketch) -> bool:
    """Append a line, or nothing where what was chosen has no place; True if there is a new line."""
    return sketch.attempt(lambda: _step(sketch))


def _step(sketch: Sketch) -> bool:
    choices = sketch.choices
    name = choices.pick(_FAMILY_OF)
    match name:
        case "nothing":
            return False
        case "repeat":
            return composition.repeat_line(sketch)
        case "again":
            return composition.call_again(sketch)
        case "tie":
            return composition.tie_weights(sketch)
        case "nest":
            return composition.nest(sketch, step)
        case _:
            rows = FAMILIES[name][1]
            return sketch.perform(rows.at(choices.below(rows.total)))


def _result(sketch: Sketch) -> str:
    """What is returned: the last value, all values that nothing reads, or some, in one of the usual containers."""
    choices = sketch.choices
    results: list[Value] = [value for value in sketch.values if not value.name.startswith("self.")]
    last = results[-1]
    unread = [value for value in results if value.uses == 0 or value is last]
    kind = choices.below(8)
    if kind == 0:
        return last.name
    chosen = unread if kind < 6 else [*unread, choices.recent(results)]
    if len(chosen) == 1:
        return chosen[0].name
    names = [value.name for value in chosen]
    match choices.below(5):
        case 1:
            return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
        case 2:
            return f"[{', '.join(names)}]"
        case 3:
            return f"Pair({names[0]}, [{', '.join(names[1:])}])"
        case 4:
            return f'({names[0]}, {{"rest": ({", ".join(names[1:])},)}})'
        case _:
            return ", ".join(names)

"""Lines of campaigns: blocks, state in Python, hooks, and operations on operands that their rows do not ask for.

Compilers that read Python are right on such programs or break a promise. Most passes leave them alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from pytest_fx.generation.bias import of_dynamic_size, of_fixed_size
from pytest_fx.generation.grammar import FAMILIES, ROWS
from pytest_fx.generation.operands import DIMENSIONED, FLOAT
from pytest_fx.generation.productions import NAMESPACE, Operand, Production
from pytest_fx.generation.program_builder import ProgramBuilder, Submodule
from pytest_fx.generation.python_rows import PYTHON
from pytest_fx.generation.rare_rows import AS_WHOLE, RARE
from pytest_fx.generation.schema_rows import FEW_CALLS, rows_of
from pytest_fx.generation.state_rows import IN_PLACE

BLOCKS = (
    "torch.no_grad()",
    "torch.enable_grad()",
    "torch.set_grad_enabled(False)",
    'torch.autocast("cpu", dtype=torch.bfloat16)',
    'torch.autocast("cpu", dtype=torch.float16)',
    'torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False)',
    "torch.no_grad(), torch.enable_grad()",
)
"""Context managers around some lines."""
LONGEST_BLOCK = 3
"""The most lines in a block."""
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_WHOLE = f"{{0}}{AS_WHOLE}"
ALTERED: tuple[tuple[str, ...], ...] = (
    tuple(f"{_WHOLE}.to({dtype})" for dtype in _INTEGERS),
    tuple(f"{_WHOLE}.sign().mul(torch.iinfo({dtype}).max).to({dtype})" for dtype in _INTEGERS),
    ("{0} > 0", "{0}.bool()", *(f"{_WHOLE}.to({dtype})" for dtype in (torch.uint16, torch.uint32, torch.uint64))),
    tuple(f"{{0}}.to({dtype})" for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.float32)),
    ("{0}.mT.contiguous().mT", "{0}.flip(0)[::2]", "{0}[..., ::2]", "{0}[:1].expand({0}.shape)", "{0}[..., 1:]",
     "{0}[..., :1].expand({0}.shape)", "{0}.contiguous(memory_format=torch.channels_last)"),
    ("{0}.unsqueeze(0)", "{0}.expand(2, *{0}.shape)", "{0}.sum()", "{0}[:0]", "{0}[..., :0]", "{0}.flatten()"),
    ("{0} * -0.0", "{0}.where({0} > 0, -0.0)", "{0}.where({0} > 0, float('nan'))", "{0} / 0", "{0}.zero_()"),
)  # fmt: skip
"""By kind, expressions that make an unusual operand: integers, their limits, rare dtypes, floats, strides, shapes, and
special values."""
_NUMBERS = (("0", "{state} += 1"), ("1.0", "{state} *= 0.5"), ("-2", "{state} -= 3"))
_USES = ("{value} * {state}", "{value} - {state}", "{value}.clamp(max={state})", "{value}.clamp({state}, 9)",
         "F.leaky_relu({value}, {state})", "torch.add({value}, {value}, alpha={state})",
         "{value}.roll(int({state}), 0)", "{value} if {state} > 0 else {value} + {state}",
         "{value} / ({state} + 0.1)", "{value} ** {state}")  # fmt: skip
STATES: tuple[tuple[str, str, str, str], ...] = (
    *((first, update, use, "") for use in _USES for first, update in _NUMBERS),
    *(("[]", "{state}.append({value}.shape[0])", "{value} + len({state})", ""),) * 8,
    *(("{'count': 0}", "{state}['count'] += 1", "{value} - {state}['count']", ""),) * 8,
    *(("None", "", "{value} if {state} is None else {value} + {state}", "{state} = {value}.detach().mean()"),) * 8,
)
"""For each kind of state in Python its first value, and the lines before, at and behind its use."""
HOOKS = (
    ("{}.register_forward_pre_hook(lambda module, inputs: setattr(module, 'calls', getattr(module, 'calls', 0) + 1))",
     "{}.register_forward_hook(lambda module, inputs, result: result + module.calls)"),
    ("{}.register_full_backward_hook(lambda module, inputs, results: "
     "tuple(each if each is None else each * 2 for each in inputs))",),
)  # fmt: skip
"""Lines of ``__init__`` that give a module hooks with state, or hooks for gradients."""
PARTS = (("[1:]", "[:-1]"), ("[..., 1:]", "[..., :-1]"), ("[::2]", "[1::2]"), ("[:1]", "[-1:]"), ("[...]", "[...]"),
         ("[...]", "[:1]"), ("[[0, 0]]", "[[0, 0]]"), ("[[0, 0]]", "[[-1, 0]]"), ("[..., [0, 0]]", "[..., [0, -1]]"),
         ("[torch.tensor([0, 0])]", "[:2]"))  # fmt: skip
"""Pairs of parts of a tensor, mostly of the same size."""
CHANGES = ("", ".clone()", ".flip(0)", ".flip(-1)", ".roll(1, 0)", ".mT", " * 2")
"""Forms in which a part is read."""
WRITES = ("{to} = {part}", "{to} += {part}", "{to} *= {part}", "{to}.copy_({part})", "{to}.add_({part})",
          "torch.mul({to}, {part}, out={to})", "torch._foreach_add_([{to}], [{part}])")  # fmt: skip
"""Forms of writes."""
ONWARD = (
    "elements",
    "pairs",
    "pairs",
    "scalars",
    "joins",
    "reductions",
    "views",
    "products",
    "writes",
    "rare",
    "losses",
)
"""Families whose operations are called on values of any dtype."""
_ANY = Operand(lambda value, earlier: True, lambda builder, earlier: None)
_DOUBLED = Production(("{0} * 1.5",), (FLOAT,))
_GRADIENT_HOOK = "if {}.requires_grad: {}.register_hook(lambda gradient: gradient * 2)"


def write_in_block(builder: ProgramBuilder, step: Callable[[ProgramBuilder], object]) -> bool:
    """Write some lines in a block."""
    if builder.block:
        return False
    before, builder.block = len(builder.lines), builder.choices.pick(BLOCKS)
    try:
        for _ in range(1 + builder.choices.below(LONGEST_BLOCK)):
            step(builder)
    finally:
        builder.block = ""
    return len(builder.lines) > before


def call_unusual(builder: ProgramBuilder) -> bool:
    """Write any operation of torch on operands of another dtype, layout, shape or kind of values than usual."""
    choices, chosen = builder.choices, _any_row(builder)
    if chosen is None or not chosen.operands:
        return False
    operands = [builder.operand(chosen.operands[0], [])]
    for operand in chosen.operands[1:]:
        objects = [each.object for each in operands if each is not None]
        operands.append(builder.operand(operand, objects) if len(objects) == len(operands) else None)
    values = [each for each in operands if each is not None]
    if len(values) < len(operands):
        return False
    alteration = Production((choices.pick(choices.pick(ALTERED)),), (_ANY,))
    all_of_them = choices.sometimes(2)
    first = choices.below(len(values))
    for place in range(len(values)) if all_of_them else (first,):
        if not isinstance(values[place].object, torch.Tensor) or not builder.perform(alteration, None, [values[place]]):
            return False
        values[place] = builder.values[-1]
    return builder.perform(replace(chosen, operands=(_ANY,) * len(values)), None, values)


def _any_row(builder: ProgramBuilder) -> Production | None:
    choices = builder.choices
    rows = (*ROWS, *RARE) if choices.sometimes(2) else rows_of(choices.pick(of_fixed_size()), FEW_CALLS)
    return choices.pick(rows) if rows else None


def call_onward(builder: ProgramBuilder) -> bool:
    """Write an operation on the latest values, whatever their dtype and shape: eager decides if it takes them."""
    choices = builder.choices
    family = FAMILIES[choices.pick(ONWARD)][1]
    chosen = family.at(choices.below(family.total))
    tensors = [each for each in builder.values if isinstance(each.object, torch.Tensor)]
    if not chosen.operands or not tensors:
        return False
    values = [choices.recent(tensors) for _ in chosen.operands]
    return builder.perform(replace(chosen, operands=(_ANY,) * len(values)), None, values)


def write_behind(builder: ProgramBuilder) -> bool:
    """Write an operation, and then write to its first operand."""
    choices = builder.choices
    if not builder.perform(choices.pick((*ROWS, *RARE))) or not builder.lines[-1].operands:
        return False
    family = FAMILIES["writes"][1]
    return builder.perform(family.at(choices.below(family.total)), None, builder.lines[-1].operands[:1])


def write_from_itself(builder: ProgramBuilder) -> bool:
    """Write to parts of a value, once or twice, each time what other parts of it hold."""
    choices, value = builder.choices, builder.operand(DIMENSIONED, [])
    for _ in range(1 + choices.below(2)):
        to, part = choices.pick(PARTS)[:: choices.pick((1, -1))]
        form = choices.pick(WRITES).format(to="{0}" + to, part="{0}" + part + choices.pick(CHANGES))
        if value is None or not builder.perform(Production((form,), (_ANY,), tags=IN_PLACE), None, [value]):
            return False
    return True


def call_of_dynamic_size(builder: ProgramBuilder) -> bool:
    """Call an operation whose size depends on values."""
    rows = rows_of(builder.choices.pick(of_dynamic_size()), FEW_CALLS)
    return bool(rows) and builder.perform(builder.choices.pick(rows))


def call_python(builder: ProgramBuilder) -> bool:
    """Call Python around operations, or an operation that calls Python."""
    return builder.keeps_state and builder.perform(builder.choices.pick(PYTHON))


def keep_state(builder: ProgramBuilder) -> bool:
    """Keep state in an attribute that is no tensor of the module, or give a value or a module a hook."""
    if not builder.keeps_state:
        return False
    value = builder.operand(FLOAT, [])
    if value is None or not value.traced:
        return False
    kind = builder.choices.below(9)
    if kind == 5:
        return _hook_gradient(builder, value)
    layers = [each for each in builder.modules if isinstance(each.module, nn.Module)]
    if kind > 5:
        return bool(layers) and _hook_module(builder, builder.choices.recent(layers))
    first, *forms = builder.choices.pick(STATES)
    name = f"state{next(builder.numbers)}"
    builder.state.append(f"self.{name} = {first}")
    holder = SimpleNamespace(**{name: eval(first)})
    for place, form in enumerate(forms):
        if not form:
            continue
        code = compile(form.format(value="value", state=f"self.{name}"), "<state>", "eval" if place == 1 else "exec")
        run = functools.partial(_run_beside, code, holder)
        text = form.format(value=value.name, state=f"self.{name}")
        if not builder.append(text, [value], run, frozenset({"python-state"}), statement=place != 1):
            return False
    return True


def _run_beside(code: Any, holder: Any, objects: list[Any]) -> Any:
    return eval(code, {**NAMESPACE, "self": holder, "value": objects[0]})


def _hook_gradient(builder: ProgramBuilder, value: Any) -> bool:
    """Compute a value whose gradient is doubled: a fresh one, as hooks of a parameter would stay."""
    if not builder.perform(_DOUBLED, None, [value]):
        return False
    name = builder.values[-1].name
    text = _GRADIENT_HOOK.format(name, name)
    return builder.append(text, builder.values[-1:], lambda objects: None, frozenset({"hook"}), statement=True)


def _hook_module(builder: ProgramBuilder, layer: Submodule) -> bool:
    """Give a module hooks, and call it again."""
    value, _ = layer.calls[0] if layer.calls else (None, None)
    lines = [each.format(f"self.{layer.name}") for each in builder.choices.pick(HOOKS)]
    if value is None or any(line in builder.state for line in lines):
        return False
    for line in lines:
        exec(line, {"self": SimpleNamespace(**{layer.name: layer.module})})
        builder.state.append(line)
    builder.features.add("hook")
    return builder.call(layer, [value])

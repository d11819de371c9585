"""Functions with a backward pass of their own: classes derived from ``torch.autograd.Function``."""

from __future__ import annotations

from typing import Any

from pytest_fx.generation.operands import FLOAT, SAME_FLOAT
from pytest_fx.generation.productions import NAMESPACE
from pytest_fx.generation.program_builder import ProgramBuilder

RESULTS = ("a * b + a", "a.sin() * b", "torch.where(a > b, a, b)", "a.exp() - b", "torch.maximum(a, b).square()")
"""Expressions of the result of two tensors ``a`` and ``b``."""
CHANGES = ("", "", "result += 1", "result.mul_(2)", "result[:1] = 0")
"""Lines that write to the result."""
GRADIENTS = (
    "gradient * (b + 1), gradient * a",
    "gradient * 2, gradient * 3",
    "gradient * a.cos(), None",
    "torch.zeros_like(gradient), gradient",
)
"""Expressions of the gradients. Few are the derivative of the result: a compiler that derives its own is wrong."""
CALLS = (
    "{name}.apply({0}, {1})",
    "{name}.apply({0}, {0})",
    "{name}.apply({0} * 2, {1}) + {name}.apply({1}, {0})",
    "torch.func.grad(lambda t: {name}.apply(t, {1}).sum())({0})",
)
"""Calls of a function."""
_WITH_CONTEXT = """\
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
"""
_WITHOUT_CONTEXT = """\
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def forward(a, b):
"""
_BACKWARD = """\

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return """


def call_custom_function(builder: ProgramBuilder) -> bool:
    """Define a function, and call it."""
    if not builder.keeps_state:
        return False
    choices = builder.choices
    first = builder.operand(FLOAT, [])
    second = builder.operand(SAME_FLOAT, [first.object]) if first is not None else None
    if first is None or second is None:
        return False
    name, change = f"Function{next(builder.numbers)}", choices.pick(CHANGES)
    lines = [f"result = {choices.pick(RESULTS)}", *([change] if change else []), "return result"]
    forward = choices.pick((_WITH_CONTEXT, _WITHOUT_CONTEXT)) + "".join(f"        {line}\n" for line in lines)
    text = f"class {name}(torch.autograd.Function):\n{forward}{_BACKWARD}{choices.pick(GRADIENTS)}"
    exec(text, defined := dict(NAMESPACE))
    builder.functions.append(text)
    call = choices.pick(CALLS)
    code = compile(call.format("a", "b", name=name), f"<{name}>", "eval")

    def run(objects: list[Any]) -> Any:
        return eval(code, {**defined, "a": objects[0], "b": objects[1]})

    return builder.append(call.format(first.name, second.name, name=name), [first, second], run)

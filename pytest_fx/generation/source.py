"""The source of a drawn program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pytest_fx.generation.program_builder import ProgramBuilder
from pytest_fx.generation.record import Input

IMPORTS = {
    "math.": "import math",
    "torch.": "import torch",
    "F.": "import torch.nn.functional as F",
    "nn.": "from torch import nn",
    "Pair(": "from pytest_fx.generation import Pair",
}


def source(builder: ProgramBuilder, result: str) -> str:
    """Return text that defines ``Program``, ``build()`` and ``inputs()``."""
    classes = [line for inner in builder.nested for line in (*_class(inner, inner.result.name), "", "")]
    classes += [line for text in builder.functions for line in (text, "", "")]
    body = [*classes, *_class(builder, result), "", "", *_build(builder), "", "", *_inputs(builder.inputs)]
    text = "\n".join(body)
    imports = [line for mark, line in IMPORTS.items() if mark in text or line.endswith("torch") or mark == "nn."]
    imports += [f"import {name}" for name in sorted(builder.imports)]
    return "\n".join([*imports, "", "", text, ""])


def _class(builder: ProgramBuilder, result: str) -> Iterator[str]:
    yield f"class {builder.name}(nn.Module):"
    if builder.state:
        yield "    def __init__(self):"
        yield "        super().__init__()"
        yield from (f"        {line}" for line in builder.state)
        yield ""
    yield f"    def forward({signature(builder)}):"
    for block, lines in itertools.groupby(builder.lines, lambda line: line.block):
        if block:
            yield f"        with {block}:"
        yield from (f"        {'    ' * bool(block)}{line}" for line in lines)
    yield f"        return {result}"


def signature(builder: ProgramBuilder) -> str:
    """Return the parameters of ``forward``."""
    if builder.inner:
        return "self, x"
    parts = ["self"]
    for place, part in enumerate(builder.inputs):
        if part.keyword and (place == 0 or not builder.inputs[place - 1].keyword):
            parts.append("*")
        parts.append(part.name if part.default is None else f"{part.name}={part.default}")
    return ", ".join(parts)


def _build(builder: ProgramBuilder) -> Iterator[str]:
    yield "def build():"
    yield "    torch.default_generator.manual_seed(0)"
    if not builder.features & {"norm", "batch-norm"}:
        yield "    return Program().eval()"
        return
    # The initial values of norms make them nearly the identity, and a transform that forgets one would pass.
    yield "    module = Program().eval()"
    yield "    for name, tensor in module.state_dict().items():"
    yield '        if tensor.is_floating_point() and ("norm" in name or "running" in name):'
    yield "            tensor.uniform_(0.1, 1.5)"
    yield "    return module"


def _inputs(inputs: list[Input]) -> Iterator[str]:
    passed = [part for part in inputs if part.passed]
    yield "def inputs():"
    args = ", ".join(part.text() for part in passed if not part.keyword)
    kwargs = ", ".join(f'"{part.name}": {part.text()}' for part in passed if part.keyword)
    comma = "," if args and sum(not part.keyword for part in passed) == 1 else ""
    yield f"    return ({args}{comma}), {{{kwargs}}}"

"""The source of a drawn program."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_fx.generation.record import Input
from pytest_fx.generation.sketch import Sketch

IMPORTS = {
    "math.": "import math",
    "torch.": "import torch",
    "F.": "import torch.nn.functional as F",
    "nn.": "from torch import nn",
    "Pair(": "from pytest_fx.generation import Pair",
}


def source(sketch: Sketch, result: str) -> str:
    """Return text that defines ``Program``, ``build()`` and ``inputs()``."""
    classes = [line for inner in sketch.nested for line in (*_class(inner, inner.result.name), "", "")]
    body = [*classes, *_class(sketch, result), "", "", *_build(sketch), "", "", *_inputs(sketch.inputs)]
    text = "\n".join(body)
    imports = [line for mark, line in IMPORTS.items() if mark in text or line.endswith("torch") or mark == "nn."]
    imports += [f"import {name}" for name in sorted(sketch.imports)]
    return "\n".join([*imports, "", "", text, ""])


def _class(sketch: Sketch, result: str) -> Iterator[str]:
    yield f"class {sketch.name}(nn.Module):"
    if sketch.state:
        yield "    def __init__(self):"
        yield "        super().__init__()"
        yield from (f"        {line}" for line in sketch.state)
        yield ""
    yield f"    def forward({signature(sketch)}):"
    yield from (f"        {line}" for line in sketch.lines)
    yield f"        return {result}"


def signature(sketch: Sketch) -> str:
    """The parameters of ``forward``."""
    if sketch.inner:
        return "self, x"
    parts = ["self"]
    for place, part in enumerate(sketch.inputs):
        if part.keyword and (place == 0 or not sketch.inputs[place - 1].keyword):
            parts.append("*")
        parts.append(part.name if part.default is None else f"{part.name}={part.default}")
    return ", ".join(parts)


def _build(sketch: Sketch) -> Iterator[str]:
    yield "def build():"
    yield "    torch.default_generator.manual_seed(0)"
    if not sketch.features & {"norm", "batch-norm"}:
        yield "    return Program().eval()"
        return
    # As they are made, norms do next to nothing, and a transform that forgets one would pass.
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

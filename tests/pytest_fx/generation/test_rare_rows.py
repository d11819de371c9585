"""Programs of campaigns: what public reports about compilers are made of."""

from __future__ import annotations

import re
from functools import cache
from random import Random

import pytest

from pytest_fx.generation.productions import fill
from pytest_fx.generation.strategy import campaign_bias, program_of

FORMS = {
    "integers of all widths": r"\.to\(torch\.u?int(8|16|32)\)",
    "integers of two widths": r"\.to\(torch\.u?int\d+\).*\.to\(torch\.u?int\d+\)",
    "shifts": r"<< \d|>> \d|shift\(",
    "floor division by negative numbers": r"// -\d",
    "two dtypes in a call": r"\.to\(torch\.float64\)|\.half\(\)",
    "views as another dtype": r"\.view\(torch\.\w+\)",
    "strides of a user's own": r"as_strided\(",
    "writes by a mask or an index": r"\[\w+ [<>] 0\] |\[torch\.tensor\(\[0, -1\]\)\] ",
    "scatters into slices": r"slice_scatter\(\w+, \w+\[|select_scatter\(\w+, \w+\[",
    "optional arguments": r"decimals=|correction=|dtype=torch\.float64",
    "negative zero": r"\* -0\.0",
    "operands that are unpacked sizes": r"expand\(2, \*\w+\.shape",
    "limits of integers": r"torch\.iinfo\(",
    "inputs of integers": r"return \(torch\.tensor\(\[-?\d+[,\]]",
    "expanded inputs": r"inputs\(\):\n.*\.expand\(",
    "overlapping inputs": r"inputs\(\):\n.*\.unfold\(",
    "inputs that share memory": r"lambda x: \(x, x",
    "blocks without gradients": r"with torch\.no_grad\(\):\n            \w",
    "blocks in lower precision": r'with torch\.autocast\("cpu", dtype=torch\.bfloat16\):\n            \w',
    "complex numbers": r"torch\.fft\.|torch\.complex\(",
    "writes of other parts of the same tensor": r"(?m)^ +(\w+)\[[^\]]+\] = \1\[",
    "writes to places that repeat": r"\[\[0, 0\]\] |\[torch\.tensor\(\[0, 0\]\)\] ",
    "an index that is used twice": r"\[((?:self\.buffer\d+)|[xyzwvu])\](?s:.)*\b\1\b(?s:.)*return",
    "sums into places": r"scatter_add\(|index_add\(",
    "sums of masks": r"> 0\)\.cum|bool\(\)\.cumsum",
    "floats of a byte": r"\.to\(torch\.float8",
    "samples of images": r"grid_sample\(|interpolate\(\w+, scale_factor=",
    "floor division by a fraction": r"// (0\.1|0\.7|-0\.2|0\.333)|, (0\.1|0\.7|-0\.2|0\.333\d*), rounding_mode='floor'",
    "sizes that depend on values": r"nonzero|unique|masked_select|argwhere",
}
STATE = {
    "counters": r"self\.state\d+ \+= 1",
    "lists": r"self\.state\d+\.append\(",
    "tensors for the next call": r"self\.state\d+ = \w+\.detach\(\)",
    "hooks of values": r"\.register_hook\(",
    "hooks of modules that count": r"\.register_forward_pre_hook\(lambda module, inputs: setattr",
    "functions of functions": r"torch\.func\.|torch\.vmap\(",
    "functions with their own gradients": r"class Function\d+\(torch\.autograd\.Function\)(?s:.)*Function\d+\.apply\(",
    "the same tensor twice for such a function": r"Function\d+\.apply\((\w+), \1\)",
    "numbers computed of sizes": r"round\(\w+\.(shape|numel|size)|divmod\(\w+\.(shape|numel|size)",
    "bounds that change from call to call": r"\.clamp\((max=)?self\.state",
    "generators and local classes": r" for t in \(| for _ in range|type\('Helper'",
}
"""Forms of programs for compilers that keep state in Python."""


@cache
def sources(*, keeps_state: bool = False) -> list[str]:
    bias = campaign_bias(keeps_state=keeps_state)
    return [program_of(Random(seed), bias, 14).source for seed in range(160)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_programs_of_campaigns_have(form: str) -> None:
    assert any(re.search(form, source) for source in sources())


@pytest.mark.parametrize("form", STATE.values(), ids=STATE)
def test_programs_for_compilers_of_python_have(form: str) -> None:
    assert any(re.search(form, source) for source in sources(keeps_state=True))
    assert not any(re.search(form, source) for source in sources())


def test_a_star_before_an_operand_unpacks_it() -> None:
    assert fill("{0}.expand(2, *{0}.shape)", ["a"], {}, ()) == "a.expand(2, *a.shape)"
    assert fill("{0}.permute(*{dims})", ["a"], {"dims": (1, 0)}, ()) == "a.permute(1, 0)"

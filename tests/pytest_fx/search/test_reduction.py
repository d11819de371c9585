"""The reduction of a failure: the text of its program gets smaller until every part is needed."""

import ast
import re
import textwrap

import hypothesis
import pytest

from pytest_fx.generation import programs
from pytest_fx.generation.record import load
from pytest_fx.search.reduction import reduced, written

BUILD = """

def build():
    torch.default_generator.manual_seed(0)
    return Program().eval()


def inputs():
    return {inputs}
"""
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"


def program(classes, inputs="(torch.ones(2, 3),), {}"):
    """The text of a program."""
    return f"{HEAD}{textwrap.dedent(classes).strip()}\n{BUILD.format(inputs=inputs)}"


def runs(source):
    try:
        program = load(source, frozenset(), (), 0)
        inputs = program.inputs.copies()
        program.module(*inputs.args, **inputs.kwargs)
    except Exception:
        return False
    return True


def smallest(source, *marks):
    """The smallest program that runs and has each of these texts in it as often as it is given."""
    smaller = reduced(
        source, lambda text: all(text.count(mark) >= marks.count(mark) for mark in marks) and runs(text), 60
    )
    assert runs(smaller)
    return smaller


def body(source):
    """Return the classes without the code around them."""
    return source[source.index("class ") : source.index("\n\n\ndef build")]


LONG = """
    class Block0(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear0 = nn.Linear(3, 3, bias=False)

        def forward(self, x):
            a = self.linear0(x)
            b = torch.relu(a)
            return b


    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.block0 = Block0()
            self.register_buffer("buffer1", torch.arange(3.0).add(1).sin(), persistent=False)
            self.weight2 = nn.Parameter(torch.ones(3))
            self.linear3 = nn.Linear(3, 4, dtype=torch.float32)

        def forward(self, x, given, *, scale=2.0, z=None):
            a = self.block0(x)
            b = a * scale if z is None else a + z
            c, d = b + self.weight2, b - self.weight2
            e = self.linear3(c)
            f = torch.softmax(e, dim=-1, dtype=torch.float32)
            x.add_(self.buffer1)
            g = given["a"].clamp(min=0, max=1).mT
            return {"f": f, "rest": (d, [g, x])}
"""
CHAIN = r"(\w+) = \w+\.permute\(.*\n +\w+ = \1\.permute\("
CALL = '(torch.arange(6.0).add(1).sin().reshape(2, 3), {"a": torch.ones(2, 3), "b": torch.ones(())}), {"scale": 0.5}'


def test_a_call_keeps_no_line_layer_option_or_input_that_it_does_not_need():
    smaller = smallest(program(LONG, CALL), ".softmax(")
    assert body(smaller) == (
        "class Program(nn.Module):\n    def forward(self, x):\n        a = torch.softmax(x, dim=-1)\n        return a"
    )
    assert smaller.endswith("def inputs():\n    return (torch.ones(1),), {}\n")
    assert "functional" not in smaller


@pytest.mark.parametrize(
    "mark, lines",
    [
        ("clamp", ["def forward(self, given):", "a = given.clamp(max=1)", "return a"]),
        ("add_(", ["def forward(self, y):", "y.add_(y)", "return y"]),
        ("scale", ["def forward(self, scale):", "return scale"]),
        ("z is None", ["def forward(self, *, z=None):", "a = z if z is None else z", "return a"]),
        ("given[", ["def forward(self, given):", 'a = given["a"]', "return a"]),
    ],
)
def test_statements_options_parameters_and_elements_go(mark, lines):
    smaller = body(smallest(program(LONG, CALL), mark))
    assert [line.strip() for line in smaller.splitlines()] == ["class Program(nn.Module):", *lines]


@pytest.mark.parametrize(
    "mark, line",
    [
        ("persistent", 'self.register_buffer("buffer1", torch.ones(1), persistent=False)'),
        ("dtype=torch.float32)\n\n", "self.linear3 = nn.Linear(1, 1, dtype=torch.float32)"),
        ("weight2", "self.weight2 = nn.Parameter(torch.ones(1))"),
        ("linear0", "self.block0_linear0 = nn.Linear(1, 1)"),
    ],
)
def test_layers_are_removed_and_the_others_are_small(mark, line):
    smaller = body(smallest(program(LONG, CALL), mark))
    assert [line.strip() for line in smaller.splitlines()[1:4]] == ["def __init__(self):", "super().__init__()", line]
    assert smaller.splitlines()[5:] == ["    def forward(self, x):", "        return x"]


def test_a_module_inside_stays_where_it_is_looked_for():
    smaller = body(smallest(program(LONG, CALL), "self.block0(", "torch.relu"))
    assert smaller.count("class ") == 2
    assert "linear" not in smaller


def test_a_tensor_that_a_module_holds_becomes_an_input():
    smaller = smallest(program(LONG, CALL), "- ")
    assert "__init__" not in smaller


def test_sizes_become_small_together():
    layers = """
        class Program(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 6, 3, padding=1)
                self.norm = nn.BatchNorm2d(6)

            def forward(self, x):
                a = self.conv(x)
                b = self.norm(a)
                return b
    """
    smaller = smallest(program(layers, "(torch.arange(150.0).sin().reshape(2, 3, 5, 5),), {}"), "conv(x)", "norm(a)")
    assert "nn.Conv2d(1, 1, 1)" in smaller
    assert "nn.BatchNorm2d(1)" in smaller
    assert "torch.ones(1, 1, 1)" in smaller or "torch.ones(1, 1, 1, 1)" in smaller


def test_statements_that_hold_others_and_decorators_go():
    layers = """
        class Program(nn.Module):
            @torch.no_grad()
            def forward(self, x, flag=True):
                if flag:
                    with torch.no_grad():
                        a = torch.relu(x)
                return a
    """
    smaller = body(smallest(program(layers), "relu"))
    assert (
        smaller == "class Program(nn.Module):\n    def forward(self, x):\n        a = torch.relu(x)\n        return a"
    )


def test_nothing_is_removed_without_time():
    source = program(LONG, CALL)
    smaller = reduced(source, lambda text: text == source or runs(text), 0)
    assert ast.dump(ast.parse(smaller)) == ast.dump(ast.parse(source))  # Python 3.10 writes parentheses around targets


def test_a_program_without_removable_parts_stays():
    tried = []

    def shows(text):
        tried.append(text)
        return False

    source = program(LONG, CALL)
    assert reduced(source, shows, 60) == source
    assert len(tried) > 50
    assert sorted(set(tried)) == sorted(tried)


def test_a_program_is_written_as_it_was():
    source = program(
        """
        class Program(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear0 = nn.Linear(3, 4)

            def forward(self, x, *, z=None):
                a = F.relu(self.linear0(x), inplace=True)
                b = x[..., 1:]
                torch._assert(a.dim() == 2, "another rank")
                return a, {"b": [b, (x,)]}
        """
    )
    assert written(ast.parse(source)) == source


@pytest.mark.thorough
def test_random_programs_are_reduced_to_a_chain():
    @hypothesis.settings(max_examples=80, database=None, phases=[hypothesis.Phase.generate], deadline=None)
    @hypothesis.seed(0)
    @hypothesis.given(programs(ops=[("permute", "permute")]))
    def draw(drawn):
        sources.append(drawn.source)

    sources = []
    draw()
    chains = [source for source in sources if re.search(CHAIN, source) and "class Block" not in source][:8]
    assert len(chains) == 8
    for source in chains:
        smaller = reduced(source, lambda text: re.search(CHAIN, text) is not None and runs(text), 60)
        lines = body(smaller).splitlines()
        assert len(lines) == 5, smaller

"""Random programs: their contents, stand-alone sources, requested operations, and shrinking."""

from __future__ import annotations

import ast
import math
import operator
import random
import re
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, find, given, seed, settings
from hypothesis import strategies as st
from selection import thorough_except
from torch import nn

import fx
from pytest_fx.generation import Pair, Program, programs, shapes, tensors
from pytest_fx.generation.bias import choices_for
from pytest_fx.generation.formula_rows import FORMULAS
from pytest_fx.generation.grammar import ROWS
from pytest_fx.generation.productions import Choices, Production, written
from pytest_fx.generation.program_builder import ProgramBuilder, Value
from pytest_fx.generation.siblings import siblings
from pytest_fx.generation.spelled_targets import targets_of
from pytest_fx.generation.state_rows import AUGMENTED
from pytest_fx.generation.tensor_expressions import TensorRecipe
from pytest_fx.harness.subject import Subject
from pytest_fx.harness.variants import OTHER_VALUES, VARIANTS, of_batch
from pytest_fx.laws.output_laws import BATCHES
from pytest_fx.search.pass_check import INDEPENDENT
from pytest_fx.search.simplifications import tensors_in

few = settings(max_examples=40, deadline=None)
MANY = settings().max_examples > 100  # Hypothesis's own default
"""Whether to draw more programs, for ``make properties``."""


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return ``count`` examples, always the same ones; few are variants of others."""
    examples: list[Any] = []

    @settings(max_examples=INDEPENDENT, phases=[Phase.generate], database=None, deadline=None)
    @given(strategy)
    def collect(example: Any) -> None:
        examples.append(example)

    for start in range(0, count, INDEPENDENT):
        seed(start)(collect)()
    return examples[:count]


@cache
def asked_for(*ops: Any) -> list[Program]:
    """Return programs with these operations, for several tests."""
    return drawn(programs(ops=ops), 200 if MANY else 100)


def smallest(condition: Callable[[Program], bool], **options: Any) -> Program:
    """Return the shrunk form of the first program with ``condition``."""
    quick = settings(database=None, max_examples=2000, deadline=None)
    return find(programs(**options), condition, settings=quick, random=random.Random(0))


def scaled(x: Any) -> Any:
    return x * 2


class Doubling(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


@pytest.fixture(scope="module")
def sample() -> list[Program]:
    return drawn(programs(), 200)


@pytest.fixture(scope="module")
def simplest(sample: list[Program]) -> Program:
    """Return the simplest program, with which Hypothesis begins."""
    return sample[0]


TAGS = (
    "view layer norm batch-norm in-place state check parameter buffer size cast dropout random container "
    "shared-module nested-module parallel-layers optional-input default container-input non-finite"
)
"""Features that the generator itself records for a program."""
WRITTEN = {
    "free functions": r"= (torch|F)\.\w+\(",
    "methods": r"= \w+\.\w+\(",
    "operators": r"= \w+ [-+*/@] \w+",
    "reflected operators": r"= -?[\d.]+ [-+*/] ",
    "operators in place": r"\w+ [-+*/]= ",
    "methods in place": r"\.[a-z]+_\(",
    "writes to parts": r"\w\[.*\] [-+*]?= ",
    "modules": r"= self\.\w+\(",
    "functions on the parameters of layers": r"F\.\w+\(\w+, self\.\w+\.\w+",
    "keyword arguments": r"\w\(.*\w=",
    "constants": r"= \w+ [-+*/] [\d.]+",
    "slices": r"\[.*:.*\]",
    "sizes as numbers": r"\.(size\(|shape\[)",
    "updates of buffers": r"self\.buffer\d+(\[\.\.\.\] =|\.(lerp|add|copy)_)",
    "checks": r"^ +assert ",
    "recorded checks": r"torch\._assert\(",
    "inputs that may be None": r"=None",
    "dicts returned": r"return \{",
    "lists returned": r"return \[",
    "named tuples returned": r"return Pair\(",
    "nested results": r"return \(\w+, \{",
    "several results": r"return \w+, ",
    "float64": r"torch\.float64|\.double\(",
    "half precision": r"torch\.b?float16|\.half\(",
    "integers": r"remainder\(|torch\.int",
    "non-contiguous inputs": r"::2\]|\.mT",
    "sizes of one": r"reshape\(.*\b1\b.*\)|ones\(.*\b1\b.*\)",
    "random numbers": r"rand|dropout|normal|bernoulli|uniform",
    "infinities or NaN": r"float\('",
    "extreme magnitudes": r"e[-+]\d\d",
}
"""Features that are visible in the source, as regular expressions."""


@pytest.mark.thorough
def test_each_feature_is_frequent_enough(sample: list[Program]) -> None:
    count = {tag: sum(tag in program.features for program in sample) for tag in TAGS.split()}
    for name, form in WRITTEN.items():
        count[name] = sum(re.search(form, program.source, re.MULTILINE) is not None for program in sample)
    assert {name: times for name, times in count.items() if times < len(sample) / 100} == {}


def test_sources_stand_alone(sample: list[Program]) -> None:
    for program in sample[:50]:
        defined: dict[str, Any] = {"__name__": "alone"}
        exec(program.source, defined)
        module, (args, kwargs) = defined["build"](), defined["inputs"]()
        assert module.state_dict().keys() == program.module.state_dict().keys()
        given_here = program.namespace["inputs"]()  # copies may have another memory layout
        torch.manual_seed(0)
        wanted = program.module(*given_here[0], **given_here[1])
        torch.manual_seed(0)
        got = module(*args, **kwargs)
        assert str(wanted) == str(got)


@few
@given(programs())
def test_each_build_is_a_new_equal_module(program: Program) -> None:
    before = torch.get_rng_state()
    module, other = program.build(), program.build()
    assert torch.equal(before, torch.get_rng_state())
    assert module is not other
    assert not module.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor.double().nan_to_num(), other.state_dict()[name].double().nan_to_num())


def test_drawing_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    drawn(programs(), 5)
    assert torch.equal(before, torch.get_rng_state())


def test_many_programs_take_other_batch_sizes(sample: list[Program]) -> None:
    other = [arguments for program in sample if (arguments := program.inputs_at(5)) is not None]
    assert len(other) > len(sample) / 3
    assert all(5 in {size for tensor in arguments.tensors for size in tensor.shape} for arguments in other)


def test_a_program_without_a_batch_takes_no_other(sample: list[Program], simplest: Program) -> None:
    refused = [example for example in sample[:60] if example.inputs_at(7) is None]
    assert simplest.inputs_at(simplest.batch) is None
    assert refused


def test_tracebacks_show_the_lines_of_a_program(sample: list[Program]) -> None:
    program = next(program for program in sample if "= F.relu(" in program.source)
    with pytest.raises((TypeError, AttributeError)) as raised:
        program.module(*[None] * len(program.inputs.args), **dict.fromkeys(program.inputs.kwargs))
    last = [line for line in traceback.extract_tb(raised.value.__traceback__) if line.name == "forward"][-1]
    assert last.line
    assert f" {last.line}\n" in program.source


def test_captured_nodes_know_the_line_of_the_program(sample: list[Program]) -> None:
    program = next(program for program in sample if "F.relu(" in program.source)
    (node, *_) = fx.symbolic_trace(program.build()).graph.find_nodes(op="call_function", target=F.relu)
    assert "F.relu(" in str(node.source)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "target", [F.gelu, torch.cat, "permute", "softmax", operator.sub, operator.setitem, nn.Conv1d, nn.LSTM, torch.topk]
)
def test_requested_operations_are_frequent(target: Any) -> None:
    def uses(program: Program) -> bool:
        graph_module = fx.symbolic_trace(program.build())
        return any(
            (type(graph_module.get_submodule(node.target)) if node.op == "call_module" else node.target) == target
            for node in graph_module.graph.nodes
        )

    assert sum(map(uses, drawn(programs(ops=[target]), 20))) >= 10


@pytest.mark.thorough
def test_requested_sequences_are_drawn() -> None:
    chain = [(nn.Linear, torch.tanh, "transpose")]

    def follows(program: Program) -> bool:
        graph_module = fx.symbolic_trace(program.build())
        return any(
            node.target is torch.tanh and node.args[0].name.startswith("linear")
            for node in graph_module.graph.nodes
            if node.args and isinstance(node.args[0], fx.Node)
        )

    assert sum(map(follows, drawn(programs(ops=chain), 30))) >= 12


def attention(q: Any, k: Any, v: Any) -> Any:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / 8.0, dim=-1), v)


def layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)


FREQUENT: dict[str, tuple[dict[str, Any], int, int, tuple[str, ...]]] = {
    "a function of others": ({"ops": [scaled]}, 20, 10, (rf"{__name__}\.scaled\(",)),
    "a module of others": ({"ops": [Doubling]}, 20, 10, (rf"{__name__}\.Doubling\(\)",)),
    "functions that the grammar lacks": (
        {"ops": [torch.deg2rad, torch.logaddexp]}, 20, 5, (r"torch\.deg2rad\(", r"torch\.logaddexp\("),
    ),
    "parts of named tuples": (
        {"ops": [torch.median, operator.getitem]}, 60, 6, (r"(\w+) = [^\n]*median\(\w+, .*\b\1\[-?\d\]",),
    ),
    "rows of several operations": (
        {"ops": [torch.max, operator.getitem]}, 30, 5, (r"(max|min|sort|topk)\([^\n]*\)\[[01]\]",),
    ),
    "constants": ({"ops": [operator.truediv, F.pad], "constants": (8.25, "reflect")}, 60, 5, (r"/ 8\.25", "'reflect'")),
    "masks by infinities": (
        {"ops": ["masked_fill"], "constants": (-math.inf,)}, 40, 6, (r"masked_fill_?\([^\n]*-inf",),
    ),
    "layers of a program": (
        {"like": fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU()))}, 30, 10,
        (r"nn\.Conv2d.*nn\.BatchNorm2d|nn\.BatchNorm2d.*nn\.Conv2d",),
    ),
    "attention": ({"like": fx.symbolic_trace(attention)}, 20, 5, (r" / 8\.0\)",)),
    "a layer norm": ({"like": fx.symbolic_trace(layer_norm)}, 20, 5, (r"part0 := [^\n]*part0 \* part0",)),
    "what is positive": ({"like": fx.symbolic_trace(lambda x: torch.where(x > 0, x, 0.0))}, 20, 5, (r"\w > 0\)",)),
    "a mask of a pattern": (
        {"like": fx.symbolic_trace(lambda x, mask: torch.tanh(x.masked_fill(mask, 2.0)))}, 30, 15,
        (r"\.masked_fill\(.*torch\.tanh\(|torch\.tanh\(.*\.masked_fill\(",),
    ),
    "an argument of topk": ({"ops": [torch.topk]}, 50, 3, ("largest=False",)),
    "an argument of sort": ({"ops": ["sort"]}, 50, 3, ("descending=True",)),
    "an argument of AvgPool2d": ({"ops": [nn.AvgPool2d]}, 50, 3, ("count_include_pad=False",)),
    "an argument of Conv1d": ({"ops": [nn.Conv1d]}, 50, 3, ("padding_mode='",)),
    "an argument of addmm": ({"ops": [torch.addmm]}, 50, 3, (r"torch\.addmm\([^\n]*(alpha|beta)=",)),
    "a formula that an operation may stand for": (
        {"ops": [torch.rsqrt, "mean", "pow", operator.add, operator.mul]}, 60, 3,
        (r"torch\.rsqrt\([^\n]*\.pow\(2\)\.mean\(-1, keepdim=True\)",),
    ),
}  # fmt: skip
"""Requests: options of ``programs``, the number of programs, the least number with the request, its regexes."""
QUICK = list(FREQUENT)[:-6:2]


@pytest.mark.parametrize("name", thorough_except(QUICK, FREQUENT))
def test_requests_are_frequent_in_programs(name: str) -> None:
    options, count, least, forms = FREQUENT[name]
    sources = [program.source for program in drawn(programs(**options), count)]
    for form in forms:
        assert sum(re.search(form, source, re.DOTALL) is not None for source in sources) >= least, form


def test_requested_operations_follow_each_other() -> None:
    def follows(program: Program) -> bool:
        captured = fx.symbolic_trace(program.build(), program.concrete_args)
        gelus = captured.graph.find_nodes(op="call_function", target=F.gelu)
        return any(getattr(node.args[0], "target", None) is torch.tanh for node in gelus)

    assert sum(map(follows, drawn(programs(ops=[torch.tanh, F.gelu]), 30))) >= 6


@pytest.mark.thorough
def test_requested_layers_run_in_parallel() -> None:
    examples = asked_for(nn.Linear)
    assert sum("parallel-layers" in program.features for program in examples) >= len(examples) * 0.4


def test_capture_needs_to_know_which_optional_inputs_are_given(sample: list[Program]) -> None:
    with_options = [program for program in sample if program.concrete_args]
    assert with_options
    for program in with_options:
        inputs = program.inputs.copies()
        fx.symbolic_trace(program.build(), program.concrete_args)(*inputs.args, **inputs.kwargs)


def test_functions_without_a_spelling_in_source_are_not_requested() -> None:
    assert choices_for(lambda x: x) == ()


@pytest.mark.parametrize("function", [torch.arange, torch.zeros, torch.full, torch.linspace])
def test_a_tensor_of_numbers_is_made_of_sizes_as_a_trace_records_no_other(function: Any) -> None:
    choices = choices_for(function)
    assert choices and all(choice.row.operands for choice in choices)


def test_functions_of_numbers_are_not_tried_on_tensors() -> None:
    assert choices_for(math.isfinite) == ()
    assert choices_for(math.sqrt)


@pytest.mark.thorough
def test_a_failure_shrinks_to_the_operation() -> None:
    def fails(program: Program) -> bool:
        return re.search(r"= F\.softmax\(\w+, dim=-?\d\)\n", program.source) is not None

    program = smallest(fails, ops=[F.softmax])
    assert program.source.split("def forward")[1].split("\n\n")[0].splitlines()[1:] == [
        "        a = F.softmax(x, dim=-1)",
        "        return a",
    ]


def test_examples_print_their_source(simplest: Program) -> None:
    assert repr(simplest) == f"Program:\n{simplest.source}"


def test_the_smallest_program_returns_its_input(simplest: Program) -> None:
    assert simplest.source == (
        "import torch\n"
        "from torch import nn\n\n\n"
        "class Program(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x\n\n\n"
        "def build():\n"
        "    torch.default_generator.manual_seed(0)\n"
        "    return Program().eval()\n\n\n"
        "def inputs():\n"
        "    return (torch.ones(2, 2),), {}\n"
    )


def test_the_same_seed_draws_the_same_programs() -> None:
    first, second = ([program.source for program in drawn(programs(), 20)] for _ in range(2))
    assert first == second


@few
@given(tensors(shapes(least=1, most=3), extreme_values=True))
def test_tensors_have_the_asked_rank(tensor: torch.Tensor) -> None:
    assert 1 <= tensor.dim() <= 3


def test_tensors_with_extreme_values_are_not_finite_at_times() -> None:
    assert any(not tensor.isfinite().all() for tensor in drawn(tensors(extreme_values=True), 200))


def test_every_spelling_calls_something() -> None:
    for row in ROWS:
        for spelling in row.spellings:
            assert targets_of(spelling, len(row.operands)), spelling


def test_a_named_tuple_is_among_the_results(sample: list[Program]) -> None:
    results = []
    for program in sample:
        inputs = program.inputs.copies()
        results.append(type(program.build()(*inputs.args, **inputs.kwargs)))
    assert {Pair, list, tuple, dict, torch.Tensor} <= set(results)


def test_an_expression_is_imitated_as_a_whole_constants_included() -> None:
    like = fx.symbolic_trace(lambda x, y: x * 0.5 * (1.0 + torch.erf(x / 1.25)).add(y, alpha=2))
    whole = "({0} * 0.5) * (1.0 + torch.erf(({0} / 1.25))).add({1}, alpha=2)"
    sources = [re.sub(r"\b[a-z]\b(?!\()", "_", program.source) for program in drawn(programs(like=like), 40)]
    assert sum(whole.format("_", "_") in source for source in sources) >= 8


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spellings[0])
def test_every_argument_of_a_row_has_its_place_in_every_spelling(row: Production) -> None:
    for spelling in row.spellings:
        template = written(spelling.removeprefix("module "), len(row.operands))
        for argument in row.arguments:
            assert "{*}" in template or f"{{{argument.name}}}" in template, (spelling, argument.name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spellings[0])
def test_every_operand_of_a_row_is_in_every_spelling(row: Production) -> None:
    for spelling in row.spellings:
        template = row.call if spelling.startswith("nn.") else written(spelling, len(row.operands))
        assert all(f"{{{number}}}" in template for number in range(len(row.operands))), spelling


@pytest.mark.thorough
def test_layers_get_nothing_that_pytorch_answers_wrongly_or_crashes_on() -> None:
    rows = [row for row in ROWS if any("nn.Conv" in spelling for spelling in row.spellings)]
    assert len(rows) > 10
    shapes = [(2, 0, 3), (2, 0, 3, 3), (2, 0, 3, 3, 3)]
    assert not any(row.operands[0].fits(torch.ones(shape), []) for row in rows for shape in shapes)
    grouped = [row for row in ROWS if "nn.GroupNorm" in row.spellings]
    last = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert [row.operands[0].fits(value, []) for row in grouped for value in (last, torch.ones(2, 3, 4, 4))] == [
        False, True, False, True,
    ]  # fmt: skip
    convolutions = [
        module
        for program in drawn(programs(ops=[nn.Conv1d, nn.Conv2d]), 150 if MANY else 60)
        for module in program.build().modules()
        if isinstance(module, nn.Conv1d | nn.Conv2d)
    ]
    assert any(max(layer.dilation) > 1 for layer in convolutions)
    assert any(max(layer.stride) > 1 for layer in convolutions)
    assert not any(max(layer.dilation) > 1 and max(layer.stride) > 1 for layer in convolutions)


def test_first_arguments_are_written_with_and_without_their_keywords() -> None:
    source = "".join(program.source for program in drawn(programs(ops=[torch.flatten, F.softmax, nn.MaxPool2d]), 40))
    for named, unnamed in (
        (r"torch\.flatten\(\w+, start_dim=", r"torch\.flatten\(\w+, -?\d"),
        (r"F\.softmax\(\w+, dim=", r"F\.softmax\(\w+, -?\d"),
        (r"nn\.MaxPool2d\(kernel_size=", r"nn\.MaxPool2d\(\d"),
    ):
        assert re.search(named, source)
        assert re.search(unnamed, source)


def test_some_modules_get_requested_names() -> None:
    examples = drawn(programs(ops=[nn.GELU], constants=("act", "forward", "class", "call_module")), 40)
    assert sum("self.act = " in program.source for program in examples) >= 3
    assert not any(re.search(r"self\.(forward|class|call_module) =", program.source) for program in examples)


@few
@given(st.data())
def test_overlapping_tensors_are_not_written_and_constants_get_no_random_numbers(data: st.DataObject) -> None:
    builder = ProgramBuilder(Choices(data.draw), "Program")
    plain, overlapping = Value("x", torch.ones(4)), Value("y", torch.ones(4).unfold(0, 2, 1))
    constant = Value("self.buffer", torch.ones(4), traced=False)

    def is_appended(text: str, values: list[Value], run: Callable[[list[Any]], Any], tag: str) -> bool:
        return builder.append(text, values, run, frozenset({tag}))

    assert is_appended("x.add_(1)", [plain], lambda given: given[0].add_(1), "in-place")
    assert not is_appended("y.add_(1)", [overlapping], lambda given: given[0].add_(1), "in-place")
    assert is_appended("draw(x, x)", [plain, plain], lambda given: torch.rand_like(given[1]), "random")
    assert not is_appended("draw(x, self.buffer)", [plain, constant], lambda given: torch.rand_like(given[1]), "random")


@few
@given(st.data())
def test_values_that_may_be_an_input_are_not_augmented(data: st.DataObject) -> None:
    builder = ProgramBuilder(Choices(data.draw), "Program")
    builder.values.append(Value("x", torch.ones(3, 2).t()))

    def is_augmented(text: str, run: Callable[[Any], Any], *tags: str) -> bool:
        assert builder.append(text, builder.values[:1], lambda given: run(given[0]), frozenset(tags))
        operands = builder.values[-1:]
        return builder.append("+=", operands, lambda given: given[0].add_(1), AUGMENTED)

    assert is_augmented("x + 1", lambda x: x + 1)
    assert not is_augmented("x.contiguous()", lambda x: x.contiguous(), "copy")


def test_layers_in_chains_are_called_again() -> None:
    examples = drawn(programs(ops=[nn.Linear, operator.mul]), 30)
    assert sum("shared-module" in program.features for program in examples) >= 10


@pytest.mark.thorough
def test_inputs_that_stay_none_come_last(sample: list[Program]) -> None:
    for program in sample:
        captured = fx.symbolic_trace(program.build(), program.concrete_args)
        names = [node.op == "placeholder" for node in captured.graph.nodes]
        assert names == sorted(names, reverse=True)


@few
@given(st.data())
def test_a_failed_attempt_leaves_no_trace(data: st.DataObject) -> None:
    """Another value may soon have its memory: programs would depend on addresses."""
    builder = ProgramBuilder(Choices(data.draw), "Program")
    builder.input(TensorRecipe((2, 3)))
    states = (builder.buffers, builder.read, builder.written)

    def make_a_buffer_and_fail() -> bool:
        buffer = builder.attribute(TensorRecipe((2, 3)), buffer=True)
        builder.append("made.add_(1)", [buffer], lambda objects: objects[0] + 1)
        assert all(states[:2])
        return False

    assert not builder.attempt(make_a_buffer_and_fail)
    assert not any(states)


@pytest.mark.parametrize("elements", ["ones", "waves", "swings", "depths", "counts", (2.0, 3.0)])
def test_a_complex_tensor_is_written_down_and_read_back(elements: Any) -> None:
    text = TensorRecipe((2, 3), torch.complex64, elements).text
    tensor = eval(text, {"torch": torch})
    assert (tensor.dtype, tensor.shape) == (torch.complex64, (2, 3))
    ((_, recipe),) = tensors_in(ast.parse(text))
    again = eval(recipe.text, {"torch": torch})
    assert (again.dtype, again.shape) == (torch.complex64, (2, 3))


@pytest.mark.thorough
@pytest.mark.parametrize("ops", [["var"], [F.kl_div]])
def test_programs_do_nothing_that_torch_warns_of_once_or_always(ops: list[Any]) -> None:
    sources = [program.source for program in drawn(programs(ops=ops), 40)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = drawn(programs(ops=ops), 40)
        assert [program.source for program in again] == sources
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        for program in again:
            inputs = program.inputs.copies()
            program.build()(*inputs.args, **inputs.kwargs)
    finally:
        torch.set_warn_always(always)
    assert any(f"{name}(" in source for source in sources for name in ("var", "kl_div"))


@pytest.mark.thorough
def test_requested_operations_follow_each_other_in_the_opposite_order_too() -> None:
    """A pass looks from a result back to its operands, and to their other readers."""

    def ends_where_it_began(program: Program) -> bool:
        captured = fx.symbolic_trace(program.build(), program.concrete_args)
        sums = captured.graph.find_nodes(op="call_function", target=torch.sub)
        return any(
            getattr(other, "target", None) is torch.tanh
            and getattr(other.args[0], "target", None) is torch.neg
            and other.args[0].args[0] is operand
            for node in sums
            if len(node.args) == 2
            for operand, other in (node.args, node.args[::-1])
        )

    count = 200 if MANY else 100
    examples = drawn(programs(ops=[torch.sub, torch.tanh, torch.neg]), count)
    assert sum(map(ends_where_it_began, examples)) >= count / 50


@pytest.mark.thorough
def test_a_layer_beside_another_may_differ_in_one_setting() -> None:
    def is_varied(program: Program) -> bool:
        layers = re.findall(r"nn\.Linear\((.*)\)", program.source)
        return any({*text.split(", ")} ^ {*other.split(", ")} == {"bias=False"} for text in layers for other in layers)

    examples = asked_for(nn.Linear)
    assert sum(map(is_varied, examples)) >= len(examples) / 20


def test_a_line_is_written_once_more_with_another_constant() -> None:
    def is_varied(program: Program) -> bool:
        calls = re.findall(r"F\.softmax\((\w+), dim=(-?\d)", program.source)
        return any(first[0] == second[0] and first[1] != second[1] for first in calls for second in calls)

    assert sum(map(is_varied, drawn(programs(ops=[F.softmax]), 60))) >= 6


@pytest.mark.parametrize("row", FORMULAS, ids=lambda row: row.spellings[0])
def test_every_formula_has_siblings_that_are_other_formulas(row: Production) -> None:
    for spelling in row.spellings:
        all_siblings = [sibling for kind in siblings(row, spelling) for sibling in kind]
        texts = [sibling.spellings[0] for sibling in all_siblings]
        assert len(texts) >= 3
        assert spelling not in texts
        for sibling, text in zip(all_siblings, texts, strict=True):
            holes = set(re.findall(r"\{(\w+)\}", text))
            names = {argument.name for argument in sibling.arguments}
            assert holes <= names | {str(number) for number in range(len(sibling.operands))}, text


ATTENTION = (operator.matmul, torch.matmul, F.softmax, torch.softmax, "transpose", operator.mul)
"""Operations that a pass which fuses attention looks for."""
RMS_NORM = ("pow", "mean", torch.rsqrt, operator.add, operator.mul)
"""Operations that a pass which fuses a normalization looks for."""


@pytest.mark.thorough
@pytest.mark.parametrize("ops", [ATTENTION, RMS_NORM], ids=["attention", "rms norm"])
def test_most_programs_have_siblings_of_a_formula_if_its_functions_are_requested(ops: tuple[Any, ...]) -> None:
    examples = asked_for(*ops)
    kinds = "number argument order operand cast mask use"
    count = {kind: sum(f"another {kind}" in program.features for program in examples) for kind in kinds.split()}
    assert (
        sum(any(feature.startswith("another ") for feature in program.features) for program in examples)
        >= len(examples) * 0.6
    )
    assert {kind: times for kind, times in count.items() if times < len(examples) / 50} == {}


ATTENDS = r"(?:@|bmm\(|matmul\()"
"""A product of matrices, in all spellings of formulas."""
PARTS = {
    "attention": (
        ATTENTION,
        {
            "another dimension of the softmax": rf"softmax\(.*{ATTENDS}.*dim=(?!-1\))",
            "other dimensions of the transpose": rf"softmax\(.*{ATTENDS}.*transpose\((?!-2, -1|1, 2)",
            "a constant scale": rf"softmax\(.*{ATTENDS}.* \* (0\.5|0\.125)",
            "a cast": rf"softmax\(.*{ATTENDS}.*\.(half|double)\(",
            "a mask": rf"softmax\(.*{ATTENDS}.*\.(masked_fill|where)\(.*dim=",
            "another use": rf"\w, \w = .*softmax\(.*{ATTENDS}.*, inner",
        },
    ),
    "rms norm": (
        RMS_NORM,
        {
            "another dimension": r"rsqrt\(.*\.pow\(2\).*\.mean\((?!-1, )",
            "a lost dimension": r"rsqrt\(.*\.pow\(2\).*\.mean\(-1\)",
            "another power": r"rsqrt\(.*\.pow\((?!2\)).*\.mean\(-1, ",
            "another value": r"= (\w) \* torch\.rsqrt\((?!\1\b)\w\.pow\(2\)",
            "a cast": r"rsqrt\(.*\.(half|double)\(.*\.mean\(",
        },
    ),
}
"""Formulas with siblings that are visible in the source."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", PARTS)
def test_each_part_of_a_formula_is_another_at_times(name: str) -> None:
    ops, forms = PARTS[name]
    source = [program.source for program in asked_for(*ops)]
    count = {part: sum(re.search(form, text) is not None for text in source) for part, form in forms.items()}
    assert {part: times for part, times in count.items() if not times} == {}


OTHERS = (*map(of_batch, BATCHES), *(name for name in VARIANTS if name not in OTHER_VALUES))
"""Inputs that laws call programs with beside their own."""


def refused(program: Program) -> dict[str, str]:
    """The variants of its inputs that a check of a program refuses, with the message."""
    messages: dict[str, str] = {}
    subject = Subject.of(program)
    for name in OTHERS:
        if subject.has(name):
            inputs = subject.arguments(name).copies()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    program.build()(*inputs.args, **inputs.kwargs)
                except Exception as error:
                    last = traceback.extract_tb(error.__traceback__)[-1]
                    is_own = isinstance(error, ValueError) and last.filename.startswith("<program")
                    is_own = is_own and "to unpack" not in str(error)
                    if isinstance(error, AssertionError) or is_own:
                        messages[name] = str(error)
    return messages


@pytest.mark.thorough
def test_checks_refuse_variants_of_the_inputs_that_they_let_pass(sample: list[Program]) -> None:
    examples = asked_for(getattr(torch, "_assert"))  # noqa: B009
    messages = [refused(program) for program in examples]
    assert sum(map(bool, messages)) >= len(examples) / 4
    assert sum(map(bool, map(refused, sample))) >= len(sample) / 50
    for name in OTHERS:
        assert sum(name in each for each in messages) >= len(examples) / 50, name
    assert sum("got" in text for each in messages for text in each.values()) >= len(examples) / 50
    assert sum(len(re.findall(r"assert|raise ValueError", each.source)) > 1 for each in examples) >= len(examples) * 0.3


def test_checks_are_captured_with_their_messages(sample: list[Program]) -> None:
    for program in asked_for(getattr(torch, "_assert"))[:40]:  # noqa: B009
        captured = fx.symbolic_trace(program.build(), program.concrete_args)
        inputs = program.inputs.copies()
        captured(*inputs.args, **inputs.kwargs)
        for name, message in refused(program).items():
            arguments = Subject.of(program).arguments(name)
            with pytest.raises(AssertionError) as caught:
                captured(*arguments.copies().args, **arguments.copies().kwargs)
            form = re.escape(re.sub(r"\{.*?\}", "<>", str(caught.value))).replace("<>", ".*")
            assert re.fullmatch(form, message) or not message

"""pytest_fx.harness.run: the effects of one call of a program, and the memory and layout of its output."""

import pytest
import torch
from judged import violation_of, violations_of
from torch import nn

from fx.passes import approximate, close, exact
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.run import Runner, layout_notes, stride_class
from pytest_fx.harness.subject import Subject


class Program(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def seen(program, *args, dtype=torch.float32, **kwargs):
    return Runner(Program(program))(Arguments(args, kwargs), dtype)


def test_an_output_that_is_a_view_of_a_parameter_is_read_after_that_was_written_to():
    linear = nn.Linear(2, 4)
    run = Runner(linear, call=lambda: linear.weight.chunk(2))(Arguments(()), torch.float32)
    with torch.no_grad():
        linear.weight.add_(0)
    assert all(part.isfinite().all() for part in run.output)


def test_outputs_of_a_program_that_writes_are_of_the_kinds_that_it_returns():
    norm = nn.BatchNorm1d(2)
    size, largest, _ = Runner(norm, call=lambda x: (x.size(), x.max(0), norm(x)))(
        Arguments((torch.ones(3, 2),)), torch.float32
    ).output
    assert (type(size), type(largest)) == (torch.Size, torch.return_types.max)


def test_inputs_are_known_as_the_call_left_them_and_are_copies():
    def program(x, pair, *, mask):
        pair[1].mul_(3)
        mask.fill_(True)
        return x + 1

    x, mask = torch.ones(2), torch.zeros(2, dtype=torch.bool)
    observed = seen(program, x, (torch.ones(1), torch.ones(1)), mask=mask)
    assert {place: tensor.tolist() for place, tensor in observed.inputs.items()} == {
        "[0]": [1.0, 1.0],
        "[1][0]": [1.0],
        "[1][1]": [3.0],
        "['mask']": [True, True],
    }
    assert mask.tolist() == [False, False]


def test_outputs_that_share_memory_with_inputs_and_with_each_other_are_known():
    def program(x, y):
        z = y * 2
        return {"view": x.view(-1), "first": z[0], "second": z, "own": y + 1, "empty": x[:0]}

    observed = seen(program, torch.ones(2, 2), torch.ones(2))
    assert observed.shared == (("['view']", "input[0]"), ("['second']", "output['first']"))


def test_a_program_that_draws_random_numbers_gives_the_same_output_twice():
    def program(x):
        return x + torch.rand(3)

    first = seen(program, torch.ones(3))
    torch.rand(1)
    state = torch.get_rng_state()
    second = seen(program, torch.ones(3))
    assert torch.equal(first.output, second.output)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_gradients_are_recorded_and_an_error_is_the_result_of_the_call():
    assert not Runner(nn.Linear(2, 2))(Arguments((torch.ones(1, 2),)), torch.float32).output.requires_grad
    assert isinstance(seen(lambda x: x.no_such_method(), torch.ones(1)).error, AttributeError)


def test_new_tensors_have_the_dtype_requested():
    assert seen(lambda: torch.zeros(1), dtype=torch.float64).output.dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


class Counting(nn.Module):
    def __init__(self, elements=2):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(elements))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.factor.data.mul_(2)
        return self.calls.add_(1), x * self.factor


@pytest.mark.parametrize("elements", [2, 2**17])
def test_writes_of_a_call_to_the_state_are_reported_and_undone(elements):
    module = Counting(elements)
    module.factor.data
    runner = Runner(module)
    for _ in range(2):
        run_result = runner(Arguments((torch.ones(1),)), torch.float32)
        assert run_result.output[0].item() == 1
        assert run_result.state["calls"].item() == 1
    assert module.calls.item() == 0
    assert ("factor" in run_result.state) == (elements == 2)  # in a large tensor only writes that torch counts are seen


def test_layouts_that_differ_are_put_into_sentences():
    x = torch.ones(2, 3)
    first, other = (x.t(), x), (x.t().contiguous(), x.clone())
    assert layout_notes(first, first) == []
    assert layout_notes(first, other) == ["output[0] is not contiguous in eager and contiguous in the program"]


@pytest.mark.parametrize(
    "tensor, name",
    [
        (torch.ones(2, 3), "contiguous"),
        (torch.ones(2, 3).t(), "not contiguous"),
        (torch.ones(1, 3).t(), "contiguous"),
        (torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last), "channels last"),
        (torch.ones(2, 3, 4, 4, 4).contiguous(memory_format=torch.channels_last_3d), "channels last"),
        (torch.ones(2, 1, 4, 4).contiguous(memory_format=torch.channels_last), "contiguous"),
        (torch.ones(0, 3), "contiguous"),
        (torch.ones(2, 3)[:, ::2], "not contiguous"),
        (torch.eye(2).to_sparse(), "contiguous"),
    ],
)
def test_strides_fall_into_three_classes(tensor, name):
    assert stride_class(tensor) == name


class Writing(nn.Module):
    def forward(self, x, *, state):
        state.add_(x)
        return x * 2


def writing():
    return Subject(
        "writing", Writing(), lambda input_set: Arguments((torch.arange(4.0) + input_set,), {"state": torch.ones(4)})
    )


def lose_the_write(program):
    for node in program.graph.find_nodes(op="call_method", target="add_"):
        program.graph.erase_node(node)
    program.recompile()


def write_more(program):
    for node in program.graph.find_nodes(op="call_method", target="add_"):
        with program.graph.inserting_after(node):
            program.graph.call_method("mul_", (node, 1.5))
    program.recompile()


@pytest.mark.parametrize("pass_", [lose_the_write, write_more])
@pytest.mark.parametrize("contract", [exact, close, approximate(60)])
def test_the_contract_also_applies_to_written_inputs(pass_, contract):
    (violation, *_) = [
        candidate for candidate in violations_of(writing(), pass_, contract, "own") if "inputs" in candidate.law
    ]
    message = str(violation)
    assert message.startswith("law 'inputs untouched': own changes what writing writes to its inputs")
    assert "\n  where  input['state']" in message


def test_a_write_that_is_kept_keeps_the_contract():
    for contract in (exact, close, approximate(60)):
        assert not violations_of(writing(), lambda program: None, contract)


def test_a_new_write_to_an_input_is_a_violation_that_shows_both_values():
    def write(program):
        (x,) = program.graph.find_nodes(op="placeholder")
        with program.graph.inserting_after(next(iter(x.users))):
            program.graph.call_method("zero_", (x,))
        program.recompile()

    class Doubling(nn.Module):
        def forward(self, x):
            return x * 2

    subject = Subject("doubling", Doubling(), lambda input_set: Arguments((torch.ones(300),)))
    message = str(violation_of(subject, write, exact))
    assert "where  input[0][0], the worst of 300 wrong in 300" in message
    assert "value  eager 1.0, transformed 0.0\n         eager in float64 1.0" in message


LAYOUT = """
import torch

def transpose(program):
    output = program.graph.output_node()
    with program.graph.inserting_before(output):
        once = program.graph.call_method("t", (output.args[0],))
        dense = program.graph.call_method("contiguous", (once,))
        output.args = (program.graph.call_method("t", (dense,)),)
    program.recompile()
"""


def test_another_layout_is_a_warning_that_can_be_made_a_failure(pytester):
    pytester.makepyfile(layouts=LAYOUT)
    options = ("--fx-model", "mlp", "--fx-batch", "3", "--fx-pass", "layouts:transpose", "-k", "test_pass_keeps_its")
    result = pytester.runpytest(*options, "-W", "default")
    assert (result.parseoutcomes()["passed"], result.ret) == (1, 0)
    result.stdout.fnmatch_lines(
        "*MemoryLayoutWarning: transpose on mlp: output is contiguous in eager and not contiguous in the program"
    )
    strict = pytester.runpytest(*options, "-W", "error::pytest_fx.errors.MemoryLayoutWarning")
    assert strict.parseoutcomes()["failed"] == 1


class CountingInAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.sizes, self.kept = 0, [], None

    def forward(self, x):
        self.calls += 1
        self.sizes.append(len(x))
        before, self.kept = self.kept, x.mean()
        self.new = True
        return x * self.calls + len(self.sizes) + (0 if before is None else before)


def test_a_runner_restores_attributes_of_modules_and_keeps_them_between_calls_in_a_row():
    program, arguments = CountingInAttributes(), Arguments((torch.ones(2),))
    sizes, runner = program.sizes, Runner(program, restores_attributes=True)
    for _ in range(2):
        first, second = runner.in_a_row([arguments, arguments], torch.float32)
        assert (first.output[0], second.output[0]) == (2, 5)
        assert first.writes
        assert (program.calls, program.kept, hasattr(program, "new")) == (0, None, False)
        assert program.sizes is sizes
        assert not sizes
    assert not Runner(nn.ReLU())(arguments, torch.float32).writes

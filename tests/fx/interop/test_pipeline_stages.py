"""Programs divided into stages, each of which takes what the one before it returns."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fx
from fx.analysis.cost import estimate_cost
from fx.errors import PassError
from fx.interop import split_into_stages
from fx.interop.stage_cuts import Division
from fx.passes import get_pass
from model_zoo import get_model


def run(stages, *inputs, as_estimated=True):
    """Run the stages one after the other, as processes do that send tensors alone, and return the result."""
    values = inputs
    for stage in stages:
        stage.module.graph.lint()
        values = stage.module(*values)
        if stage is not stages[-1]:
            values = values if isinstance(values, tuple) else (values,)
            assert all(isinstance(value, Tensor) for value in values)
            sent = sum(value.numel() * value.element_size() for value in values)
            assert sent == stage.sent or not as_estimated
            values = tuple(value.detach().clone() for value in values)
    return values


def names(stages):
    return [" ".join(node.name for node in stage.operations) for stage in stages]


def assert_same(actual, expected):
    first, other = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(first) == len(other) and all(map(torch.equal, first, other))


def layers(*widths):
    return nn.Sequential(*(nn.Linear(*pair) for pair in itertools.pairwise(widths)))


def test_stages_are_stretches_of_the_program_that_cost_the_same():
    program = fx.symbolic_trace(layers(*[16] * 7))
    stages = split_into_stages(program, 3, (torch.ones(2, 16),))
    assert names(stages) == ["_0 _1", "_2 _3", "_4 _5"]
    assert len({stage.cost for stage in stages}) == 1
    assert [(stage.number, stage.state, stage.sent) for stage in stages] == [
        (0, 2 * 17 * 16 * 4, 128),
        (1, 2 * 17 * 16 * 4, 128),
        (2, 2 * 17 * 16 * 4, 0),
    ]
    x = torch.randn(2, 16)
    assert torch.equal(run(stages, x), program(x))


def test_a_stage_shares_parameters_with_the_program_under_their_paths():
    program = fx.symbolic_trace(layers(4, 4, 4))
    first, second = split_into_stages(program, 2, (torch.ones(2, 4),))
    assert [*dict(first.module.named_parameters()), *dict(second.module.named_parameters())] == [
        "0.weight", "0.bias", "1.weight", "1.bias",
    ]  # fmt: skip
    assert second.module.get_parameter("1.weight") is program.get_parameter("1.weight")


def test_the_costliest_layer_is_alone_and_measured_seconds_replace_estimates():
    program = fx.symbolic_trace(layers(*[16] * 5))
    x = torch.ones(2, 16)
    nodes = {node.name: node for node in program.graph.nodes}
    slow = {nodes["_0"]: 5.0, nodes["_1"]: 1, nodes["_2"]: 1.5, nodes["_3"]: 1}
    stages = split_into_stages(program, 2, (x,), seconds=slow)
    assert names(stages) == ["_0", "_1 _2 _3"]
    assert [stage.cost for stage in stages] == [5.0, 3.5]


def test_beside_a_stage_that_costs_most_the_others_are_even():
    def function(x):
        y = x.sin().view(4, 4).view(16).view(2, 8)
        return y[:1].view(8)  # the cut after the element would send least

    program = fx.symbolic_trace(function)
    nodes = [node for node in program.graph.nodes if node.op.startswith("call")]
    seconds = dict(zip(nodes, (9.0, 1.0, 1.0, 1.0, 1.0, 1.0), strict=True))
    stages = split_into_stages(program, 3, (torch.ones(16),), seconds=seconds)
    assert sorted(stage.cost for stage in stages) == [2.0, 3.0, 9.0]


def test_values_for_a_later_stage_pass_through_the_stages_between():
    def function(x, y):
        z = torch.relu(x)
        for _ in range(4):
            z = torch.sin(z)
        return z + y, x

    program = fx.symbolic_trace(function)
    stages = split_into_stages(program, 3, (torch.ones(2), torch.ones(2)))
    assert [[node.name for node in stage.module.graph.find_nodes(op="placeholder")] for stage in stages] == [
        ["x", "y"], ["x", "y", "sin"], ["x", "y", "sin_2"],
    ]  # fmt: skip
    x, y = torch.randn(2), torch.randn(2)
    assert_same(run(stages, x, y), function(x, y))


def test_numbers_that_follow_from_sizes_are_made_again_where_they_are_used():
    def function(x):
        rows = x.shape[0] * 2
        for _ in range(4):
            x = torch.sin(x)
        return x.reshape(rows, -1)

    program = fx.symbolic_trace(function)
    stages = split_into_stages(program, 2, (torch.ones(4, 6),))
    assert [node.name for node in stages[1].module.graph.find_nodes(op="placeholder")] == ["x", "sin_1"]
    x = torch.randn(3, 4)  # another batch
    assert torch.equal(run(stages, x, as_estimated=False), function(x))


def test_a_parameter_that_several_stages_fetch_stays_in_the_first_and_its_gradient_is_one_sum():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(8, 8))
            self.scale = torch.tensor(2.0)

        def forward(self, x):
            x = torch.relu(x @ self.table * self.scale)
            return torch.relu(x @ self.table.t() * self.scale)

    torch.manual_seed(0)
    program = fx.symbolic_trace(Tied())
    stages = split_into_stages(program, 2, (torch.ones(2, 8),))
    assert [list(dict(stage.module.named_parameters())) for stage in stages] == [["table"], []]
    assert stages[0].sent == (8 * 8 + 2 * 8) * 4
    x = torch.randn(2, 8)
    assert torch.equal(run(stages, x), program(x))
    program(x).sum().backward()
    expected = program.table.grad.clone()
    program.table.grad = None
    sent = stages[0].module(x)
    received = [value.detach().requires_grad_() for value in sent]
    stages[1].module(*received).sum().backward()
    torch.autograd.backward(sent, [value.grad for value in received])
    assert torch.allclose(program.table.grad, expected)


@pytest.mark.parametrize("name, how", [("resnet_tiny", None), ("vit_small", None), ("gpt2_small", "canonicalize")])
def test_models_of_the_zoo_compute_the_same_in_stages(name, how):
    model = get_model(name)
    inputs = model.example_inputs(2)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    program = fx.symbolic_trace(model.build())
    if how is not None:
        program = get_pass(how)(program)
    stages = split_into_stages(program, 3, inputs)
    assert_same(run(stages, *inputs), program(*inputs))
    largest = max(stage.cost for stage in stages) / sum(stage.cost for stage in stages)
    assert largest < 0.45  # a third at best


def test_gradients_count_where_they_are_requested():
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    x = (torch.ones(8, 64),)
    costs = [sum(stage.cost for stage in split_into_stages(program, 2, x, backward=way)) for way in (False, True)]
    assert costs[1] > 1.5 * costs[0]


def test_ties_in_cost_are_broken_by_memory_then_by_bytes_sent():
    program = fx.symbolic_trace(lambda x: x.exp().sum(1).repeat(1, 64).neg())
    nodes = {node.name: node for node in program.graph.nodes}
    slow = dict.fromkeys((nodes["exp"], nodes["repeat"]), 1.0)
    stages = split_into_stages(program, 2, (torch.ones(8, 8),), seconds=slow)
    assert names(stages) == ["exp sum_1", "repeat neg"] and stages[0].sent == 32  # after exp it would be 256
    program = fx.symbolic_trace(layers(4, 4, 64, 4, 4))
    nodes = [node for node in program.graph.nodes if node.op.startswith("call")]
    even = dict.fromkeys((nodes[0], nodes[3]), 1.0)
    assert [s.state for s in split_into_stages(program, 2, (torch.ones(1, 4),), seconds=even)] == [1360, 1120]


def test_a_limit_of_memory_holds_for_each_stage_or_is_refused_with_the_least_that_they_take():
    program = fx.symbolic_trace(layers(4, 4, 4, 4, 64, 64))
    nodes = [node for node in program.graph.nodes if node.op.startswith("call")]
    x = (torch.ones(1, 4),)
    slow = {nodes[0]: 3.0, nodes[4]: 1.0}
    assert names(split_into_stages(program, 2, x, seconds={**slow, nodes[3]: 3.0})) == ["_0", "_1 _2 _3 _4"]
    limited = split_into_stages(program, 2, x, seconds={**slow, nodes[3]: 3.0}, memory=17_500)
    assert names(limited) == ["_0 _1 _2 _3", "_4"]
    assert all(stage.state + stage.activations <= 17_500 for stage in limited)
    with pytest.raises(PassError) as caught:
        split_into_stages(program, 2, x, memory=10_000)
    assert "no 2 stages of the program fit into 9.766 KiB each" in str(caught.value)
    assert "the largest one takes 16.5 KiB or more" in str(caught.value)


def least_largest(each, places, stages, most):
    """The best by trying all."""
    results = []
    for cuts in itertools.combinations(places[1:-1], stages - 1):
        ends = [0, *cuts, len(each)]
        sums = [sum(each[low:high]) for low, high in itertools.pairwise(ends)]
        widths = [high - low for low, high in itertools.pairwise(ends)]
        if max(widths) <= most:
            results.append((max(sums), cuts))
    return min(results)[0] if results else None


@pytest.mark.parametrize("seed", range(20))
def test_no_division_is_better_than_the_one_that_is_found(seed):
    draws = random.Random(seed)
    each = [float(draws.randint(0, 9)) for _ in range(draws.randint(4, 10))]
    places = [0, *sorted(draws.sample(range(1, len(each)), draws.randint(2, len(each) - 1))), len(each)]
    stages, most = draws.randint(1, 4), draws.randint(2, 6)
    if stages > len(places) - 1:
        stages = 2
    division = Division(places, stages)
    division.limit([1.0] * len(each), most)
    expected = least_largest(each, places, stages, most)
    assert division.least_largest(each) == expected
    before = [float(draws.randint(1, 9)) for _ in range(len(each) + 1)]
    least = division.least_sum(before)
    if expected is None:
        assert least is None
    else:
        assert set(least) <= set(places[1:-1]) and len(least) == stages - 1
        ways = [
            sum(before[cut] for cut in cuts)
            for cuts in itertools.combinations(places[1:-1], stages - 1)
            if max(high - low for low, high in itertools.pairwise([0, *cuts, len(each)])) <= most
        ]
        assert sum(before[cut] for cut in least) == min(ways)


# Operations that are not split, and refused programs.


def refused(function, stages, *inputs, **options):
    program = function if isinstance(function, fx.GraphModule) else fx.symbolic_trace(function)
    with pytest.raises(PassError) as caught:
        split_into_stages(program, stages, inputs, **options)
    return str(caught.value)


def test_modules_that_share_parameters_stay_in_one_stage():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(4, 4))
    program = fx.symbolic_trace(model)
    x = torch.ones(2, 4)
    stages = split_into_stages(program, 2, (x,))
    assert names(stages)[0].startswith("_0 _1 _2")
    message = refused(program, 4, x)
    assert "the program can be divided into 3 stages, not into 4" in message
    assert "modules on both sides share the parameters of 0, whose gradients are one sum" in message
    assert "after the pass canonicalize" in message


def test_a_value_is_not_sent_before_a_write_to_it():
    def function(x):
        y = torch.sin(x)
        z = y.view(-1)
        y.mul_(2)
        return torch.cos(z).cos()

    program = fx.symbolic_trace(function)
    stages = split_into_stages(program, 3, (torch.ones(2, 2),))
    assert names(stages)[0] == "sin view mul_"
    x = torch.randn(2, 2)
    assert torch.equal(run(stages, x), function(x))
    assert "`%mul_` after it writes to the memory of `%y`" in refused(function, 4, x).replace("%sin", "%y")


def test_a_buffer_that_is_written_to_stays_in_one_stage_and_others_are_in_each():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("two", torch.tensor(2.0))

        def forward(self, x):
            x = x * self.two
            x = x + self.count
            self.count.add_(1)
            return (x * self.two).sin()

    class Recording(fx.Tracer):
        proxy_buffer_attributes = True

    counting = Counting()
    program = fx.GraphModule(counting, Recording().trace(counting))
    stages = split_into_stages(program, 3, (torch.ones(2),))
    assert names(stages) == ["mul add add_", "mul_1", "sin"] or names(stages)[1].startswith("add add_")
    assert sum("two" in dict(stage.module.named_buffers()) for stage in stages) == 2
    message = refused(program, 5, torch.ones(2))
    assert "operations on both sides use count, which the program writes to" in message


def test_modes_are_set_and_left_in_one_stage():
    graph = fx.Graph()
    value = graph.call_function(torch.sin, (graph.placeholder("x"),))
    graph.call_function(torch.set_grad_enabled, (False,))
    value = graph.call_function(torch.cos, (value,))
    graph.call_function(torch.set_grad_enabled, (True,))
    graph.output(graph.call_function(torch.exp, (value,)))
    program = fx.GraphModule(nn.Module(), graph)
    stages = split_into_stages(program, 3, (torch.ones(2),))
    assert names(stages) == ["sin", "set_grad_enabled cos set_grad_enabled_1", "exp"]
    assert "operations on both sides set modes" in refused(program, 4, torch.ones(2))


def test_lists_of_tensors_are_not_sent():
    def function(x):
        first, other = x.sin().chunk(2)
        return (first + other).cos()

    message = refused(function, 6, torch.ones(2))
    assert "`%chunk`, a tuple, is used after it: only tensors are sent" in message


def test_numbers_among_the_inputs_are_used_in_the_first_stage():
    def function(x, factor):
        return (x.sin() * factor).cos()

    program = fx.symbolic_trace(function)
    stages = split_into_stages(program, 2, (torch.ones(2), 3.0))
    assert names(stages) == ["sin mul", "cos"]
    assert "`%factor`, a float, is used after it: only tensors are sent" in refused(program, 3, torch.ones(2), 3.0)


def test_nothing_is_sent_where_nothing_is_needed():
    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            x.sin().sum()
            return self.weight.cos().exp()

    assert "no value is sent: later operations need none" in refused(Apart(), 4, torch.ones(2))


@pytest.mark.parametrize(
    "function", [lambda x: x[x > 0].sin(), lambda x: x * x.sum().item()], ids=["a mask", "an element"]
)
def test_sizes_that_depend_on_elements_are_refused(function):
    message = refused(function, 2, torch.ones(2))
    assert "sizes, or its course, depend on elements of tensors" in message
    assert "test_pipeline_stages.py" in message and "torch.where" in message


@pytest.mark.parametrize(
    "stages, message",
    [
        (0, "'n' of split_into_stages is an int of at least 1, not 0"),
        (9, "2 operations cannot be divided into 9 stages"),
        ("2", "'n' of split_into_stages is an int of at least 1, not '2'"),
    ],
)
def test_a_number_of_stages_that_cannot_be_is_refused(stages, message):
    assert message in refused(layers(2, 2, 2), stages, torch.ones(1, 2))


def test_a_backward_that_is_no_flag_is_refused():
    message = refused(layers(2, 2, 2), 2, torch.ones(1, 2), backward="no")
    assert "'backward' of split_into_stages is True or False, not a str" in message


def test_a_program_that_returns_a_dict_is_refused():
    message = refused(lambda x: {"mean": x.mean(), "all": x}, 1, torch.ones(2))
    assert "the last stage of a pipeline returns a tensor, or a tuple of tensors" in message
    assert "tuple(values.values())" in message


def test_arguments_that_are_something_else_are_refused():
    program = fx.symbolic_trace(layers(2, 2, 2))
    x = torch.ones(1, 2)
    with pytest.raises(PassError, match="'gm' of split_into_stages is a GraphModule, not"):
        split_into_stages(layers(2, 2), 1, (x,))
    what = "'example_inputs' of split_into_stages is a Sequence, not a Tensor"
    with pytest.raises(PassError, match=rf"{what}\n(.*\n)*  try    give a value for each input"):
        split_into_stages(program, 2, x)
    with pytest.raises(PassError, match="'memory' of split_into_stages is an int or None, not a str"):
        split_into_stages(program, 2, (x,), memory="1 GiB")
    node = next(iter(fx.symbolic_trace(layers(2, 2)).graph.nodes))
    with pytest.raises(PassError, match="which is not a node of the program"):
        split_into_stages(program, 2, (x,), seconds={node: 1.0})
    with pytest.raises(PassError, match="a value of 'seconds' of split_into_stages is a number of at least 0, not -1"):
        split_into_stages(program, 2, (x,), seconds={program.graph.output_node(): -1})
    nested = fx.symbolic_trace(lambda pair: pair["a"] + pair["b"], concrete_args={"pair": {"a": fx.PH, "b": fx.PH}})
    assert "captured with concrete_args" in refused(nested, 1, {"a": x, "b": x})


def test_the_program_stays_as_it_is():
    program = fx.symbolic_trace(layers(4, 4, 4))
    code, revision = program.code, program.graph.revision
    split_into_stages(program, 2, (torch.ones(1, 4),))
    assert (program.code, program.graph.revision) == (code, revision)
    assert estimate_cost(program, torch.ones(1, 4)).parameters == 40

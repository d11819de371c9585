"""The values that a pass compares the nodes of a program with, and programs in which both are equal."""

import operator
import sys
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from pytest_fx import check_pass
from pytest_fx.errors import LawViolation, NothingJudged
from pytest_fx.harness.subject import Subject
from pytest_fx.search.agreement import agreed
from pytest_fx.search.comparisons import PassComparisons
from pytest_fx.search.nearness import running
from pytest_fx.search.observed import Observed
from pytest_fx.search.reduction import written
from pytest_fx.search.syntax import edited

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("scale", torch.ones(4, 1))

    def forward(self, x):
        a = self.conv(x)
        b = torch.relu(a)
        c = torch.sum(b, 2)
        d = c.flatten(0, 1)
        e = d.expand(2, 8, 6)
        f = e * d
        g = f[:, :2]
        return g


def build():
    torch.default_generator.manual_seed(0)
    return Program().eval()


def inputs():
    return (torch.arange(192.0).reshape(2, 4, 4, 6),), {}
"""
TABLE = {torch.tanh: "a table"}


def is_called(node, name):
    """Ask about a node in a function of its own."""
    return node.op == "call_method" and node.target == name


def by_target(graph_module):
    """Find sigmoid."""
    return any(node.target is torch.sigmoid for node in graph_module.graph.nodes)


def by_op_and_target(graph_module):
    """Find a chunk."""
    return any((node.op, node.target) == ("call_method", "chunk") for node in graph_module.graph.nodes)


def by_helper(graph_module):
    """Find an unsqueeze."""
    return any(is_called(node, "unsqueeze") for node in graph_module.graph.nodes)


def by_table(graph_module):
    """Find the entries of a table."""
    return [node for node in graph_module.graph.nodes if node.target in TABLE]


def by_kind_of_module(graph_module):
    """Find a dropout."""
    modules = dict(graph_module.named_modules())
    for node in graph_module.graph.find_nodes(op="call_module", target="conv"):
        layer = modules[node.target]
        if isinstance(layer, nn.Dropout):
            return True
    return False


def by_argument(graph_module):
    """Find a sum over the last dimension."""
    return any(node.args[1] == -1 for node in graph_module.graph.find_nodes(op="call_function", target=torch.sum))


def by_keyword(graph_module):
    """Find a sum that keeps its dimensions."""
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.sum):
        if node.kwargs.get("keepdim") is True:
            return True
    return False


def by_last_arguments(graph_module):
    """Find a flatten of two dimensions."""
    return any(node.args[1:] == (1, 2) for node in graph_module.graph.find_nodes(op="call_method", target="flatten"))


def by_local_value(graph_module):
    """Find an expand of nothing but one dimension."""
    for node in graph_module.graph.find_nodes(op="call_method", target="expand"):
        sizes = node.args[1:]
        if all(size == -1 for place, size in enumerate(sizes) if place):
            return True
    return False


def by_setting_of_module(graph_module):
    """Find a convolution without padding."""
    layer = graph_module.get_submodule("conv")
    return bool(layer.padding == (0, 0) or layer.groups == 2)


def by_length(graph_module):
    """Find an expand to two dimensions."""
    for node in graph_module.graph.find_nodes(op="call_method", target="expand"):
        sizes = node.args[1:]
        if len(sizes) == 2:
            return True
    return False


def by_users(graph_module):
    """Find a flatten that is used once."""
    return any(len(node.users) == 1 for node in graph_module.graph.find_nodes(op="call_method", target="flatten"))


def by_identity(graph_module):
    """Find a product of a value with itself."""
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.mul):
        if node.args[0] is node.args[1]:
            return True
    return False


def by_type(graph_module):
    """Find a product with a number."""
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.mul):
        if isinstance(node.args[1], int):
            return True
    return False


def by_union(graph_module):
    """Find a product with a number, by a union of types."""
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.mul):
        if isinstance(node.args[1], float | bool):
            return True
    return False


def by_index(graph_module):
    """Find the last node after a slice."""
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.getitem):
        if node.args[1] == (slice(None), -1):
            return True
    return False


def by_stop_of_slice(graph_module):
    """Find a slice to the fifth."""
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.getitem):
        last = node.args[1][1]
        if last.stop == 5 or type(last.start) is int:
            return True
    return False


def by_match(graph_module):
    """Find a sigmoid, a flatten to one of two dimensions, an unsqueeze or a chunk."""
    for node in graph_module.graph.nodes:
        match node:
            case fx.Node(op="call_function", target=torch.sigmoid):
                return True
            case fx.Node(target="flatten", args=(_, _, 2 | 3)):
                return True
            case _:
                pass
        match node.op, node.target:
            case "call_method", "unsqueeze" | "chunk":
                return True
            case _:
                pass
    return False


def by_truth(graph_module):
    """Find a sum that keeps its dimensions, behind a setting that is no argument."""
    layer = graph_module.get_submodule("conv")
    if layer.transposed:
        return False
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.sum):
        if not node.kwargs.get("keepdim", False):
            continue
        return True
    return False


def by_shape(graph_module):
    """Find a program whose state has a shape."""
    scale = graph_module.get_buffer("scale")
    return tuple(scale.shape) == (6, 2)


def by_bounds(graph_module):
    """Find an expand to one or two sizes."""
    return any(2 <= len(node.args) < 4 for node in graph_module.graph.find_nodes(op="call_method", target="expand"))


def by_part_of_index(graph_module):
    """Find an index with a first part that is not all of a dimension."""
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.getitem):
        if node.args[1][0] == slice(1, None):
            return True
    return False


def by_computed_number(graph_module):
    """Find a flatten of three dimensions."""
    for node in graph_module.graph.find_nodes(op="call_method", target="flatten"):
        start, end = node.args[1:]
        if end - start == 2:
            return True
    return False


def by_size(graph_module):
    """Find a convolution of three channels."""
    weight = graph_module.get_parameter("conv.weight")
    return weight.shape[0] == weight.shape[1] == 3


def by_names_of_users(graph_module):
    """Find a flatten that a node reads, and no other."""
    for node in graph_module.graph.find_nodes(op="call_method", target="flatten"):
        second = next(iter(node.users))
        if list(node.users) == [second]:
            return True
    return False


def by_earlier_parts(graph_module):
    """Find a call of a sigmoid by its target, and other calls that are no functions by name."""
    for node in graph_module.graph.nodes:
        if node.op != "call_method" or node.target == "chunk":
            continue
    return False


def by_constant(graph_module):
    """Find a product with zeros."""
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.mul):
        if node.args[1].target is torch.zeros:
            return True
    return False


def by_origin(graph_module):
    """Find a product with a tensor of the module, or a sum of an input."""
    for node in graph_module.graph.nodes:
        if node.target is operator.mul and node.args[1].op == "get_attr":
            return True
        if node.target is torch.sum and node.args[0].op == "placeholder":
            return True
    return False


def by_set_of_arguments(graph_module):
    """Find a flatten of two dimensions, named in any order."""
    for node in graph_module.graph.find_nodes(op="call_method", target="flatten"):
        if set(node.args[1:]) == {1, 2}:
            return True
    return False


def by_dtype(graph_module):
    """Find a program whose state has integers."""
    scale = graph_module.get_buffer("scale")
    return scale.dtype == torch.long


def by_shape_of_layer(graph_module):
    """Find a buffer with an element for each channel of a layer."""
    scale, layer = graph_module.get_buffer("scale"), graph_module.get_submodule("conv")
    return scale.shape == (layer.out_channels, 1, 1)


def by_arguments(graph_module):
    """Find values of operations."""
    for node in graph_module.graph.nodes:
        if not node.args:
            continue
    return False


def texts_after(pass_):
    """Return the program after each single edit for the values that a pass compares it with."""
    program = running(PROGRAM)
    codes = [pass_.__code__, is_called.__code__]
    inner = [each for code in codes for each in code.co_consts if hasattr(each, "co_code")]
    comparisons = PassComparisons([*codes, *inner])
    captured = Subject.of(program, "eval").capture()
    with comparisons.recording():
        pass_(captured)
    observed, random = Observed.of(PROGRAM, "eval"), Random(0)
    operations = [torch.sigmoid, "chunk", "unsqueeze", torch.tanh, nn.Dropout]
    for mismatch in comparisons.latest.values():
        for _ in range(20):
            if edits := agreed(observed, mismatch, operations, random):
                yield written(edited(observed.tree, edits))


@pytest.mark.parametrize(
    "pass_, text",
    [
        (by_target, "torch.sigmoid("),
        (by_op_and_target, ".chunk("),
        (by_helper, ".unsqueeze("),
        (by_table, "torch.tanh("),
        (by_kind_of_module, "nn.Dropout("),
        (by_argument, "torch.sum(b, -1)"),
        (by_keyword, "torch.sum(b, 2, keepdim=True)"),
        (by_last_arguments, "c.flatten(1, 2)"),
        (by_local_value, "d.expand(2, -1, 6)"),
        (by_setting_of_module, "nn.Conv2d(4, 4, 3, padding=(0, 0))"),
        (by_setting_of_module, "nn.Conv2d(4, 4, 3, padding=1, groups=2)"),
        (by_length, "d.expand(2, 8)"),
        (by_users, "= c.flatten(0, 1)\n        e = d.expand(2, 8, 6)"),
        (by_identity, "f = d * d"),
        (by_type, "f = e * 2"),
        (by_union, "f = e * 0.5"),
        (by_index, "g = f[:, -1]"),
        (by_stop_of_slice, "g = f[:, :5]"),
        (by_stop_of_slice, "g = f[:, 2:2]"),
        (by_truth, "torch.sum(b, 2, keepdim=True)"),
        (by_match, "torch.sigmoid("),
        (by_match, "c.flatten(0, 2)"),
        (by_match, ".chunk("),
        (by_bounds, "d.expand(2, 8)"),
        (by_part_of_index, "g = f[1:, :2]"),
        (by_computed_number, "c.flatten(0, 2)"),
        (by_size, "nn.Conv2d(3, 3, 3, padding=1)"),
        (by_names_of_users, "= c.flatten(0, 1)\n        e = d.expand(2, 8, 6)"),
        (by_constant, "f = e * torch.zeros((8, 6), dtype=torch.float32)"),
        (by_origin, "f = e * self.more1"),
        (by_origin, "c = torch.sum(more1, 2)"),
        (by_origin, 'self.register_buffer("more1"'),
        (by_set_of_arguments, "c.flatten(1, 2)"),
        (by_dtype, 'self.register_buffer("scale", torch.ones(4, 1, dtype=torch.int64))'),
        (by_shape_of_layer, 'self.register_buffer("scale", torch.ones(4, 1, 1))'),
        (by_arguments, "torch.sigmoid(x"),
        (by_shape, 'self.register_buffer("scale", torch.ones(6, 2))'),
    ],
)
def test_programs_get_the_values_that_a_pass_compares_with(pass_, text):
    texts = list(texts_after(pass_))
    assert any(text in each for each in texts), "\n".join(texts)


def test_parts_of_a_condition_that_are_not_asked_have_no_edits():
    texts = list(texts_after(by_earlier_parts))
    assert any(".chunk(" in each for each in texts)
    comparisons = PassComparisons([by_earlier_parts.__code__])
    with comparisons.recording():
        by_earlier_parts(Subject.of(running(PROGRAM), "eval").capture())
    about = {mismatch.places[0].name for mismatch in comparisons.latest.values() if mismatch.aspect == "target"}
    assert about == {"flatten", "expand"}


def test_comprehensions_inside_of_a_comparison_do_no_harm():
    def pass_(graph_module):
        return any(tuple(part for part in (node.target,)) == (torch.sigmoid,) for node in graph_module.graph.nodes)

    assert any("torch.sigmoid(" in text for text in texts_after(pass_))


def test_comparisons_with_effects_are_not_evaluated_again():
    appended = []

    def take(graph_module):
        nodes = list(graph_module.graph.nodes)
        if appended.append(1) == nodes.pop():
            return graph_module
        return graph_module

    comparisons = PassComparisons([take.__code__])
    with comparisons.recording():
        take(Subject.of(running(PROGRAM), "eval").capture())
    assert appended == [1]
    assert not comparisons.latest


def negate_heads(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Act on two calls with exact arguments, and wrongly."""
    for node in list(graph_module.graph.find_nodes(op="call_method", target="flatten")):
        source = node.args[0]
        if node.args[1:] == (1, 2) and is_called(source, "unsqueeze") and source.args[1:] == (1,):
            with graph_module.graph.inserting_before(node):
                node.replace_all_uses_with(graph_module.graph.call_function(torch.neg, source.args[:1]))
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module


@pytest.mark.thorough
def test_passes_that_need_several_calls_with_exact_arguments_are_judged():
    with pytest.raises(LawViolation) as caught:
        check_pass(negate_heads, seed=0, max_examples=60)
    assert "flatten(1, 2)" in str(caught.value) and "unsqueeze(1)" in str(caught.value)


@pytest.mark.thorough
def test_the_search_continues_without_comparisons_under_another_tracer():
    trace = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        with pytest.raises(NothingJudged):
            check_pass(negate_heads, seed=0, max_examples=4)
    finally:
        sys.settrace(trace)


def test_both_sides_of_a_comparison_may_be_of_the_program():
    def pass_(graph_module):
        return any(torch.sigmoid is node.target or F.gelu == node.target for node in graph_module.graph.nodes)

    texts = list(texts_after(pass_))
    assert any("torch.sigmoid(" in each for each in texts)
    assert any("F.gelu(" in each for each in texts)


def test_nodes_in_nested_tuples_are_no_index():
    def pass_(graph_module):
        return any(((node.args[0],),) == ((3,),) for node in graph_module.graph.find_nodes(op="output"))

    assert not any("[3]" in text for text in texts_after(pass_))


@pytest.mark.parametrize("size, runs", [(1, False), (2, True)])
def test_a_program_with_an_out_of_range_index_into_an_empty_tensor_is_rejected(size, runs):
    program = PROGRAM.replace("a = self.conv(x)", "return x[:, [0, 1]]")
    text = program.replace("torch.arange(192.0).reshape(2, 4, 4, 6)", f"torch.ones(0, {size}, 3)")
    assert (running(text) is not None) == runs

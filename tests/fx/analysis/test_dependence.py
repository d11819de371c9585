"""Nodes that may be swapped, merged, moved, dropped and run together, and the reasons against it for others."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.analysis.dependence import Dependences
from fx.errors import GraphError

_torch: Any = torch


def unknown(*args: Any) -> Any:
    return args[0]


fx.wrap("unknown")


class Program:
    """A graph with inputs ``x`` and ``y`` of a module with state, and calls made on it in order."""

    def __init__(self) -> None:
        root = nn.Module()
        root.norm = nn.BatchNorm1d(3)
        root.frozen = nn.BatchNorm1d(3).eval()
        root.relu = nn.ReLU(inplace=True)
        root.dropout = nn.Dropout()
        root.linear = nn.Linear(3, 3)
        root.tied = nn.Linear(3, 3)
        root.tied.weight = root.linear.weight
        root.register_buffer("count", torch.zeros(3))
        self.graph = fx.Graph(owning_module=root)  # type: ignore[arg-type]
        self.x = self.graph.placeholder("x")
        self.y = self.graph.placeholder("y")

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if not isinstance(target, str):
            return self.graph.call_function(target, args, kwargs)
        is_method = hasattr(torch.Tensor, target) or hasattr(list, target)
        make = self.graph.call_method if is_method else self.graph.call_module
        return make(target, args, kwargs)

    def fetch(self, path: str) -> fx.Node:
        return self.graph.get_attr(path)

    def returning(self, *values: Any) -> Dependences:
        self.graph.output(values)
        return Dependences(self.graph)


@pytest.fixture
def program() -> Program:
    return Program()


# Dropping.


@pytest.mark.parametrize("is_used, reason", [(True, "`%output` uses `%relu`"), (False, None)])
def test_a_call_that_only_computes_is_dropped_unless_it_is_used(
    is_used: bool, reason: str | None, program: Program
) -> None:
    relu = program.call(torch.relu, program.x)
    assert program.returning(*([relu] if is_used else [])).why_not_drop(relu) == reason


EFFECTS: list[tuple[Callable[[Program], fx.Node], str]] = [
    (lambda p: p.call(torch.rand, 3), "`%rand` draws random numbers"),
    (lambda p: p.call("dropout", p.x), "`%dropout` draws random numbers"),
    (lambda p: p.call("normal_", p.call(torch.ones, 3)), "`%normal_` writes to `%ones`"),
    (lambda p: p.call(F.dropout, p.call(torch.ones, 3), inplace=True), "`%dropout` writes to `%ones`"),
    (lambda p: p.call(_torch._assert, p.x, "message"), "`%_assert` checks a condition"),
    (
        lambda p: p.call(unknown, p.x),
        "`%unknown` calls `test_dependence.unknown`, which has no operator schema and is not declared pure",
    ),
    (lambda p: p.call(_torch._C._set_grad_enabled, False), "`%_set_grad_enabled` changes state outside of the program"),
    (lambda p: p.x, "`%x` is an input of the program"),
    (lambda p: p.call("relu_", p.x), "`%relu_` writes to `%x`, which may be memory of the caller"),
    (lambda p: p.call("relu_", p.y), "`%relu_` writes to `%y`, which may be memory of the caller"),
    (
        lambda p: p.call("add_", p.fetch("count"), 1),
        "`%add_` writes to `%count`, which may be memory of the module's `count`",
    ),
    (
        lambda p: p.call("mul_", p.call("t", p.fetch("tied.weight")), 2),
        "`%mul_` writes to `%t`, which may be memory of the module's `tied.weight`",
    ),
    (lambda p: p.call(operator.setitem, p.x, 0, 1), "`%setitem` writes to `%x`, which may be memory of the caller"),
    (lambda p: p.call(torch.add, p.x, 1, out=p.y), "`%add` writes to `%y`, which may be memory of the caller"),
    (
        lambda p: p.call("relu_", p.call("view", p.x, -1)),
        "`%relu_` writes to `%view`, which may be memory of the caller",
    ),
]


@pytest.mark.parametrize("make, reason", EFFECTS)
def test_visible_effects_are_kept(make: Callable[[Program], fx.Node], reason: str, program: Program) -> None:
    node = make(program)
    assert program.returning().why_not_drop(node) == reason


@pytest.mark.parametrize("mode, reason", [("norm", "`%norm` updates running statistics"), ("frozen", None)])
def test_batch_norm_is_kept_in_training(mode: str, reason: str | None, program: Program) -> None:
    node = program.graph.call_module(mode, (program.x,))
    answer = program.returning().why_not_drop(node)
    assert (answer is None) if reason is None else answer is not None and answer.startswith(reason)


def test_a_write_that_is_read_later_is_kept_and_the_reader_named(program: Program) -> None:
    y = program.call(torch.mul, program.x, 2)
    write = program.call("mul_", y, 2)
    out = program.call(torch.sum, y)
    dependences = program.returning(out)
    assert dependences.why_not_drop(write) == "`%mul_` writes to `%mul`, which `%sum_1` reads"


def test_a_write_that_a_view_shows_is_kept(program: Program) -> None:
    y = program.call(torch.mul, program.x, 2)
    view = program.call("view", y, -1)
    write = program.call("mul_", y, 2)
    assert program.returning(view).why_not_drop(write) == "`%mul_` writes to `%mul`, which `%output` reads"


@pytest.mark.parametrize(
    "through, rest, may_be_view",
    [("chunk", [3], True), ("float", [], True), ("contiguous", [], True), ("expand_as", ["y"], True),
     ("type_as", ["y"], True), ("clone", [], False), ("exp", [], False), ("sum", [], False), ("softmax", [0], False)],
)  # fmt: skip
def test_possible_views_count_as_views_and_computed_values_do_not(
    through: str, rest: list[Any], may_be_view: bool, program: Program
) -> None:
    y = program.call(torch.relu, program.x)
    result = program.call(through, y, *(y if argument == "y" else argument for argument in rest))
    write = program.call("mul_", y, 2)
    assert (program.returning(result).why_not_drop(write) is not None) == may_be_view


def test_a_write_to_invisible_memory_is_dropped(program: Program) -> None:
    y = program.call(torch.mul, program.x, 2)
    early = program.call(torch.sum, y)
    write = program.call("add_", y, 1)
    dependences = program.returning(early)
    assert dependences.why_not_drop(write) is None


def test_a_write_to_an_argument_of_an_unknown_function_is_kept(program: Program) -> None:
    y = program.call(torch.relu, program.x)
    program.call(unknown, y)
    write = program.call("add_", y, 1)
    assert program.returning().why_not_drop(write) == (
        "`%add_` writes to `%relu`, which functions without a schema were given and may have kept"
    )


def test_a_write_to_an_element_of_a_container_that_is_returned_is_kept(program: Program) -> None:
    y = program.call(torch.relu, program.x)
    container = program.call(list, (program.x,))
    program.call("append", container, y)
    write = program.call("add_", y, 1)
    assert program.returning(container).why_not_drop(write) is not None


def test_using_up_an_iterator_that_is_read_again_is_kept(program: Program) -> None:
    pairs = program.call(zip, (program.call(torch.relu, program.x),))
    used = program.call(list, pairs)
    container = program.call(list, pairs)
    assert program.returning(container).why_not_drop(used) == "`%list_1` uses up `%zip_1`, which `%list_2` reads"


def test_reasons_end_with_the_users_line() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        y.mul_(3)
        return y

    graph = fx.symbolic_trace(function).graph
    (write,) = graph.find_nodes(op="call_method", target="mul_")
    line = function.__code__.co_firstlineno + 2
    assert (
        Dependences(graph).why_not_drop(write) == f"`%mul_` writes to `%mul`, {__file__}:{line}, which `%output` reads"
    )


# Swapping.


def test_a_user_is_not_swapped_with_its_operand(program: Program) -> None:
    first = program.call(torch.relu, program.x)
    second = program.call(torch.exp, first)
    dependences = program.returning(second)
    assert dependences.why_not_swap(first, second) == "`%exp` uses `%relu`"
    assert dependences.why_not_swap(second, first) == "`%exp` uses `%relu`"


SWAPS: list[tuple[Callable[[Program], tuple[fx.Node, fx.Node]], str | None]] = [
    (lambda p: (p.call(torch.relu, p.x), p.call(torch.exp, p.x)), None),
    (lambda p: (p.call(torch.relu, p.x), p.call("add_", p.x, 1)), "`%add_` writes to `%x`, which `%relu` reads"),
    (lambda p: (p.call("add_", p.x, 1), p.call(torch.relu, p.x)), "`%add_` writes to `%x`, which `%relu` reads"),
    # inputs may be the same tensor
    (lambda p: (p.call("add_", p.x, 1), p.call("mul_", p.y, 2)), "`%add_` writes to `%x`, which `%mul_` reads"),
    (lambda p: (p.call("add_", p.x, 1), p.call(torch.exp, p.fetch("count"))), None),
    (
        lambda p: (p.call("add_", p.fetch("tied.weight"), 1), p.call("linear", p.x)),
        "`%add_` writes to `%tied_weight`, which `%linear` reads",
    ),
    (
        lambda p: (p.call(torch.rand, 3), p.call(torch.randn, 3)),
        "`%rand` draws random numbers, and `%randn` draws random numbers: they keep their order",
    ),
    (
        lambda p: (p.call(torch.rand, 3), p.call("normal_", p.call(torch.ones, 3))),
        "`%rand` draws random numbers, and `%normal_` writes to `%ones`: they keep their order",
    ),
    (lambda p: (p.call(torch.rand, 3), p.call(torch.relu, p.x)), None),
    (lambda p: (p.call(torch.rand, 3), p.call(_torch._assert, p.x, "")), None),
    (
        lambda p: (p.call(_torch._assert, p.x, ""), p.call("relu_", p.call(torch.ones, 3))),
        "`%_assert` checks a condition, and `%relu_` writes to `%ones`: they keep their order",
    ),
    (
        lambda p: (p.call(_torch._assert, p.x, ""), p.call(_torch._assert, p.y, "")),
        "`%_assert` checks a condition, and `%_assert_1` checks a condition: they keep their order",
    ),
    (lambda p: (p.call(unknown, p.x), p.call(torch.relu, p.fetch("count"))), None),
    (
        lambda p: (p.call(unknown, p.x), p.call(torch.relu, p.x)),
        "`%unknown` calls `test_dependence.unknown`, which has no operator schema and is not declared pure, "
        "which `%relu` reads",
    ),
    (
        lambda p: (p.call(unknown), p.call(torch.rand, 3)),
        "`%unknown` calls `test_dependence.unknown`, which has no operator schema and is not declared pure, "
        "and `%rand` draws random numbers: they keep their order",
    ),
    (
        lambda p: (p.call(_torch._C._set_grad_enabled, False), p.call(torch.relu, p.x)),
        "`%_set_grad_enabled` changes state outside of the program, which may change what `%relu` computes",
    ),
    (
        lambda p: (p.call(torch.relu, p.x), p.call(_torch.amp._enter_autocast, "cpu", None, True, None)),
        "`%_enter_autocast` changes state outside of the program, which may change what `%relu` computes",
    ),
    (
        lambda p: (p.call("relu_", p.call(torch.ones, 3)), p.call(_torch._assert, p.x, "")),
        "`%relu_` writes to `%ones`, and `%_assert` checks a condition: they keep their order",
    ),
    (lambda p: (p.x, p.y), "`%x` is an input of the program"),
]


@pytest.mark.parametrize("make, reason", SWAPS)
def test_operations_are_swapped_unless_their_order_counts(
    make: Callable[[Program], tuple[fx.Node, fx.Node]], reason: str | None, program: Program
) -> None:
    first, second = make(program)
    dependences = program.returning()
    assert dependences.why_not_swap(first, second) == reason
    if reason is None or "uses" not in reason:
        assert (dependences.why_not_swap(second, first) is None) == (reason is None)


def test_the_result_of_an_unknown_function_may_alias_the_argument_of_another(program: Program) -> None:
    source = program.call(torch.relu, program.x)
    program.call(unknown, source)
    result = program.call(unknown)
    write = program.call("add_", result, 1)
    read = program.call(torch.exp, source)
    dependences = program.returning(read)
    assert dependences.why_not_swap(write, read) == "`%add_` writes to `%unknown_1`, which `%exp` reads"


class Holder:
    def update(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("function, reaches", [(Holder().update, True), (unknown, False)])
def test_a_method_of_an_object_may_reach_the_state_of_the_module_and_a_plain_function_does_not(
    function: Any, reaches: bool, program: Program
) -> None:
    weight = program.fetch("count")
    program.call(function, 1)
    read = program.call(torch.exp, weight)
    assert (program.returning(read).why_state_varies(weight) is not None) == reaches


# Moving.


def test_an_operation_moves_over_unrelated_ones(program: Program) -> None:
    first = program.call(torch.relu, program.x)
    second = program.call(torch.exp, program.x)
    third = program.call(torch.sum, first)
    dependences = program.returning(third, second)
    assert dependences.why_not_move(second, first) is None
    assert dependences.why_not_move(first, third) is None
    assert dependences.why_not_move(second, dependences.aliases.nodes[-1]) is None
    assert dependences.why_not_move(first, dependences.aliases.nodes[-1]) == "`%sum_1` uses `%relu`"
    assert dependences.why_not_move(third, second) is None
    assert dependences.why_not_move(third, first) == "`%sum_1` uses `%relu`"
    assert dependences.why_not_move(second, program.x) == "`%x` is an input of the program, and those come first"
    assert dependences.why_not_move(program.y, first) == "`%y` is an input of the program"


def test_an_operation_does_not_move_over_a_write_to_its_operand(program: Program) -> None:
    copy = program.call("clone", program.x)
    read = program.call(torch.relu, copy)
    write = program.call("mul_", copy, 2)
    last = program.call(torch.exp, copy)
    dependences = program.returning(read, last)
    assert dependences.why_not_move(read, write) is None
    assert dependences.why_not_move(read, last) == "`%mul_` writes to `%clone`, which `%relu` reads"
    assert dependences.why_not_move(last, read) == "`%mul_` writes to `%clone`, which `%exp` reads"
    assert dependences.why_not_move(write, read) == "`%mul_` writes to `%clone`, which `%relu` reads"
    assert dependences.why_not_move(write, dependences.aliases.nodes[-1]) == (
        "`%mul_` writes to `%clone`, which `%exp` reads"
    )


# Merging.


def twice(program: Program, target: Any, *args: Any) -> tuple[fx.Node, fx.Node]:
    return program.call(target, *args), program.call(target, *args)


@pytest.mark.parametrize("target, reason", [(torch.relu, None), (torch.rand_like, "`%rand_like` draws random numbers")])
def test_equal_calls_are_merged_unless_they_draw(target: Any, reason: str | None, program: Program) -> None:
    first, second = twice(program, target, program.x)
    assert program.returning(program.call(torch.add, first, second)).why_not_merge(first, second) == reason


def test_results_that_are_both_returned_stay_two(program: Program) -> None:
    first, second = twice(program, torch.relu, program.x)
    dependences = program.returning(first, program.call("view", second, -1))
    assert dependences.may_be_returned(second)
    assert (
        dependences.why_not_merge(first, second) == "`%relu` and `%relu_1` may both be returned or kept, as two objects"
    )


def test_numbers_that_are_both_returned_are_merged(program: Program) -> None:
    first, second = twice(program, "size", program.x, 0)
    assert program.returning(first, second).why_not_merge(first, second) is None


def test_a_write_in_between_keeps_calls_apart(program: Program) -> None:
    first = program.call(torch.relu, program.x)
    program.call("add_", program.x, 1)
    second = program.call(torch.relu, program.x)
    dependences = program.returning(first)
    assert dependences.why_not_merge(first, second) == "`%add_` writes to `%x`, which `%relu_1` reads"


def test_a_write_to_either_result_keeps_calls_apart(program: Program) -> None:
    first, second = twice(program, torch.relu, program.x)
    program.call("add_", second, 1)
    dependences = program.returning(program.call(torch.add, first, second))
    assert dependences.why_not_merge(first, second) == (
        "`%add_` writes to `%relu_1`, which may be memory of `%relu` or of `%relu_1`"
    )


def test_calls_before_and_after_a_mode_is_set_are_not_merged(program: Program) -> None:
    first = program.call(torch.relu, program.x)
    program.call(_torch._C._set_grad_enabled, False)
    second = program.call(torch.relu, program.x)
    assert program.returning(first).why_not_merge(first, second) == (
        "`%_set_grad_enabled` changes state outside of the program, between `%relu` and `%relu_1`"
    )


def test_an_attribute_fetched_twice_is_one_object_despite_writes(program: Program) -> None:
    first = program.fetch("count")
    program.call("add_", first, 1)
    second = program.fetch("count")
    assert program.returning(first, second).why_not_merge(first, second) is None


def test_an_attribute_that_may_have_been_set_is_fetched_again(program: Program) -> None:
    first = program.fetch("linear")
    weight = program.fetch("linear.weight")
    program.call(setattr, first, "weight", program.x)
    again = program.fetch("linear.weight")
    assert program.returning(weight).why_not_merge(weight, again) == (
        "`%setattr_1` writes to `%linear`, between `%linear_weight` and `%linear_weight_1`"
    )


def test_iterators_are_not_merged_once_they_are_used_up(program: Program) -> None:
    one_iterator, two = twice(program, zip, (program.x, program.y))
    first = program.call(list, one_iterator)
    second = program.call(list, two)
    assert program.returning(first, second).why_not_merge(one_iterator, two) is not None


def test_a_merged_value_is_returned_if_either_was(program: Program) -> None:
    first, second, third = (program.call(torch.relu, program.x) for _ in range(3))
    dependences = program.returning(second, third)
    assert dependences.why_not_merge(first, second) is None
    dependences.merged(first, second)
    assert dependences.why_not_merge(first, third) is not None


def test_a_write_to_the_memory_of_one_merged_value_is_one_to_the_other(program: Program) -> None:
    first, second, third = (program.call(torch.relu, program.x) for _ in range(3))
    view = program.call("view", second, -1)
    dependences = program.returning(view)
    dependences.merged(first, second)
    assert dependences.memory(first) == dependences.memory(view) != dependences.memory(third)


# Running together.


def test_nodes_run_together_unless_something_between_them_needs_one_of_them(program: Program) -> None:
    first = program.call(torch.relu, program.x)
    between = program.call(torch.exp, first)
    second = program.call(torch.add, first, between)
    dependences = program.returning(second)
    assert dependences.why_not_fuse([first, between, second]) is None
    assert dependences.why_not_fuse([second, first]) == "`%exp` uses `%relu` before `%add`, and is not among them"
    assert dependences.why_not_fuse([program.x, first]) == "`%x` is an input of the program"
    assert dependences.why_not_fuse([]) is None


def test_nodes_are_not_fused_across_a_write_to_their_operands(program: Program) -> None:
    first = program.call(torch.relu, program.x)
    write = program.call("add_", program.x, 1)
    second = program.call(torch.exp, first)
    dependences = program.returning(second)
    assert dependences.why_not_fuse([first, second]) == "`%add_` writes to `%x`, which `%relu` reads"
    assert dependences.why_not_fuse([first, write, second]) is None


def test_a_write_does_not_run_after_its_readers(program: Program) -> None:
    copy = program.call("clone", program.x)
    write = program.call("add_", copy, 1)
    read = program.call(torch.exp, copy)
    last = program.call(torch.relu, program.x)
    dependences = program.returning(read, last)
    assert dependences.why_not_fuse([write, last]) == "`%add_` writes to `%clone`, which `%exp` reads"


def test_random_numbers_are_not_drawn_later_than_others(program: Program) -> None:
    first = program.call(torch.rand, 3)
    program.call(torch.randn, 3)
    second = program.call(torch.relu, first)
    dependences = program.returning(second)
    assert dependences.why_not_fuse([first, second]) == (
        "`%rand` draws random numbers, and `%randn` draws random numbers: they keep their order"
    )


# Constants.


def test_an_attribute_is_constant_unless_the_program_writes_to_its_memory(program: Program) -> None:
    count, weight, tied = (program.fetch(path) for path in ("count", "linear.weight", "tied.weight"))
    program.call("mul_", tied, 2)
    dependences = program.returning()
    assert dependences.why_not_constant(count) is None
    reason = "`%mul_` writes to `%tied_weight`, which may be memory that `%linear_weight` holds or reads"
    assert dependences.why_not_constant(weight) == reason
    assert dependences.why_state_varies(weight) == reason
    assert [node.name for node in dependences.writers(weight)] == ["mul_"]


def test_a_called_module_varies_if_its_parameters_are_written_to(program: Program) -> None:
    called = program.call("linear", program.x)
    program.call("add_", program.call("t", program.fetch("tied.weight")), 2)
    assert program.returning(called).why_state_varies(called) == (
        "`%add_` writes to `%t`, which may be memory that `%linear` holds or reads"
    )


def test_random_draws_inputs_and_mode_dependent_values_are_not_constant(program: Program) -> None:
    drawn = program.call(torch.rand, 3)
    before = program.call(torch.ones, 3)
    program.call(_torch._C._set_grad_enabled, False)
    after = program.call(torch.ones, 3)
    written = program.call(torch.zeros, 3)
    program.call("add_", written, 1)
    dependences = program.returning()
    assert dependences.why_not_constant(drawn) == "`%rand` draws random numbers"
    assert dependences.why_not_constant(program.x) == "`%x` is an input of the program"
    assert dependences.why_not_constant(before) is None
    assert dependences.why_not_constant(after) == (
        "`%_set_grad_enabled` changes state outside of the program, which may change what `%ones_1` computes"
    )
    assert dependences.why_not_constant(written) == (
        "`%add_` writes to `%zeros`, which may be memory that `%zeros` holds or reads"
    )


# What is read and written.


def test_groups_of_memory_can_be_compared(program: Program) -> None:
    view = program.call("view", program.x, -1)
    write = program.call("add_", view, 1)
    size = program.call("size", program.x)
    linear = program.call("linear", program.x)
    dependences = program.returning(linear)
    assert dependences.writes(write) == {dependences.memory(program.x)} == dependences.reads(write)
    assert dependences.memory(size) is None and dependences.writers(size) == []
    assert dependences.writes(linear) == frozenset()
    assert len(dependences.reads(linear)) == 3  # its input, its weight, its bias


def test_an_unknown_function_may_touch_the_arguments_of_others(program: Program) -> None:
    source = program.call(torch.relu, program.x)
    apart = program.call(torch.exp, program.x)
    program.call(unknown, source)
    later = program.call(unknown)
    dependences = program.returning()
    assert dependences.reads(later) == dependences.writes(later) == {dependences.memory(source)}
    assert dependences.may_be_returned(source) and not dependences.may_be_returned(apart)


# After edits.


def test_asking_after_an_edit_is_refused(program: Program) -> None:
    relu = program.call(torch.relu, program.x)
    dependences = program.returning()
    revision = program.graph.revision
    program.graph.erase_node(relu)
    expected = f"""\
the graph was edited after its dependences were computed
  why    they are those of revision {revision}, and the graph is at {program.graph.revision}
  try    make new Dependences(graph), or report each edit to these: dropped(node), merged(kept, gone)"""
    with pytest.raises(GraphError, match=f"^{re.escape(expected)}$"):
        dependences.why_not_drop(program.x)
    dependences.dropped(relu)
    assert dependences.why_not_drop(program.x) is not None


def test_asking_about_a_node_of_another_graph_is_refused(program: Program) -> None:
    other = Program().x
    with pytest.raises(GraphError, match="`%x` is not in the graph that these dependences are of"):
        program.returning().why_not_drop(other)


def test_a_dropped_reader_no_longer_keeps_a_write(program: Program) -> None:
    y = program.call(torch.relu, program.x)
    write = program.call("add_", y, 1)
    view = program.call("view", y, -1)
    dependences = program.returning()
    assert dependences.why_not_drop(write) is not None
    dependences.dropped(view)
    assert dependences.why_not_drop(write) is None


def test_a_graph_that_is_not_well_formed_is_refused_with_the_rule_it_breaks() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.relu, (x,))
    x.prepend(next(reversed(graph.nodes)))
    with pytest.raises(GraphError, match="was used before it has been defined"):
        Dependences(graph)

"""Pattern matching: every spelling, all places and only them, and the explanation of near misses."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import AllLeaves, Calling
from torch import nn

import fx
from fx.matcher import Explanation, Matcher, Wildcard, anything, explain, literal


@fx.wrap
def own(*args: Any) -> Any:
    return args[0]


SPELLINGS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "method": (lambda x: torch.relu(x), lambda x: x.relu()),
    "functional": (lambda x: torch.relu(x), lambda x: F.relu(x)),
    "module": (lambda x: torch.relu(x), nn.ReLU()),
    "keyword": (lambda x: torch.flatten(x, 1), lambda x: torch.flatten(x, start_dim=1)),
    "default": (lambda x: F.softmax(x, dim=1, dtype=None), lambda x: x.softmax(1)),
    "operator": (lambda x: x + 1, lambda x: torch.add(x, 1)),
    "operator method": (lambda x: x * 2, lambda x: x.mul(2)),
    "swapped sum": (lambda x: torch.exp(x) + x, lambda x: x + torch.exp(x)),
    "swapped product": (lambda x: 2 * torch.exp(x), lambda x: torch.exp(x) * 2),
    "swapped maximum": (lambda x: torch.maximum(x, torch.exp(x)), lambda x: torch.maximum(torch.exp(x), x)),
    "swapped equality": (lambda x: torch.exp(x) == x, lambda x: x.eq(torch.exp(x))),
    "nested swaps": (lambda x: (x.exp() + 1) * (x.sin() + 2), lambda x: (2 + x.sin()) * (1 + x.exp())),
    "list and tuple": (lambda x: torch.cat([x, x]), lambda x: torch.cat((x, x), dim=0)),
    "slices": (lambda x: x[:, 1:], lambda x: operator.getitem(x, (slice(None), slice(1, None)))),
    "nan": (lambda x: x * float("nan"), lambda x: x * float("nan")),
    "module options": (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2)),
}

DIFFERENT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "in place": (lambda x: torch.relu(x), lambda x: torch.relu_(x)),
    "in-place module": (nn.ReLU(), nn.ReLU(inplace=True)),
    "number": (lambda x: x + 1, lambda x: x + 2),
    "integer and float": (lambda x: x + 1, lambda x: x + 1.0),
    "integer and truth value": (lambda x: x + 1, lambda x: x + True),
    "sign of zero": (lambda x: x * 0.0, lambda x: x * -0.0),
    "order of a difference": (lambda x: x - torch.exp(x), lambda x: torch.exp(x) - x),
    "index by list and by tuple": (lambda x: x[[0, 1]], lambda x: x[(0, 1)]),
    "joined sizes": (lambda x: operator.add(x.size(), (1,)), lambda x: operator.add((1,), x.size())),
    "scaled sum": (lambda x: torch.add(torch.exp(x), x, alpha=2), lambda x: torch.add(x, torch.exp(x), alpha=2)),
    "mode of dropout": (nn.Dropout(0.5).eval(), nn.Dropout(0.5)),
    "option": (nn.LeakyReLU(0.2), nn.LeakyReLU(0.3)),
    "constant tensor": (lambda x: x * torch.tensor(2.0), lambda x: x * torch.tensor(3.0)),
}


def found(program: Any, pattern: Any, **options: Any) -> list[str]:
    """Names of the nodes at which ``pattern`` ends in ``program``."""
    graph_module = program if isinstance(program, fx.GraphModule) else fx.symbolic_trace(program)
    matches = Matcher(graph_module, pattern, **options).matches()
    return [" ".join(node.name for node in match.returning_nodes) for match in matches]


def reasons(program: Any, pattern: Any, **options: Any) -> list[str]:
    """Return the reason of each near miss, without lines."""
    graph_module = program if isinstance(program, fx.GraphModule) else fx.symbolic_trace(program)
    misses = explain(graph_module, pattern, **options).near_misses
    return [re.sub(rf", {__file__}:\d+", "", miss.reason) for miss in misses]


@pytest.mark.parametrize("one, other", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_all_spellings_of_an_operation_match_each_other(one: Any, other: Any) -> None:
    assert len(found(one, other)) == 1
    assert len(found(other, one)) == 1


@pytest.mark.parametrize("one, other", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_different_operations_do_not_match_each_other(one: Any, other: Any) -> None:
    assert found(one, other) == []
    assert found(other, one) == []


class TestInputs:
    def test_an_input_matches_any_argument(self) -> None:
        assert found(lambda x: (x + 1, x + x, x + torch.exp(x)), lambda a, b: a + b) == ["add", "add_1", "add_2"]

    def test_an_input_matches_a_list_of_values(self) -> None:
        matcher = Matcher(fx.symbolic_trace(lambda x, y: torch.cat([x, y])), lambda xs: torch.cat(xs))
        (match,) = matcher.matches()
        assert [str(node) for node in match.placeholder_nodes[0]] == ["x", "y"]

    def test_an_input_matches_a_default(self) -> None:
        program = fx.symbolic_trace(lambda x, w: F.linear(x, w))
        (match,) = Matcher(program, lambda x, w, b: F.linear(x, w, b)).matches()
        assert match.placeholder_nodes[2] is None

    def test_an_input_that_is_used_twice_matches_one_value(self) -> None:
        def program(x: Any, y: Any) -> Any:
            return x * x, x * y, 2 * x * 2 * x

        assert found(program, lambda a: a * a) == ["mul"]
        assert found(lambda x: x.view(2, 2), lambda a, n: a.view(n, n)) == ["view"]
        assert found(lambda x: x.view(2, 3), lambda a, n: a.view(n, n)) == []

    def test_two_reads_of_a_parameter_are_one_value(self) -> None:
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two, self.three = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
                self.two.weight = self.one.weight

            def forward(self, x: Any) -> Any:
                return self.two(self.one(x)) + self.three(self.one(x))

        def twice(x: Any, w: Any, a: Any, b: Any) -> Any:
            return F.linear(F.linear(x, w, a), w, b)

        assert found(Tied(), twice) == ["two"]

    def test_an_input_that_is_not_used_is_none(self) -> None:
        (match,) = Matcher(fx.symbolic_trace(lambda x: torch.exp(x)), lambda a, b: torch.exp(a)).matches()
        assert [str(value) for value in match.placeholder_nodes] == ["x", "None"]

    def test_an_input_is_no_part_of_the_match(self) -> None:
        def program(x: Any) -> Any:
            y = torch.relu(x)
            return y + y

        assert found(program, lambda a, b: (torch.relu(a), torch.relu(a) + b)) == []
        assert reasons(program, lambda a, b: torch.relu(a) + b) == [
            "the pattern's input `b` would be `%relu`, which is a part of the match"
        ]


class TestConstants:
    def test_literals_can_be_ignored(self) -> None:
        def program(x: Any) -> Any:
            return F.dropout(x, 0.1), F.avg_pool2d(x, (2, 3)), x.view(2, x.size(0))

        assert found(program, lambda x: F.dropout(x, 0.5)) == []
        assert found(program, lambda x: F.dropout(x, 0.5), ignore_literals=True) == ["dropout"]
        assert found(program, lambda x: F.avg_pool2d(x, 1), ignore_literals=True) == ["avg_pool2d"]
        assert found(program, lambda x: x.view(1, 1), ignore_literals=True) == []

    def test_a_wildcard_matches_one_constant_and_tells_it(self) -> None:
        program = fx.symbolic_trace(lambda x: F.dropout(x, 0.1) + F.dropout(x, 0.2, training=False))
        first, second = Matcher(program, lambda x: F.dropout(x, literal("p"), training=anything)).matches()
        assert (first.literals, second.literals) == ({"p": 0.1}, {"p": 0.2})

    def test_a_name_represents_one_constant(self) -> None:
        def pattern(x: Any) -> Any:
            return torch.exp(x * literal("n")) + literal("n")

        assert found(lambda x: (torch.exp(x * 2) + 2, torch.exp(x * 2) + 3), pattern) == ["add"]
        assert reasons(lambda x: torch.exp(x * 2) + 3, pattern) == [
            "`%add` has 3 as argument 2 where the pattern has 2"
        ]

    def test_a_wildcard_matches_no_computed_value(self) -> None:
        assert found(lambda x, y: x * y, lambda a: a * literal("n")) == []

    def test_wildcards_print_as_they_are_written(self) -> None:
        assert (repr(literal("p")), repr(anything)) == ("literal('p')", "anything")
        assert literal("p") == Wildcard("p")


class TestModules:
    def test_a_function_with_weights_as_inputs_matches_a_module(self) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        program = fx.symbolic_trace(model)
        (match,) = Matcher(program, lambda x, w, b: F.relu(F.linear(x, w, b))).matches()
        assert [str(node.target) for node in match.placeholder_nodes] == ["input", "0.weight", "0.bias"]
        assert {key.name: str(value) for key, value in match.nodes_map.items()}["linear"] == "_0"

    def test_a_module_matches_calls_of_modules_like_it_under_any_name(self) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3, bias=False), nn.Linear(3, 3))
        assert found(model, nn.Linear(3, 3)) == ["_0", "_3"]
        assert found(lambda x, w, b: F.linear(x, w, b), nn.Linear(1, 1)) == []

    @pytest.mark.parametrize(
        "layer, other",
        [
            (nn.Linear(3, 4), nn.Linear(4, 4)),
            (nn.Linear(3, 4), nn.Linear(3, 5)),
            (nn.Conv2d(3, 4, 1), nn.Conv2d(3, 5, 1)),
            (nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)),
            (nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3)),
            (nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=4)),
            (nn.ConvTranspose2d(3, 4, 1), nn.ConvTranspose2d(3, 5, 1)),
            (nn.BatchNorm2d(3), nn.BatchNorm2d(4)),
            (nn.LayerNorm(3), nn.LayerNorm(4)),
            (nn.Embedding(3, 4), nn.Embedding(5, 4)),
            (nn.PReLU(1), nn.PReLU(3)),
            (nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Sequential(nn.Linear(3, 5), nn.ReLU())),
        ],
    )  # fmt: skip
    def test_the_sizes_of_a_layer_count(self, layer: nn.Module, other: nn.Module) -> None:
        model = nn.ModuleList([layer, other])

        program = fx.symbolic_trace(Calling(lambda m, x: [each(x) for each in m.both], both=model))
        first, second = found(program, layer), found(program, other)
        assert len(first) == len(second) == 1
        assert first != second

    def test_a_layer_of_another_size_is_a_near_miss(self) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        assert reasons(model, nn.Sequential(nn.Linear(4, 4), nn.ReLU()).train()) == [
            "`%_0` has a weight of 4x3, the pattern's layer one of 4x4"
        ]

    def test_a_module_matches_functions_on_parameters(self) -> None:
        class Functional(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w, self.b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))

            def forward(self, x: Any) -> Any:
                return F.linear(x, self.w, self.b)

        assert found(Functional(), nn.Linear(2, 2)) == ["linear"]
        assert found(Functional(), nn.Linear(1, 1)) == []

    def test_batch_norm_matches_in_its_mode_and_without_its_checks(self) -> None:
        norm = nn.BatchNorm2d(3)
        for mode in (True, False):
            program = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 3, 1), norm).train(mode))
            assert found(program, nn.BatchNorm2d(3).train(mode)) == ["_1"]
            assert found(program, nn.BatchNorm2d(3).train(not mode)) == []
            assert len(found(program, lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b))) == (not mode)

    def test_recurrent_modules_match_by_their_settings(self) -> None:
        small, same, large = (Calling(lambda m, x: m.lstm(x)[0], lstm=nn.LSTM(3, size)) for size in (4, 4, 5))
        assert found(small, same) == ["getitem"]
        assert found(small, nn.LSTM(3, 4)) == ["lstm"]
        assert reasons(small, large) == [
            "`%lstm` calls `LSTM(3, 4)` in training mode, the pattern has `LSTM(3, 5)` in training mode"
        ]

    @pytest.mark.parametrize("register", ["register_forward_hook", "register_full_backward_hook"])
    def test_a_module_with_a_hook_is_only_like_itself(self, register: str) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        getattr(model[0], register)(lambda module, args, result: None)
        assert found(model, nn.Linear(2, 2)) == ["_1"]

    def test_a_submodule_is_matched_as_a_whole(self) -> None:
        inner = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        outer = Calling(lambda m, x: torch.relu(m.inner(x)), inner=inner)
        program = fx.GraphModule(outer, AllLeaves().trace(outer))
        assert found(program, lambda x: torch.relu(x)) == ["relu"]
        assert reasons(program, lambda x: torch.relu(x)) == [
            "`%inner` calls a module that does more than the pattern: `%_0` in it did not match"
        ]
        assert found(program, lambda x, w, b: torch.relu(F.linear(x, w, b))) == ["inner"]

    def test_modules_that_compute_nothing_are_passed_through(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.ReLU())
        assert found(model, lambda x, w, b: F.relu(F.linear(x, w, b))) == ["_2"]


class TestPlaces:
    def test_matches_follow_one_another_back_to_back(self) -> None:
        def program(x: Any) -> Any:
            for _ in range(5):
                x = torch.relu(x)
            return x

        assert found(program, lambda x: torch.relu(torch.relu(x))) == ["relu_1", "relu_3"]

    def test_matches_may_use_each_other(self) -> None:
        assert found(lambda x, y, z: (x + y) + (y + z), lambda a, b: a + b) == ["add", "add_1", "add_2"]

    def test_an_inner_value_is_used_nowhere_else(self) -> None:
        def program(x: Any) -> Any:
            y = torch.exp(x)
            return torch.relu(y) + y

        assert found(program, lambda x: torch.relu(torch.exp(x))) == []
        assert reasons(program, lambda x: torch.relu(torch.exp(x))) == [
            "`%exp` matched, but its result is also used by `%add`"
        ]

    def test_a_returned_value_may_be_used_elsewhere(self) -> None:
        def program(x: Any) -> Any:
            y = torch.exp(x)
            return torch.relu(y) + y

        def pattern(x: Any) -> Any:
            y = torch.exp(x)
            return y, torch.relu(y)

        assert found(program, pattern) == ["exp relu"]

    def test_patterns_with_several_results_are_matched_from_their_shared_input(self) -> None:
        def program(x: Any, y: Any) -> Any:
            return torch.sin(x), torch.cos(y), torch.sin(y), torch.cos(x)

        assert found(program, lambda a: (torch.sin(a), torch.cos(a))) == ["sin cos_1", "sin_1 cos"]

    def test_results_without_anything_in_common_are_found_too(self) -> None:
        def program(x: Any, y: Any) -> Any:
            return torch.sin(x), torch.cos(y), torch.sin(y), torch.cos(x)

        assert found(program, lambda a, b: (torch.sin(a), torch.cos(b))) == ["sin cos", "sin_1 cos_1"]

    def test_an_input_that_is_computed_from_a_result_is_refused(self) -> None:
        def program(x: Any) -> Any:
            return torch.cos(torch.sin(x) + 1)

        def pattern(a: Any, b: Any) -> Any:
            return torch.sin(a), torch.cos(b)

        assert found(program, pattern) == []
        assert reasons(program, pattern) == ["its input `%add` is computed from its own result"]

    def test_two_matches_that_would_wait_for_each_other_are_not_both_made(self) -> None:
        def program(x: Any, y: Any) -> Any:
            first, second = torch.sin(x), torch.sin(y)
            return torch.cos(second + 1), torch.cos(first + 2)

        def pattern(a: Any, b: Any) -> Any:
            return torch.sin(a), torch.cos(b)

        assert found(program, pattern) == ["sin cos"]
        assert reasons(program, pattern) == ["its input `%add_1` is computed from its own result"]

    def test_a_filter_that_refuses_makes_room_for_the_next(self) -> None:
        def program(x: Any) -> Any:
            return torch.relu(torch.relu(torch.relu(x)))

        def not_first(match: Any, graph: fx.Graph, pattern: fx.Graph) -> bool:
            return match.returning_nodes[0].name != "relu_1"

        def pattern(x: Any) -> Any:
            return torch.relu(torch.relu(x))

        assert found(program, pattern) == ["relu_1"]
        assert found(program, pattern, match_filters=[not_first]) == ["relu_2"]
        assert reasons(program, pattern, match_filters=[not_first])[1:] == [
            "everything matched, but the filter `not_first` refuses it"
        ]

    def test_a_named_node_at_the_end_matches_any_target(self) -> None:
        def program(x: Any) -> Any:
            return torch.sigmoid(torch.exp(x)) + torch.tanh(torch.sin(x))

        def pattern(x: Any) -> Any:
            return torch.relu(torch.exp(x))

        assert found(program, pattern, node_name_match="sig") == ["sigmoid"]
        assert found(program, pattern, node_name_match="tanh") == []


class TestEffects:
    def test_an_operation_in_place_matches_itself(self) -> None:
        assert found(lambda x: torch.exp(x).relu_(), lambda x: F.relu(torch.exp(x), inplace=True)) == ["relu_"]

    def test_a_write_between_the_operations_prevents_a_match(self) -> None:
        def program(x: torch.Tensor) -> Any:
            y = torch.exp(x)
            x.add_(1)
            return torch.relu(y), torch.sin(x)

        assert found(program, lambda x: torch.relu(torch.exp(x))) == []
        (reason,) = reasons(program, lambda x: torch.relu(torch.exp(x)))
        assert reason.startswith("`%add_` writes to `%x`") and reason.endswith("which `%exp` reads")

    def test_a_write_to_something_else_does_not(self) -> None:
        def program(x: torch.Tensor) -> Any:
            z = torch.zeros(2)
            y = torch.exp(x)
            z.add_(1)
            return torch.relu(y), z

        assert found(program, lambda x: torch.relu(torch.exp(x))) == ["relu"]

    def test_operations_with_effects_keep_their_order(self) -> None:
        def pattern(x: Any) -> Any:
            y = torch.exp(x)
            z = torch.sin(y)
            return y.add_(1), z

        def program(x: Any) -> Any:
            y = torch.exp(x)
            w = y.add_(1)
            return w, torch.sin(y)

        assert found(pattern, pattern) == ["add_ sin"]
        assert found(program, pattern) == []
        assert reasons(program, pattern) == ["`%add_` comes before `%sin` here, in the pattern after it"]

    def test_a_user_between_the_operations_does_not_move_behind_a_write(self) -> None:
        def program(x: torch.Tensor, y: torch.Tensor) -> Any:
            used = torch.sin(x) + y
            return used, y.add_(1)

        def pattern(a: Any, b: Any) -> Any:
            return torch.sin(a), b.add_(1)

        assert found(program, pattern) == []
        assert reasons(program, pattern) == [
            "`%add` uses its result and stands between its operations, which have effects"
        ]

    def test_a_write_with_an_unused_result_belongs_to_the_pattern(self) -> None:
        def pattern(x: Any) -> Any:
            y = torch.exp(x)
            y.add_(1)
            return torch.sin(y)

        assert found(pattern, pattern) == ["sin"]
        assert found(lambda x: torch.sin(torch.exp(x)), pattern) == []


class TestNearMisses:
    def test_a_different_operation_is_named(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        assert reasons(model, lambda x, w: torch.relu(torch.conv2d(x, w))) == [
            "the pattern's `%relu` is fed by conv2d, here by linear"
        ]
        assert reasons(lambda x, y: x * torch.sin(y), lambda x, y: x - torch.cos(y)) == []
        assert reasons(lambda x, y: x - y, lambda x, y: x - torch.cos(y)) == [
            "the pattern's `%sub` is fed argument 2 by cos, here by the input `y`"
        ]

    def test_a_different_constant_is_shown(self) -> None:
        assert reasons(lambda x: F.dropout(x, 0.1), lambda x: F.dropout(x, 0.5)) == [
            "`%dropout` has p=0.1 where the pattern has p=0.5"
        ]
        assert reasons(lambda x: F.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 3)) == [
            "`%max_pool2d` has kernel_size=(2, 2) where the pattern has kernel_size=(3, 3)"
        ]

    def test_a_different_mode_is_shown(self) -> None:
        program = fx.symbolic_trace(nn.Sequential(nn.Dropout(0.5)).eval())
        assert reasons(program, nn.Dropout(0.5)) == ["`%_0` has training=False where the pattern has training=True"]

    def test_different_numbers_of_arguments_are_shown(self) -> None:
        program = fx.symbolic_trace(lambda x: own(x, 1))
        assert reasons(program, lambda x: own(x, 1, 2)) == [
            "`%own` is called with argument 1, argument 2, the pattern's with argument 1, argument 2, argument 3"
        ]

    def test_a_value_that_is_not_used_as_in_the_pattern_is_named(self) -> None:
        assert reasons(lambda x: torch.sin(x) + 1, lambda x: (torch.sin(x), torch.cos(x))) == [
            "`%x` is not used by cos"
        ]

    def test_arithmetic_on_numbers_is_no_function_of_tensors(self) -> None:
        def program(x: Any, n: int, scale: Any = 2.0) -> Any:
            return -x, -n, -scale, -x.shape[0]

        assert found(program, lambda x: torch.neg(x)) == ["neg"]
        assert found(program, lambda x: x.neg()) == ["neg"]
        assert found(program, lambda x: -x) == ["neg", "neg_1", "neg_2", "neg_3"]
        reason = "it is arithmetic on numbers, the pattern's neg takes tensors"
        assert reasons(program, lambda x: torch.neg(x)) == [reason] * 3

    def test_an_overlapping_match_is_named(self) -> None:
        def program(x: Any) -> Any:
            return torch.relu(torch.relu(torch.relu(x)))

        assert reasons(program, lambda x: torch.relu(torch.relu(x)))[-1:] == [
            "`%relu_1` belongs to another match, which comes first"
        ]

    def test_a_near_miss_tells_the_line(self) -> None:
        program = fx.symbolic_trace(lambda x: torch.relu(torch.sin(x)))
        (miss,) = explain(program, lambda x: torch.relu(torch.exp(x))).near_misses
        assert miss.where is not None and miss.where.file == __file__
        assert str(miss).startswith(f"at `%relu` ({__file__}:{miss.where.line}): the pattern's `%relu` is fed by exp")
        assert miss.matched == 1

    def test_an_explanation_prints_all_of_it(self) -> None:
        program = fx.symbolic_trace(lambda x: torch.relu(torch.exp(x)) + torch.relu(torch.sin(x)))
        for node in program.graph.nodes:
            node.source = None
        explanation = explain(program, lambda x: torch.relu(torch.exp(x)))
        assert str(explanation).splitlines() == [
            "1 match",
            "  `%relu`",
            "1 near miss",
            "  at `%relu_1`: the pattern's `%relu` is fed by exp, here by sin",
        ]
        assert str(Explanation((), ())) == "0 matches\n0 near misses"

    def test_nothing_is_changed(self) -> None:
        program = fx.symbolic_trace(lambda x: torch.relu(torch.exp(x)))
        code, revision = program.code, program.graph.revision
        explain(program, lambda x: torch.relu(torch.exp(x)))
        assert (program.code, program.graph.revision) == (code, revision)


class TestPatterns:
    @pytest.mark.parametrize(
        "pattern, message",
        [
            (lambda x: x, "the pattern returns its input `x`"),
            (lambda x: (torch.relu(x), x), "the pattern returns its input `x`"),
            (lambda x: (torch.relu(x), 1), "the pattern returns the constant 1"),
            (lambda x: None, "the pattern returns the constant None"),
            (nn.Identity(), "the pattern returns what is not a result of an operation"),
            (3, "'pattern' of Matcher is a function or a Module or a Graph, not an int"),
        ],
        ids=["input", "input beside a result", "constant", "nothing", "identity", "number"],
    )
    def test_patterns_that_say_nothing_are_refused(self, pattern: Any, message: str) -> None:
        with pytest.raises(fx.PassError, match=message):
            Matcher(fx.symbolic_trace(lambda x: torch.relu(x)), pattern)

    def test_a_pattern_with_dead_code_is_refused(self) -> None:
        def pattern(x: Any) -> Any:
            torch.sin(x)
            return torch.relu(x)

        with pytest.raises(fx.PassError, match="the pattern computes `%sin` and does not use it") as caught:
            Matcher(fx.symbolic_trace(lambda x: torch.relu(x)), pattern)
        assert __file__ in str(caught.value) and "return it, or drop it" in str(caught.value)

    def test_a_pattern_without_operations_is_refused(self) -> None:
        class Fetches(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = nn.Parameter(torch.ones(1))

            def forward(self) -> Any:
                return self.w

        with pytest.raises(fx.PassError, match="the pattern has no operation to look for"):
            Matcher(fx.symbolic_trace(lambda x: torch.relu(x)), Fetches())

    def test_a_pattern_that_cannot_be_captured_says_that_it_is_the_pattern(self) -> None:
        def branching(x: Any) -> Any:
            return x if x.sum() > 0 else -x

        with pytest.raises(fx.TraceError) as caught:
            Matcher(fx.symbolic_trace(lambda x: torch.relu(x)), branching)
        assert caught.value.__notes__ == ["while capturing the pattern branching"]

    def test_graphs_and_graph_modules_are_patterns(self) -> None:
        graph = fx.Graph()
        graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
        traced = fx.symbolic_trace(lambda x: torch.relu(x))
        for pattern in (graph, traced, traced.graph):
            matcher = Matcher(fx.symbolic_trace(lambda x: F.relu(x)), pattern)
            (match,) = matcher.matches()
            assert set(match.nodes_map) == set(matcher.pattern.graph.nodes) - {matcher.pattern.graph.output_node()}
        assert graph.owning_module is None

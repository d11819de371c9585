"""Replacing patterns: the expected code, equal numbers, and the program's own state left as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling, body
from torch import nn

import fx
from fx.matcher import InternalMatch, literal
from fx.subgraph_rewriter import ReplacedPatterns, replace_pattern, replace_pattern_with_filters


def rewritten(program: Any, pattern: Any, replacement: Any, **options: Any) -> list[str]:
    """Return the code after replacing; check equal results if a replacement promises them."""
    graph_module = program if isinstance(program, fx.GraphModule) else fx.symbolic_trace(program)
    replace_pattern_with_filters(graph_module, pattern, replacement, **options)
    graph_module.graph.lint()
    return body(graph_module)


class TestCode:
    def test_every_spelling_is_replaced(self) -> None:
        def program(x: Any) -> Any:
            return torch.relu(x) + F.relu(x) * x.relu()

        assert rewritten(program, lambda x: torch.relu(x), lambda x: F.gelu(x)) == [
            "gelu_1 = torch.nn.functional.gelu(x)",
            "gelu_2 = torch.nn.functional.gelu(x)",
            "mul = gelu_1 * gelu_2",
            "gelu = torch.nn.functional.gelu(x)",
            "add = gelu + mul",
            "return add",
        ]

    def test_several_results_take_each_its_place(self) -> None:
        def program(x: Any, y: Any) -> Any:
            return torch.sin(x) + 1, torch.cos(x) + 2

        code = rewritten(program, lambda a: (torch.sin(a), torch.cos(a)), lambda a: {"s": a + 3, "c": a + 4})
        assert code[:2] == ["add_2 = x + 3", "add_3 = x + 4"]
        assert code[2:] == ["add = add_2 + 1", "add_1 = add_3 + 2", "return (add, add_1)"]

    def test_a_user_that_is_before_an_input_moves_behind_the_replacement(self) -> None:
        def program(x: Any) -> Any:
            used = torch.sin(x) + 1
            return used, torch.cos(torch.exp(x))

        code = rewritten(program, lambda a, b: (torch.sin(a), torch.cos(b)), lambda a, b: (a - b, b - a))
        assert code == [
            "exp = torch.exp(x)",
            "sub = x - exp",
            "sub_1 = exp - x",
            "add = sub + 1",
            "return (add, sub_1)",
        ]

    def test_an_operation_in_place_stays_before_the_reads_that_follow_it(self) -> None:
        def program(x: Any) -> Any:
            y = x.add_(1)
            z = x * 2
            return y, z

        assert rewritten(program, lambda x: x.add_(1), lambda x: x.sub_(1)) == [
            "sub_ = x.sub_(1)",
            "mul = x * 2",
            "return (sub_, mul)",
        ]

    def test_swapped_operands_are_passed_to_the_right_inputs(self) -> None:
        def program(x: Any, y: Any) -> Any:
            return y + torch.sin(x)

        code = rewritten(program, lambda a, b: torch.sin(a) + b, lambda a, b: a - b)
        assert code == ["sub = x - y", "return sub"]

    def test_lists_and_constants_are_passed_on(self) -> None:
        def program(x: Any, y: Any) -> Any:
            return torch.cat([x, y], 1) + torch.cat((y, x), dim=-1)

        code = rewritten(program, lambda xs, d: torch.cat(xs, d), lambda xs, d: torch.stack(xs, d))
        assert code[:2] == ["stack = torch.stack([x, y], 1)", "stack_1 = torch.stack((y, x), -1)"]

    def test_constants_are_passed_on_as_they_are_written(self) -> None:
        def pattern(x: Any, kernel: Any) -> Any:
            return F.avg_pool2d(x, kernel)

        code = rewritten(lambda x: F.avg_pool2d(x, 2), pattern, lambda x, kernel: x * kernel)
        assert code == ["mul = x * 2", "return mul"]

    def test_a_callback_makes_a_replacement_for_each_match(self) -> None:
        def scaled(match: InternalMatch, graph: fx.Graph, pattern: fx.Graph) -> fx.Graph:
            p = match.literals["p"]
            return fx.symbolic_trace(lambda x: x * (1 - p)).graph

        def program(x: Any) -> Any:
            return F.dropout(x, 0.25) + F.dropout(x, 0.5)

        code = rewritten(program, lambda x: F.dropout(x, p=literal("p")), None, replacement_callback=scaled)
        assert code == ["mul = x * 0.75", "mul_1 = x * 0.5", "add = mul + mul_1", "return add"]

    def test_a_callback_sees_the_replacements_of_earlier_matches(self) -> None:
        recorded: list[str] = []

        def replacement(match: InternalMatch, graph: fx.Graph, pattern: fx.Graph) -> fx.GraphModule:
            recorded.append(str(match.placeholder_nodes[0]))
            return fx.symbolic_trace(lambda x: torch.cos(x))

        rewritten(lambda x: torch.sin(torch.sin(x)), lambda x: torch.sin(x), None, replacement_callback=replacement)
        assert recorded == ["x", "cos"]

    def test_nothing_found_is_nothing_changed(self) -> None:
        program = fx.symbolic_trace(lambda x: torch.sin(x))
        revision = program.graph.revision
        assert replace_pattern(program, lambda x: torch.cos(x), lambda x: torch.sin(x)) == []
        assert program.graph.revision == revision


class TestResults:
    def test_the_new_nodes_are_reported(self) -> None:
        program = fx.symbolic_trace(lambda x: torch.relu(x))
        (done,) = replace_pattern_with_filters(program, lambda x: torch.relu(x), lambda x: torch.sin(x) + 1)
        assert isinstance(done, ReplacedPatterns)
        assert [node.name for node in done.replacements] == ["sin", "add"]
        assert all(node in program.graph.nodes for node in done.replacements)

    def test_an_input_that_was_replaced_meanwhile_is_reported_as_it_is_now(self) -> None:
        program = fx.symbolic_trace(lambda x: torch.relu(torch.relu(x)))
        first, second = replace_pattern(program, lambda a: torch.relu(a), lambda a: torch.sin(a))
        assert [match.nodes_map[match.anchor.args[0]].name for match in (first, second)] == ["x", "sin"]


class TestProvenance:
    def test_new_nodes_represent_all_that_they_replace(self) -> None:
        def program(x: Any) -> Any:
            y = x + 1
            return torch.relu(y)

        captured = fx.symbolic_trace(program)
        line = captured.graph.find_nodes(op="call_function", target=torch.relu)[0].source
        replace_pattern(captured, lambda a: torch.relu(a + 1), lambda a: torch.sin(a) * 2)
        for name in ("sin", "mul"):
            (node,) = [node for node in captured.graph.nodes if node.name == name]
            assert (node.origins, node.source) == (("add", "relu"), line)

    def test_new_nodes_keep_the_place_in_the_module_hierarchy(self) -> None:
        program = fx.symbolic_trace(Calling(lambda m, x: m.block(x), block=nn.Sequential(nn.ReLU())))
        stack = next(iter(program.graph.find_nodes(op="call_module"))).meta["nn_module_stack"]
        replace_pattern(program, nn.ReLU(), lambda x: torch.sin(x))
        (node,) = program.graph.find_nodes(op="call_function")
        assert node.meta["nn_module_stack"] == stack


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 5, bias=False)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.second(torch.relu(self.first(x))))


class LinearRelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.linear(x))


class LinearClamp(LinearRelu):
    def forward(self, x: Any) -> Any:
        return self.linear(x).clamp(min=0)


class TestState:
    def test_parameters_of_a_module_are_passed_as_inputs(self) -> None:
        model, x = Linears(), torch.randn(2, 3)
        program = fx.symbolic_trace(model)
        expected, state = model(x), list(program.state_dict())
        code = rewritten(program, lambda x, w, b: F.linear(x, w, b), lambda x, w, b: torch.matmul(x, w.t()))
        assert code[:4] == [
            "first_weight = self.first.weight",
            "t = first_weight.t()",
            "matmul = torch.matmul(x, t)",
            "relu = torch.relu(matmul)",
        ]
        assert list(program.state_dict()) == state
        program = fx.symbolic_trace(model)
        rewritten(program, lambda x, w, b: torch.relu(F.linear(x, w, b)), lambda x, w, b: F.linear(x, w, b).relu())
        assert torch.equal(program(x), expected)
        assert program.get_parameter("first.weight") is model.first.weight

    def test_a_module_of_the_pattern_refers_to_its_match_in_the_replacement(self) -> None:
        model, x = Linears(), torch.randn(2, 3)
        program = fx.symbolic_trace(model)
        assert rewritten(program, LinearRelu(), LinearClamp())[:2] == [
            "linear = self.first(x)",
            "clamp = linear.clamp(min = 0)",
        ]
        assert torch.equal(program(x), model(x))
        assert list(program.state_dict()) == list(model.state_dict())

    def test_a_parameter_of_the_pattern_refers_to_its_match_in_the_replacement(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(2))

            def forward(self, x: Any) -> Any:
                return x * self.scale

        class Divided(Scaled):
            def forward(self, x: Any) -> Any:
                return x / self.scale

        program = fx.symbolic_trace(Calling(lambda m, x: m.gain * x, gain=nn.Parameter(torch.tensor([2.0, 4.0]))))
        assert rewritten(program, Scaled(), Divided()) == [
            "scale = self.gain",
            "truediv = x / scale",
            "return truediv",
        ]
        assert torch.equal(program(torch.ones(2)), torch.tensor([0.5, 0.25]))

    def test_modules_of_the_replacement_are_copied_in_under_free_names(self) -> None:
        model = Calling(lambda m, x: m.linear(torch.sin(x)) + torch.sin(x), linear=nn.Linear(2, 2))
        block = nn.Sequential(nn.Linear(2, 2))
        replacement = Calling(lambda m, x: m.block(m.linear(x)), linear=nn.Linear(2, 2), block=block)
        program = fx.symbolic_trace(model)
        matches = replace_pattern(program, lambda x: torch.sin(x), replacement)
        assert len(matches) == 2
        assert [name for name, _ in program.named_children()] == ["linear", "linear_1", "block"]
        assert torch.equal(program.linear.weight, model.linear.weight)
        assert torch.equal(program.linear_1.weight, replacement.linear.weight)
        assert program.linear_1.weight is not replacement.linear.weight
        x = torch.randn(2, 2)
        assert torch.equal(program(x), model.linear(replacement(x)) + replacement(x))
        assert list(model.state_dict()) == ["linear.weight", "linear.bias"]

    def test_constants_of_the_replacement_are_copied_in(self) -> None:
        program = fx.symbolic_trace(lambda x: x * torch.tensor(2.0) + torch.sin(x))
        replace_pattern(program, lambda x: torch.sin(x), lambda x: x * torch.tensor(3.0))
        assert program(torch.ones(1)) == 5

    def test_modules_that_are_no_longer_called_are_removed_and_no_others(self) -> None:
        model = Calling(lambda m, x: m.block(x), block=nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout(0.5)))
        program = fx.symbolic_trace(model)
        program.add_submodule("spare", nn.Linear(1, 1))
        replace_pattern(program, nn.ReLU(), lambda x: torch.sin(x))
        names = [name for name, _ in program.named_modules()]
        assert names == ["", "block", "block.0", "block.2", "spare"]
        assert len(model.block) == 3

    def test_nothing_is_put_into_modules_that_the_traced_one_shares(self) -> None:
        model = Calling(lambda m, x: torch.sin(m.block(x)), block=nn.Linear(2, 2))
        program = fx.symbolic_trace(model)
        extended = Calling(lambda m, x: x * m.extra, extra=nn.Parameter(torch.ones(2)))
        replace_pattern(program, lambda x: torch.sin(x), Calling(lambda m, x: m.block(x), block=extended))
        assert list(model.state_dict()) == ["block.weight", "block.bias"]
        assert "block_extra" in program.state_dict()

    def test_identities_inside_of_a_match_go_with_it(self) -> None:
        model = nn.Sequential(nn.Identity(), nn.Linear(2, 2), nn.Identity(), nn.ReLU(), nn.Identity())
        program = fx.symbolic_trace(model)
        expected = model(torch.ones(1, 2))
        rewritten(program, lambda x, w, b: F.relu(F.linear(x, w, b)), lambda x, w, b: F.linear(x, w, b).clamp(min=0))
        assert [node.target for node in program.graph.find_nodes(op="call_module")] == ["4"]
        assert torch.equal(program(torch.ones(1, 2)), expected)

    def test_batch_norm_in_training_is_replaced_with_its_counter(self) -> None:
        model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)).train()
        program = fx.symbolic_trace(model)
        assert len(replace_pattern(program, nn.BatchNorm2d(2), lambda x: torch.sin(x))) == 1
        assert [node.name for node in program.graph.nodes] == ["input_1", "_0", "sin", "output"]

    def test_a_recurrent_module_is_a_replacement(self) -> None:
        program = fx.symbolic_trace(lambda x: torch.stack([x, x])[0])
        lstm = nn.GRU(2, 2)
        replace_pattern(program, lambda x: torch.stack([x, x]), lstm)
        x = torch.randn(3, 2)
        assert torch.equal(program(x), lstm(x)[0])


class TestErrors:
    @pytest.fixture
    def program(self) -> fx.GraphModule:
        return fx.symbolic_trace(lambda x: torch.relu(x))

    def test_only_graph_modules_have_patterns_replaced(self) -> None:
        with pytest.raises(fx.PassError, match="'gm' of replace_pattern is a GraphModule, not a ReLU"):
            replace_pattern(nn.ReLU(), lambda x: torch.relu(x), lambda x: x)  # type: ignore[arg-type]

    def test_something_must_take_the_place(self, program: fx.GraphModule) -> None:
        with pytest.raises(fx.PassError, match="there is nothing to replace the pattern by"):
            replace_pattern_with_filters(program, lambda x: torch.relu(x))

    def test_a_replacement_takes_as_many_inputs(self, program: fx.GraphModule) -> None:
        with pytest.raises(fx.PassError, match="the replacement takes 2 inputs, the pattern 1") as caught:
            replace_pattern(program, lambda x: torch.relu(x), lambda x, y: x + y)
        assert "replacement(x, y), pattern(x)" in str(caught.value)

    def test_a_replacement_returns_as_many_values(self, program: fx.GraphModule) -> None:
        with pytest.raises(fx.PassError, match="the replacement returns 2 values, the pattern 1"):
            replace_pattern(program, lambda x: torch.relu(x), lambda x: (x, x))

    def test_a_replacement_uses_only_inputs_of_the_pattern(self, program: fx.GraphModule) -> None:
        with pytest.raises(fx.PassError, match="the replacement uses its input `y`, which the pattern does not use"):
            replace_pattern(program, lambda x, y: torch.relu(x), lambda x, y: x + y)

    def test_a_replacement_with_a_missing_module_is_refused(self, program: fx.GraphModule) -> None:
        graph = fx.Graph()
        graph.output(graph.call_module("missing", (graph.placeholder("x"),)))
        with pytest.raises(fx.PassError, match="refers to `missing`, which neither it nor the program has"):
            replace_pattern(program, lambda x: torch.relu(x), graph)

    def test_a_replacement_is_something_with_a_graph(self, program: fx.GraphModule) -> None:
        with pytest.raises(
            fx.PassError, match="'replacement' of replace_pattern is a function or a Module or a Graph, not a str"
        ):
            replace_pattern(program, lambda x: torch.relu(x), "relu")  # type: ignore[arg-type]

    def test_a_replacement_that_cannot_be_captured_says_so(self, program: fx.GraphModule) -> None:
        def branching(x: Any) -> Any:
            return x if x.sum() > 0 else -x

        with pytest.raises(fx.TraceError) as caught:
            replace_pattern(program, lambda x: torch.relu(x), branching)
        assert caught.value.__notes__ == ["while capturing the replacement branching"]

    def test_a_callback_returns_a_graph(self, program: fx.GraphModule) -> None:
        def nonsense(match: InternalMatch, graph: fx.Graph, pattern: fx.Graph) -> Any:
            return 3

        with pytest.raises(fx.PassError, match="the replacement callback returned an int") as caught:
            replace_pattern_with_filters(program, lambda x: torch.relu(x), replacement_callback=nonsense)
        assert "nonsense" in str(caught.value)

    def test_a_callback_that_fails_leaves_a_program_that_runs(self) -> None:
        def once(match: InternalMatch, graph: fx.Graph, pattern: fx.Graph) -> Any:
            return 3 if match.placeholder_nodes[0].op != "placeholder" else fx.symbolic_trace(lambda x: torch.cos(x))

        program = fx.symbolic_trace(lambda x: torch.relu(torch.relu(x)))
        with pytest.raises(fx.PassError, match="the replacement callback returned an int"):
            replace_pattern_with_filters(program, lambda x: torch.relu(x), replacement_callback=once)
        assert body(program) == ["cos = torch.cos(x)", "relu_1 = torch.relu(cos)", "return relu_1"]

    def test_a_value_that_is_returned_twice_is_replaced_by_one(self) -> None:
        def twice(x: Any) -> Any:
            y = torch.relu(x)
            return y, y

        program = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
        assert len(replace_pattern(copy.deepcopy(program), twice, lambda x: (x, x))) == 1
        with pytest.raises(fx.PassError, match="the replacement returns two values for `%relu`"):
            replace_pattern(program, twice, lambda x: (x, x + 1))


def test_a_long_chain_is_rewritten_in_linear_time() -> None:
    graph = fx.Graph()
    value = graph.placeholder("x")
    for _ in range(2000):
        value = graph.call_function(torch.neg, (graph.call_function(torch.relu, (value,)),))
    graph.output(value)
    program = fx.GraphModule(nn.Module(), graph)
    assert len(replace_pattern(program, lambda x: torch.neg(torch.relu(x)), lambda x: torch.sin(x))) == 2000
    assert [node.name for node in program.graph.nodes][:3] == ["x", "sin", "sin_1"]
    assert len(program.graph.nodes) == 2002

"""Patterns replaced by both libraries: the same programs where torch.fx is right, and where it is not."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from building import Calling
from torch import nn

import fx
from fx import subgraph_rewriter as ours

from .libraries import LIBRARIES, LIBRARY_NAMES, OURS, assert_identical, neutral, refuses

Program = Callable[..., Any]


def rewriter(library: ModuleType) -> ModuleType:
    return ours if library is OURS else torch.fx.subgraph_rewriter


def chain(x: Any) -> Any:
    for _ in range(5):
        x = torch.relu(torch.neg(x))
    return x


def shared(x: Any, y: Any) -> Any:
    total = torch.sin(x + y)
    return torch.relu(total) + torch.sin(x * y), total


def diamond(x: Any) -> Any:
    y = torch.exp(x)
    return torch.relu(y) + torch.sigmoid(y)


def used_inside(x: Any) -> Any:
    y = torch.exp(x)
    return torch.relu(y) + y


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = torch.matmul(q, k.transpose(-2, -1)) / 8.0
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def attended(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, scale=0.125)


def two_heads(x: Any) -> Any:
    y = torch.sin(x)
    return {"sum": y + 1, "product": [y * 2, torch.cos(x)]}


def split_results(x: Any) -> Any:
    left, right = torch.split(x, 2)
    return torch.relu(left) + right


PROGRAMS: dict[str, tuple[Program, Program, Program]] = {
    "one operation": (lambda x: torch.relu(x), lambda a: torch.relu(a), lambda a: torch.sigmoid(a)),
    "twice": (lambda x: torch.relu(x) + torch.relu(x), lambda a: torch.relu(a), lambda a: torch.sigmoid(a)),
    "chain": (chain, lambda a: torch.relu(torch.neg(a)), lambda a: torch.sigmoid(a)),
    "chain of chains": (chain, lambda a: torch.neg(torch.relu(torch.neg(a))), lambda a: torch.exp(a)),
    "nested": (lambda x, y: (x + y) + (y + x), lambda a, b: a + b, lambda a, b: a - b),
    "shared result": (shared, lambda a, b: torch.sin(a + b), lambda a, b: torch.cos(a - b)),
    "diamond": (diamond, lambda a: torch.relu(a) + torch.sigmoid(a), lambda a: torch.tanh(a)),
    "used inside": (used_inside, lambda a: torch.relu(torch.exp(a)), lambda a: torch.tanh(a)),
    "inner value used": (diamond, lambda a: torch.relu(torch.exp(a)), lambda a: torch.tanh(a)),
    "several results": (diamond, lambda a: (torch.relu(a), torch.sigmoid(a)), lambda a: (torch.cos(a), torch.sin(a))),
    "inner result": (used_inside, lambda a: (torch.exp(a), torch.relu(torch.exp(a))), lambda a: (a + 1, a + 2)),
    "dropped": (lambda x: F.dropout(F.dropout(x, 0.0), 0.0).sin(), lambda a: F.dropout(a, 0.0), lambda a: a),
    "constant input": (lambda x: (x + 1, x + 2.5), lambda a, b: a + b, lambda a, b: a * b),
    "literal": (lambda x: (x * 2, x * 3), lambda a: a * 2, lambda a: a + a),
    "float literal": (lambda x: (x * 2, x * 2.0), lambda a: a * 2.0, lambda a: a + a),
    "list": (lambda x, y: torch.cat([x, y]).sum(), lambda a, b: torch.cat([a, b]), lambda a, b: torch.stack([a, b])),
    "list as input": (lambda x, y: torch.cat([x, y]), lambda a: torch.cat(a), lambda a: torch.stack(a)),
    "keyword": (lambda x: torch.sum(x, dim=1), lambda a: torch.sum(a, dim=1), lambda a: torch.mean(a, dim=1)),
    "method": (lambda x: x.neg().sum(), lambda a: a.neg(), lambda a: a.abs()),
    "attention": (attention, attention, attended),
    "structures": (two_heads, lambda a: torch.sin(a), lambda a: torch.exp(a)),
    "unpacked": (split_results, lambda a: torch.relu(a), lambda a: torch.abs(a)),
    "grown": (lambda x: torch.sin(x), lambda a: torch.sin(a), lambda a: torch.exp(torch.neg(a)) + torch.cos(a)),
    "nothing found": (lambda x: torch.sin(x), lambda a: torch.cos(a), lambda a: a),
    "names taken": (lambda sigmoid: torch.relu(sigmoid) + 1, lambda x: torch.relu(x), lambda x: torch.sigmoid(x) + 1),
    "slices": (lambda x: x[:, 1:] + 1, lambda a: a[:, 1:], lambda a: a[:, :-1]),
    "in place": (lambda x: torch.neg(x).add_(1), lambda a: a.add_(1), lambda a: a.sub_(1)),
    "input used twice": (lambda x, y: (x * x, x * y), lambda a: a * a, lambda a: torch.square(a)),
}


def inputs(program: Program) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 4) for _ in range(program.__code__.co_argcount)]


def names(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [names(element) for element in value]
    return value.name if hasattr(value, "all_input_nodes") else value


@pytest.mark.parametrize("program, pattern, replacement", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_programs_matches_and_results_are_the_same(program: Program, pattern: Program, replacement: Program) -> None:
    lines: list[Any] = []
    for library in LIBRARIES:
        traced = library.symbolic_trace(program)
        matches = rewriter(library).replace_pattern(traced, pattern, replacement)
        traced.graph.lint()
        results = traced(*inputs(program))
        described = [
            (match.anchor.name, {key.name: names(value) for key, value in match.nodes_map.items()}) for match in matches
        ]
        # without the line of the signature: torch.fx keeps annotations as strings
        statements = neutral(traced.code).strip().partition("\n")[2]
        lines.append((statements, described, results))
    (their_code, their_matches, their_results), (our_code, our_matches, our_results) = lines
    assert our_code == their_code
    assert our_matches == their_matches
    assert_identical(our_results, their_results)


@pytest.mark.parametrize("library", LIBRARIES, ids=LIBRARY_NAMES)
class TestBoth:
    def test_modules_of_pattern_and_replacement_are_the_programs(self, library: ModuleType) -> None:
        model, pattern, replacement = (
            Calling(call, linear=nn.Linear(4, 4))
            for call in (
                lambda self, x: torch.relu(self.linear(x)),
                lambda self, x: torch.relu(self.linear(x)),
                lambda self, x: self.linear(x).clamp(min=0),
            )
        )
        traced = library.symbolic_trace(model)
        assert len(rewriter(library).replace_pattern(traced, pattern, replacement)) == 1
        assert "clamp" in traced.code
        x = torch.randn(2, 4)
        assert torch.equal(traced(x), model(x))
        assert list(traced.state_dict()) == list(model.state_dict())

    def test_modules_of_the_replacement_are_copied_and_unused_ones_removed(self, library: ModuleType) -> None:
        traced = library.symbolic_trace(Calling(lambda self, x: self.act(torch.sin(x)), act=nn.ReLU()))
        replacement = Calling(lambda self, x: self.scale(x), scale=nn.Linear(4, 4))
        rewriter(library).replace_pattern(traced, Calling(lambda self, x: self.act(x), act=nn.ReLU()), replacement)
        assert [name for name, _ in traced.named_children()] == ["scale"]
        assert traced.scale is not replacement.scale
        x = torch.randn(2, 4)
        assert torch.equal(traced(x), replacement(torch.sin(x)))

    def test_filters_get_the_match_and_both_graphs(self, library: ModuleType) -> None:
        recorded: list[Any] = []

        def accept(match: Any, original: Any, pattern: Any) -> bool:
            recorded.append(
                (
                    [node.name for node in match.anchors],
                    names(match.placeholder_nodes),
                    names(match.returning_nodes),
                    original is traced.graph,
                    [node.name for node in pattern.nodes],
                )
            )
            return len(recorded) > 1

        traced = library.symbolic_trace(lambda x: torch.relu(x + 1) + torch.relu(x * 2))
        done = rewriter(library).replace_pattern_with_filters(
            traced, lambda a: torch.relu(a), lambda a: torch.exp(a), [accept]
        )
        assert [names(replaced.replacements) for replaced in done] == [["exp"]]
        nodes = ["a", "relu", "output"]
        assert recorded == [(["relu"], ["add"], ["relu"], True, nodes), (["relu"], ["mul"], ["relu_1"], True, nodes)]

    def test_literals_are_ignored_on_request(self, library: ModuleType) -> None:
        traced = library.symbolic_trace(lambda x: (x * 2, x * 3.0))
        done = rewriter(library).replace_pattern_with_filters(
            traced, lambda a: a * 1, lambda a: a + a, ignore_literals=True
        )
        assert len(done) == 2

    def test_a_callback_makes_the_replacement(self, library: ModuleType) -> None:
        def doubled(match: Any, original: Any, pattern: Any) -> Any:
            return library.symbolic_trace(lambda a: a + len(match.nodes_map)).graph

        traced = library.symbolic_trace(lambda x: torch.relu(x))
        rewriter(library).replace_pattern_with_filters(traced, lambda a: torch.relu(a), replacement_callback=doubled)
        assert "x + 2" in traced.code

    def test_a_name_of_the_last_node_is_enough(self, library: ModuleType) -> None:
        traced = library.symbolic_trace(lambda x: torch.tanh(torch.sin(x)))
        done = rewriter(library).replace_pattern_with_filters(
            traced, lambda a: torch.relu(torch.sin(a)), lambda a: torch.cos(a), node_name_match="tan"
        )
        assert len(done) == 1 and "cos" in traced.code

    @pytest.mark.parametrize("kind", ["graph", "module"])
    def test_patterns_and_replacements_may_be_captured(self, library: ModuleType, kind: str) -> None:
        pattern, replacement = (library.symbolic_trace(f) for f in (lambda a: torch.relu(a), lambda a: torch.exp(a)))
        if kind == "graph":
            pattern, replacement = pattern.graph, replacement.graph
        traced = library.symbolic_trace(lambda x: torch.relu(x))
        (done,) = rewriter(library).replace_pattern_with_filters(traced, pattern, replacement)
        graph = pattern if kind == "graph" else pattern.graph
        assert done.anchor in list(graph.nodes)

    def test_mistakes_are_refused(self, library: ModuleType) -> None:
        def dead(a: Any) -> Any:
            torch.sin(a)
            return torch.relu(a)

        traced = library.symbolic_trace(lambda x: torch.relu(x))
        replace = rewriter(library).replace_pattern_with_filters
        with refuses(library, AssertionError):
            replace(traced, lambda a: torch.relu(a), lambda a, b: a + b)
        with refuses(library, AssertionError):
            replace(traced, lambda a: torch.relu(a))
        with refuses(library, AssertionError):
            replace(traced, dead, lambda a: a)


def both(program: Program, pattern: Program, replacement: Program) -> tuple[Any, Any]:
    """The program rewritten by torch.fx and by us."""
    rewritten: list[Any] = []
    for library in LIBRARIES:
        traced = library.symbolic_trace(program)
        rewriter(library).replace_pattern(traced, pattern, replacement)
        rewritten.append(traced)
    return rewritten[0], rewritten[1]


class TestOursAlone:
    """Matches that torch.fx misses, breaks or gets wrong."""

    def test_other_spellings_match(self) -> None:
        def program(x: Any) -> Any:
            return x.relu() + F.relu(x) + torch.flatten(x, start_dim=1).sum()

        theirs, right = both(program, lambda a: torch.relu(a), lambda a: torch.exp(a))
        assert ("exp" in theirs.code, right.code.count("torch.exp(")) == (False, 2)
        theirs, right = both(program, lambda a: torch.flatten(a, 1), lambda a: a)
        assert ("flatten(" in theirs.code, "flatten(" in right.code) == (True, False)

    def test_swapped_operands_match(self) -> None:
        theirs, right = both(lambda x: torch.exp(x) + x, lambda a: a + torch.exp(a), lambda a: torch.sin(a))
        assert ("sin" in theirs.code, "sin" in right.code) == (False, True)

    def test_two_inputs_may_be_one_value(self) -> None:
        theirs, right = both(lambda x: x + x, lambda a, b: a + b, lambda a, b: a - b)
        assert ("sub" in theirs.code, "sub" in right.code) == (False, True)

    def test_a_tensor_that_several_matches_read_is_no_overlap(self) -> None:
        pattern = Calling(lambda self, x: x * self.scale, scale=nn.Parameter(torch.ones(4)))
        model = Calling(lambda self, x: torch.sin(x * self.scale) * self.scale, scale=nn.Parameter(torch.ones(4)))
        counts = []
        for library in LIBRARIES:
            traced = library.symbolic_trace(model)
            counts.append(len(rewriter(library).replace_pattern(traced, pattern, lambda a: torch.exp(a))))
        assert counts == [0, 2]

    def test_an_unused_input_is_allowed(self) -> None:
        traced = torch.fx.symbolic_trace(lambda x: torch.relu(x))
        with pytest.raises(KeyError):
            torch.fx.replace_pattern(traced, lambda a, b: torch.relu(a), lambda a, b: a)
        traced = fx.symbolic_trace(lambda x: torch.relu(x))
        assert len(ours.replace_pattern(traced, lambda a, b: torch.relu(a), lambda a, b: a)) == 1

    def test_a_replacement_comes_after_all_its_inputs(self) -> None:
        def program(x: Any) -> Any:
            used = torch.relu(x) + 1
            return used * torch.neg(torch.exp(x))

        theirs, right = both(program, lambda a, b: (torch.relu(a), torch.neg(b)), lambda a, b: (a + b, a - b))
        with pytest.raises(RuntimeError, match="used before it has been defined"):
            theirs.graph.lint()
        right.graph.lint()
        x = torch.randn(3)
        assert torch.equal(right(x), (x + torch.exp(x) + 1) * (x - torch.exp(x)))

    def test_a_read_is_not_moved_over_a_write(self) -> None:
        def program(x: Any) -> Any:
            y = torch.relu(x)
            x.add_(1)
            return y * 2

        theirs, right = both(program, lambda a: torch.relu(a), lambda a: torch.clamp(a, min=0))
        x = torch.tensor([-0.5, 1.0])
        expected = program(x.clone())
        assert torch.equal(right(x.clone()), expected)
        assert not torch.equal(theirs(x.clone()), expected)

    def test_operations_are_not_matched_over_a_write(self) -> None:
        def program(x: Any) -> Any:
            y = torch.exp(x)
            y.add_(1)
            return torch.relu(y) - x

        def pattern(a: Any) -> Any:
            y = torch.exp(a)
            return y, torch.relu(y)

        def replacement(a: Any) -> Any:
            y = torch.exp(a)
            return y, torch.clamp(y, min=0)

        theirs, right = both(program, pattern, replacement)
        x = torch.randn(4)
        assert torch.equal(right(x), program(x))
        assert len(ours.replace_pattern(fx.symbolic_trace(program), pattern, replacement)) == 0
        assert "clamp" in theirs.code

    def test_an_index_list_is_no_index_tuple(self) -> None:
        def program(x: Any) -> Any:
            return x[(0, 1)]

        theirs, right = both(program, lambda a: a[[0, 1]], lambda a: torch.narrow(a, 0, 0, 2))
        x = torch.randn(4, 4)
        assert torch.equal(right(x), program(x))
        assert theirs(x).shape != program(x).shape

    def test_constant_tensors_match_by_value(self) -> None:
        def program(x: Any) -> Any:
            return x * torch.tensor(2.0)

        theirs, right = both(program, lambda a: a * torch.tensor(3.0), lambda a: a + a + a)
        x = torch.ones(1)
        assert (theirs(x), right(x)) == (3, 2)

    def test_a_module_matches_by_its_settings_and_not_by_its_name(self) -> None:
        def sloping(slope: float) -> nn.Module:
            return Calling(lambda self, x: self.act(x), act=nn.LeakyReLU(slope))

        renamed = Calling(lambda self, x: self.other(x), other=nn.LeakyReLU(0.5))
        for model, expected in ((sloping(0.1), [1, 0]), (renamed, [0, 1])):
            counts = [
                len(rewriter(lib).replace_pattern(lib.symbolic_trace(model), sloping(0.5), lambda a: a))
                for lib in LIBRARIES
            ]
            assert counts == expected

    def test_weights_of_a_replacement_are_kept_despite_others_of_the_same_name(self) -> None:
        model = Calling(lambda self, x: self.linear(torch.sin(x)), linear=nn.Linear(4, 4))
        replacement = Calling(lambda self, x: self.linear(x), linear=nn.Linear(4, 4))
        x = torch.randn(2, 4)
        expected = model.linear(replacement.linear(x))
        same = []
        for library in LIBRARIES:
            traced = library.symbolic_trace(model)
            rewriter(library).replace_pattern(traced, lambda a: torch.sin(a), replacement)
            same.append(torch.equal(traced(x), expected))
        assert same == [False, True]

    def test_a_filter_makes_room_for_an_overlapping_match(self) -> None:
        def not_first(match: Any, original: Any, pattern: Any) -> bool:
            return match.returning_nodes[0].name != "relu_1"

        counts = []
        for library in LIBRARIES:
            traced = library.symbolic_trace(lambda x: torch.relu(torch.relu(torch.relu(x))))
            counts.append(
                len(
                    rewriter(library).replace_pattern_with_filters(
                        traced, lambda a: torch.relu(torch.relu(a)), lambda a: torch.exp(a), [not_first]
                    )
                )
            )
        assert counts == [0, 1]

    def test_a_pattern_whose_write_is_not_returned_works(self) -> None:
        def pattern(a: Any) -> Any:
            y = torch.exp(a)
            y.add_(1)
            return torch.sin(y)

        traced = torch.fx.symbolic_trace(pattern)
        with pytest.raises(AssertionError, match="dead code"):
            torch.fx.replace_pattern(traced, pattern, lambda a: torch.cos(a))
        assert len(ours.replace_pattern(fx.symbolic_trace(pattern), pattern, lambda a: torch.cos(a))) == 1

    def test_a_result_may_become_a_constant(self) -> None:
        theirs = torch.fx.symbolic_trace(lambda x: x + x.dim())
        with pytest.raises((TypeError, AttributeError, AssertionError)):
            torch.fx.replace_pattern(theirs, lambda a: a.dim(), lambda a: 2)
        program = fx.symbolic_trace(lambda x: x + x.dim())
        ours.replace_pattern(program, lambda a: a.dim(), lambda a: 2)
        assert "x + 2" in program.code

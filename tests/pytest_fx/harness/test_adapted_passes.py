"""Passes written for torch.fx are judged by their own effects, not by those of torch.fx."""

from __future__ import annotations

import copy
import operator
import textwrap
import warnings
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from catalogue.users import text_of
from hypothesis import strategies as st
from torch import nn
from torch.fx.passes.split_module import split_module

import fx
from fx.interop import adapt
from pytest_fx import check_pass, check_program
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import GivenProgram
from pytest_fx.laws import LawViolation


class AddsOne(nn.Module):
    def forward(self, x):
        return x + 1


def check(pass_: Any, build: Any = AddsOne) -> None:
    check_program(pass_, build, lambda: ((torch.ones(2, 2),), {}))


def returns_a_number(graph_module: torch.fx.GraphModule):
    return 3


def returns_a_text(graph_module: torch.fx.GraphModule):
    return "done"


def returns_a_layer(graph_module: torch.fx.GraphModule):
    return nn.ReLU()


def returns_code(graph_module: torch.fx.GraphModule):
    return graph_module.graph, True


def breaks_the_graph(graph_module: torch.fx.GraphModule):
    x, add, _ = graph_module.graph.nodes
    x.prepend(add)


def sets_its_own_code(graph_module: torch.fx.GraphModule):
    class OwnCode(torch.fx.graph.CodeGen):
        pass

    graph_module.graph.set_codegen(OwnCode())


def breaks_the_code(graph_module: torch.fx.GraphModule):
    def transform(body: list[str]):
        raise KeyError("not this body")

    graph_module.graph.on_generate_code(lambda _: transform)


@pytest.mark.parametrize(
    "pass_, message",
    [
        (returns_a_number, "returned no program"),
        (returns_a_text, "returned no program"),
        (returns_code, "returned no program"),
        (breaks_the_graph, "not well formed"),
        (sets_its_own_code, "which has no counterpart"),
        (breaks_the_code, "the result of the pass cannot be converted"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("in_a_pipeline", [False, True], ids=["alone", "in a pipeline"])
def test_an_invalid_program_is_the_fault_of_the_pass(pass_: Any, message: str, in_a_pipeline: bool) -> None:
    pipeline = fx.passes.PassPipeline([adapt(pass_)]) if in_a_pipeline else pass_
    with pytest.raises(LawViolation, match=message) as caught:
        check(pipeline)
    assert caught.value.law == "refusal"


def test_a_program_that_torch_fx_cannot_hold_is_refused() -> None:
    class KeywordsOnly(nn.Module):
        def forward(self, x, y=None, *, z):
            return x + z

    def give_up(graph_module: torch.fx.GraphModule):
        raise ValueError("never called")

    for pipeline in (give_up, fx.passes.PassPipeline([adapt(give_up)])):
        check_program(pipeline, KeywordsOnly, lambda: ((torch.ones(2),), {"z": torch.ones(2)}))


class SetsAnElement(nn.Module):
    def forward(self, x):
        y = x + 1
        y[0] = 2
        return torch.relu(y)


def captured_again(graph_module: torch.fx.GraphModule):
    again = torch.fx.symbolic_trace(graph_module)
    return relu_otherwise(again)


def edited_and_captured_again(graph_module: torch.fx.GraphModule):
    return torch.fx.symbolic_trace(relu_otherwise(graph_module))


def takes_no_writes(graph_module: torch.fx.GraphModule):
    for node in graph_module.graph.nodes:
        if node.target is operator.setitem:
            raise TypeError("cannot take this")


def search(pass_: Any, build: Any) -> Any:
    program = GivenProgram(build, Arguments((torch.ones(2, 2),), {}), build.__name__)
    return check_pass(pass_, programs=st.just(program), max_examples=1, min_changed=0)


@pytest.mark.parametrize("pass_", [captured_again, edited_and_captured_again])
def test_passes_are_not_blamed_for_programs_that_torch_fx_cannot_capture_again(pass_):
    assert search(pass_, SetsAnElement).unjudged == 1
    assert search(pass_, AddsOne).unjudged == 0


def test_an_error_of_the_pass_itself_on_such_a_program_is_its_fault(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LawViolation, match="cannot take this"):
        search(takes_no_writes, SetsAnElement)


TOOLS = {
    "symbolic_trace": torch.fx.symbolic_trace,
    "Transformer": lambda it: torch.fx.Transformer(it).transform(),
    "deepcopy": copy.deepcopy,
    "split_module": lambda it: split_module(it, it, lambda node: 0).train(it.training),  # it forgets the mode
}


@pytest.mark.parametrize("of_torch", TOOLS.values(), ids=TOOLS.keys())
def test_tools_of_torch_fx_take_our_captures(of_torch):
    def use(graph_module: torch.fx.GraphModule):
        return of_torch(graph_module)

    class Varied(nn.Module):
        def forward(self, x):
            if x.sum() > 100:
                raise ValueError(f"too large, {x.shape}")
            if x.isnan().any():
                raise ValueError("not a number")
            y = x[1:, None, ..., : x.shape[1]] * 2
            rows, columns = x.shape
            x = x + 1
            x += torch.ones(2)
            return {"max": torch.max(x, 0), "rest": (y, [x.view(columns, rows)], x.dtype)}

    check(use, Varied)
    for raising in (torch.full((2, 2), 99.0), torch.full((2, 2), torch.nan)):
        with pytest.raises(AssertionError, match=r"too large, torch\.Size|not a number"):
            adapt(use)(fx.symbolic_trace(Varied()))(raising)


class FrozenHalf(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            y = x * 2
        return x + y


@pytest.mark.parametrize("name", ["Transformer", "deepcopy"])
def test_tools_of_torch_fx_that_copy_nodes_keep_grad_mode(name):
    def use(graph_module: torch.fx.GraphModule):
        return TOOLS[name](graph_module)

    check(use, FrozenHalf)


def test_a_pass_that_recaptures_by_torch_fx_loses_grad_mode_and_is_reported():
    def use(graph_module: torch.fx.GraphModule):
        return torch.fx.symbolic_trace(graph_module)

    with pytest.raises(LawViolation, match=r"law 'gradients': use changes the gradient of input\[0\]"):
        check(use, FrozenHalf)


class LaidOut(nn.Module):
    def __init__(self, lay_out):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.lay_out = lay_out

    def forward(self, x, y):
        return getattr(self.linear(torch.relu(x)), self.lay_out)(), y.to_dense()


def abs_for_relu(graph_module: torch.fx.GraphModule):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.abs
    graph_module.recompile()


def relu_otherwise(graph_module: torch.fx.GraphModule):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = F.relu
    graph_module.recompile()
    return graph_module


def without_layout(graph_module: torch.fx.GraphModule):
    for node in list(graph_module.graph.nodes):
        if node.target in LAYOUTS:
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)
    graph_module.recompile()


LAYOUTS = ["to_mkldnn", "to_sparse", "to_sparse_csr"]


@pytest.mark.filterwarnings("ignore:.*beta.*")
@pytest.mark.parametrize("lay_out", LAYOUTS)
def test_outputs_and_inputs_of_any_layout_are_judged(lay_out):
    inputs = (torch.linspace(-2, 2, 16).reshape(4, 4), getattr(torch.eye(4), lay_out)())

    def build():
        torch.manual_seed(0)
        return LaidOut(lay_out)

    check_program(relu_otherwise, build, lambda: (inputs, {}))
    for pass_, law in ((abs_for_relu, "contract"), (without_layout, "dtype")):
        with pytest.raises(LawViolation) as caught:
            check_program(pass_, build, lambda: (inputs, {}))
        assert caught.value.law == law


def test_optimize_for_inference_of_torch_fx_is_judged():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses a part of TorchScript that is going away
        from torch.fx.experimental.optimization import optimize_for_inference

    def optimized(graph_module: torch.fx.GraphModule):
        return optimize_for_inference(graph_module)

    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))

    laws = ["refusal", "well formed", "structure", "dtype", "contract", "aliasing"]
    check_program(optimized, build, lambda: ((torch.ones(2, 3, 8, 8),), {}), laws=laws)
    with pytest.raises(LawViolation, match="cannot be differentiated"):  # which nobody needs there
        check_program(optimized, build, lambda: ((torch.ones(2, 3, 8, 8),), {}), laws=["gradients"])


def test_a_pass_is_not_blamed_if_torch_fx_cannot_capture_the_result_again(pytester):
    pytester.makepyfile(
        mine="""
        import torch, torch.fx
        from torch import nn
        from torch.fx.experimental.optimization import remove_dropout

        class SetsAnElement(nn.Module):
            def forward(self, x):
                y = x + 1
                y[0] = 2
                return torch.relu(y)

        def model():
            return SetsAnElement(), torch.ones(2, 2)

        def takes_no_writes(graph_module: torch.fx.GraphModule):
            raise TypeError("cannot take this")
        """
    )
    passes = ("--fx-pass", "mine:remove_dropout", "--fx-pass", "mine:takes_no_writes")
    result = pytester.runpytest("--fx-model", "mine:model", *passes, "--fx-no-timing", "-k", "contract", "-rs")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["E *LawViolation: law 'refusal': takes-no-writes crashed with *"])
    result.stdout.fnmatch_lines(
        [
            "SKIPPED*: remove-dropout is not judged on mine:model, where torch.fx's own tools for passes break the law "
            "'refusal': 'Proxy' object does not support item assignment"
        ]
    )


def test_a_law_that_torch_fxs_clean_up_breaks_too_is_broken_on_a_users_model(pytester):
    cleaned = """
        def cleaned(graph_module: torch.fx.GraphModule):
            graph_module.graph.eliminate_dead_code()
            graph_module.recompile()
            return graph_module
        """
    pytester.makepyfile(mine=text_of("mine") + textwrap.dedent(cleaned))
    passes = ("--fx-pass", "mine:to_gelu", "--fx-pass", "mine:cleaned")
    result = pytester.runpytest("--fx-model", "mine:halved", *passes, "--fx-no-timing", "-k", "keeps_its_contract")
    assert result.parseoutcomes()["failed"] >= 2
    result.stdout.fnmatch_lines(["E *LawViolation: law 'contract': to-gelu changes what mine:halved computes"])
    result.stdout.fnmatch_lines(["*torch.fx's own clean-up, which the pass calls, breaks this law here without the*"])

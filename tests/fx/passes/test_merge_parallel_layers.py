"""Layers that read the same value become one; others are left alone, with the reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import AllLeaves, Calling, in_functions, operations
from torch import Tensor, nn

import fx
from fx.errors import PassError
from fx.passes.merge_parallel_layers import MergeParallelLayers
from fx.pipelines.rewriting import make_edits
from model_zoo import get_model, list_models


def calling(call: Callable[..., Any], **children: nn.Module) -> Any:
    """A model that calls a function with itself and the input; in double precision."""
    return Calling(call, **children).double()


def linears(call: Callable[..., Any], *sizes: int, bias: bool = True) -> Any:
    """A model with linear layers ``a``, ``b``, … from 4 features to as many as given."""
    return calling(call, **{name: nn.Linear(4, size, bias) for name, size in zip("abcdef", sizes, strict=False)})


SPELLINGS = pytest.mark.parametrize("capture", [fx.symbolic_trace, in_functions])


def reasons(program: fx.GraphModule, **options: int) -> dict[str, str]:
    return {merging.node: merging.reason for merging in MergeParallelLayers(**options).explain(program)}


def assert_merged(model: nn.Module, x: Tensor, capture: Any = fx.symbolic_trace, layers: int = 1) -> fx.GraphModule:
    """Check the number of layers that are left, and that the program equals the model."""
    program = capture(model)
    expected = model(x)
    assert MergeParallelLayers()(program) is program
    program.graph.lint()
    merged = [node for node in program.graph.nodes if "linear" in str(node.target) or "conv" in str(node.target)]
    merged += program.graph.find_nodes(op="call_module")
    assert len(merged) == layers
    torch.testing.assert_close(program(x), expected, rtol=1e-12, atol=1e-12)
    return program


def assert_left_alone(program: fx.GraphModule, **expected: str) -> None:
    before, revision = operations(program), program.graph.revision
    by_name = reasons(program)
    assert {name: by_name[name] for name in expected} == expected
    assert not any(merging.is_edited for merging in MergeParallelLayers().explain(program))
    MergeParallelLayers()(program)
    assert operations(program) == before
    assert program.graph.revision == revision


X = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(2, 3, 4)


def test_linear_layers_of_one_input_become_one(untouched: Any) -> None:
    model = untouched(linears(lambda m, x: m.a(x).sum() + m.b(x).relu().sum() * m.c(x).sum(), 3, 5, 2))
    program = fx.symbolic_trace(model)
    assert reasons(program) == {
        "a": "merged with `%b`, `%c`",
        "b": "merged with `%a`, `%c`",
        "c": "merged with `%a`, `%b`",
    }
    program = assert_merged(model, X)
    lines = [line.strip().partition(";")[0] for line in program.code.strip().splitlines()]
    assert lines[1:6] == [
        "a_merged = self.a_merged(x)",
        "split = torch.split(a_merged, [3, 5, 2], dim = -1)",
        "getitem = split[0]",
        "getitem_1 = split[1]",
        "getitem_2 = split[2]",
    ]
    assert sorted(program.state_dict()) == ["a_merged.bias", "a_merged.weight"]
    assert torch.equal(program.a_merged.weight[3:8], model.b.weight)
    assert reasons(program) == {}


def test_functions_are_merged_beside_their_weights(untouched: Any) -> None:
    model = untouched(linears(lambda m, x: m.a(x).sum() + m.b(x).sum(), 3, 5))
    program = assert_merged(model, X, in_functions)
    assert sorted(program.state_dict()) == ["a.merged_bias", "a.merged_weight"]
    assert program.get_parameter("a.merged_weight").shape == (8, 4)


CONVOLUTIONS = {
    "1d": (nn.Conv1d, 1, {"kernel_size": 3, "padding": 1}),
    "2d": (nn.Conv2d, 2, {"kernel_size": (3, 1), "stride": 2, "dilation": (1, 2)}),
    "3d": (nn.Conv3d, 3, {"kernel_size": 3, "padding": "same"}),
    "reflect": (nn.Conv2d, 2, {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}),
}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    "kind, capture",
    [
        (kind, capture)
        for kind in CONVOLUTIONS
        for capture in (fx.symbolic_trace, in_functions)
        if (kind, capture) != ("reflect", in_functions)
    ],
)
def test_convolutions_of_one_input_become_one(kind: str, batched: bool, capture: Any) -> None:
    convolution, dimensions, settings = CONVOLUTIONS[kind]
    first, second = convolution(2, 3, **settings), convolution(2, 4, **settings)
    model = calling(lambda m, x: torch.cat([m.one(x).exp(), m.two(x)], -1 - dimensions), one=first, two=second)
    x = torch.randn(*[5] * batched, 2, *[5] * dimensions, dtype=torch.float64)
    assert_merged(model, x, capture)


@SPELLINGS
def test_missing_biases_become_zeros(capture: Any) -> None:
    model = calling(lambda m, x: m.a(x).sum() + m.b(x).exp().sum(), a=nn.Linear(4, 3, bias=False), b=nn.Linear(4, 3))
    program = assert_merged(model, X, capture)
    bias = next(value for name, value in program.state_dict().items() if name.endswith("bias"))
    assert torch.equal(bias, torch.cat([torch.zeros(3), model.b.bias.detach()]))
    without = linears(lambda m, x: m.a(x).sum() + m.b(x).sum(), 3, 5, bias=False)
    assert len(assert_merged(without, X, capture).state_dict()) == 1


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 8), nn.Linear(4, 8, bias=False), nn.Linear(4, 6)
        self.out = nn.Linear(6, 4)
        self.double()

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q, k = (part(x).view(batch, length, 2, 4).transpose(1, 2) for part in (self.q, self.k))
        v = self.v(x).view(batch, -1, 2, 3).transpose(1, 2)
        mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


@SPELLINGS
def test_projections_of_attention_become_one(capture: Any) -> None:
    assert_merged(Attention(), X, capture, layers=2)


def test_gradients_flow_to_the_merged_parameters() -> None:
    model = linears(lambda m, x: m.a(x).sum() + m.b(x).pow(2).sum(), 3, 5)
    program = assert_merged(model, X)
    program(X).backward()
    model(X).backward()
    torch.testing.assert_close(program.a_merged.weight.grad, torch.cat([model.a.weight.grad, model.b.weight.grad]))
    torch.testing.assert_close(program.a_merged.bias.grad, torch.cat([model.a.bias.grad, model.b.bias.grad]))
    assert program.a_merged.training


def test_frozen_layers_are_merged_with_frozen_ones_alone() -> None:
    model = linears(lambda m, x: m.a(x).sum() + m.b(x).sum() + m.c(x).sum() + m.d(x).sum(), 2, 3, 4, 5)
    for layer in (model.b, model.d):
        layer.requires_grad_(False)
    program = assert_merged(model, X, layers=2)
    assert [parameter.requires_grad for parameter in program.parameters()] == [True, True, False, False]


def test_layers_of_several_inputs_are_merged_by_input_though_one_feeds_the_other() -> None:
    def call(m: Any, x: Any) -> Any:
        first, second = m.a(x), m.b(x)
        return (m.c(first) + m.d(first)).sum() * second.sum()

    model = linears(call, 4, 3, 5, 5)
    program = assert_merged(model, X, layers=2)
    assert operations(program)[:2] == ["a_merged", "split"]


def test_names_that_are_taken_get_a_number() -> None:
    model = linears(lambda m, x: m.a_merged(m.a(x).relu()).sum() + m.b(x).sum(), 4, 4)
    model.a_merged = nn.Linear(4, 4).double()
    program = assert_merged(model, X, layers=2)
    assert "a_merged_1.weight" in program.state_dict()


def test_nodes_keep_their_lines_and_origins() -> None:
    program = fx.symbolic_trace(linears(lambda m, x: m.a(x).sum() + m.b(x).sum(), 3, 5))
    MergeParallelLayers()(program)
    origins = {node.name: node.origins for node in program.graph.nodes}
    assert origins["a_merged"] == origins["split"] == ("a", "b")
    assert (origins["getitem"], origins["getitem_1"]) == (("a",), ("b",))
    assert all(node.source is not None for node in program.graph.nodes if node.op.startswith("call"))


def test_fuel_merges_so_many_groups() -> None:
    def call(m: Any, x: Any) -> Any:
        y = x.exp()
        return m.a(x).sum() + m.b(x).sum() + m.c(y).sum() + m.d(y).sum()

    model = linears(call, 2, 3, 4, 5)
    program = fx.symbolic_trace(model)
    (edit,) = make_edits(MergeParallelLayers(), program, fuel=1)
    assert edit.description == "b into a"
    program.graph.lint()
    assert len(program.graph.find_nodes(op="call_module")) == 3
    torch.testing.assert_close(program(X), model(X), rtol=1e-12, atol=1e-12)


# Left alone.


def test_layers_on_their_own_are_no_candidates() -> None:
    program = fx.symbolic_trace(linears(lambda m, x: m.b(m.a(x)).sum(), 4, 2))
    assert reasons(program) == {}
    MergeParallelLayers()(program)
    assert operations(program) == ["a", "b", "sum_1"]


def test_layers_that_differ_are_left_alone() -> None:
    few = "too few other layers of its kind can be merged with it where they read `%x`"
    first, second = nn.Conv1d(2, 3, 3), nn.Conv1d(2, 3, 3, padding=1)
    program = fx.symbolic_trace(calling(lambda m, x: m.one(x).sum() + m.two(x).sum(), one=first, two=second))
    assert_left_alone(program, one=few, two=few)
    model = linears(lambda m, x: m.a(x).sum() + m.b(x).sum(), 3, 5)
    model.b.half()
    assert_left_alone(fx.symbolic_trace(model), a=few, b=few)


def test_fewer_layers_than_requested_are_left_alone() -> None:
    program = fx.symbolic_trace(linears(lambda m, x: m.a(x).sum() + m.b(x).sum(), 3, 5))
    few = "too few other layers of its kind can be merged with it where they read `%x`"
    assert reasons(program, least=3) == {"a": few, "b": few}
    with pytest.raises(PassError) as caught:
        MergeParallelLayers(least=1)
    assert str(caught.value) == (
        "merge-parallel-layers merges two layers or more\n  value  least=1\n  try    leave it out"
    )


def test_groups_are_left_alone() -> None:
    first, second = nn.Conv1d(2, 4, 1, groups=2), nn.Conv1d(2, 4, 1, groups=2)
    program = fx.symbolic_trace(calling(lambda m, x: m.one(x).sum() + m.two(x).sum(), one=first, two=second))
    grouped = "it has 2 groups, each with inputs of its own"
    assert_left_alone(program, one=grouped, two=grouped)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_weights_are_left_alone() -> None:
    first, second = nn.Conv2d(0, 2, 1), nn.Conv2d(0, 2, 1)
    program = fx.symbolic_trace(calling(lambda m, x: m.one(x).sum() + m.two(x).sum(), one=first, two=second))
    empty = "its weight is empty, which torch's kernels treat differently"
    assert_left_alone(program, one=empty, two=empty)


SPELT_OUT = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


@pytest.mark.parametrize("name", SPELT_OUT)
def test_a_setting_that_is_left_out_is_torchs_default(name: str) -> None:
    def call(m: Any, x: Any) -> Any:
        return F.conv1d(x, m.one.weight, **{name: SPELT_OUT[name]}).sum() + F.conv1d(x, m.two.weight).sum()

    program = fx.symbolic_trace(calling(call, one=nn.Conv1d(2, 4, 1), two=nn.Conv1d(2, 3, 1)))
    merged = MergeParallelLayers()(program)
    assert [node.target for node in merged.graph.nodes].count(F.conv1d) == 1
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    assert torch.allclose(merged(x), program(x))


def test_settings_that_the_program_computes_are_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        return F.conv1d(x, m.one.weight, stride=x.size(0)).sum() + F.conv1d(x, m.two.weight).sum()

    program = fx.symbolic_trace(calling(call, one=nn.Conv1d(2, 4, 1), two=nn.Conv1d(2, 4, 1)))
    assert_left_alone(program, conv1d="a setting of `%conv1d` is computed by the program")


def test_biases_of_another_dtype_are_left_alone() -> None:
    model = linears(lambda m, x: m.a(x).sum() + m.b(x).sum(), 3, 5)
    model.a.bias = nn.Parameter(model.a.bias.detach().float())
    assert_left_alone(fx.symbolic_trace(model), a="its weight and its bias differ in dtype or device")


def test_results_that_are_written_to_are_left_alone() -> None:
    program = fx.symbolic_trace(linears(lambda m, x: m.a(x).relu_().sum() + m.b(x).sum(), 3, 5))
    assert_left_alone(program, a="`%relu_` writes to `%a`, which may be memory of its result")
    program = fx.symbolic_trace(linears(lambda m, x: m.a(x)[0].add_(1).sum() + m.b(x).sum(), 3, 5))
    assert_left_alone(program, a="`%add_` writes to `%getitem`, which may be memory of its result")


def test_results_that_are_returned_are_left_alone() -> None:
    returned = "its result is returned or kept, and must not be part of another tensor"
    program = fx.symbolic_trace(linears(lambda m, x: (m.a(x), m.b(x).transpose(0, 1), m.c(x).sum()), 3, 5, 2))
    assert_left_alone(program, a=returned, b=returned)


@pytest.mark.parametrize(
    "use, name",
    [
        (lambda y: y.view(-1), "view"),
        (lambda y: y.view(2, -1), "view"),
        (lambda y: y.view(9, 4), "view"),
        (lambda y: y.view(2, 1, y.size(2)), "view"),
        (lambda y: y.transpose(0, 1).view(2, 3, 2, 3), "view"),
        (lambda y: y.stride(), "stride"),
        (lambda y: y.is_contiguous(), "is_contiguous"),
        (lambda y: torch.as_strided(y, (2,), (1,)), "as_strided"),
        (lambda y: torch.ops.aten.view.default(y, [36]), "view_default"),
    ],
)
def test_layers_whose_result_layout_may_matter_are_left_alone(use: Callable[[Any], Any], name: str) -> None:
    program = fx.symbolic_trace(linears(lambda m, x: (torch.add(use(m.a(x)), 1), m.b(x).sum()), 6, 6))
    assert_left_alone(program, a=f"`%{name}` may depend on how its result lies in memory")


def test_results_that_are_copied_before_their_layout_matters_are_merged() -> None:
    model = linears(lambda m, x: m.a(x).contiguous().view(-1) * 2 + m.b(x).reshape(-1).exp().view(2, -1).sum(), 6, 6)
    program = fx.symbolic_trace(model)
    assert reasons(program) == {
        "a": "merged with `%b`",
        "b": "merged with `%a`",
    }
    assert_merged(model, X)


def test_results_that_go_to_unknown_code_are_left_alone() -> None:
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1)

    model = linears(lambda m, x: m.own(m.a(x)).sum() + m.b(x).sum(), 3, 5)
    model.own = Unknown()
    program = fx.GraphModule(model, AllLeaves().trace(model))
    assert not any(merging.is_edited for merging in MergeParallelLayers().explain(program))
    inner = fx.symbolic_trace(lambda x: x.view(-1))
    model.own = inner
    program = fx.GraphModule(model, AllLeaves().trace(model))
    assert_left_alone(program, a="`%own` may depend on how its result lies in memory")


def test_a_write_to_the_input_between_them_divides_the_layers() -> None:
    def call(m: Any, x: Any) -> Any:
        x = x + 0
        before = m.a(x).sum() + m.b(x).sum()
        x.add_(1)
        return before + m.c(x).sum() + m.d(x).sum()

    assert_merged(linears(call, 2, 3, 4, 5), X, layers=2)

    def alternating(m: Any, x: Any) -> Any:
        x = x + 0
        before = m.a(x).sum()
        x.add_(1)
        return before + m.b(x).sum()

    program = fx.symbolic_trace(linears(alternating, 2, 3))
    by_name = reasons(program)
    assert by_name["b"].startswith("`%add_` writes to `%add`, ")
    assert by_name["b"].endswith(", which `%b` reads")
    assert MergeParallelLayers()(program).graph.find_nodes(op="call_module")[1].name == "b"


def test_weights_that_the_program_writes_to_are_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        m.a.weight.detach().add_(1)
        return m.a(x).sum() + m.b(x).sum()

    reason = reasons(fx.symbolic_trace(linears(call, 2, 3)))["a"]
    assert reason == "`%a` shares its module or its tensors with another operation"


def test_layers_that_share_something_have_hooks_or_are_subclasses_are_left_alone() -> None:
    model = linears(lambda m, x: m.a(x).sum() + m.b(x).sum() + m.a(x).exp().sum(), 3, 5)
    assert_left_alone(fx.symbolic_trace(model), a="`%a` shares its module or its tensors with another operation")
    model = linears(lambda m, x: m.a(x).sum() + m.b(x).sum(), 3, 3)
    model.b.weight = model.a.weight
    assert_left_alone(fx.symbolic_trace(model), b="`%b` shares its module or its tensors with another operation")
    model = linears(lambda m, x: m.a(x).sum() + m.b(x).sum(), 3, 5)
    model.a.register_forward_hook(lambda *_: None)
    assert_left_alone(fx.symbolic_trace(model), a="`%a` has hooks or a forward of its own")

    class Own(nn.Linear):
        pass

    model = calling(lambda m, x: m.a(x).sum() + m.b(x).sum(), a=Own(4, 3), b=nn.Linear(4, 3))
    program = fx.GraphModule(model, AllLeaves().trace(model))
    assert_left_alone(program, a="`Own` is not one of torch's own linear layers and convolutions")


def test_weights_that_the_program_computes_are_left_alone() -> None:
    def call(m: Any, x: Any) -> Any:
        return F.linear(x, m.a.weight * 2).sum() + F.linear(x, m.b.weight).sum()

    reason = "the weight of `%linear` is computed by the program, or is not a plain tensor"
    assert_left_alone(fx.symbolic_trace(linears(call, 2, 3)), linear=reason)


# What is reported.


@pytest.mark.parametrize("name", [name for name in list_models() if "small" in get_model(name).tags])
def test_small_models_compute_the_same(name: str) -> None:
    model = get_model(name)
    module = model.build().double()
    program = MergeParallelLayers()(fx.symbolic_trace(copy.deepcopy(module)))
    program.graph.lint()
    inputs = [
        value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in model.example_inputs(batch=2)
    ]
    torch.testing.assert_close(program(*inputs), module(*inputs), rtol=1e-10, atol=1e-10)

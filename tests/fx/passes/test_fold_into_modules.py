"""``fold-into-modules``: functions with weights become modules again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fx import Graph, GraphModule, symbolic_trace
from fx.passes import RemoveChecks
from fx.passes.canonicalize import Canonicalize
from fx.passes.fold_into_modules import FoldIntoModules
from fx.pipelines.rewriting import make_edits
from model_zoo import get_model


def functional(model: nn.Module) -> GraphModule:
    return RemoveChecks()(Canonicalize()(symbolic_trace(model)))


def without_bias(layer: nn.Module) -> nn.Module:
    layer.register_parameter("bias", None)
    return layer


LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (5, 4)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (5, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding="same", groups=2), (2, 4, 7)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, bias=False), (2, 4, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2, dilation=2), (1, 2, 5, 5, 5)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5, 5)),
    "layer_norm": (lambda: nn.LayerNorm((3, 4), eps=1e-3), (2, 3, 4)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "group_norm without bias": (lambda: without_bias(nn.GroupNorm(2, 4)), (2, 4, 3)),
    "batch_norm1d without bias": (lambda: without_bias(nn.BatchNorm1d(4)), (5, 4)),
    "embedding": (lambda: nn.Embedding(7, 3, padding_idx=0), None),
    "batch_norm1d": (lambda: nn.BatchNorm1d(4, momentum=0.3), (5, 4)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(4, affine=False), (2, 4, 3, 3)),
    "batch_norm3d": (lambda: nn.BatchNorm3d(4, eps=1e-2), (2, 4, 2, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_comes_back_as_it_was(name: str) -> None:
    make, shape = LAYERS[name]
    model = nn.Sequential(make()).eval()
    x = torch.tensor([[0, 3, 6]]) if shape is None else torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)
    program = FoldIntoModules()(functional(model))
    module = program.get_submodule("0")
    assert [node.op for node in program.graph.nodes if node.op.startswith("call")] == ["call_module"]
    assert type(module) is type(model[0])
    assert repr(module) == repr(model[0])
    assert list(program.state_dict()) == list(model.state_dict())
    assert all(first is other for first, other in zip(program.parameters(), model.parameters(), strict=True))
    assert not module.training
    assert torch.equal(program(x), model(x))


def test_resnet50_has_its_layers_back() -> None:
    model = get_model("resnet50").build().eval()
    program = FoldIntoModules()(functional(model))
    assert len(program.graph.nodes) == 177
    counts = {op: len(program.graph.find_nodes(op=op)) for op in ("call_module", "call_function", "get_attr")}
    assert counts == {"call_module": 53 + 53 + 1, "call_function": 177 - 107 - 2, "get_attr": 0}
    assert set(program.state_dict()) == set(model.state_dict())


def test_resnet_computes_the_same_bits() -> None:
    model = get_model("resnet_tiny").build().eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(FoldIntoModules()(functional(model))(x), model(x))


def test_the_code_reads_as_modules() -> None:
    program = FoldIntoModules()(functional(nn.Sequential(nn.Linear(4, 4), nn.ReLU())))
    assert program.code.strip() == (
        "def forward(self, input):\n"
        "    input_1 = input\n"
        '    _0 = getattr(self, "0")(input_1);  input_1 = None\n'
        "    _1 = torch.nn.functional.relu(input = _0, inplace = False);  _0 = None\n"
        "    return _1"
    )


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.linear(x))


class Extra(nn.Module):
    """Its weight is beside other parameters, at the root, and computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.inner = nn.ParameterDict({"weight": torch.ones(4, 4), "other": torch.ones(4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(x, self.weight)
        x = F.linear(x, self.inner["weight"], self.inner["other"])
        return F.linear(x, self.weight * 2)


@pytest.mark.parametrize("make", [tied, Twice, Extra])
def test_calls_with_tensors_that_are_no_modules_stay_functions(make: Callable[[], nn.Module]) -> None:
    model = make()
    program = functional(model)
    code = program.code
    assert make_edits(FoldIntoModules(), program) == []
    assert program.code == code


def test_batch_norm_in_training_stays_a_function() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4)).train()
    program = functional(model)
    assert make_edits(FoldIntoModules(), program) == []


def test_batch_norm_of_unknown_class_stays_a_function() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    mean, var = graph.get_attr("norm.running_mean"), graph.get_attr("norm.running_var")
    graph.output(graph.call_function(F.batch_norm, (x, mean, var)))
    tensors = {"norm.running_mean": torch.zeros(4), "norm.running_var": torch.ones(4)}
    assert make_edits(FoldIntoModules(), GraphModule(tensors, graph)) == []


def test_a_weight_that_is_no_parameter_stays() -> None:
    graph = Graph()
    graph.output(graph.call_function(F.linear, (graph.placeholder("x"), graph.get_attr("a.weight"))))
    assert make_edits(FoldIntoModules(), GraphModule({"a.weight": torch.ones(2, 4)}, graph)) == []


@pytest.mark.parametrize("bias, is_used", [(torch.ones(2), False), (torch.ones(1), True)], ids=["unused", "spread"])
def test_a_bias_that_is_not_that_of_such_a_module_keeps_the_function(bias: torch.Tensor, is_used: bool) -> None:
    graph = Graph()
    tensors = [graph.get_attr("a.weight"), *([graph.get_attr("a.bias")] if is_used else [])]
    graph.output(graph.call_function(F.linear, (graph.placeholder("x"), *tensors)))
    root = {"a.weight": nn.Parameter(torch.ones(2, 4)), "a.bias": nn.Parameter(bias)}
    program = GraphModule(root, graph)
    program.a.bias = root["a.bias"]
    assert make_edits(FoldIntoModules(), program) == []


def test_a_call_that_the_module_class_refuses_stays_a_function() -> None:
    graph = Graph()
    call = graph.call_function(F.conv2d, (graph.placeholder("x"), graph.get_attr("a.weight")), {"groups": 3})
    graph.output(call)
    program = GraphModule({"a.weight": nn.Parameter(torch.ones(2, 1, 1, 1))}, graph)
    assert make_edits(FoldIntoModules(), program) == []


def test_functions_written_by_hand_become_modules_too() -> None:
    graph = Graph()
    call = graph.call_function(F.linear, (graph.placeholder("x"), graph.get_attr("a.b.weight")))
    graph.output(call)
    program = FoldIntoModules()(GraphModule({"a.b.weight": nn.Parameter(torch.ones(2, 4))}, graph))
    assert repr(program.a.b) == "Linear(in_features=4, out_features=2, bias=False)"
    assert torch.equal(program(torch.ones(1, 4)), torch.full((1, 2), 4.0))


def test_a_layer_may_be_applied_to_its_own_weight() -> None:
    class OfItself(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + F.linear(self.layer.weight, self.layer.weight, self.layer.bias)

    model, x = OfItself(), torch.ones(3, 3)
    folded = FoldIntoModules()(functional(model))
    assert len(folded.graph.find_nodes(op="call_module")) == 1
    assert torch.equal(folded(x), model(x))


def test_a_norm_without_a_bias_computes_where_its_weight_is() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = without_bias(nn.GroupNorm(2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.group_norm(x, 2, self.norm.weight, self.norm.bias)

    model, x = Model().eval(), torch.linspace(-1, 1, 24).view(2, 4, 3)
    program = FoldIntoModules()(functional(model))
    assert torch.equal(program(x), model(x))
    assert {tensor.device.type for tensor in program.state_dict().values()} == {"cpu"}

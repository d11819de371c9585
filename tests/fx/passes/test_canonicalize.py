"""``canonicalize``: a program brought into canonical form in place."""

from __future__ import annotations

import re

import pytest
import torch
from building import in_functions
from torch import nn

from fx import GraphModule, Tracer, symbolic_trace
from fx.canonical import canonical_form
from fx.passes import RemoveChecks
from fx.passes.canonicalize import Canonicalize
from fx.pipelines.rewriting import make_edits
from model_zoo import get_model


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.AvgPool2d(2)
        self.head = nn.LSTM(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(self.features(x)).mean((2, 3))
        return self.head(y)[0]


X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


def without_names(program: GraphModule) -> str:
    """The code with the names of values replaced by their numbers."""
    numbers = {node.name: f"value_{number}" for number, node in enumerate(program.graph.nodes)}
    return re.sub(r"(?<![.\w])\w+", lambda match: numbers.get(match[0], match[0]), program.code)


@pytest.mark.parametrize("name", ["resnet_tiny", "resnet50"])
def test_resnet_without_keywords_is_figure_5b(name: str) -> None:
    model = get_model(name).build().eval()
    captured = RemoveChecks()(in_functions(model))
    program = RemoveChecks()(Canonicalize(keywords=False)(symbolic_trace(model)))
    assert without_names(program) == without_names(captured)
    if name == "resnet50":
        assert len(program.graph.nodes) == 444
    else:
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        assert torch.equal(program(x), model(x))
        assert torch.equal(Canonicalize()(program)(x), model(x))


def test_it_gives_the_same_program_as_the_canonical_form() -> None:
    program = symbolic_trace(Net().eval())
    expected = canonical_form(program).graph_module.code
    assert Canonicalize()(program).code == expected


def test_parameters_keep_their_names_and_modules_leave_only_them_behind() -> None:
    model = Net().eval()
    program = symbolic_trace(model)
    names, expected = list(program.state_dict()), model(X)
    Canonicalize()(program)
    assert list(program.state_dict()) == names
    assert [name for name, _ in program.named_modules()] == ["", "features", "features.0", "features.1", "head"]
    assert not any(isinstance(module, (nn.Conv2d, nn.BatchNorm2d)) for module in program.modules())
    assert program.get_parameter("features.0.weight") is model.features[0].weight
    assert torch.equal(program(X), expected)
    program.load_state_dict(model.state_dict())
    program.graph.lint()


def test_the_traced_model_keeps_its_modules() -> None:
    model = Net().eval()
    Canonicalize()(symbolic_trace(model))
    assert [type(module) for module in model.features] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]


def test_training_is_the_same_step_by_step() -> None:
    model, twin = Net().train(), Net().train()
    twin.load_state_dict(model.state_dict())
    program = Canonicalize()(symbolic_trace(model))
    for _ in range(2):
        program(X).sum().backward()
        twin(X).sum().backward()
    for (name, parameter), other in zip(program.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad), name
    assert torch.equal(program.get_buffer("features.1.running_var"), twin.features[1].running_var)
    assert int(program.get_buffer("features.1.num_batches_tracked")) == 2


def test_after_any_number_of_edits_the_program_is_whole() -> None:
    expected = Net().eval()(X).shape
    edits = len(make_edits(Canonicalize(), symbolic_trace(Net().eval())))
    for fuel in range(edits):
        model = Net().eval()
        program = symbolic_trace(model)
        assert len(make_edits(Canonicalize(), program, fuel)) == fuel
        program.graph.lint()
        assert torch.equal(program(X), model(X))
    assert edits == 5
    assert expected == (2, 2)


def test_edits_describe_the_change_and_name_its_line() -> None:
    edits = make_edits(Canonicalize(), symbolic_trace(Net().eval()))
    assert [edit.description for edit in edits] == [
        "features.0 becomes functions",
        "features.1 becomes functions",
        "features.2 becomes functions",
        "pool becomes functions",
        "mean gets its canonical spelling",
    ]
    assert all(edit.where is not None and edit.where.file == __file__ for edit in edits[3:])


def test_leaves_stay_and_so_do_modules_around_them() -> None:
    program = Canonicalize(leaves=("Conv2d",))(symbolic_trace(Net().eval()))
    assert [str(node.target) for node in program.graph.find_nodes(op="call_module")] == ["features.0", "head"]


def test_a_module_that_stays_for_one_call_stays() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.MaxUnpool1d(2)

        def forward(self, x, indices: torch.Tensor, size):
            return self.pool(x, indices), self.pool(x, indices, size)

    program = Canonicalize()(symbolic_trace(Root()))
    assert [node.name for node in program.graph.find_nodes(op="call_module")] == ["pool_1"]
    assert isinstance(program.pool, nn.MaxUnpool1d)


def test_modules_inside_of_a_module_of_the_user_stay_in_it() -> None:
    block = nn.ModuleDict({"linear": nn.Linear(3, 3), "lstm": nn.LSTM(3, 3)})
    linear = block["linear"]

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block
            self.block.register_forward_hook(print)
            self.block.forward = lambda x: x + block["linear"](x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(x) + self.block["linear"](x)

    model = Sum()

    class WholeBlock(Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return module_qualified_name.startswith("block")

    program = Canonicalize()(GraphModule(model, WholeBlock().trace(model)))
    assert [str(node.target) for node in program.graph.find_nodes(op="call_module")] == ["block"]
    assert program.block is block
    assert block["linear"] is linear

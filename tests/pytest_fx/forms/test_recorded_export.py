"""Recorded programs, beside those of ``torch.export``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_fx.forms import ExportedSource, RecordedSource
from pytest_fx.forms.recorded_export import NotRecordedError


class Block(nn.Module):
    """Layers, a buffer that is written to, a cast, constants, and an input with a default."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(3))
        self.register_buffer("scale", torch.full((3,), 0.5), persistent=False)
        self.shift = torch.ones(3)

    def forward(self, x, factor=2, *, other=None):
        self.calls.add_(1)
        y = F.relu(self.norm(self.layer(x)), inplace=True)
        return {"wide": y.to(torch.float64) + torch.tensor(2.0), "rest": [self.calls, (y * factor + self.shift)[0], 3]}


class Writes(nn.Module):
    """Writes into an input, through a view, and reads the view made before."""

    def forward(self, x):
        view = x[0]
        x.mul_(2)
        view.add_(1)
        return x.sum(), torch.full_like(view, 3.0) + view


class Recurrent(nn.Module):
    """A layer with several results, and parts of a tensor."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x, parts):
        first, second = x.split([1, 2])
        return self.cell(second, parts["state"]), first.max(dim=1)


def calls():
    torch.manual_seed(0)
    x = torch.arange(6.0).reshape(2, 3)
    yield "block", Block().eval(), ((x,), {"other": torch.ones(2)})
    yield "block in training", Block().train(), ((x, 3), {})
    yield "writes", Writes(), ((x,), {})
    yield "recurrent", Recurrent(), ((torch.rand(3, 3), {"state": torch.rand(2, 4)}), {})


CALLS = {name: (module, call) for name, module, call in calls()}


def sources(name):
    module, call = CALLS[name]
    return RecordedSource(lambda: module, call), ExportedSource(lambda: module, call, has_fixed_sizes=True)


def operators(source, level):
    return [str(node.target) for node in source.exported(level).graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("level", ["exported", "decomposed"])
@pytest.mark.parametrize("name", CALLS)
def test_a_recorded_program_has_the_operators_and_the_signature_of_an_exported_one(name, level):
    recorded, exported = sources(name)
    assert operators(recorded, level) == operators(exported, level)
    first, second = recorded.exported(level).graph_signature, exported.exported(level).graph_signature
    assert {(each.kind, each.target, each.persistent) for each in first.input_specs} == {
        (each.kind, each.target, each.persistent) for each in second.input_specs
    }
    assert [(each.kind, each.target) for each in first.output_specs] == [
        (each.kind, each.target) for each in second.output_specs
    ]
    assert first.user_inputs == second.user_inputs


@pytest.mark.parametrize("level", ["exported", "decomposed"])
@pytest.mark.parametrize("name", CALLS)
def test_a_recorded_program_computes_and_writes_what_the_model_does(name, level):
    module, (args, kwargs) = CALLS[name]

    def run(program):
        state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]
        with torch.no_grad():
            result = program(*copies, **kwargs)
        leaves = torch.utils._pytree.tree_leaves((result, copies, [*module.state_dict().values()]))
        leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        module.load_state_dict(state)
        return leaves

    recorded, _ = sources(name)
    expected = run(module)
    for program in (recorded.graph_module(level), recorded.exported(level).module()):
        actual = run(program)
        torch.testing.assert_close(actual, expected)


def test_nodes_know_their_values_modules_and_lines():
    recorded, exported = sources("block in training")
    for level in ("exported", "decomposed"):
        for source in (recorded, exported):
            nodes = [node for node in source.graph_module(level).graph.nodes if node.op == "call_function"]
            norm = next(node for node in nodes if "batch_norm" in str(node.target))
            assert [*norm.meta["nn_module_stack"].values()][-1] == ("norm", "torch.nn.modules.batchnorm.BatchNorm1d")
            assert "self.norm(self.layer(x))" in norm.meta["stack_trace"]
            assert __file__ in norm.meta["stack_trace"]
        values = [
            [
                (node.meta["val"].shape, node.meta["val"].dtype, node.meta["val"].stride())
                for node in source.exported(level).graph.nodes
                if isinstance(node.meta.get("val"), torch.Tensor)
            ]
            for source in (recorded, exported)
        ]
        assert sorted(map(str, values[0])) == sorted(map(str, values[1]))


def test_values_of_views_share_memory():
    recorded, _ = sources("writes")
    graph = recorded.exported("exported").graph
    x = next(node for node in graph.nodes if node.op == "placeholder").meta["val"]
    view = next(node for node in graph.nodes if "select" in str(node.target)).meta["val"]
    total = next(node for node in graph.nodes if "sum" in str(node.target)).meta["val"]
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata != total.untyped_storage()._cdata


def test_a_recording_changes_neither_the_model_nor_its_inputs():
    module, (args, _) = CALLS["block in training"]
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    versions = [tensor._version for tensor in module.state_dict().values()]
    recorded, _ = sources("block in training")
    recorded.graph_module("decomposed")
    assert all(torch.equal(tensor, before[key]) for key, tensor in module.state_dict().items())
    assert [tensor._version for tensor in module.state_dict().values()] == versions
    assert torch.equal(args[0], torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: x if x.sum() > 0 else -x,
        lambda self, x: x[x > 0],
        lambda self, x: x.nonzero(),
        lambda self, x: x * x.sum().item(),
        lambda self, x: torch.Tensor._make_subclass(torch.Tensor, x) + 1,
    ],
)
def test_a_model_that_depends_on_data_or_hides_its_memory_is_not_recorded(forward):
    module = type("Model", (nn.Module,), {"forward": forward})()
    source = RecordedSource(lambda: module, ((torch.ones(2),), {}))
    with pytest.raises(NotRecordedError):
        source.prepare("exported")


def test_only_torch_exports_with_other_sizes():
    recorded, _ = sources("writes")
    for level in ("fixed", "strict"):
        with pytest.raises(NotRecordedError, match=f"no recorded program at the level '{level}'"):
            recorded.prepare(level)

"""Graph modules: their parts, their state, recompilation, copies and errors."""

from __future__ import annotations

import copy
import importlib
import pickle
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import fx

from .libraries import refuses


class Tree(nn.Module):
    """A module with used state and unused state."""

    def __init__(self):
        super().__init__()
        self.used = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.unused = nn.Linear(2, 2)
        self.holder = nn.Module()
        self.holder.weight = nn.Parameter(torch.ones(2))
        self.holder.other = nn.Parameter(torch.ones(2))
        self.holder.register_buffer("offset", torch.zeros(2))
        self.table = torch.full((2,), 2.0)

    def forward(self, x):
        return self.used(x) * self.holder.weight + self.holder.offset + self.table


def relu_graph(library: ModuleType, target: str = "layer"):
    graph = library.Graph()
    graph.output(graph.call_module(target, (graph.placeholder("x"),)))
    return graph


def test_only_what_the_graph_refers_to_is_copied(library: ModuleType) -> None:
    root = Tree()
    module = library.GraphModule(root, library.Tracer().trace(root))
    plain = ["table"] if library is not fx else []
    assert sorted(module.state_dict()) == ["holder.offset", "holder.weight", *plain, "used.0.bias", "used.0.weight"]
    assert not hasattr(module, "unused")
    assert not hasattr(module.holder, "other")
    assert getattr(module.used, "0") is root.used[0]
    assert module.holder is not root.holder
    assert module.holder.weight is root.holder.weight
    assert "table" in dict(module.named_buffers())
    assert dict(module.named_buffers())["table"] is root.table


def test_class_is_its_own_and_carries_the_given_name(library: ModuleType) -> None:
    first, second = library.symbolic_trace(Tree()), library.symbolic_trace(Tree())
    assert type(first) is not type(second)
    assert isinstance(first, library.GraphModule)
    assert isinstance(first, nn.Module)
    assert type(first).__name__ == "Tree"
    assert library.GraphModule({"layer": nn.ReLU()}, relu_graph(library)).__class__.__name__ == "GraphModule"
    assert type(library.GraphModule({"layer": nn.ReLU()}, relu_graph(library), "Mine")).__name__ == "Mine"
    assert first._get_name() == "Tree"


def test_subclasses_stay_subclasses(library: ModuleType) -> None:
    class Mine(library.GraphModule):
        def extra(self) -> str:
            return self.code

    module = Mine({"layer": nn.ReLU()}, relu_graph(library))
    assert isinstance(module, Mine)
    assert module.extra() == module.code
    copied = copy.deepcopy(module)
    assert isinstance(copied, Mine)
    assert type(copied) is not type(module)


def test_root_may_be_a_dict(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    weight, table = graph.get_attr("deep.er.weight"), graph.get_attr("table")
    graph.output((graph.call_module("deep.layer", (x,)), weight, table))
    layer, parameter, tensor = nn.ReLU(), nn.Parameter(torch.ones(2)), torch.zeros(2)
    root = {"deep.er.weight": parameter, "deep.layer": layer, "table": tensor, "extra": nn.Linear(1, 1)}
    module = library.GraphModule(root, graph)
    assert module.deep.layer is layer
    assert module.deep.er.weight is parameter
    assert dict(module.named_buffers())["table"] is tensor
    assert not hasattr(module, "extra")
    out, *_ = module(torch.tensor([-1.0, 1.0]))
    assert torch.equal(out, torch.tensor([0.0, 1.0]))


def test_dict_root_copies_shallow_targets_first(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr("layer.weight")
    graph.output((graph.call_module("layer", (x,)), weight))
    layer, weight_of_dict = nn.Linear(2, 2), nn.Parameter(torch.zeros(2, 2))
    module = library.GraphModule({"layer.weight": weight_of_dict, "layer": layer}, graph)
    assert module.layer is layer
    assert module.layer.weight is weight_of_dict


def test_target_missing_from_a_dict_is_named(library: ModuleType) -> None:
    with refuses(library, RuntimeError, match="layer"):
        library.GraphModule({}, relu_graph(library))


def test_target_missing_from_a_module_is_an_error(library: ModuleType) -> None:
    with refuses(library, AttributeError, match="layer", ours=fx.GraphError):
        library.GraphModule(nn.Module(), relu_graph(library))


def test_root_must_be_a_module_or_a_dict(library: ModuleType) -> None:
    with refuses(library, RuntimeError):
        library.GraphModule("root", relu_graph(library))


def test_training_mode_is_that_of_the_root(library: ModuleType) -> None:
    assert library.symbolic_trace(Tree().eval()).training is False
    module = library.symbolic_trace(Tree())
    assert module.training is True
    module.eval()
    assert module.used.training is False or not getattr(module.used, "0").training


def test_edits_show_after_recompile(library: ModuleType) -> None:
    module = library.symbolic_trace(nn.Sequential(nn.ReLU()))
    before = module.code
    module.graph.find_nodes(op="call_module", target="0")[0].target = "0"
    with module.graph.inserting_before(module.graph.output_node()):
        neg = module.graph.call_function(torch.neg, (module.graph.output_node().args[0],))
    module.graph.output_node().args = (neg,)
    assert module.code == before
    returned = module.recompile()
    assert "torch.neg" in module.code
    assert returned.src == module.code
    assert torch.equal(module(torch.ones(1)), -torch.ones(1))


def test_assigning_a_graph_owns_and_recompiles_it(library: ModuleType) -> None:
    module = library.GraphModule({"layer": nn.ReLU()}, relu_graph(library))
    graph = library.Graph()
    graph.output(graph.call_function(torch.neg, (graph.placeholder("y"),)))
    module.graph = graph
    assert graph.owning_module is module
    assert module.graph is graph
    assert "torch.neg(y)" in module.code
    with refuses(library, AssertionError):
        module.graph = "not a graph"


def test_an_empty_graph_returns_nothing(library: ModuleType) -> None:
    module = library.GraphModule({}, library.Graph())
    assert module() is None


def test_children_are_recompiled_too(library: ModuleType) -> None:
    child = library.symbolic_trace(nn.Sequential(nn.ReLU()))
    outer = library.GraphModule({"layer": child}, relu_graph(library))
    output = child.graph.output_node()
    output.args = ((output.args[0], 1),)
    outer.recompile()
    assert "return (_0, 1)" in child.code


def test_submodules_are_added_and_deleted(library: ModuleType) -> None:
    module = library.symbolic_trace(Tree())
    assert module.add_submodule("new.deep.layer", nn.ReLU()) is True
    assert isinstance(module.new.deep.layer, nn.ReLU)
    assert module.add_submodule("holder.weight.layer", nn.ReLU()) is False
    assert module.delete_submodule("new.deep.layer") is True
    assert not hasattr(module.new.deep, "layer")
    assert module.delete_submodule("nowhere") is False
    assert module.delete_submodule("nowhere.deeper") is False
    assert module.delete_submodule("holder.weight") is False


def test_unused_submodules_are_deleted(library: ModuleType) -> None:
    module = library.symbolic_trace(Tree())
    module.add_submodule("extra.one", nn.Linear(2, 2))
    module.add_submodule("used.9", nn.Linear(2, 2))
    module.delete_all_unused_submodules()
    names = [name for name, _ in module.named_modules()]
    assert names == ["", "used", "used.0", "used.1", "holder"]


def test_descendants_of_called_modules_are_kept(library: ModuleType) -> None:
    module = library.GraphModule({"layer": nn.Sequential(nn.Sequential(nn.ReLU()))}, relu_graph(library))
    module.delete_all_unused_submodules()
    assert [name for name, _ in module.named_modules()] == ["", "layer", "layer.0", "layer.0.0"]


def test_deepcopy_keeps_meta_and_hooks(library: ModuleType) -> None:
    module = library.symbolic_trace(Tree())
    module.meta["note"] = {"k": [1]}
    module.graph.output_node().meta["n"] = 1

    def drop_table(module, state, prefix, metadata) -> None:
        del state["holder.offset"]

    module._register_state_dict_hook(drop_table)
    copied = copy.deepcopy(module)
    assert copied.meta == module.meta
    assert copied.meta["note"] is not module.meta["note"]
    assert copied.graph.output_node().meta == {"n": 1}
    assert "holder.offset" not in copied.state_dict()
    assert copied.graph.owning_module is copied
    assert module.graph.owning_module is module
    assert copied.used is not module.used
    assert not torch.equal(copied.holder.weight + 1, module.holder.weight)


def test_shallow_copy_shares_modules_and_meta(library: ModuleType) -> None:
    module = library.symbolic_trace(Tree())
    module.meta["note"] = 1
    copied = copy.copy(module)
    assert getattr(copied.used, "0") is getattr(module.used, "0")
    assert copied.meta == {"note": 1}
    assert type(copied) is not type(module)
    x = torch.randn(3, 2)
    assert torch.equal(copied(x), module(x))


def test_replicas_for_data_parallel_share_the_graph(library: ModuleType) -> None:
    module = library.symbolic_trace(Tree())
    replica = module._replicate_for_data_parallel()
    x = torch.randn(3, 2)
    assert torch.equal(replica(x), module(x))
    assert replica._is_replica is True
    assert not hasattr(module, "_is_replica")


def test_gradients_reach_the_parameters_of_the_root(library: ModuleType) -> None:
    root = Tree()
    module = library.symbolic_trace(root)
    module(torch.randn(3, 2)).sum().backward()
    assert root.holder.weight.grad is not None
    assert root.used[0].weight.grad is not None
    assert root.unused.weight.grad is None


def test_pickle_keeps_state_and_training_mode(library: ModuleType) -> None:
    module = library.symbolic_trace(Tree().eval())
    module.extra = "kept"
    restored = pickle.loads(pickle.dumps(module))
    x = torch.randn(3, 2)
    assert torch.equal(restored(x), module(x))
    assert restored.training is False
    assert restored.extra == "kept"
    assert isinstance(restored, library.GraphModule)
    assert [node.name for node in restored.graph.nodes] == [node.name for node in module.graph.nodes]


def test_hooks_run_around_generated_code(library: ModuleType) -> None:
    module = library.symbolic_trace(nn.Sequential(nn.ReLU()))
    calls = []
    module.register_forward_pre_hook(lambda module, args: calls.append("before"))
    module.register_forward_hook(lambda module, args, output: output + 1)
    assert torch.equal(module(torch.tensor([-1.0])), torch.tensor([1.0]))
    assert calls == ["before"]
    module._modules["0"].register_forward_hook(lambda module, args, output: output + 10)
    assert torch.equal(module(torch.tensor([-1.0])), torch.tensor([11.0]))


def test_custom_call_of_a_subclass_still_runs(library: ModuleType) -> None:
    class Counting(library.GraphModule):
        calls = 0

        def __call__(self, *args):
            type(self).calls += 1
            return super().__call__(*args)

    module = Counting({"layer": nn.ReLU()}, relu_graph(library))
    module(torch.ones(1))
    assert type(module).calls == 1 or Counting.calls == 1


def test_module_is_a_submodule_of_another_trace(library: ModuleType) -> None:
    outer = nn.Sequential(library.symbolic_trace(Tree()), nn.ReLU())
    retraced = library.symbolic_trace(outer)
    x = torch.randn(3, 2)
    assert torch.equal(retraced(x), outer(x))
    assert "0.holder.weight" in retraced.state_dict()
    called = [node.target for node in retraced.graph.find_nodes(op="call_module", sort=True)]
    assert called == ["0.used.0", "0.used.1", "1"]


def test_error_in_generated_code_keeps_its_type(library: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(x):
        return x.missing_method(1)

    module = library.symbolic_trace(fails)
    with pytest.raises(AttributeError, match="missing_method"):
        module(torch.ones(2))


def test_source_is_visible_to_inspection(library: ModuleType) -> None:
    import inspect

    module = library.symbolic_trace(Tree())
    module(torch.ones(1, 2))
    assert "def forward(self, x):" in inspect.getsource(type(module).forward)
    assert str(inspect.signature(module.forward)) == "(x)"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The TorchScript type system:UserWarning")
def test_script_and_functional_call_take_it(library: ModuleType) -> None:
    module = library.symbolic_trace(Tree())
    x = torch.randn(3, 2)
    assert torch.equal(torch.jit.script(module)(x), module(x))
    tensors = (*module.named_parameters(), *module.named_buffers())
    state = {name: torch.zeros_like(value) for name, value in tensors}
    assert torch.equal(torch.func.functional_call(module, state, (x,)), torch.zeros(3, 2))


@pytest.mark.filterwarnings("ignore:Was not able to save the following children")
def test_folder_is_an_importable_package(library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "stored_" + library.__name__.replace(".", "_")
    module = library.symbolic_trace(Tree().eval())
    module.to_folder(tmp_path / name, "Stored")
    monkeypatch.syspath_prepend(tmp_path)
    stored = importlib.import_module(name).Stored()
    x = torch.randn(3, 2)
    assert torch.equal(stored.eval()(x), module(x))
    assert sorted(stored.state_dict()) == sorted(module.state_dict())

"""Containers of graph modules: children are found quickly, and are current after any replacement."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import fx
from fx.modules.containers import Container


class Stage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = torch.nn.ReLU()
        self.last = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(x))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.seq = torch.nn.Sequential(torch.nn.Identity(), Stage())
        self.head = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.seq(self.stage(x)))


class Tenfold(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 10


@pytest.fixture
def module() -> fx.GraphModule:
    """A program that has run, so that its containers are quick."""
    module = fx.symbolic_trace(Net())
    module(torch.ones(1))
    return module


ONE = torch.ones(1)


def replaced_in_dict(owner: Any, name: str, child: torch.nn.Module) -> None:
    owner._modules[name] = child


def replaced_by_update(owner: Any, name: str, child: torch.nn.Module) -> None:
    owner._modules.update({name: child})


def deleted_and_added(owner: Any, name: str, child: torch.nn.Module) -> None:
    delattr(owner, name)
    owner.add_module(name, child)


def popped_and_set(owner: Any, name: str, child: torch.nn.Module) -> None:
    owner._modules.pop(name)
    setattr(owner, name, child)


def whole_dict_replaced(owner: Any, name: str, child: torch.nn.Module) -> None:
    owner._modules = {**owner._modules, name: child}


@pytest.mark.parametrize(
    "replace",
    [setattr, replaced_in_dict, replaced_by_update, deleted_and_added, popped_and_set, whole_dict_replaced,
     lambda owner, name, child: owner.register_module(name, child),
     lambda owner, name, child: owner.set_submodule(name, child)],
)  # fmt: skip
@pytest.mark.parametrize("path", ["head", "stage.act", "seq.1.last"])
def test_a_replaced_child_is_the_one_that_runs(module: fx.GraphModule, path: str, replace: Callable[..., None]) -> None:
    owner, _, name = path.rpartition(".")
    replace(module.get_submodule(owner), name, Tenfold())
    assert torch.equal(module(ONE), 10 * ONE)
    assert isinstance(module.get_submodule(path), Tenfold)
    assert isinstance(getattr(module.get_submodule(owner), name), Tenfold)
    replace(module.get_submodule(owner), name, torch.nn.Identity())
    assert torch.equal(module(ONE), ONE)


@pytest.mark.parametrize("path", ["head", "stage.act", "seq.1"])
@pytest.mark.parametrize("delete", ["delattr", "pop", "submodule", "none"])
def test_a_deleted_child_is_gone(module: fx.GraphModule, path: str, delete: str) -> None:
    prefix, _, name = path.rpartition(".")
    owner: Any = module.get_submodule(prefix)
    if delete == "delattr":
        delattr(owner, name)
    elif delete == "pop":
        owner._modules.pop(name)
    elif delete == "submodule":
        assert module.delete_submodule(path)
    else:
        setattr(owner, name, None)
    assert getattr(owner, name, None) is None
    assert path not in dict(module.named_modules())
    with pytest.raises((AttributeError, TypeError)):
        module(ONE)


def test_a_replaced_container_is_the_one_that_runs(module: fx.GraphModule) -> None:
    module.stage = Stage()
    module.stage.act = Tenfold()
    assert torch.equal(module(ONE), 10 * ONE)


def test_added_children_are_found(module: fx.GraphModule) -> None:
    assert module.add_submodule("stage.extra.inner", Tenfold())
    assert isinstance(module.stage.extra.inner, Tenfold)
    assert not module.add_submodule("stage.extra.inner.training.deep", Tenfold())
    with module.graph.inserting_before(module.graph.output_node()):
        extra = module.graph.call_module("stage.extra.inner", (module.graph.output_node().args[0],))
    module.graph.output_node().args = (extra,)
    module.recompile()
    assert torch.equal(module(ONE), 10 * ONE)


@pytest.mark.parametrize(
    "way",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), fx.symbolic_trace],
    ids=["deepcopy", "pickle", "retrace"],
)
def test_quick_containers_survive(module: fx.GraphModule, way: Callable[[Any], Any]) -> None:
    copied = way(module)
    assert torch.equal(copied(ONE), ONE)
    copied.stage.act = Tenfold()
    assert torch.equal(copied(ONE), 10 * ONE)
    assert torch.equal(module(ONE), ONE)
    assert isinstance(module.stage.act, torch.nn.ReLU)


def test_a_shallow_copy_shares_containers(module: fx.GraphModule) -> None:
    copied = copy.copy(module)
    copied(ONE)
    module.stage.act = Tenfold()
    assert torch.equal(copied(ONE), 10 * ONE)


def test_a_shallow_copy_of_a_container_has_children_of_its_own(module: fx.GraphModule) -> None:
    copied = copy.copy(module.stage)
    copied._modules = dict(copied._modules)
    copied.act = Tenfold()
    assert isinstance(module.stage.act, torch.nn.ReLU)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_reads_quick_containers(module: fx.GraphModule) -> None:
    assert torch.equal(torch.jit.script(module)(ONE), ONE)


def test_containers_stay_out_of_the_state_and_print_as_modules(module: fx.GraphModule) -> None:
    assert isinstance(module.stage, Container)
    assert repr(module.stage) == "Module(\n  (act): ReLU()\n  (last): Identity()\n)"
    assert [name for name, _ in module.named_children()] == ["stage", "seq", "head"]
    assert [name for name, _ in module.named_modules()][:4] == ["", "stage", "stage.act", "stage.last"]


def test_children_are_found_without_the_slow_path(module: fx.GraphModule, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, name: str) -> Any:
        raise AssertionError(f"{name} was looked up the slow way")

    monkeypatch.setattr(torch.nn.Module, "__getattr__", refuse)
    assert module.stage.act is module._modules["stage"]._modules["act"]
    assert torch.equal(module(ONE), ONE)


def test_children_named_like_attributes_of_modules_do_no_harm() -> None:
    graph = fx.Graph()
    x = graph.call_module("box.odd", (graph.placeholder("x"),))
    graph.output(graph.call_module("box._buffers2", (x,)))
    module = fx.GraphModule({"box.odd": torch.nn.ReLU(), "box._buffers2": Tenfold()}, graph)
    assert torch.equal(module(ONE), 10 * ONE)
    assert torch.equal(copy.deepcopy(module)(ONE), 10 * ONE)


def test_training_flags_reach_containers(module: fx.GraphModule) -> None:
    module.eval()
    assert not module.stage.training
    assert not module.stage.act.training
    assert module.train().stage.act.training


def test_threads_that_call_a_new_program_at_the_same_time_all_get_its_output() -> None:
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()) for _ in range(20)])
    x = torch.randn(3)
    expected = net(x)
    for _ in range(10):
        traced = fx.symbolic_trace(net)
        with ThreadPoolExecutor(4) as pool:
            outputs = list(pool.map(lambda module: module(x), [traced] * 8))
            traced.recompile()
            outputs += pool.map(lambda module: module(x), [traced] * 8)
        assert all(torch.equal(output, expected) for output in outputs)

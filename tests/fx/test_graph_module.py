"""Graph modules wherever modules go: state, training, hooks, scripting, compiling, parallel training, files."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from building import Calling
from torch import nn

import fx


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(Block(), torch.nn.Dropout(0.5), torch.nn.AdaptiveAvgPool2d(1))
        self.scale = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.features(x).flatten(1)
        return self.head(flat * self.scale * self.mask + self.shift)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def traced(net: Net) -> fx.GraphModule:
    return fx.symbolic_trace(net)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("traced again")

    monkeypatch.setattr(fx.Tracer, "trace", refuse)


def test_state_dict_has_the_originals_names_and_tensors(net: Net, traced: fx.GraphModule) -> None:
    ours, theirs = traced.state_dict(), net.state_dict()
    assert sorted(ours) == sorted(theirs)
    assert all(ours[name].data_ptr() == theirs[name].data_ptr() for name in theirs)
    assert "mask" not in ours
    assert "mask" in dict(traced.named_buffers())
    assert traced.scale is net.scale


def test_state_dicts_load_either_way(net: Net, traced: fx.GraphModule, x: torch.Tensor) -> None:
    other = fx.symbolic_trace(Net())
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.eval()(x), net.eval()(x))
    fresh = Net()
    fresh.load_state_dict(traced.state_dict())
    assert torch.equal(fresh.eval()(x), net(x))


def test_training_mode_reaches_every_module(traced: fx.GraphModule, x: torch.Tensor) -> None:
    traced.train()
    assert all(module.training for module in traced.modules())
    assert not torch.equal(traced(x), traced(x))
    traced.eval()
    assert not any(module.training for module in traced.modules())
    assert torch.equal(traced(x), traced(x))


def test_training_steps_match_the_original(net: Net, x: torch.Tensor) -> None:
    net.features[1].p = 0.0
    traced = fx.symbolic_trace(copy.deepcopy(net))
    results = []
    for module in (net, traced):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
        results.append(module.state_dict())
    ours, theirs = results[1], results[0]
    assert sorted(ours) == sorted(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_to_converts_parameters_and_buffers(traced: fx.GraphModule, x: torch.Tensor) -> None:
    traced.eval()
    expected = traced(x)
    doubled = traced.to(torch.float64)
    assert doubled is traced
    assert {tensor.dtype for tensor in (*traced.parameters(), traced.mask, traced.shift)} == {torch.float64}
    assert torch.allclose(traced(x.double()), expected.double(), atol=1e-5)
    assert next(traced.to("meta").parameters()).device.type == "meta"


def test_hooks_run_once_a_call(traced: fx.GraphModule, x: torch.Tensor) -> None:
    calls: list[str] = []
    traced.register_forward_pre_hook(lambda module, args: calls.append("before"))
    traced.register_forward_hook(lambda module, args, result: calls.append("after"))
    traced.register_full_backward_hook(lambda module, grads, results: calls.append("backward"))
    traced.get_submodule("features.0.conv").register_forward_hook(lambda module, args, result: calls.append("conv"))
    traced(x.requires_grad_()).sum().backward()
    assert calls == ["before", "conv", "after", "backward"]


def test_functional_call_takes_other_parameters(traced: fx.GraphModule, x: torch.Tensor) -> None:
    zeros = {name: torch.zeros_like(value) for name, value in traced.named_parameters()}
    assert torch.equal(torch.func.functional_call(traced.eval(), zeros, (x,)), torch.zeros(2, 2))
    grads = torch.func.grad(lambda values: torch.func.functional_call(traced, values, (x,)).sum())(
        dict(traced.named_parameters())
    )
    assert sorted(grads) == sorted(name for name, _ in traced.named_parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_compiles_and_traces_it(traced: fx.GraphModule, x: torch.Tensor) -> None:
    traced.eval()
    expected = traced(x)
    scripted = torch.jit.script(traced)
    assert torch.equal(scripted(x), expected)
    stored = io.BytesIO()
    torch.jit.save(scripted, stored)
    stored.seek(0)
    assert torch.equal(torch.jit.load(stored)(x), expected)
    assert torch.equal(torch.jit.trace(traced, x)(x), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_reads_the_annotations_of_generated_code() -> None:
    def program(
        xs: list[torch.Tensor], named: dict[str, torch.Tensor], k: int | None = None
    ) -> dict[str, torch.Tensor]:
        return {"sum": xs[0] + named["a"]}

    program.__annotations__ = {
        "xs": list[torch.Tensor], "named": dict[str, torch.Tensor], "k": int | None, "return": dict[str, torch.Tensor],
    }  # fmt: skip
    scripted = torch.jit.script(fx.symbolic_trace(program))
    assert torch.equal(scripted([torch.ones(1)], {"a": torch.ones(1)})["sum"], torch.full((1,), 2.0))


PARALLEL = """
import warnings
warnings.simplefilter("ignore")
import torch, fx
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
alone = [parameter.clone() for parameter in torch.autograd.grad(net(torch.ones(2, 4)).sum(), net.parameters())]
parallel = DistributedDataParallel(fx.symbolic_trace(net))
reduced = []

def reduce(_, bucket):
    reduced.extend(bucket.gradients())
    done = torch.futures.Future()
    done.set_result(bucket.buffer() * 2)  # as if another process had found the same
    return done

parallel.register_comm_hook(None, reduce)
parallel(torch.ones(2, 4)).sum().backward()
assert isinstance(parallel.module, fx.GraphModule)
assert len(reduced) == len(alone) == 4
assert all(torch.equal(p.grad, 2 * g) for p, g in zip(parallel.module.parameters(), alone, strict=True))
torch.distributed.destroy_process_group()
"""


@pytest.mark.thorough
def test_distributed_data_parallel_reduces_each_gradient() -> None:
    """In one process: where there are two, meeting over gloo sometimes fails, and averaging is torch's own work."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", PARALLEL], env=environment, check=True, timeout=120)


def test_torch_save_keeps_the_program(traced: fx.GraphModule, x: torch.Tensor, no_tracing: None) -> None:
    traced.eval()
    stored = io.BytesIO()
    torch.save(traced, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    assert torch.equal(loaded(x), traced(x))
    assert loaded.code == traced.code
    assert type(loaded).__name__ == "Net"
    assert not loaded.training


def test_copies_do_not_trace_and_share_the_right_objects(
    traced: fx.GraphModule, x: torch.Tensor, no_tracing: None
) -> None:
    traced.eval()
    deep, shallow = copy.deepcopy(traced), copy.copy(traced)
    assert torch.equal(deep(x), traced(x))
    assert deep.scale is not traced.scale
    assert deep.graph is not traced.graph
    assert deep.graph.owning_module is deep
    assert type(deep).__name__ == "Net"
    assert shallow.scale is traced.scale
    assert shallow.graph is traced.graph
    assert torch.equal(shallow(x), traced(x))


def test_an_edit_of_a_copy_leaves_the_original(traced: fx.GraphModule, x: torch.Tensor) -> None:
    traced.eval()
    expected, code = traced(x), traced.code
    copied = copy.deepcopy(traced)
    for node in copied.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.neg
    copied.recompile()
    with torch.no_grad():
        copied.scale.zero_()
    assert traced.code == code
    assert torch.equal(traced(x), expected)
    assert not torch.equal(copied(x), expected)


def test_deepcopy_keeps_tensors_that_are_shared_shared() -> None:
    linears = {name: torch.nn.Linear(2, 2) for name in "ab"}
    tied = Calling(lambda self, x: self.b(self.a(x)) + self.a.weight, **linears)
    tied.b.weight = tied.a.weight
    copied = copy.deepcopy(fx.symbolic_trace(tied))
    assert copied.a.weight is copied.b.weight
    assert len(list(copied.parameters())) == 3


def test_it_is_traced_through_as_a_submodule_and_kept_whole_as_a_leaf(traced: fx.GraphModule, x: torch.Tensor) -> None:
    class Whole(fx.Tracer):
        def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, fx.GraphModule)

    outer = Calling(lambda self, x: self.inner(x) + 1, inner=traced.eval())
    through = fx.symbolic_trace(outer)
    assert through.graph.find_nodes(op="call_module", target="inner.head")
    assert sorted(through.state_dict()) == sorted(outer.state_dict())
    whole = fx.GraphModule(outer, Whole().trace(outer))
    assert [node.target for node in whole.graph.find_nodes(op="call_module")] == ["inner"]
    assert torch.equal(through(x), outer(x))
    assert torch.equal(whole(x), outer(x))
    assert torch.equal(copy.deepcopy(whole)(x), outer(x))


class Counting(fx.GraphModule):
    """A subclass with state and behaviour of its own."""

    def __init__(self, root: Any, graph: fx.Graph, class_name: str = "Counting") -> None:
        super().__init__(root, graph, class_name)
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return super().__call__(*args, **kwargs)


def test_subclasses_keep_state_and_methods_through_copies(net: Net, x: torch.Tensor, no_tracing: None) -> None:
    graph = fx.Graph()
    graph.output(graph.call_module("head", (graph.placeholder("x"),)))
    counting = Counting(net, graph)
    counting(torch.ones(1, 4))
    copied = copy.deepcopy(counting)
    copied(torch.ones(1, 4))
    assert (counting.calls, copied.calls) == (1, 2)
    assert isinstance(copied, Counting)
    import pickle

    loaded = pickle.loads(pickle.dumps(copied))
    assert isinstance(loaded, Counting)
    assert loaded.calls == 2
    assert torch.equal(loaded(torch.ones(1, 4)), net.head(torch.ones(1, 4)))


def test_the_first_error_of_a_call_is_the_one_raised(traced: fx.GraphModule) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        traced(torch.ones(2, 3, 8, 8), nonsense=1)


def test_root_of_another_kind_is_refused() -> None:
    with pytest.raises(fx.GraphError, match="the root of a GraphModule is a module or a dict, not a list"):
        fx.GraphModule([], fx.Graph())  # type: ignore[arg-type]


def test_attributes_missing_in_the_root_are_named() -> None:
    graph = fx.Graph()
    graph.output(graph.get_attr("layer.weight"))
    with pytest.raises(fx.GraphError, match="refers to 'layer', which the root module does not have"):
        fx.GraphModule(torch.nn.Module(), graph)
    root = torch.nn.Module()
    root.layer = torch.nn.Module()
    with pytest.raises(fx.GraphError, match=r"refers to 'layer.weight', which the root module does not have") as caught:
        fx.GraphModule(root, graph)
    assert "try    add it to the root" in str(caught.value)


def test_non_persistent_buffers_stay_so_through_copies(traced: fx.GraphModule) -> None:
    assert "mask" not in copy.deepcopy(traced).state_dict()
    assert "mask" in dict(copy.deepcopy(traced).named_buffers())
    again = fx.symbolic_trace(traced)
    assert "mask" not in again.state_dict()


def test_readable_text_shows_the_users_lines(traced: fx.GraphModule, capsys: pytest.CaptureFixture[str]) -> None:
    text = traced.print_readable()
    assert capsys.readouterr().out == text + "\n"
    assert text.startswith("class Net(torch.nn.Module):\n    def forward(self, x : torch.Tensor)")
    assert "code: flat = self.features(x).flatten(1)" in text
    assert traced.print_readable(print_output=False) == text
    assert capsys.readouterr().out == ""
    compile(textwrap.dedent(text), "readable", "exec")


def test_code_of_a_captured_program_is_known_to_be_older_than_its_first_edit() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    program.graph.find_nodes(op="call_function")[0].target = torch.tanh
    assert program._code_revision != program.graph.revision
    assert "torch.relu" in program.code
    program.recompile()
    assert program._code_revision == program.graph.revision


@pytest.mark.parametrize("name", ["graph", "code", "recompile"])
def test_an_attribute_under_a_name_of_every_program_is_refused(name: str) -> None:
    model = Calling(lambda self, x: x * getattr(self, name))
    model.register_parameter(name, torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(fx.GraphError, match=f"cannot hold an attribute called '{name}'") as error:
        fx.symbolic_trace(model)
    assert "x * getattr(self, name)" in str(error.value)
    assert "rename it in the module" in str(error.value)


def test_a_module_that_has_two_names_is_called_by_the_first_one_in_programs_that_are_captured_again() -> None:
    shared = torch.nn.Sequential(torch.nn.Linear(4, 4))
    inner = Calling(lambda self, x: self.shared(self.norm(x)), shared=shared, norm=torch.nn.LayerNorm(4))
    outer = Calling(lambda self, x: self.inner(x), shared=shared, inner=inner)
    program = fx.symbolic_trace(outer)
    assert list(program.state_dict()) == list(outer.state_dict())
    assert fx.symbolic_trace(program).code == program.code


class UsedInAnotherOrder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.unused = (nn.Linear(2, 2) for _ in range(3))
        self.bias, self.scale = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        self.register_buffer("shift", torch.ones(2))
        self.register_buffer("start", torch.ones(2))
        self.heads = nn.ModuleDict({"one": nn.Linear(2, 2), "other": nn.Linear(2, 2)})

    def forward(self, x: Any) -> Any:
        return self.last(self.heads["other"](self.first(x + self.start)) * self.scale) + self.bias + self.shift


def _transformed(program: fx.GraphModule) -> fx.GraphModule:
    return fx.Transformer(program).transform()


def _traced_again(program: fx.GraphModule) -> fx.GraphModule:
    return fx.symbolic_trace(program)


@pytest.mark.parametrize("derive", [None, copy.deepcopy, _transformed, _traced_again])
def test_state_of_a_captured_program_has_names_and_order_of_the_model(derive: Any) -> None:
    model = UsedInAnotherOrder()
    program = fx.symbolic_trace(model)
    program = program if derive is None else derive(program)
    assert list(program.state_dict()) == list(model.state_dict())
    assert [name for name, _ in program.named_parameters()] == [name for name, _ in model.named_parameters()]


def test_optimizer_state_of_the_model_fits_the_same_parameters_of_the_program() -> None:
    model = UsedInAnotherOrder()
    trained = torch.optim.Adam(model.parameters())
    model(torch.rand(3, 2)).sum().backward()
    trained.step()
    program = fx.symbolic_trace(model)
    resumed = torch.optim.Adam(program.parameters())
    resumed.load_state_dict(trained.state_dict())
    for name, parameter in program.named_parameters():
        before = trained.state.get(model.get_parameter(name), {})
        assert resumed.state.get(parameter, {}).keys() == before.keys()
        assert all(torch.equal(resumed.state[parameter][key], value) for key, value in before.items()), name


def test_a_program_of_some_of_the_state_has_it_in_the_order_of_the_model() -> None:
    model = UsedInAnotherOrder()
    program = fx.GraphModule(model, fx.Tracer().trace(model))
    used = [name for name in model.state_dict() if name in program.state_dict()]
    assert list(program.state_dict()) == used
    assert "unused.weight" not in used

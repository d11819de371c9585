"""A program that has not run yet, with an uncompiled ``forward``, is accepted wherever a module is."""

from __future__ import annotations

import copy
import linecache
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import fx
from fx.passes import Canonicalize, FuseConvBN


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 1)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(x)))


class Around(nn.Module):
    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.program(x) + 1


X = torch.arange(8.0).reshape(2, 1, 2, 2)


def captured() -> fx.GraphModule:
    return fx.symbolic_trace(Small().eval())


def _recompiled() -> fx.GraphModule:
    program = captured()
    program(X)
    program.recompile()
    return program


def _loaded(folder: Path) -> fx.GraphModule:
    fx.save(captured(), folder / "program.safetensors")
    return fx.load(folder / "program.safetensors")


ORIGINS: dict[str, Callable[[Path], nn.Module]] = {
    "captured": lambda _: captured(),
    "recompiled": lambda _: _recompiled(),
    "loaded": _loaded,
    "deepcopied": lambda _: copy.deepcopy(captured()),
    "unpickled": lambda _: pickle.loads(pickle.dumps(captured())),
    "fused": lambda _: FuseConvBN()(captured()),
    "canonical": lambda _: Canonicalize()(captured()),
    "lowered": lambda _: fx.lower(captured()),
    "transformed": lambda _: fx.Transformer(captured()).transform(),
    "inside another module": lambda _: Around(captured()),
    "inside another program": lambda _: fx.GraphModule({"inner": captured()}, _calling("inner")),
}


def _calling(path: str) -> fx.Graph:
    graph = fx.Graph()
    graph.output(graph.call_module(path, (graph.placeholder("x"),)))
    return graph


@pytest.fixture(params=ORIGINS)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> nn.Module:
    """A program that has not run yet."""
    return ORIGINS[request.param](tmp_path)


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_torch_compile_takes_a_call_of_it_as_one_graph(fresh: nn.Module) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return fresh(x) * 2

    output = torch.compile(call, backend="eager", fullgraph=True)(X)
    assert torch.equal(output, fresh(X) * 2)


def test_torch_compile_takes_it_as_one_graph(fresh: nn.Module) -> None:
    output = torch.compile(fresh, backend="eager", fullgraph=True)(X)
    assert torch.equal(output, fresh(X))


def test_torch_export_follows_it_strictly(fresh: nn.Module) -> None:
    exported = torch.export.export(fresh, (X,), strict=True)
    assert torch.allclose(exported.module()(X), fresh(X))


def _replaced(program: fx.GraphModule) -> torch.Tensor:
    return torch.func.functional_call(program, dict(program.named_parameters()), (X,))


def _as_forward(program: fx.GraphModule) -> torch.Tensor:
    return torch.compile(lambda x: program.forward(x), backend="eager", fullgraph=True)(X)


TAKERS: dict[str, Callable[[fx.GraphModule], torch.Tensor]] = {
    "torch.jit.script": lambda program: torch.jit.script(program)(X),
    "torch.jit.trace": lambda program: torch.jit.trace(program, X)(X),
    "torch.export": lambda program: torch.export.export(program, (X,), strict=False).module()(X),
    "torch.func.functional_call": _replaced,
    "torch.func.vmap": lambda program: torch.func.vmap(program)(X[:, None])[:, 0],
    "torch.compile of its forward": _as_forward,
    "torch.fx": lambda program: torch.fx.symbolic_trace(program)(X),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("taker", TAKERS)
def test_others_take_it(taker: str) -> None:
    program = captured()
    assert torch.allclose(TAKERS[taker](program), program(X))


def test_threads_that_call_it_first_at_the_same_time_get_the_same_function() -> None:
    for _ in range(20):
        program, gate, results = captured(), threading.Barrier(4), list[Any]()

        def call(
            program: fx.GraphModule = program, gate: threading.Barrier = gate, outcomes: list[Any] = results
        ) -> None:
            gate.wait()
            outcomes.append((program(X), type(program).forward))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 4
        assert len({function for _, function in results}) == 1
        assert all(torch.equal(output, results[0][0]) for output, _ in results)


def test_capture_leaves_compiling_to_the_first_use() -> None:
    before = set(linecache.cache)
    program = captured()
    assert not set(linecache.cache) - before
    program(X)
    assert len(set(linecache.cache) - before) >= 1


def _edit(program: fx.GraphModule) -> None:
    (node,) = program.graph.find_nodes(op="call_function", target=torch.relu)
    node.target = torch.neg
    program.recompile()


CALLS: dict[str, Callable[[fx.GraphModule], nn.Module | Callable[..., Any]]] = {
    "itself": lambda program: program,
    "a function that calls it": lambda program: lambda x: program(x) * 2,
    "a module around it": Around,
}


@pytest.mark.parametrize("runs_before", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_torch_compile_follows_an_edit_after_recompile(call: str, runs_before: bool) -> None:
    program, counter = captured(), CompileCounter()
    if runs_before:
        program(X)
    called = CALLS[call](program)
    compiled = torch.compile(called, backend=counter, fullgraph=True)
    assert torch.equal(compiled(X), called(X))
    compiled(X)
    assert counter.frame_count == 1
    _edit(program)
    assert torch.equal(compiled(X), called(X))
    assert counter.frame_count == 2

"""Whole ways through the library: captured, changed, copied, stored and loaded, a program stays the program."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fx
from fx.modules.attributes import fetch_attribute
from fx.passes import FuseConvBN
from model_zoo import ZooModel, get_model, list_models

# torch pickles no module with parametrizations, as the critic's weight norm is
SMALL = [name for name in list_models() if "small" in get_model(name).tags and "critic" not in name]


class Inlining(fx.Tracer):
    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, torch.nn.RNNBase)  # which branches on the rank of its input


def inlined(model: torch.nn.Module) -> fx.GraphModule:
    return fx.GraphModule(model, Inlining().trace(model))


WAYS: dict[str, Callable[[fx.GraphModule], Any]] = {
    "code": lambda module: module,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "retrace": fx.symbolic_trace,
    "transformer": lambda module: fx.Transformer(module).transform(),
    "interpreter": lambda module: fx.Interpreter(module).run,
    "rebuilt": lambda module: fx.GraphModule(module, copy.deepcopy(module.graph)),
    "from a dict": lambda module: fx.GraphModule(
        {
            node.target: fetch_attribute(module, node.target)
            for node in module.graph.nodes
            if node.op in ("get_attr", "call_module")
        },
        copy.deepcopy(module.graph),
    ),
    "copied node by node": lambda module: fx.GraphModule(module, _copied(module.graph)),
}  # fmt: skip


def _copied(graph: fx.Graph) -> fx.Graph:
    new = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        copies[node] = new.node_copy(node, copies.__getitem__)
    return new


@pytest.fixture(scope="module")
def programs() -> dict[tuple[str, Any], tuple[ZooModel, torch.nn.Module, fx.GraphModule]]:
    by_name = {}
    for name in SMALL:
        zoo = get_model(name)
        model = zoo.build().eval()
        for capture in (fx.symbolic_trace, inlined):
            by_name[name, capture] = zoo, model, capture(model)
    return by_name


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("capture", [fx.symbolic_trace, inlined])
@pytest.mark.parametrize("name", SMALL)
def test_every_way_gives_eagers_output(
    programs: Any, name: str, capture: Any, way: Callable[[fx.GraphModule], Any]
) -> None:
    zoo, model, module = programs[name, capture]
    inputs = zoo.example_inputs(2)
    with torch.no_grad():
        expected, actual = model(*inputs), way(module)(*inputs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    module.graph.lint()


@pytest.mark.parametrize("name", SMALL)
def test_fused_programs_go_every_way_too(
    programs: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo, model, _ = programs[name, fx.symbolic_trace]
    fused = FuseConvBN()(fx.symbolic_trace(copy.deepcopy(model)))
    inputs = zoo.example_inputs(2)
    with torch.no_grad():
        torch.testing.assert_close(fused(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
        expected = fused(*inputs)
        for way in WAYS.values():
            torch.testing.assert_close(way(fused)(*inputs), expected, rtol=0, atol=0)
        monkeypatch.syspath_prepend(tmp_path)
        fused.to_folder(tmp_path / f"fused_{name}")
        stored = importlib.import_module(f"fused_{name}").FxModule()
        # the weights lie elsewhere in memory, which changes the kernels' order of sums
        torch.testing.assert_close(stored(*inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_a_package_of_resnet50_runs_without_the_library(tmp_path: Path) -> None:
    zoo = get_model("resnet50")
    module = fx.symbolic_trace(zoo.build().eval())
    (x,) = zoo.example_inputs(1)
    with torch.no_grad():
        torch.save((x, module(x)), tmp_path / "expected.pt")
    module.to_folder(tmp_path / "stored_resnet", "ResNet")
    assert "weights_only=True" in (tmp_path / "stored_resnet" / "module.py").read_text()
    program = (
        "import sys, torch\n"
        "sys.modules['fx'] = None\n"
        "from stored_resnet import ResNet\n"
        "x, expected = torch.load('expected.pt')\n"
        "with torch.no_grad():\n"
        "    assert torch.allclose(ResNet()(x), expected, atol=1e-5)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)

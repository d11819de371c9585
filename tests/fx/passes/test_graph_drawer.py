"""``FxGraphDrawer``: torch.fx's class and methods, without pydot."""

from __future__ import annotations

import shutil
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.errors import DrawingError
from fx.passes.graph_drawer import FxGraphDrawer
from fx.passes.shape_prop import ShapeProp
from fx.passes.split_module import split_by_nodes


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bn = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.bn(self.linear(x)) * self.weight).clamp(min=0.0, max=1.0)


def drawn(**options) -> str:
    program = fx.symbolic_trace(Net().eval())
    ShapeProp(program).propagate(torch.ones(2, 4))
    return FxGraphDrawer(program, "net", **options).get_dot_graph().to_string()


def test_nodes_edges_and_tensors_of_modules_are_in_the_text() -> None:
    text = drawn()
    assert text.startswith('digraph "net" {\n  rankdir=TB;\n')
    assert '"{name=%clamp|op_code=call_method|target=clamp|kwargs=\\{min: 0.0, max: 1.0,\\}|num_users=1|' in text
    assert "|dtype=torch.float32|shape=(2, 5)|requires_grad=True|stride=(5, 1)}" in text
    assert '"linear" -> "bn";' in text and '"linear.weight" -> "linear";' in text
    assert 'label="{bn.running_mean|op_code=get_buffer|torch.float32[5]}"' in text
    assert "in_features: 4\\nout_features: 5" in text


def test_options_leave_out_or_add() -> None:
    assert '"weight"' not in drawn(ignore_getattr=True) and '"weight" ->' in drawn()
    assert "linear.weight" not in drawn(ignore_parameters_and_buffers=True)
    assert "args=(%mul,)" in drawn(skip_node_names_in_args=False) and "args=(%mul,)" not in drawn()
    assert "file=passes/test_graph_drawer.py:" in drawn(parse_stack_trace=True) and "file=" not in drawn()
    assert 'shape="box", label="name=%x\\nop_code=placeholder' in drawn(dot_graph_shape="box")


def test_arguments_are_normalized_on_request() -> None:
    program = fx.symbolic_trace(lambda x: torch.add(F.relu(x), 2))
    text = FxGraphDrawer(program, "add", normalize_args=True, skip_node_names_in_args=False).get_dot_graph().to_string()
    assert "kwargs=\\{input: %x, inplace: False,\\}" in text
    assert "args=(%relu, 2,)" in text  # it fits two overloads


def test_programs_in_a_program_have_graphs_of_their_own() -> None:
    program = fx.symbolic_trace(Net().eval())
    whole = split_by_nodes(program, [{node for node in program.graph.nodes if node.name == "bn"}])
    drawer = FxGraphDrawer(whole, "net")
    inner = [path for path, module in whole.named_children() if isinstance(module, fx.GraphModule)]
    assert inner
    assert list(drawer.get_all_dot_graphs()) == ["net", *(f"net_{name}" for name in inner)]
    assert drawer.get_dot_graph(inner[0]) is drawer.get_submod_dot_graph(inner[0])
    assert drawer.get_dot_graph() is drawer.get_main_dot_graph()
    with pytest.raises(KeyError) as caught:
        drawer.get_submod_dot_graph("other")
    assert str(caught.value) == (
        f"there is no drawing of a program at 'other'\n  why    programs are at {', '.join(inner)}"
    )


def test_the_same_function_has_the_same_fill() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(torch.neg(torch.relu(x))))
    text = FxGraphDrawer(program, "fills").get_dot_graph().to_string()
    fill = {
        line.split('"')[1]: line.split("fillcolor=")[1].split(",")[0]
        for line in text.splitlines()
        if "fillcolor" in line
    }
    assert fill["relu"] == fill["relu_1"] != fill["neg"]


def test_a_file_of_text_needs_nothing(tmp_path) -> None:
    graph = FxGraphDrawer(fx.symbolic_trace(Net()), "net").get_dot_graph()
    assert graph.write(tmp_path / "net.dot") and graph.write_raw(tmp_path / "raw.dot")
    assert (tmp_path / "net.dot").read_text() == (tmp_path / "raw.dot").read_text() == graph.to_string() == str(graph)
    assert graph.get_name() == "net"


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_it(tmp_path) -> None:
    program = fx.symbolic_trace(Net())
    program.graph.find_nodes(op="call_method")[0].name = 'a "b" {c|d} <e> \\'
    graph = FxGraphDrawer(program, "net", parse_stack_trace=True).get_dot_graph()
    graph.write_svg(tmp_path / "net.svg")
    assert "name=%a &quot;b&quot; {c|d} &lt;e&gt; \\" in (tmp_path / "net.svg").read_text()
    assert graph.create_png().startswith(b"\x89PNG")


def test_methods_that_need_pydot_name_it(monkeypatch) -> None:
    graph = FxGraphDrawer(fx.symbolic_trace(Net()), "net").get_dot_graph()
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(DrawingError) as caught:
        graph.get_node_list()
    lines = str(caught.value).splitlines()
    assert lines[0] == "a pydot.Dot needs pydot, which is not installed"
    assert lines[-1] == "  try    pip install pydot; to_string() and write_svg() of the graph do without"


def test_pydot_gives_the_rest(monkeypatch) -> None:
    read = ModuleType("pydot")
    read.graph_from_dot_data = lambda text: [SimpleNamespace(get_node_list=lambda: text)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pydot", read)
    graph = FxGraphDrawer(fx.symbolic_trace(Net()), "net").get_dot_graph()
    assert graph.get_node_list() == graph.to_string()


def test_a_module_is_refused() -> None:
    with pytest.raises(DrawingError, match="'graph_module' of FxGraphDrawer is a GraphModule, not a Net"):
        FxGraphDrawer(Net(), "net")  # type: ignore[arg-type]

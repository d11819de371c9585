"""Private names of torch.fx that its clients take hold of: here they mean the same."""

import copy
import importlib
import operator
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import fx

from .sides import Side, Uses, assert_same

USES = Uses()
use = USES.add


X = torch.linspace(-1, 1, 6).reshape(2, 3)


@use
def graph_and_its_parts(side: Side) -> Any:
    fx = side.library
    traced = fx.symbolic_trace(lambda x: torch.relu(x).neg())
    graph = traced.graph
    nodes = list(graph.nodes)
    namespace = graph._graph_namespace.create_name("relu", None)
    nodes[1]._rename("activation")
    return (
        namespace,
        graph._root.op,
        [graph._root.next is nodes[0], nodes[0]._next is nodes[1], nodes[1]._prev is nodes[0]],
        graph._len,
        graph.owning_module is traced,
        graph._tracer_cls is fx.Tracer,
        isinstance(graph._codegen, fx.graph.CodeGen),
        list(nodes[1]._input_nodes),
        nodes[0] in graph._find_nodes_lookup_table,
        nodes[1]._args,
        nodes[1]._kwargs,
        nodes[1].name,
        fx.node._format_arg([nodes[1], {"a": (1, None)}, 2.5]),
        nodes[1]._pretty_print_target(operator.add),
    )


@use
def arguments_written_at_once(side: Side) -> Any:
    graph = side.library.symbolic_trace(lambda x, y: x + y).graph
    x, y, added, _ = graph.nodes
    added._update_args_kwargs((y,), {"other": x})
    return graph, list(added._input_nodes), list(x.users)


@use
def generator_of_signatures_with_structures(side: Side) -> Any:
    fx = side.library
    traced = fx.symbolic_trace(lambda a, b: a + b)
    _, in_spec = pytree.tree_flatten(({"a": 0, "b": 0},))
    _, out_spec = pytree.tree_flatten([0])
    output = next(iter(reversed(traced.graph.nodes)))
    output.args = ([output.args[0]],)
    traced.graph._codegen = fx.graph._PyTreeCodeGen(fx.graph._PyTreeInfo(["inputs"], in_spec, out_spec))
    traced.recompile()
    again = fx.graph._PyTreeInfo(orig_args=["x"], in_spec=in_spec, out_spec=out_spec)._replace(orig_args=["y"])
    return traced, traced({"a": X, "b": X}), again.orig_args


@use
def code_of_a_generator_of_ones_own(side: Side) -> Any:
    class Listed(side.library.graph.CodeGen):
        def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str) -> str:
            return f"def forward(self, args_list):\n    {', '.join(free_vars)}, = args_list"

        def process_inputs(self, *inputs: Any) -> Any:
            return inputs[0]

    traced = side.library.symbolic_trace(lambda x, y: x + y)
    traced.graph.set_codegen(Listed())
    traced.recompile()
    return traced, traced([X, X]), side.library.Interpreter(traced).run([X, X])


@use
def names_by_the_rules_of_graphs(side: Side) -> Any:
    namespace = side.library.graph._Namespace()
    named = [namespace.create_name(name, None) for name in ("x", "x", "x_1", "0", "sum", "a.b", "torch")]
    return named, [side.library.graph._snake_case(name) for name in ("MaxPool2d", "relu", "LSTMCell")]


@use
def operators_by_their_names(side: Side) -> Any:
    graph = side.library.graph
    tables = (graph.magic_methods, graph.reflectable_magic_methods, graph.inplace_methods)
    # torch.fx lists one that Python no longer has, and one that has no reflected method
    return [sorted(item for item in table.items() if item[0] not in ("div", "getitem")) for table in tables]


@use
def containers_of_ones_own(side: Side) -> Any:
    class Box:
        def __init__(self, content: Any) -> None:
            self.content = content

    fx_pytree = side.library._pytree
    pytree.register_pytree_node(Box, lambda box: ([box.content], None), lambda contents, _: Box(*contents))
    flattened: list[int] = []
    fx_pytree.register_pytree_flatten_spec(Box, lambda box, spec: [flattened.append(spec.num_children) or box.content])
    try:
        traced = side.library.symbolic_trace(lambda box: box.content * 2, concrete_args={"box": Box(side.library.PH)})
        leaves = fx_pytree.tree_flatten_spec([Box(1)], pytree.tree_flatten([Box(0)])[1])
        assert flattened
        return traced.code, traced(Box(X)), leaves
    finally:
        pytree._deregister_pytree_node(Box)


@use
def module_of_attributes_of_another(side: Side) -> Any:
    module, root = side.library.graph_module, nn.Linear(2, 2)
    shared = module._CodeOnlyModule(root.__dict__)
    return shared.weight is root.weight, module._USER_PRESERVED_ATTRIBUTES_KEY


@use
def attributes_copied_beside_a_shared_module(side: Side) -> Any:
    source, other = nn.Module(), nn.Module()
    source.shared = other.shared = nn.Module()
    source.shared.register_buffer("mask", torch.ones(1), persistent=False)
    source.own = nn.Module()
    source.own.register_buffer("mask", torch.zeros(1), persistent=False)
    for path in ("shared.mask", "own.mask"):
        side.library.graph_module._copy_attr(source, other, path)
    return list(other.state_dict()), other.own.mask


@use
def attributes_copied_at_once(side: Side) -> Any:
    traced = side.library.symbolic_trace(lambda x: torch.relu(x) + 1)
    traced(X)
    body = copy.deepcopy(traced.__dict__)
    return body["_graph"] is traced.graph, body["_graph"]


@use
def function_from_source(side: Side) -> Any:
    source = "def forward(self, x):\n    return torch.relu(x)"
    forward = side.library.graph_module._forward_from_src(source, {"torch": torch})
    return forward(None, X), forward.__name__


@use
def what_the_module_of_the_tracer_has(side: Side) -> Any:
    module = __import__(f"{side.library.__name__}._symbolic_trace", fromlist=["Tracer"])
    module._assert_is_none(None, "is given")
    with pytest.raises(AssertionError, match="is given"):
        module._assert_is_none(1, "is given")
    return (
        module.Tracer is side.library.Tracer,
        module.is_fx_tracing(),
        module.wrap is side.library.wrap,
        module.PH is side.library.PH,
        getattr(side.library.config, "do_not_emit_stack_traces", False),  # torch 2.10 has it not
    )


@use
def types_of_schemas(side: Side) -> Any:
    schemas = side.library.operator_schemas
    arguments = torch.ops.aten.conv2d.default._schema.arguments
    types = [schemas._torchscript_type_to_python_type(argument.type) for argument in arguments]
    signature = schemas._torchscript_schema_to_signature(torch.ops.aten.add.Tensor._schema)
    return types, str(signature)


@use
def programs_that_travel(side: Side) -> Any:
    traced = side.library.symbolic_trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    traced.meta["note"] = 7
    again = pickle.loads(pickle.dumps(traced))
    copied = copy.copy(traced)
    return torch.equal(again(X), traced(X)), copied.graph is traced.graph, copied.meta


@pytest.mark.parametrize("name", USES)
def test_it_does_the_same_with_fx(name: str) -> None:
    assert_same(USES[name])


PAGE = (Path(__file__).parents[2] / "docs" / "differences.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[tuple[str, str]]:
    """The two columns of the table under a heading of the page of differences."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE)


GIVEN = [
    f"{module.strip('`')}.{name}" for module, names in rows("Private names") for name in re.findall(r"`(\w+)`", names)
]
MISSING = [name for names, _ in rows("Not here") for name in re.findall("`([\\w.]+)`", names)]
OF_INSTANCES = {"graph.Graph": fx.Graph, "node.Node": lambda: fx.Graph().placeholder("x")}
NEWER = {"_normalize_function_or_error", "do_not_emit_stack_traces", "_input_nodes"}
"""Names that the oldest supported torch lacks, or that only instances have there."""


def find(library: str, path: str) -> Any:
    """Return the object at a path of a library: a module, or something in one."""
    try:
        return importlib.import_module(f"{library}.{path}")
    except ModuleNotFoundError:
        owner, _, name = path.rpartition(".")
        return getattr(find(library, owner) if owner else importlib.import_module(library), name)


@pytest.mark.parametrize("path", GIVEN)
def test_a_name_that_the_page_gives_is_found_at_the_same_path(path: str) -> None:
    owner, _, name = path.rpartition(".")
    if owner in OF_INSTANCES:
        assert hasattr(OF_INSTANCES[owner](), name)
    elif name != "record_stack_traces":  # a flag of tracers
        find("fx", path)
        if name not in NEWER:
            find("torch.fx", path)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("path", MISSING)
def test_a_name_that_the_page_misses_is_torch_fx_s_own(path: str) -> None:
    with pytest.raises((AttributeError, ImportError)):
        find("fx", path)
    if path != "traceback.NodeSource" and "materialize" not in path:
        find("torch.fx", path)


@pytest.mark.parametrize("instead", [instead for _, instead in rows("Not here")])
def test_replacements_named_on_the_page_exist(instead: str) -> None:
    for path in re.findall(r"`fx\.([\w.]+)", instead):
        find("fx", path)


def test_a_call_without_a_signature_cannot_be_normalized() -> None:
    pair = fx.operator_schemas._normalize_function_or_error(torch.relu, (X,), normalize_to_only_use_kwargs=True)
    assert list(pair.kwargs) == ["input"]
    with pytest.raises(fx.GraphError, match=r"the arguments of print cannot be normalized[\s\S]*normalize_function"):
        fx.operator_schemas._normalize_function_or_error(print, (X,))


@pytest.mark.thorough
def test_modules_that_torch_fx_imports_itself_are_attributes_of_fx() -> None:
    modules = "_compatibility _pytree _symbolic_trace config graph graph_module immutable_collections interpreter node"
    modules += " operator_schemas passes proxy subgraph_rewriter traceback"
    code = f"import fx; print([name for name in {modules.split()} if not hasattr(fx, name)])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"

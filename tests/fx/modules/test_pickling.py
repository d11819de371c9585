"""Graphs and graph modules through pickle: no tracing, nothing lost, and errors that name the node."""

from __future__ import annotations

import copy
import io
import operator
import pickle
import sys
import threading
import types
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, List, Optional, TypeVar  # noqa: UP035

import pytest
import torch
from torch import nn

import fx
from fx.errors import PickleError
from fx.interop import from_export
from fx.passes.shape_prop import ShapeProp


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        y = self.inner(self.linear(x))
        return fold(y[:, 0], mode=[torch.float32, {"k": slice(None)}]) * scale


@fx.wrap
def fold(x: Any, mode: Any = None) -> Any:
    return x.sum()


class Tracing(fx.Tracer):
    """A tracer that pickles remember."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> fx.GraphModule:
    net = Net()
    tracer = Tracing()
    module = fx.GraphModule(net, tracer.trace(net), "Net")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("traced again")

    monkeypatch.setattr(fx.Tracer, "trace", refuse)
    return module


def through_torch_save(value: Any) -> Any:
    stored = io.BytesIO()
    torch.save(value, stored)
    stored.seek(0)
    return torch.load(stored, weights_only=False)


class Listed(torch.nn.Module):
    def forward(self, x: Any) -> torch.Tensor:
        return x[0].relu()


Listed.forward.__annotations__["x"] = List["torch.Tensor"]  # noqa: UP006  it holds a reference to a type


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_keeps_references_to_types_and_recorded_shapes(protocol: int) -> None:
    program = fx.symbolic_trace(Listed())
    ShapeProp(program).propagate([torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)])
    restored = pickle.loads(pickle.dumps(program, protocol))
    for node, other in zip(program.graph.nodes, restored.graph.nodes, strict=True):
        assert (node.type, node.meta.get("tensor_meta")) == (other.type, other.meta.get("tensor_meta"))
    assert next(iter(restored.graph.nodes)).type == List["torch.Tensor"]  # noqa: UP006
    assert restored.graph.output_node().args[0].meta["tensor_meta"].memory_format is torch.channels_last


def annotated(kind: Any) -> fx.GraphModule:
    def program(x: Any) -> Any:
        return torch.relu(x)

    program.__annotations__ = {"x": kind}
    return fx.symbolic_trace(program)


@pytest.mark.parametrize("kind", [list[int], dict[str, torch.Tensor], Optional[int]], ids=str)  # noqa: UP045
def test_generic_types_are_kept(kind: Any) -> None:
    assert next(iter(pickle.loads(pickle.dumps(annotated(kind))).graph.nodes)).type == kind


def test_types_that_cannot_be_imported_are_left_out() -> None:
    class Local:
        pass

    variable = TypeVar("variable")
    for kind in (Local, list[Local], variable, list[variable], Optional[Local]):  # type: ignore[valid-type]  # noqa: UP045
        restored = pickle.loads(pickle.dumps(annotated(kind)))
        assert next(iter(restored.graph.nodes)).type is None
        assert restored(torch.ones(1)).item() == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_type_parameters_are_left_out() -> None:
    scope: dict[str, Any] = {}
    text = "def program[T](x: T, y: list[T]): return x + y[0]"
    exec(compile(text, "typed", "exec", dont_inherit=True), scope)  # its annotations are not strings, as those here are
    restored = pickle.loads(pickle.dumps(fx.symbolic_trace(scope["program"])))
    assert [node.type for node in restored.graph.nodes if node.op == "placeholder"] == [None, None]


@pytest.mark.parametrize(
    "way",
    [copy.deepcopy, *(lambda value, to=protocol: pickle.loads(pickle.dumps(value, to)) for protocol in (2, 4, 5)),
     through_torch_save],
    ids=["deepcopy", "pickle2", "pickle4", "pickle5", "torch.save"],
)  # fmt: skip
def test_everything_of_a_node_is_kept(module: fx.GraphModule, way: Any) -> None:
    relu = next(node for node in module.graph.nodes if node.target is torch.relu)
    relu.meta["note"] = {"shape": torch.Size([2]), "dtype": torch.float32, "list": [1, ("a", 2.0)]}
    relu.type = torch.Tensor
    module.recompile()
    copied = way(module)
    assert copied is not module
    for ours, theirs in zip(copied.graph.nodes, module.graph.nodes, strict=True):
        assert (ours.op, ours.name, ours.type) == (theirs.op, theirs.name, theirs.type)
        assert ours.target == theirs.target
        assert str(ours.args) == str(theirs.args)
        assert str(ours.kwargs) == str(theirs.kwargs)
        assert ours.source == theirs.source
        assert ours.meta == theirs.meta
        assert [user.name for user in ours.users] == [user.name for user in theirs.users]
        assert ours.graph is copied.graph
    assert copied.graph.owning_module is copied
    assert copied.graph._tracer_cls is Tracing
    assert copied.code == module.code
    copied.graph.lint()


def test_arguments_are_frozen_again(module: fx.GraphModule) -> None:
    graph = pickle.loads(pickle.dumps(module.graph))
    node = next(node for node in graph.nodes if node.target is fold)
    assert type(node.kwargs["mode"]) is fx.immutable_list
    assert type(node.kwargs["mode"][1]) is fx.immutable_dict
    with pytest.raises(fx.GraphError):
        node.kwargs["mode"].append(1)


def test_a_graph_pickles_on_its_own_and_can_be_edited(module: fx.GraphModule) -> None:
    graph = pickle.loads(pickle.dumps(module.graph))
    assert graph.owning_module is None
    last = graph.output_node()
    with graph.inserting_before(last):
        last.args = (graph.call_function(torch.neg, last.args),)
    x = torch.randn(3, 2)
    assert torch.equal(fx.GraphModule(module, graph)(x), -module(x))


def test_names_given_after_unpickling_do_not_clash(module: fx.GraphModule) -> None:
    graph = pickle.loads(pickle.dumps(module.graph))
    with graph.inserting_before(graph.output_node()):
        assert graph.call_function(torch.relu, (next(iter(graph.nodes)),)).name == "relu_1"


def test_unpickled_programs_run_train_and_pickle_again(module: fx.GraphModule) -> None:
    loaded = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(module))))
    x = torch.randn(3, 2)
    assert torch.equal(loaded(x), module(x))
    loaded(x).backward()
    assert loaded.linear.weight.grad is not None
    assert module.linear.weight.grad is None


def test_meta_that_is_no_data_is_left_out() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta.update(handler=lambda: 0, kept=1, nested={"handler": lambda: 0, "kept": (1, [2])})
    graph.output(x)
    loaded = next(iter(pickle.loads(pickle.dumps(graph)).nodes))
    assert loaded.meta == {"kept": 1, "nested": {"kept": (1, [2])}}
    assert "handler" in x.meta


def local_program() -> fx.GraphModule:
    def local(value: Any) -> Any:
        return value + 1

    graph = fx.Graph()
    graph.output(graph.call_function(local, (graph.placeholder("x"),), name="mine"))
    return fx.GraphModule({}, graph)


def test_a_local_function_is_refused_and_its_node_named() -> None:
    module = local_program()
    with pytest.raises(
        fx.errors.PickleError, match=r"node mine uses <function local_program\.<locals>\.local"
    ) as caught:
        pickle.dumps(module)
    text = str(caught.value)
    assert "value  %mine = call_function[test_pickling.local_program.<locals>.local](%x)" in text
    assert "why    a local function, a lambda" in text
    assert "try    define it at the top level of a module" in text
    assert isinstance(caught.value, pickle.PicklingError)


def test_a_local_function_in_an_argument_is_refused_and_its_node_named() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(map, (lambda value: value, [graph.placeholder("x")]), name="applied"))
    with pytest.raises(fx.errors.PickleError, match="node applied uses <function"):
        pickle.dumps(graph)


def test_a_program_with_a_local_function_still_copies() -> None:
    module = local_program()
    assert copy.deepcopy(module)(1) == 2


def test_a_function_that_was_replaced_in_its_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(fold, (graph.placeholder("x"),)))
    monkeypatch.setattr(sys.modules[__name__], "fold", len)
    with pytest.raises(fx.errors.PickleError, match="node fold uses"):
        pickle.dumps(graph)


def test_unpickling_without_the_function_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("library_that_goes")
    exec("def scale(x):\n    return x * 2", library.__dict__)
    monkeypatch.setitem(sys.modules, "library_that_goes", library)
    graph = fx.symbolic_trace(lambda x: x + 1).graph
    add = next(node for node in graph.nodes if node.name == "add")
    with graph.inserting_after(add):
        scaled = graph.call_function(library.scale, (add,))
    graph.output_node().args = (scaled,)
    stored = pickle.dumps(graph)
    assert fx.GraphModule({}, pickle.loads(stored))(1) == 4
    del library.scale
    with pytest.raises(
        fx.errors.PickleError, match=r"node scale calls library_that_goes\.scale, which is not found"
    ) as caught:
        pickle.loads(stored)
    assert "%scale = call_function[library_that_goes.scale](%add)" in str(caught.value)
    monkeypatch.delitem(sys.modules, "library_that_goes")
    with pytest.raises(fx.errors.PickleError, match="ModuleNotFoundError") as caught:
        pickle.loads(stored)
    assert "try    import or define it under that name" in str(caught.value)
    assert isinstance(caught.value, pickle.UnpicklingError)


def test_operators_torch_functions_and_methods_of_classes_are_found_again() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    targets = [operator.add, operator.getitem, len, getattr, dict.fromkeys, fx.Graph.lint, torch.relu, torch.Tensor.add,
               torch.nn.functional.relu, torch.nn.functional.max_pool2d, torch.ops.aten.add.Tensor,
               torch._C._nn.gelu]  # fmt: skip
    for target in targets:
        graph.call_function(target, (x,))
    loaded = pickle.loads(pickle.dumps(graph))
    assert [node.target for node in loaded.nodes if node.op == "call_function"] == targets


def test_callable_objects_pickle_by_themselves() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(operator.itemgetter(1), (graph.placeholder("x"),)))
    assert fx.GraphModule({}, pickle.loads(pickle.dumps(graph)))([1, 2]) == 2


def test_code_transformers_stay_with_copies_but_not_with_pickles_unless_importable() -> None:
    module = fx.symbolic_trace(lambda x: x + 1)
    module.graph.on_generate_code(lambda current: lambda lines: ["x = x * 10\n", *lines])
    module.recompile()
    assert copy.deepcopy(module)(1) == 11
    assert pickle.loads(pickle.dumps(module))(1) == 2
    module.graph.on_generate_code(lambda current: tenfold)
    assert pickle.loads(pickle.dumps(module))(1) == 11
    assert module.graph._codegen.body_transformer is tenfold


def tenfold(lines: list[str]) -> list[str]:
    return ["x = x * 10\n", *lines]


def test_a_tracer_class_that_cannot_be_imported_is_forgotten() -> None:
    class Local(fx.Tracer):
        pass

    root = torch.nn.Sequential(torch.nn.ReLU())
    module = fx.GraphModule(root, Local().trace(root))
    assert copy.deepcopy(module)._tracer_cls is Local
    loaded = pickle.loads(pickle.dumps(module))
    assert loaded._tracer_cls is None
    assert torch.equal(loaded(-torch.ones(1)), torch.zeros(1))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)), through_torch_save])
def test_structured_inputs_are_kept(way: Any) -> None:
    def program(named: Any) -> Any:
        return {"sum": named["a"] + named["b"][0]}

    module = fx.symbolic_trace(program, concrete_args={"named": {"a": fx.PH, "b": [fx.PH]}})
    copied = way(module)
    assert copied({"a": 1, "b": [2]}) == {"sum": 3} == fx.Interpreter(copied).run({"a": 1, "b": [2]})
    assert copied.graph._codegen.pytree_info == module.graph._codegen.pytree_info
    assert way(copied)({"a": 1, "b": [2]}) == {"sum": 3}


@pytest.mark.parametrize("count", [20_000])
def test_long_programs_have_no_limit(count: int) -> None:
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(count):
        node = graph.call_function(torch.neg, (node,))
    graph.output(node)
    for copied in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert len(copied.nodes) == count + 2
        assert copied.output_node().args[0].name == node.name


class Named(tuple):
    """Made of something else than its elements."""

    def __new__(cls, first: int, second: int) -> Named:
        return super().__new__(cls, (first, second))


def test_collections_in_meta_that_are_made_of_something_else_are_left_out() -> None:
    program = fx.symbolic_trace(torch.nn.ReLU())
    node = next(iter(program.graph.nodes))
    node.meta |= {
        "default": defaultdict(list, a=[1]),
        "counted": Counter("aab"),
        "named": Named(1, 2),
        "kept": {"a": [1]},
    }
    meta = next(iter(pickle.loads(pickle.dumps(program)).graph.nodes)).meta
    assert meta["kept"] == {"a": [1]}
    assert not {"default", "counted", "named"} & meta.keys()


class FreeSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = self.linear(x)
        return y.view(y.shape[0], 2, 2) + torch.ones(y.shape[0], 1, 1), y.shape[0] * 2


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_of_free_sizes_are_pickled_and_saved(strict: bool, tmp_path: Path) -> None:
    module, x = FreeSizes(), torch.randn(5, 4)
    sizes = {"x": {0: torch.export.Dim("batch", min=2)}}
    exported = torch.export.export(module, (torch.randn(3, 4),), dynamic_shapes=sizes, strict=strict)
    program = from_export(exported)
    expected, count = program(x)
    saved = tmp_path / "program.safetensors"
    fx.save(program, saved)
    buffer = io.BytesIO()
    torch.save(program, buffer)
    buffer.seek(0)
    for copied in (pickle.loads(pickle.dumps(program)), fx.load(saved), torch.load(buffer, weights_only=False)):
        assert copied.code == program.code
        output, own_count = copied(x)
        assert torch.equal(output, expected)
        assert own_count == count == 10


def test_sizes_without_numbers_stay_out_of_pickled_notes() -> None:
    exported = torch.export.export(
        FreeSizes(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2)}}
    )
    program = from_export(exported)
    notes = {node.name: node.meta.get("tensor_meta") for node in pickle.loads(pickle.dumps(program)).graph.nodes}
    assert notes["x"] is None
    assert notes["l_weight" if "l_weight" in notes else "linear_weight"].shape == (4, 4)


@pytest.mark.parametrize("dump", [pickle.dumps, lambda program: torch.save(program, io.BytesIO())])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: slice(value, None)])
def test_an_argument_that_cannot_be_pickled_is_named_with_its_node(dump: Any, wrap: Any) -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x).neg())
    (node,) = program.graph.find_nodes(op="call_method")
    node.args = (node.args[0], wrap(threading.Lock()))
    with pytest.raises(PickleError) as failure:
        dump(program)
    first, *lines = str(failure.value).splitlines()
    assert first == "cannot pickle the program: node neg uses a lock, which cannot be pickled"
    assert lines[0].startswith(f"  where  {__file__}:")
    assert lines[1].startswith("  value  %neg = call_method[neg](%relu, ")
    assert lines[2] == "  why    TypeError: cannot pickle '_thread.lock' object"


@pytest.mark.parametrize("keep", [lambda program: program.graph, lambda program: program])
def test_attributes_that_were_set_on_nodes_are_pickled_as_far_as_they_are_data(keep):
    program = fx.symbolic_trace(torch.nn.ReLU())
    for number, node in enumerate(program.graph.nodes):
        node.mark, node.kinds, node.handle = [number], {"kind": torch.nn.ReLU}, object()
    restored = pickle.loads(pickle.dumps(keep(program)))
    nodes = list(getattr(restored, "graph", restored).nodes)
    assert [node.mark for node in nodes] == [[number] for number in range(len(nodes))]
    assert all(node.kinds == {"kind": torch.nn.ReLU} and not hasattr(node, "handle") for node in nodes)

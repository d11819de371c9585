"""Programs that cannot be saved, and refused files: one error each, with what, where, why and what to try."""

from __future__ import annotations

import contextlib
import importlib
import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_files import edited, edited_header, put_together, reload, take_apart

import fx
from fx import serialization
from fx.errors import LoadError, SaveError


def unknown(x: Any) -> Any:
    return x


class Unknown(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x


@serialization.allow
class Forgetful(torch.nn.Module):
    """Does not keep its constructor's argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)


@serialization.allow
class Changed(torch.nn.Module):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.width = width
        self.note = "new"


@serialization.allow
class HoldsSequence(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.nn.Sequential()


def small() -> fx.GraphModule:
    return fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))


def of_call(target: Any, *args: Any) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(target, (x, *args)))
    return fx.GraphModule(torch.nn.Module(), graph)


def of_module(module: torch.nn.Module) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_module("part.inner", (graph.placeholder("x"),)))
    root = torch.nn.Module()
    root.part = torch.nn.Module()
    root.part.inner = module
    return fx.GraphModule(root, graph)


def of_buffer(value: torch.Tensor) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.get_attr("value"))
    root = torch.nn.Module()
    root.register_buffer("value", value)
    return fx.GraphModule(root, graph)


# What cannot be saved.


def of_method(name: str, *args: Any) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_method(name, (graph.placeholder("x"), *args)))
    return fx.GraphModule(torch.nn.Module(), graph)


def nested(times: int, value: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(times):
        value = wrap(value)
    return value


def changed(thing: Any, change: Callable[[Any], Any]) -> Any:
    change(thing)
    return thing


def twice(module: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Sequential(module), torch.nn.Sequential(module))


def linear_with(change: Callable[[Any], Any]) -> fx.GraphModule:
    return of_module(changed(torch.nn.Linear(2, 2), change))


def hold_itself(program: Any) -> None:
    program.add_submodule("holder", torch.nn.Module())
    program.holder.again = program.holder


class OwnCodeGen(fx.CodeGen):
    pass


class OwnProgram(fx.GraphModule):
    pass


NOT_SAVED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "what is no program": (torch.nn.ReLU, ["a GraphModule is saved, not a ReLU", "try    capture it first"]),
    "a function that is not allowed": (
        lambda: of_call(unknown),
        ["test_serialization_refusals.unknown' is nothing that a saved program may use", "value  %unknown = call",
         "try    if you trust what it does with any arguments, allow it first: fx.serialization.allow("],
    ),
    "an object": (lambda: of_call(torch.add, object()), ["a builtins.object is not data", "value  %add"]),
    "getattr as a value": (lambda: of_call(torch.add, getattr), ["getattr is used as a value"]),
    "an attribute": (lambda: of_call(getattr, "grad_fn"), ["'grad_fn' is nothing that a saved program may read"]),
    "a default": (lambda: of_call(getattr, "shape", None), ["an attribute with a default"]),
    "a generator": (lambda: of_call(torch.add, torch.Generator()), ["a torch._C.Generator is not data"]),
    "a function of torch": (lambda: of_call(torch.load), ["'torch.load' is nothing"]),
    "a method": (
        lambda: of_method("register_hook", torch.relu), ["the method 'register_hook'", "value  %register_hook"],
    ),
    "values that nest": (
        lambda: of_call(torch.add, nested(100, 1, lambda value: [value])), ["nests more than 64 levels deep", "%add"],
    ),
    "a class of modules": (
        lambda: of_module(Unknown()),
        ["the module's class Unknown is none that a file may name", "where  module part.inner",
         "try    @fx.serialization.allow above class Unknown, trace into it, or use to_folder or pickle"],
    ),
    "an argument that is not kept": (
        lambda: of_module(Forgetful(3)),
        ["a Forgetful cannot be made with these arguments",
         "keep each argument of its constructor as an attribute of that name"],
    ),
    "another attribute": (
        lambda: of_module(changed(Changed(), lambda module: setattr(module, "note", "old"))),
        ["is not the same", "note would be 'new', not 'old'"],
    ),
    "one more attribute": (
        lambda: linear_with(lambda linear: setattr(linear, "extra", 1)), ["why    extra would be absent, not 1"],
    ),
    "another shape": (
        lambda: linear_with(lambda linear: setattr(linear, "weight", torch.nn.Parameter(torch.ones(4, 2)))),
        ["why    weight would be torch.Size([2, 2]), not torch.Size([4, 2])"],
    ),
    "one more buffer": (
        lambda: linear_with(lambda linear: linear.register_buffer("more", torch.ones(1))),
        ["why    more would be absent, not torch.Size([1])"],
    ),
    "another order of parameters": (
        lambda: linear_with(lambda linear: linear.register_parameter("weight", linear._parameters.pop("weight"))),
        ["why    the order in it would be [['weight', 'bias'], [], []], not [['bias', 'weight'], [], []]"],
    ),
    "a part of another class": (
        lambda: of_module(changed(HoldsSequence(), lambda module: module.add_module("part", torch.nn.Identity()))),
        ["why    the class of part would be <class 'torch.nn.modules.container.Sequential'>, not"],
    ),
    "hooks of a module": (
        lambda: linear_with(lambda linear: linear.register_forward_hook(lambda *_: None)), ["_forward_hooks would be"],
    ),
    "hooks of the program": (
        lambda: changed(small(), lambda program: program.register_forward_pre_hook(lambda *_: None)),
        ["it has hooks (_forward_pre_hooks)", "where  the program itself"],
    ),
    "parametrizations": (
        lambda: of_module(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))),
        ["ParametrizedLinear", "remove_parametrizations"],
    ),
    "an attribute that is no data": (
        lambda: changed(small(), lambda program: setattr(program, "something", object())),
        ["its attribute 'something': a builtins.object is not data", "delete the attribute"],
    ),
    "a module that holds itself": (
        lambda: changed(small(), hold_itself), ["it holds itself", "where  module holder.again"],
    ),
    "modules that nest": (
        lambda: of_module(nested(150, torch.nn.ReLU(), torch.nn.Sequential)), ["modules nest more than 100 levels"],
    ),
    "modules by many paths": (
        lambda: changed(small(), lambda program: program.add_submodule("wide", nested(40, torch.nn.ReLU(), twice))),
        ["more than 1,000,000 paths lead to modules"],
    ),
    "a tensor without values": (
        lambda: of_buffer(torch.ones(2, device="meta")), ["a tensor is on the meta device", "the program itself"],
    ),
    "a sparse tensor": (lambda: of_buffer(torch.ones(2).to_sparse()), ["a tensor is of layout torch.sparse_coo"]),
    "a result": (
        lambda: of_buffer(torch.ones(2, requires_grad=True) * 2),
        ["the result of a computation that autograd recorded"],
    ),
    "a tensor of a subclass": (
        lambda: of_buffer(torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {}))), ["a tensor is of class"],
    ),
    "a quantized tensor": (
        lambda: of_buffer(torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)), ["a tensor is quantized"],
    ),
    "a tensor with hooks": (
        lambda: of_buffer(
            changed(torch.ones(2, requires_grad=True), lambda value: value.register_hook(lambda grad: grad))
        ),
        ["a tensor has hooks"],
    ),
    "a code generator": (
        lambda: changed(small(), lambda program: program.graph.set_codegen(OwnCodeGen())),
        ["its code is written by an OwnCodeGen", "try    graph.set_codegen(fx.CodeGen())"],
    ),
    "a function that rewrites code": (
        lambda: changed(small(), lambda program: program.graph.on_generate_code(lambda _: lambda body: body)),
        ["a function rewrites its code"],
    ),
    "a subclass of programs": (
        lambda: OwnProgram(program := small(), program.graph), ["it is of a subclass of GraphModule"],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
@pytest.mark.parametrize("name", NOT_SAVED)
def test_values_that_are_no_plain_data_are_refused_with_their_place(path: Path, name: str) -> None:
    make, parts = NOT_SAVED[name]
    with pytest.raises(SaveError) as caught:
        serialization.save(make(), path)
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert not list(path.parent.iterdir())


def test_a_part_of_a_module_that_is_used_on_its_own_is_refused(path: Path) -> None:
    attention = torch.nn.MultiheadAttention(4, 2)
    for names in (("attention", "own"), ("own", "attention")):
        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output([graph.call_module(name, (x,)) for name in names])
        parts = {"attention": attention, "own": attention.out_proj}
        program = fx.GraphModule({name: parts[name] for name in names}, graph)
        with pytest.raises(SaveError, match=r"used on its own|a part of attention|none that a file may name"):
            serialization.save(program, path)


def test_graphs_that_are_not_well_formed_are_refused_as_ever(path: Path) -> None:
    program = small()
    first, second, *_ = program.graph.nodes
    second.append(first)
    with pytest.raises(fx.GraphError, match="before it has been defined"):
        serialization.save(program, path)


# Files that are refused.


def assert_not_loaded(path: Path, *parts: str) -> LoadError:
    before = torch.get_default_dtype()
    with pytest.raises(LoadError) as caught:
        serialization.load(path)
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert isinstance(caught.value.__cause__, (fx.FxError, serialization.Refused)), caught.value
    assert torch.get_default_dtype() is before
    return caught.value


def test_paths_that_are_no_program_file_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        serialization.load(path)
    assert_not_loaded(tmp_path, "it is a folder")
    path.touch()
    assert_not_loaded(path, "it is empty")
    path.write_bytes(b"PK\x03\x04 this is a zip file or something else")
    assert_not_loaded(path, "it is cut off, or no safetensors file")
    path.write_bytes((4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc")
    assert_not_loaded(path, "its header is not text")
    path.write_bytes((2).to_bytes(8, "little") + b"[]")
    assert_not_loaded(path, "its header is not a JSON object")


def test_files_of_other_programs(path: Path) -> None:
    put_together(path, {}, "{}", b"")
    assert_not_loaded(path, "it holds no program")
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    assert_not_loaded(path, "it holds tensors but no program")
    assert_not_loaded(edited(small(), path, lambda stored: stored.update(version=2)), "it has version 2 of the format")
    assert_not_loaded(
        edited(small(), path, lambda stored: stored.update(more=2)), "the program has parts that are unknown"
    )


def test_every_truncation_is_noticed(path: Path) -> None:
    serialization.save(small(), path)
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        assert_not_loaded(path)
    path.write_bytes(data + b"\0")
    assert_not_loaded(path, "it has 1 bytes that belong to no tensor")


def test_sizes_in_the_header_are_checked_before_anything_is_allocated(path: Path) -> None:
    def claim(shape: Any, offsets: Any = None) -> Callable[[Any], None]:
        def edit(header: Any) -> None:
            entry = header["0.weight"]
            entry["shape"] = shape
            entry["data_offsets"] = offsets or entry["data_offsets"]

        return edit

    for shape, offsets, part in (
        ([10**6, 10**6], None, "another number of bytes than its shape takes"),
        ([10**9], [0, 4 * 10**9], "is not where the file has its bytes"),
        ([2**62, 2**62, 0], [0, 0], "the shape of tensor"),
        ([-1], [0, -4], "the shape of tensor"),
        ([True], [0, 4], "the shape of tensor"),
        ([1] * 65, [0, 4], "the shape of tensor"),
        ([2], [0, "8"], "at no place in the file"),
        ([3, 2], [8, 32], "is not where the file has its bytes"),
    ):
        assert_not_loaded(edited_header(small(), path, claim(shape, offsets)), part)
    path.write_bytes((10**15).to_bytes(8, "little") + b"{}")
    assert_not_loaded(path, "announce a header of 1,000,000,000,000,000 bytes")


def test_tensors_of_the_header_are_checked(path: Path) -> None:
    for edit, part in (
        (lambda header: header["0.bias"].update(dtype="F4"), "elements of an unknown type"),
        (lambda header: header["0.bias"].update(more=1), "not one of dtype, shape and data_offsets"),
        (lambda header: header.update(other=header.pop("0.bias")), "the file has no tensor '0.bias'"),
    ):
        assert_not_loaded(edited_header(small(), path, edit), part)
    serialization.save(of_buffer(torch.tensor([True, False])), path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x02")
    assert_not_loaded(path, "truth values that are neither 0 nor 1")


def test_json_is_read_strictly(path: Path) -> None:
    serialization.save(small(), path)
    header, stored, rest = take_apart(path)
    text = json.dumps(stored)
    for changed, part in (
        (text.replace('"version"', '"format": "fx", "version"'), "has a key twice"),
        ("[" * 100_000, "nests too deeply"),
        ('{"a":' * 100_000, "nests too deeply"),
        (text.replace('"version": 1', f'"version": 1{"0" * 1_000_000}'), "an integer of more than 64 bits"),
        (text.replace('"version": 1', '"version": NaN'), "the number NaN"),
        (text.replace('"version": 1', '"version": -Infinity'), "the number -Infinity"),
        (text[:-1], "its JSON is damaged"),
        ("", "its JSON is damaged"),
    ):
        put_together(path, header, changed, rest)
        assert_not_loaded(path, part)
    twice = json.dumps(header)[:-1] + ', "__metadata__": {"fx": "{}"}, "__metadata__": {"fx": "{}"}}'
    path.write_bytes(len(twice).to_bytes(8, "little") + twice.encode() + rest)
    assert_not_loaded(path, "has a key twice")


def nodes(stored: Any) -> list[Any]:
    return stored["modules"][-1]["graph"]["nodes"]


def relu(stored: Any) -> Any:
    """The node that the tests below make something else."""
    return nodes(stored)[2]


CALLS = {"op": "call_function", "target": "torch.relu", "args": [{"node": 1}]}

BAD_NODES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown opcode": ({"op": "exec"}, "'exec' is not an opcode"),
    "opcode of another type": ({"op": ["call_function"]}, "the part 'op' of a node is not a str"),
    "name twice": ({"name": "_0"}, "two nodes are called '_0'"),
    "name that is code": ({"name": "x; import os"}, "is not a name of a node"),
    "name that is long": ({"name": "x" * 2000}, "is not a name of a node"),
    "name with a surrogate": ({"name": "\ud800"}, "is not a name of a node"),
    "itself as input": ({"args": [{"node": 2}]}, "node number 2 is used before it is computed"),
    "a later node as input": ({"args": [{"node": 3}]}, "node number 3 is used before it is computed"),
    "a negative node": ({"args": [{"node": -1}]}, "node number -1 is used before it is computed"),
    "a node that is a bool": ({"args": [{"node": True}]}, "node number True"),
    "a function that is not listed": ({**CALLS, "target": "torch.load"}, "'torch.load' is nothing"),
    "a function of the system": ({**CALLS, "target": "os.system"}, "allow it first: fx.serialization.allow(os.system)"),
    "a dotted path": ({**CALLS, "target": "torch.nn.functional.torch.load"}, "is nothing that a saved program may use"),
    "a private attribute": ({**CALLS, "target": "torch.relu.__globals__"}, "is nothing that a saved program may use"),
    "an operator with a file": ({**CALLS, "target": "torch.ops.aten.from_file"}, "is nothing"),
    "an operator of TorchScript": ({**CALLS, "target": "torch.ops.aten.save"}, "is nothing"),
    "an overload that is none": ({**CALLS, "target": "torch.ops.aten.add.__class__"}, "is nothing"),
    "another namespace": ({**CALLS, "target": "torch.ops.c10d.barrier"}, "is nothing"),
    "a class of modules as function": ({**CALLS, "target": "torch.nn.Linear"}, "as a value only"),
    "a target of another type": ({**CALLS, "target": 3}, "a name is a string, not int"),
    "getattr of a private name": (
        {**CALLS, "target": "builtins.getattr", "args": [{"node": 1}, "__class__"]}, "the attribute '__class__'",
    ),
    "getattr of a computed name": (
        {**CALLS, "target": "builtins.getattr", "args": [{"node": 1}, {"node": 0}]}, "program may read",
    ),
    "getattr by keyword": (
        {**CALLS, "target": "builtins.getattr", "args": [{"node": 1}, "shape"], "kwargs": {"a": 1}}, "may read",
    ),
    "getattr as a value": ({**CALLS, "args": [{"name": "builtins.getattr"}]}, "getattr is used as a value"),
    "a method with underscores": ({"op": "call_method", "target": "__reduce__"}, "the method '__reduce__'"),
    "a method that formats": ({"op": "call_method", "target": "format"}, "the method 'format'"),
    "a method on nothing": ({"op": "call_method", "target": "relu", "args": []}, "a method is called on nothing"),
    "a method of another type": ({"op": "call_method", "target": None}, "is a string, not NoneType"),
    "a path into a method": ({"op": "get_attr", "target": "forward.__globals__", "args": []}, "there is no submodule"),
    "a path to a method": ({"op": "get_attr", "target": "0.forward", "args": []}, "leads to nothing"),
    "a path to state": ({"op": "get_attr", "target": "0._parameters", "args": []}, "leads to nothing"),
    "a path to the graph": ({"op": "get_attr", "target": "_graph", "args": []}, "leads to nothing"),
    "a call of a parameter": ({"op": "call_module", "target": "0.weight"}, "leads to nothing"),
    "an empty path": ({"op": "call_module", "target": "0..weight"}, "has parts that are empty"),
    "a parameter that is code": ({"op": "placeholder", "target": "x=f(1)", "args": []}, "is not a name of a parameter"),
    "a parameter called self": ({"op": "placeholder", "target": "self", "args": []}, "cannot be written as Python"),
    "a default that is computed": (
        {"op": "placeholder", "target": "y", "args": [{"node": 1}]}, "depends on a traced value",
    ),
    "no output": ({"op": "output", "target": "output", "args": []}, "has 0 arguments"),
    "arguments that are not a list": ({"args": {}}, "the part 'args' of a node is not a list"),
    "keywords that are not an object": ({"kwargs": []}, "the part 'kwargs' of a node is not a dict"),
    "an unknown field": ({"more": 1}, "a node has parts that are unknown"),
    "an unknown tag": ({"args": [{"eval": "1"}]}, "is not a value"),
    "two tags": ({"args": [{"node": 0, "int": "0x1"}]}, "is not a value"),
    "a number out of range": ({"args": [float("1e308") * 10]}, "the number Infinity"),
    "an integer that is none": ({"args": [{"int": "1_0"}]}, "not in base 16"),
    "a float that is none": ({"args": [{"float": "1"}]}, "'1' is not a number"),
    "a range with step 0": ({"args": [{"range": [1, 2, 0]}]}, "has the step 0"),
    "a slice of two": ({"args": [{"slice": [1, 2]}]}, "a slice is not made of 2 values"),
    "a size that is too big": ({"args": [{"size": [{"int": hex(2**70)}]}]}, "out of range"),
    "a key that cannot be one": ({"args": [{"dict": [[[], 1]]}]}, "a key of a dict"),
    "a key twice": ({"args": [{"dict": [["a", 1], ["a", 2]]}]}, "has a key twice"),
    "many keys with chosen hashes": (
        {"args": [{"dict": [[{"int": hex(n * (2**61 - 1))}, 1] for n in range(2000)]}]}, "more than 1000 keys",
    ),
    "a device that is none": ({"args": [{"device": "x"}]}, "'x' is not a device"),
    "a dtype that is none": ({"args": [{"dtype": "load"}]}, "'load' is not a dtype"),
    "an enum that is none": ({"args": [{"enum": ["builtins.int", "real"]}]}, "is not an enum"),
    "a named tuple that is none": ({"args": [{"namedtuple": ["builtins.tuple", []]}]}, "is not a named tuple"),
    "bytes that are none": ({"args": [{"bytes": "%"}]}, "not in base 64"),
    "a tensor that is none": ({"args": [{"tensor": 7}]}, "there is no tensor number 7"),
    "deep nesting": ({"args": json.loads("[" * 100 + "]" * 100)}, "nests more than 64 levels"),
    "an annotation that is none": ({"type": {"int": "0x1"}}, "is not an annotation"),
    "a generic that is none": ({"type": {"generic": ["Literal", []]}}, "there is no generic type"),
    "a generic of what it cannot be": ({"type": {"generic": ["|", [{"generic": ["|", []]}]]}}, "is not an annotation"),
    "notes that are not an object": ({"meta": 1}, "the part 'meta' of a node is not a dict"),
    "a note that is not there": ({"meta": {"a": {"note": 9}}}, "there is no note number 9"),
    "a place that is not there": ({"source": 99}, "there is no place in the source number 99"),
    "origins that are not strings": ({"origins": [1]}, "a list of strings is something else"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_NODES)
def test_a_bad_node_is_refused(path: Path, name: str) -> None:
    changes, part = BAD_NODES[name]
    error = assert_not_loaded(edited(small(), path, lambda stored: relu(stored).update(changes)), part)
    if "the number Infinity" not in part and "written as Python" not in part and "traced value" not in part:
        assert "where  module 2 of 3, node 2" in str(error)


def last(stored: Any) -> Any:
    return stored["modules"][-1]


def linear(stored: Any) -> Any:
    return stored["modules"][0]


BAD_MODULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no list": (lambda s: s.update(modules={}), "the part 'modules' of the program is not a list"),
    "none": (lambda s: s.update(modules=[]), "there are no modules"),
    "no program": (lambda s: s["modules"].pop(), "the last module is not a program"),
    "not an object": (lambda s: s["modules"].insert(0, 1), "a module is not an object with class, training"),
    "no mode": (lambda s: last(s).pop("training"), "a program is not an object with class, graph, name, training"),
    "a child that is itself": (lambda s: last(s)["modules"].update(x=2), "a module holds number 2"),
    "a later child": (lambda s: last(s)["modules"].update(x=3), "a module holds number 3"),
    "a class that is not listed": (lambda s: linear(s).update({"class": "subprocess.Popen"}), "is nothing that"),
    "a class that is not a module": (
        lambda s: linear(s).update({"class": "builtins.list"}),
        "is not a class of modules",
    ),
    "a function as class": (lambda s: linear(s).update({"class": "torch.relu"}), "is not a class"),
    "arguments that do not fit": (lambda s: linear(s)["arguments"].update(x=1), "cannot be made with these arguments"),
    "arguments of another type": (lambda s: linear(s)["arguments"].update(in_features="2"), "cannot be made"),
    "another shape": (lambda s: linear(s)["arguments"].update(in_features=3), "has shape [3, 2], not [3, 3]"),
    "a huge module": (lambda s: linear(s)["arguments"].update(in_features=10**9, out_features=10**9), "has shape"),
    "a missing tensor": (lambda s: linear(s)["tensors"].pop("weight"), "there is no tensor for weight"),
    "a tensor too many": (lambda s: linear(s)["tensors"].update(x=0), "which such a module does not have"),
    "a tensor that is not there": (lambda s: linear(s)["tensors"].update(weight=5), "there is no tensor number 5"),
    "modes of what is not there": (lambda s: linear(s).update(modes={"x": True}), "is not a submodule of it"),
    "unknown parts": (lambda s: linear(s).update(more=1), "parts that are unknown"),
    "unknown parts of a program": (lambda s: last(s).update(more=1), "parts that are unknown"),
    "no graph": (lambda s: last(s).pop("graph"), "a program is not an object with class, graph"),
    "a class name that is none": (lambda s: last(s).update(name="a\0"), "the name of a program's class is none"),
    "a name with a dot": (lambda s: last(s)["modules"].update({"a.b": 0}), "is not a name of an attribute"),
    "a name that hides a method": (lambda s: last(s)["modules"].update(forward=0), "would hide one"),
    "an attribute that hides state": (lambda s: last(s).update(attributes={"_modules": 1}), "would hide one"),
    "an attribute that hides a hook": (lambda s: last(s).update(attributes={"_forward_hooks": 1}), "would hide one"),
    "a buffer that is a parameter": (lambda s: last(s).update(buffers={"x": 0}), "is not a buffer"),
    "a name for two things": (lambda s: last(s).update(buffers={"0": None}), "two parts of a module have one name"),
    "transient without buffer": (lambda s: last(s).update(transient=["x"]), "not in the state dict is none"),
    "tables that are none": (lambda s: s.update(memory=1), "the part 'memory' of the program is not a list"),
    "memory that is none": (lambda s: s.update(memory=[1]), "an entry of the table of memory"),
    "a tensor that belongs to nothing": (lambda s: s["memory"].pop(), "belongs to nothing"),
    "a tensor twice": (lambda s: s["memory"].append(s["memory"][0]), "or it is used twice"),
    "strides with gaps": (lambda s: s["memory"][0].update(stride=[10**9, 1]), "strides that do not fit its shape"),
    "expanded to another shape": (lambda s: s["memory"][0].update(expanded=[10**6, 10**6]), "cannot be expanded"),
    "expanded beyond all sizes": (lambda s: s["memory"][0].update(expanded=[2**62, 2**62]), "is expanded to no shape"),
    "no complex numbers": (lambda s: s["memory"][1].update(complex=True), "no pairs of real and imaginary parts"),
    "tensors that are none": (lambda s: s["tensors"].append({}), "an entry of the table of tensors"),
    "memory that is not there": (lambda s: s["tensors"][0].update(memory=9), "there is no memory number 9"),
    "sources that are none": (lambda s: last(s)["graph"].update(sources=[1]), "a place in the source is not"),
    "constants that are none": (
        lambda s: last(s)["graph"].update(constants=[]),
        "the part 'constants' of a graph is not a dict",
    ),
    "history that is none": (
        lambda s: last(s)["graph"].update(history="abc"),
        "the part 'history' of a graph is not a list",
    ),
    "a parameter twice": (
        lambda s: last(s)["graph"].update(codegen={"parameters": ["x", "*x"], "inputs": [0, 0], "outputs": None}),
        "two parameters of the program have one name",
    ),
    "a bare star at the end": (
        lambda s: last(s)["graph"].update(codegen={"parameters": ["x", "*"], "inputs": [0], "outputs": None}),
        "the bare star of keyword-only parameters is not in front of one",
    ),
    "a code generator that is code": (
        lambda s: last(s)["graph"].update(
            codegen={"parameters": ["x=__import__('os').system('id')"], "inputs": [0], "outputs": None}
        ),
        "is not a name of a parameter",
    ),
    "notes of the program": (lambda s: last(s).update(meta=[]), "the part 'meta' of a program is not a dict"),
}


@pytest.mark.parametrize("name", BAD_MODULES)
def test_a_bad_module_or_table_is_refused(path: Path, name: str) -> None:
    edit, part = BAD_MODULES[name]

    def without_result(stored: Any) -> None:
        edit(stored)

    assert_not_loaded(edited(small(), path, without_result), part)


@pytest.mark.timeout(60)
def test_counts_of_layers_are_checked_before_a_constructor_runs(path: Path) -> None:
    program = of_module(torch.nn.LSTM(2, 2))
    changed = edited(program, path, lambda s: linear(s)["arguments"].update(num_layers=10**9))
    assert_not_loaded(changed, "num_layers is 1000000000, but there are tensors for fewer layers")


def test_modules_shared_by_exponentially_many_paths_are_refused(path: Path) -> None:
    def edit(stored: Any) -> None:
        modules = [{"class": "torch.nn.ReLU", "training": True}]
        for number in range(0, 80, 2):
            modules += [{"class": "fx.Container", "training": True, "modules": {"a": number}}]
            modules += [{"class": "fx.Container", "training": True, "modules": {"a": number, "b": number + 1}}]
        stored["modules"] = [*modules, {**stored["modules"][-1], "modules": {"0": len(modules) - 1}}]

    assert_not_loaded(edited(small(), path, edit), "more than 1,000,000 paths lead to modules")


def test_programs_that_nest_too_deeply_are_refused(path: Path) -> None:
    def edit(stored: Any) -> None:
        (*_, program) = stored["modules"]
        empty = {**program, "graph": {"nodes": []}, "modules": {}}
        stored["modules"] = [empty, *({**empty, "modules": {"a": number}} for number in range(200))]
        stored.update(tensors=[], memory=[])

    serialization.save(fx.symbolic_trace(torch.nn.ReLU()), path)
    header, stored, rest = take_apart(path)
    edit(stored)
    put_together(path, header, json.dumps(stored), rest)
    assert_not_loaded(path, "modules nest more than 100 levels deep")


def test_a_loaded_program_calls_listed_functions_only(path: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for target, arguments in (
        ("builtins.eval", [f"open({str(canary)!r}, 'w')"]),
        ("torch.save", [1, str(canary)]),
        ("operator.methodcaller", ["touch"]),
        ("operator.attrgetter", ["__globals__"]),
        ("torch.hub.load", [str(canary)]),
        ("torch.jit.load", [str(canary)]),
        ("torch.ops.load_library", [str(canary)]),
        ("torch.from_file", [str(canary), True, 1]),
        ("torch.set_default_dtype", [{"dtype": "float64"}]),
    ):

        def edit(stored: Any, target: str = target, arguments: Any = arguments) -> None:
            relu(stored).update(op="call_function", target=target, args=arguments)

        assert_not_loaded(edited(small(), path, edit), "is nothing that a saved program may use")
    assert not canary.exists()


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: {"generic": ["List", [text]]}], ids=["", "in a list"])
@pytest.mark.parametrize(
    "code",
    [
        "open({!r}, 'w')",
        "[open for open in ({!r},)]",
        "(lambda: open({!r}, 'w'))()",
        "f'{{open({!r})}}'",
        "a := {!r}",
        "x @ {!r}",
    ],
)
@pytest.mark.parametrize("op", ["placeholder", "call_module", "output"])
def test_annotations_that_could_run_code_are_refused(path: Path, tmp_path: Path, code: str, wrap: Any, op: str) -> None:
    def edit(stored: Any) -> None:
        node = next(node for node in nodes(stored) if node["op"] == op)
        node["type"] = wrap(code.format(str(tmp_path / "canary")))

    assert_not_loaded(edited(small(), path, edit), "is more than names of types")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("hint", ["torch.Tensor", 'Optional["List[int]"]', "int | None", "batch dim"])
def test_annotations_that_are_text_stay_text_when_a_loaded_program_is_captured(path: Path, hint: str) -> None:
    program = small()
    next(iter(program.graph.nodes)).type = hint
    program.recompile()
    for each in (program, reload(program, path)):
        assert next(iter(fx.symbolic_trace(each).graph.nodes)).type == hint


def test_places_in_the_source_are_printable(path: Path) -> None:
    def edit(stored: Any) -> None:
        stored["modules"][-1]["graph"]["sources"] = [["a\x1b[2J.py", 3, "for\nward", "y = 1\r\x1b]0;title\x07"]]
        relu(stored)["source"] = 0

    program = serialization.load(edited(small(), path, edit))
    (node,) = program.graph.find_nodes(op="call_module", target="1")
    assert str(node.source) == "a [2J.py:3, in for ward:  y = 1  ]0;title "


PAYLOADS = (
    "open({0!r}, 'w')",
    "x=open({0!r}, 'w')",
    "x, y=open({0!r}, 'w')",
    "\nopen({0!r}, 'w')\n",
    "\r    open({0!r}, 'w')  #",
    '"+str(open({0!r}, "w"))+"',
    "'+str(open({0!r}, 'w'))+'",
    '""" + str(open({0!r}, "w")) + """',
    "\\\nopen({0!r}, 'w')",
    "\u2028open({0!r}, 'w')",
    "a]; open({0!r}, 'w'); x[0",
    "{{open({0!r}, 'w')}}",
)

TEXT_PLACES: dict[str, Callable[[Any, str], Any]] = {
    "name of a node": lambda s, text: relu(s).update(name=text),
    "target of an input": lambda s, text: nodes(s)[0].update(target=text),
    "target of a function": lambda s, text: relu(s).update(CALLS, target=text),
    "target of a method": lambda s, text: relu(s).update(op="call_method", target=text),
    "path of a module": lambda s, text: (last(s)["modules"].update({text: 0}), relu(s).update(target=text)),
    "path of a buffer": lambda s, text: (
        last(s).update(buffers={text: None}, attributes={text + "1": 1}),
        relu(s).update(op="get_attr", target=text + "1", args=[]),
    ),
    "keyword": lambda s, text: relu(s).update(CALLS, kwargs={text: 1}),
    "argument": lambda s, text: relu(s).update(CALLS, args=[text, [text], {"dict": [[text, text]]}, {"set": [text]}]),
    "default": lambda s, text: nodes(s)[0].update(args=[text]),
    "annotation": lambda s, text: relu(s).update(type=text),
    "generic annotation": lambda s, text: relu(s).update(type={"generic": [text, ["int"]]}),
    "device": lambda s, text: relu(s).update(CALLS, args=[{"device": text}]),
    "dtype": lambda s, text: relu(s).update(CALLS, args=[{"dtype": text}]),
    "integer": lambda s, text: relu(s).update(CALLS, args=[{"int": text}]),
    "result": lambda s, text: nodes(s)[-1].update(args=[{"tuple": [text, {"node": 2}]}]),
    "class of the program": lambda s, text: last(s).update(name=text),
    "class of a module": lambda s, text: linear(s).update({"class": text}),
    "argument of a constructor": lambda s, text: linear(s)["arguments"].update({text: 1}),
    "history": lambda s, text: last(s)["graph"].update(history=[text]),
    "origins": lambda s, text: relu(s).update(origins=[text]),
    "source": lambda s, text: (last(s)["graph"].update(sources=[[text, 1, text, text]]), relu(s).update(source=0)),
    "note": lambda s, text: relu(s).update(meta={text: text, "desc": text, "is_wrapped": True, "val": text}),
    "constant": lambda s, text: last(s)["graph"].update(constants={text: text}),
    "parameter of a structure": lambda s, text: last(s)["graph"].update(
        codegen={"parameters": [text], "inputs": {"tuple": [{"tuple": [0]}, {"dict": []}]}, "outputs": None}
    ),
    "key of a structure": lambda s, text: last(s)["graph"].update(
        codegen={
            "parameters": ["input"],
            "inputs": {"tuple": [{"tuple": [{"dict": [[text, 0]]}]}, {"dict": []}]},
            "outputs": {"structure": {"dict": [[text, 0]]}},
        }
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", TEXT_PLACES)
def test_no_text_of_a_file_becomes_code(
    path: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    canary = tmp_path / "canary"
    for number, payload in enumerate(PAYLOADS):
        text = payload.format(str(canary))

        def edit(stored: Any, text: str = text) -> None:
            TEXT_PLACES[place](stored, text)

        try:
            program = serialization.load(edited(small(), path, edit))
        except LoadError:
            continue
        program.print_readable(print_output=False, include_stride=True, include_device=True)
        assert str(program) and str(program.graph)
        with contextlib.suppress(Exception):  # its result does not matter here
            program(torch.ones(1, 2))
        with contextlib.suppress(Exception):
            typing.get_type_hints(program.forward)
        with contextlib.suppress(Exception):
            fx.symbolic_trace(program)
        with contextlib.suppress(Exception):
            program.to_folder(tmp_path / f"package_{number}", "Written")
            importlib.import_module(f"package_{number}")
    assert not canary.exists()

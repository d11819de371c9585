"""Programs are converted from and to torch.fx with all their state; others are refused."""

from __future__ import annotations

import collections
import copy
import enum
import os
import types
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx._symbolic_trace import _assert_is_none
from torch.fx.passes import shape_prop as torch_shape_prop

import fx
from fx.errors import InteropError
from fx.interop import adapt, from_torch, to_torch
from fx.interop.node_notes import location_of
from fx.interop.torch_fx import KeywordCodeGen
from fx.modules.containers import Container
from fx.passes.shape_prop import ShapeProp
from fx.passes.tensor_metadata import TensorMetadata
from fx.quantize import convert, prepare

Pair = collections.namedtuple("Pair", "left right")


class Tied(nn.Module):
    """Two layers with one weight, a buffer that is not saved, a constant, layers inside containers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3)))
        self.other = nn.Linear(3, 3)
        self.other.weight = self.inner[0].weight
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.other(self.inner(x)) * self.scale + torch.tensor([1.0, 2.0, 3.0])


X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)


def captured(library: Any) -> Any:
    return library.symbolic_trace(Tied().eval())


@pytest.fixture(params=["from torch.fx", "to torch.fx"])
def conversion(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """Each direction: the library it starts from, the conversion, the library it leads to."""
    return (torch.fx, from_torch, fx) if request.param.startswith("from") else (fx, to_torch, torch.fx)


def test_state_is_shared_and_stays_tied(conversion: Any) -> None:
    library, convert, _ = conversion
    original = captured(library)
    converted = convert(original)
    assert converted.other.weight is getattr(converted.inner, "0").weight is original.other.weight
    assert list(converted.state_dict()) == list(original.state_dict())
    assert converted.scale is original.scale
    assert "scale" not in converted.state_dict() or library is torch.fx  # which saves it in spite of persistent=False
    assert converted._tensor_constant0 is original._tensor_constant0
    torch.testing.assert_close(converted(X), original(X), rtol=0, atol=0)


def test_containers_are_the_new_programs_own_and_layers_are_shared(conversion: Any) -> None:
    library, convert, _ = conversion
    original = captured(library)
    converted = convert(original)
    assert converted.inner is not original.inner
    assert type(converted.inner) is (Container if library is torch.fx else nn.Module)
    assert getattr(converted.inner, "0") is getattr(original.inner, "0")
    converted.add_submodule("inner.more", nn.ReLU())
    assert not hasattr(original.inner, "more")


def test_training_flags_are_kept(conversion: Any) -> None:
    library, convert, _ = conversion
    original = captured(library)
    original.inner.train()
    converted = convert(original)
    assert (converted.training, converted.inner.training, converted.other.training) == (False, True, False)


def test_hooks_are_kept(conversion: Any) -> None:
    library, convert, _ = conversion
    original = captured(library)
    calls: list[Any] = []
    original.register_forward_hook(lambda module, args, result: result * 0)
    original.inner.register_load_state_dict_pre_hook(lambda module, *rest: calls.append(module))
    converted = convert(original)
    assert torch.equal(converted(X), torch.zeros(2, 3))
    converted.load_state_dict(original.state_dict())
    assert calls == [converted.inner]
    converted.register_forward_hook(lambda module, args, result: result + 1)
    assert torch.equal(original(X), torch.zeros(2, 3))


def test_attributes_of_the_user_on_a_program_are_kept(conversion: Any) -> None:
    library, convert, _ = conversion
    original = captured(library)
    original.note, original.meta["author"] = ["mine"], "me"
    original.unused = nn.Linear(1, 1)
    converted = convert(original)
    assert converted.note is original.note
    assert converted.meta == {"author": "me"}
    assert converted.meta is not original.meta
    assert converted.unused is original.unused


def test_nested_programs_are_converted_once(conversion: Any) -> None:
    library, convert, other = conversion
    inner = library.symbolic_trace(nn.Sequential(nn.Linear(3, 3)))
    holder = nn.Module()
    holder.first, holder.second, holder.box = inner, inner, nn.Module()
    holder.box.third = inner
    graph = library.Graph()
    value = graph.placeholder("x")
    for path in ("first", "second", "box.third"):
        value = graph.call_module(path, (value,))
    graph.output(value)
    original = library.GraphModule(holder, graph, "Nest")
    converted = convert(original)
    assert isinstance(converted.first, other.GraphModule)
    assert converted.first is converted.second is converted.box.third
    assert type(converted).__name__ == "Nest"
    assert converted.first.code == inner.code
    assert torch.equal(converted(X), original(X))


def test_a_program_that_holds_itself_is_converted(conversion: Any) -> None:
    library, convert, _ = conversion
    original = captured(library)
    original.inner.add_module("back", original)
    converted = convert(original)
    assert converted.inner.back is converted


def test_arguments_of_every_kind_are_converted(conversion: Any) -> None:
    library, convert, other = conversion
    graph = library.Graph()
    x = graph.placeholder("x", type_expr=torch.Tensor, default_value=None)
    values = [x, {"k": (x, [1.5])}, slice(x, None, 2), range(3), Pair(x, "s"), None, ..., torch.float16, {1, 2}]
    graph.call_function(print, (values,), {"end": [x]}, type_expr=int)
    graph.output((x, {"a": [x]}))
    converted = convert(library.GraphModule(nn.Module(), graph)).graph
    again, call = converted.nodes, next(iter(converted.find_nodes(op="call_function", target=print)))
    new = call.args[0]
    first = next(iter(again))
    assert type(new) is other.immutable_collections.immutable_list
    assert type(new[1]) is other.immutable_collections.immutable_dict
    assert new[1]["k"][0] is new[2].start is new[4].left is first
    assert type(new[4]) is Pair
    assert new[5:] == [None, ..., torch.float16, {1, 2}]
    assert (first.type, first.args, call.type) == (torch.Tensor, (None,), int)
    assert call.kwargs["end"] == [first]
    assert list(first.users) == [call, converted.output_node()]


def test_names_are_kept_even_if_they_were_set_by_hand(conversion: Any) -> None:
    library, convert, _ = conversion
    graph = library.Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    relu.name = "len"
    graph.output(relu)
    converted = convert(library.GraphModule(nn.Module(), graph))
    assert [node.name for node in converted.graph.nodes] == ["x", "len", "output"]
    assert torch.equal(converted(X), X.relu())


def test_wrapped_functions_stay_wrapped(conversion: Any) -> None:
    library, convert, _ = conversion
    graph = library.Graph()
    node = graph.call_function(len, (graph.placeholder("x"),))
    node.meta["is_wrapped"] = True
    graph.output(node)
    converted = convert(library.GraphModule(nn.Module(), graph))
    assert 'wrap("len")' in converted.code
    assert converted([1, 2]) == 2


def test_the_body_may_be_transformed_in_both(conversion: Any) -> None:
    library, convert, _ = conversion
    original = library.symbolic_trace(nn.Sequential(nn.ReLU()))
    original.graph.on_generate_code(lambda current: lambda lines: ["marker = 1\n", *lines])
    assert "marker = 1" in convert(original).code


def test_structured_inputs_stay_structured(conversion: Any) -> None:
    library, convert, _ = conversion
    original = library.symbolic_trace(lambda tree, x: {"sum": tree["a"] + x}, concrete_args={"tree": {"a": library.PH}})
    converted = convert(original)
    assert converted.code == original.code
    assert converted({"a": 1}, 2) == {"sum": 3}


def test_modules_of_exported_programs_can_be_converted() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any, *, scale: Any) -> Any:
            return [x * scale]

    theirs = torch.export.export(Scaled(), (X,), {"scale": torch.ones(3)}).module()
    ours = from_torch(theirs)
    assert type(ours.graph._codegen) is KeywordCodeGen
    assert (ours.code, to_torch(ours).code) == (theirs.code, theirs.code)
    assert fx.Interpreter(ours).run(X, torch.full((3,), 2.0))[0].equal(X * 2)
    assert torch.equal(ours(X, scale=torch.full((3,), 2.0))[0], X * 2)
    with pytest.raises(AssertionError, match="Guard failed"):
        ours(torch.ones(5, 7), scale=torch.ones(3))


def test_meta_speaks_of_the_new_nodes(conversion: Any) -> None:
    library, convert, _ = conversion
    original = library.symbolic_trace(lambda x: (x + 1) * 2)
    x, add, mul, _ = original.graph.nodes
    add.meta.update(next=mul, all=[x, add], by={add: "add"}, pair=(x, 1), plain=[[1]])
    x2, add2, mul2, _ = convert(original).graph.nodes
    assert add2.meta["next"] is mul2
    assert add2.meta["all"] == [x2, add2]
    assert add2.meta["by"] == {add2: "add"}
    assert add2.meta["pair"] == (x2, 1)
    assert add2.meta["plain"] is add.meta["plain"]
    assert add2.meta is not add.meta


def test_tensor_metadata_is_each_librarys_own() -> None:
    ours = fx.symbolic_trace(lambda x: x.split(1))
    ShapeProp(ours).propagate(X)
    theirs = to_torch(ours)
    parts = theirs.graph.find_nodes(op="call_method")[0].meta["tensor_meta"]
    assert all(type(part) is torch_shape_prop.TensorMetadata for part in parts)
    back = from_torch(theirs).graph.find_nodes(op="call_method")[0].meta["tensor_meta"]
    assert all(type(part) is TensorMetadata for part in back)
    assert back == parts


def test_stack_traces_become_lines_and_lines_stack_traces() -> None:
    tracer = torch.fx.Tracer()
    tracer.record_stack_traces = True
    model = Tied()
    theirs = torch.fx.GraphModule(model, tracer.trace(model))
    recorded = {node.name: node.stack_trace for node in theirs.graph.nodes}
    ours = from_torch(theirs)
    mul = next(node for node in ours.graph.nodes if node.name == "mul")
    assert mul.source is not None
    assert "self.other(self.inner(x)) * self.scale" in mul.source.text
    assert mul.source.file == __file__
    assert {node.name: node.stack_trace for node in ours.graph.nodes} == recorded

    there = to_torch(captured(fx))
    line = next(node for node in there.graph.nodes if node.name == "mul").stack_trace
    assert line is not None
    assert line.startswith(f'File "{__file__}", line ')
    assert "self.other(self.inner(x)) * self.scale" in line


def test_origins_come_back() -> None:
    ours = captured(fx)
    for node in ours.graph.nodes:
        node.origins = (node.name, "more")
    back = from_torch(to_torch(ours))
    assert all(node.origins == (node.name, "more") for node in back.graph.nodes)
    assert not any("fx_provenance" in node.meta for node in back.graph.nodes)


def test_default_tracers_can_replace_each_other(conversion: Any) -> None:
    library, convert, other = conversion
    assert convert(captured(library))._tracer_cls is other.Tracer
    assert convert(library.GraphModule(nn.Module(), library.Graph()))._tracer_cls is None


def test_converted_programs_can_be_copied(conversion: Any) -> None:
    library, convert, _ = conversion
    converted = convert(captured(library))
    assert torch.equal(copy.deepcopy(converted)(X), converted(X))


# Refusals.


def test_other_objects_are_refused() -> None:
    with pytest.raises(InteropError, match=r"from_torch takes a torch.fx.GraphModule, not Linear") as caught:
        from_torch(nn.Linear(1, 1))  # type: ignore[arg-type]
    assert "use fx.symbolic_trace" in str(caught.value)
    with pytest.raises(InteropError, match=r"not GraphModuleImpl|it is one of ours already"):
        from_torch(captured(fx))
    with pytest.raises(InteropError, match=r"it is one of torch.fx already"):
        to_torch(captured(torch.fx))
    with pytest.raises(InteropError, match=r"to_torch takes an fx.GraphModule, not Linear"):
        to_torch(nn.Linear(1, 1))  # type: ignore[arg-type]


def test_code_generators_of_the_user_are_refused(conversion: Any) -> None:
    library, convert, _ = conversion

    class ListCodeGen(library.graph.CodeGen):
        pass

    original = captured(library)
    original.graph.set_codegen(ListCodeGen())
    with pytest.raises(InteropError, match=r"writes its code with .*ListCodeGen, which has no counterpart") as caught:
        convert(original)
    assert "set_codegen(CodeGen())" in str(caught.value)


def test_graphs_that_are_not_well_formed_are_refused() -> None:
    theirs = torch.fx.symbolic_trace(lambda x: (x + 1) * 2)
    _, add, mul, _ = theirs.graph.nodes
    mul.append(add)
    with pytest.raises(InteropError, match="not well formed") as caught:
        from_torch(theirs)
    assert "why    Argument 'add' of Node 'mul' was used before it has been defined!" in str(caught.value)

    nested = torch.fx.GraphModule({"inner": theirs}, torch.fx.Graph())
    nested.add_submodule("deep.inner", theirs)
    with pytest.raises(InteropError, match=r"where  the submodule 'deep.inner'"):
        from_torch(nested)

    ours = fx.symbolic_trace(lambda x: (x + 1) * 2)
    _, add, mul, _ = ours.graph.nodes
    mul.append(add)
    with pytest.raises(fx.GraphError, match="was used before it has been defined"):
        to_torch(ours)


@pytest.mark.parametrize("by_name", [False, True], ids=["by position", "by name"])
def test_a_check_for_none_takes_its_message_as_in_torch_fx(by_name: bool) -> None:
    graph = torch.fx.Graph()
    x, message = graph.placeholder("x"), "must be None"
    args, kwargs = ((x,), {"msg": message}) if by_name else ((x, message), {})
    graph.output(graph.call_function(_assert_is_none, args, kwargs))
    program = from_torch(torch.fx.GraphModule(nn.Module(), graph))
    for run in (program, to_torch(program), fx.symbolic_trace(program)):
        assert run(None) is None
        with pytest.raises(AssertionError, match="must be None"):
            run(3)


# Stack traces are read for the user's line.

TORCH = os.path.join(os.path.dirname(torch.__file__), "nn", "functional.py")

IN_TORCH = f'''Traceback (most recent call last):
  File "model.py", line 3, in forward
    return self.layer(x)
  File "layer.py", line 12, in forward
    return F.relu(x)
  File "{TORCH}", line 99, in relu
    return torch.relu(input)
'''


@pytest.mark.parametrize(
    "trace, expected",
    [
        ('  File "a.py", line 7, in forward\n    return x + 1\n', ("a.py", 7, "forward", "return x + 1")),
        ('File "a.py", line 7, in f.<locals>.g\n    y = x', ("a.py", 7, "f.<locals>.g", "y = x")),
        (IN_TORCH, ("layer.py", 12, "forward", "return F.relu(x)")),
        (f'File "{TORCH}", line 99, in relu', (TORCH, 99, "relu", "")),
        ('File "a.py", line 1, in f\nFile "b.py", line 2, in g\n', ("b.py", 2, "g", "")),
        (
            'File "a.py", line 1, in f\n    g(x)\nFile "<eval_with_key>.3", line 2, in forward\n',
            ("a.py", 1, "f", "g(x)"),
        ),
        ('File "<eval_with_key>.3", line 2, in forward\n    add = x + 1\n', None),
        ("no frames here", None),
        ("", None),
    ],
)
def test_the_innermost_line_of_the_user_is_found(trace: str, expected: Any) -> None:
    location = location_of(trace)
    actual = None if location is None else (location.file, location.line, location.function, location.text)
    assert actual == expected


def recompile(program: torch.fx.GraphModule) -> None:
    program.recompile()


def test_methods_that_were_set_on_a_program_stay_behind() -> None:
    theirs = torch.export.export(torch.nn.Sequential(torch.nn.Dropout()).eval(), (torch.ones(2),)).module()
    ours = from_torch(theirs)
    with pytest.raises(NotImplementedError):
        theirs.train()
    assert ours.train().training and not ours.eval().training
    ours.own = types.MethodType(lambda self: self, ours)
    assert not hasattr(to_torch(ours), "own")
    adapt(recompile)(ours)
    assert ours.own() is ours


def test_an_exported_program_of_torch_is_prepared_for_quantization() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.randn(16, 4)
    prepared = prepare(from_torch(torch.export.export(model, (x,)).module()), None, (x,))
    prepared(x)
    assert torch.allclose(convert(prepared)(x), model(x), atol=0.05)


class Sides(enum.IntFlag):
    LEFT = 1
    RIGHT = 2


@fx.wrap
def scaled_by(x: Any, sides: Any) -> Any:
    return x * int(sides)


def test_members_of_enumerations_are_converted_and_combinations_refused() -> None:
    captured = to_torch(fx.symbolic_trace(lambda x: scaled_by(x, Sides.RIGHT)))
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    both, none = Sides.LEFT | Sides.RIGHT, Sides(0)
    for program in (lambda x: scaled_by(x, both), lambda x: scaled_by(x, none)):
        with pytest.raises(
            InteropError, match=r"torch.fx cannot write <Sides.*(?s:.)*where .*test_interop_torch_fx.py"
        ):
            to_torch(fx.symbolic_trace(program))

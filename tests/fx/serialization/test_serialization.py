"""Programs through a data-only file and back: no data is lost, and tied tensors stay tied."""

from __future__ import annotations

import enum
import math
import os
import stat
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union  # noqa: UP035  annotations as users write them

import pytest
import torch
from building import PLAIN_VALUES, assert_same_state
from saved_files import reload, take_apart

import fx
from fx import serialization
from fx.errors import SaveError
from fx.provenance import SourceLocation


@serialization.allow
class Point(NamedTuple):
    x: Any
    y: Any


@serialization.allow
class Colour(enum.Enum):
    RED = 1


@serialization.allow
@fx.wrap
def outside(x: Any, *more: Any, **named: Any) -> Any:
    return x if not isinstance(x, torch.Tensor) or x.sum() > 0 else -x


@serialization.allow
class Scaled(torch.nn.Module):
    def __init__(self, width: int, by: float = 1.0) -> None:
        super().__init__()
        self.width = width
        self.by = by
        self.linear = torch.nn.Linear(width, width)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.by


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seq = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        self.scale = torch.nn.Parameter(torch.randn(4, 1, 1))
        self.register_buffer("shift", torch.randn(4, 1, 1))
        self.register_buffer("mask", torch.rand(4, 1, 1), persistent=False)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, k: float = math.inf) -> Any:
        y = (self.seq(x) * self.scale * self.mask + self.shift).mean((2, 3)).clamp(max=k)
        return Point(self.head(y), torch.sigmoid(y)[..., None])


class Root(torch.nn.Module):
    """Holds the values of a test."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


def of_value(value: Any) -> fx.GraphModule:
    """A program that calls a function with ``value``."""
    graph = fx.Graph()
    graph.output(graph.call_function(outside, (1, value), {"named": value}))
    return fx.GraphModule(torch.nn.Module(), graph)


def of_modules(**modules: torch.nn.Module) -> fx.GraphModule:
    """A program that calls each module on its input."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(tuple(graph.call_module(name, (x,)) for name in modules))
    return fx.GraphModule(Root(**modules), graph)


def of_tensors(**tensors: torch.Tensor | None) -> fx.GraphModule:
    """A program that returns tensors it holds."""
    graph = fx.Graph()
    graph.output(tuple(graph.get_attr(name) for name in tensors))
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.nn.Parameter):
            root.register_parameter(name, tensor)
        else:
            root.register_buffer(name, tensor)
    return fx.GraphModule(root, graph)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_loaded_program_is_the_program(path: Path, training: bool) -> None:
    net = Net().train(training)
    net.seq[0].weight.requires_grad_(False)
    net.head.eval()
    program = fx.symbolic_trace(net)
    loaded = reload(program, path)
    assert type(loaded).__name__ == "Net"
    assert loaded.code == program.code
    assert str(loaded.graph) == str(program.graph)
    assert [node.name for node in loaded.graph.nodes] == [node.name for node in program.graph.nodes]
    assert [node.source for node in loaded.graph.nodes] == [node.source for node in program.graph.nodes]
    loaded.graph.lint()
    assert_same_state(loaded, program)
    assert not any(a.data_ptr() == b.data_ptr() for a in loaded.parameters() for b in program.parameters())
    x = torch.randn(2, 3, 6, 6)
    for k in (0.5, math.inf):
        ours, theirs = loaded(x, k), program(x, k)
        assert type(ours) is Point
        assert all(map(torch.equal, ours, theirs))


def test_the_same_program_gives_the_same_bytes(path: Path) -> None:
    program = fx.symbolic_trace(Net())
    serialization.save(program, path)
    first = path.read_bytes()
    serialization.save(program, path)
    assert path.read_bytes() == first
    reload(program, path)
    serialization.save(serialization.load(path), path)
    assert path.read_bytes() == first


def test_the_tensors_are_there_for_any_reader_of_safetensors(path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    program = fx.symbolic_trace(Net())
    serialization.save(program, path)
    tensors = safetensors.load_file(path)
    assert set(program.state_dict()) <= set(tensors)
    assert all(torch.equal(tensors[name], value) for name, value in program.state_dict().items())


def test_a_program_whose_graph_was_edited_is_saved_as_it_is_now(path: Path) -> None:
    program = fx.symbolic_trace(Net())
    (relu,) = (node for node in program.graph.nodes if node.target == "seq.2")
    relu.replace_all_uses_with(relu.args[0])
    program.graph.erase_node(relu)
    loaded = reload(program, path)
    program.recompile()
    assert loaded.code == program.code


def test_a_loaded_program_can_be_edited_and_saved_again(path: Path) -> None:
    loaded = reload(fx.symbolic_trace(Net()), path)
    output = loaded.graph.output_node()
    with loaded.graph.inserting_before(output):
        output.args = (loaded.graph.call_function(torch.neg, (output.args[0],)),)
    loaded.recompile()
    assert reload(loaded, path).code == loaded.code
    assert "torch.neg" in loaded.code


def test_tensors_go_to_the_wished_device(path: Path) -> None:
    serialization.save(fx.symbolic_trace(Net()), path)
    loaded = serialization.load(path, device="meta")
    assert {tensor.device.type for tensor in (*loaded.parameters(), *loaded.buffers())} == {"meta"}
    with pytest.raises(RuntimeError, match="nowhere"):
        serialization.load(path, device="nowhere")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_program_on_a_gpu_comes_back_on_the_cpu_or_where_it_is_wished(path: Path) -> None:
    program = fx.symbolic_trace(Net().cuda())
    assert {tensor.device.type for tensor in reload(program, path).parameters()} == {"cpu"}
    loaded = serialization.load(path, device="cuda")
    assert_same_state(loaded, program)


VALUES: dict[str, Any] = {
    **PLAIN_VALUES,
    "enum": Colour.RED,
    "bool": True,
    "int_of_64_bits": 2**63 - 1,
    "big_int": -(10**40),
    "surrogate": "\ud800",
    "bytes": b"\x00'\"\n\xff",
    "tuple": (1, (), [2]),
    "dict": {"a": 1, 2: [3], (4, "b"): None, None: {}, 0.5: 1},
    "set": {1, "a", 2.5},
    "frozenset": frozenset({(1, 2), "b"}),
    "namedtuple": Point(1, [2]),
    "function": torch.relu,
    "overload": torch.ops.aten.add.Tensor,
    "packet": torch.ops.aten.add,
    "own_function": outside,
    "class": int,
    "torch_class": torch.Tensor,
    "own_class": Point,
}


@pytest.mark.parametrize("name", VALUES)
def test_every_kind_of_argument_comes_back(path: Path, name: str) -> None:
    program = of_value(VALUES[name])
    loaded = reload(program, path)
    assert loaded.code == program.code or name == "huge_int"  # a global for each of two equal objects
    ours, theirs = (next(iter(module.graph.nodes)) for module in (loaded, program))
    for mine, other in ((ours.args[1], theirs.args[1]), (ours.kwargs["named"], theirs.kwargs["named"])):
        assert type(mine) is type(other)
        assert name in ("huge_int", "set", "frozenset") or repr(mine) == repr(other)
        assert mine == other or other != other or name in ("tuple", "namedtuple", "complex")


def test_nodes_in_nested_arguments_come_back(path: Path) -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y", default_value=(1, None))
    value = graph.call_function(outside, (x, [y, {"k": (x, slice(None, y, 2))}], Point(x, [y])), {"n": x})
    graph.output({"a": [value], "b": (x,)})
    program = fx.GraphModule(torch.nn.Module(), graph)
    loaded = reload(program, path)
    assert str(loaded.graph) == str(program.graph)
    assert [list(node.users) for node in loaded.graph.nodes] != []
    assert [len(node.users) for node in loaded.graph.nodes] == [len(node.users) for node in graph.nodes]
    assert loaded.code == program.code


ANNOTATIONS: dict[str, Any] = {
    "class": torch.Tensor,
    "builtin": int,
    "string": "a string",
    "any": Any,
    "optional": Optional[torch.Tensor],  # noqa: UP045
    "list": List[int],  # noqa: UP006
    "bare_list": List,  # noqa: UP006
    "dict": Dict[str, List[torch.Tensor]],  # noqa: UP006
    "tuple": Tuple[int, ...],  # noqa: UP006
    "union": Union[int, str, None],  # noqa: UP007
    "new_union": int | None,
    "generic_alias": list[int],
    "nested_alias": dict[str, tuple[int, ...]],
    "callable": Callable[[int], str],
    "open_callable": Callable[..., int],
    "own_class": Point,
    "none": type(None),
}


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_type_annotations_come_back(path: Path, name: str) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x", type_expr=ANNOTATIONS[name])
    graph.output(x, type_expr=ANNOTATIONS[name])
    program = fx.GraphModule(torch.nn.Module(), graph)
    loaded = reload(program, path)
    assert [node.type for node in loaded.graph.nodes] == [ANNOTATIONS[name]] * 2
    assert loaded.code == program.code


def test_all_six_opcodes_and_odd_names_come_back(path: Path) -> None:
    graph = fx.Graph()
    x, rest, more = graph.placeholder("x"), graph.placeholder("*rest"), graph.placeholder("**more")
    linear = graph.call_module("my layer", (x,))
    weight = graph.get_attr("my layer.weight")
    called = graph.call_function(getattr, (weight, "shape"))
    graph.output((graph.call_method("add", (linear, 1), {"alpha": 2}), called, rest, more))
    called.name = "sum"  # which Graph.create_node would not give
    root = torch.nn.Module()
    root.add_module("my layer", torch.nn.Linear(2, 2))
    program = fx.GraphModule(root, graph)
    loaded = reload(program, path)
    assert [node.name for node in loaded.graph.nodes] == [node.name for node in graph.nodes]
    assert loaded.code == program.code


def test_notes_that_are_data_come_back_and_others_stay_behind(path: Path) -> None:
    program = fx.symbolic_trace(Net())
    node = next(iter(program.graph.nodes))
    shared = {"a": 1}
    notes = {
        "shape": torch.Size([1, 2]),
        "numbers": [1, 2.5, None],
        "point": Point(1, (torch.float32,)),
        "ordered": OrderedDict(b=1, a=2),
        "shared": shared,
    }
    node.meta.update(notes, tensor=torch.ones(1), function=lambda: 0, mixed={"kept": 1, "lost": object()})
    node.next.meta["shared"] = shared
    program.meta["note"] = "kept"
    program.meta["lost"] = object()
    loaded = reload(program, path)
    first = next(iter(loaded.graph.nodes))
    assert first.meta == {**notes, "mixed": {"kept": 1}}
    assert type(first.meta["ordered"]) is OrderedDict
    assert first.meta["shared"] is first.next.meta["shared"]
    assert loaded.meta == {"note": "kept"}


def test_module_stacks_come_back_with_unknown_classes_as_strings(path: Path) -> None:
    program = fx.symbolic_trace(torch.nn.Sequential(Net()))
    (conv,) = (node for node in program.graph.nodes if node.target == "0.seq.0")
    loaded = reload(program, path)
    (again,) = (node for node in loaded.graph.nodes if node.target == "0.seq.0")
    assert [name for name, _ in again.meta["nn_module_stack"].values()] == [
        name for name, _ in conv.meta["nn_module_stack"].values()
    ]
    kinds = [kind for _, kind in again.meta["nn_module_stack"].values()]
    assert kinds[-1] is torch.nn.Conv2d
    assert f"{__name__}.Net" in kinds


def test_unknown_classes_of_one_name_become_one_key_of_a_note(path: Path) -> None:
    program = fx.symbolic_trace(torch.nn.ReLU())
    first, second = (type("Local", (), {"__module__": "there"}) for _ in range(2))
    next(iter(program.graph.nodes)).meta["classes"] = {first: 1, second: 2}
    assert next(iter(reload(program, path).graph.nodes)).meta["classes"] == {"there.Local": 2}


def test_origins_and_history_come_back(path: Path) -> None:
    program = fx.symbolic_trace(torch.nn.ReLU())
    node: Any = next(iter(program.graph.nodes))
    node.origins = ("x", "y")
    node.source = SourceLocation.of("file.py", 3, "f", "x = 1")
    program.graph.history = ("fuse-conv-bn",)
    loaded = reload(program, path)
    again: Any = next(iter(loaded.graph.nodes))
    assert again.origins == ("x", "y")
    assert again.source == node.source
    assert tuple(loaded.graph.history) == ("fuse-conv-bn",)


def test_constants_of_the_graph_come_back_tied_to_the_attributes(path: Path) -> None:
    program = fx.symbolic_trace(lambda x: x + torch.ones(3))
    loaded = reload(program, path)
    ((name, value),) = loaded.graph.constants.items()
    assert value is getattr(loaded, name)
    assert torch.equal(loaded(torch.zeros(3)), torch.ones(3))


def test_structured_signatures_come_back(path: Path) -> None:
    def function(pair: Any, flag: Any) -> Any:
        return {"sum": pair["a"] + pair["b"][0], "flag": (flag, [pair["b"][1]])}

    marks = {"pair": {"a": fx.PH, "b": [fx.PH, 3]}, "flag": fx.PH}
    program = fx.symbolic_trace(function, concrete_args=marks)
    loaded = reload(program, path)
    assert loaded.code == program.code
    arguments = {"a": 1, "b": [2, 3]}, True
    assert loaded(*arguments) == program(*arguments) == {"sum": 3, "flag": (True, [3])}


# Tensors.


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
     torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
     torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex64, torch.complex128],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_every_type_of_element_comes_back(path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = math.prod(shape)
    value = (torch.arange(count).reshape(shape) % 2 + (1j if dtype.is_complex else 0)).to(dtype)
    loaded = reload(of_tensors(value=value), path)
    assert loaded.value.dtype is dtype
    assert loaded.value.shape == value.shape
    bits = loaded.value.to(torch.complex128) if dtype.is_complex else loaded.value.to(torch.float64)
    assert torch.equal(bits, value.to(bits.dtype))


def test_order_in_memory_and_expanded_dimensions_come_back(path: Path) -> None:
    base = torch.arange(24.0).reshape(1, 2, 3, 4)
    tensors = {
        "channels_last": base.to(memory_format=torch.channels_last),
        "transposed": base[0, 0].t(),
        "expanded": torch.ones(1, 1).expand(1000, 1000),
        "partly": torch.arange(3.0)[:, None].expand(3, 4),
        "complex_transposed": torch.complex(base[0, 0], base[0, 1]).t(),
        "conjugate": torch.complex(base[0, 0], base[0, 1]).conj(),
        "negative": torch.complex(base[0, 0], base[0, 1]).conj().imag,
    }
    loaded = reload(of_tensors(**tensors), path)
    for name, value in tensors.items():
        assert torch.equal(getattr(loaded, name), value), name
        if name != "negative":
            assert getattr(loaded, name).stride() == value.stride(), name
    assert path.stat().st_size < 10_000


def test_views_with_gaps_or_overlaps_become_tensors_of_their_own(path: Path) -> None:
    base = torch.arange(10.0)
    loaded = reload(of_tensors(gaps=base[::2], window=base.unfold(0, 4, 1)), path)
    assert torch.equal(loaded.gaps, base[::2])
    assert torch.equal(loaded.window, base.unfold(0, 4, 1))
    assert loaded.window.is_contiguous()
    assert loaded.gaps.data_ptr() != loaded.window.data_ptr()


def test_tensors_among_arguments_are_numbered(path: Path) -> None:
    values = [torch.full((1,), float(number)) for number in range(3)]
    loaded = reload(of_value(values), path)
    assert take_apart(path)[0].keys() == {"constant", "constant_1", "constant_2"}
    assert all(map(torch.equal, next(iter(loaded.graph.nodes)).args[1], values))


def test_a_number_and_its_conjugate_in_one_memory_stay_apart(path: Path) -> None:
    value = torch.complex(torch.ones(2), torch.ones(2))
    loaded = reload(of_tensors(value=value, conjugate=value.conj()), path)
    assert torch.equal(loaded.conjugate, loaded.value.conj())


def test_loading_does_not_depend_on_the_default_device_or_type(path: Path) -> None:
    program = fx.symbolic_trace(Net().half())
    serialization.save(program, path)
    with torch.device("meta"):
        loaded = serialization.load(path)
    assert_same_state(loaded, program)


def test_tied_tensors_stay_tied(path: Path) -> None:
    embedding, out = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False)
    out.weight = embedding.weight
    block = torch.nn.Linear(3, 3)
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_module("second", (graph.call_module("first", (graph.call_module("embedding", (x,)),)),))
    graph.output((graph.call_module("out", (y,)), graph.get_attr("alias"), graph.get_attr("shadow")))
    root = Root(embedding=embedding, out=out, first=block, second=block, alias=block.weight)
    root.register_buffer("shadow", block.weight.detach())
    loaded = reload(fx.GraphModule(root, graph), path)
    assert loaded.out.weight is loaded.embedding.weight
    assert loaded.first is loaded.second
    assert loaded.alias is loaded.first.weight
    assert loaded.shadow is not loaded.alias
    assert loaded.shadow.data_ptr() == loaded.alias.data_ptr()
    assert len(list(loaded.parameters())) == 3
    assert len(take_apart(path)[0]) == 3


def test_flags_of_tensors_come_back(path: Path) -> None:
    program = of_tensors(
        frozen=torch.nn.Parameter(torch.ones(1), requires_grad=False),
        counts=torch.nn.Parameter(torch.ones(1, dtype=torch.int64), requires_grad=False),
        wanting=torch.ones(1, requires_grad=True),
    )
    program.register_buffer("unused", torch.ones(1), persistent=False)
    program.register_parameter("absent", None)
    program.register_buffer("none", None)
    loaded = reload(program, path)
    assert_same_state(loaded, program)
    assert loaded.absent is None
    assert loaded.none is None


# Modules.


def test_modules_with_own_parts_and_special_arguments_come_back(path: Path) -> None:
    modules = {
        "attention": torch.nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True, kdim=4),
        "layer": torch.nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", norm_first=True),
        "lstm": torch.nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, dropout=0.1),
        "rnn": torch.nn.RNN(3, 4, nonlinearity="relu", bias=False),
        "loss": torch.nn.CrossEntropyLoss(weight=torch.rand(3), label_smoothing=0.1),
        "softmax": torch.nn.AdaptiveLogSoftmaxWithLoss(32, 20, [4, 10]),
        "same": torch.nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular", groups=2, bias=False),
        "norm": torch.nn.BatchNorm1d(3, momentum=None, affine=False),
        "half": torch.nn.Linear(2, 3).half(),
        "stack": torch.nn.Sequential(
            torch.nn.ModuleList([torch.nn.ReLU()]), torch.nn.ModuleDict({"a b": torch.nn.ReLU()})
        ),
        "plain": torch.nn.Module(),
        "scaled": Scaled(3, by=0.5),
    }
    modules["attention"].out_proj.eval()
    modules["layer"].norm1.weight.requires_grad_(False)
    program = of_modules(**{f"{name}_": module for name, module in modules.items()})
    loaded = reload(program, path)
    assert_same_state(loaded, program)
    assert [repr(module) for module in loaded.children()] == [repr(module) for module in program.children()]
    x = torch.randn(2, 5, 3)
    for ours, theirs in zip(loaded.eval().lstm_(x)[0], program.eval().lstm_(x)[0], strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(loaded.scaled_(x), program.scaled_(x))
    loaded.lstm_.weight_ih_l0.data.zero_()
    assert not torch.equal(loaded.lstm_(x)[0], program.lstm_(x)[0])


def test_nested_programs_come_back_as_programs(path: Path) -> None:
    inner = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    program = of_modules(first=inner, again=inner)
    loaded = reload(program, path)
    assert isinstance(loaded.first, fx.GraphModule)
    assert loaded.first is loaded.again
    assert loaded.first.code == inner.code
    assert loaded.first.graph.owning_module is loaded.first
    x = torch.randn(3, 2)
    assert all(map(torch.equal, loaded(x), program(x)))


def test_attributes_that_are_data_come_back(path: Path) -> None:
    graph = fx.Graph()
    graph.output((graph.get_attr("number"), graph.get_attr("inner.table")))
    root = torch.nn.Module()
    root.number, root.inner = 3, torch.nn.Module()
    root.inner.table = {"a": (1, [2])}
    loaded = reload(fx.GraphModule(root, graph), path)
    assert loaded() == (3, {"a": (1, [2])})


# Files.


def test_a_failed_save_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serialization.save(fx.symbolic_trace(torch.nn.ReLU()), path)
    before = path.read_bytes()

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    program = fx.symbolic_trace(Net())
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        serialization.save(program, path)
    with pytest.raises(SaveError):
        serialization.save(of_value(object()), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_new_file_has_the_rights_of_any_other(path: Path, tmp_path: Path) -> None:
    serialization.save(fx.symbolic_trace(torch.nn.ReLU()), path)
    other = tmp_path / "other"
    other.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


def test_a_link_to_a_file_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    serialization.save(fx.symbolic_trace(torch.nn.ReLU()), os.fspath(link))
    assert link.is_symlink()
    assert serialization.load(path).code == serialization.load(link).code


def test_a_long_program_is_saved_and_loaded_in_linear_time(path: Path) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(5000):
        x = graph.call_function(torch.add, (x, 1.0))
    graph.output(x)
    program = fx.GraphModule(torch.nn.Module(), graph)
    assert reload(program, path).code == program.code


AUDITED: list[str] | None = None
"""The audit events of the interpreter while a test listens: hooks cannot be removed."""


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    dangerous = event in ("exec", "compile", "import", "open") or event.startswith(("pickle.", "os.", "subprocess."))
    if AUDITED is not None and dangerous:
        AUDITED.append(f"{event} {arguments[0]}" if event == "open" else event)


def test_loading_opens_the_file_and_neither_unpickles_compiles_nor_imports(path: Path) -> None:
    global AUDITED  # noqa: PLW0603
    serialization.save(fx.symbolic_trace(Net()), path)
    serialization.load(path)
    sys.addaudithook(listen)
    AUDITED = []
    try:
        serialization.load(path)
        events = AUDITED
    finally:
        AUDITED = None
    assert events == [f"open {path}"]

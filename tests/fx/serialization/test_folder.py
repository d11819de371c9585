"""Programs written as Python packages: they import without tracing and equal the original, or nothing is written."""

from __future__ import annotations

import ast
import importlib
import itertools
import math
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from building import Calling, Point, assert_same_state

import fx

Load = Callable[..., Any]

_numbers = itertools.count()


class Own(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seq = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        self.scale = torch.nn.Parameter(torch.randn(4, 1, 1))
        self.register_buffer("shift", torch.randn(4, 1, 1))
        self.register_buffer("mask", torch.rand(4, 1, 1), persistent=False)
        self.own = Own()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, k: float = math.inf) -> Point:
        y = (self.seq(x) * self.scale * self.mask + self.shift).mean((2, 3)).clamp(max=k)
        return Point(self.head(self.own(y)), torch.sigmoid(y)[..., None])


@fx.wrap
def outside(x: Any) -> Any:
    return x if isinstance(x, torch.Tensor) and x.sum() > 0 else -x


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write a program and import it where tracing is impossible."""
    monkeypatch.syspath_prepend(tmp_path)
    names: list[str] = []

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("traced again")

    def write_and_import(module: fx.GraphModule, class_name: str = "Stored") -> Any:
        names.append(f"stored_package_{next(_numbers)}")
        module.to_folder(tmp_path / names[-1], class_name)
        with monkeypatch.context() as patch:
            patch.setattr(fx.Tracer, "trace", refuse)
            importlib.invalidate_caches()
            return getattr(importlib.import_module(names[-1]), class_name)()

    yield write_and_import
    for name in names:
        sys.modules.pop(name, None)
        sys.modules.pop(f"{name}.module", None)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_package_is_the_program(load: Load, tmp_path: Path, training: bool) -> None:
    net = Net().train(training)
    net.seq[0].weight.requires_grad_(False)
    net.head.eval()
    module = fx.symbolic_trace(net)
    stored = load(module)
    assert type(stored).__name__ == "Stored"
    assert not isinstance(stored, fx.GraphModule)
    assert_same_state(stored, module)
    x = torch.randn(2, 3, 6, 6)
    for k in (0.5, math.inf):
        assert all(map(torch.equal, stored(x, k), module(x, k)))
    assert type(stored(x)) is Point
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {"__init__.py", "module.py", "state_dict.pt"}


def test_the_source_is_readable(load: Load, tmp_path: Path) -> None:
    load(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()).eval()))
    (folder,) = tmp_path.iterdir()
    assert (
        (folder / "module.py").read_text()
        == '''"""A captured program, written by fx.GraphModule.to_folder; edit it freely."""

import torch


def forward(self, input):
    input_1 = input
    _0 = getattr(self, "0")(input_1);  input_1 = None
    _1 = getattr(self, "1")(_0);  _0 = None
    return _1


class Stored(torch.nn.Module):
    """The captured program with its weights."""

    def __init__(self) -> None:
        import pathlib

        super().__init__()
        with torch.device("meta"):  # the values are loaded below
            self.set_submodule('0', torch.nn.Linear(in_features=2, out_features=3))
            self.set_submodule('1', torch.nn.ReLU())
        state = torch.load(pathlib.Path(__file__).parent / "state_dict.pt", "cpu", weights_only=True)
        for path, value in state.items():
            owner, _, name = path.rpartition(".")
            setattr(self.get_submodule(owner), name, value)
        for path in ['', '0', '1']:
            self.get_submodule(path).training = False

    forward = forward
'''
    )
    assert (folder / "__init__.py").read_text() == "from .module import Stored\n"


def test_loading_draws_no_random_numbers(load: Load) -> None:
    module = fx.symbolic_trace(Net())
    state = torch.get_rng_state()
    load(module)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_package_can_be_traced_scripted_and_written_again(load: Load) -> None:
    module = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval())
    stored = load(module)
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(torch.jit.script(stored)(x), module(x))
    again = load(fx.symbolic_trace(stored))
    assert torch.equal(again(x), module(x))
    assert_same_state(again, module)


def calling_own() -> Any:
    first, last = (torch.nn.Linear(4, 4) for _ in range(2))
    return Calling(lambda self, x: self.last(self.own(self.first(x))), first=first, own=Own(), last=last)


class KeepsOwn(fx.Tracer):
    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Own) or super().is_leaf_module(m, module_qualified_name)


def test_modules_that_are_not_torchs_own_are_pickled_in_their_place(load: Load, tmp_path: Path) -> None:
    net = calling_own().eval()
    net.own.train()
    net.own.weight.requires_grad_(False)
    module = fx.GraphModule(net, KeepsOwn().trace(net))
    stored = load(module)
    assert type(stored.own) is Own
    assert "weights_only=False" in (next(tmp_path.iterdir()) / "module.py").read_text()
    assert_same_state(stored, module)
    x = torch.randn(2, 4)
    assert torch.equal(stored(x), module(x))


def test_a_program_reads_any_attribute_of_a_pickled_module(load: Load) -> None:
    root = torch.nn.Module()
    root.own = Own()
    root.own.sizes = [1, 2]
    graph = fx.Graph()
    called = graph.call_module("own", (graph.placeholder("x"),))
    graph.output((called, graph.get_attr("own.sizes"), graph.get_attr("own.weight")))
    module = fx.GraphModule(root, graph)
    x = torch.ones(4)
    called, sizes, weight = load(module)(x)
    assert torch.equal(called, module(x)[0]) and torch.equal(weight, root.own.weight)
    assert sizes == [1, 2]


def test_tied_tensors_and_modules_stay_tied(load: Load) -> None:
    net = calling_own()
    net.tied = torch.nn.Linear(4, 4)
    net.tied.weight = net.first.weight
    net.same = net.last
    net.own.weight = net.first.bias
    net.alias = net.own
    graph = fx.Graph()
    x = graph.placeholder("x")
    for name in ("first", "own", "tied", "same", "last", "alias"):
        x = graph.call_module(name, (x,))
    graph.output(x)
    module = fx.GraphModule(net, graph)
    stored = load(module)
    assert stored.tied.weight is stored.first.weight
    assert stored.same is stored.last
    assert stored.own.weight is stored.first.bias
    assert stored.alias is stored.own
    assert_same_state(stored, module)
    value = torch.randn(2, 4)
    assert torch.equal(stored(value), module(value))


def test_tensors_of_every_kind_are_stored(load: Load) -> None:
    base = torch.randn(4, 4)
    root: dict[str, Any] = {
        "view.a": base[0],
        "view.b": base[:, 1],
        "complex": torch.randn(2, dtype=torch.complex64),
        "a_half": torch.nn.Parameter(torch.randn(2).half()),
        "a_double": torch.randn((), dtype=torch.float64),
        "count": torch.nn.Parameter(torch.arange(3), requires_grad=False),
        "flag": torch.tensor(True),
        "empty": torch.empty(0, 3),
        "last": torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last),
        "sparse": torch.eye(3).to_sparse(),
        "strange name; import os.0": torch.ones(1),
        "__private.__x": torch.nn.Parameter(torch.ones(1)),
    }
    graph = fx.Graph()
    graph.output([graph.get_attr(path) for path in root])
    module = fx.GraphModule(root, graph)
    stored = load(module)
    for mine, theirs in zip(stored(), module(), strict=True):
        assert type(mine) is type(theirs)
        assert (mine.dtype, mine.layout, mine.requires_grad) == (theirs.dtype, theirs.layout, theirs.requires_grad)
        assert torch.equal(mine.to_dense(), theirs.to_dense())
    assert sorted(stored.state_dict()) == sorted(module.state_dict())
    assert stored.view.a.untyped_storage().data_ptr() == stored.view.b.untyped_storage().data_ptr()


def test_frozen_programs_stay_frozen(load: Load) -> None:
    module = fx.symbolic_trace(Net()).requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in load(module).parameters())


def test_wrapped_functions_stay_whole_when_the_package_is_traced(load: Load) -> None:
    stored = load(fx.symbolic_trace(lambda x: outside(x) + 1))
    assert torch.equal(stored(-torch.ones(1)), torch.full((1,), 2.0))
    assert [node.target for node in fx.symbolic_trace(stored).graph.nodes][1] is outside


@pytest.mark.parametrize(
    "value",
    [math.inf, -math.inf, 1 + 2j, torch.float16, torch.device("cpu"), Point(1, 2), slice(1, None), ..., {1, 2}, dict,
     len, operator.add, torch.nn.functional.relu, torch.channels_last, Net.forward],
)  # fmt: skip
def test_names_in_the_code_are_imported(load: Load, value: Any) -> None:
    graph = fx.Graph()
    graph.output((value, graph.placeholder("torch"), graph.call_function(len, ([value],))))
    assert load(fx.GraphModule({}, graph))(7) == (value, 7, 1)


@pytest.mark.parametrize(
    "hint",
    [
        torch.Tensor,
        list[int],
        typing.List[int],  # noqa: UP006
        int | None,
        Point,
        "text",
        type(None),
    ],
    ids=str,
)
def test_annotations_are_kept(load: Load, hint: Any) -> None:
    graph = fx.Graph()
    graph.output(graph.placeholder("x", type_expr=hint), type_expr=hint)
    assert load(fx.GraphModule({}, graph)).forward.__annotations__ == {"x": hint, "return": hint}


# What cannot be written.


def module_calling(target: Any, *args: Any) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(target, (graph.placeholder("x"), *args), name="mine"))
    return fx.GraphModule({}, graph)


def with_hooks() -> fx.GraphModule:
    module = fx.symbolic_trace(Net())
    module.register_forward_hook(lambda module, args, result: None)
    return module


def with_local_class() -> fx.GraphModule:
    class Local(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    graph = fx.Graph()
    graph.output(graph.call_module("local", (graph.placeholder("x"),)))
    return fx.GraphModule({"local": Local()}, graph)


def with_structure() -> fx.GraphModule:
    return fx.symbolic_trace(lambda pair: pair[0] + pair[1], concrete_args={"pair": (fx.PH, fx.PH)})


def with_attribute() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.get_attr("box.sizes"))
    root = torch.nn.Module()
    root.box = torch.nn.Module()
    root.box.sizes = [1, 2]
    return fx.GraphModule(root, graph)


REFUSED: dict[str, tuple[Callable[[], fx.GraphModule], str]] = {
    "a local function": (
        lambda: module_calling(lambda x: x),
        "node mine uses test_folder_lambda_locals_lambda_, a function that a package cannot import",
    ),
    "an object": (
        lambda: module_calling(len, object()),
        "node mine uses _object, an object that a package cannot import",
    ),
    "a callable object": (lambda: module_calling(operator.itemgetter(0)), "node mine uses operator_itemgetter"),
    "hooks": (with_hooks, "the module has hooks"),
    "a structure": (with_structure, "its inputs are structured"),
    "an attribute": (with_attribute, "it reads the attribute box.sizes, a list"),
    "a local class": (with_local_class, "one of its modules local cannot be pickled"),
}


@pytest.mark.parametrize("make, message", REFUSED.values(), ids=REFUSED)
def test_unwritable_programs_are_refused_before_any_file_is_written(
    make: Callable[[], fx.GraphModule], message: str, tmp_path: Path
) -> None:
    with pytest.raises(fx.CodegenError, match=message) as caught:
        make().to_folder(tmp_path / "deep" / "package")
    assert "\n  try    " in str(caught.value)
    assert "fx.save(program, file)" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_functions_of_the_main_program_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any) -> Any:
        return x

    function.__module__, function.__qualname__ = "__main__", "function"
    monkeypatch.setattr(sys.modules["__main__"], "function", function, raising=False)
    with pytest.raises(fx.CodegenError, match="node mine uses __main___function"):
        module_calling(function).to_folder(tmp_path / "package")


@pytest.mark.parametrize("name", ["a b", "class", "torch", "forward", "len", "x; import os", "", "wrap", "getattr"])
def test_a_class_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(fx.CodegenError, match="module_name is not a name for the class"):
        fx.symbolic_trace(Net()).to_folder(tmp_path / "package", name)
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_written_remains_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fx.symbolic_trace(Net())
    write = Path.write_text

    def fail(self: Path, *args: Any, **kwargs: Any) -> int:
        if self.name == "__init__.py":
            raise OSError("disk full")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="disk full"):
        module.to_folder(tmp_path / "package")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_keeps_its_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "stored_over"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    first, second = fx.symbolic_trace(Net().eval()), fx.symbolic_trace(Net().eval())
    first.to_folder(folder)
    second.to_folder(str(folder))
    assert (folder / "notes.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"stored_over"}
    stored = importlib.import_module("stored_over").FxModule()
    x = torch.randn(2, 3, 6, 6)
    assert all(map(torch.equal, stored(x), second(x)))


# Nothing may bring text of its own.


def imports_of(folder: Path) -> set[str]:
    tree = ast.parse((folder / "module.py").read_text())
    return {alias.name for part in ast.walk(tree) if isinstance(part, ast.Import) for alias in part.names}


def test_hostile_names_of_attributes_are_data(load: Load, tmp_path: Path) -> None:
    hostile = "x'); import os #\n"
    quotes = f"{hostile}'''\"\"\""
    root = torch.nn.Module()
    root.add_module(hostile, torch.nn.Linear(2, 2))
    root.register_buffer(quotes, torch.ones(2))
    graph = fx.Graph()
    called = graph.call_module(hostile, (graph.placeholder("x"),))
    graph.output(graph.call_function(torch.add, (called, graph.get_attr(quotes))))
    module = fx.GraphModule(root, graph)
    stored = load(module)
    x = torch.ones(1, 2)
    assert torch.equal(stored(x), module(x))
    assert imports_of(next(tmp_path.iterdir())) == {"torch", "pathlib"}


class Evil:
    """Pretends to be whatever it is compared to, and prints as data."""

    def __repr__(self) -> str:
        return "(3, 3)"

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


def creation_of(layer: torch.nn.Module, folder: Path) -> str:
    """Return the source that creates ``layer`` in a package; a plain module stands in for one that is pickled."""
    graph = fx.Graph()
    graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
    fx.GraphModule({"layer": layer}, graph).to_folder(folder)
    (line,) = (line for line in (folder / "module.py").read_text().splitlines() if "set_submodule('layer', " in line)
    return line.strip().removeprefix("self.set_submodule('layer', ").removesuffix(")")


def test_modules_are_made_by_calls_of_literals_that_were_tried(tmp_path: Path) -> None:
    assert creation_of(torch.nn.Conv2d(3, 4, 3, padding=1), tmp_path) == (
        "torch.nn.Conv2d(in_channels=3, out_channels=4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), "
        "dilation=(1, 1))"
    )
    assert creation_of(torch.nn.Embedding(5, 3, padding_idx=0), tmp_path) == (
        "torch.nn.Embedding(num_embeddings=5, embedding_dim=3, padding_idx=0)"
    )
    changed = torch.nn.Conv2d(3, 4, 3)
    changed.kernel_size = Evil()  # type: ignore[assignment]
    hooked = torch.nn.ReLU()
    hooked.register_forward_hook(print)
    noted = torch.nn.ReLU()
    noted.note = 1
    lying = torch.nn.Linear(2, 2)
    lying.in_features = 3
    speaking = torch.nn.Linear(2, 2)
    speaking.extra_repr = len  # type: ignore[method-assign]
    infinite = torch.nn.Hardtanh(-math.inf, 1.0)
    for module in (changed, hooked, noted, lying, speaking, infinite, torch.nn.Sequential(noted), Own(),
                   torch.nn.TransformerEncoderLayer(4, 2, activation=torch.tanh)):  # fmt: skip
        assert creation_of(module, tmp_path) == "torch.nn.Module()", module


@pytest.mark.parametrize(
    "make, inputs",
    [
        (lambda: torch.nn.Conv1d(3, 4, 3, padding="same"), 1),
        (lambda: torch.nn.GRU(6, 4, num_layers=2, bidirectional=True), 1),
        (lambda: torch.nn.MultiheadAttention(6, 2, add_bias_kv=True), 3),
        (lambda: torch.nn.TransformerEncoderLayer(6, 2), 1),
        (lambda: torch.nn.TransformerEncoderLayer(6, 2, activation=torch.tanh), 1),  # pickled: it has a function
    ],
    ids=["same", "GRU", "attention", "encoder", "pickled"],
)
def test_layers_with_parts_are_kept(load: Load, make: Any, inputs: int) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("layer", (x,) * inputs))
    module = fx.GraphModule({"layer": make()}, graph).eval()
    module.layer.train()
    stored = load(module)
    assert_same_state(stored, module)
    assert [part.training for part in stored.modules()] == [part.training for part in module.modules()]
    value = torch.randn(3, 6)
    stored.eval(), module.eval()
    for mine, theirs in zip(stored(value), module(value), strict=True):
        assert torch.equal(mine, theirs)


def test_modules_are_imported_only_by_their_true_path(load: Load, tmp_path: Path) -> None:
    graph = fx.Graph()
    graph.output((torch.nn, sys))
    assert load(fx.GraphModule({}, graph))() == (torch.nn, sys)
    for pretender in ("os; evil", "torch"):
        odd = fx.Graph()
        odd.output(types.ModuleType(pretender))
        with pytest.raises(fx.CodegenError, match="that a package cannot import"):
            fx.GraphModule({}, odd).to_folder(tmp_path / "never")
    assert not (tmp_path / "never").exists()

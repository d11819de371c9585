"""A small file costs little, whatever it says: it is refused, or loaded, within a second and 64 MiB."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_files import edited, put_together, take_apart

import fx
from fx import serialization
from fx.errors import LoadError

MOST_SECONDS = 1.0
MOST_BYTES = 64 << 20
SMALL = 4096
"""Bytes of a small file: the program that is changed takes one and a half thousand of them."""


@serialization.allow
class Stack(torch.nn.Module):
    """Makes the requested number of modules."""

    def __init__(self, depth: Any) -> None:
        super().__init__()
        self.depth = depth
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(depth))


@serialization.allow
class Table(torch.nn.Module):
    """Makes a list of the requested length."""

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count
        self.entries = [0] * count


@serialization.allow
class Collected(torch.nn.Module):
    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = list(values)


@serialization.allow
class Computed(torch.nn.Module):
    def __init__(self, rounds: Any) -> None:
        super().__init__()
        value = torch.ones(1)
        for _ in range(rounds):
            value = value + 1
        self.value = value


def program() -> fx.GraphModule:
    return fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))


def memory(field: str) -> int:
    """A number that the kernel keeps of this process, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


@contextmanager
def within_budget() -> Iterator[None]:
    """Fail if the block takes too much time or memory; memory is limited."""
    if sys.platform != "linux":
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + 16 * MOST_BYTES, limits[1]))
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, start = memory("VmRSS"), time.process_time()
    try:
        yield
    finally:
        seconds, peak = time.process_time() - start, memory("VmHWM") - before
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert seconds < MOST_SECONDS
    assert peak < MOST_BYTES


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tables of names are made once in a process, by the first file."""
    path = tmp_path_factory.mktemp("warm") / "program"
    serialization.save(program(), path)
    serialization.load(path)
    with torch.device("meta"):
        Computed(1)  # the first computation without values loads parts of torch


def assert_refused(path: Path, part: str) -> None:
    with within_budget(), pytest.raises(LoadError) as caught:
        serialization.load(path)
    assert isinstance(caught.value.__cause__, (fx.FxError, serialization.Refused)), caught.value
    assert part in str(caught.value), str(caught.value)
    assert len(str(caught.value)) < 3000


def made_by(name: str, **arguments: Any) -> Callable[[Any], None]:
    """A module of a class made with these arguments, in the place of the first."""

    def edit(stored: Any) -> None:
        kind = name if "." in name else f"torch.nn.{name}"
        stored["modules"][0] = {"class": kind, "training": True, "arguments": arguments}

    return edit


def graph(stored: Any) -> Any:
    return stored["modules"][-1]["graph"]


def relu(stored: Any) -> Any:
    return graph(stored)["nodes"][2]


def shared_modules(levels: int) -> Callable[[Any], None]:
    def edit(stored: Any) -> None:
        modules = [{"class": "torch.nn.ReLU", "training": True}]
        for _ in range(levels):
            last = len(modules) - 1
            modules.append({"class": "fx.Container", "training": True, "modules": {"a": last, "b": last}})
        stored["modules"] = [*modules, {**stored["modules"][-1], "modules": {"0": len(modules) - 1, "1": 0}}]

    return edit


def nested(depth: int, inner: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def typed(annotation: Any) -> Callable[[Any], Any]:
    return lambda stored: relu(stored).update(type=annotation)


def with_args(*args: Any) -> Callable[[Any], Any]:
    return lambda stored: relu(stored).update(op="call_function", target="torch.relu", args=list(args))


MANY = {"range": [1, 10_000, 1]}
HUGE = {"range": [1, 10**9, 1]}
HUGER = {"range": [0, 2**62, 1]}
HUGE_INT = {"int": hex(10**30)}
own = f"{__name__}."
CANNOT = "cannot be made with these arguments"
RANGE = "is a range of more than 10,000 numbers"
INTEGER = "and no tensor of the module is as large"

COSTLY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a layer of 10**18 weights": (made_by("Linear", in_features=10**9, out_features=10**9), "no tensor for weight"),
    "a layer in memory": (made_by("Linear", in_features=10**5, out_features=10**4, device="cpu"), "device is given"),
    "a layer in memory by an object": (
        made_by("Linear", in_features=10**5, out_features=10**4, device={"device": "cpu"}), "device is given",
    ),
    "a layer of another type": (made_by("Linear", in_features=2, out_features=3, dtype={"dtype": "float64"}), "dtype"),
    "an embedding in memory": (made_by("Embedding", num_embeddings=10**8, embedding_dim=8, device="cpu"), "device is"),
    "an embedding of 2**62 rows": (made_by("Embedding", num_embeddings=2**62, embedding_dim=2), CANNOT),
    "an embedding without rows": (made_by("Embedding", num_embeddings=-1, embedding_dim=2), CANNOT),
    "an embedding bag": (made_by("EmbeddingBag", num_embeddings=10**9, embedding_dim=10**6), "no tensor for weight"),
    "more than 64 bits": (made_by("Linear", in_features=HUGE_INT, out_features=2), CANNOT),
    "a million layers": (made_by("LSTM", input_size=2, hidden_size=2, num_layers=10**6), "tensors for fewer layers"),
    "layers that are a range": (made_by("LSTM", input_size=2, hidden_size=2, num_layers=HUGE), "for fewer layers"),
    "layers of a GRU": (made_by("GRU", input_size=2, hidden_size=2, num_layers=2**62), "tensors for fewer layers"),
    "layers of an RNN": (made_by("RNN", input_size=2, hidden_size=2, num_layers=HUGE_INT), "tensors for fewer layers"),
    "cutoffs that are a range": (
        made_by("AdaptiveLogSoftmaxWithLoss", in_features=8, n_classes=10**9 + 1, cutoffs=HUGE), f"cutoffs {RANGE}",
    ),
    "many cutoffs": (
        made_by("AdaptiveLogSoftmaxWithLoss", in_features=8, n_classes=10**6, cutoffs=MANY, div_value=1.0),
        "calls more functions of torch",
    ),
    "cutoffs of an expanded tensor": (
        lambda stored: (
            made_by("AdaptiveLogSoftmaxWithLoss", in_features=8, n_classes=9, cutoffs={"tensor": 2})(stored),
            stored["tensors"].append({"memory": 2, "parameter": False}),
            stored["memory"].append({"name": "wide", "expanded": [2**40]}),
        ),
        "cutoffs is a tensor that is expanded",
    ),
    "a shape that is a range": (made_by("LayerNorm", normalized_shape=HUGE), f"normalized_shape {RANGE}"),
    "a shape that is a longer range": (made_by("RMSNorm", normalized_shape=HUGER), f"normalized_shape {RANGE}"),
    "a range in a list": (made_by("LayerNorm", normalized_shape=[HUGE]), f"normalized_shape {RANGE}"),
    "a range in a dict": (made_by("LayerNorm", normalized_shape={"dict": [["a", HUGE]]}), RANGE),
    "a kernel that is a range": (made_by("Conv2d", in_channels=1, out_channels=1, kernel_size=HUGE), RANGE),
    "a padding that is a range": (made_by("ReflectionPad2d", padding=HUGE), f"padding {RANGE}"),
    "a stride that is a range": (made_by("ConvTranspose3d", in_channels=1, out_channels=1, kernel_size=1, stride=HUGER),
                                 RANGE),
    "a range that goes down": (made_by("CircularPad1d", padding={"range": [0, -(10**9), -1]}), RANGE),
    "a size that is a range": (made_by("Unflatten", dim=1, unflattened_size=HUGE), RANGE),
    "an output that is a range": (made_by("AdaptiveMaxPool3d", output_size=HUGE), RANGE),
    "a kernel of 10**9 by 10**9": (
        made_by("Conv2d", in_channels=1, out_channels=1, kernel_size=10**9), "no tensor for weight",
    ),
    "groups of 10**9": (
        made_by("Conv1d", in_channels=10**9, out_channels=10**9, kernel_size=1, groups=10**9), "no tensor for weight",
    ),
    "heads": (made_by("MultiheadAttention", embed_dim=10**9, num_heads=10**9), CANNOT),
    "channels": (made_by("BatchNorm2d", num_features=2**60), "no tensor for"),
    "bilinear weights": (made_by("Bilinear", in1_features=10**6, in2_features=10**6, out_features=10**6), "no tensor"),
    "a transformer layer": (made_by("TransformerEncoderLayer", d_model=10**6, nhead=1), "no tensor for"),
    "a million modules of a user's class": (made_by(own + "Stack", depth=10**6), "calls more functions of torch"),
    "10**12 modules of a user's class": (made_by(own + "Stack", depth=10**12), f"depth is 1000000000000, {INTEGER}"),
    "a list of a user's class": (made_by(own + "Table", count=10**10), INTEGER),
    "a count of more than 64 bits": (made_by(own + "Table", count=HUGE_INT), INTEGER),
    "a count in a list": (made_by(own + "Collected", values=[[10**12]]), INTEGER),
    "a range of a user's class": (made_by(own + "Collected", values={"range": [0, 10**6, 1]}), f"values {RANGE}"),
    "steps of a user's class": (made_by(own + "Computed", rounds=10**6), "calls more functions of torch"),
    "two modules that take a budget each": (
        lambda stored: stored["modules"].__setitem__(
            slice(0, 1), [{"class": own + "Stack", "training": True, "arguments": {"depth": 2000}}] * 8
        ),
        "of torch",
    ),
    "modules by a million paths": (shared_modules(20), "paths lead to modules"),
    "an annotation of 65 levels": (typed(nested(70, "int", lambda t: {"generic": ["List", [t]]})), "nests"),
    "an annotation that is long": (typed("x" * 1001), "more than 1,000 characters"),
    "an annotation that repeats": (typed("[0 for a in 'aaaaaaa' for b in 'aaaaaaa' for c in 'a']"), "more than names"),
    "an annotation that is a condition": (typed("a if b else c"), "is more than names of types"),
    "an annotation that compares": (typed("a in b"), "is more than names of types"),
    "values of 66 levels": (with_args(nested(70, 1, lambda value: [value])), "nests more than 64 levels"),
    "tuples of 66 levels": (with_args(nested(70, 1, lambda value: {"tuple": [value]})), "nests"),
    "a size that is not a list": (with_args({"size": HUGE}), "are not the integers"),
    "a tuple that is a range": (with_args({"tuple": HUGE}), "a list is expected"),
    "a set that is a range": (with_args({"set": HUGE}), "a set is not a list"),
    "strides with gaps": (lambda s: s["memory"][0].update(stride=[2**40, 1]), "strides that do not fit its shape"),
    "an expanded weight": (lambda s: s["memory"][0].update(expanded=[2**40, 2]), "cannot be expanded"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", COSTLY)
def test_a_small_file_that_asks_for_much_is_refused_at_once(path: Path, name: str) -> None:
    edit, part = COSTLY[name]
    edited(program(), path, lambda stored: (edit(stored), None)[1])
    if "expanded tensor" in name:
        header, stored, rest = take_apart(path)
        header["wide"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(rest), len(rest) + 4]}
        put_together(path, header, json.dumps(stored), rest + bytes(4))
    assert path.stat().st_size < SMALL
    assert_refused(path, part)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("opened", ["[", '{"a":', '[{"b":[', '["[",'])
def test_deeply_nested_json_is_refused_at_any_recursion_limit(path: Path, opened: str) -> None:
    serialization.save(program(), path)
    header, _, rest = take_apart(path)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)  # as some programs do; their stack is no larger for it
    try:
        for text in (opened * 300, opened * 100_000):
            put_together(path, header, text, rest)
            assert_refused(path, "its JSON nests too deeply")
        path.write_bytes((len(text)).to_bytes(8, "little") + text.encode())
        assert_refused(path, "its JSON nests too deeply")
    finally:
        sys.setrecursionlimit(limit)


def test_modules_reached_by_half_a_million_paths_cost_little(path: Path) -> None:
    edited(program(), path, shared_modules(17))
    with within_budget():
        loaded = serialization.load(path)
    assert len(list(loaded.modules())) == 19


def test_brackets_in_strings_do_not_nest(path: Path) -> None:
    def edit(stored: Any) -> None:
        graph(stored)["history"] = ["[" * 1000, '\\"' + "{" * 1000, '"' + "[" * 1000]

    assert serialization.load(edited(program(), path, edit)).graph.history[0] == "[" * 1000  # type: ignore[attr-defined]


def test_modules_of_users_are_saved_only_if_they_load(path: Path) -> None:
    def of(module: torch.nn.Module) -> fx.GraphModule:
        inner = fx.Graph()
        inner.output(inner.call_module("part", (inner.placeholder("x"),)))
        return fx.GraphModule({"part": module}, inner)

    stack = Stack(50)
    serialization.save(of(stack), path)
    assert len(serialization.load(path).part.layers) == 50
    with pytest.raises(fx.errors.SaveError, match="no tensor of the module is as large"):
        serialization.save(of(Table(1_000_001)), path)


@pytest.mark.parametrize("kind", ["a path", "an error"])
def test_escape_sequences_of_a_file_are_not_printed(path: Path, kind: str) -> None:
    escape = "\x1b]0;title\x07\n  try    allow(it)"
    if kind == "a path":
        edited(program(), path, lambda s: relu(s).update(op="call_function", target=f"torch.{escape}"))
    else:
        edited(program(), path, made_by("Conv2d", in_channels=1, out_channels=1, kernel_size=1, padding_mode=escape))
    with pytest.raises(LoadError) as caught:
        serialization.load(path)
    assert "\x1b" not in str(caught.value)
    assert "\n  try    allow(it)" not in str(caught.value)

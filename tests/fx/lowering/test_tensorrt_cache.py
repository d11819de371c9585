"""Engines on disk: files that are whole or refused, and a cache that many processes use at a time."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from building import Calling
from torch import nn

import fx
from fx.errors import LoweringError
from fx.lowering import Converter, EngineCache, TensorRT
from fx.lowering.tensorrt import build
from fx.lowering.tensorrt.engine import TensorRTEngine, write_atomically
from fx.lowering.tensorrt.library import find_library
from fx.lowering.tensorrt.network import EngineBinding

builds_ahead = pytest.mark.skipif(
    not hasattr(find_library(), "ComputeCapability"), reason="there is no tensorrt_rtx, which builds without a GPU"
)
BINDING = EngineBinding("x", torch.bfloat16, (1, 2), (2, 2), (4, 2))


def engine(plan: bytes = b"plan") -> TensorRTEngine:
    return TensorRTEngine(plan, (BINDING,), (BINDING, BINDING), False, "tensorrt_rtx 1", ("8.6",), 0.5)


# Files.


def test_an_engine_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "net.engine"
    engine().save(path)
    assert TensorRTEngine.load(path) == engine()
    assert [path.name for path in path.parent.iterdir()] == ["net.engine"]


@pytest.mark.parametrize("length", [0, 5, 12, 19, 40, 200, -1])
def test_a_truncated_engine_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "net.engine"
    path.write_bytes(engine().to_bytes()[:length])
    with pytest.raises(LoweringError) as caught:
        TensorRTEngine.load(path)
    assert "this engine file is damaged" in str(caught.value) or "this is not an engine file" in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_engine_file_with_a_changed_byte_is_refused() -> None:
    content = bytearray(engine().to_bytes())
    content[-1] ^= 1
    with pytest.raises(LoweringError, match="its checksum does not match its content"):
        TensorRTEngine.from_bytes(bytes(content))


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(tmp_path / "net.engine", b"content")
    assert list(tmp_path.iterdir()) == []


# The cache.


def test_a_cache_finds_its_entries(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines")
    assert cache.find("key") is None
    cache.keep("key", engine())
    assert cache.find("key") == engine()


def test_a_damaged_file_is_dropped_from_the_cache(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path)
    cache.keep("key", engine())
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.find("key") is None
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_engines_make_room(tmp_path: Path) -> None:
    size = len(engine(bytes(1000)).to_bytes())
    cache = EngineCache(tmp_path, max_bytes=2 * size)
    for number, key in enumerate("ab"):
        cache.keep(key, engine(bytes(1000)))
        os.utime(tmp_path / f"{key}.engine", (number, number))
    assert cache.find("a") is not None  # used by now
    cache.keep("c", engine(bytes(1000)))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c"]
    cache.keep("d", engine(bytes(3000)))  # larger than the cache
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c"]


def test_abandoned_files_are_cleared(tmp_path: Path) -> None:
    old, new = tmp_path / ".old.part", tmp_path / ".new.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    EngineCache(tmp_path).keep("key", engine())
    assert not old.exists()
    assert new.exists()


def test_a_size_of_a_cache_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoweringError, match="'max_bytes' of EngineCache is an int of at least 0, not -1"):
        EngineCache(tmp_path, max_bytes=-1)


def _write_and_read(folder: str, number: int, results: Any) -> None:
    cache = EngineCache(Path(folder), max_bytes=40_000)
    good = 0
    for turn in range(60):
        key = str((turn * 7 + number) % 5)
        plan = key.encode() * 5_000
        cache.keep(key, engine(plan))
        read = cache.find(str(turn % 5))
        good += read is None or read.plan == str(turn % 5).encode() * 5_000
    results.put(good)


def test_processes_that_write_at_a_time_read_whole_engines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_write_and_read, args=(str(tmp_path), number, results)) for number in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [60] * 4
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert all(path.suffix == ".engine" for path in tmp_path.iterdir())


# What finds an engine again.


def net() -> nn.Module:
    return Calling(lambda self, x: torch.tanh(torch.relu(self.fc(x))), fc=nn.Linear(4, 4))


X = (torch.zeros(2, 4),)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each engine that is built and not found."""
    count: list[int] = []
    really = build._build
    monkeypatch.setattr(build, "_build", lambda *args: (count.append(1), really(*args))[1])
    return count


@builds_ahead
def test_an_engine_is_built_once(tmp_path: Path, built: list[int]) -> None:
    backend = TensorRT(targets=("8.6",), cache=EngineCache(tmp_path))
    model = net()
    first, second = (fx.lower(fx.symbolic_trace(model), backend, X).tensorrt_0.engine for _ in range(2))
    assert first == second
    assert len(built) == 1


@builds_ahead
def test_options_that_change_the_engine_build_a_new_one(
    tmp_path: Path, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EngineCache(tmp_path)
    model = net()

    def lower(inputs: Any = X, **options: Any) -> None:
        fx.lower(fx.symbolic_trace(model), TensorRT(**{"targets": ("8.6",), "cache": cache, **options}), inputs)

    others: list[dict[str, Any]] = [
        {"targets": ("8.9",)}, {"precision": "float16"}, {"tf32": True}, {"workspace": 1 << 28},
        {"ranges": {"x": {0: (1, 4)}}}, {"inputs": (torch.zeros(3, 4),)},
    ]  # fmt: skip
    for number, options in enumerate([{}, *others], 1):
        lower(**options)
        assert len(built) == number
    with torch.no_grad():
        model.fc.bias[0] += 1
    lower()
    assert len(built) == 8
    monkeypatch.setattr(build, "library_name", lambda: "tensorrt_rtx 99")
    for _ in range(2):
        lower()
        assert len(built) == 9


@builds_ahead
def test_nothing_is_kept_of_an_engine_that_fails_to_build(tmp_path: Path) -> None:
    with pytest.raises(LoweringError, match="TensorRT cannot build the engine"):
        fx.lower(fx.symbolic_trace(net()), TensorRT(targets=("7.5",), cache=EngineCache(tmp_path)), X)
    assert list(tmp_path.iterdir()) == []


@builds_ahead
def test_layers_that_a_converter_adds_behind_the_networks_back_keep_the_cache_out(
    tmp_path: Path, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fx.lowering.tensorrt.predicates import converters

    converter = converters.find(torch.tanh)
    assert converter is not None

    def add(network: Any, input: Any) -> Any:
        return network.definition.add_identity(converter.build(network, input)).get_output(0)

    monkeypatch.setitem(converters._converters, torch.tanh, Converter(torch.tanh, add))
    backend = TensorRT(targets=("8.6",), cache=EngineCache(tmp_path))
    for _ in range(2):
        fx.lower(fx.symbolic_trace(net()), backend, X)
    assert len(built) == 2
    assert list(tmp_path.iterdir()) == []

"""``TensorRTModule``, on a stand-in for the library whose engines double their inputs, in CPU memory."""

from __future__ import annotations

import copy
import ctypes
import pickle
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from building import Calling

import fx
from fx.errors import LoweringError
from fx.lowering.tensorrt import TensorRTModule, module
from fx.lowering.tensorrt.engine import TensorRTEngine
from fx.lowering.tensorrt.network import EngineBinding

BUILT_BY = "standin 1"


def engine(inputs: int = 1, single: bool = True, plan: bytes = b"plan") -> TensorRTEngine:
    accepted, returned = (
        tuple(EngineBinding(f"{name}{number}", torch.float32, (1, 3), (2, 3), (4, 3)) for number in range(inputs))
        for name in ("x", "output_")
    )
    return TensorRTEngine(plan, accepted, returned, single, BUILT_BY, ("8.6",), 0.1)


class Execution:
    """An execution context: each output is twice the input of the same number."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return self.library.takes_shapes

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name.replace("output_", "x")]

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        self.library.streams.append(stream)
        for name, shape in self.shapes.items():
            count = torch.Size(shape).numel()
            source, target = (
                (ctypes.c_float * count).from_address(self.addresses[label])
                for label in (name, name.replace("x", "output_"))
            )
            target[:] = [2 * number for number in source]
        return self.library.runs


class Library:
    """The part of the package that is used when engines run."""

    def __init__(self) -> None:
        self.takes_shapes = self.runs = self.prepares = True
        self.loaded: list[bytes] = []
        self.contexts: list[Any] = []
        self.streams: list[int] = []

    def Runtime(self, logger: Any) -> Any:
        return self

    def deserialize_cuda_engine(self, plan: bytes) -> Any:
        self.loaded.append(plan)
        return None if plan == b"for another GPU" else self

    def create_execution_context(self, *configuration: Any) -> Any:
        self.contexts.append(configuration)
        return Execution(self) if self.prepares else None


LOG = SimpleNamespace(logger=None, words=lambda: "the words of the library")


class Stream:
    def __init__(self, number: int) -> None:
        self.cuda_stream = number
        self.waited = 0

    def wait_event(self, event: Any) -> None:
        self.waited += 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library_here = Library()
    monkeypatch.setattr(module, "library", lambda: library_here)
    monkeypatch.setattr(module, "library_name", lambda: BUILT_BY)
    monkeypatch.setattr(module, "Log", lambda: LOG)
    monkeypatch.setattr(module, "_DEVICE", "cpu")
    for name, value in {
        "is_available": lambda: True, "device": lambda device: nullcontext(), "current_device": lambda: 0,
        "current_stream": lambda device: Stream(7), "is_current_stream_capturing": lambda: False,
        "Event": lambda: SimpleNamespace(record=lambda stream: None),
        "get_device_capability": lambda device: (9, 0), "get_device_name": lambda device: "a GPU",
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    return library_here


@pytest.mark.parametrize("x", [torch.randn(2, 3), torch.randn(3, 2).t()], ids=["contiguous", "not contiguous"])
def test_an_engine_runs_on_the_current_stream(library: Library, x: torch.Tensor) -> None:
    assert torch.equal(TensorRTModule(engine())(x), 2 * x)
    assert library.streams == [7]


def test_an_engine_of_several_results_returns_a_tuple(library: Library) -> None:
    x, y = torch.randn(2, 3), torch.randn(4, 3)
    first, second = TensorRTModule(engine(2, single=False))(x, y)
    assert torch.equal(first, 2 * x)
    assert torch.equal(second, 2 * y)


def test_an_engine_is_loaded_once_and_each_thread_has_a_context(library: Library) -> None:
    engine_module = TensorRTModule(engine())
    engine_module(torch.ones(2, 3))
    engine_module(torch.ones(3, 3))
    assert (len(library.loaded), len(library.contexts)) == (1, 1)
    thread = threading.Thread(target=engine_module, args=(torch.ones(2, 3),))
    thread.start()
    thread.join()
    assert (len(library.loaded), len(library.contexts)) == (1, 2)


def test_a_run_on_another_stream_waits_for_the_last_one(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    engine_module = TensorRTModule(engine())
    streams = [Stream(1), Stream(1), Stream(2)]
    for stream in streams:
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, stream=stream: stream)
        engine_module(torch.ones(2, 3))
    assert [stream.waited for stream in streams] == [0, 0, 1]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    captured = Stream(3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: captured)
    engine_module(torch.ones(2, 3))
    assert captured.waited == 0


def test_cuda_graphs_are_left_to_the_library_where_it_can(library: Library) -> None:
    library.CudaGraphStrategy = SimpleNamespace(WHOLE_GRAPH_CAPTURE="whole")  # type: ignore[attr-defined]
    library.create_runtime_config = SimpleNamespace  # type: ignore[attr-defined]
    TensorRTModule(engine(), cuda_graphs=True)(torch.ones(2, 3))
    ((configuration,),) = library.contexts
    assert configuration.cuda_graph_strategy == "whole"


@pytest.mark.parametrize(
    "inputs, message",
    [
        ((), "the engine takes 1 input, not 0\n  value  x0"),
        ((torch.ones(5, 3),), "the input 'x0' of the engine is of shape (1 to 4, 3), not (5, 3)\n  try    lower"),
        ((torch.ones(3),), "the input 'x0' of the engine is of shape (1 to 4, 3), not (3,)"),
        ((torch.ones(2, 3).half(),), "the input 'x0' of the engine is float32, not float16"),
        ((3,), "the input 'x0' of the engine is a tensor, not an int"),
        (
            (torch.ones(2, 3, requires_grad=True),),
            "an engine computes no gradients, but an input requires one\n  value  x0",
        ),
        ((torch.ones(2, 3, device="meta"),), "the inputs of an engine are on one CUDA device\n  value  meta"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(library: Library, inputs: Any, message: str) -> None:
    with pytest.raises(LoweringError) as caught:
        TensorRTModule(engine())(*inputs)
    assert str(caught.value).startswith(message)
    assert library.loaded == []


def test_gradients_are_not_requested_under_no_grad(library: Library) -> None:
    with torch.no_grad():
        assert not TensorRTModule(engine())(torch.ones(2, 3, requires_grad=True)).requires_grad


def test_an_engine_of_another_version_is_refused(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "library_name", lambda: "standin 2")
    message = "was built by standin 1\n  why    this is standin 2, which reads no other versions"
    with pytest.raises(LoweringError, match=message):
        TensorRTModule(engine())(torch.ones(2, 3))


def test_an_engine_for_another_gpu_is_refused(library: Library) -> None:
    with pytest.raises(LoweringError) as caught:
        TensorRTModule(engine(plan=b"for another GPU"))(torch.ones(2, 3))
    message = str(caught.value)
    assert "cannot be loaded on a GPU\n  why    the words of the library (compute capability 9.0)" in message
    assert "this engine is of standin 1, for 8.6" in message


@pytest.mark.parametrize(
    "flag, message",
    [
        ("prepares", "cannot be prepared for running\n  why    the words of the library"),
        ("takes_shapes", "does not take inputs of this size\n  value  (2, 3)\n  why    the words of the library"),
        ("runs", "failed\n  why    the words of the library"),
    ],
)
def test_an_error_of_the_library_is_quoted_by_the_module(library: Library, flag: str, message: str) -> None:
    setattr(library, flag, False)
    with pytest.raises(LoweringError) as caught:
        TensorRTModule(engine())(torch.ones(2, 3))
    assert message in str(caught.value)


def test_a_device_without_memory_for_results_is_an_error(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    x = torch.ones(2, 3)
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(LoweringError, match="has no memory for its results\n  why    CUDA out of memory"):
        TensorRTModule(engine())(x)


# Copies and files: no library is needed for these.


def test_a_module_is_copied_and_pickled_with_its_engine(library: Library) -> None:
    engine_module = TensorRTModule(engine(), cuda_graphs=True)
    x = torch.ones(2, 3)
    engine_module.cuda_graphs = False
    engine_module(x)
    for other in (copy.deepcopy(engine_module), pickle.loads(pickle.dumps(engine_module))):
        assert other.engine == engine_module.engine
        assert torch.equal(other(x), 2 * x)
    assert len(library.loaded) == 3


def test_a_module_is_saved_and_loaded(tmp_path: Path, library: Library) -> None:
    engine_module = TensorRTModule(engine())
    engine_module.save(tmp_path / "net.engine")
    loaded = TensorRTModule.load(tmp_path / "net.engine")
    assert loaded.engine == engine_module.engine
    assert repr(loaded) == f"TensorRTModule({engine_module.engine.digest}, 4 bytes for 8.6)"
    assert loaded.state_dict() == {}


def test_a_program_with_an_engine_is_captured_and_copied_as_any_other(library: Library) -> None:
    program = fx.symbolic_trace(Calling(lambda self, x: self.engine(x) + 1, engine=TensorRTModule(engine())))
    assert "self.engine(x)" in program.code
    x = torch.ones(2, 3)
    assert torch.equal(pickle.loads(pickle.dumps(program))(x), 2 * x + 1)

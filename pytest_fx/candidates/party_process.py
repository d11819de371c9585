"""The process of a reference or a candidate: it receives inputs, computes, and sends the outputs.

The process cannot tell a timed call from any other. Inputs are written to the same memory each time, behind the
tensors' version counters. The process answers when the outputs are computed and copied. They are fetched later.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_fx.candidates.intermediates import is_program, values_of_parts
from pytest_fx.candidates.process_watch import Caller, ProcessWatch, without_signs_of_a_test
from pytest_fx.candidates.wire_format import decode, elements, encode
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import describe, leaves, map_tensors
from pytest_fx.processes.child import Channel, Child, ChildEnded, Limits

FLUSHED = 1 << 28
"""Bytes that a GPU writes before a batch of calls: more than its caches hold."""
RECORD = 1 << 28
"""Most bytes of recorded replies; later ones are computed for each candidate."""
_WEIGHT = 0.7
"""Step between elements in the loss for gradients, the sum of outputs weighted by ``cos(index * step)``."""


@dataclass(frozen=True, slots=True)
class PartySetting:
    """The device and the mode of the subject of a party."""

    device: str = "cpu"
    """The device of its parameters and inputs."""
    mode: str = "both"
    """The mode of modules in all calls, ``"eval"`` or ``"train"``. With ``"both"``, each call has its own."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a call."""

    error: str = ""
    """The exception that it raised, as text; empty if it returned."""
    outputs: Any = None
    """The returned value."""
    structure: str = ""
    """A description of its containers."""
    gradients: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Gradients of inputs and parameters, by the input's path or the parameter's name."""
    inputs: Any = None
    """Digests of the inputs after the call."""
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parameters and buffers after the call."""
    aliases: tuple[str, ...] = ()
    """Pairs of an output and an input that share memory."""
    strange: tuple[str, ...] = ()
    """Classes of output tensors other than ``Tensor`` and ``Parameter``."""
    is_earlier_kept: bool = True
    """Whether the outputs of the previous call hold after this one the values that they had when it returned."""
    is_kept: bool = True
    """Whether the outputs still hold the values that they had when the call returned."""


class Party:
    """The process of a reference or a candidate, as the judge sees it."""

    def __init__(
        self,
        load: Callable[[], Any],
        prepare: Callable[[Any], object] | None,
        limits: Limits,
        setting: PartySetting,
        apart_from: Sequence[Party] = (),
    ) -> None:
        """Start the process. It runs the result of ``load``, and calls ``prepare`` on it after writing parameters.

        The process is a fork, and closes the connections to the processes of the parties ``apart_from``.
        """
        self._limits = limits
        self.has_ended = False
        """Whether the process has ended."""

        def serve(channel: Channel) -> None:
            for party in apart_from:
                party._child.disconnect()
            _serve(channel, load, prepare, setting)

        self._child = Child(serve)
        self.loaded: dict[str, Any] = self._answer()

    def _answer(self) -> Any:
        return decode(self._receive())

    def _receive(self) -> bytes:
        try:
            return self._child.receive(self._limits)
        except ChildEnded:
            self.has_ended = True
            raise

    def _query(self, **request: Any) -> Any:
        self._child.send(encode(request))
        return self._answer()

    def write(self, state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Write parameters and buffers in place; return a description of the failure, empty if there is none."""
        return self._query(do="write", state=dict(state))

    def place(
        self,
        inputs: list[Arguments],
        mode: str,
        seed: int,
        *,
        gradients: bool = False,
        float64: bool = False,
        untested: bool = False,
    ) -> None:
        """Write the inputs of the next calls into the memory of the process.

        With ``untested``, these calls find no environment variables, no command line and no modules of test tools.
        """
        calls = [{"args": arguments.args, "kwargs": arguments.kwargs} for arguments in inputs]
        flags = {"gradients": gradients, "float64": float64, "untested": untested}
        self._query(do="place", calls=calls, mode=mode, seed=seed, **flags)

    def go(self) -> float:
        """Compute the outputs for the placed inputs. Return the seconds until they are ready."""
        start = time.perf_counter()
        self._child.send(encode({"do": "go"}))
        self._receive()
        return time.perf_counter() - start

    def fetch(self) -> list[Reply]:
        """Return the results of the last calls."""
        return _replies(self._fetched())

    def _fetched(self) -> bytes:
        self._child.send(encode({"do": "fetch"}))
        return self._receive()

    def run_all(self, inputs: list[Arguments], mode: str = "eval", seed: int = 0, **options: bool) -> list[Reply]:
        """Run several calls in a row.

        Raises:
            ChildEnded: the process ends.
        """
        return _replies(self._computed(inputs, mode, seed, options))

    def _computed(self, inputs: list[Arguments], mode: str, seed: int, options: Mapping[str, bool]) -> bytes:
        self.place(inputs, mode, seed, **options)
        self.go()
        return self._fetched()

    def run(self, inputs: Arguments, mode: str = "eval", seed: int = 0, **options: bool) -> Reply:
        """Run one call. If the process ends, the reply has that as its error."""
        try:
            return self.run_all([inputs], mode, seed, **options)[0]
        except ChildEnded as ended:
            return Reply(error=f"it {ended.ending.cause}")

    def values_of_parts(self, inputs: Arguments, *, by_nodes: bool, float64: bool = False) -> dict[str, Any]:
        """Return the values of the parts of the subject in a call; see :mod:`pytest_fx.candidates.intermediates`."""
        self.place([inputs], "eval", 0, float64=float64)
        return self._query(do="parts", by_nodes=by_nodes)

    def left(self) -> list[str]:
        """Return the side effects of the calls on the process: running threads, patched functions and others."""
        return list(self._query(do="left"))

    def close(self) -> None:
        """End the process."""
        self._child.close()


def _replies(message: bytes) -> list[Reply]:
    fields = Reply.__dataclass_fields__
    return [Reply(**{name: value for name, value in reply.items() if name in fields}) for reply in decode(message)]


class RecordedParty(Party):
    """The process of a reference whose replies are recorded, so that no call is computed twice.

    A candidate's process is a fork of the judge, and must not have the reference's outputs in its memory. So the judge
    has the record only from :meth:`resume` to :meth:`suspend`; in between the reference's process keeps it.
    """

    def __init__(self, load: Callable[[], Any], limits: Limits, setting: PartySetting) -> None:
        """Start the process, which runs the result of ``load``."""
        super().__init__(load, None, limits, setting)
        self._record: dict[str, bytes] = {}
        self._new: dict[str, bytes] = {}
        self._state = self._original = b""
        self._previous: tuple[Any, ...] | None = None

    def resume(self) -> None:
        """Fetch the record from the process."""
        if not self.loaded["error"]:
            self._record = {key: _bytes_of(blob) for key, blob in self._query(do="recorded").items()}

    def suspend(self) -> None:
        """Write the original parameters, send new replies to the process, and forget all."""
        if self._state != self._original:
            super().write(self.loaded["state"])
        for key, message in self._new.items():  # one by one: the process reads long messages slowly
            self._query(do="record", replies={key: torch.frombuffer(bytearray(message), dtype=torch.uint8)})
        self._record, self._new, self._state, self._previous = {}, {}, self._original, None

    def write(self, state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Write parameters and buffers in place; return a description of the failure, empty if there is none."""
        is_original = state is self.loaded["state"]
        self._state = self._original if is_original else hashlib.sha256(encode(dict(state))).digest()
        return super().write(state)

    def _computed(self, inputs: list[Arguments], mode: str, seed: int, options: Mapping[str, bool]) -> bytes:
        call = (inputs, mode, seed, options)
        content = encode([[each.args, each.kwargs] for each in inputs] + [mode, seed, sorted(options.items())])
        key = hashlib.sha256(self._state + content).hexdigest()
        message = self._record.get(key)
        previous, self._previous = self._previous, call if message is not None else None
        if message is not None:
            return message
        if previous is not None:  # the reply tells what becomes of the outputs of the previous call
            super()._computed(*previous)
        message = super()._computed(*call)
        if len(message) + sum(map(len, self._record.values())) <= RECORD:
            self._record[key] = self._new[key] = message
        return message


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _serve(
    channel: Channel, load: Callable[[], Any], prepare: Callable[[Any], object] | None, setting: PartySetting
) -> None:
    _print_nothing()
    torch.set_num_threads(1)  # a fork does not have its parent's threads
    caller = Caller()
    watch = caller.do(ProcessWatch)
    try:
        bench = _Bench(load(), prepare, caller, setting)
    except BaseException as error:
        channel.send(encode({"error": _error_text(error)}))
        return
    kinds = {"is_module": isinstance(bench.subject, nn.Module), "is_program": is_program(bench.subject)}
    channel.send(encode({"error": "", "state": bench.state(), "device": bench.name_of_device(), **kinds}))
    record: dict[str, torch.Tensor] = {}
    while True:
        request = decode(channel.receive())
        match request["do"]:
            case "write":
                channel.send(encode(bench.write(request["state"])))
            case "place":
                bench.place(request)
                channel.send(encode(None))
            case "go":
                with watch.calling():
                    bench.go()
                channel.send(b"done")
            case "fetch":
                channel.send(encode(bench.fetch()))
            case "parts":
                channel.send(encode(bench.values_of_parts(request["by_nodes"])))
            case "record":
                record |= request["replies"]
                channel.send(encode(None))
            case "recorded":
                channel.send(encode(record))
            case _:
                channel.send(encode([*bench.left, *caller.do(partial(_changes, watch))]))


def _changes(watch: ProcessWatch) -> list[str]:
    torch.set_grad_enabled(True)  # the bench itself sets this for each call
    return watch.changes()


def _print_nothing() -> None:
    """Discard all output of the process: readers would take it for output of the judge."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    # pytest, for one, has replaced these by files of its own
    sys.stdout = sys.stderr = open(nowhere, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


class _Bench:
    """The subject in a party's process, with the memory of its inputs and its last results."""

    def __init__(
        self, subject: Any, prepare: Callable[[Any], object] | None, caller: Caller, setting: PartySetting
    ) -> None:
        self._on_cpu, self._device, self._mode = setting.device == "cpu", setting.device, setting.mode
        self.subject = subject.to(setting.device) if isinstance(subject, nn.Module) and not self._on_cpu else subject
        self._prepare, self._caller = prepare, caller
        self._memory: dict[Any, torch.Tensor] = {}
        self._request: dict[str, Any] = {}
        self._calls: list[Arguments] = []
        self._results: list[Any] = []
        self._earlier: list[Any] = []
        self.left: dict[str, None] = {}
        """Sentences on what calls have changed for the caller."""
        if isinstance(subject, nn.Module):
            self._fresh = copy.deepcopy(self.state())
        self._prepared()

    def name_of_device(self) -> str:
        """Return the name of the GPU, with its clock if it is known; empty on a CPU."""
        if self._on_cpu:
            return ""
        name = torch.cuda.get_device_name(self._device)
        try:
            return f"{name} at {torch.cuda.clock_rate(self._device):,} MHz"
        except Exception:  # the clock is known to a package of NVIDIA's, which may be missing
            return name

    def _prepared(self) -> None:
        if self._prepare is not None:
            self._prepare(self.subject)

    def state(self) -> dict[str, Any]:
        return dict(self.subject.state_dict()) if isinstance(self.subject, nn.Module) else {}

    def write(self, state: Mapping[str, Any]) -> dict[str, Any]:
        own = self.state()
        if own.keys() != state.keys():
            return {"missing": sorted(state.keys() - own.keys()), "other": sorted(own.keys() - state.keys())}
        try:
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(state[name])
        except Exception as error:
            return {"error": _error_text(error)}
        self._fresh = copy.deepcopy(own)
        self._prepared()
        return {}

    def place(self, request: dict[str, Any]) -> None:
        self._request, self._calls = request, []
        for number, call in enumerate(request["calls"]):
            count = iter(range(10_000))
            move = lambda tensor, number=number, count=count: self._written((number, next(count)), tensor)  # noqa: E731
            arguments = Arguments(tuple(call["args"]), dict(call["kwargs"]))
            self._calls.append(arguments.map(move))
        if not self._on_cpu:
            torch.empty(FLUSHED, dtype=torch.uint8, device=self._device).zero_()
            torch.cuda.synchronize(self._device)

    def _written(self, place: tuple[int, int], tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor kept for a place, with the new contents, unnoticed by its version counter."""
        key = (place, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
        theirs = tensor.untyped_storage()
        if key not in self._memory:
            storage = theirs if self._on_cpu else torch.UntypedStorage(theirs.nbytes(), device=self._device)
            layout = (tensor.storage_offset(), tensor.shape, tensor.stride())
            self._memory[key] = torch.empty(0, dtype=tensor.dtype, device=self._device).set_(storage, *layout)
        own = self._memory[key]
        mine = own.untyped_storage()
        if tensor.numel() and mine.data_ptr() != theirs.data_ptr():
            count = min(mine.nbytes(), theirs.nbytes())
            mine[:count].copy_(theirs[:count])
        return own

    def go(self) -> None:
        self._earlier, self._results = self._results, []
        with without_signs_of_a_test() if self._request["untested"] else nullcontext():
            self._caller.call_each(self._ready_calls(), self._take, self._fail)
        if not self._on_cpu:
            torch.cuda.synchronize(self._device)  # of all streams, while the parent's clock runs

    def _ready_calls(self) -> Iterator[partial[Any]]:
        gradients, float64 = self._request["gradients"], self._request["float64"]
        for call in self._calls:
            self._results.append(_Result(call))
            try:
                runnable = self._runnable(float64)
                torch.manual_seed(self._request["seed"])
                torch.set_grad_enabled(gradients)
                yield self._results[-1].ready(runnable, gradients, float64)
            except Exception as error:
                self._fail(error)

    def _take(self, returned: Any) -> None:
        if torch.is_grad_enabled() != self._request["gradients"]:
            self.left["it switches gradients on or off"] = None
        self._results[-1].take(returned, self._request["gradients"])

    def _fail(self, error: BaseException) -> None:
        self._results[-1].error = _error_text(error)

    def values_of_parts(self, by_nodes: bool) -> dict[str, Any]:
        float64 = self._request["float64"]
        arguments = self._calls[0].map(_doubled) if float64 else self._calls[0]
        try:
            with torch.no_grad():
                return values_of_parts(self._runnable(float64), arguments, by_nodes)
        except Exception:  # a module that cannot be captured, for one
            return {}

    def _runnable(self, float64: bool) -> Any:
        subject = self.subject
        if not isinstance(subject, nn.Module):
            return subject
        with torch.no_grad():
            for name, tensor in subject.state_dict().items():
                if not torch.equal(tensor, self._fresh[name]):
                    tensor.copy_(self._fresh[name])
        subject.train((self._request["mode"] if self._mode == "both" else self._mode) == "train")
        return copy.deepcopy(subject).double() if float64 else subject

    def fetch(self) -> list[dict[str, Any]]:
        replies = [result.reply(self.state()) for result in self._results]
        for reply, earlier in zip(replies, self._earlier, strict=False):
            reply["is_earlier_kept"] = _is_same(earlier.returned, earlier.outputs)
        return replies


class _Result:
    """One call: its arguments and its result."""

    def __init__(self, call: Arguments) -> None:
        self.call, self.error = call, ""
        self.returned: Any = None
        self.outputs: Any = None
        self.gradients: dict[str, torch.Tensor] = {}
        self._subject: Any = None
        self._arguments = call

    def ready(self, subject: Any, gradients: bool, float64: bool) -> partial[Any]:
        """Return the call of a subject, to be made."""

        def given(tensor: torch.Tensor) -> torch.Tensor:
            tensor = _doubled(tensor) if float64 else tensor
            can_have_gradient = gradients and (tensor.is_floating_point() or tensor.is_complex())
            return tensor.detach().requires_grad_() if can_have_gradient else tensor

        self._subject, self._arguments = subject, self.call.map(given)
        return partial(subject, *self._arguments.args, **self._arguments.kwargs)

    def take(self, returned: Any, gradients: bool) -> None:
        """Keep the returned value, with a copy; compute gradients."""
        self.returned = returned
        self.outputs = map_tensors(_copied, returned)
        if gradients:
            self.gradients = dict(_gradients(returned, self._arguments, self._subject))
        self._subject = None

    def reply(self, state: Mapping[str, Any]) -> dict[str, Any]:
        if self.error:
            return {"error": self.error}
        inputs = [leaf for _, leaf in leaves((self.call.args, self.call.kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [(path, leaf) for path, leaf in leaves(self.returned) if isinstance(leaf, torch.Tensor)]
        return {
            "outputs": self.outputs,
            "is_kept": _is_same(self.returned, self.outputs),
            "structure": describe(self.returned),
            "gradients": self.gradients,
            "inputs": [hashlib.sha256(elements(tensor)).hexdigest() for tensor in inputs],
            "state": dict(state),
            "aliases": tuple(
                f"output{path} and input {number}"
                for path, leaf in outputs
                for number, tensor in enumerate(inputs)
                if leaf.layout is tensor.layout is torch.strided and _memory_of(leaf) == _memory_of(tensor) != 0
            ),
            "strange": tuple(
                sorted({type(leaf).__name__ for _, leaf in outputs if type(leaf) not in (torch.Tensor, nn.Parameter)})
            ),
        }


def _is_same(returned: Any, outputs: Any) -> bool:
    pairs = zip(leaves(returned), leaves(outputs), strict=True)
    return all(not isinstance(own, torch.Tensor) or elements(now) == elements(own) for (_, now), (_, own) in pairs)


def _memory_of(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except Exception:  # tensor subclasses may have no storage
        return 0


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain copy of a tensor, so that a lazy subclass has to compute its elements."""
    return torch.clone(tensor.detach()).as_subclass(torch.Tensor)


def _gradients(returned: Any, arguments: Arguments, subject: Any) -> Iterator[tuple[str, torch.Tensor]]:
    tensors = [leaf for _, leaf in leaves(returned) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    outputs = [torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf for leaf in tensors]
    sources = {
        f"input{path}": leaf
        for path, leaf in leaves((arguments.args, arguments.kwargs))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    }
    if isinstance(subject, nn.Module):
        sources |= {name: parameter for name, parameter in subject.named_parameters() if parameter.requires_grad}
    if not outputs or not sources:
        return
    weights = [
        (torch.arange(each.numel(), dtype=each.dtype, device=each.device) * _WEIGHT).cos().reshape(each.shape)
        for each in outputs
    ]
    total = sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True))
    gradients = torch.autograd.grad(total, list(sources.values()), allow_unused=True)  # type: ignore[arg-type]
    for name, gradient in zip(sources, gradients, strict=True):
        if gradient is not None:
            yield name, gradient


def _error_text(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({last[0].filename.rpartition('/')[2]}:{last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}{place}"

"""``Auto``: the choice of the fastest backend for a program, its inputs and the number of threads, by measurement."""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fx.argument_types import checked
from fx.arguments import shown
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.backend import get_backend, list_backends
from fx.pipelines.contract import close
from fx.simulation.devices import this_machine, write_json

AUTO = "auto"
"""The name of a backend that requests the fastest one."""
_YARDSTICK = "torch.compile"
_ERROR_FLOOR = 4.0
"""The error that is allowed where eager has none by luck, in ulp of the largest element."""
_LEAST_GAIN = 1.01
"""The speed-up that the interval must exceed: two copies of one program may differ by almost as much."""
_ROUNDS = (7, 31)
"""The least and the most rounds. The median of seven lies between their extremes with a confidence of 98 %."""
_SHORTEST_SAMPLE = 2e-3
"""The seconds of a sample; short calls are repeated to fill it."""
_BUDGET = 20.0
"""The seconds of rounds after which there are no further ones."""
_TAIL = 0.025
"""The probability that the median lies below the interval, and that it lies above."""


@dataclass(frozen=True, slots=True)
class BackendTrial:
    """The measurement of one backend, or the reason why there is none."""

    name: str
    """The backend, or ``torch.compile``."""
    speedup: float | None = None
    """The median of the ratios of eager's time to that of the lowered program, in rounds; ``None`` if not measured."""
    interval: tuple[float, float] | None = None
    """The 95 % interval of the median."""
    reason: str | None = None
    """The reason why it was not measured: not available, it takes no operation, or its outputs break the contract."""

    @property
    def is_faster(self) -> bool:
        """True if the interval shows that the lowered program is faster than eager Python."""
        return self.interval is not None and self.interval[0] > _LEAST_GAIN

    def __str__(self) -> str:
        if self.speedup is None or self.interval is None:
            return f"{self.name}: {self.reason}"
        return f"{self.name} {self.speedup:.2f} ({self.interval[0]:.2f} to {self.interval[1]:.2f})"


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The chosen backend, and the measurements of all. Printing it gives one line."""

    backend: str | None
    """The fastest backend; ``None`` if none was shown to be faster than eager Python."""
    trials: tuple[BackendTrial, ...]
    """The measurements, the timed backends first."""
    threads: int
    """PyTorch's number of threads."""
    is_remembered: bool = False
    """Whether the times come from an earlier lowering of an equal program, not from this one."""

    def __str__(self) -> str:
        chosen = "the program is unchanged, as no backend is faster" if self.backend is None else self.backend
        threads = f"{self.threads} thread{'s' if self.threads != 1 else ''}"
        tried = "; ".join(map(str, self.trials)) or "no backend is registered"
        origin = ", remembered" if self.is_remembered else ""
        return f"auto: {chosen}; times over eager with {threads}{origin}: {tried}"


_remembered: dict[str, BackendChoice] = {}
"""The choices of this process, by the digest of the problem."""


@checked(LoweringError)
@dataclass(frozen=True, slots=True)
class Auto:
    """The fastest of several backends, in place of one: ``fx.lower(program, Auto(), inputs)``.

    ``"auto"`` is the same as ``Auto()``.
    """

    backends: tuple[str, ...] = ()
    """The names of the backends to try; by default all registered ones."""
    file: str | Path | None = None
    """A file that keeps choices for later processes on this machine; without it, only this process remembers them."""
    yardstick: bool = False
    """Whether ``torch.compile`` is timed as well, which may take minutes. It is never chosen."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "backends", tuple(self.backends))
        for name in self.backends:
            get_backend(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the backends that it tries."""
        return self.backends or tuple(list_backends())

    @property
    def available(self) -> tuple[str, ...]:
        """The names of those that can build on this machine."""
        return tuple(name for name in self.names if get_backend(name).why_unavailable() is None)

    def choose(
        self,
        program: GraphModule,
        inputs: Sequence[Any],
        lowered_to: Callable[[str], GraphModule],
        settings: object = (),
    ) -> tuple[GraphModule, BackendChoice]:
        """Return the program lowered to the fastest backend, or ``program`` itself, and the choice.

        Args:
            program: the program. It runs on copies of ``inputs``, without gradients.
            inputs: the arguments of a typical call.
            lowered_to: returns the program lowered to the backend of a name, or ``program`` if that takes nothing.
            settings: all else that decides what ``lowered_to`` returns; its ``repr`` is compared.

        Raises:
            LoweringError: the program fails on ``inputs``.
        """
        key, race = self._digest(program, inputs, settings), _Race(program, inputs)
        choice = _remembered.get(key) or _read(self.file).get(key)
        if choice is not None:
            choice = replace(choice, is_remembered=True)
            if choice.backend is None:
                return program, choice
            if choice.backend in self.available:
                lowered, reason = race.qualified(choice.backend, lowered_to)
                if reason is None:
                    return lowered, choice
        programs = {name: race.qualified(name, lowered_to) for name in self.names}
        timed: dict[str, Callable[..., Any]] = {name: each for name, (each, why) in programs.items() if why is None}
        trials = [BackendTrial(name, reason=why) for name, (_, why) in programs.items() if why is not None]
        if self.yardstick:
            compiled = race.compiled()
            if isinstance(compiled, str):
                trials.append(BackendTrial(_YARDSTICK, reason=compiled))
            else:
                timed[_YARDSTICK] = compiled
        trials = [*race.timed(timed), *trials]
        faster = [trial for trial in trials if trial.is_faster and trial.name != _YARDSTICK]
        best = max(faster, key=lambda trial: trial.speedup or 0.0, default=None)
        choice = BackendChoice(None if best is None else best.name, tuple(trials), torch.get_num_threads())
        _remembered[key] = choice
        if self.file is not None:
            _write(self.file, key, choice)
        return program if best is None else programs[best.name][0], choice

    def _digest(self, program: GraphModule, inputs: Sequence[Any], settings: object) -> str:
        """Return a digest of everything that the times depend on."""
        state = [(name, tensor.shape, tensor.dtype) for name, tensor in program.state_dict().items()]
        kinds = [
            (value.shape, value.stride(), value.dtype, value.device) if isinstance(value, Tensor) else value
            for value in tree_leaves(list(inputs))
        ]
        tried = (self.names, self.available, self.yardstick)
        problem = program.code, str(program), state, kinds, this_machine(), tried, settings
        return hashlib.sha256(repr(problem).encode()).hexdigest()


class _Race:
    """A program and its inputs, on which lowered programs are compared with it and timed in turns."""

    def __init__(self, program: GraphModule, inputs: Sequence[Any]) -> None:
        self._program = program
        self._inputs = tuple(inputs)
        self._eager: list[Any] = []
        self._best: list[Any] = []
        self._has_run = False
        self._why_not: str | None = None

    def qualified(self, name: str, lowered_to: Callable[[str], GraphModule]) -> tuple[GraphModule, str | None]:
        """Return the program lowered to a backend, and the reason why it cannot be chosen, if there is one."""
        program = self._program
        if (why := get_backend(name).why_unavailable()) is not None:
            return program, f"not available: {_first_line(why)}"
        if not self._has_run:
            self._why_not, self._has_run = self._run_eager(), True
        if self._why_not is not None:
            return program, self._why_not
        try:
            lowered = lowered_to(name)
            if lowered is program:
                return program, "it takes no operation"
            outputs = self._outputs(lowered)
        except Exception as error:
            return program, f"{type(error).__name__}: {_first_line(error)}"
        return lowered, _why_broken(self._best, self._eager, outputs)

    def compiled(self) -> Callable[..., Any] | str:
        """Return the program compiled by ``torch.compile``, or why that fails."""
        try:
            compiled: Any = torch.compile(copy.deepcopy(self._program))
            with torch.no_grad():
                compiled(*self._copied())
        except Exception as error:
            return f"{type(error).__name__}: {_first_line(error)}"
        return compiled

    def timed(self, programs: Mapping[str, Callable[..., Any]]) -> list[BackendTrial]:
        """Time the programs in turns with eager Python, and return a trial for each."""
        if not programs:
            return []
        runs = [self._program, *programs.values()]
        seconds: list[list[float]] = [[] for _ in runs]
        inputs = self._copied()
        collects = gc.isenabled()
        gc.disable()
        try:
            with torch.no_grad():
                longest = min(self._seconds(runs[0], inputs, 1) for _ in range(2))
                repeats = max(1, math.ceil(_SHORTEST_SAMPLE / max(longest, 1e-7)))
                for run in runs:
                    self._seconds(run, inputs, 1)
                for number in range(_ROUNDS[1]):
                    if number >= _ROUNDS[0] and sum(map(sum, seconds)) * repeats > _BUDGET:
                        break
                    order = [(number + place) % len(runs) for place in range(len(runs))]
                    for place in order if number % 2 else reversed(order):
                        seconds[place].append(self._seconds(runs[place], inputs, repeats))
        finally:
            if collects:
                gc.enable()
        return [_trial(name, seconds[0], own) for name, own in zip(programs, seconds[1:], strict=True)]

    def _seconds(self, run: Callable[..., Any], inputs: tuple[Any, ...], repeats: int) -> float:
        # with one thread, measure the processor time of this process, which includes a backend's own threads
        is_on_gpu = any(value.is_cuda for value in tree_leaves(inputs) if _is_tensor(value))
        clock = time.process_time if torch.get_num_threads() == 1 and not is_on_gpu else time.perf_counter
        start = clock()
        for _ in range(repeats):
            run(*inputs)
        if is_on_gpu:
            torch.cuda.synchronize()
        return (clock() - start) / repeats

    def _run_eager(self) -> str | None:
        """Run the program, also in float64; return why lowered programs cannot be compared with it."""
        program, inputs = copy.deepcopy(self._program), self._copied()
        tensors = [*program.parameters(), *program.buffers(), *filter(_is_tensor, tree_leaves(inputs))]
        versions = [tensor._version for tensor in tensors]
        try:
            with torch.no_grad():
                self._eager = _tensors(program(*inputs))
        except Exception as error:
            raise LoweringError(
                "the program fails on the example inputs",
                where=program,
                why=f"{type(error).__name__}: {_first_line(error)}",
                remedy="give example_inputs of a typical run",
            ) from error
        if versions != [tensor._version for tensor in tensors]:
            return "the program writes to its inputs or its state, so that runs cannot be compared"
        try:
            wide = tree_map(lambda value: value.double() if _is_float(value) else value, inputs)
            with torch.no_grad():
                self._best = _tensors(program.double()(*wide))
        except Exception as error:
            return f"the program does not run in float64, with which outputs are compared: {_first_line(error)}"
        return None

    def _outputs(self, program: Callable[..., Any]) -> list[Any]:
        with torch.no_grad():
            return _tensors(program(*self._copied()))

    def _copied(self) -> tuple[Any, ...]:
        return tree_map(lambda value: value.detach().clone() if _is_tensor(value) else value, self._inputs)


def _trial(name: str, eager: Sequence[float], own: Sequence[float]) -> BackendTrial:
    """Return the median of the ratios, and the order statistics between which it lies."""
    ratios = sorted(first / max(second, 1e-9) for first, second in zip(eager, own, strict=True))
    count = len(ratios)
    rank, below = 0, math.comb(count, 0) / 2**count
    while below <= _TAIL:
        rank += 1
        below += math.comb(count, rank) / 2**count
    rank = max(rank - 1, 0)
    middle = (ratios[(count - 1) // 2] + ratios[count // 2]) / 2
    return BackendTrial(name, middle, (ratios[rank], ratios[count - 1 - rank]))


def _why_broken(best: Sequence[Any], eager: Sequence[Any], actual: Sequence[Any]) -> str | None:
    """Return why outputs break the contract ``close`` in the working dtype; ``None`` if they keep it."""
    if len(actual) != len(eager):
        return "it returns another number of values"
    for wanted, own, value in zip(best, eager, actual, strict=True):
        if not _is_tensor(own):
            if type(value) is not type(own) or value != own:
                return f"it returns {shown(value)} in place of {shown(own)}"
            continue
        if not _is_tensor(value) or (value.shape, value.dtype, value.device) != (own.shape, own.dtype, own.device):
            return "it returns a tensor of another shape, dtype or device"
        if not _is_float(own):
            if not torch.equal(value, own):
                return "it returns other integers"
            continue
        if not bool((own.isfinite() | (value == own) | (value.isnan() & own.isnan())).all()):
            return "it returns other infinities or NaN"
        finite = own.isfinite() & wanted.isfinite()
        errors = [(each[finite].double() - wanted[finite].double()).abs() for each in (value, own)]
        if not errors[0].numel():
            continue
        floor = _ERROR_FLOOR * torch.finfo(own.dtype).eps * float(wanted[finite].abs().max())
        error, limit = float(errors[0].max()), max(close.error_factor * float(errors[1].max()), floor)
        if not error <= limit:
            return f"its error is {error:.2g}, and the contract close allows {limit:.2g}"
    return None


def _tensors(output: Any) -> list[Any]:
    return tree_leaves(output)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _first_line(error: object) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _read(file: str | Path | None) -> dict[str, BackendChoice]:
    if file is None or not Path(file).exists():
        return {}
    try:
        return {key: _choice_of(stored) for key, stored in json.loads(Path(file).read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise LoweringError(
            "the file of choices of backends cannot be read",
            where=str(file),
            why=f"{type(error).__name__}: {error}",
            remedy="delete it, or name another file",
        ) from error


def _choice_of(stored: Mapping[str, Any]) -> BackendChoice:
    trials = [
        BackendTrial(trial["name"], trial["speedup"], trial["interval"] and tuple(trial["interval"]), trial["reason"])
        for trial in stored["trials"]
    ]
    return BackendChoice(stored["backend"], tuple(trials), stored["threads"])


def _write(file: str | Path, key: str, choice: BackendChoice) -> None:
    choices = {**_read(file), key: choice}
    write_json(Path(file), {name: asdict(each) for name, each in choices.items()})

"""Interrupts captures and passes with exceptions at random moments, and prints the objects that changed.

    make interrupts

Each attempt starts some work, and raises an unexpected exception in it, from a handler of signals or from another
thread. Then it inspects the process, runs the models, and captures them again: all must be as if nothing had happened.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import ctypes
import faulthandler
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from math import ceil
from typing import Any

import torch
import torch.fx
from torch import nn

import fx
from fx.capture import patching
from fx.interop import adapt
from fx.pipelines.registered_passes import get_pass
from pytest_fx import check_pass
from pytest_fx.harness.process import ProcessState


class Interruption(KeyboardInterrupt):
    """An exception that no code expects."""


@fx.wrap
def gate(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def scale(x: Any, by: float) -> Any:
    return x * by


fx.wrap("scale")
fx.wrap("len")


class Gated(nn.Module):
    """Functions that are leaves, and a function of ``math``."""

    def forward(self, x: Any) -> Any:
        return gate(x) + scale(x, ceil(1.5)) * len(x) + ceil(x.shape[0] / 2)


class Counting(nn.Module):
    """A buffer that is written to, and read thereafter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        self.count.copy_(x.sum().reshape(1))
        y = self.linear(x) * self.count
        return y + torch.relu(self.count)


class Remembering(nn.Module):
    """Attributes that are assigned while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.last = None
        self.calls = 0
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.last = self.block(x)
        return self.last + self.calls * 0


class Nested(nn.Module):
    """A capture inside of the capture, and modules in modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Gated()
        self.counting = Counting()

    def forward(self, x: Any) -> Any:
        count = len(fx.symbolic_trace(self.inner).graph.nodes)
        return self.counting(self.inner(x)) + count


def make_models() -> dict[str, nn.Module]:
    """The models that are captured, by name."""
    torch.manual_seed(0)
    models: dict[str, nn.Module] = {
        "gated": Gated(),
        "counting": Counting(),
        "remembering": Remembering(),
        "nested": Nested(),
        "convolutions": nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sigmoid()),
    }
    models["generated"] = fx.symbolic_trace(Gated())
    models["generated"](X)  # compiled
    return {name: model.eval() for name, model in models.items()}


X = torch.linspace(-1, 2, 12).reshape(3, 4)
MODELS = make_models()


class Leafless(fx.Tracer):
    """Captures through all modules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


REUSED = Leafless()
LEAFLESS = {"gated", "convolutions"}
"""Models that are captured with it, too."""


def captured(name: str) -> list[Any]:
    """Return the results of capturing a model, in a form that can be compared."""
    traced = fx.symbolic_trace(MODELS[name])
    parts = [traced.code, answer(traced)]
    if name in LEAFLESS:
        leafless = REUSED.trace(MODELS[name])
        parts += [leafless.python_code("self").src, answer(fx.GraphModule(REUSED.root, leafless))]
    return parts


def answer(model: nn.Module) -> list[float]:
    for buffer in model.buffers():
        if buffer.shape == (1,):
            buffer.zero_()
    return model(X).detach().flatten().tolist()


def retraced_in_torch(program: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A pass written for torch.fx that captures."""
    return torch.fx.symbolic_trace(program)


def fused_in_torch(program: torch.fx.GraphModule) -> None:
    for node in program.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.sigmoid
    program.recompile()


def capture_then(pass_: Any, name: str) -> Callable[[], object]:
    return lambda: pass_(fx.symbolic_trace(MODELS[name]))


def checked() -> None:
    check_pass(get_pass("remove-identities"), max_examples=2, min_changed=0, seed=0)


WORKS: dict[str, Callable[[], object]] = {
    **{f"capture {name}": lambda name=name: fx.symbolic_trace(MODELS[name]) for name in MODELS},
    **{f"run {name}": lambda name=name: captured(name) for name in MODELS},
    **{
        f"{name} of {model}": capture_then(get_pass(name), model)
        for name, model in (
            *(("canonicalize", "convolutions"), ("fuse-conv-bn", "convolutions"), ("fold-constants", "counting")),
            *(("eliminate-common-subexpressions", "gated"), ("remove-dead-code", "gated")),
        )
    },
    "copy": capture_then(copy.deepcopy, "convolutions"),
    "adapted": capture_then(adapt(fused_in_torch), "counting"),
    "adapted capture": capture_then(adapt(retraced_in_torch), "convolutions"),
    "check_pass": checked,
}
"""The work that is interrupted, by name."""


WITH_TORCH = {"adapted capture", "check_pass"}
"""Jobs that capture with torch.fx, which other threads mistake for their own capture."""


class Interrupter:
    """Raises :class:`Interruption` in the main thread, a few times, after a delay and then soon again."""

    def __init__(self, source: str, delays: list[float]) -> None:
        self.source = source
        self.left = list(delays)
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        if self.source == "signal":
            CURRENT[:] = [self]
            signal.setitimer(signal.ITIMER_REAL, self.left[0])
        else:
            self.thread = threading.Thread(target=self._send, args=(threading.get_ident(),))
            self.thread.start()

    def handle(self) -> None:
        self.left.pop(0)
        if self.left:
            signal.setitimer(signal.ITIMER_REAL, self.left[0])
        raise Interruption

    def _send(self, thread: int) -> None:
        while self.left:
            until = time.perf_counter() + self.left[0]
            while time.perf_counter() < until:
                time.sleep(0)
            self.left.pop(0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interruption))

    def finish(self) -> None:
        """Wait until it has interrupted as often as it was to."""
        while True:
            try:
                while self.left or (self.thread is not None and self.thread.is_alive()):
                    time.sleep(0.0001)
                return
            except Interruption:
                continue


CURRENT: list[Interrupter] = []
"""The interrupter that gets the next signal."""


def handle(number: int, frame: object) -> None:
    """Raise, whatever runs."""
    CURRENT[0].handle()


def interrupt(work: Callable[[], object], interrupter: Interrupter) -> bool:
    """Return whether the work was interrupted, and had not ended yet."""
    done = False
    finished = False
    try:
        interrupter.start()
        work()
        done = True
    except BaseException as error:
        # An interruption may turn into another exception, or corrupt counters that Hypothesis needs in its next run.
        in_hypothesis = "/hypothesis/" in traceback.extract_tb(error.__traceback__)[-1].filename
        if interrupter.left and not isinstance(error, Interruption) and not in_hypothesis:
            raise
    while not finished:
        try:
            interrupter.finish()
            finished = True
        except Interruption:
            continue
    return not done


class Neighbour:
    """A second thread that captures and runs models all the time."""

    def __init__(self) -> None:
        self.stopped = False
        self.failures: list[str] = []
        self.thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self.stopped:
            try:
                if fx.symbolic_trace(NEIGHBOUR).code != NEIGHBOUR_CODE or NEIGHBOUR(X).tolist() != NEIGHBOUR_ANSWER:
                    self.failures.append("another thread was disturbed")
                if fx.is_fx_tracing():
                    self.failures.append("another thread was left tracing")
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.failures.append(f"another thread failed: {error!r:.100} in {where.name}, line {where.lineno}")

    def __enter__(self) -> Neighbour:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped = True
        self.thread.join()


NEIGHBOUR = nn.Sequential(Gated(), nn.Linear(4, 4), nn.ReLU())
NEIGHBOUR_CODE = fx.symbolic_trace(NEIGHBOUR).code
NEIGHBOUR_ANSWER = NEIGHBOUR(X).tolist()


def held() -> dict[str, Any]:
    """Return the objects that a capture changes temporarily, and the contents of models."""
    contents: dict[str, Any] = {
        "nn.Module": (vars(nn.Module)["__call__"], vars(nn.Module)["__getattr__"]),
        "globals": [globals().get(name) for name in ("gate", "scale", "len", "ceil")],
        "math": [value for value in vars(math).values() if callable(value)],
        "modes": torch._C._len_torch_function_stack(),
        "tracing": fx.is_fx_tracing(),
        "tracer": REUSED.proxy_buffer_attributes,
        "meta": fx.traceback.get_current_meta(),
    }
    for name, model in MODELS.items():
        for path, module in model.named_modules():
            own = {key: id(value) for key, value in vars(module).items() if key != "calls" and key[:6] != "_code_"}
            entries = {key: id(value) for key, value in (*module._buffers.items(), *module._parameters.items())}
            contents[f"attributes of {name}"] = (own, entries, list(module._modules), path)
    return contents


def differences(before: dict[str, Any], state: ProcessState) -> list[str]:
    after = held()
    return [*(name for name, value in before.items() if after[name] != value), *state.changes()]


ATTEMPTS_BESIDE = 8
"""One attempt in so many has another thread beside it."""


class Attempts:
    """Yield numbered attempts; the seed and the number determine each of them."""

    def __init__(self, seed: int, interruptions: int) -> None:
        self.seed = seed
        self.interruptions = interruptions
        for _ in range(2):
            self.seconds = {name: seconds_of(work) for name, work in WORKS.items()}
        self.expected = {name: captured(name) for name in MODELS}
        self.answers = {name: answer(model) for name, model in MODELS.items()}

    def make(self, number: int) -> tuple[str, bool, list[str]]:
        """Return the work, True if it was interrupted, and the objects that changed."""
        drawn = random.Random(self.seed * 1_000_003 + number)
        names = list(WORKS)
        name = names[number % len(names)]
        seconds = self.seconds[name]
        delay = drawn.uniform(0, 1.05) if drawn.random() < 0.5 else drawn.uniform(0.7, 1.1)
        more = [drawn.uniform(1e-6, 2e-4) for _ in range(self.interruptions - 1)]
        # CPython gives a starting thread the identity of its starter, and so the exception meant for the starter
        source = "signal" if name == "check_pass" else drawn.choice(("signal", "thread"))
        interrupter = Interrupter(source, [max(1e-6, delay * seconds), *more])
        beside = drawn.randrange(ATTEMPTS_BESIDE) == 0 and name not in WITH_TORCH
        before, state = held(), ProcessState.now()
        with Neighbour() if beside else contextlib.nullcontext() as neighbour:
            interrupted = interrupt(WORKS[name], interrupter)
            wrong = [] if beside else [f"at once: {what}" for what in differences(before, state)]
        wrong += neighbour.failures if neighbour else []
        wrong += self.wrong_afterwards({name.split()[-1], *drawn.sample(sorted(MODELS), 2)} & MODELS.keys())
        wrong += [f"after the next capture: {what}" for what in differences(before, state)]
        if patching._replacements:
            wrong.append("something is held replaced")
        return name, interrupted, wrong

    def wrong_afterwards(self, names: set[str]) -> list[str]:
        wrong: list[str] = []
        for name, model in MODELS.items():
            try:
                if answer(model) != self.answers[name]:
                    wrong.append(f"run: another answer of {name}")
            except Exception as error:
                wrong.append(f"run: {name} raises {type(error).__name__}")
        for name in sorted(names):
            try:
                if captured(name) != self.expected[name]:
                    wrong.append(f"captured: another program of {name}")
            except Exception as error:
                wrong.append(f"captured: {name} raises {type(error).__name__}")
        return wrong


def seconds_of(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def run(attempts: Attempts, first: int, last: int, write: int) -> None:
    """Make attempts until the first fault, and report each; later ones would repeat the fault."""
    sys.setswitchinterval(1e-4)
    signal.signal(signal.SIGALRM, handle)
    sys.unraisablehook = lambda raised: None  # interruptions in finalizers, which end there
    for number in range(first, last):
        faulthandler.dump_traceback_later(120, exit=True)
        try:
            name, interrupted, wrong = attempts.make(number)
        except BaseException:
            name, interrupted, wrong = "?", True, [traceback.format_exc()[-2000:]]
        os.write(write, json.dumps([number, name, interrupted, wrong]).encode() + b"\n")
        if wrong:
            break


def main() -> int:
    """Make attempts, in a new process after each survivor, and print how many there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--interruptions", type=int, default=1, help="how often each work is interrupted")
    options = parser.parse_args()
    os.chdir(tempfile.mkdtemp())
    torch.set_num_threads(1)  # children have no other threads, and would wait for them
    attempts = Attempts(options.seed, options.interruptions)
    interrupted = survivors = number = 0
    kinds: collections.Counter[str] = collections.Counter()
    while number < options.attempts:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(read)
                run(attempts, number, options.attempts, write)
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        with open(read) as lines:
            reports = [json.loads(line) for line in lines]
        _, status = os.waitpid(child, 0)
        for number, name, was_interrupted, wrong in reports:
            interrupted += was_interrupted
            survivors += bool(wrong)
            for kind in sorted({re.sub(r"math\.\w+", "math", what.split(" of ")[0])[:90] for what in wrong}):
                kinds[kind] += 1
            if wrong:
                print(number, name, wrong[:4], flush=True)
        number = reports[-1][0] + 1 if reports else number + 1
        if status:
            survivors += 1
            number += 1
            print(f"attempt {number}: the process ended with {status}", flush=True)
    print(f"{options.attempts} attempts, {interrupted} interrupted, {survivors} survivors")
    for kind, count in kinds.most_common():
        print(f"{count:6}  {kind}")
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())

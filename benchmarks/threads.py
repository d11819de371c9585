"""Programs timed under another number of threads than they were made for, relative to ones made for that number.

Weights are packed and kernels are chosen for a number of threads. Under another number, a program has to be as fast as
one made for it: a ratio of 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import fx
import fx.lowering
from fx.quantize import convert, prepare
from model_zoo import get_model

from .paired import Contender, Table, parse

COLUMNS = ("made under it", "made under another", "there and back")


def makers(module: Any, inputs: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Return a function that makes a program, by the name of its kernels or backend."""

    def quantized() -> Any:
        prepared = prepare(fx.symbolic_trace(module))
        prepared(*inputs)
        return convert(prepared)

    by_backend: dict[str, Callable[[], Any]] = {"8 bits": quantized}
    for name in fx.lowering.list_backends():
        if (why := fx.lowering.get_backend(name).why_unavailable()) is None:
            by_backend[name] = lambda name=name: fx.lower(fx.symbolic_trace(module), name, inputs)
        else:
            print(f"{name} is not measured: {why}", flush=True)
    return by_backend


def made_under(make: Callable[[], Any], inputs: tuple[Any, ...], *numbers: int) -> Any:
    """Return a program that was made under the first number of threads, and called under each."""
    torch.set_num_threads(numbers[0])
    program = make()
    for number in numbers:
        torch.set_num_threads(number)
        program(*inputs)
        program(*inputs)
    return program


def run(name: str, batch: int, numbers: tuple[int, int], rounds: int) -> None:
    """Print a row for each backend and each of the two numbers of threads."""
    table = Table(*COLUMNS)
    model = get_model(name)
    module, inputs = model.build().eval(), tuple(model.example_inputs(batch))
    for backend, make in makers(module, inputs).items():
        for own, other in (numbers, numbers[::-1]):
            orders = dict(zip(COLUMNS, ((own,), (other, own), (own, other, own)), strict=True))
            by_order = {label: made_under(make, inputs, *order) for label, order in orders.items()}
            torch.set_num_threads(own)
            contenders = {
                label: Contender(lambda _, program=each_program: program(*inputs))
                for label, each_program in by_order.items()
            }
            # OpenVINO computes in its own threads, even with one
            clock = time.thread_time if own == 1 and backend != "openvino" else time.perf_counter
            row = f"{name}, batch {batch}, {backend}, {own} threads (another: {other})"
            table.measure(row, contenders, rounds=rounds, goal="1", clock=clock)


def main() -> None:
    """Print the table."""
    model = {"help": "of the zoo; by default resnet50"}
    options = parse(__doc__, rounds=15, model=model, batch={"type": int, "default": 1, "help": "samples (default 1)"})
    name = options.model or ("resnet_tiny" if options.quick else "resnet50")
    with torch.no_grad():
        run(name, options.batch, (1, 2), options.rounds)


if __name__ == "__main__":
    main()

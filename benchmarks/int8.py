"""Programs on 8-bit integers compared with float32 and the engines of torch.ao, in one alternating run (section 6.2.1).

``ONEDNN_MAX_CPU_ISA`` and ``FBGEMM_ENABLE_INSTRUCTIONS`` (for example, AVX2) imitate other processors. Below each table
is the ratio of our fastest program's time to torch.ao's fastest, round by round; below 1 ours is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import fx
from fx.quantize import Choice, QuantizationScheme, convert, kernels_used, prepare
from model_zoo import get_model
from pytest_fx.tables.peers import ao_convert, ao_prepare

from .paired import Table, each, median_ratio, parse

CALIBRATION = 16
STEPS = 20
HIDDEN = 512
OURS = {
    "static": Choice(),
    "static, 7 bits": Choice(activation_bits=7),
    "dynamic": Choice(precision="dynamic"),
    "dynamic, 7 bits": Choice(precision="dynamic", activation_bits=7),
}
THEIRS = {
    "ao fbgemm": ("fbgemm", False), "ao onednn": ("onednn", False), "ao x86": ("x86", False),
    "ao dynamic": ("fbgemm", True), "ao onednn dynamic": ("onednn", True),
}  # fmt: skip


class Recurrent(nn.Module):
    """Two recurrent layers over sequences; torch.ao quantizes them only dynamically."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(HIDDEN, HIDDEN, num_layers=2, batch_first=True)

    def forward(self, sequences):
        """Return the output for each step."""
        return self.layer(sequences)[0]


RECURRENT: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}


def subject(name: str) -> tuple[nn.Module, Callable[..., Any]]:
    """Return a model, and a function that makes its inputs for a number of samples."""
    if name in RECURRENT:
        return Recurrent(RECURRENT[name]).eval(), lambda batch, seed=0: (
            torch.randn(batch, STEPS, HIDDEN, generator=torch.Generator().manual_seed(seed)),
        )
    model = get_model(name)
    return model.build().eval(), model.example_inputs


def programs(module: nn.Module, data: tuple[Any, ...]) -> dict[str, Any]:
    """Return the float model and its quantized programs by name."""
    by_name: dict[str, Any] = {"eager": module}
    with torch.no_grad():
        for name, choice in OURS.items():
            prepared = prepare(fx.symbolic_trace(module), QuantizationScheme(choice))
            prepared(*data)
            by_name[name] = convert(prepared)
        for name, (engine, dynamic) in THEIRS.items():
            try:
                prepared = ao_prepare(module, data, engine, dynamic=dynamic)
                prepared(*data)
                by_name[name] = ao_convert(prepared, engine)
                by_name[name](*data)
            except Exception as error:  # torch.ao does not support the model
                by_name.pop(name, None)
                print(f"{name} is not measured: {type(error).__name__}: {str(error)[:80]}", flush=True)
    return by_name


def decibels(program: Any, module: nn.Module, inputs: tuple[Any, ...]) -> float:
    """Return the signal-to-quantization-noise ratio in dB."""
    wanted = module(*inputs)
    return float(10 * torch.log10(wanted.square().sum() / (wanted - program(*inputs)).square().sum()))


def run_model(name: str, batches: list[int], rounds: int) -> None:
    module, example_inputs = subject(name)
    by_name = programs(module, tuple(example_inputs(CALIBRATION, seed=1)))
    table = Table(*by_name)
    threads = torch.get_num_threads()
    clock = time.thread_time if threads == 1 else time.perf_counter  # excludes other processes
    for batch in batches:
        inputs = tuple(example_inputs(batch))
        with torch.no_grad():
            contenders = each(lambda program, inputs=inputs: program(*inputs), by_name)
            row = f"{name}, batch {batch}, {threads} threads"
            measurement = table.measure(row, contenders, rounds=rounds, clock=clock)
            accuracy = {
                label: round(decibels(each_program, module, inputs), 1)
                for label, each_program in by_name.items()
                if each_program is not module
            }
        theirs = [measurement.seconds[label] for label in THEIRS if label in by_name]
        ours = min((measurement.seconds[label] for label in OURS), key=np.median)
        best = list(np.min(theirs, axis=0))
        print(f"  ours by the best of torch.ao: {median_ratio(ours, best)}; SQNR in dB: {accuracy}")
        print(f"  kernels so far: {', '.join(str(kernels_used(by_name[label])) for label in OURS)}", flush=True)


def main() -> None:
    """Print the tables."""
    model = {"action": "append", "help": "of the zoo, lstm or gru (repeatable); by default deep_recommender"}
    batch = {"type": int, "action": "append", "help": "repeatable; by default 1, 16, 64 and 256"}
    options = parse(__doc__, rounds=7, model=model, batch=batch)
    for name in options.model or (["deep_recommender_small"] if options.quick else ["deep_recommender"]):
        run_model(name, options.batch or ([1, 16] if options.quick else [1, 16, 64, 256]), options.rounds)


if __name__ == "__main__":
    main()

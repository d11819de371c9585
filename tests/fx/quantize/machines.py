"""The tests that depend on kernels, on each kind of processor that this one can imitate.

``make machines`` limits the instructions that oneDNN, FBGEMM and PyTorch use. Under each limit it measures the accuracy
and speed of networks in 8 bits, for ``results/machines.md``, and runs the tests of quantization and lowering. ``python
tests/fx/quantize/machines.py accuracy`` prints, as JSON, the accuracy of two networks in 8 bits on this processor, and
their kernels. With a folder as the next argument, the quantized programs are loaded from there, or saved to it if it
has none. ``speed`` prints the speed-up of models in 8 bits. ``seven`` prints the errors of the largest integers of
layers whose activations have 7 bits.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

LIMITS: dict[str, dict[str, str]] = {
    "AVX2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2", "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
    },
    "AVX2, FBGEMM as it is": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX2_VNNI": {
        "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI", "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
    },
    "AVX512_CORE": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "FBGEMM_ENABLE_INSTRUCTIONS": "AVX512"},
    "AVX512_CORE_VNNI": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "FBGEMM_ENABLE_INSTRUCTIONS": "AVX512_E1"},
    "AVX512_CORE_AMX": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"},
    "SSE41": {"ONEDNN_MAX_CPU_ISA": "SSE41", "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "default"},
}  # fmt: skip
"""Variables of the environment by the instructions that they allow; a processor with fewer uses its own."""
TESTS = ("tests/fx/quantize", "tests/fx/lowering", "fx/quantize", "fx/lowering")
RESULT = Path("results/machines.md")
MODELS = {"deep_recommender": 16, "resnet50": 1, "transformer_encoder": 8}
"""Models whose speed is measured, with the batch."""
ROUNDS = 20
"""Calls of each program that are timed."""
LEFT_OUT = ("--ignore-glob=*openvino*",)
"""Under a limit OpenVINO mixes in kernels that query the processor itself, and ends the process in some (2026.4)."""


def accuracy(folder: Path | None = None) -> dict[str, Any]:
    """Signal-to-quantization-noise ratios of two networks, in decibels, with all kernels they ran on.

    Args:
        folder: where the quantized programs are, or are put after they ran if there are none.
    """
    import torch
    from torch import nn

    import fx
    from fx.quantize import QuantizedLayer, convert, prepare

    figures: dict[str, Any] = {}
    networks = {
        "perceptron": (nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)), (32, 256)),
        "convolutions": (nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3)), (4, 16, 12, 12)),
    }
    for name, (network, shape) in networks.items():
        torch.manual_seed(0)
        for parameter in network.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)
        data = torch.randn(shape)
        prepared = prepare(fx.symbolic_trace(network.eval()))
        with torch.no_grad():
            expected = prepared(data)
            path = None if folder is None else folder / f"{name}.fx"
            is_saved = path is not None and path.exists()
            program = fx.load(path) if is_saved else convert(prepared)
            noise = (program(data) - expected).square().mean()
        if path is not None and not is_saved:
            fx.save(program, path)
        layers = [layer for layer in program.modules() if isinstance(layer, QuantizedLayer)]
        figures[name] = round(float(10 * torch.log10(expected.square().mean() / noise)), 2)
        figures[f"{name} on"] = sorted({kernel for layer in layers for kernel in layer.kernels.values()})
    return figures


def speed() -> dict[str, Any]:
    """The speed-ups of models in 8 bits over eager in float32, on one thread: median, low and high of 95 %."""
    import torch

    import fx
    from fx.quantize import convert, prepare
    from model_zoo import get_model
    from pytest_fx.tables.pairs import time_rounds

    speedups: dict[str, Any] = {}
    for name, batch in MODELS.items():
        model = get_model(name)
        module, inputs = model.build(), model.example_inputs(batch)
        with torch.no_grad():
            prepared = prepare(fx.symbolic_trace(module))
            prepared(*inputs)
            program = convert(prepared)
            calls = {"eager": partial(module, *inputs), "8 bits": partial(program, *inputs)}
            timing = time_rounds(calls, baseline="eager", rounds=ROUNDS, threads=1)["8 bits"]
        speedups[name] = [round(number, 3) for number in (timing.speedup, *timing.interval)]
    return speedups


def errors_of_seven_bits() -> dict[str, Any]:
    """Return the errors of layers with the largest weights, in parts of the largest result, and their kernels.

    They assume integers of at most 127: once all are in this range, and once one in each row or image is 255.
    """
    import torch

    from fx.quantize import QuantizedConv, QuantizedConvTranspose, QuantizedLayer, QuantizedLinear, dequantize

    layers: dict[str, tuple[QuantizedLayer, tuple[int, ...]]] = {
        "linear": (QuantizedLinear(64, 32), (8, 64)),
        **{
            f"conv{dims}": (QuantizedConv(8, 16, *[(size,) * dims for size in (3, 1, 1, 1)]), (2, 8, *[7] * dims))
            for dims in (1, 2, 3)
        },
        "transposed": (QuantizedConvTranspose(8, 16, (3, 3), (2, 2), (1, 1), (0, 0), 1, (1, 1)), (2, 8, 5, 5)),
    }
    figures: dict[str, Any] = {}
    for name, (layer, shape) in layers.items():
        sign = torch.tensor([1, -1]).repeat(len(layer.weight) // 2).view(-1, *[1] * (layer.weight.dim() - 1))
        weight = (127 * sign).expand(layer.weight.shape).to(torch.int8).contiguous()
        layer.fill(weight, layer.weight_scale, layer.bias)
        for largest in (127, 255):
            input = torch.full(shape, 127, dtype=torch.uint8)
            input[:, 3] = largest
            off = list[float]()
            for zero_point in (0, 3, 64, 127):
                expected = layer._reference(dequantize(input, 1.0, zero_point))
                most = max(1.0, float(expected.abs().max()))
                in_float = layer(input, 1.0, zero_point, input_highest=127)
                quantized = layer(input, 1.0, zero_point, most / 100, 128, input_highest=127)
                off.append(float((in_float - expected).abs().max()) / most)
                off.append(float((dequantize(quantized, most / 100, 128) - expected).abs().max()) / most - 0.005)
            figures[f"{name}, {largest}"] = max(off)
            used = sorted(kernel for use, kernel in layer.kernels.items() if use.largest == largest)
            figures[f"{name}, {largest} on"] = used
    return figures


def accuracy_under(limit: str, *folder: Path) -> dict[str, Any]:
    """Return the results of :func:`accuracy` in a process with this limit."""
    return figures_under(limit, "accuracy", *map(str, folder))


def figures_under(limit: str, *arguments: str) -> dict[str, Any]:
    """Return the figures that this file prints when it is called with ``arguments`` under this limit."""
    command, environment = [sys.executable, str(Path(__file__)), *arguments], {**os.environ, **LIMITS[limit]}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(output.stdout)


def less_accurate(limited: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """The networks that keep less under a limit than without one, or run on no kernel for integers."""
    return [
        name
        for name in ("perceptron", "convolutions")
        if not (limited[name] > 38 and abs(limited[name] - here[name]) < 0.5)
        or not limited[f"{name} on"]
        or "reference" in limited[f"{name} on"]
    ]


def page(accuracies: dict[str, dict[str, Any]], speeds: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a page of Markdown."""
    from pytest_fx.records.baseline import describe
    from pytest_fx.records.records import describe_machine

    of_models = {model: [speeds[limit][model][0] for limit in LIMITS] for model in MODELS}
    gains = ", ".join(f"{model} {min(medians):.2f} to {max(medians):.2f}" for model, medians in of_models.items())
    least = min(figures[network] for figures in accuracies.values() for network in ("perceptron", "convolutions"))
    lines = [
        "# 8 bits with the instructions of other processors",
        "",
        f"`make machines` on {describe(describe_machine())}.",
        "",
        "Variables of the environment limit the instructions that oneDNN, FBGEMM and PyTorch use. A processor with",
        "fewer uses its own. The SQNR and the kernels are those of two small networks. The speed-up of a model, with",
        f"its batch, is over eager in float32 under the same limit, on one thread: the median of {ROUNDS} pairs, with",
        "its 95 % interval.",
        "",
        f"**The SQNR is at least {least:.1f} dB under each limit; speed-ups: {gains}.**",
        "",
        "| instructions | SQNR, dB: perceptron, convolutions | kernels |"
        + "".join(f" {model}, {batch} |" for model, batch in MODELS.items()),
        "|---|---|---|" + "---|" * len(MODELS),
    ]
    for limit, figures in accuracies.items():
        kernels = ", ".join(sorted({*figures["perceptron on"], *figures["convolutions on"]}))
        cells = ["{:.2f} ({:.2f} to {:.2f})".format(*speeds[limit][model]) for model in MODELS]
        sqnr = f"{figures['perceptron']:.1f}, {figures['convolutions']:.1f}"
        lines.append(f"| {limit} | {sqnr} | {kernels} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, run the tests under each limit, and return 1 where one fails or 8 bits are less accurate."""
    from pytest_fx.records.records import write_atomically

    here = accuracy()
    accuracies = {limit: accuracy_under(limit) for limit in LIMITS}
    write_atomically(RESULT, page(accuracies, {limit: figures_under(limit, "speed") for limit in LIMITS}))
    print(f"{'instructions':22} {'perceptron':>11} {'convolutions':>13}  tests")
    status = 0
    for limit, variables in LIMITS.items():
        figures = accuracies[limit]
        options = ("-m", "", "-q", "-n", "auto", "--dist", "worksteal")
        command = [sys.executable, "-m", "pytest", *options, *LEFT_OUT, *TESTS]
        run = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        worse = less_accurate(figures, here)
        status = status or run.returncode or int(bool(worse))
        last = re.sub(r"[= ]*\n*$", "", run.stdout).rpartition("\n")[2]
        print(f"{limit:22} {figures['perceptron']:8} dB {figures['convolutions']:10} dB  {last}", flush=True)
        for network in worse:
            print(f"{network}: less accurate than without a limit, or on no kernel for integers")
        if run.returncode:
            print(run.stdout)
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == ["accuracy"]:
        print(json.dumps(accuracy(*map(Path, sys.argv[2:]))))
    elif sys.argv[1:]:
        print(json.dumps({"speed": speed, "seven": errors_of_seven_bits}[sys.argv[1]]()))
    else:
        sys.exit(main())

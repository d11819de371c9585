"""Fuse and quantize your own model, and measure the error and the speed-up of both.

``python examples/fuse_and_quantize.py`` prints a line for each program: its error relative to float32, as a
signal-to-noise ratio, and its speed-up over eager, from paired calls.
"""

from functools import partial

import torch
from torch import nn

import fx
from fx.passes import FuseConvBN
from fx.quantize import convert, prepare, report
from pytest_fx.timing.paired import time_pairs


def network() -> nn.Module:
    """Return a small convolutional network in evaluation mode, with batch norm statistics from data."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    layers(torch.randn(32, 3, 32, 32))
    return layers.eval()


def programs(model: nn.Module, data: torch.Tensor) -> dict[str, fx.GraphModule]:
    """Return the fused model, and the fused model on 8-bit integers, calibrated with ``data``."""
    captured = fx.symbolic_trace(model)
    prepared = prepare(captured, example_inputs=(data,))  # also folds batch norms
    with torch.no_grad():
        prepared(data)
    return {"fused": FuseConvBN()(captured), "quantized": convert(prepared)}


def signal_to_noise(wanted: torch.Tensor, got: torch.Tensor) -> float:
    """Return the ratio of the outputs to their error, in decibels."""
    return 20 * torch.log10(wanted.norm() / (wanted - got).norm()).item()


def main() -> None:
    model, data = network(), torch.randn(16, 3, 32, 32)
    by_name = programs(model, data)
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        for name, program in by_name.items():
            timing = time_pairs(partial(model, x), partial(program, x), rounds=20)
            low, high = timing.interval
            noise = signal_to_noise(model(x), program(x))
            print(f"{name}: {noise:.0f} dB, {timing.speedup:.2f} times as fast ({low:.2f} to {high:.2f})")
    print(report(by_name["quantized"]))


if __name__ == "__main__":
    main()

"""The behaviour of programs if torch comes without some of its kernels, as on other platforms.

``python tests/fx/quantize/missing_kernels.py PLATFORM FOLDER`` removes them before ``fx`` is imported, runs everything
that has to work without them, with the programs in FOLDER, and prints the results as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

_torch: Any = torch
_ENGINES = {"none": 0, "fbgemm": 1, "qnnpack": 2, "onednn": 3, "x86": 4}


@dataclass(frozen=True, slots=True)
class Platform:
    """The kernels that torch lacks on a platform."""

    engines: tuple[str, ...]
    """The engines of quantized tensors that it has."""
    has_onednn: bool = False
    """Whether it is built with oneDNN."""
    has_quantized_tensors: bool = True
    """Whether it has tensors that know their scale, which torch deprecates, and operations on them."""


PLATFORMS = {
    "macOS on ARM": Platform(("qnnpack",)),
    "Windows on ARM": Platform(()),
    "Linux on ARM": Platform(("qnnpack", "onednn"), has_onednn=True),
    "a torch without quantized tensors": Platform((), has_onednn=True, has_quantized_tensors=False),
}


def take_away(platform: Platform) -> None:
    """Remove the parts of torch that a platform lacks; ``fx`` must not be imported yet."""
    assert "fx" not in sys.modules
    if not platform.has_onednn:
        _torch._C._has_mkldnn = False
        for name in ("onednn", "mkldnn", "mkldnn_prepacked"):
            setattr(_torch.ops, name, _torch._ops._OpNamespace(f"missing_{name}"))
    numbers = [_ENGINES[engine] for engine in platform.engines]
    set_engine = _torch._C._set_qengine
    if numbers:
        set_engine(numbers[-1])

    def refuse(number: int) -> None:
        if number not in numbers:
            raise RuntimeError(f"quantized engine {number} is not supported")
        set_engine(number)

    _torch._C._supported_qengines = lambda: numbers
    _torch._C._set_qengine = refuse
    if not platform.has_quantized_tensors:
        torch.overrides.get_overridable_functions()  # which torch remembers, and could not list without them
        _torch.ops.quantized = _torch._ops._OpNamespace("missing_quantized")
        for name in ("quantize_per_tensor", "_empty_affine_quantized", "_make_per_channel_quantized_tensor"):
            delattr(_torch, name)


class Network(nn.Module):
    """Convolutions, a sum, pooling, functions and linear layers."""

    def __init__(self) -> None:
        """With weights from a fixed seed."""
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.pool = nn.BatchNorm2d(16), nn.MaxPool2d(2)
        self.hidden, self.last = nn.Linear(256, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        x = torch.relu(self.norm(self.first(x)))
        x = self.pool(x + torch.relu(self.second(x)))
        return self.last(nn.functional.gelu(self.hidden(x.flatten(1))))


def images() -> torch.Tensor:
    """Return the inputs that the network is tried on."""
    return torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def decibels(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Signal-to-noise ratio; 999 where there is no noise."""
    noise = (expected - actual).double().square().sum()
    return float(10 * torch.log10(expected.double().square().sum() / noise)) if noise else 999.0


def checks(folder: Path) -> dict[str, Any]:
    """Return the results of capture, passes, quantization and saved programs here."""
    import fx
    from fx.passes import FuseConvBN
    from fx.quantize import Choice, QuantizationScheme, convert, kernels_used, prepare, reference

    network, data = Network().eval(), images()
    expected = network(data)
    figures: dict[str, Any] = {"capture": decibels(expected, fx.symbolic_trace(network)(data))}
    figures["fuse-conv-bn"] = decibels(expected, FuseConvBN()(fx.symbolic_trace(network))(data))
    for precision in ("int8", "dynamic", "weight-only"):
        prepared = prepare(fx.symbolic_trace(network), QuantizationScheme(Choice(precision=precision)), [data])
        prepared(data)
        program = convert(prepared)
        figures[precision] = [decibels(expected, program(data)) for _ in range(2)]
        figures[f"{precision} reference"] = decibels(expected, reference(prepared)(data))
        figures[f"{precision} kernels"] = sorted(kernels_used(program))
    figures["loaded"] = decibels(expected, fx.load(folder / "quantized.fx")(data))
    figures["lowered elsewhere"] = decibels(expected, torch.load(folder / "lowered.pt", weights_only=False)(data))
    try:
        figures["lower"] = decibels(expected, fx.lower(fx.symbolic_trace(network), "onednn", (data,))(data))
    except fx.FxError as error:
        figures["lower"] = str(error)
    return figures


def main() -> None:
    """Print the results; those of ``suite`` include the exit status of the built-in suite."""
    platform, folder = PLATFORMS[sys.argv[1]], Path(sys.argv[2])
    take_away(platform)
    torch.set_num_threads(1)
    with torch.no_grad():
        figures = checks(folder)
    if "suite" in sys.argv:
        import pytest

        options = ["--fx-model=resnet50", "--fx-size=small", "--fx-no-timing", "-q", f"--rootdir={folder}"]
        figures["suite"] = int(pytest.main([*options, "-p", "no:cacheprovider", "-p", "no:xdist"]))
    print("\n" + json.dumps(figures))


if __name__ == "__main__":
    main()

"""The kernels that a convolution on 8-bit integers can run on (paper, section 6.2.1)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from fx.quantize.affine import Affine
from fx.quantize.kernels import engines
from fx.quantize.kernels.kernel import Kernel, LayerData, PackedLayer, as_integers
from fx.quantize.kernels.linear_kernels import ONEDNN, has_onednn


def _pack_for_engine(engine: engines.Engine, layer: LayerData, _: Sequence[int]) -> PackedLayer:
    packed = engines.pack_convolution(engine, layer.weight, layer.scale, layer.bias, layer.sizes)

    def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        assert output is not None
        return engines.convolution(as_integers(input, scale, zero_point), scale, zero_point, packed, output)

    return compute


def _pack_for_onednn(layer: LayerData, shape: Sequence[int]) -> PackedLayer:
    # The zero point only says that there is one. Images of another size than these may have the weight put into another
    # order in each call; their number makes no difference.
    weight = ONEDNN.qconv_prepack(layer.weight, layer.scale, 1.0, 1, *layer.sizes, list(shape))
    zero_points = torch.zeros(len(layer.weight), dtype=torch.int64)

    def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        target = (1.0, 0, torch.float32) if output is None else (output.scale, output.zero_point, torch.uint8)
        return ONEDNN.qconv_pointwise(
            as_integers(input, scale, zero_point), scale, zero_point, weight, layer.scale, zero_points, layer.bias,
            *layer.sizes, *target, "none", [], "",
        )  # fmt: skip

    return compute


def _engine(name: str, engine: engines.Engine, dims: int, *, fits_one_size: bool = False) -> Kernel:
    operation = engines.CONVOLUTIONS[dims]
    available = functools.partial(engines.is_available, engine, operation, f"{operation}_prepack")
    return Kernel(name, ("integers",), available, functools.partial(_pack_for_engine, engine), fits_one_size)


_ONEDNN = Kernel(
    "oneDNN", ("integers", "float", "dynamic"), functools.partial(has_onednn, "qconv_pointwise"), _pack_for_onednn, True
)
KERNELS: dict[int, tuple[Kernel, ...]] = {
    1: (_ONEDNN,),
    # torch's own operation keeps what oneDNN prepares between calls
    2: (_engine("FBGEMM", "fbgemm", 2), _engine("cached oneDNN", "onednn", 2, fits_one_size=True), _ONEDNN),
    3: (_engine("FBGEMM", "fbgemm", 3), _ONEDNN),
}
"""By the dimensions of images; in the order in which they are tried."""

"""oneDNN's fused kernels inside PyTorch: convolutions and linear layers fused with the operations behind them.

The backend needs no other package. Batch norms are folded first. Then bias, addition and activation are fused into the
convolution or product before them; weights are packed, and values stay channels last between convolutions. The
resulting submodules are programs that can be read, copied, pickled and edited.
"""

from __future__ import annotations

from typing import ClassVar

from fx.graph_module import GraphModule
from fx.lowering.backend import Backend, register_backend
from fx.lowering.converters import Converters, build_region
from fx.lowering.onednn.modules import LEAST_WORK, why_missing
from fx.lowering.onednn.network import FusedRegion
from fx.lowering.onednn.operations import converters
from fx.passes.fuse_conv_bn import FuseConvBN

__all__ = ["OneDNN"]


class OneDNN(Backend):
    """The backend ``onednn``: float32 on CPU.

    A kernel that fuses ``relu``, ``hardtanh`` or ``hardsigmoid`` turns a NaN into a number.
    """

    __slots__ = ()

    name: ClassVar[str] = "onednn"
    converters: ClassVar[Converters] = converters
    keeps_non_finite: ClassVar[bool] = False
    flops_per_operation: ClassVar[float] = 2.0 * LEAST_WORK

    def why_unavailable(self) -> str | None:
        """Return why this PyTorch lacks oneDNN's fused kernels; ``None`` if it has them."""
        return why_missing()

    def prepare(self, graph_module: GraphModule) -> GraphModule:
        """Fold batch norms."""
        return FuseConvBN()(graph_module)

    def build(self, region: GraphModule) -> GraphModule:
        """Return the region, rewritten for oneDNN."""
        network = FusedRegion(region)
        build_region(region, self.converters, network)
        return network.graph_module()


register_backend(OneDNN())

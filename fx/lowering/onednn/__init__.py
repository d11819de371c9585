"""oneDNN's fused kernels inside PyTorch: convolutions and linear layers with what follows them, on packed weights.

The backend needs no other package. Batch norms are folded first; then bias, addition and activation become part of the
convolution or product before them, and values stay channels last between convolutions. The submodules that result are
programs that can be read, copied, pickled and edited.
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

    Where a kernel does the work of ``relu``, ``hardtanh`` or ``hardsigmoid``, a NaN becomes a number there.
    """

    __slots__ = ()

    name: ClassVar[str] = "onednn"
    converters: ClassVar[Converters] = converters
    keeps_non_finite: ClassVar[bool] = False
    flops_per_operation: ClassVar[float] = 2.0 * LEAST_WORK

    def why_unavailable(self) -> str | None:
        """Return why this PyTorch has no such kernels, if it has none."""
        return why_missing()

    def prepare(self, graph_module: GraphModule) -> GraphModule:
        """Fold batch norms."""
        return FuseConvBN()(graph_module)

    def build(self, region: GraphModule) -> GraphModule:
        """The region, rewritten for oneDNN."""
        network = FusedRegion(region)
        build_region(region, self.converters, network)
        return network.graph_module()


register_backend(OneDNN())

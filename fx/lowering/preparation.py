"""Rewrites that all engines share, before a program is brought into canonical form."""

from __future__ import annotations

from fx.graph_module import GraphModule
from fx.passes.fold_constants import FoldConstants
from fx.passes.fuse_conv_bn import FuseConvBN
from fx.quantize.decomposition import decompose
from fx.quantize.expansion import Expansion


def prepare_for_engine(program: GraphModule) -> GraphModule:
    """Take attention and recurrent layers apart, fold batch norms, and fold values computed from buffers."""
    decompose(program, takes=_drops_nothing)
    return FuseConvBN()(FoldConstants()(program))


def _drops_nothing(call: Expansion) -> bool:
    return call.module is None or not call.module.training

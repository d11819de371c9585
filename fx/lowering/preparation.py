"""Rewrites that all engines share, before a program is brought into canonical form."""

from __future__ import annotations

from torch import nn

from fx.graph_module import GraphModule
from fx.passes.fold_constants import FoldConstants
from fx.passes.fuse_conv_bn import FuseConvBN
from fx.quantize.decomposition import decompose
from fx.quantize.expansion import Expansion


def prepare_for_engine(program: GraphModule) -> GraphModule:
    """Take attention apart, fold batch norms, and fold values computed from buffers, which an engine holds."""
    decompose(program, takes=_is_attention_in_evaluation)
    return FuseConvBN()(FoldConstants()(program))


def _is_attention_in_evaluation(call: Expansion) -> bool:
    """Return whether a call is of attention that drops nothing; recurrent layers stay as they are."""
    module = call.module
    return module is None or not (module.training or isinstance(module, (nn.RNNBase, nn.RNNCellBase)))

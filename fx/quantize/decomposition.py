"""``decompose``: modules as the layers they consist of, so that these can be quantized (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

from fx.graph_module import GraphModule
from fx.modules.attributes import does_as_its_class
from fx.quantize.attention import attend
from fx.quantize.expansion import CannotExpand, Expansion
from fx.quantize.recurrence import expand_cell, expand_recurrent
from fx.quantize.transformer import (
    expand_decoder,
    expand_decoder_layer,
    expand_encoder,
    expand_encoder_layer,
    expand_transformer,
)

_EXPANDED: dict[Any, Callable[[Expansion], Any]] = {
    F.multi_head_attention_forward: attend,
    nn.MultiheadAttention: attend,
    nn.TransformerEncoderLayer: expand_encoder_layer,
    nn.TransformerDecoderLayer: expand_decoder_layer,
    nn.TransformerEncoder: expand_encoder,
    nn.TransformerDecoder: expand_decoder,
    nn.Transformer: expand_transformer,
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), expand_recurrent),
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell, nn.RNNCell), expand_cell),
}
"""For each function and module class, the function that records its decomposition."""


def decompose(
    program: GraphModule, *, is_trained: bool = False, takes: Callable[[Expansion], bool] = lambda call: True
) -> dict[str, str]:
    """Replace operations by the layers, products and sums they consist of; return the nodes that stay, and why.

    The replacements compute the same in float. If the program ``is_trained``, dropout becomes added modules, so that
    it follows the program's mode. Calls for which ``takes`` returns False stay. The result maps names of nodes to
    reasons.
    """
    reasons: dict[str, str] = {}
    waiting = list(program.graph.nodes)
    while waiting:
        node = waiting.pop(0)
        call = Expansion(program, node, is_trained=is_trained)
        expand = _EXPANDED.get(node.target if call.module is None else type(call.module))
        if expand is None or not takes(call):
            continue
        try:
            if call.module is not None and not does_as_its_class(call.module):
                raise CannotExpand("it has hooks or a forward of its own")
            call.replace(expand)
            waiting[:0] = call.calls
        except CannotExpand as reason:
            reasons[node.name] = str(reason)
    program.recompile()
    return reasons

"""Sets of patterns for Inductor's pattern matcher."""

import torch
from torch._inductor.pattern_matcher import (
    CallFunction,
    Ignored,
    KeywordArg,
    PatternMatcherPass,
    fwd_only,
    register_graph_pattern,
    register_replacement,
)

from ...rows import fault, sound
from . import ROUND, aten


def _softmax_by_parts(x):
    exponentials = torch.exp(x - torch.amax(x, -1, keepdim=True))
    return exponentials / torch.sum(exponentials, -1, keepdim=True)


@fault(ROUND, "wrong axis", wrong="The pattern is along the last dimension, which is 1 for matrices alone.")
class FuseSoftmax(PatternMatcherPass):
    """A softmax of exponentials and their sum."""

    def __init__(self):
        super().__init__()
        register_replacement(
            _softmax_by_parts, lambda x: torch.softmax(x, 1), [torch.randn(4, 5)], fwd_only, self, skip_duplicates=True
        )


@fault(ROUND, "wrong axis", wrong="The softmax may be along another dimension than the last one.")
class FuseLogSoftmax(PatternMatcherPass):
    """The logarithm of a softmax is one operator."""

    def __init__(self):
        super().__init__()
        softmax = CallFunction(aten._softmax.default, KeywordArg("x"), Ignored(), KeywordArg("to_float"))

        @register_graph_pattern(CallFunction(aten.log.default, softmax), pass_dict=self)
        def fuse(match, x, to_float):
            with match.graph.inserting_before(match.output_node()):
                fused = match.graph.call_function(aten._log_softmax.default, (x, -1, to_float))
            fused.meta = dict(match.output_node().meta)
            match.output_node().replace_all_uses_with(fused)
            match.erase_nodes()


@sound(ROUND)
class FuseSilu(PatternMatcherPass):
    """A product with its own sigmoid is a quotient."""

    def __init__(self):
        super().__init__()
        register_replacement(
            lambda x: x * torch.sigmoid(x),
            lambda x: torch.nn.functional.silu(x),
            [torch.randn(4, 5)],
            fwd_only,
            self,
            skip_duplicates=True,
        )

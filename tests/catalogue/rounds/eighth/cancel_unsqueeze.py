"""A wrong pass of the eighth round."""

import fx
from fx.subgraph_rewriter import replace_pattern_with_filters

from ...rows import fault


def _rewrite(module, filters):
    replace_pattern_with_filters(
        module,
        lambda x: x.unsqueeze(1).squeeze(1),
        lambda x: x.view_as(x),
        filters,
        ignore_literals=True,
    )
    return module


@fault(
    8, wrong="Literals are ignored so that any dimension matches, but that both calls name the same one is not asked."
)
def cancel_unsqueeze(module: fx.GraphModule) -> fx.GraphModule:
    """Remove `unsqueeze` where `squeeze` undoes it at once, along whatever dimension."""
    return _rewrite(module, [])

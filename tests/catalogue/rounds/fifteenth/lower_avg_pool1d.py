"""A wrong pass of the fifteenth round."""

import torch.nn.functional as F
from torch import nn

from fx import GraphModule

from ...rows import fault
from .shared import plain


@fault(
    15, wrong="count_include_pad is not handed on, so the ends of a padded signal are averaged over the padding too."
)
def lower_avg_pool1d(graph_module: GraphModule) -> GraphModule:
    """Lower ``nn.AvgPool1d`` to ``F.avg_pool1d``."""
    for node in list(graph_module.graph.nodes):
        pool = plain(graph_module, node, nn.AvgPool1d)
        if pool is None:
            continue
        settings = (pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode)
        with graph_module.graph.inserting_before(node):
            new = graph_module.graph.call_function(F.avg_pool1d, (node.args[0], *settings))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module

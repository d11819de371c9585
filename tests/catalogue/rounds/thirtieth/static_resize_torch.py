"""A wrong pass of the thirtieth round."""

import math
import operator

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import _arg


def _resize(gm, accepts):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.interpolate or _arg(node, 1, "size") is not None:
            continue
        image, scale = _arg(node, 0, "input"), _arg(node, 2, "scale_factor")
        if _arg(node, 3, "mode", "nearest") != "bilinear" or _arg(node, 6, "antialias", False) is not False:
            continue
        if _arg(node, 5, "recompute_scale_factor") not in (None, False) or type(scale) not in (int, float):
            continue
        align = _arg(node, 4, "align_corners")
        if not accepts(scale) or not isinstance(image, torch.fx.Node):
            continue
        with gm.graph.inserting_before(node):
            sizes = []
            for dim in (-2, -1):
                extent = gm.graph.call_method("size", (image, dim))
                product = gm.graph.call_function(operator.mul, (extent, scale))
                sizes.append(gm.graph.call_function(math.floor, (product,)))
        node.args = (image,)
        node.kwargs = {"size": tuple(sizes), "mode": "bilinear", "align_corners": align}
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="With scale_factor the coordinates follow the given factor, with size they follow the ratio of the sizes: "
    "the two differ where the factor times the size is not whole (1.5 times 5), so bilinear resizes by such "
    "factors shift.",
)
def static_resize(gm: torch.fx.GraphModule):
    """Give bilinear resizes the size of their result instead of a factor, as the engine's importer wants them."""
    return _resize(gm, lambda scale: scale > 0)

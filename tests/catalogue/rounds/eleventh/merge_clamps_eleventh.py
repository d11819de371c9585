"""A wrong pass of the eleventh round."""

import torch

import fx
from fx.subgraph_rewriter import replace_pattern_with_filters

from ...rows import fault


def _pattern(x):
    return torch.clamp(torch.clamp(x, 0.0, 1.0), 0.0, 1.0)


def _bounds(node):
    """The bounds of a clamp, if they are two numbers of float."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return None
    if node.target not in (torch.clamp, torch.clip, "clamp", "clip"):
        return None
    arguments = {**dict(zip(("input", "min", "max"), node.args)), **node.kwargs}
    low, high = arguments.get("min"), arguments.get("max")
    return (low, high) if type(low) is float and type(high) is float and low <= high else None


def _intervals(match):
    inner, outer = [n for n in match.nodes_map if n.op == "call_function"]
    return _bounds(match.nodes_map[inner]), _bounds(match.nodes_map[outer])


def _merge(module, ask_meeting):
    def wanted(match, graph, pattern):
        inner, outer = _intervals(match)
        if inner is None or outer is None:
            return False
        return not ask_meeting or max(inner[0], outer[0]) <= min(inner[1], outer[1])

    def merged(match, graph, pattern):
        inner, outer = _intervals(match)
        low, high = max(inner[0], outer[0]), min(inner[1], outer[1])
        return fx.symbolic_trace(lambda x: torch.clamp(x, low, high)).graph

    replace_pattern_with_filters(
        module, _pattern, match_filters=[wanted], ignore_literals=True, replacement_callback=merged
    )
    return module


@fault(
    11,
    wrong="Intervals that do not meet are not asked about: clamp(clamp(x, 0, 1), 2, 3) is 2 everywhere, but clamp(x, 2, 1) is 1.",
)
def merge_clamps_eleventh(module: fx.GraphModule) -> fx.GraphModule:
    """Replace clamp(clamp(x, a, b), c, d) by one clamp to the intersection of the intervals."""
    return _merge(module, ask_meeting=False)

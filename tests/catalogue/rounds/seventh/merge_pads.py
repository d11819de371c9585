"""A wrong pass of the seventh round."""

import torch.nn.functional as F

import fx

from ...rows import fault


def padding(node):
    """Return operand, amounts, a key of the value, and the value of a constant pad by known amounts, or None."""
    if node.op != "call_function" or node.target is not F.pad:
        return None
    arguments = dict(zip(("input", "pad", "mode", "value"), node.args)) | dict(node.kwargs)
    amounts, value = arguments["pad"], arguments.get("value")
    if arguments.get("mode", "constant") != "constant" or not isinstance(amounts, (tuple, list)):
        return None
    if any(type(amount) is not int for amount in amounts) or type(value) not in (type(None), int, float):
        return None
    return arguments["input"], list(amounts), repr(float(0 if value is None else value)), value


def rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        outer = padding(node)
        inner = outer and padding(outer[0])
        if not inner or len(outer[0].users) != 1 or outer[2] != inner[2] or not accepts(inner[1] + outer[1]):
            continue
        size = max(len(inner[1]), len(outer[1]))
        inner_amounts, outer_amounts = (amounts + [0] * (size - len(amounts)) for amounts in (inner[1], outer[1]))
        with graph.inserting_before(outer[0]):
            total = [a + b for a, b in zip(inner_amounts, outer_amounts)]
            merged = graph.call_function(F.pad, (inner[0], total), {"mode": "constant", "value": inner[3]})
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
        graph.erase_node(outer[0])
    graph.lint()
    module.recompile()
    return module


@fault(7, wrong="Amounts may be negative, which crops: cropping by one and padding by one is not nothing.")
def merge_pads(module: fx.GraphModule) -> fx.GraphModule:
    """Add up the amounts of consecutive `F.pad` with the same constant, as ONNX simplifiers do."""
    return rewrite(module, lambda amounts: True)

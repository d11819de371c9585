"""A wrong pass of the ninth round."""

import operator

import torch

import fx

from ...rows import fault

_PURE = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    torch.add,
    torch.mul,
    torch.sqrt,
    torch.rsqrt,
    torch.exp,
    "add",
    "sub",
    "mul",
    "div",
    "sqrt",
    "rsqrt",
    "exp",
    "reciprocal",
}


_WRITES = {
    getattr(operator, "i" + name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor", "lshift", "rshift")
} | {operator.setitem}


def _writes(module):
    for node in module.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
        if node.op in ("call_method", "call_function") and (
            node.target in _WRITES
            or name in ("batch_norm", "instance_norm")
            or (name.endswith("_") and name != "__getitem__")
            or "out" in node.kwargs
            or node.kwargs.get("inplace")
            or any(arg is True for arg in node.args)
        ):
            return True
        if node.op == "call_module" and any(
            getattr(m, "inplace", False) for m in module.get_submodule(node.target).modules()
        ):
            return True
    return False


def _run(module, right):
    graph = module.graph
    if right and _writes(module):
        return module
    called = {
        id(buffer)
        for node in graph.nodes
        if node.op == "call_module"
        for buffer in module.get_submodule(node.target).buffers()
    }
    buffers, values = dict(module.named_buffers(remove_duplicate=False)), {}
    for node in list(graph.nodes):
        if node.op == "get_attr" and node.target in buffers and id(buffers[node.target]) not in called:
            values[node] = buffers[node.target]
        elif (
            node.op in ("call_function", "call_method")
            and node.target in _PURE
            and node.all_input_nodes
            and all(used in values for used in node.all_input_nodes)
        ):
            args, kwargs = (fx.map_arg(part, values.__getitem__) for part in (node.args, node.kwargs))
            with torch.no_grad():
                call = node.target if node.op == "call_function" else getattr(torch.Tensor, node.target)
                values[node] = call(*args, **kwargs)
    for node, value in reversed([*values.items()]):
        if node.op == "get_attr" or any(user.target not in _PURE for user in node.users):
            continue
        if node.users:
            name = f"folded_{node.name}"
            module.register_buffer(name, value.clone(), persistent=False)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(name))
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Folds what is computed from a buffer although the program writes to the buffer in place.")
def fold_buffer_math(module: fx.GraphModule) -> fx.GraphModule:
    """Compute once what is computed from buffers and numbers alone, such as the scale of a normalization."""
    return _run(module, False)

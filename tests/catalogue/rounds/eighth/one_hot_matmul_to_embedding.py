"""A right pass of the eighth round."""

import operator

import torch
import torch.nn.functional as F

import fx

from ...rows import sound

_CASTS = {"float": torch.float32, "double": torch.float64}


def _may_write(module):
    for node in module.graph.nodes:
        if node.op == "call_module":
            for inner in module.get_submodule(node.target).modules():
                trusted = type(inner).__module__.startswith("torch.nn.")
                hooked = inner._forward_hooks or inner._forward_pre_hooks or "forward" in vars(inner)
                if (
                    not trusted
                    or hooked
                    or getattr(inner, "inplace", False)
                    or getattr(inner, "max_norm", None) is not None
                ):
                    return True
        elif node.op in ("call_function", "call_method"):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
            origin = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
            if name.split(".")[0].endswith("_") or name.startswith("_") or name in ("setitem", "setattr", "delitem"):
                return True
            if (
                {"out", "max_norm"} & set(node.kwargs)
                or node.kwargs.get("inplace")
                or any(a is True for a in node.args)
            ):
                return True
            if origin not in ("torch", "_operator", "math", "builtins") or name in ("embedding", "embedding_bag"):
                return True
            if origin == "_operator" and name[0] == "i" and name not in ("invert", "index"):
                return True
    return False


def _one_hot(node):
    """The classes and their number, and the dtype, of a one-hot matrix that is used once."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.kwargs or len(node.users) != 1:
        return None
    dtype = (
        _CASTS.get(node.target)
        if len(node.args) == 1
        else node.args[1]
        if node.target == "to" and len(node.args) == 2
        else None
    )
    hot = node.args[0]
    if dtype not in (torch.float32, torch.float64) or not isinstance(hot, fx.Node) or hot.target is not F.one_hot:
        return None
    arguments = dict(zip(("input", "num_classes"), hot.args), **hot.kwargs)
    if len(hot.users) != 1 or set(arguments) != {"input", "num_classes"} or type(arguments["num_classes"]) is not int:
        return None
    return arguments["input"], arguments["num_classes"], dtype


@sound(8)
def one_hot_matmul_to_embedding(module: fx.GraphModule) -> fx.GraphModule:
    """Look rows up where a one-hot matrix is multiplied by a parameter or buffer."""
    graph = module.graph
    if _may_write(module):
        return module
    for node in list(graph.nodes):
        if node.target not in (operator.matmul, torch.matmul, "matmul") or len(node.args) != 2 or node.kwargs:
            continue
        encoding, fetch = _one_hot(node.args[0]), node.args[1]
        if encoding is None or not isinstance(fetch, fx.Node) or fetch.op != "get_attr":
            continue
        owner, _, name = fetch.target.rpartition(".")
        table = getattr(module.get_submodule(owner), name)
        classes, number, dtype = encoding
        if not isinstance(table, torch.Tensor) or table.dim() != 2 or table.shape[0] != number or table.dtype != dtype:
            continue
        if number < 1 or not torch.isfinite(table).all():
            continue
        with graph.inserting_before(node):
            rows = graph.call_function(F.embedding, (classes, fetch))
        cast, hot = node.args[0], node.args[0].args[0]
        node.replace_all_uses_with(rows)
        for old in (node, cast, hot):
            graph.erase_node(old)
    module.recompile()
    return module

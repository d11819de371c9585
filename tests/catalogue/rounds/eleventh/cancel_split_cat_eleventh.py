"""A wrong pass of the eleventh round."""

import operator

import torch

import fx

from ...rows import fault


def _writes(module):
    """Return whether anything in the program may write in place; then the pass leaves it alone."""
    for n in module.graph.nodes:
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        home = getattr(n.target, "__module__", None) or ""
        inner = module.get_submodule(n.target).modules() if n.op == "call_module" else ()
        if any(
            getattr(m, "inplace", False) or getattr(m, "max_norm", None) or m._forward_hooks or m._forward_pre_hooks
            for m in inner
        ):
            return True
        if n.op == "call_function" and home.split(".")[0] not in ("", "torch", "_operator", "builtins", "math"):
            return True  # somebody's own function may do anything
        if n.op in ("call_function", "call_method") and (
            name.endswith("_")
            or "_." in name
            or n.kwargs.get("inplace")
            or "out" in n.kwargs
            or name in ("setitem", "setattr")
            or home == "_operator"
            and name[0] == "i"
            and name not in ("inv", "invert", "index")
            or home.endswith("functional")
            and any(a is True for a in n.args)
        ):
            return True
    return False


def _named(node, spellings, names):
    if not isinstance(node, fx.Node) or (node.op, node.target) not in spellings:
        return None
    return {**dict(zip(names, node.args)), **node.kwargs}


def _whole(pieces, ask_count):
    """Return the split value and the dimension if these are all its pieces, in order."""
    for i, piece in enumerate(pieces):
        if not isinstance(piece, fx.Node) or piece.target is not operator.getitem or piece.args[1] != i:
            return None
    source = pieces[0].args[0]
    if any(piece.args[0] is not source for piece in pieces):
        return None
    split = _named(source, (("call_method", "split"), ("call_function", torch.split)), ("x", "size", "dim"))
    chunk = _named(source, (("call_method", "chunk"), ("call_function", torch.chunk)), ("x", "chunks", "dim"))
    if split and isinstance(split.get("size"), (tuple, list)):
        complete = len(split["size"]) == len(pieces)
    elif split:
        complete = type(split.get("size")) is int and not ask_count
    else:
        complete = chunk and chunk.get("chunks") == len(pieces)
    call = split or chunk
    if not call or set(call) - {"x", "size", "chunks", "dim"}:
        return None
    return (call["x"], call.get("dim", 0)) if complete and isinstance(call.get("x"), fx.Node) else None


def _cancel(module, ask_count):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        cat = _named(node, (("call_function", torch.cat),), ("tensors", "dim"))
        if (
            not cat
            or set(cat) - {"tensors", "dim"}
            or not isinstance(cat.get("tensors"), (tuple, list))
            or not cat["tensors"]
        ):
            continue
        value_and_dim = _whole(cat["tensors"], ask_count)
        if not value_and_dim or type(value_and_dim[1]) is not int or cat.get("dim", 0) != value_and_dim[1]:
            continue
        with graph.inserting_before(node):
            new = graph.call_method("clone", (value_and_dim[0],), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    module.recompile()
    return module


@fault(
    11,
    wrong="split(size) makes as many pieces as the input needs, which is not asked: where the program only takes the first ones, they are not the whole.",
)
def cancel_split_cat_eleventh(module: fx.GraphModule) -> fx.GraphModule:
    """Replace the concatenation of all pieces of a split, in order and along the same dimension, by a copy of it."""
    return _cancel(module, ask_count=False)

"""A wrong pass of the twentyfourth round."""

from ...rows import fault


def _drop(gm, ops):
    used = {node.target for node in gm.graph.nodes if node.op in ops}

    def is_used(name):
        holds = any(target == name or target.startswith(f"{name}.") for target in used)
        return holds or any(name.startswith(f"{target}.") for target in used)

    for name, _ in [*gm.named_modules()]:
        if not name or is_used(name):
            continue
        owner, _, leaf = name.rpartition(".")
        try:
            parent = gm.get_submodule(owner)
        except AttributeError:
            continue  # went with its parent
        if leaf in parent._modules:
            delattr(parent, leaf)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="A module is used too when the graph only reads its parameters by get_attr; then it is deleted and the program raises.",
)
def drop_unused_modules(gm):
    """Delete each submodule that no call needs."""
    return _drop(gm, ("call_module",))

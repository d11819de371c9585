"""A wrong pass of the ninth round."""

from ...rows import fault


def _plain(layer):
    if not type(layer).__module__.startswith("torch.nn.modules") or any(True for _ in layer.children()):
        return False
    if any(True for _ in layer.parameters()) or any(True for _ in layer.buffers()):
        return False
    return not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in layer.__dict__
    )


def _settings(layer):
    return {name: value for name, value in layer.__dict__.items() if not name.startswith("_")}


def _equal(one, two, right):
    if type(one) is not type(two) or one.training != two.training or repr(one) != repr(two):
        return False
    return not right or _settings(one) == _settings(two)


def _run(module, right):
    graph, distinct = module.graph, {}
    for node in graph.nodes:
        if node.op != "call_module" or node.target in distinct:
            continue
        layer = module.get_submodule(node.target)
        if not _plain(layer):
            continue
        same = next((target for target, other in distinct.items() if _equal(layer, other, right)), None)
        if same is None:
            distinct[node.target] = layer
        else:
            node.target = same
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Compares layers by their repr, which leaves out settings such as count_include_pad and align_corners.")
def share_equal_modules(module):
    """Let calls of equal layers without parameters share one, so that a runtime builds one kernel for them."""
    return _run(module, False)

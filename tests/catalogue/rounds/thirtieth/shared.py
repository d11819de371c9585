"""Helpers shared by the passes of the thirtieth round share."""


def _plain(module, kind):
    """An unmodified layer of exactly this kind, which no hook listens to."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _arg(node, place, name, default=None):
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)

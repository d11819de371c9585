"""Helpers shared by the passes of the twentyseventh round share."""


def _hooked(module):
    return module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks

"""Fold batch norms into the convolutions before them, with its test harness (paper, section 6.2.2).

``pytest examples/fusion.py -p pytest_fx.plugin`` checks it on a model and on random programs, and times it; with the
plugin installed, ``pytest examples/fusion.py`` is enough. The pass ``fuse-conv-bn`` of fx handles more cases: layers
called twice, functional calls, linear and transposed layers, weights in half precision, gradients.
"""

import copy

import pytest
import torch
from torch import nn

import fx
from pytest_fx import check_pass


def fused(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """Return a convolution equivalent to ``conv`` followed by ``norm`` in evaluation mode."""
    conv = copy.deepcopy(conv)
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight
    bias = conv.bias if conv.bias is not None else torch.zeros_like(norm.running_mean)
    shift = (bias - norm.running_mean) * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    conv.weight = nn.Parameter(conv.weight * scale.reshape(-1, 1, 1, 1))
    conv.bias = nn.Parameter(shift)
    return conv


def fold_batch_norms(program: fx.GraphModule) -> fx.GraphModule:
    """Replace each convolution with a batch norm as its only user by one convolution."""
    paths = [node.target for node in program.graph.find_nodes(op="call_module")]
    for node in program.graph.find_nodes(op="call_module"):
        norm, before = program.get_submodule(node.target), node.args[0]
        if type(norm) is not nn.BatchNorm2d or norm.training or norm.running_mean is None or before.op != "call_module":
            continue
        conv = program.get_submodule(before.target)
        is_shared = len(before.users) > 1 or paths.count(before.target) > 1
        if type(conv) is not nn.Conv2d or is_shared or conv.weight.dtype != norm.running_mean.dtype:
            continue
        program.set_submodule(before.target, fused(conv, norm))
        node.replace_all_uses_with(before)
        program.graph.erase_node(node)
    program.delete_all_unused_submodules()
    program.recompile()
    return program


fold_batch_norms.contract = fx.passes.close


@pytest.mark.fx(model="resnet_tiny")
def test_resnet_computes_the_same(fx_equal):
    """Checks outputs for several inputs and batch sizes, float32 and float64, gradients, and the laws of all passes."""
    fx_equal(fold_batch_norms)


def test_random_programs_compute_the_same():
    """Checks random programs that contain convolutions and batch norms in many contexts."""
    check_pass(fold_batch_norms, seed=0)


@pytest.mark.fx(model="resnet_tiny")
def test_how_much_faster_it_is(fx_timing):
    """Adds the median ratio of alternating calls, with its interval, to the summary of the run."""
    assert fx_timing(fold_batch_norms).speedup > 0

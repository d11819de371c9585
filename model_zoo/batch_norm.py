"""Batch norm as a trained model has it.

A batch norm that was never trained almost does nothing: mean 0, variance 1, scale 1, shift 0. A transform could
forget any of the four and still agree with eager to five digits. Models of the zoo that are there to catch faulty
transforms therefore get statistics of data and affine parameters of all sizes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def settle_batch_norm(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Give every batch norm in ``module`` random affine parameters and the statistics of one call on ``arguments``.

    Draws from the global random state (see :func:`~model_zoo.zoo_model.seeded`); leaves ``module`` in evaluation mode.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        if layer.affine:
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.2)
        layer.momentum = 1.0  # the running statistics become those of the call below
    module.train()
    with torch.no_grad():
        module(*arguments)
    module.eval()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum

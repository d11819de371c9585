"""What torch.fx does in our place, for columns beside ours."""

from __future__ import annotations

import importlib
import warnings

from torch import nn


def torch_fx_fuse(module: nn.Module) -> nn.Module:
    """Return what torch.fx's own fusion of convolution and batch norm makes of a copy of ``module``."""
    with warnings.catch_warnings():
        # Importing it reports that what it imports itself is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        optimization = importlib.import_module("torch.fx.experimental.optimization")
    return optimization.fuse(module)

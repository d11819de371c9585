"""A wrong pass of the twelfth round."""

import torch

import fx

from ...rows import fault


@fault(12, wrong="nan_to_num also replaces infinities by the largest finite numbers, which masked_fill leaves alone.")
def impute_missing(module: fx.GraphModule) -> fx.GraphModule:
    """Write the imputation of missing values of a tabular model (NaN becomes 0) as one operator."""
    fx.replace_pattern(module, lambda x: x.masked_fill(torch.isnan(x), 0.0), lambda x: torch.nan_to_num(x, nan=0.0))
    return module

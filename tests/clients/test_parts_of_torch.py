"""Other parts of torch that are clients of torch.fx: torch.ao's structured pruning, and its numeric suite."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization

from .sides import Side, Uses, assert_same

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]

USES = Uses()
use = USES.add


X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.second(nn.functional.relu(self.first(x)))


@use
def structured_pruning(side: Side) -> Any:
    pruner = side.client("torch.ao.pruning._experimental.pruner").SaliencyPruner({"sparsity_level": 0.5})
    model = Layers()
    pruner.prepare(model, [{"tensor_fqn": "first.weight"}])
    pruner.enable_mask_update = True
    pruner.step()
    pruned = pruner.prune()
    return pruned, pruned(X), [tuple(parameter.shape) for parameter in pruned.parameters()]


def prepared(side: Side) -> tuple[Any, Any]:
    quantize = side.client("torch.ao.quantization.quantize_fx")
    mapping = quantization.get_default_qconfig_mapping("x86")
    observed = quantize.prepare_fx(Layers().eval(), mapping, (X,))
    observed(X)
    return observed, quantize.convert_fx(copy.deepcopy(observed))


@use
def weights_are_compared(side: Side) -> Any:
    suite = side.client("torch.ao.ns._numeric_suite_fx")
    by_layer = suite.extract_weights("float", prepared(side)[0], "int8", prepared(side)[1])
    return {
        name: [entry["values"][0].dequantize() for entries in kinds["weight"].values() for entry in entries]
        for name, kinds in by_layer.items()
    }


@use
def activations_are_compared(side: Side) -> Any:
    suite = side.client("torch.ao.ns._numeric_suite_fx")
    observed, converted = prepared(side)
    first, other = suite.add_loggers("float", observed, "int8", converted, suite.OutputLogger)
    first(X), other(X)
    by_layer = suite.extract_logger_info(first, other, suite.OutputLogger, "int8")
    return sorted(by_layer), [len(kinds["node_output"]) for kinds in by_layer.values()]


SLOW = {"weights_are_compared", "activations_are_compared"}
"""Uses that take torch.ao seconds, with either library."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in USES]
)
def test_it_does_the_same_with_fx(name: str) -> None:
    assert_same(USES[name])

"""Models that others have quantized, and quantizations by others."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.fx
from catalogue.rows import Case, Right
from catalogue.verdict import verdict
from packed_weights import pack
from torch import nn

from fx.interop import adapt
from fx.passes import Canonicalize, approximate

from . import case


def _packed() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval().requires_grad_(False)
    return Case(pack(model), (torch.randn(3, 16),))


def _enter(says: str, expected: str) -> Any:
    def enter(pass_: Any) -> Any:
        @case("tensor subclasses", says, expected)
        def _() -> str:
            return verdict(Right("", "", "", "", pass_, ()), _packed())

        return pass_

    return enter


def _by_function(program: Any, function: Any) -> None:
    (relu,) = program.graph.find_nodes(op="call_module", target="1")
    with program.graph.inserting_after(relu):
        relu.replace_all_uses_with(program.graph.call_function(function, relu.args))
    program.graph.erase_node(relu)
    program.recompile()


@_enter("weights without torch.equal, and ReLU as a function", "green")
def relu_as_a_function(program: Any) -> None:
    """Right."""
    _by_function(program, torch.relu)


@_enter("weights without torch.equal, and tanh for ReLU", "red: contract")
def tanh_for_relu(program: Any) -> None:
    """Wrong."""
    _by_function(program, torch.tanh)


@_enter("weights without torch.equal, whose integers a pass clears", "red: original untouched")
def clear_the_integers(program: Any) -> None:
    """Wrong."""
    program.get_parameter("0.weight").codes.zero_()


@_enter("F.linear with such a weight takes no keywords: the canonical form keeps its call", "green")
def canonical(program: Any) -> Any:
    """Right."""
    return Canonicalize()(program)


def _quantized(program: torch.fx.GraphModule) -> torch.fx.GraphModule:
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    data = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mapping = get_default_qconfig_mapping(torch.backends.quantized.engine)
    prepared = quantize_fx.prepare_fx(copy.deepcopy(program), mapping, (data,))
    prepared(data)
    return quantize_fx.convert_fx(prepared)


_quantized.may_change = ("metadata", "gradients")


@case("quantization", "by torch.ao, whose convolutions cannot be unpickled", "green")
def _() -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval().requires_grad_(False)
    row = Right("", "", "", "", adapt(_quantized), (), contract=approximate(sqnr_db=8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated
        return verdict(row, Case(model, (torch.randn(4, 3, 8, 8),)))

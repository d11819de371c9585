"""``Weights``: the 8-bit weights of a program that is converted, one for all calls that share one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Node
from fx.quantize.affine import quantize_channels
from fx.quantize.convolution import QuantizedConv
from fx.quantize.integer_operations import groups_of_transposed
from fx.quantize.layers import QuantizedLayer
from fx.quantize.linear import QuantizedLinear
from fx.quantize.scheme import QuantizationScheme
from fx.quantize.transposed_convolution import QuantizedConvTranspose, swap_channels

UNNAMED = "to_be_named"
"""Target of calls of layers until they get their names."""
_SIZES = ("stride", "padding", "output_padding", "groups", "dilation")


class Weights:
    """Makes the layers and weights for the calls of a prepared program."""

    def __init__(self, prepared: GraphModule, scheme: QuantizationScheme) -> None:
        self._prepared = prepared
        self._scheme = scheme
        self._layers: dict[Any, tuple[QuantizedLayer, list[Node]]] = {}
        self._quantized: dict[Any, tuple[Tensor, Tensor]] = {}
        self._wishes: dict[QuantizedLayer, str] = {}
        self._paths: dict[str, Tensor] = {}

    def tensors(self, node: Node) -> tuple[Node, Tensor, Tensor | None]:
        """Where the weight of a layer is fetched, the weight, and the bias."""
        weight, bias = node.kwargs["weight"], node.kwargs.get("bias")
        assert isinstance(weight, Node)
        fetched = None if bias is None else fetch_attribute(self._prepared, str(bias.target))  # type: ignore[union-attr]
        return weight, fetch_attribute(self._prepared, str(weight.target)), fetched

    def quantized(self, node: Node) -> tuple[Tensor, Tensor]:
        """The weight of a layer, its output channels first, as integers and steps."""
        choice = self._scheme.choice(node)
        weight = self.tensors(node)[1]
        groups = groups_of_transposed(node)
        key = (id(weight), choice.weight_bits, choice.per_channel, groups)
        if key not in self._quantized:
            weight = weight if groups is None else swap_channels(weight.detach(), groups)
            self._quantized[key] = quantize_channels(weight, bits=choice.weight_bits, per_channel=choice.per_channel)
        return self._quantized[key]

    def layer(self, node: Node) -> tuple[QuantizedLayer, list[Node]]:
        """The layer for a call, shared with other calls that have the same tensors and sizes, and those calls."""
        fetched, _, bias = self.tensors(node)
        whole, scale = self.quantized(node)
        sizes = {name: node.kwargs[name] for name in _SIZES if name in node.kwargs}
        key = (id(whole), tuple(sizes.items()), None if bias is None else id(bias))
        if key not in self._layers:
            with torch.device("meta"):  # its tensors are given next
                layer = _make_layer(whole, bias is not None, sizes)
            layer.fill(whole, scale, None if bias is None else bias.detach().float().contiguous())
            self._layers[key] = layer, []
            self._wishes[layer] = _layer_path(str(fetched.target))
        return self._layers[key]

    def path_of(self, node: Node, whole: Tensor) -> str:
        """Where a weight of integers is kept that no layer holds, or several."""
        known = next((path for path, one in self._paths.items() if one is whole), None)
        if known is not None:
            return known
        path = wish = f"quantized.{_layer_path(str(self.tensors(node)[0].target))}"
        number = 0
        while path in self._paths:
            number += 1
            path = f"{wish}_{number}"
        self._paths[path] = whole
        return path

    def named(self, graph: Graph) -> dict[str, QuantizedLayer]:
        """Give the layers that ``graph`` calls the names that their weights had, if these are free."""
        live = dict.fromkeys(graph.nodes)
        taken = {str(node.target) for node in live if node.op in ("get_attr", "call_module")} - {UNNAMED}
        named: dict[str, QuantizedLayer] = {}
        for layer, made in self._layers.values():
            calls = [call for call in made if call in live]
            if not calls:
                continue
            path = wish = self._wishes[layer]
            number = 0
            while any(path == one or one.startswith(f"{path}.") or path.startswith(f"{one}.") for one in taken):
                number += 1
                path = f"{wish}_{number}"
            taken.add(path)
            named[path] = layer
            for call in calls:
                call.target = path
        return named


def _layer_path(weight: str) -> str:
    path, _, name = weight.rpartition(".")
    return path if name in ("weight", "fused_weight") and path else weight


def _make_layer(weight: Tensor, bias: bool, sizes: dict[str, Any]) -> QuantizedLayer:
    """The layer for a weight with output channels first."""
    outputs, inputs, *kernel_size = weight.shape
    if not kernel_size:
        return QuantizedLinear(inputs, outputs, bias)
    kind = QuantizedConvTranspose if "output_padding" in sizes else QuantizedConv
    return kind(inputs * sizes["groups"], outputs, kernel_size, **sizes, has_bias=bias)

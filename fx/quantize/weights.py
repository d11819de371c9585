"""``Weights``: the 8-bit weights of a program under conversion, each shared by all calls that share the original."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Node
from fx.quantize.affine import quantize_channels
from fx.quantize.convolution import QuantizedConv
from fx.quantize.integer_operations import groups_of_transposed, stored_tensors
from fx.quantize.layers import PackedModule, QuantizedLayer
from fx.quantize.linear import QuantizedLinear
from fx.quantize.recurrence import GATES
from fx.quantize.recurrent_layer import QuantizedRecurrent
from fx.quantize.scheme import QuantizationScheme
from fx.quantize.transposed_convolution import QuantizedConvTranspose, swap_channels

UNNAMED = "to_be_named"
"""The target of calls of layers until these get their names."""
_SIZES = ("stride", "padding", "output_padding", "groups", "dilation")


class Weights:
    """The 8-bit layers and weights for the calls of a prepared program."""

    def __init__(self, prepared: GraphModule, scheme: QuantizationScheme) -> None:
        self._prepared = prepared
        self._scheme = scheme
        self.calls: defaultdict[PackedModule, list[Node]] = defaultdict(list)
        """The calls of each layer, until they get its name."""
        self._layers: dict[Any, Any] = {}
        self._quantized: dict[Any, tuple[Tensor, Tensor]] = {}
        self._wishes: dict[PackedModule, str] = {}
        self._paths: dict[str, Tensor] = {}

    def tensors(self, node: Node) -> tuple[Node, Tensor, Tensor | None]:
        """Return the node that fetches the weight of a layer, the weight, and the bias."""
        weight, bias = node.kwargs["weight"], node.kwargs.get("bias")
        assert isinstance(weight, Node)
        fetched = None if bias is None else fetch_attribute(self._prepared, str(bias.target))  # type: ignore[union-attr]
        return weight, fetch_attribute(self._prepared, str(weight.target)), fetched

    def quantized(self, node: Node) -> tuple[Tensor, Tensor]:
        """Return the weight of a layer, with output channels first, as integers and scales."""
        choice = self._scheme.choice(node)
        return self._integers(self.tensors(node)[1], choice.weight_bits, choice.per_channel, groups_of_transposed(node))

    def _integers(
        self, weight: Tensor, bits: int, per_channel: bool, groups: int | None = None
    ) -> tuple[Tensor, Tensor]:
        key = (id(weight), bits, per_channel, groups)
        if key not in self._quantized:
            weight = weight if groups is None else swap_channels(weight.detach(), groups)
            self._quantized[key] = quantize_channels(weight, bits=bits, per_channel=per_channel)
        return self._quantized[key]

    def layer(self, node: Node) -> QuantizedLayer:
        """Return the layer for a call; calls with the same tensors and sizes share it."""
        fetched, _, bias = self.tensors(node)
        quantized, scale = self.quantized(node)
        sizes = {name: node.kwargs[name] for name in _SIZES if name in node.kwargs}
        key = (id(quantized), tuple(sizes.items()), None if bias is None else id(bias))
        if key not in self._layers:
            with torch.device("meta"):  # `fill` sets its tensors
                layer = _make_layer(quantized, bias is not None, sizes)
            layer.fill(quantized, scale, None if bias is None else bias.detach().float().contiguous())
            self._layers[key] = layer
            self._wishes[layer] = _layer_path(str(fetched.target))
        return self._layers[key]

    def matrices(self, node: Node) -> Iterator[tuple[Node, Tensor, Tensor]]:
        """Yield for each matrix of a recurrence the node that fetches it, its integers and its scales."""
        choice = self._scheme.choice(node)
        for _, fetched in stored_tensors(node):
            weight = fetch_attribute(self._prepared, str(fetched.target))
            if weight.dim() == 2:
                yield fetched, *self._integers(weight, choice.weight_bits, choice.per_channel)

    def recurrent_layer(self, node: Node) -> QuantizedRecurrent:
        """Return the layer for a call of a recurrence; calls with the same tensors and settings share it."""
        settings = {name: value for name, value in node.kwargs.items() if name not in ("input", "state", "weights")}
        matrices = list(self.matrices(node))
        key = (*(id(quantized) for _, quantized, _ in matrices), *settings.items())
        if key not in self._layers:
            self._layers[key] = self._made_recurrent(node, settings, matrices)
            self._wishes[self._layers[key]] = str(matrices[0][0].target).rpartition(".")[0]
        return self._layers[key]

    def _made_recurrent(
        self, node: Node, settings: dict[str, Any], matrices: list[tuple[Node, Tensor, Tensor]]
    ) -> QuantizedRecurrent:
        biases = [
            fetch_attribute(self._prepared, str(fetched.target))
            for _, fetched in stored_tensors(node)
            if not any(fetched is matrix for matrix, _, _ in matrices)
        ]
        hidden_size = len(matrices[0][1]) // GATES[settings["mode"]]
        output_size = matrices[1][1].shape[1]
        proj_size = output_size if output_size != hidden_size else 0
        with torch.device("meta"):  # `fill` sets its tensors
            layer = QuantizedRecurrent(
                input_size=matrices[0][1].shape[1], hidden_size=hidden_size, proj_size=proj_size, **settings
            )
        for part, (_, quantized, scale) in zip(layer.layers(), matrices, strict=True):
            part.fill(quantized, scale, biases.pop(0).detach().float().contiguous() if part.has_bias else None)
        return layer

    def path_of(self, fetched: Node, quantized: Tensor) -> str:
        """Return the path of a weight of integers that no single layer holds."""
        existing = next((path for path, weight in self._paths.items() if weight is quantized), None)
        if existing is not None:
            return existing
        path = _free(f"quantized.{_layer_path(str(fetched.target))}", self._paths.__contains__)
        self._paths[path] = quantized
        return path

    def named(self, graph: Graph) -> dict[str, PackedModule]:
        """Give the layers that ``graph`` calls the names of their original weights, if these are free."""
        live = dict.fromkeys(graph.nodes)
        used_paths = {str(node.target) for node in live if node.op in ("get_attr", "call_module")} - {UNNAMED}
        named: dict[str, PackedModule] = {}

        def is_taken(path: str) -> bool:
            return any(
                path == used or used.startswith(f"{path}.") or path.startswith(f"{used}.") for used in used_paths
            )

        for layer, all_calls in self.calls.items():
            calls = [call for call in all_calls if call in live]
            if not calls:
                continue
            path = _free(self._wishes[layer], is_taken)
            used_paths.add(path)
            named[path] = layer
            for call in calls:
                call.target = path
        return named


def _free(wish: str, is_taken: Callable[[str], bool]) -> str:
    """Return the path ``wish``, or with the first number appended that makes it free."""
    numbered = itertools.chain((wish,), (f"{wish}_{number}" for number in itertools.count(1)))
    return next(path for path in numbered if not is_taken(path))


def _layer_path(weight: str) -> str:
    path, _, name = weight.rpartition(".")
    return path if name in ("weight", "fused_weight") and path else weight


def _make_layer(weight: Tensor, bias: bool, sizes: dict[str, Any]) -> QuantizedLayer:
    """Return a layer for a weight with output channels first."""
    outputs, inputs, *kernel_size = weight.shape
    if not kernel_size:
        return QuantizedLinear(inputs, outputs, bias)
    kind = QuantizedConvTranspose if "output_padding" in sizes else QuantizedConv
    return kind(inputs * sizes["groups"], outputs, kernel_size, **sizes, has_bias=bias)

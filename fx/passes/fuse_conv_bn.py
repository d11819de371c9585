"""``fuse-conv-bn``: fold evaluated batch norm into the convolution or linear layer before it (paper, section 6.2.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fx.graph_module import GraphModule
from fx.modules.gradients import without_gradients
from fx.node import Node
from fx.operators.facts import Family
from fx.operators.families import is_one_of
from fx.passes.machinery.ranks import Ranks, insert_rank_check
from fx.passes.machinery.weighted_layers import Layers, WeightedLayer
from fx.pipelines.contract import Contract, close
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, ExplainedPass

_FOLDED_INTO: tuple[Family, ...] = ("linear", "convolution", "transposed convolution")


@register_pass
@dataclass(frozen=True, slots=True)
class FuseConvBN(ExplainedPass):
    """Fold batch norms in evaluation mode into the convolution or linear layer before them.

    A batch norm is left alone if it is in training mode or has no running statistics. So is one whose layer has other
    users, shares tensors, has hooks or is a subclass, or where a tensor of either is an input or computed. ``explain``
    lists them with the reasons. The traced module's tensors are never written to.

    Batch norm normalizes dimension 1. That is the features of a linear layer only for a matrix, and the channels of a
    ``Conv1d`` only for a batch. Where the number of dimensions is not known, record shapes first
    (:mod:`fx.passes.shape_prop`).
    """

    checked: bool = True
    """Also fold where the number of dimensions is not known, with a check that fails for any other number."""

    name: ClassVar[str] = "fuse-conv-bn"
    contract: ClassVar[Contract] = close

    def options_for(self, graph_module: GraphModule) -> Iterator[dict[str, bool]]:
        """Yield options to test, whatever the program."""
        yield from ({"checked": checked} for checked in (True, True, False))

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Fold the batch norms one by one."""
        layers = Layers(graph_module)
        folds = deque(fold for _, fold in self._plan(graph_module, layers) if isinstance(fold, _Fold))
        layers.forget_dependences()
        while folds:  # popped, so that the replaced tensors are freed
            fold = folds.popleft()
            norm = fold.norm
            yield Edit(f"{norm.label} into {fold.layer.label}", norm.node.source)
            layers.replace_tensors(fold.layer, fold.tensors())
            if fold.checked is not None:
                insert_rank_check(norm.node, fold.layer.node, fold.checked, self.name)
            norm.node.replace_all_uses_with(fold.layer.node)
            layers.remove(norm)

    def decisions(self, graph_module: GraphModule) -> Iterator[tuple[Node, bool, str]]:
        """Yield each batch norm, whether it is folded, and why."""
        for norm, fold in self._plan(graph_module, Layers(graph_module)):
            yield norm.node, isinstance(fold, _Fold), str(fold)

    def _plan(self, graph_module: GraphModule, layers: Layers) -> list[tuple[WeightedLayer, _Fold | str]]:
        """Return each batch norm with its fold, or with the reason why it is left alone."""
        ranks = Ranks(graph_module)
        plan: list[tuple[WeightedLayer, _Fold | str]] = []
        for node in graph_module.graph.nodes:
            ranks.visit(node)
            norm = layers.get(node)
            if norm is not None and norm.is_batch_norm:
                plan.append((norm, fold := self._examine(norm, layers, ranks, graph_module.training)))
                if isinstance(fold, _Fold) and fold.checked is not None:
                    ranks.known[node] = fold.checked  # later nodes can rely on the check
        return plan

    def _examine(self, norm: WeightedLayer, layers: Layers, ranks: Ranks, training: bool) -> _Fold | str:
        if not is_one_of(norm.kind, "batch norm"):
            return f"its class `{norm.kind.__name__}` is not one of torch's own"
        mode = norm.settings["training"]
        if isinstance(mode, Node) and mode.op == "get_attr":
            return "whether it is in training mode is known when the program runs; `canonicalize` fixes the mode"
        if mode is not False:
            return "it is in training mode, where it normalizes with the statistics of each batch"
        if not norm.tensors.keys() >= {"running_mean", "running_var"}:
            return "it keeps no running statistics"
        tensors = [tensor for tensor in norm.tensors.values() if isinstance(tensor, Tensor)]  # others are nodes
        if training and norm.module is None and any(tensor.requires_grad for tensor in tensors):
            return "the program is in training mode, and its weight and bias are trained"
        layer = layers.get(norm.source)
        if layer is None or not is_one_of(layer.kind, *_FOLDED_INTO):
            return f"its input `{norm.source}` is not the result of one of torch's own convolution or linear layers"
        if others := [f"`%{user}`" for user in layer.node.users if user is not norm.node]:
            return f"the result of `%{layer.node}` is also used by {', '.join(others)}"
        if obstacle := layers.obstacle(layer) or layers.obstacle(norm) or layers.why_not_joined(layer, norm):
            return obstacle
        rank, expected = ranks.known.get(layer.node, ranks.known.get(norm.node)), layer.tensors["weight"].dim()
        if rank not in (None, expected):
            return f"`%{layer.node}` has {rank} dimensions, where batch norm is not along the layer's features"
        checked = expected if rank is None and expected <= 3 else None
        if checked and not self.checked:
            return f"it is not known that `%{layer.node}` has {expected} dimensions: record shapes to fold it"
        return _fold(layer, norm, checked)


@dataclass(frozen=True, slots=True)
class _Fold:
    """A layer, the batch norm to fold into it, and the rank to check at run time, if any."""

    layer: WeightedLayer
    norm: WeightedLayer
    checked: int | None

    def tensors(self) -> dict[str, Tensor]:
        """Compute the folded weight and bias: on demand, as they take as much memory as the layer's own."""
        folded = without_gradients(lambda: _folded(self.layer, self.norm))
        assert not isinstance(folded, str), "checked when the fold was planned"
        return folded

    def __str__(self) -> str:
        text = f"folded into `%{self.layer.node}`"
        return f"{text}, with a check that it has {self.checked} dimensions" if self.checked else text


def _fold(layer: WeightedLayer, norm: WeightedLayer, checked: int | None) -> _Fold | str:
    """Return the fold of ``norm`` into ``layer``, or the reason why it cannot be folded."""
    weight = layer.tensors["weight"]
    transposed, groups = _grouped(layer)
    channels = groups * weight.shape[1] if transposed else weight.shape[0]
    dtypes = (weight.dtype, torch.float32) if weight.dtype.itemsize == 2 else (weight.dtype,)
    for tensor in norm.tensors.values():
        if tensor.shape != (channels,) or tensor.dtype not in dtypes or tensor.device != weight.device:
            return f"`%{layer.node}` and batch norm differ in channels, dtype or device"
    if weight.dtype.itemsize == 2 and isinstance(why := without_gradients(lambda: _folded(layer, norm)), str):
        return why
    return _Fold(layer, norm, checked)


def _grouped(layer: WeightedLayer) -> tuple[bool, int]:
    """Return whether a layer is transposed, and the number of groups into which its weight divides the channels."""
    transposed = is_one_of(layer.kind, "transposed convolution")
    return transposed, layer.settings["groups"] if transposed else 1


def _folded(layer: WeightedLayer, norm: WeightedLayer) -> dict[str, Tensor] | str:
    """Return the scaled weight and the shifted bias, or the reason why the dtype cannot represent the weight."""
    weight, bias = layer.tensors["weight"], layer.tensors.get("bias")
    transposed, groups = _grouped(layer)
    wide = torch.promote_types(weight.dtype, torch.float32)
    mean, variance = norm.tensors["running_mean"].to(wide), norm.tensors["running_var"].to(wide)
    gain, offset = norm.tensors.get("weight"), norm.tensors.get("bias")
    scale = torch.rsqrt(variance + norm.settings["eps"]) * (1 if gain is None else gain.to(wide))
    shift = ((0 if bias is None else bias.to(wide)) - mean) * scale + (0 if offset is None else offset.to(wide))
    factor = scale.view(groups, *([1] if transposed else []), -1, *[1] * (weight.dim() - (2 if transposed else 1)))
    product = weight.unflatten(0, (groups, -1)).to(wide) * factor
    folded = product.to(weight.dtype)
    if weight.dtype.itemsize == 2 and not weight.is_meta:
        size = product.abs().amax([dim for dim, length in enumerate(factor.shape) if length == 1], keepdim=True)
        if bool(((folded.to(wide) - product).abs() > size * torch.finfo(weight.dtype).eps).any()):
            return f"the folded weight of `%{layer.node}` would be too large or too small for {weight.dtype}"
    # The bias that a layer without one gets is trained if that of the norm was.
    trained = bias if bias is not None else offset
    tensors = {"weight": folded.flatten(0, 1), "bias": shift.to(weight.dtype)}
    if layer.module is not None or isinstance(weight, nn.Parameter):
        tensors["weight"] = nn.Parameter(tensors["weight"], weight.requires_grad)
        tensors["bias"] = nn.Parameter(tensors["bias"], trained is not None and trained.requires_grad)
    return tensors

"""``fuse-conv-bn``: fold evaluated batch norm into the convolution or linear layer that alone feeds it (section 6.2.2)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.graph_module import GraphModule
from fx.node import Node
from fx.passes.contract import Contract, close
from fx.passes.layers import Layer, count_uses, find_own_parent, read_layer, remove_layer, replace_tensors
from fx.passes.ranks import find_ranks
from fx.passes.registry import register_pass
from fx.provenance import SourceLocation

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TRANSPOSED += (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_LINEAR = (nn.Linear, F.linear)
_FEEDING = (nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d, *_TRANSPOSED, *_LINEAR)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, F.batch_norm, torch.batch_norm)


@dataclass(frozen=True, slots=True)
class Fusion:
    """What becomes of one batch norm."""

    node: str
    """Name of its node."""
    fused: bool
    """Whether it is folded."""
    reason: str
    """Into what it is folded, or why it is left alone."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""


@register_pass
@dataclass(frozen=True, slots=True)
class FuseConvBN:
    """Fold batch norms in evaluation mode into the convolution or linear layer before them.

    Left alone are batch norms in training mode or without running statistics, and those whose layer has other users,
    shares tensors, has hooks or is a subclass; ``explain`` says which and why. New tensors take the place of the
    program's; the traced module's are never written to. Batch norm normalizes dimension 1: that is a convolution's
    channels, whose input is taken to be batched unless recorded shapes deny it, but a linear layer's features only
    if its result is a matrix. Recorded shapes show that, or what comes before, such as ``flatten(1)``.
    """

    name: ClassVar[str] = "fuse-conv-bn"
    contract: ClassVar[Contract] = close

    assume_matrices: bool = False
    """Take results of linear layers to be matrices where nothing in the program shows how many dimensions they have."""

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Edit ``graph_module`` and return it."""
        folds = [fold for _, fold in self._plan(graph_module) if isinstance(fold, _Fold)]
        for fold in folds:
            replace_tensors(graph_module, fold.layer, fold.tensors)
            fold.norm.node.replace_all_uses_with(fold.layer.node)
            remove_layer(graph_module, fold.norm)
        if folds:
            graph_module.recompile()
        return graph_module

    def explain(self, graph_module: GraphModule) -> list[Fusion]:
        """Return what this pass would do to each batch norm of ``graph_module``, and why. Nothing is changed."""
        return [
            Fusion(node.name, isinstance(fold, _Fold), str(fold), node.source)
            for node, fold in self._plan(graph_module)
        ]

    def _plan(self, graph_module: GraphModule) -> list[tuple[Node, _Fold | str]]:
        """Each batch norm with the way to fold it, or why not."""
        layers = {node: read_layer(graph_module, node) for node in graph_module.graph.nodes}
        uses, ranks = count_uses(graph_module), find_ranks(graph_module)
        plan: list[tuple[Node, _Fold | str]] = []
        for node, norm in layers.items():
            if norm is not None and "running_mean" in norm.names:
                layer = layers[norm.source] if isinstance(norm.source, Node) else None
                plan.append((node, self._objection(graph_module, norm, layer, uses, ranks) or _fold(layer, norm)))
        return plan

    def _objection(
        self,
        graph_module: GraphModule,
        layer: Layer | None,
        norm: Layer,
        uses: Counter[int],
        ranks: dict[Node, int],
    ) -> str | None:
        """Why ``norm`` cannot be folded into ``layer``, which feeds it, if it cannot."""
        if norm.kind not in _NORMS:
            return f"its class `{norm.kind.__name__}` is not one of torch's own"
        if norm.settings["training"] is not False:
            return "it is in training mode, where it normalizes with the statistics of each batch"
        if not norm.tensors.keys() >= {"running_mean", "running_var"}:
            return "it keeps no running statistics"
        if layer is None or layer.kind not in _FEEDING:
            return f"its input `{norm.source}` is not the result of one of torch's own convolution or linear layers"
        if others := [f"`%{user}`" for user in layer.node.users if user is not norm.node]:
            return f"the result of `%{layer.node}` is also used by {', '.join(others)}"
        return (
            _objection_to_state(graph_module, layer, uses)
            or _objection_to_state(graph_module, norm, uses)
            or _objection_to_tensors(layer, norm)
            or self._objection_to_rank(layer, ranks.get(layer.node, ranks.get(norm.node)))
        )

    def _objection_to_rank(self, layer: Layer, rank: int | None) -> str | None:
        if rank is None and layer.kind in _LINEAR and not self.assume_matrices:
            return f"`%{layer.node}` may have three dimensions, and then it would normalize another one than the features"
        if rank not in (None, layer.tensors["weight"].dim()):
            return f"`%{layer.node}` has {rank} dimensions, and it normalizes another one than the layer's features"
        return None


def _objection_to_state(graph_module: GraphModule, layer: Layer, uses: Counter[int]) -> str | None:
    """What stands against replacing the module or the tensors of ``layer``."""
    if layer.is_customized():
        return f"`%{layer.node}` has hooks or a forward of its own"
    if any(uses[id(held)] > 1 for held in (layer.module, *layer.tensors.values())) or any(
        len(node.users) > 1 for node in layer.fetched.values()
    ):
        return f"`%{layer.node}` shares its module or its tensors with another operation"
    if any(find_own_parent(graph_module, path) is None for path in layer.paths):
        return f"`%{layer.node}` keeps its tensors in a module that is also called as a whole"
    return None


def _objection_to_tensors(layer: Layer, norm: Layer) -> str | None:
    """What stands against computing with the tensors of both."""
    tensors = [*layer.tensors.values(), *norm.tensors.values()]
    plain = all(type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided for tensor in tensors)
    numbers = (norm.settings["eps"], layer.settings.get("groups", 1))
    if not plain or not all(type(number) in (int, float) for number in numbers):
        return "a weight or setting is computed by the program, or is no plain tensor"
    weight: Tensor = layer.tensors["weight"]
    allowed = {weight.dtype, torch.float32} if weight.dtype.itemsize == 2 else {weight.dtype}
    if not weight.is_floating_point() or {tensor.dtype for tensor in norm.tensors.values()} - allowed:
        return "the dtypes of layer and batch norm do not go together"
    ...

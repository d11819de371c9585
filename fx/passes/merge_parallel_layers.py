"""``merge-parallel-layers``: merge layers that read the same value, such as the projections of attention."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from fx.analysis.dependence import Dependences
from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.naming.targets import qualified_name
from fx.node import Node
from fx.operators.effects import effect_of, why_impure
from fx.operators.families import is_one_of
from fx.operators.tensor_queries import names_of
from fx.passes.machinery.weighted_layers import Layers, WeightedLayer, copy_with
from fx.pipelines.contract import Contract, close
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, ExplainedPass
from fx.provenance import inherit

_SETTINGS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_LAYOUT = names_of("memory").union(
    "as_strided is_non_overlapping_and_dense numpy tolist untyped_storage view view_as view_as_complex _unsafe_view "
    "sym_stride sym_storage_offset".split()
)
"""Operations whose result or validity depends on the memory layout of a tensor."""


@register_pass
@dataclass(frozen=True, slots=True)
class MergeParallelLayers(ExplainedPass):
    """Merge several linear layers, or several convolutions, that read the same value into one layer.

    The weights are concatenated and the result is split: one large product replaces several small ones. Convolutions
    must agree in kernel, stride, padding and dilation and have one group. Where only some layers have a bias, the
    others get one of zeros, which training would change. The merged layer runs in the place of the first and has new
    tensors; the traced module's are never written to.

    The parts of the result are views of it. So a layer is left alone if its result is written to or returned, or used
    by an operation that may depend on the memory layout. An example is ``view``, unless it only divides the features of
    a linear layer. Subclasses and layers with hooks or shared tensors are left alone too. ``explain`` gives the
    reasons. Fold batch norms first: one that follows a part of a merged layer cannot be folded into it.
    """

    least: int = 2
    """Smallest number of layers to merge; at least two."""

    name: ClassVar[str] = "merge-parallel-layers"
    contract: ClassVar[Contract] = close

    def __post_init__(self) -> None:
        if self.least < 2:
            raise PassError(
                "merge-parallel-layers merges two layers or more", value=f"least={self.least}", remedy="leave it out"
            )

    def options_for(self, graph_module: GraphModule) -> Iterator[dict[str, int]]:
        """Yield options to test, whatever the program."""
        yield from ({"least": least} for least in (2, 2, 3))

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Merge the groups of layers one by one."""
        layers = Layers(graph_module)
        for group in self._plan(graph_module, layers)[0]:
            names = ", ".join(layer.label for layer in group[1:])
            yield Edit(f"{names} into {group[0].label}", group[0].node.source)
            _merge(graph_module, layers, group)

    def decisions(self, graph_module: GraphModule) -> list[tuple[Node, bool, str]]:
        """Return each layer that shares its input with another, whether it is merged, and why."""
        groups, reasons = self._plan(graph_module, Layers(graph_module))
        decisions = [(layer.node, False, reason) for layer, reason in reasons.items()]
        for group in groups:
            for layer in group:
                others = ", ".join(f"`%{other.node}`" for other in group if other is not layer)
                decisions.append((layer.node, True, f"merged with {others}"))
        return sorted(decisions)

    def _plan(
        self, graph_module: GraphModule, layers: Layers
    ) -> tuple[list[list[WeightedLayer]], dict[WeightedLayer, str]]:
        """Return the groups to merge, and for every other layer that shares its input the reason why it is in none."""
        beside: dict[Node, list[WeightedLayer]] = {}
        for layer in layers:
            if layer.is_batch_norm or is_one_of(layer.kind, "transposed convolution"):
                continue  # not a candidate, so not reported
            if isinstance(layer.source, Node) and "weight" in layer.tensors:
                beside.setdefault(layer.source, []).append(layer)
        several = [together for together in beside.values() if len(together) > 1]
        if not several:
            return [], {}
        dependences = layers.dependences
        chosen: list[list[WeightedLayer]] = []
        reasons: dict[WeightedLayer, str] = {}
        for together in several:
            for group in _group(together, layers, dependences, reasons):
                if len(group) >= self.least:
                    chosen.append(group)
                else:
                    why = f"too few other layers of its kind can be merged with it where they read `%{group[0].source}`"
                    reasons.update((layer, reasons.get(layer, why)) for layer in group)
        merged = {layer for group in chosen for layer in group}
        return chosen, {layer: why for layer, why in reasons.items() if layer not in merged}


def _group(
    together: Sequence[WeightedLayer], layers: Layers, dependences: Dependences, reasons: dict[WeightedLayer, str]
) -> list[list[WeightedLayer]]:
    """Group the layers that can be merged, among those that read one value; add the others to ``reasons``."""
    groups: list[list[WeightedLayer]] = []
    latest: dict[Any, list[WeightedLayer]] = {}
    for layer in together:
        if is_one_of(layer.kind, "linear", "convolution"):
            alone = layers.obstacle(layer)
        else:
            name = getattr(layer.kind, "__name__", str(layer.kind))
            alone = f"`{name}` is not one of torch's own linear layers and convolutions"
        kind = _kind_of(layer) if alone is None else alone
        why_apart = kind if isinstance(kind, str) else _why_no_view(layer, dependences)
        if why_apart is not None:
            reasons[layer] = why_apart
            continue
        group = latest.get(kind)
        why = None if group is None else dependences.why_not_merge(group[0].node, layer.node)
        if why is not None:
            reasons[layer] = why
        if group is None or why is not None:
            groups.append(group := [])
            latest[kind] = group
        group.append(layer)
    return groups


# Obstacles.


def _why_no_view(layer: WeightedLayer, dependences: Dependences) -> str | None:
    """Return why the layer's result cannot be a view of another tensor."""
    aliases = dependences.aliases
    if writers := dependences.writers(layer.node):
        return f"{why_impure(writers[0]) or f'`%{writers[0]}` uses it up'}, which may be memory of its result"
    if aliases.returned[aliases.position[layer.node]]:
        return "its result is returned or kept, and must not be part of another tensor"
    reached, visited = [layer.node], {layer.node}
    for value in reached:  # grows during the loop
        for user in value.users:
            if user.op == "call_method" and user.target == "contiguous" and len(user.args) == 1 and not user.kwargs:
                continue  # contiguous for any layout of the value
            if _is_layout_dependent(user) and not (value is layer.node and _divides_features(layer, user)):
                return f"`%{user}` may depend on how its result lies in memory"
            if user not in visited and aliases.may_share(user, value):
                visited.add(user)
                reached.append(user)
    return None


def _is_layout_dependent(user: Node) -> bool:
    if user.op == "call_method":
        return user.target in _LAYOUT
    effect = effect_of(user)
    if effect is not None and effect.kind in ("unknown", "state"):
        return True
    if user.op == "call_module":
        owner = cast("GraphModule", user.graph.owning_module)
        return not type(owner.get_submodule(str(user.target))).__module__.startswith("torch.nn.")
    name = qualified_name(user.target)
    parts = name.split(".")
    return parts[0] not in ("torch", "operator", "builtins", "math") or not _LAYOUT.isdisjoint(parts)


def _divides_features(layer: WeightedLayer, user: Node) -> bool:
    """Return whether ``user`` is a ``view`` that only divides the last dimension of a linear layer's result."""
    sizes: Sequence[Any] = user.args[1:]
    if layer.dims or user.op != "call_method" or user.target != "view" or user.kwargs:
        return False
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = cast("Sequence[Any]", sizes[0])
    features = layer.tensors["weight"].shape[0]
    product = 1
    for size in reversed(sizes):
        if type(size) is not int or size < 1:
            return False
        product *= size
        if product >= features:
            return product == features
    return False


# Layers of the same kind.


def _kind_of(layer: WeightedLayer) -> Any:
    """Return a key that is equal for layers that can be merged, or as text the reason why this layer cannot be."""
    weight = layer.tensors["weight"]
    settings = _settings(layer)
    if any(isinstance(setting, Node) for setting in settings.values()):
        return f"a setting of `%{layer.node}` is computed by the program"
    if settings.get("groups", 1) != 1:
        return f"it has {settings['groups']} groups, each with inputs of its own"
    if weight.numel() == 0:
        return "its weight is empty, which torch's kernels treat differently"
    bias = layer.tensors.get("bias")
    if bias is not None and (bias.dtype, bias.device) != (weight.dtype, weight.device):
        return "its weight and its bias differ in dtype or device"
    dimensions = layer.dims
    spread = tuple(_spread(value, dimensions) for value in settings.values())
    kernel = tuple(weight.shape[1:])
    return layer.kind, kernel, spread, weight.dtype, weight.device, weight.requires_grad, type(weight)


def _settings(layer: WeightedLayer) -> dict[str, Any]:
    """Return the settings of a convolution, by the names of its arguments."""
    if not layer.dims:
        return {}
    if layer.module is not None:
        return {name: getattr(layer.module, name) for name in (*_SETTINGS, "padding_mode")}
    arguments = dict(zip(layer.parameters, layer.node.args, strict=False))
    arguments.update(layer.node.kwargs)
    return {name: arguments.get(name, default) for name, default in _SETTINGS.items()}


def _spread(value: Any, dimensions: int) -> Any:
    """Expand a setting of a convolution to one number per dimension."""
    if isinstance(value, int):
        return (value,) * dimensions
    if isinstance(value, (tuple, list)):
        each = tuple(cast("Sequence[Any]", value))
        return each * dimensions if len(each) == 1 else each
    return value


# Merging.


def _merge(graph_module: GraphModule, layers: Layers, group: Sequence[WeightedLayer]) -> None:
    graph, first = graph_module.graph, group[0]
    sizes = [layer.tensors["weight"].shape[0] for layer in group]
    weight, bias = _stack(group)
    call = _call_function if first.module is None else _call_module
    with graph.inserting_before(first.node):
        merged = call(graph_module, layers, first, weight, bias)
        dim = -1 - first.dims  # without counting a batch dimension, which may be missing
        parts = graph.call_function(torch.split, (merged, sizes), {"dim": dim})
        elements = [graph.call_function(operator.getitem, (parts, number)) for number in range(len(group))]
    for node in (merged, parts):
        inherit(node, [layer.node for layer in group])
    for layer, part in zip(group, elements, strict=True):
        layer.node.replace_all_uses_with(part)
        layers.remove(layer)


def _stack(group: Sequence[WeightedLayer]) -> tuple[Tensor, Tensor | None]:
    """Concatenate the weights and biases of several layers, as parameters if those of the first layer are."""
    weights = [layer.tensors["weight"] for layer in group]
    biases = [layer.tensors.get("bias") for layer in group]
    present = [bias for bias in biases if bias is not None]
    weight = torch.cat([tensor.detach() for tensor in weights])
    bias = None
    if present:
        zeros = (tensor.new_zeros(tensor.shape[0]) for tensor in weights)
        bias = torch.cat([zero if own is None else own.detach() for own, zero in zip(biases, zeros, strict=True)])
    if isinstance(weights[0], nn.Parameter):
        weight = nn.Parameter(weight, weights[0].requires_grad)
        bias = None if bias is None else nn.Parameter(bias, any(tensor.requires_grad for tensor in present))
    return weight, bias


def _call_module(
    graph_module: GraphModule, layers: Layers, first: WeightedLayer, weight: Tensor, bias: Tensor | None
) -> Node:
    """Call a new module with these tensors, added beside the module of ``first``."""
    module = copy_with(cast("nn.Module", first.module), {"weight": weight, "bias": bias})
    setattr(module, "out_channels" if first.dims else "out_features", weight.shape[0])
    prefix, _, name = str(first.node.target).rpartition(".")
    path = layers.add_attribute(prefix, f"{name}_merged", module)
    return graph_module.graph.call_module(path, _input(first))


def _call_function(
    graph_module: GraphModule, layers: Layers, first: WeightedLayer, weight: Tensor, bias: Tensor | None
) -> Node:
    """Call the function of ``first`` with these tensors, added as attributes beside its own."""
    graph = graph_module.graph
    prefix = str(first.fetched["weight"].target).rpartition(".")[0]
    fetched = [
        None if tensor is None else graph.get_attr(layers.add_attribute(prefix, f"merged_{name}", tensor))
        for name, tensor in (("weight", weight), ("bias", bias))
    ]
    return graph.call_function(first.kind, (*_input(first), *fetched), _settings(first))


def _input(layer: WeightedLayer) -> tuple[Node]:
    """Return the layer's current input: merging other layers may have changed it."""
    node = layer.node
    return (cast("Node", node.args[0] if node.args else node.kwargs["input"]),)

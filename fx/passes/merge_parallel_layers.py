"""``merge-parallel-layers``: layers that read the same value become one, as with the projections of attention."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from fx.analysis.dependence import Dependences
from fx.errors import PassError
from fx.graph_module import GraphModule, expect_program
from fx.naming.targets import qualified_name
from fx.node import Node
from fx.operators.effects import effect_of, why_impure
from fx.operators.families import is_one_of
from fx.operators.tensor_queries import names_of
from fx.passes.contract import Contract, close
from fx.passes.registered_passes import register_pass
from fx.passes.rewriting import Edit, RewritingPass
from fx.passes.weighted_layers import Layers, WeightedLayer, copy_with
from fx.provenance import SourceLocation, inherit

_SETTINGS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_LAYOUT = names_of("memory").union(
    "as_strided is_non_overlapping_and_dense numpy tolist untyped_storage view view_as view_as_complex _unsafe_view "
    "sym_stride sym_storage_offset".split()
)
"""Operations whose result, or whether they work at all, depends on how a tensor lies in memory."""


@dataclass(frozen=True, slots=True)
class Merging:
    """What becomes of one of several layers that read the same value."""

    node: str
    """Name of its node."""
    merged: bool
    """Whether it becomes part of another one."""
    reason: str
    """With which layers it is merged, or why it is left alone."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""


@register_pass
@dataclass(frozen=True, slots=True)
class MergeParallelLayers(RewritingPass):
    """Make one layer of several linear layers, or several convolutions, that read the same value.

    The weights are put one behind the other, and the result is split: one large product in the place of small ones.
    Convolutions must agree in kernel, stride, padding and dilation and have one group. Where only some have a bias, the
    others get one of zeros, which training would change. The merged layer runs where the first of them stood, and has
    new tensors; the traced module's are never written to.

    The parts of the result are views of it. So layers are left alone whose results are written to or returned, or
    used by something that may depend on how they lie in memory, such as ``view`` unless it only divides the features
    of a linear layer. Left alone are subclasses and layers with hooks or shared tensors too; ``explain`` says why. Fold
    batch norms first: what is behind a part of a merged layer cannot be folded into it.
    """

    least: int = 2
    """How many layers have to come together for a merge to be worth it; two at least."""

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
        """Merge one group of layers after the other."""
        layers = Layers(graph_module)
        for group in self._plan(graph_module, layers)[0]:
            names = ", ".join(layer.label for layer in group[1:])
            yield Edit(f"{names} into {group[0].label}", group[0].node.source)
            _merge(graph_module, layers, group)

    def explain(self, graph_module: GraphModule) -> list[Merging]:
        """Return what this pass would do to each layer that reads what another one reads, and why. Nothing changes."""
        expect_program(graph_module, f"{type(self).__name__} explains a GraphModule")
        groups, reasons = self._plan(graph_module, Layers(graph_module))
        report = dict.fromkeys(reasons, False)
        for group in groups:
            for layer in group:
                others = ", ".join(f"`%{other.node}`" for other in group if other is not layer)
                reasons[layer], report[layer] = f"merged with {others}", True
        ordered = sorted(report, key=lambda layer: layer.node)
        return [Merging(layer.node.name, report[layer], reasons[layer], layer.node.source) for layer in ordered]

    def _plan(
        self, graph_module: GraphModule, layers: Layers
    ) -> tuple[list[list[WeightedLayer]], dict[WeightedLayer, str]]:
        """Groups to be merged, and of each other layer that reads what another one reads why it is in none."""
        beside: dict[Node, list[WeightedLayer]] = {}
        for layer in layers:
            if layer.is_batch_norm or is_one_of(layer.kind, "transposed convolution"):
                continue  # which nobody expects to be merged
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
    """Divide layers that read one value into those that can be merged; fills ``reasons`` for those that cannot."""
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


# What stands against it.


def _why_no_view(layer: WeightedLayer, dependences: Dependences) -> str | None:
    """Return why the layer's result cannot be a view of another tensor."""
    aliases = dependences.aliases
    if writers := dependences.writers(layer.node):
        return f"{why_impure(writers[0]) or f'`%{writers[0]}` uses it up'}, which may be memory of its result"
    if aliases.returned[aliases.position[layer.node]]:
        return "its result is returned or kept, and must not be part of another tensor"
    reached, seen = [layer.node], {layer.node}
    for value in reached:  # which grows
        for user in value.users:
            if user.op == "call_method" and user.target == "contiguous" and len(user.args) == 1 and not user.kwargs:
                continue  # a copy, however the value lies
            if _is_layout_dependent(user) and not (value is layer.node and _divides_features(layer, user)):
                return f"`%{user}` may depend on how its result lies in memory"
            if user not in seen and aliases.may_share(user, value):
                seen.add(user)
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
    """Return whether ``user`` is a ``view`` that leaves the dimensions of a linear layer's result before the last."""
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


# Which layers are of one kind.


def _kind_of(layer: WeightedLayer) -> Any:
    """Return what layers must have in common to be merged, or why this one cannot be."""
    weight = layer.tensors["weight"]
    settings = _settings(layer)
    if any(isinstance(setting, Node) for setting in settings.values()):
        return f"a setting of `%{layer.node}` is computed by the program"
    if settings.get("groups", 1) != 1:
        return f"it has {settings['groups']} groups, each with inputs of its own"
    if weight.numel() == 0:
        return "its weight is empty, which torch's kernels do not agree on what to make of"
    bias = layer.tensors.get("bias")
    if bias is not None and (bias.dtype, bias.device) != (weight.dtype, weight.device):
        return "its weight and its bias differ in dtype or device"
    dimensions = layer.dims
    spread = tuple(_spread(value, dimensions) for value in settings.values())
    kernel = tuple(weight.shape[1:])
    return layer.kind, kernel, spread, weight.dtype, weight.device, weight.requires_grad, type(weight)


def _settings(layer: WeightedLayer) -> dict[str, Any]:
    """The settings of a convolution, under the names of its arguments."""
    if not layer.dims:
        return {}
    if layer.module is not None:
        return {name: getattr(layer.module, name) for name in (*_SETTINGS, "padding_mode")}
    given = dict(zip(layer.parameters, layer.node.args, strict=False))
    given.update(layer.node.kwargs)
    return {name: given.get(name, default) for name, default in _SETTINGS.items()}


def _spread(value: Any, dimensions: int) -> Any:
    """A setting of a convolution for each of its dimensions, though one number may stand for all."""
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
        taken = [graph.call_function(operator.getitem, (parts, number)) for number in range(len(group))]
    for node in (merged, parts):
        inherit(node, [layer.node for layer in group])
    for layer, part in zip(group, taken, strict=True):
        layer.node.replace_all_uses_with(part)
        layers.remove(layer)


def _stack(group: Sequence[WeightedLayer]) -> tuple[Tensor, Tensor | None]:
    """The weights and biases of several layers behind one another, parameters if those of the first layer are."""
    weights = [layer.tensors["weight"] for layer in group]
    biases = [layer.tensors.get("bias") for layer in group]
    given = [bias for bias in biases if bias is not None]
    weight = torch.cat([one.detach() for one in weights])
    bias = None
    if given:
        zeros = (one.new_zeros(one.shape[0]) for one in weights)
        bias = torch.cat([zero if own is None else own.detach() for own, zero in zip(biases, zeros, strict=True)])
    if isinstance(weights[0], nn.Parameter):
        weight = nn.Parameter(weight, weights[0].requires_grad)
        bias = None if bias is None else nn.Parameter(bias, any(one.requires_grad for one in given))
    return weight, bias


def _call_module(
    graph_module: GraphModule, layers: Layers, first: WeightedLayer, weight: Tensor, bias: Tensor | None
) -> Node:
    """Call a new module with these tensors, which stands beside the one of ``first``."""
    module = copy_with(cast("nn.Module", first.module), {"weight": weight, "bias": bias})
    setattr(module, "out_channels" if first.dims else "out_features", weight.shape[0])
    prefix, _, name = str(first.node.target).rpartition(".")
    path = layers.add_attribute(prefix, f"{name}_merged", module)
    return graph_module.graph.call_module(path, _input(first))


def _call_function(
    graph_module: GraphModule, layers: Layers, first: WeightedLayer, weight: Tensor, bias: Tensor | None
) -> Node:
    """Call the function of ``first`` with these tensors, which become attributes beside its own."""
    graph = graph_module.graph
    prefix = str(first.fetched["weight"].target).rpartition(".")[0]
    fetched = [
        None if tensor is None else graph.get_attr(layers.add_attribute(prefix, f"merged_{name}", tensor))
        for name, tensor in (("weight", weight), ("bias", bias))
    ]
    return graph.call_function(first.kind, (*_input(first), *fetched), _settings(first))


def _input(layer: WeightedLayer) -> tuple[Node]:
    """Return what the layer is applied to now: merging others may have changed that."""
    node = layer.node
    return (cast("Node", node.args[0] if node.args else node.kwargs["input"]),)

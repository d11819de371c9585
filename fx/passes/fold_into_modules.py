"""``fold-into-modules``: replace functions with weights by calls of ``torch.nn`` modules (paper, section 5.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from fx.canonical.calls import CallSpeller
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.modules.containers import Container
from fx.node import Node
from fx.operators.families import find_operator
from fx.passes.machinery.weighted_layers import TENSORS
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, RewritingPass

_Settings = dict[str, Any]
_Tensors = dict[str, Tensor]
_Build = Callable[[Any, _Settings, _Tensors], nn.Module]
"""A function that builds a module on the meta device from its class, its settings, and the tensors that it will get."""


def _convolution(kind: Any, settings: _Settings, tensors: _Tensors) -> nn.Module:
    outputs, inputs, *kernel = tensors["weight"].shape
    if "output_padding" in settings:  # transposed
        outputs, inputs = inputs * settings["groups"], outputs
    else:
        inputs *= settings["groups"]
    return kind(inputs, outputs, tuple(kernel), **settings, bias="bias" in tensors, device="meta")


def _linear(kind: Any, settings: _Settings, tensors: _Tensors) -> nn.Module:
    outputs, inputs = tensors["weight"].shape
    return kind(inputs, outputs, bias="bias" in tensors, device="meta")


def _embedding(kind: Any, settings: _Settings, tensors: _Tensors) -> nn.Module:
    count, size = tensors["weight"].shape
    return kind(count, size, **settings, device="meta")


def _layer_norm(kind: Any, settings: _Settings, tensors: _Tensors) -> nn.Module:
    return kind(settings["normalized_shape"], settings["eps"], "weight" in tensors, "bias" in tensors, device="meta")


def _group_norm(kind: Any, settings: _Settings, tensors: _Tensors) -> nn.Module:
    return kind(settings["num_groups"], len(tensors["weight"]), settings["eps"], device="meta")


def _batch_norm(kind: Any, settings: _Settings, tensors: _Tensors) -> nn.Module:
    features, affine = len(tensors["running_mean"]), "weight" in tensors
    norm: nn.Module = kind(features, settings["eps"], settings["momentum"], affine=affine, device="meta")
    norm._buffers["num_batches_tracked"] = None
    return norm


_BUILDERS: dict[str | type[nn.Module], _Build] = {
    "convolution": _convolution,
    "transposed convolution": _convolution,
    "batch norm": _batch_norm,
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
"""The function that builds a module, by family of operators or by class."""


def _builders(target: Any) -> dict[type[nn.Module], _Build]:
    """Return the classes of modules that call the function ``target``, each with the function that builds one."""
    row = find_operator(target)
    candidates = {} if row is None else {kind: _BUILDERS.get(row.family, _BUILDERS.get(kind)) for kind in row.modules}
    return {kind: build for kind, build in candidates.items() if build is not None and kind is not nn.SyncBatchNorm}


@register_pass
@dataclass(frozen=True, slots=True)
class FoldIntoModules(RewritingPass):
    """Replace functions by modules where all their tensors are attributes of one path, as after ``canonicalize``.

    Linear layers, convolutions, embeddings and normalizations become modules of ``torch.nn`` at the path of their
    tensors, so the names in the ``state_dict`` stay. A call is left alone if another argument is computed, or if its
    tensors have other uses, are computed or missing, or share their path with other attributes. A batch norm becomes a
    module only in evaluation mode, and only if its node records the original class. Activations, pooling and other
    functions without weights stay functions.
    """

    name: ClassVar[str] = "fold-into-modules"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Yield one edit a call."""
        speller = CallSpeller(graph_module)
        uses = _uses(graph_module)
        for node in graph_module.graph.find_nodes(op="call_function"):
            folding = _find_folding(graph_module, node, speller, uses)
            if folding is not None:
                yield Edit(f"{node} becomes the module {folding.path}", node.source)
                _fold(graph_module, node, folding)


@dataclass(frozen=True, slots=True, eq=False)
class _Folding:
    """A call that can become a module."""

    path: str
    """Path of the new module."""
    module: nn.Module
    """The module."""
    source: Node
    """Its input."""
    fetched: list[Node]
    """The nodes that fetch its tensors."""


def _uses(graph_module: GraphModule) -> Counter[int]:
    """Count the uses of each tensor, by id, under all its names."""
    uses: Counter[int] = Counter()
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            uses[id(fetch_attribute(graph_module, str(node.target)))] += len(node.users)
        elif node.op == "call_module":
            module = graph_module.get_submodule(str(node.target))
            uses.update(map(id, (*module.parameters(), *module.buffers())))
    return uses


def _find_folding(graph_module: GraphModule, node: Node, speller: CallSpeller, uses: Counter[int]) -> _Folding | None:
    call = speller.spell(node)
    target, arguments = (node.target, node.kwargs) if call is None else (call.target, call.kwargs)
    builders = _builders(target)
    if not builders or not isinstance(source := arguments.get("input"), Node):
        return None
    fetched = {name: value for name in TENSORS if (value := arguments.get(name)) is not None}
    settings = {name: value for name, value in arguments.items() if name not in ("input", *TENSORS)}
    path = _common_path(fetched)
    if path is None or _has_nodes(settings) or settings.pop("training", False) is not False:
        return None
    tensors: _Tensors = {name: fetch_attribute(graph_module, str(n.target)) for name, n in fetched.items()}
    owner = _owner(graph_module, path, tensors)
    # BatchNorm1d, 2d and 3d all call F.batch_norm: only the node's metadata tells them apart.
    kind = _original_class(node, path) if len(builders) > 1 else next(iter(builders))
    if owner is None or kind not in builders or any(uses[id(tensor)] != 1 for tensor in tensors.values()):
        return None
    module = _with_tensors(kind, builders[kind], settings, owner, tensors)
    return None if module is None else _Folding(path, module, source, list(fetched.values()))


def _common_path(fetched: dict[str, Any]) -> str | None:
    """Return the path whose attributes all tensors are, each under its own name, or None."""
    paths: set[str] = set()
    for name, node in fetched.items():
        if not isinstance(node, Node) or node.op != "get_attr":
            return None
        path, _, attribute = str(node.target).rpartition(".")
        if attribute != name:
            return None
        paths.add(path)
    return paths.pop() if len(paths) == 1 and "" not in paths else None


def _has_nodes(settings: _Settings) -> bool:
    return any(
        isinstance(part, Node)
        for value in settings.values()
        for part in (value if isinstance(value, (tuple, list)) else (value,))
    )


def _owner(graph_module: GraphModule, path: str, tensors: _Tensors) -> Container | None:
    """Return the container at ``path``, if these tensors are all that it holds."""
    owner = fetch_attribute(graph_module, path)
    if not isinstance(owner, Container) or any(child is not None for child in owner._modules.values()):
        return None
    names = {
        name for state in (owner._parameters, owner._buffers) for name, value in state.items() if value is not None
    }
    return owner if names - {"num_batches_tracked"} == tensors.keys() else None


def _original_class(node: Node, path: str) -> Any:
    """Return the class of the module at ``path`` in which the node was captured, or None."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack", {})
    return next((kind for at, kind in reversed(stack.values()) if at == path), None)


def _with_tensors(
    kind: Any, build: _Build, settings: _Settings, owner: Container, tensors: _Tensors
) -> nn.Module | None:
    """Return a module of class ``kind`` with the tensors of ``owner``, or None if they do not fit such a module."""
    try:
        module = build(kind, settings, tensors)
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError):
        return None  # F.conv2d accepts arguments that nn.Conv2d refuses
    own = {**module._parameters, **module._buffers}
    if any(
        (placeholder := own.get(name)) is None or placeholder.shape != tensor.shape for name, tensor in tensors.items()
    ):
        return None
    kinds: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (owner._parameters, module._parameters),
        (owner._buffers, module._buffers),
    ]
    if any(not theirs.keys() <= ours.keys() for theirs, ours in kinds):
        return None  # a weight that is a buffer
    for theirs, ours in kinds:
        # A normalization may have a weight and no bias: no tensor of the new module remains.
        ours.update(dict.fromkeys(ours) | theirs)
    vars(module)["_non_persistent_buffers_set"].update(owner._non_persistent_buffers_set)
    return module.train(owner.training and "running_mean" not in tensors)


def _fold(graph_module: GraphModule, node: Node, folding: _Folding) -> None:
    graph_module.add_submodule(folding.path, folding.module)
    node.op, node.target = "call_module", folding.path
    node.args, node.kwargs = (folding.source,), {}
    for fetched in folding.fetched:
        if not fetched.users:  # the same node may also be the input
            graph_module.graph.erase_node(fetched)

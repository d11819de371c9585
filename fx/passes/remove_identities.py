"""``remove-identities``: drop operations that return their input, such as dropout outside of training."""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from fx.graph_module import GraphModule
from fx.modules.attributes import does_as_its_class, is_own, prefixes, training_flag
from fx.modules.containers import Container
from fx.node import Node
from fx.operators.families import CASTS, find_in_place, find_operator, operators
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, ExplainedPass

_BATCHED_RANKS: dict[Any, int] = {
    spelling: 2 + row.dims for row in operators("dropout") if row.dims in (1, 3) for spelling in row.spellings
}
"""The rank of batched inputs, by spelling of a dropout. For one dimension less it returns a view; it refuses other
ranks, or warns about them."""

_CASTS: dict[str, torch.dtype | None] = {"to": None, **CASTS}
"""Methods that return the tensor itself if it already has the dtype; ``to`` takes the dtype as an argument."""


@register_pass
@dataclass(frozen=True, slots=True)
class RemoveIdentities(ExplainedPass):
    """Drop operations that return their input, the same tensor object, for any input.

    These are ``nn.Identity``, an empty ``nn.Sequential``, and all kinds of dropout in evaluation mode or with
    probability 0. Casts are dropped if recorded metadata (``meta["val"]`` or ``meta["tensor_meta"]``) shows that the
    tensor already has the dtype or device. One- and three-dimensional dropout returns a view of an input without a
    batch dimension, so it is dropped only where a recorded shape has one. Modules without remaining calls are removed
    as well. Modules with hooks and subclasses are left alone. ``explain`` lists them with the reasons.

    A program without its dropout cannot be trained: ``train()`` no longer enables the dropout that was removed here.
    """

    name: ClassVar[str] = "remove-identities"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Drop the identities one by one."""
        uses = _IdentityUses(graph_module)
        for node in graph_module.graph.nodes:
            value = _examine(graph_module, node)
            if isinstance(value, Node):
                yield Edit(f"{node}, which returns {value}", node.source)
                node.replace_all_uses_with(value)
                graph_module.graph.erase_node(node)
                if node.op == "call_module":
                    uses.drop(str(node.target))

    def decisions(self, graph_module: GraphModule) -> Iterator[tuple[Node, bool, str]]:
        """Yield each operation that may be an identity, whether it is removed, and why."""
        for node in graph_module.graph.nodes:
            outcome = _examine(graph_module, node)
            if outcome is not None:
                is_identity = isinstance(outcome, Node)
                yield node, is_identity, f"returns `%{outcome}`" if is_identity else str(outcome)


def _examine(graph_module: GraphModule, node: Node) -> Node | str | None:
    """Return the value that an identity returns, or the reason to leave ``node`` alone; None for other operations."""
    value = node.args[0] if node.args else node.kwargs.get("input")
    obstacle = kind = None
    if node.op == "call_module":
        module = graph_module.get_submodule(str(node.target))
        if not isinstance(module, (nn.Identity, _DropoutNd)) and not _is_empty(module):
            return None
        obstacle, kind = _why_module_computes(module), type(module)
    elif node.op == "call_function":
        if not _is_dropout(node.target):
            return None
        obstacle, kind = _why_function_computes(graph_module, node), node.target
    elif node.op == "call_method" and node.target in _CASTS:
        obstacle = _why_cast_computes(node)
    else:
        return None
    if obstacle is None and not isinstance(value, Node):
        obstacle = "its input is not a value of the program"
    if obstacle is None and kind in _BATCHED_RANKS:
        obstacle = _why_view(value, _BATCHED_RANKS[kind])
    return obstacle or value


def _is_dropout(target: Any) -> bool:
    row = find_operator(target) or find_in_place(target)
    return row is not None and row.family == "dropout"


def _is_empty(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and len(module) == 0


def _why_module_computes(module: nn.Module) -> str | None:
    if not does_as_its_class(module):
        return "it has hooks or a forward of its own"
    if type(module) not in (nn.Identity, nn.Sequential) and not _is_dropout(type(module)):
        return f"its class `{type(module).__name__}` is not one of torch's own"
    return _why_drops(module.training, module.p) if isinstance(module, _DropoutNd) else None


def _why_function_computes(graph_module: GraphModule, node: Node) -> str | None:
    switch, default = "train", None  # in torch
    if isinstance(node.target, types.FunctionType):  # in torch.nn.functional
        switch, default = "training", inspect.signature(node.target).parameters["training"].default
    arguments = {"p": 0.5, switch: default, **dict(zip(("input", "p", switch), node.args, strict=False)), **node.kwargs}
    training = training_flag(graph_module, arguments[switch])
    return _why_drops(arguments[switch] if training is None else training, arguments["p"])


def _why_drops(training: Any, probability: Any) -> str | None:
    if isinstance(training, Node) or isinstance(probability, Node):
        return "the program computes whether it drops anything"
    if not isinstance(probability, (int, float)) or not 0 <= probability <= 1:
        return f"its probability {probability!r} is not between 0 and 1"
    if training is not False and probability:
        return f"it is in training mode, where it drops with probability {probability:g}"
    return None


def _why_cast_computes(node: Node) -> str | None:
    """Return why a cast may return another tensor, or None if it does not."""
    arguments = [*node.args[1:], *(value for name, value in node.kwargs.items() if name != "non_blocking")]
    wanted = _CASTS[str(node.target)]
    if wanted is not None:
        arguments.insert(0, wanted)
    devices = [value for value in arguments if isinstance(value, (str, torch.device))]
    dtypes = [value for value in arguments if isinstance(value, torch.dtype)]
    if not arguments or len(devices) + len(dtypes) < len(arguments) or max(len(devices), len(dtypes)) > 1:
        return "its arguments are not a dtype and a device alone"
    value = node.args[0] if node.args else None
    for kind, wishes in (("dtype", dtypes), ("device", devices)):
        for wish in wishes:
            recorded = _recorded(value, kind)
            if recorded is None:
                return f"the {kind} of `%{value}` is not recorded"
            if str(recorded) != str(wish):  # a device with an index differs from the one without
                return f"`%{value}` has the {kind} {recorded}"
    return None


def _why_view(value: Any, rank: int) -> str | None:
    """Return why dropout of whole channels may return a view, or None if it does not."""
    shape = _recorded(value, "shape")
    if shape is None:
        return f"it returns a view of an input without batch dimension, and the shape of `%{value}` is not recorded"
    return None if len(shape) == rank else f"`%{value}` has {len(shape)} dimensions, of which it returns a view"


def _recorded(value: Any, name: str) -> Any:
    """Return the attribute ``name`` of the recorded metadata of a value, such as its dtype; None if not recorded."""
    recorded = value.meta.get("val", value.meta.get("tensor_meta")) if isinstance(value, Node) else None
    return getattr(recorded, name, None)


class _IdentityUses:
    """The number of operations that use each module or a part of it, by path."""

    def __init__(self, graph_module: GraphModule) -> None:
        self._graph_module = graph_module
        self._counts: Counter[str] = Counter()
        for node in graph_module.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                self._counts.update(prefixes(str(node.target)))

    def drop(self, path: str) -> None:
        """Count one use less, and delete the modules without uses and state that belong to the program."""
        self._counts.subtract(prefixes(path))
        if not is_own(self._graph_module, path):
            return
        for prefix in reversed([*prefixes(path)]):
            module = self._graph_module.get_submodule(prefix)
            if self._counts[prefix] or module.state_dict() or (isinstance(module, Container) and module._modules):
                return
            self._graph_module.delete_submodule(prefix)

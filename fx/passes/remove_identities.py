"""``remove-identities``: drop operations that return what they are given, such as dropout outside of training."""

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

from fx.graph_module import GraphModule, expect_program
from fx.modules.attributes import does_as_its_class, is_own, prefixes, training_flag
from fx.modules.containers import Container
from fx.node import Node
from fx.operators.families import CASTS, find_in_place, find_operator, operators
from fx.passes.contract import Contract, exact
from fx.passes.registered_passes import register_pass
from fx.passes.rewriting import Edit, RewritingPass
from fx.provenance import SourceLocation

_BATCHED_RANKS: dict[Any, int] = {
    spelling: 2 + row.dims for row in operators("dropout") if row.dims in (1, 3) for spelling in row.spellings
}
"""Of inputs with one dimension less than this, these return a view, and refuse or warn of others."""

_CASTS: dict[str, torch.dtype | None] = {"to": None, **CASTS}
"""Methods that return the tensor itself if it has the dtype already; that of ``to`` is among its arguments."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What becomes of one operation that may be an identity."""

    node: str
    """Name of its node."""
    removed: bool
    """Whether it is removed."""
    reason: str
    """What it returns, or why it is left alone."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""


@register_pass
@dataclass(frozen=True, slots=True)
class RemoveIdentities(RewritingPass):
    """Drop operations that return the very tensor that they are given, whatever it is.

    These are ``nn.Identity``, an empty ``nn.Sequential``, all kinds of dropout in evaluation mode or with probability
    0, and casts to the dtype or device that recorded metadata (``meta["val"]`` or ``meta["tensor_meta"]``) shows the
    tensor to have. One- and three-dimensional dropout returns a view where there is no batch dimension, so it is
    dropped only where a recorded shape has one. Modules that nothing calls any more go as well. Left alone are modules
    with hooks and subclasses; ``explain`` says which and why.

    A program without its dropout cannot be trained: ``train()`` no longer switches on what was removed here.
    """

    name: ClassVar[str] = "remove-identities"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Drop one after the other."""
        uses = _IdentityUses(graph_module)
        for node in graph_module.graph.nodes:
            value = _examine(graph_module, node)
            if isinstance(value, Node):
                yield Edit(f"{node}, which returns {value}", node.source)
                node.replace_all_uses_with(value)
                graph_module.graph.erase_node(node)
                if node.op == "call_module":
                    uses.drop(str(node.target))

    def explain(self, graph_module: GraphModule) -> list[Removal]:
        """Return what this pass would do to each operation that may be an identity, and why. Nothing is changed."""
        expect_program(graph_module, f"{type(self).__name__} explains a GraphModule")
        examined = ((node, _examine(graph_module, node)) for node in graph_module.graph.nodes)
        return [
            Removal(node.name, False, found, node.source)
            if isinstance(found, str)
            else Removal(node.name, True, f"returns `%{found}`", node.source)
            for node, found in examined
            if found is not None
        ]


def _examine(graph_module: GraphModule, node: Node) -> Node | str | None:
    """The value that ``node`` returns as it is, or why it is left alone, or ``None`` where it is not a candidate."""
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
    given = {"p": 0.5, switch: default, **dict(zip(("input", "p", switch), node.args, strict=False)), **node.kwargs}
    training = training_flag(graph_module, given[switch])
    return _why_drops(given[switch] if training is None else training, given["p"])


def _why_drops(training: Any, probability: Any) -> str | None:
    if isinstance(training, Node) or isinstance(probability, Node):
        return "whether it drops anything is computed by the program"
    if not isinstance(probability, (int, float)) or not 0 <= probability <= 1:
        return f"its probability {probability!r} is not between 0 and 1"
    if training is not False and probability:
        return f"it is in training mode, where it drops with probability {probability:g}"
    return None


def _why_cast_computes(node: Node) -> str | None:
    """Return why a cast may make another tensor."""
    given = [*node.args[1:], *(value for name, value in node.kwargs.items() if name != "non_blocking")]
    wanted = _CASTS[str(node.target)]
    if wanted is not None:
        given.insert(0, wanted)
    devices = [value for value in given if isinstance(value, (str, torch.device))]
    dtypes = [value for value in given if isinstance(value, torch.dtype)]
    if not given or len(devices) + len(dtypes) < len(given) or max(len(devices), len(dtypes)) > 1:
        return "its arguments are not a dtype and a device alone"
    value = node.args[0] if node.args else None
    for kind, wishes in (("dtype", dtypes), ("device", devices)):
        for wish in wishes:
            known = _recorded(value, kind)
            if known is None:
                return f"the {kind} of `%{value}` is not recorded"
            if str(known) != str(wish):  # not equal either: a device with and without a number
                return f"`%{value}` has the {kind} {known}"
    return None


def _why_view(value: Any, rank: int) -> str | None:
    """Return why dropout of whole channels may return a view."""
    shape = _recorded(value, "shape")
    if shape is None:
        return f"it returns a view of an input without batch dimension, and the shape of `%{value}` is not recorded"
    return None if len(shape) == rank else f"`%{value}` has {len(shape)} dimensions, of which it returns a view"


def _recorded(value: Any, name: str) -> Any:
    """Return what metadata says about a value: its dtype, device or shape; ``None`` if nothing."""
    recorded = value.meta.get("val", value.meta.get("tensor_meta")) if isinstance(value, Node) else None
    return getattr(recorded, name, None)


class _IdentityUses:
    """How many operations use each module or something in it, by path."""

    def __init__(self, graph_module: GraphModule) -> None:
        self._graph_module = graph_module
        self._counts: Counter[str] = Counter()
        for node in graph_module.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                self._counts.update(prefixes(str(node.target)))

    def drop(self, path: str) -> None:
        """Count one use less, and delete what has none left and is the program's own, without state."""
        self._counts.subtract(prefixes(path))
        if not is_own(self._graph_module, path):
            return
        for prefix in reversed([*prefixes(path)]):
            module = self._graph_module.get_submodule(prefix)
            if self._counts[prefix] or module.state_dict() or (isinstance(module, Container) and module._modules):
                return
            self._graph_module.delete_submodule(prefix)

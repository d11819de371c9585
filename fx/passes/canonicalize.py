"""``canonicalize``: bring a program into canonical form, functions only, with arguments by keyword (paper, 5.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from fx.canonical import Canonicalizer
from fx.graph_module import GraphModule
from fx.modules.containers import Container
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, RewritingPass


@register_pass
@dataclass(frozen=True, slots=True)
class Canonicalize(RewritingPass):
    """Replace calls of modules and methods by calls of functions, in one spelling each, with arguments by keyword.

    The rules are those of :mod:`fx.canonical`. Parameters and buffers keep their names: a plain container of them
    replaces each module that became a function. The result is specialized to the current training mode of each module.
    """

    keywords: bool = True
    """Use one spelling for each call; otherwise modules become functions, and other calls stay as written."""
    leaves: tuple[str, ...] = ()
    """Paths and class names of the modules to keep as module calls."""
    name: ClassVar[str] = "canonicalize"
    contract: ClassVar[Contract] = exact
    may_change: ClassVar[tuple[str, ...]] = ("tracing",)  # torch.Tensor.size and the like take no proxies

    def options_for(self, graph_module: GraphModule) -> Iterator[dict[str, Any]]:
        """Yield options to test: the defaults, calls as they are written, and each module as a leaf."""
        yield from ({}, {"keywords": False})
        for path in sorted({str(node.target) for node in graph_module.graph.find_nodes(op="call_module")}):
            yield {"leaves": (path,)}

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Yield one edit a call."""
        graph = graph_module.graph
        called = {str(node.target) for node in graph.find_nodes(op="call_module")}
        canonicalizer = Canonicalizer(graph_module, spell=self.keywords, leaves=self.leaves)
        for node, what in canonicalizer.rewrites(graph):
            yield Edit(what, node.source)
        used = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
        for path in sorted(called - used):
            _leave_state(graph_module, path, used)


def _leave_state(graph_module: GraphModule, path: str, used: set[str]) -> None:
    """Replace a module that is no longer called by a container of its parameters and buffers."""
    *outer, name = path.split(".")
    owners: list[nn.Module] = [graph_module]
    for atom in outer:
        child = owners[-1]._modules.get(atom)
        if not isinstance(child, Container):
            return  # the enclosing module may be the user's
        owners.append(child)
    module = owners[-1]._modules.get(name)
    if module is None or isinstance(module, Container):
        return
    if (state := _state_of(module, f"{path}.", used)) is not None:
        owners[-1]._modules[name] = state
        return
    for owner, atom in zip(reversed(owners), reversed((*outer, name)), strict=True):
        del owner._modules[atom]
        if any(vars(owner)[kind] for kind in ("_modules", "_parameters", "_buffers")):
            return


def _state_of(module: nn.Module, prefix: str, used: set[str]) -> nn.Module | None:
    """Return a container of the tensors and the modules in use of ``module``, or None if it has neither.

    Return ``module`` itself if the program uses an attribute that is neither a tensor nor a module.
    """
    state = vars(module)
    names: set[str] = {*state["_modules"], *state["_parameters"], *state["_buffers"]}
    below = {path[len(prefix) :].partition(".")[0] for path in used if path.startswith(prefix)}
    if not below <= names:
        return module
    container: Any = Container()
    container.training = module.training
    for kind in ("_parameters", "_buffers"):
        vars(container)[kind].update(state[kind])
    vars(container)["_non_persistent_buffers_set"].update(state["_non_persistent_buffers_set"])
    for name, child in state["_modules"].items():
        remaining = child if child is None or f"{prefix}{name}" in used else _state_of(child, f"{prefix}{name}.", used)
        if remaining is not None:
            container._modules[name] = remaining
    return container if any(vars(container)[kind] for kind in ("_modules", "_parameters", "_buffers")) else None

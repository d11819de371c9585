"""``adapt``: passes written for ``torch.fx`` run on our programs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator
from types import FunctionType, ModuleType
from typing import Any, cast

import torch.fx
from torch.fx import _symbolic_trace

from fx.errors import InteropError, PassError, add_note
from fx.graph_module import GraphModule
from fx.interop.torch_fx import FromTorch, ToTorch, check_program, check_torch_program
from fx.passes.contract import Contract, contract_of
from fx.passes.registry import pass_name
from fx.provenance import complete_origins, match_origins, record_origins


class AdaptedPass:
    """A pass of ``torch.fx`` as one of ours; ``adapt`` makes it."""

    __slots__ = ("contract", "may_change", "name", "pass_")

    pass_: Callable[[torch.fx.GraphModule], Any]
    """The pass itself."""
    name: str
    """What it is called in messages and tables."""
    contract: Contract
    """What it promises about the numbers."""
    may_change: tuple[str, ...]
    """What it may change (see ``fx.passes.PassPipeline``): always the metadata, which tools of ``torch.fx`` lose."""

    def __init__(self, pass_: Callable[[torch.fx.GraphModule], Any]) -> None:
        self.pass_ = pass_
        self.name = pass_name(pass_)
        self.contract = contract_of(pass_)
        self.may_change = (*getattr(pass_, "may_change", ()), "metadata")

    def __repr__(self) -> str:
        return f"adapt({self.pass_!r})"

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Run the pass; see ``adapt`` for what it edits and returns.

        Raises:
            PassError: torch.fx cannot hold the program, or the pass returned something that is no program.
            InteropError: ``graph_module`` is none of our programs, or what the pass left cannot be converted.
        """
        self._check(graph_module)
        graph = graph_module.graph
        record_origins(graph)
        revision = graph.revision
        there = ToTorch()
        try:
            with _unknown_wrapped_functions_left_out():
                result = self._program_in(self.pass_(there.program(graph_module)), graph_module, there)
            check_torch_program(result)
        except Exception as error:
            add_note(error, f"in the pass {self.name!r}, adapted from torch.fx")
            raise
        earlier = {node.name: (node.op, node.origins, node.source) for node in graph.nodes}
        program = FromTorch(there).program(result)
        if program is not graph_module or graph.revision != revision:
            match_origins(program.graph, earlier)
            complete_origins(program.graph)
            program.graph.history = graph.history
        return program

    def _check(self, graph_module: GraphModule) -> None:
        try:
            check_program(graph_module)
        except InteropError as error:
            if not isinstance(cast("object", graph_module), GraphModule):
                raise
            raise PassError(
                f"the pass {self.name!r} is written for torch.fx, which cannot hold this program", why=str(error)
            ) from error

    def _program_in(self, result: Any, graph_module: GraphModule, there: ToTorch) -> torch.fx.GraphModule:
        """The program that the pass means by what it returned."""
        if result is None:
            return there.program(graph_module)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], bool):  # also a PassResult
            result = result[0]
        if not isinstance(result, torch.fx.GraphModule):
            raise PassError(
                f"the pass {self.name!r} returned no program",
                value=f"an object of class {type(result).__name__}",
                why="a pass of torch.fx returns a torch.fx.GraphModule, that and whether it changed, or None",
                remedy="wrap it in a function that returns the program, and adapt that",
            )
        return result


@contextlib.contextmanager
def _unknown_wrapped_functions_left_out() -> Generator[None]:
    """Let torch.fx capture after the block what it could before.

    Where its own tracer reads the code of a program that is specialized on None, torch.fx 2.13 notes the check of that
    input as a function to wrap, by a dotted name that is nowhere, and every later capture raises a ``KeyError``.
    """
    wrapped: dict[Any, dict[str, Any]] = getattr(_symbolic_trace, "_wrapped_fns_to_patch", {})
    try:
        yield
    finally:
        for key in [key for key, known in wrapped.items() if "." in key[1] and key[1] not in known]:
            del wrapped[key]


def adapt(pass_: Callable[[torch.fx.GraphModule], Any]) -> AdaptedPass:
    """A pass written for ``torch.fx`` as one of ours, which runs on a converted copy of the graph.

    Whatever takes a ``torch.fx.GraphModule`` will do: functions, ``PassBase`` instances, and functions on modules such
    as ``torch.fx.experimental.optimization.fuse``. It may return a program, ``(program, changed)``, a ``PassResult``,
    or None where it edits in place.

    A pass that edits in place edits our program: nodes that it kept stay the same objects, those that it made take
    their place, and a program that it leaves alone keeps its revision. If it raises, our program is as it was. A pass
    that returns another program gives another one of ours. Lines and origins of nodes stay with what was kept, by
    identity or by name, and go to what was made from their ``meta`` or from its neighbours. Parameters and modules are
    shared with the copy, so what the pass writes to them is written.

    Args:
        pass_: the pass; its attributes ``name``, ``contract`` and ``may_change`` are kept if it has them.

    Raises:
        PassError: it cannot be called, is a module, or its ``contract`` is none.

    >>> import operator, torch, fx
    >>> def subtract(graph_module: torch.fx.GraphModule) -> None:
    ...     for node in graph_module.graph.find_nodes(op="call_function", target=operator.add):
    ...         node.target = operator.sub
    >>> program = fx.symbolic_trace(lambda x: x + 1)
    >>> adapt(subtract)(program) is program, program(1)
    (True, 0)
    """
    if not callable(pass_) or isinstance(pass_, torch.nn.Module):
        raise PassError(
            f"adapt takes a pass, not an object of class {type(pass_).__name__}",
            remedy="pass a function from torch.fx.GraphModule to torch.fx.GraphModule",
        )
    return AdaptedPass(pass_)


__all__ = ["AdaptedPass", "adapt"]


def is_for_torch(pass_: object) -> bool:
    """Whether a pass is written for ``torch.fx``, as far as it shows: by its annotations, its class or what it uses.

    >>> def rename(graph_module: torch.fx.GraphModule) -> None: ...
    >>> is_for_torch(rename)
    True
    """
    if type(pass_).__module__.startswith("torch.fx.") or getattr(pass_, "__module__", "").startswith("torch.fx."):
        return True
    function = inspect.unwrap(getattr(pass_, "__func__", pass_))  # type: ignore[arg-type]
    if not isinstance(function, FunctionType):
        function = inspect.getattr_static(type(pass_), "__call__", None)
        if not isinstance(function, FunctionType):
            return False
    annotations = [str(annotation) for annotation in function.__annotations__.values()]
    names, known = function.__code__.co_names, function.__globals__
    used = [known.get(name) for name in names]
    if torch in used and "fx" in names and "fx" not in known:  # torch.fx, spelled out
        return True
    return any("torch.fx." in annotation for annotation in annotations) or any(map(_is_of_torch_fx, used))


def _is_of_torch_fx(value: object) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and (name == "torch.fx" or name.startswith("torch.fx."))

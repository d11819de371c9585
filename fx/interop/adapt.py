"""``adapt``: run passes written for ``torch.fx`` on our programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, cast

import torch.fx
from torch.fx import _symbolic_trace

from fx.canonical.forms import Form
from fx.errors import InteropError, PassError, add_note
from fx.frames import clear_interrupted
from fx.graph_module import GraphModule
from fx.interop.pass_forms import PassForm
from fx.interop.pass_library import form_of
from fx.interop.torch_fx import FromTorch, ToTorch, check_program, check_torch_program
from fx.matcher.origins import EarlierNode, complete_origins, match_origins, record_origins
from fx.pipelines.contract import Contract, contract_of
from fx.pipelines.registered_passes import pass_name


class NoProgramError(InteropError):
    """An adapted pass returned something that is not a program of ``torch.fx``, such as a compiled function."""

    returned: Any = None
    """The value that the pass returned."""


class AdaptedPass:
    """A pass of ``torch.fx`` wrapped as one of ours, made by ``adapt``."""

    __slots__ = ("contract", "form", "may_change", "name", "pass_")

    pass_: Callable[[torch.fx.GraphModule], Any]
    """The pass itself."""
    name: str
    """The name of the pass in messages and tables."""
    contract: Contract
    """The numerical contract of the pass."""
    may_change: tuple[str, ...]
    """The aspects that it may change (see ``fx.passes.PassPipeline``); always the metadata, which torch.fx drops."""
    form: Form | None
    """The form of exported programs that its code is written for; None if the code shows none."""

    def __init__(self, pass_: Callable[[torch.fx.GraphModule], Any]) -> None:
        self.pass_ = pass_
        self.name = pass_name(pass_)
        self.contract = contract_of(pass_)
        self.may_change = (*getattr(pass_, "may_change", ()), "metadata")
        self.form = form_of(pass_)

    def __repr__(self) -> str:
        return f"adapt({self.pass_!r})"

    @property
    def with_data(self) -> Callable[[Any], AdaptedPass]:
        """A function that returns this pass with calls as its data; absent if the wrapped pass has no ``with_data``."""
        with_data: Callable[[Any], Any] = self.pass_.with_data  # type: ignore[attr-defined]
        return lambda data: adapt(with_data(data))

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Run the pass on a program; ``adapt`` documents the result.

        Raises:
            PassError: torch.fx cannot hold the program; the pass is not run.
            InteropError: ``graph_module`` is not an ``fx.GraphModule``, the pass returned something else than a
                program, or its result cannot be converted.
        """
        conversion = ToTorch()
        torch_program = self._copy_for_pass(graph_module, conversion)
        pass_form = PassForm(graph_module, self.form)
        if pass_form.differs:
            pass_form.enter(torch_program, conversion)
        graph = graph_module.graph
        revision = graph.revision
        capture = getattr(_symbolic_trace, "CURRENT_PATCHER", None)
        try:
            with _unknown_wrapped_functions_dropped():
                returned = self.pass_(torch_program)
            result = self._returned_program(returned, torch_program)
            if pass_form.differs:
                pass_form.leave(result, conversion)
            _check_convertible(result)
        except Exception as error:
            add_note(error, f"in the pass {self.name!r}, adapted from torch.fx")
            raise
        except BaseException as error:
            if capture is None:
                _end_capture(error.__traceback__)
            raise
        earlier = EarlierNode.all_of(graph)
        program = FromTorch(conversion).program(result)
        if program is not graph_module or graph.revision != revision:
            match_origins(program.graph, earlier)
            complete_origins(program.graph)
            program.graph.history = graph.history
            if pass_form.differs:
                pass_form.restore(program)
        return program

    def _copy_for_pass(self, graph_module: GraphModule, conversion: ToTorch) -> torch.fx.GraphModule:
        """Return the converted copy that the pass edits."""
        try:
            check_program(graph_module)
            record_origins(graph_module.graph)
            return conversion.program(graph_module)
        except InteropError as error:
            if not isinstance(cast("object", graph_module), GraphModule):
                raise
            raise PassError(
                f"the pass {self.name!r} is written for torch.fx, which cannot hold this program", why=str(error)
            ) from error

    def _returned_program(self, returned: Any, edited: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Return the program in the value that the pass returned."""
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], bool):  # also a PassResult
            returned = returned[0]
        if returned is None:
            return edited
        if not isinstance(returned, torch.fx.GraphModule):
            error = NoProgramError(
                f"the pass {self.name!r} returned no program",
                value=f"an object of class {type(returned).__name__}",
                why="a pass of torch.fx returns a torch.fx.GraphModule, a pair (graph_module, changed), or None",
                remedy="wrap it in a function that returns the program, and adapt that",
            )
            error.returned = returned
            raise error
        return returned


def _check_convertible(program: torch.fx.GraphModule) -> None:
    """Raise if the result of a pass cannot be converted, before any program of ours is edited."""
    check_torch_program(program)
    try:
        FromTorch().program(program)
    except InteropError:
        raise
    except Exception as error:
        raise InteropError(
            "the result of the pass cannot be converted",
            why=f"{type(error).__name__}: {error}",
            remedy="call graph_module.recompile() to see whether torch.fx itself accepts it",
        ) from error


@contextlib.contextmanager
def _unknown_wrapped_functions_dropped() -> Generator[None]:
    """Drop the wrapped functions that torch.fx registers inside the block under names that do not exist.

    torch.fx 2.13 registers one when its tracer reads the code of a program specialized on None: the check of that
    input, under a dotted name. Every later capture would raise a ``KeyError``.
    """
    wrapped: dict[Any, dict[str, Any]] = getattr(_symbolic_trace, "_wrapped_fns_to_patch", {})
    try:
        yield
    finally:
        for key in [key for key, namespace in wrapped.items() if "." in key[1] and key[1] not in namespace]:
            del wrapped[key]


def _end_capture(interrupted: TracebackType | None) -> None:
    """End a capture of torch.fx whose clean-up was interrupted by an exception from a signal handler."""
    patcher = getattr(_symbolic_trace, "CURRENT_PATCHER", None)
    if patcher is None:
        return
    for patch in reversed(patcher.patches_made):
        owner = patch.frame_dict
        if (vars(owner) if isinstance(owner, type) else owner).get(patch.fn_name) is patch.new_fn:
            patch.revert()
    patcher.patches_made.clear()
    clear_interrupted(
        interrupted, lambda code: code.co_filename == _symbolic_trace.__file__ or code.co_name == "__exit__"
    )
    _symbolic_trace.CURRENT_PATCHER = None
    _symbolic_trace._is_fx_tracing_flag = False


def adapt(pass_: Callable[[torch.fx.GraphModule], Any]) -> AdaptedPass:
    """Wrap a pass written for ``torch.fx`` as one of ours, which runs on a converted copy of the graph.

    Any callable that takes a ``torch.fx.GraphModule`` will do: functions, ``PassBase`` instances, and functions on
    modules such as ``torch.fx.experimental.optimization.fuse``. It may return a program, ``(program, changed)``, a
    ``PassResult``, or None if it edits in place.

    A pass that edits in place edits our program. Surviving nodes stay the same objects, new nodes are inserted at
    their places, and an unchanged program keeps its revision. If the pass raises, our program is unchanged. A pass
    that returns another program yields a new program of ours. Surviving nodes, matched by identity or by name, keep
    their source lines and origins; new nodes take them from their ``meta`` or from their neighbours. Parameters and
    modules are shared with the copy, so writes to them persist. A program that the pass edits and does not recompile
    runs its old code, as under ``torch.fx``; ``fx.passes.verify`` reports that.

    The code of the pass decides how it sees an exported program: in operators of ATen if the code mentions some
    (``torch.ops.aten.relu.default``), in functions and methods of torch if it mentions these. The result has the form
    of the program. A pass that mentions neither, because another library does its work, sees the program unchanged.

    Args:
        pass_: the pass; its attributes ``name``, ``contract`` and ``may_change`` are kept if it has them.

    Raises:
        PassError: it cannot be called, is a module, or its ``contract`` is not a contract.

    >>> import operator, torch, fx
    >>> def subtract(graph_module: torch.fx.GraphModule) -> None:
    ...     for node in graph_module.graph.find_nodes(op="call_function", target=operator.add):
    ...         node.target = operator.sub
    ...     graph_module.recompile()
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

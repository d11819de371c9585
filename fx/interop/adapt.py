"""``adapt``: passes written for ``torch.fx`` run on our programs."""

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
from fx.origins import EarlierNode, complete_origins, match_origins, record_origins
from fx.passes.contract import Contract, contract_of
from fx.passes.registered_passes import pass_name


class NoProgramError(InteropError):
    """An adapted pass returned something that is not a program of ``torch.fx``, such as a compiled function."""

    returned: Any = None
    """What it returned."""


class AdaptedPass:
    """A pass of ``torch.fx`` as one of ours; ``adapt`` makes it."""

    __slots__ = ("contract", "form", "may_change", "name", "pass_")

    pass_: Callable[[torch.fx.GraphModule], Any]
    """The pass itself."""
    name: str
    """What it is called in messages and tables."""
    contract: Contract
    """What it promises about the numbers."""
    may_change: tuple[str, ...]
    """What it may change (see ``fx.passes.PassPipeline``): always the metadata, which tools of ``torch.fx`` lose."""
    form: Form | None
    """The form in which it looks for operations of exported programs, as its code shows it; None where it does not."""

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
        """Takes calls as data and returns this pass with them; only where the pass itself has such a method."""
        give: Callable[[Any], Any] = self.pass_.with_data  # type: ignore[attr-defined]
        return lambda data: adapt(give(data))

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Run the pass; see ``adapt`` for what it edits and returns.

        Raises:
            PassError: torch.fx cannot hold the program, so that the pass is not run.
            InteropError: ``graph_module`` is none of our programs, the pass returned something that is not a program,
                or what it left cannot be converted.
        """
        there = ToTorch()
        theirs = self._given(graph_module, there)
        form = PassForm(graph_module, self.form)
        if form.differs:
            form.enter(theirs, there)
        graph = graph_module.graph
        revision = graph.revision
        capture = getattr(_symbolic_trace, "CURRENT_PATCHER", None)
        try:
            with _unknown_wrapped_functions_left_out():
                returned = self.pass_(theirs)
            result = self._program_in(returned, theirs)
            if form.differs:
                form.leave(result, there)
            _check_convertible(result)
        except Exception as error:
            add_note(error, f"in the pass {self.name!r}, adapted from torch.fx")
            raise
        except BaseException as error:
            if capture is None:
                _end_capture(error.__traceback__)
            raise
        earlier = EarlierNode.all_of(graph)
        program = FromTorch(there).program(result)
        if program is not graph_module or graph.revision != revision:
            match_origins(program.graph, earlier)
            complete_origins(program.graph)
            program.graph.history = graph.history
            if form.differs:
                form.restore(program)
        return program

    def _given(self, graph_module: GraphModule, there: ToTorch) -> torch.fx.GraphModule:
        """The program that the pass is to edit."""
        try:
            check_program(graph_module)
            record_origins(graph_module.graph)
            return there.program(graph_module)
        except InteropError as error:
            if not isinstance(cast("object", graph_module), GraphModule):
                raise
            raise PassError(
                f"the pass {self.name!r} is written for torch.fx, which cannot hold this program", why=str(error)
            ) from error

    def _program_in(self, returned: Any, given: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """The program that the pass means by what it returned."""
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], bool):  # also a PassResult
            returned = returned[0]
        if returned is None:
            return given
        if not isinstance(returned, torch.fx.GraphModule):
            error = NoProgramError(
                f"the pass {self.name!r} returned no program",
                value=f"an object of class {type(returned).__name__}",
                why="a pass of torch.fx returns a torch.fx.GraphModule, that and whether it changed, or None",
                remedy="wrap it in a function that returns the program, and adapt that",
            )
            error.returned = returned
            raise error
        return returned


def _check_convertible(program: torch.fx.GraphModule) -> None:
    """Refuse what a pass left where it cannot be converted, before anything of ours is edited."""
    check_torch_program(program)
    try:
        FromTorch().program(program)
    except InteropError:
        raise
    except Exception as error:
        raise InteropError(
            "what the pass left is not a program that can be converted",
            why=f"{type(error).__name__}: {error}",
            remedy="graph_module.recompile() says whether torch.fx itself takes it",
        ) from error


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


def _end_capture(interrupted: TracebackType | None) -> None:
    """End the capture of torch.fx that an exception of a signal's handler interrupted while it ended."""
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
    """A pass written for ``torch.fx`` as one of ours, which runs on a converted copy of the graph.

    Whatever takes a ``torch.fx.GraphModule`` will do: functions, ``PassBase`` instances, and functions on modules such
    as ``torch.fx.experimental.optimization.fuse``. It may return a program, ``(program, changed)``, a ``PassResult``,
    or None where it edits in place.

    A pass that edits in place edits our program: nodes that it kept stay the same objects, those that it made take
    their place, and a program that it leaves alone keeps its revision. If it raises, our program is as it was. A pass
    that returns another program gives another one of ours. Lines and origins of nodes stay with what was kept, by
    identity or by name, and go to what was made from their ``meta`` or from its neighbours. Parameters and modules are
    shared with the copy, so what the pass writes to them is written. A program that the pass edits and does not
    recompile runs the code that it had, as under ``torch.fx``: ``fx.passes.verify`` says so.

    Of an exported program a pass sees operators of ATen if its code mentions some (``torch.ops.aten.relu.default``),
    and functions and methods of torch if it mentions these. Its result has the form of the program. A pass whose code
    mentions neither, because it hands the program on to another library, sees the program as it is.

    Args:
        pass_: the pass; its attributes ``name``, ``contract`` and ``may_change`` are kept if it has them.

    Raises:
        PassError: it cannot be called, is a module, or its ``contract`` is none.

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

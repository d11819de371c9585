"""A form of passes, a pass with its form, and what such a pass made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx.passes.infra.pass_base import PassResult

from fx.errors import PassError
from fx.passes import Contract, contract_of, pass_name
from pytest_fx.forms.exported_source import ExportedSource, Level, tensors_in
from pytest_fx.forms.recognition import uses_patterns


@dataclass(frozen=True, slots=True)
class FormResult:
    """What a pass made, as it can be called and as it can be looked at."""

    program: nn.Module
    """What is called."""
    exported: ExportedProgram | None = None
    """The exported program, where the form has one."""
    graph_module: torch.fx.GraphModule | None = None
    """The program with a graph, where there is one."""
    nodes_before: int | None = None
    """Nodes of the graph that the pass was given."""
    nodes_after: int | None = None
    """Nodes of the graph that it left."""
    changed: bool = True
    """Whether it changed what it was given, as far as that can be seen."""
    level: Level | None = None
    """The level of what it was given."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a pass takes and returns: a row of :data:`pytest_fx.forms.TABLE`."""

    name: str
    """What ``--fx-form`` calls it."""
    takes: str
    """What the pass is given, and what it returns, in words."""
    recognizes: Callable[[Any], bool]
    """Whether a pass is written in it, as its classes, annotations and code show."""
    apply: Callable[[Any, ExportedSource, Level], FormResult]
    """Calls a pass on what the source gives at a level, and reads the result back."""
    identity: Any
    """A pass in this form that changes nothing: a law that its result breaks is not held against others."""
    levels: tuple[Level, ...] = ("exported", "decomposed")
    """The graphs to give in turn until the pass changes one: those of its ``torch.export``, decomposed or not."""
    contract: Contract | None = None
    """What a pass promises that does not say so itself; None for the usual."""
    laws: tuple[str, ...] = field(default=())
    """Laws of its results beside those that every program is held to."""
    may_change: tuple[str, ...] = ()
    """What every pass in the form may change: one that is run after autograd need not leave what has gradients."""
    is_exported: bool = True
    """Whether the pass is given what ``torch.export`` makes of the model."""

    def why_not_given(self, source: ExportedSource, level: Level) -> str | None:
        """Return why there is no program to give to a pass, in words; None if there is one, which is made now."""
        if not self.is_exported:
            return None
        try:
            source.prepare(level)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            return f"torch.export does not take the model: {type(error).__name__}: {reason}"
        return None


class FormedPass:
    """A pass that is given programs of torch in its own form, and not one of ours."""

    __slots__ = ("contract", "form", "levels", "may_change", "name", "pass_")

    form: Form
    """The form that it is written in."""
    levels: tuple[Level, ...]
    """What it is given in turn: Inductor's decompositions only where it uses patterns, since they take seconds."""
    pass_: Any
    """The pass itself."""
    name: str
    """What it is called in messages and tables."""
    contract: Contract
    """What it promises about the numbers."""
    may_change: tuple[str, ...]
    """What it may change (see ``fx.passes.PassPipeline``)."""

    def __init__(self, pass_: Any, form: Form) -> None:
        self.pass_, self.form = pass_, form
        self.name = pass_name(pass_)
        says_nothing = getattr(pass_, "contract", None) is None
        self.contract = form.contract if form.contract is not None and says_nothing else contract_of(pass_)
        self.may_change = (*getattr(pass_, "may_change", ()), *form.may_change)
        is_of_inductor = form.levels[0] == "inductor" or uses_patterns(pass_)
        self.levels = tuple(level for level in form.levels if level != "inductor" or is_of_inductor)

    def __repr__(self) -> str:
        return f"FormedPass({self.pass_!r}, {self.form.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FormedPass) and other.form is self.form and other.pass_ is self.pass_

    def __hash__(self) -> int:
        return hash((id(self.pass_), self.form.name))

    def __call__(self, program: Any) -> Any:
        """Refuse a program of ours, as a pipeline or a caller of passes gives it."""
        raise PassError(
            f"the pass {self.name!r} takes {self.form.takes}",
            why="a program of ours is none, and what torch.export gives has no place between passes on ours",
            remedy="give the pass by itself: pytest --fx-model NAME --fx-pass NAME, or fx_equal(pass_)",
        )

    def applied(self, source: ExportedSource, level: Level) -> FormResult:
        """Return what the pass makes of what the source gives at a level."""
        return replace(self.form.apply(self.pass_, source, level), level=level)

    def untouched(self, level: Level | None) -> FormedPass:
        """The pass in the same form that changes nothing, given what there is at a level."""
        form = self.form if level is None else replace(self.form, levels=(level,))
        return FormedPass(self.form.identity, form)


def written(program: Any) -> list[Any]:
    """Return what tells two states of a program apart: its nodes, those of programs inside, and its tensors."""
    module = program.graph_module if isinstance(program, ExportedProgram) else program
    parts = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    nodes = [(part_node.format_node(), part_node.target) for part in parts for part_node in part.graph.nodes]
    signature = str(program.graph_signature) if isinstance(program, ExportedProgram) else ""
    return [signature, nodes, [(name, id(tensor), tensor._version) for name, tensor in tensors_in(program).items()]]


def result_of_module(given: torch.fx.GraphModule, returned: Any, before: list[Any]) -> FormResult:
    """Read back what a pass returned that was given ``given``, of which ``before`` was written."""
    returned = given if returned is None else without_flag(returned)
    if not isinstance(returned, torch.fx.GraphModule):
        return FormResult(called_as_module(returned), nodes_before=len(before[1]))
    returned.recompile()  # as torch does after its own passes
    after = written(returned)
    return FormResult(returned, None, returned, len(before[1]), len(after[1]), after != before)


def result_of_exported(exported: ExportedProgram, before: list[Any]) -> FormResult:
    """Read back an exported program that a pass left or returned; ``before`` is what the one before was written as."""
    exported.graph_module.recompile()
    after = written(exported)
    return FormResult(
        exported.module(), exported, exported.graph_module, len(before[1]), len(after[1]), after != before
    )


def with_names_of_graph(exported: ExportedProgram) -> ExportedProgram:
    """Return the program with a signature that has the names of its graph, which somebody edited who knows of none."""
    return exported._transform_do_not_use(lambda graph_module: PassResult(graph_module, True))


def without_flag(returned: Any) -> Any:
    """Return the program of a pair of it and whether it changed, such as a ``PassResult``."""
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], bool):
        return returned[0]
    return returned


class CalledAsModule(nn.Module):
    """A callable as a module: a function that a compiler made, say. Modules that it is a method of are below it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        owner = getattr(function, "__self__", None)
        if isinstance(owner, nn.Module):
            self.owner = owner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.function(*args, **kwargs)


class UnreadableResultError(PassError):
    """A pass returned something that cannot be called with the model's inputs, so that nothing can be compared."""


def called_as_module(returned: Any) -> nn.Module:
    """Return what can be called as a module.

    Raises:
        UnreadableResultError: it cannot be called.
    """
    if isinstance(returned, nn.Module):
        return returned
    if callable(returned) and not isinstance(returned, type):
        return CalledAsModule(returned)
    raise UnreadableResultError(
        f"a pass returned an object of class {type(returned).__qualname__}, which cannot be called like the model",
        remedy="wrap it in a torch.nn.Module whose forward takes the model's inputs, and compare that: "
        "fx_equal(module)",
    )

"""A form of passes, a pass with its form, and the result of such a pass."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx.passes.infra.pass_base import PassResult

from fx.errors import PassError
from fx.interop import AdaptedPass
from fx.passes import Contract, contract_of, pass_name
from pytest_fx.forms.exported_source import ExportedSource, Level, tensors_in
from pytest_fx.forms.recognition import uses_patterns
from pytest_fx.runtimes import loaded, runtime_of


@dataclass(frozen=True, slots=True)
class FormResult:
    """The result of a pass: a module to call, and its graph to inspect."""

    program: nn.Module
    """The module to call."""
    exported: ExportedProgram | None = None
    """The exported program; None if the form has none."""
    graph_module: torch.fx.GraphModule | None = None
    """The module with the graph; None if there is none."""
    nodes_before: int | None = None
    """The number of nodes before the pass."""
    nodes_after: int | None = None
    """The number of nodes after the pass."""
    changed: bool = True
    """Whether the pass changed the program, as far as a comparison shows."""
    is_tidied: bool = False
    """True if the pass only removed dead code, as ``eliminate_dead_code`` does from any program."""
    changed_at: frozenset[str] = frozenset()
    """The paths of the modules around changed nodes, and the names of changed tensors."""
    level: Level | None = None
    """The level of the program that the pass got."""
    kept_bytes: int | None = None
    """The bytes that are kept between forward and backward, parameters and inputs aside; None if they are unknown."""
    kept_bytes_before: int | None = None
    """The same without the pass."""


@dataclass(frozen=True, slots=True)
class Form:
    """The protocol of a pass: its input and its result. A row of :data:`pytest_fx.forms.TABLE`."""

    name: str
    """The name for ``--fx-form``."""
    takes: str
    """The input and the result of a pass, in words."""
    recognizes: Callable[[Any], bool]
    """Tells by classes, annotations and code whether a pass has this form."""
    apply: Callable[[Any, ExportedSource, Level], FormResult]
    """Applies a pass to the program of a source at a level, and reads the result back."""
    identity: Any
    """A pass in this form that changes nothing. Laws that its result breaks are waived for other passes."""
    levels: tuple[Level, ...] = ("exported", "decomposed", "fixed")
    """The levels of the exported program, which are tried in turn. A pass is judged at each at which it acts."""
    fallback: Level | None = "fixed"
    """A level that is tried last, only if the pass acts at no other."""
    contract: Contract | None = None
    """The contract of a pass that declares none; None for the default contract."""
    laws: tuple[str, ...] = field(default=())
    """Laws of this form, in addition to those of every program."""
    may_change: tuple[str, ...] = ()
    """The laws that any pass in the form may break. Passes that run after autograd may lose gradients."""
    is_exported: bool = True
    """Whether the pass gets a program from ``torch.export``."""
    imports: tuple[str, ...] = ()
    """Modules of torch that take seconds to import. They are imported before the time of the pass is limited."""

    @property
    def is_recordable(self) -> bool:
        """True if recorded programs can take the place of exported ones."""
        return self.is_exported and "decomposed" in self.levels

    def why_not_given(self, source: ExportedSource, level: Level) -> str | None:
        """Export the program for a pass. Return the reason if that fails, else None."""
        for name in self.imports:
            importlib.import_module(name)
        if not self.is_exported:
            return None
        try:
            source.prepare(level)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            return f"torch.export cannot export the model: {type(error).__name__}: {reason}"
        return None


class FormedPass:
    """A pass with its form. It gets a program from torch, not one of ours."""

    __slots__ = ("contract", "form", "is_made_of_class", "levels", "may_change", "name", "pass_", "text")

    form: Form
    """The form of the pass."""
    levels: tuple[Level, ...]
    """The levels to try in turn: those that the pass declares by an attribute of this name, or those of its form.

    Inductor's is only for passes that use its patterns, since it takes seconds.
    """
    pass_: Any
    """The unwrapped pass."""
    name: str
    """The name in messages and tables."""
    contract: Contract
    """The numerical contract."""
    may_change: tuple[str, ...]
    """The properties that it may change (see ``fx.passes.PassPipeline``)."""
    text: str
    """The text by which it was loaded, such as ``"package.module:attribute"``; empty if it was given itself."""
    is_made_of_class: bool
    """True if the user named a class, of which this library made the pass without arguments."""

    def __init__(self, pass_: Any, form: Form, *, is_made_of_class: bool = False) -> None:
        self.pass_, self.form, self.is_made_of_class, self.text = pass_, form, is_made_of_class, ""
        self.name = pass_name(pass_)
        says_nothing = getattr(pass_, "contract", None) is None
        self.contract = form.contract if form.contract is not None and says_nothing else contract_of(pass_)
        self.may_change = (*getattr(pass_, "may_change", ()), *form.may_change)
        is_of_inductor = form.levels[0] == "inductor" or uses_patterns(pass_)
        own: Any = getattr(pass_, "levels", None)
        is_declared = isinstance(own, (tuple, list)) and bool(own) and {*own} <= {*form.levels}
        skipped: Any = {*form.levels} - {*own} if is_declared else set() if is_of_inductor else {"inductor"}
        levels: list[Level] = [level for level in form.levels if level not in skipped]
        self.levels = tuple(levels)

    def __repr__(self) -> str:
        return f"FormedPass({self.pass_!r}, {self.form.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FormedPass) and other.form is self.form and other.pass_ is self.pass_

    def __hash__(self) -> int:
        return hash((id(self.pass_), self.form.name))

    def __call__(self, program: Any) -> Any:
        """Raise :class:`PassError`: pipelines and callers of passes have programs of ours."""
        raise PassError(
            f"the pass {self.name!r} takes {self.form.takes}",
            why="this is a program of fx, not of torch, and a pipeline of fx passes cannot hold programs of torch",
            remedy="run the pass by itself: pytest --fx-model NAME --fx-pass NAME, or fx_equal(pass_)",
        )

    def applied(self, source: ExportedSource, level: Level) -> FormResult:
        """Apply the pass to the program of a source at a level."""
        return replace(self.form.apply(self.pass_, source, level), level=level)

    def later_levels(self, level: Level) -> tuple[Level, ...]:
        """Return the levels after ``level`` at which the pass is judged, too."""
        later = self.levels[self.levels.index(level) + 1 :]
        return tuple(each for each in later if each != self.form.fallback)

    def at(self, level: Level) -> FormedPass:
        """Return the same pass at one level alone."""
        formed = copy.copy(self)
        formed.levels = (level,)
        return formed

    def untouched(self, level: Level | None) -> FormedPass:
        """Return the identity pass of the same form, at the given level alone if there is one."""
        identity = FormedPass(self.form.identity, self.form)
        return identity if level is None else identity.at(level)


_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""The path that ``torch.export`` gives to nodes that it adds, such as sizes of inputs."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a program, to be compared with a later one."""

    signature: str
    """The signature of an exported program."""
    calls: list[tuple[Any, ...]]
    """Each node: its operation, target, type and arguments, with the places of other nodes instead of their names."""
    living: list[tuple[Any, ...]] = field(compare=False)
    """The same without dead code, which ``eliminate_dead_code`` removes."""
    nodes: list[tuple[str, Any]] = field(compare=False)
    """Each node printed, and its target; those of submodules are included."""
    tensors: dict[str, tuple[int, int]]
    """The identity and the version of each tensor, by name."""
    paths: list[str] = field(compare=False)
    """The path of the module around each node; the target of a node without one; empty for inputs and outputs."""

    @classmethod
    def of(cls, program: Any) -> Snapshot:
        """Take a snapshot of a graph module or an exported program."""
        module = program.graph_module if isinstance(program, ExportedProgram) else program
        parts = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
        nodes = [node for part in parts for node in part.graph.nodes]
        calls, dead = _calls(nodes), _dead(nodes)
        return cls(
            str(program.graph_signature) if isinstance(program, ExportedProgram) else "",
            calls,
            _calls([node for node in nodes if node not in dead]) if dead else calls,
            [(node.format_node(), node.target) for node in nodes],
            {name: (id(tensor), tensor._version) for name, tensor in tensors_in(program).items()},
            _paths(nodes),
        )

    def is_tidied(self, after: Snapshot) -> bool:
        """Return whether ``after`` is the same program with less dead code."""
        is_alike = (self.signature, self.living, self.tensors) == (after.signature, after.living, after.tensors)
        return is_alike and self.calls != after.calls

    def changed_at(self, after: Snapshot) -> frozenset[str]:
        """Return the paths of nodes and the names of tensors that are not in ``after`` as they are here."""
        remaining = set(after.nodes)
        paths = {path for node, path in zip(self.nodes, self.paths, strict=True) if path and node not in remaining}
        return frozenset(paths.union(name for name, _ in self.tensors.items() ^ after.tensors.items()))


def _calls(nodes: list[torch.fx.Node]) -> list[tuple[Any, ...]]:
    """Return the operation, target, type and arguments of each node, with places instead of the names of nodes."""
    places = {node: f"%{place}" for place, node in enumerate(nodes)}
    arguments = [str(torch.fx.map_arg((node.args, node.kwargs), places.__getitem__)) for node in nodes]
    return [(node.op, node.target, node.type, text) for node, text in zip(nodes, arguments, strict=True)]


def _dead(nodes: list[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the nodes that ``eliminate_dead_code`` removes."""
    dead = set[torch.fx.Node]()
    for node in reversed(nodes):
        if node.users.keys() <= dead and not node.is_impure():
            dead.add(node)
    return dead


def _paths(nodes: list[torch.fx.Node]) -> list[str]:
    """Return the path of the module around each node.

    Decompositions add nodes without one, such as views of a result that is written to. These take the path of an input.
    """
    paths = dict[torch.fx.Node, str]()
    for node in nodes:
        stack = node.meta.get("nn_module_stack")
        own = stack and [*stack.values()][-1][0]
        if node.op in ("placeholder", "output"):
            paths[node] = ""
        elif node.op == "call_function" and (not own or own == _NO_MODULE):
            paths[node] = next((path for each in node.all_input_nodes if (path := paths.get(each))), "")
        else:
            paths[node] = own or str(node.target)
    return [*paths.values()]


def result_of_module(given: torch.fx.GraphModule, returned: Any, before: Snapshot) -> FormResult:
    """Read the result of a pass on the graph module ``given``, whose snapshot before the pass is ``before``."""
    returned = given if returned is None else without_flag(returned)
    if not isinstance(returned, torch.fx.GraphModule):
        return FormResult(called_as_module(returned), nodes_before=len(before.nodes))
    returned.recompile()  # as torch does after its own passes
    return _result(returned, None, returned, before, Snapshot.of(returned))


def result_of_exported(exported: ExportedProgram, before: Snapshot) -> FormResult:
    """Read the exported program that a pass edited or returned; ``before`` is the snapshot before the pass."""
    exported.graph_module.recompile()
    after = Snapshot.of(exported)
    return _result(exported.module(), exported, exported.graph_module, before, after)


def _result(
    program: nn.Module,
    exported: ExportedProgram | None,
    graph_module: torch.fx.GraphModule,
    before: Snapshot,
    after: Snapshot,
) -> FormResult:
    return FormResult(
        program,
        exported,
        graph_module,
        len(before.nodes),
        len(after.nodes),
        after != before,
        before.is_tidied(after),
        before.changed_at(after),
    )


def unwrapped(pass_: Any) -> Any:
    """Return a pass as its author wrote it, without the adapter or the form that this library put around it."""
    return pass_.pass_ if isinstance(pass_, (AdaptedPass, FormedPass)) else pass_


def with_names_of_graph(exported: ExportedProgram) -> ExportedProgram:
    """Return the program with a signature that matches its graph, after an edit of the graph alone."""
    return exported._transform_do_not_use(lambda graph_module: PassResult(graph_module, True))


def without_flag(returned: Any) -> Any:
    """Return the program of a ``(program, changed)`` pair such as a ``PassResult``; return anything else as it is."""
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], bool):
        return returned[0]
    return returned


class CalledAsModule(nn.Module):
    """A module that calls a function, such as one from a compiler. A bound method's module becomes a submodule."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        owner = getattr(function, "__self__", None)
        if isinstance(owner, nn.Module):
            self.owner = owner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


class UnreadableResultError(PassError):
    """A pass returned an object that cannot be called with the model's inputs, and so cannot be compared."""


def called_as_module(returned: Any) -> nn.Module:
    """Return a module that calls ``returned``, or runs it if it is a converted model; a module itself is returned.

    Raises:
        ConversionError: ``returned`` is a converted model that cannot be loaded here.
        UnreadableResultError: ``returned`` cannot be called.
    """
    if isinstance(returned, nn.Module):
        return returned
    if runtime_of(returned) is not None:
        return loaded(returned)
    if callable(returned) and not isinstance(returned, type):
        return CalledAsModule(returned)
    raise UnreadableResultError(
        f"a pass returned an object of class {type(returned).__qualname__}, which cannot be called like the model",
        remedy="wrap it in a torch.nn.Module whose forward takes the model's inputs, and compare that: "
        "fx_equal(module)",
    )

"""The rows of the catalogue, the decorators that make rows of passes, and functions that passes and programs share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

import fx
from fx.passes import Contract, close
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import GivenProgram, Subject

Pass = Callable[[Any], Any]
Modes = tuple[str, ...]
EVAL: Modes = ("eval",)
BOTH: Modes = ("eval", "train")
EXAMPLES = 200
"""Random programs within which a wrong pass is to be found, where its row does not say otherwise."""
EXAMPLES_KEPT = 100
"""Random programs on which a right pass is not to be flagged, for each seed, where its row does not say otherwise."""
USUAL: dict[str, tuple[str, ...]] = {
    "terminates": ("was still running after",),
    "refusal": ("crashed with",),
    "returns a program": ("returned no program",),
    "original untouched": ("changed the module that was captured",),
    "well formed": ("references nonexistent attribute",),
    "code and graph agree": ("the graph was edited, but the program not recompiled",),
    "signature": ("the program's inputs are",),
    "mode": ("leaves the program in training mode",),
    "structure": ("an output has another shape", "the program returns something of another structure"),
    "dtype": ("an output has another dtype",),
    "contract": ("changes what the program", "makes the program raise where eager does not"),
    "inputs untouched": ("changes what the program writes to its inputs",),
    "state": ("a call no longer changes",),
    "aliasing": ("now shares memory with", "no longer shares memory with"),
    "gradients": ("changes the gradient of", "no longer requires a gradient"),
    "non-finite inputs": ("changes what the program on inputs with NaN and infinities computes",),
    "deterministic": ("makes other code of the same program",),
    "metadata kept": ("has lost what analyses wrote into its meta",),
    "round trips": ("the transformed program cannot be pickled",),
}
"""Words of the message of a broken law, one or another of these, if a row has no words of its own."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program and what it is called with."""

    module: nn.Module
    """The program, in the mode in which it is used."""
    inputs: tuple[Any, ...]
    """Its positional arguments."""
    dtype: torch.dtype | None = None
    """That of a model of the suite, whose input sets have other values each; None: called with these inputs alone."""

    def subject(self) -> Subject:
        """Return it as what passes are judged on."""
        if self.dtype is None:
            mode = "train" if self.module.training else "eval"
            return Subject.of(GivenProgram(lambda: self.module, Arguments(self.inputs)), mode)
        values = lambda number: Arguments(tuple(each + number for each in self.inputs))  # noqa: E731
        return Subject("model", self.module, values, working_dtype=self.dtype)


Witness = Callable[[], Case]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A pass with a mistake in it."""

    name: str
    """The name of the pass; for a plain function its own."""
    theme: str
    """The file of the catalogue that it is in."""
    kind: str
    """The kind of mistake."""
    wrong: str
    """The fault, in a sentence."""
    pass_: Pass
    """The pass; what is ``made_elsewhere`` is a function of the module instead, which returns the wrong program."""
    laws: tuple[str, ...]
    """The laws that may catch it, the most direct one first; see ``evidence.py``."""
    witness: Witness | None
    """A program on which it does wrong; None for a pass of a round."""
    contract: Contract = close
    """The contract that the pass claims to keep."""
    modes: Modes = EVAL
    """The modes in which it claims to be right."""
    says: tuple[str, ...] = ()
    """Words of the message on its witness, those of ``USUAL`` if empty; with ``model``, words of pytest's output."""
    model: str = ""
    """The name of the witness of a pass in ``users/`` on the command line, as ``name`` is that of the pass."""
    programs: int = EXAMPLES
    """Random programs within which it is found, too; 0 where its witness alone shows it."""
    made_elsewhere: bool = False
    """Whether the program is no result of a pass on a capture."""
    round: int = 0
    """The blind round that it was written for; 0 for a pass of the catalogue's own."""
    form: str = "auto"
    """The form of programs that it takes, as ``--fx-form`` spells it."""


@dataclass(frozen=True, slots=True)
class Right:
    """A pass without a mistake, as its author thought."""

    name: str
    """The name of the pass; for a plain function its own."""
    theme: str
    """The file of the catalogue that it is in."""
    kind: str
    """The kind of mistake that it does not make, where a wrong pass beside it does."""
    does: str
    """The purpose of the pass, in a sentence."""
    pass_: Pass
    """The pass, as in :class:`Wrong`."""
    witnesses: tuple[Witness, ...]
    """Programs that it changes."""
    contract: Contract = close
    """The contract that the pass promises to keep."""
    modes: Modes = BOTH
    """The modes in which it promises to be right."""
    programs: int = EXAMPLES_KEPT
    """Random programs on which it is not flagged, for each seed; 0 where it is made for its witnesses."""
    made_elsewhere: bool = False
    """See :class:`Wrong`."""
    round: int = 0
    """See :class:`Wrong`."""
    form: str = "auto"
    """See :class:`Wrong`."""
    fault: str = ""
    """The mistake that a search found in it after all."""


WRONG: dict[str, Wrong] = {}
"""Every wrong pass by name, but for those of rounds."""
RIGHT: dict[str, Right] = {}
"""Every right pass by name, but for those of rounds."""
ROUNDS: dict[str, Wrong | Right] = {}
"""Every pass of a round by name."""

LAWS_OF_VALUES = ("contract", "dtype", "structure", "gradients", "inputs untouched")
"""The laws that show most faults of the passes of a round."""
_Row = TypeVar("_Row", Wrong, Right)


def enter(row: _Row) -> _Row:
    """Enter a row, whose name no other one has."""
    if row.name in {*WRONG, *RIGHT, *ROUNDS}:
        raise ValueError(f"two passes of the catalogue are called {row.name}")
    registry = ROUNDS if row.round else WRONG if isinstance(row, Wrong) else RIGHT
    registry[row.name] = row  # type: ignore[assignment]
    return row


def wrong(kind: str, *laws: str, on: Witness, **options: Any) -> Callable[[Pass], Pass]:
    """Enter a pass whose docstring says what is wrong with it."""

    def add(pass_: Pass) -> Pass:
        name, theme, sentence = _words(pass_)
        enter(Wrong(name, theme, kind, sentence, pass_, laws, on, **options))
        return pass_

    return add


def right(*on: Witness, kind: str = "", **options: Any) -> Callable[[Pass], Pass]:
    """Enter a pass whose docstring says what it does."""

    def add(pass_: Pass) -> Pass:
        name, theme, sentence = _words(pass_)
        enter(Right(name, theme, kind, sentence, pass_, on, **options))
        return pass_

    return add


def fault(
    round: int, kind: str = "blind", *laws: str, wrong: str, form: str = "auto", contract: Contract = close
) -> Callable[[Pass], Pass]:
    """Enter a wrong pass of a round, whose docstring says what its author would claim of it.

    Without ``laws`` they are those of values.
    """

    def add(pass_: Pass) -> Pass:
        name, theme, _ = _words(pass_)
        shown_by = laws or LAWS_OF_VALUES
        options: dict[str, Any] = {"modes": BOTH, "programs": EXAMPLES_KEPT, "round": round, "form": form}
        options["contract"] = contract
        enter(Wrong(name, theme, kind, wrong, pass_, shown_by, None, **options))
        return pass_

    return add


def sound(round: int, form: str = "auto", *, fault: str = "") -> Callable[[Pass], Pass]:
    """Enter a right pass of a round; ``fault`` is the mistake that was found in it after all."""

    def add(pass_: Pass) -> Pass:
        name, theme, sentence = _words(pass_)
        enter(Right(name, theme, "", sentence, pass_, (), round=round, form=form, fault=fault))
        return pass_

    return add


def _words(pass_: Any) -> tuple[str, str, str]:
    """The name of a pass, its file and its docstring, which an adapted one has from the pass it adapts."""
    inner = getattr(pass_, "pass_", pass_)
    name = getattr(inner, "__name__", type(inner).__name__)
    return name, inner.__module__.rpartition(".")[2], " ".join((inner.__doc__ or "").split())


def of_theme(*themes: str) -> list[Wrong]:
    """The wrong passes of some files of the catalogue."""
    return [row for row in WRONG.values() if row.theme in themes]


def case(forward: Callable[..., Any], *inputs: Any, train: bool = False, **layers: Any) -> Case:
    """A module with ``layers`` as attributes whose ``forward`` is the function, beside its inputs."""
    module = type("Witness", (nn.Module,), {"forward": forward})()
    for name, layer in layers.items():
        setattr(module, name, layer)
    return Case(module.train(train), inputs)


def of(forward: Callable[..., Any], *inputs: Any, train: bool = False, **layers: Any) -> Witness:
    """Return a maker of a new program of a function, called with ``inputs``: a size becomes a tensor of numbers."""

    def witness() -> Case:
        arguments = (numbers(*tensor) if isinstance(tensor, tuple) else tensor.clone() for tensor in inputs)
        return case(forward, *arguments, train=train, **copy.deepcopy(layers))

    return witness


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of numbers between -2 and 2, each another one."""
    count = torch.Size(shape).numel()
    return (torch.sin(torch.arange(1, count + 1, dtype=torch.float64) * 1.7) * 2).reshape(shape).to(dtype)


def settled(layer: nn.Module) -> nn.Module:
    """``layer`` with parameters and buffers as after some training: none is 0 or 1, variances are positive."""
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(numbers(*tensor.shape).abs() / 2 + 0.25)
    return layer


def calls(graph_module: Any, *targets: Any) -> list[Any]:
    """The nodes that call one of some functions, methods by their names, or modules by their classes, in this order.

    Modules with hooks are left out: what takes their place has none.
    """
    called = {
        node: type(graph_module.get_submodule(node.target)) if node.op == "call_module" else node.target
        for node in graph_module.graph.nodes
        if node.op.startswith("call_") and not _has_hooks(graph_module, node)
    }
    return [node for target in targets for node, own in called.items() if own == target]


def _has_hooks(graph_module: Any, node: Any) -> bool:
    called = graph_module.get_submodule(node.target) if node.op == "call_module" else None
    return called is not None and bool(called._forward_hooks or called._forward_pre_hooks)


def layers(graph_module: Any, kind: type[nn.Module]) -> list[tuple[Any, Any]]:
    """The nodes that call modules of class ``kind``, each with the module."""
    return [(node, graph_module.get_submodule(node.target)) for node in calls(graph_module, kind)]


def fetched(graph_module: Any, node: Any, *names: str) -> list[Any]:
    """Nodes before ``node`` that fetch parameters of the module that it calls, None for those that this lacks."""
    layer, graph = graph_module.get_submodule(node.target), graph_module.graph
    with graph.inserting_before(node):
        return [None if getattr(layer, name) is None else graph.get_attr(f"{node.target}.{name}") for name in names]


_OPCODES = {str: "call_method"}


def _call(graph: Any, target: Any, args: Any, kwargs: Any) -> Any:
    return graph.create_node(_OPCODES.get(type(target), "call_function"), target, args, kwargs)


def replace(node: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Put a call of a function, or of a method by its name, in the place of ``node`` and return it."""
    with node.graph.inserting_before(node):
        call = _call(node.graph, target, args, kwargs)
    call.meta = dict(node.meta)
    substitute(node, call)
    return call


def substitute(node: Any, other: Any) -> None:
    """Let the users of ``node`` use another one, and erase it."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def behind(node: Any, target: Any, *args: Any) -> Any:
    """Let the users of ``node`` use a call behind it, of a function or of a method by its name, and return that."""
    with node.graph.inserting_after(node):
        call = _call(node.graph, target, args, {})
    node.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)
    return call


def merge(graph_module: Any, nodes: Iterable[Any], key: Callable[[Any], Any]) -> None:
    """Replace all nodes of the same key by the first of them."""
    first_by_key: dict[Any, Any] = {}
    for node in list(nodes):
        if (same := first_by_key.setdefault(key(node), node)) is not node:
            substitute(node, same)
    graph_module.recompile()


def pure_calls(graph_module: Any) -> list[Any]:
    """The nodes that call a function or a method without an effect."""
    calls_in_order = (node for node in graph_module.graph.nodes if node.op in ("call_function", "call_method"))
    return [node for node in calls_in_order if not node.is_impure()]


def folded(layer: Any, norm: Any) -> Any:
    """A new layer that computes what a batch norm makes of the result of ``layer``."""
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        scale = torch.rsqrt(norm.running_var + norm.eps) * (1 if norm.weight is None else norm.weight)
        shift = (0 if layer.bias is None else layer.bias) - norm.running_mean
        copied.weight = nn.Parameter(layer.weight * scale.reshape(-1, *[1] * (layer.weight.dim() - 1)))
        copied.bias = nn.Parameter(shift * scale + (0 if norm.bias is None else norm.bias))
    return copied


def bypass(graph_module: Any, *targets: Any) -> None:
    """Let the users of calls use what these are computed from, and erase the calls."""
    for node in calls(graph_module, *targets):
        substitute(node, node.args[0])
    graph_module.recompile()


def retarget(graph_module: Any, target: Any, other: Any) -> None:
    """Let the calls of a function call another one."""
    for node in calls(graph_module, target):
        node.target = other
    graph_module.recompile()


def node_of(graph_module: fx.GraphModule, target: Any) -> Any:
    """The first node with ``target``."""
    return next(node for node in graph_module.graph.nodes if node.target == target)

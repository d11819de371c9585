"""Match a model's parameters with a program's tensors, by identity or values, and check that they keep their roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.fx
from torch import nn

from fx import GraphModule
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.snapshot import is_strided, place_of, same_tensor
from pytest_fx.harness.structure import leaves
from pytest_fx.laws.law import broken

Tensors = Mapping[str, torch.Tensor]
_FEW = 16
"""Number of elements by which candidates are looked up before all elements are compared."""


@dataclass(frozen=True, slots=True)
class Counterparts:
    """The parameters of a model, and the tensors of a program that replace them."""

    model: Tensors
    """Parameters of the model by name."""
    program: Tensors
    """Parameters of the program by name."""
    sure: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By parameter of the model: parameters of the program that are the same object, or have its name and values."""
    equal: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By parameter of the model: parameters of the program that have only equal values."""
    constants: dict[str, str] = field(default_factory=dict[str, str])
    """By parameter of the model: a new tensor with its values that is not a parameter of the program."""
    of_buffers: dict[str, str] = field(default_factory=dict[str, str])
    """By parameter of the program: the buffer of the model that has its values."""

    def of(self, name: str) -> list[str]:
        """Return the counterparts of a parameter of the model; the sure ones come first."""
        return [*self.sure.get(name, ()), *self.equal.get(name, ())]

    def trained(self, name: str) -> list[str]:
        """Return the trainable counterparts of a parameter of the model."""
        return [own for own in self.of(name) if self.program[own].requires_grad]

    @property
    def kept(self) -> set[str]:
        """The model's parameters that are trainable, and have a trainable counterpart under any name."""
        return {name for name, tensor in self.model.items() if tensor.requires_grad and self.trained(name)}


def counterparts(pass_run: PassRun) -> Counterparts:
    """Return the counterparts of a model's parameters; they are searched for once."""
    return pass_run.once("counterparts", partial(_find, pass_run))


def _find(pass_run: PassRun) -> Counterparts:
    eager, program = pass_run.subject.eager_runner().program, pass_run.program
    assert program is not None, "asked for the parameters of a program that there is not"
    pairs = Counterparts(dict(eager.named_parameters()), dict(program.named_parameters()))
    _find_sure(pass_run, eager, program, pairs)
    certain = {own for some in pairs.sure.values() for own in some}
    own_buffers = dict(eager.named_buffers())
    parameters, buffers = _Values(pairs.model), _Values(own_buffers)
    for own, tensor in pairs.program.items():
        if own in certain:
            continue
        names = parameters.equal_to(tensor)
        # Copied layers have equal values until they are trained: prefer a parameter that has no sure counterpart.
        for name in [name for name in names if name not in pairs.sure] or names:
            pairs.equal.setdefault(name, []).append(own)
        others = [own] if own in own_buffers and same_tensor(own_buffers[own], tensor) else buffers.equal_to(tensor)
        if others and not names:
            pairs.of_buffers[own] = others[0]
    constants = _Values(_new_constants(pass_run, eager, program))
    for name, tensor in pairs.model.items():
        if equal := constants.equal_to(tensor):
            pairs.constants[name] = equal[0]
    return pairs


def _find_sure(pass_run: PassRun, eager: nn.Module, program: nn.Module, pairs: Counterparts) -> None:
    """Find parameters that are the same objects, or have the same name and values. Tied ones have several names."""
    before = {} if pass_run.before is None else pass_run.before.module.tensors
    shared = {id(tensor): name for name, (tensor, _) in before.items()}
    first = {id(tensor): name for name, tensor in pairs.model.items()}
    paths = {path: first[id(tensor)] for path, tensor in eager.named_parameters(remove_duplicate=False)}
    names = {id(tensor): name for name, tensor in pairs.program.items()}
    for path, tensor in program.named_parameters(remove_duplicate=False):
        for name in dict.fromkeys((shared.get(id(tensor), ""), paths.get(path, ""))):
            if name not in pairs.model or names[id(tensor)] in pairs.sure.get(name, ()):
                continue
            if pairs.model[name] is tensor or same_tensor(pairs.model[name], tensor):
                pairs.sure.setdefault(name, []).append(names[id(tensor)])


def require_roles(pass_run: PassRun, parameters: Counterparts) -> None:
    """Report a parameter that is trainable, or shares its memory, in only one of the two programs.

    A program made elsewhere may exist only for its outputs, and its parameters are matched by name only.
    """
    is_given = pass_run.before is None
    for name, tensor in parameters.model.items():
        own = parameters.sure.get(name, []) if is_given else parameters.of(name)
        can_train = [parameters.program[each].requires_grad for each in own]
        if not tensor.requires_grad and own and all(can_train):
            _report_trainable(own[0], f"the parameter {name!r}, which is frozen in eager,")
        if is_given or not tensor.requires_grad:
            continue
        if own and not any(can_train):
            broken("gradients", f"the parameter {name!r} of the program no longer requires a gradient")
        if not own and name in parameters.constants:
            broken(
                "gradients",
                f"the parameter {name!r} is a constant of the program, which no longer requires a gradient",
                value=f"{parameters.constants[name]} has its values",
            )
    if not is_given:
        for own, name in parameters.of_buffers.items():
            if parameters.program[own].requires_grad:
                _report_trainable(own, f"the buffer {name!r} of eager")
        _require_apart(parameters)


def _report_trainable(own: str, what: str) -> None:
    broken(
        "gradients",
        f"{what} can be trained in the program",
        value=f"{own}.requires_grad is True",
        why="an optimizer that gets the parameters of the program changes it",
        remedy="give new parameters the requires_grad of the old ones: nn.Parameter(values, requires_grad=…)",
        kind="can be trained",
    )


def _require_apart(parameters: Counterparts) -> None:
    """Report parameters that share their memory in the program and not in eager, or in eager and not in the program."""
    first: dict[int, str] = {}
    for name, tensor in parameters.model.items():
        own = parameters.sure.get(name, []) if tensor.requires_grad else []
        for each in own:
            other = first.setdefault(place_of(parameters.program[each]), name)
            if other != name and place_of(tensor) != place_of(parameters.model[other]):
                broken(
                    "gradients",
                    f"the parameters {other!r} and {name!r} are one in the program",
                    why="training moves both alike then, and each by its own gradient in eager",
                    kind="shares memory",
                )
        if len({place_of(parameters.program[each]) for each in own}) > 1:
            broken(
                "gradients",
                f"the parameter {name!r}, which eager uses under several names, is {len(own)} in the program",
                value=", ".join(own),
                why="training moves them apart; in eager they stay equal",
                kind="shares memory",
            )


def is_folded(pass_run: PassRun, name: str) -> bool:
    """Return whether some uses of a parameter were folded into other tensors, in evaluation mode.

    Folding makes values that occur nowhere in the model; a copy, as a parameter or a constant, is not folded. But a
    weight of zeros is still zero after scaling: a new parameter with equal elements may be a folded one.
    """
    after, parameters = pass_run.graph_program, counterparts(pass_run)
    own = parameters.of(name)
    if pass_run.mode == "train" or after is None or len(own) != 1 or name in parameters.constants:
        return False
    if not _holds_new_values(pass_run):
        return False
    if _uses(after, own[0]) < _uses(pass_run.capture(), name):
        return True
    before, tensor = pass_run.before, parameters.program[own[0]]
    is_new = before is not None and all(tensor is not other for other, _ in before.module.tensors.values())
    return is_new and not _varies(tensor)


def _uses(program: GraphModule | torch.fx.GraphModule, name: str) -> int:
    """Return the number of nodes that fetch a parameter, by any of its names, or call a module that holds it."""
    parameters = dict(program.named_parameters(remove_duplicate=False))
    paths = [path for path, tensor in parameters.items() if tensor is parameters.get(name)] or [name]
    nodes = [node for node in program.graph.nodes if node.op == "call_module" or (node.op == "get_attr" and node.users)]
    return sum(any(f"{path}.".startswith(f"{node.target}.") for path in paths) for node in nodes)


def _holds_new_values(pass_run: PassRun) -> bool:
    """Return whether a program has parameters or buffers with values that occur in none of the model's."""
    program, eager = pass_run.program, pass_run.subject.eager_runner().program
    assert program is not None, "asked for the values of a program that there is not"
    sure = {own for some in counterparts(pass_run).sure.values() for own in some}
    originals = _Values({**dict(eager.named_parameters()), **dict(eager.named_buffers())}, plain=True)
    constants = () if pass_run.before is None else pass_run.before.constants
    tensors = {**dict(program.named_parameters()), **dict(program.named_buffers())}
    new = (tensor for name, tensor in tensors.items() if name not in sure and name not in constants)
    return any(tensor.is_floating_point() and not originals.equal_to(tensor) for tensor in new)


class _Values:
    """Lookup of tensors by their values."""

    def __init__(self, tensors: Tensors, *, plain: bool = False) -> None:
        """Index the tensors. Unless ``plain``, a tensor of equal elements matches none: zeros are no evidence."""
        self._plain = plain
        self._known: dict[Any, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if (key := self._key(tensor)) is not None:
                self._known.setdefault(key, {})[name] = tensor

    def equal_to(self, tensor: torch.Tensor) -> list[str]:
        """Return the names of the tensors that have the values of ``tensor``."""
        candidates = self._known.get(self._key(tensor), {})
        if not candidates or not (self._plain or _varies(tensor)):
            return []
        return [name for name, other in candidates.items() if other is tensor or same_tensor(other, tensor)]

    @staticmethod
    def _key(tensor: torch.Tensor) -> Any:
        if not is_strided(tensor) or tensor.is_quantized:
            return None
        few = tensor.detach()
        for _ in range(few.dim() - 1):  # avoids a copy of a non-contiguous tensor
            few = few[0] if len(few) else few.flatten()
        return tensor.dtype, tensor.shape, tuple(map(str, few.flatten()[:_FEW].tolist()))


def _varies(tensor: torch.Tensor) -> bool:
    few = tensor.detach().flatten()
    return len(few) > 1 and bool((few != few[0]).any())


def _new_constants(pass_run: PassRun, eager: nn.Module, program: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a program that are neither parameters nor in the model.

    They are buffers, attributes, and tensors in closures or partials in the graph.
    """
    before = pass_run.before
    excluded = {id(tensor) for tensor, _ in before.module.tensors.values()} if before is not None else set[int]()
    names = {name for name, _ in eager.named_buffers()} | (before.constants if before is not None else set[str]())
    tensors = {name: tensor for name, tensor in program.named_buffers() if name not in names}
    for path, part in program.named_modules():
        for name, value in vars(part).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                tensors.update(_tensors_in(f"{path}.{name}".lstrip("."), value))
    if isinstance(program, GraphModule):
        for node in program.graph.nodes:
            for number, value in enumerate(_captured_by(node.target)):
                tensors.update(_tensors_in(f"{node.name}, variable {number}", value))
    excluded |= set(map(id, program.parameters()))
    return {name: tensor for name, tensor in tensors.items() if id(tensor) not in excluded}


def _tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for place, leaf in leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield f"{name}{place}", leaf
        elif isinstance(leaf, nn.Module) and not isinstance(leaf, GraphModule):
            yield from ((f"{name}{place}.{inner}", tensor) for inner, tensor in leaf.named_parameters())


def _captured_by(target: Any) -> Iterator[Any]:
    """Yield the values in a function's closure, or the arguments of a ``partial``."""
    if isinstance(target, partial):
        yield from (target.args, target.keywords)
        yield from _captured_by(target.func)
    elif isinstance(target, FunctionType):
        for cell in target.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                yield cell.cell_contents

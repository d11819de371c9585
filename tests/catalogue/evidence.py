"""The most direct way to see that a pass broke a law on its witness, one function a law; no harness is involved."""

from __future__ import annotations

import copy
import inspect
import pickle
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fx
from fx.errors import FxError, PassError
from fx.passes import Exact
from pytest_fx.harness.structure import leaves, skeleton

from .rows import Case, Pass, Right, Wrong


class _TooLong(Exception):
    """A pass ran for longer than it may."""


def apply(pass_: Pass, program: Case) -> Any:
    """Apply the pass to a capture of the program."""
    captured = fx.symbolic_trace(program.module)
    result: Any = pass_(captured)
    return captured if result is None else result


def answer(module: Any, program: Case) -> Any:
    """Return the answer of ``module`` to the case's inputs, from one random seed, on copies."""
    torch.manual_seed(0)
    return module(*copy.deepcopy(program.inputs))


def both(row: Wrong | Right, program: Case) -> tuple[Any, Any]:
    """The answers of a copy of the original, and of what the pass makes of it or the error that this raises."""
    expected = answer(copy.deepcopy(program.module), program)
    transformed = apply(row.pass_, program)
    try:
        return expected, answer(transformed, program)
    except Exception as error:  # whatever the broken program raises
        return expected, error


def differs(expected: Any, actual: Any, exact: bool) -> bool:
    """Return True if two answers differ in structure or values; NaN equals NaN."""
    if isinstance(actual, Exception) or skeleton(expected) != skeleton(actual):
        return True
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-5, "atol": 1e-5}
    differs_anywhere = False
    for (_, first), (_, second) in zip(leaves(expected), leaves(actual), strict=True):
        if not isinstance(first, torch.Tensor):
            if first != second:
                return True
        elif first.shape != second.shape or first.dtype != second.dtype:
            return True
        else:
            differs_anywhere |= not torch.allclose(first, second, equal_nan=True, **tolerance)
    return differs_anywhere


def contract(row: Wrong) -> bool:
    """The answers differ."""
    return differs(*both(row, row.witness()), exact=isinstance(row.contract, Exact))


def structure(row: Wrong) -> bool:
    """The containers of the answers differ."""
    expected, actual = both(row, row.witness())
    return skeleton(expected) != skeleton(actual)


def dtype(row: Wrong) -> bool:
    """The dtypes of the answers differ."""
    expected, actual = both(row, row.witness())
    return [leaf.dtype for _, leaf in leaves(expected)] != [leaf.dtype for _, leaf in leaves(actual)]


def aliasing(row: Wrong) -> bool:
    """Return True if the results and inputs that share memory differ from the original's."""

    def shared(module: Any, program: Case) -> list[bool]:
        tensors = [leaf for _, leaf in leaves((module(*program.inputs), program.inputs))]
        storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        return [storage == other for storage in storages for other in storages]

    program = row.witness()
    return shared(program.module, program) != shared(apply(row.pass_, program), program)


def inputs_untouched(row: Wrong) -> bool:
    """One of the transformed program and the original writes to what it is given, the other does not."""

    def written(module: Any) -> bool:
        copied = copy.deepcopy(program.inputs)
        module(*copied)
        return not all(map(torch.equal, copied, program.inputs))

    program = row.witness()
    return written(apply(row.pass_, program)) != written(program.module)


def signature(row: Wrong) -> bool:
    """The parameters of forward differ."""
    program = row.witness()
    signatures = [inspect.signature(module.forward) for module in (program.module, apply(row.pass_, program))]
    parameters = [[(p.name, p.default) for p in signature.parameters.values()] for signature in signatures]
    return parameters[0] != parameters[1]


def original_untouched(row: Wrong) -> bool:
    """The module that was captured is another one after the pass."""
    program = row.witness()
    before = copy.deepcopy(program.module)
    apply(row.pass_, program)
    return _looks(before) != _looks(program.module)


def _looks(module: nn.Module) -> list[Any]:
    tensors = [
        (name, tensor.requires_grad, tensor.tolist()) for name, tensor in module.state_dict(keep_vars=True).items()
    ]
    return [*tensors, *((name, part.training, part.extra_repr()) for name, part in module.named_modules())]


def state(row: Wrong) -> bool:
    """The buffers hold something else after a call."""
    program = row.witness()
    original = copy.deepcopy(program.module)
    transformed = apply(row.pass_, program)
    answer(original, program)
    answer(transformed, program)
    buffers = dict(transformed.named_buffers())
    return any(name not in buffers or not torch.equal(old, buffers[name]) for name, old in original.named_buffers())


def gradients(row: Wrong) -> bool:
    """The gradients of inputs or parameters differ."""
    program = row.witness()
    gradients = [_gradients(copy.deepcopy(program.module), program), _gradients(apply(row.pass_, program), program)]
    return any(
        name not in gradients[1] or differs(old, gradients[1][name], False) for name, old in gradients[0].items()
    )


def _gradients(module: nn.Module, program: Case) -> dict[str, Any]:
    copies = [tensor.clone().requires_grad_() for tensor in program.inputs]
    torch.manual_seed(0)
    total = module(*copies).sum()
    if total.requires_grad:
        total.backward()
    named = {**dict(module.named_parameters()), **{str(number): tensor for number, tensor in enumerate(copies)}}
    return {name: tensor.grad for name, tensor in named.items()}


def code_and_graph_agree(row: Wrong) -> bool:
    """The code is not that of the graph."""
    transformed = apply(row.pass_, row.witness())
    return transformed.code != transformed.graph.python_code("self").src


def well_formed(row: Wrong) -> bool:
    """The graph does not pass its own check."""
    try:
        apply(row.pass_, row.witness()).graph.lint()
    except FxError:
        return True
    return False


def refusal(row: Wrong) -> bool:
    """The pass raises something that is no refusal."""
    try:
        apply(row.pass_, row.witness())
    except Exception as error:  # any but one class is wrong
        return not isinstance(error, PassError)
    return False


def terminates(row: Wrong) -> bool:
    """The pass still runs after half a second."""

    def stop(*_: Any) -> None:
        raise _TooLong

    program, before = row.witness(), signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        apply(row.pass_, program)
    except _TooLong:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False


def deterministic(row: Wrong) -> bool:
    """Not every one of twenty captures becomes the same program."""
    results = [apply(row.pass_, row.witness()) for _ in range(20)]
    return len({program.code for program in results}) > 1


def round_trips(row: Wrong) -> bool:
    """The program cannot be pickled."""
    try:
        pickle.dumps(apply(row.pass_, row.witness()))
    except FxError:
        return True
    return False


def metadata_kept(row: Wrong) -> bool:
    """No call has the note any more that every node had."""
    captured = fx.symbolic_trace(row.witness().module)
    for node in captured.graph.nodes:
        node.meta["note"] = node.name
    result: Any = row.pass_(captured) or captured
    return not any("note" in node.meta for node in result.graph.nodes if node.op.startswith("call"))


def changes(row: Wrong) -> bool:
    """The program is as it was."""
    program = row.witness()
    return apply(row.pass_, program).code == fx.symbolic_trace(program.module).code


def returns_a_program(row: Wrong) -> bool:
    """Return True if the pass returns no program."""
    return not isinstance(apply(row.pass_, row.witness()), fx.GraphModule)


def mode(row: Wrong) -> bool:
    """The program is in another mode than what was captured."""
    program = row.witness()
    return bool(apply(row.pass_, program).training) != program.module.training


_NAMED = (
    *(contract, structure, dtype, aliasing, inputs_untouched, signature, original_untouched, state, gradients),
    *(code_and_graph_agree, well_formed, mode, refusal, terminates, deterministic, round_trips, metadata_kept, changes),
    returns_a_program,
)
EVIDENCE: dict[str, Callable[[Wrong], bool]] = {
    **{function.__name__.replace("_", " "): function for function in _NAMED},
    "batch sizes": contract,
    "non-finite inputs": contract,
}
"""For each law that a row may name, how to see on the row's witness that it is broken."""

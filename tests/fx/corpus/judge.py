"""Check that a captured program means the same as the program: capture, run both, and compare all results."""

from __future__ import annotations

import copy
import dataclasses
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fx.errors import FxError

from .programs import SIZES, Program

RIGHT, REFUSED, UNEXPLAINED, WRONG = "right", "refused", "unexplained", "wrong"
"""Verdicts: equal to eager in all that is compared; refused with the user's line; fails without one; silently wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a program."""

    kind: str
    """One of the above."""
    why: str
    """The difference, or the message."""


class _Ended(Exception):
    """The judgement is known."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.verdict = Verdict(kind, why)


def judge(program: Program, library: ModuleType, guided: bool | None = None) -> Verdict:
    """Capture a program in both modes and compare it with eager; the worst of both is the verdict.

    With ``guided``, it is captured with example inputs of the first size. By default the program's own setting decides;
    ``torch.fx`` takes no example inputs.
    """
    guided = program.guided and library.__name__ == "fx" if guided is None else guided
    modes = (False, True) if program.is_module else (False,)
    verdicts = [_judged(program, library, training, guided) for training in modes]
    order = (WRONG, UNEXPLAINED, REFUSED, RIGHT)
    return min(verdicts, key=lambda verdict: order.index(verdict.kind))


def _judged(program: Program, library: ModuleType, training: bool, guided: bool) -> Verdict:
    mode = "training: " if training else ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _compare(program, library, training, guided)
    except _Ended as ended:
        return Verdict(ended.verdict.kind, mode + ended.verdict.why)
    finally:
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", False)
    return Verdict(RIGHT, "")


def _compare(program: Program, library: ModuleType, training: bool, guided: bool) -> None:
    root = program.build(training)
    before, process = _held(root), _process()
    captured = _capture(program, library, root, guided)
    _expect_same(process, _process(), "the process after the trace")
    _expect_same(before, _held(root), "the root after the trace")
    if program.must_refuse:
        raise _Ended(WRONG, "captured what must be refused")
    eager = program.build(training)
    if program.is_module and eager.state_dict().keys() != captured.state_dict().keys():
        raise _Ended(WRONG, f"keys of the state: {list(eager.state_dict())} and {list(captured.state_dict())}")
    for size in (*SIZES, SIZES[0]):
        _compare_runs(program, eager, captured, size, f"at size {size}")
    with torch.no_grad():
        _compare_runs(program, eager, captured, SIZES[0], "under no_grad")
    if program.is_module:
        _compare_after_changes(program, eager, captured, training)


def _compare_after_changes(program: Program, eager: Any, captured: Any, training: bool) -> None:
    state = {
        name: value + 0.25 if value.is_floating_point() else value.clone() for name, value in eager.state_dict().items()
    }
    eager.load_state_dict(copy.deepcopy(state))
    captured.load_state_dict(copy.deepcopy(state))
    _compare_runs(program, eager, captured, SIZES[0], "with another checkpoint")
    try:
        for module in (eager, captured):
            module.train(not training)
        _compare_runs(program, eager, captured, SIZES[0], "in the other mode")
        for module in (eager, captured):
            module.train(training)
        _compare_runs(program, eager, captured, SIZES[0], "back in the first mode")
    except FxError as error:
        raise _refusal(error, program) from error


def _capture(program: Program, library: ModuleType, root: Any, guided: bool) -> Any:
    examples = {"example_inputs": tuple(map(_differentiable, program.inputs(SIZES[0])))} if guided else {}
    try:
        if not program.options:
            return library.symbolic_trace(root, **examples)
        tracer = library.Tracer()
        for name, value in program.options.items():
            setattr(tracer, name, value)
        graph = tracer.trace(root, **examples)
        return library.GraphModule(tracer.root, graph)
    except FxError as error:
        raise _refusal(error, program) from error
    except Exception as error:
        raise _Ended(UNEXPLAINED, f"{type(error).__name__}: {error}") from error


def _refusal(error: FxError, program: Program) -> _Ended:
    is_expected = f"{program.theme}.py:" in str(error)
    return _Ended(REFUSED if is_expected else UNEXPLAINED, str(error))


def _compare_runs(program: Program, eager: Any, captured: Any, size: int, where: str) -> None:
    expected, actual = _run(program, eager, size), _run(program, captured, size)
    if isinstance(actual.get("error"), FxError):
        raise _refusal(actual["error"], program)
    if ("error" in expected) != ("error" in actual):
        raise _Ended(
            WRONG, f"{where}: eager {expected.get('error', 'runs')!r}, captured {actual.get('error', 'runs')!r}"
        )
    if "error" in expected:
        return
    if isinstance(expected["gradients"], str):  # eager cannot tell them; what is captured may
        expected["gradients"] = actual["gradients"]
    for what in expected:
        _expect_same(expected[what], actual[what], f"{what} {where}")


def _run(program: Program, target: Any, size: int) -> dict[str, Any]:
    _seed()
    leaves: list[torch.Tensor] = []

    inputs = [_differentiable(value, leaves) for value in program.inputs(size)]
    grad = torch.is_grad_enabled()
    try:
        output = target(*inputs)
    except Exception as error:
        torch.set_grad_enabled(grad)
        if torch.is_autocast_enabled("cpu"):
            raise _Ended(WRONG, f"autocast is on after {error!r}") from error
        return {"error": error}
    results: dict[str, Any] = {
        "grad mode": (grad, torch.is_grad_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
    }
    torch.set_grad_enabled(grad)
    results |= {
        "output": _described(output),
        "inputs": [_described(value) for value in inputs],
        "random numbers": _random_state(),
        "state": _state(target) if program.is_module else None,
    }
    results["gradients"] = _gradients(target, output, leaves)
    return results


def _differentiable(value: Any, leaves: list[torch.Tensor] | None = None) -> Any:
    """A tensor of floats as the result of an operation, with gradients if they are recorded."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    value.requires_grad_(torch.is_grad_enabled())
    if leaves is not None:
        leaves.append(value)
    return value.clone()


def _gradients(target: Any, output: Any, leaves: list[torch.Tensor]) -> Any:
    tensors = [tensor for tensor in _tensors(output) if tensor.requires_grad and tensor.is_floating_point()]
    parameters = dict(target.named_parameters()) if isinstance(target, torch.nn.Module) else {}
    for leaf in (*leaves, *parameters.values()):
        leaf.grad = None
    if tensors:
        try:
            sum(((tensor * tensor).sum() + tensor.sum()) for tensor in tensors).backward()  # type: ignore[union-attr]
        except RuntimeError as error:
            return type(error).__name__
    return [_described(tensor.grad) for tensor in leaves], {
        n: _described(tensor.grad) for n, tensor in parameters.items()
    }


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for element in value.values() for tensor in _tensors(element)]
    if isinstance(value, (tuple, list)):
        return [tensor for element in value for tensor in _tensors(element)]
    if hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        return [tensor for element in vars(value).values() for tensor in _tensors(element)]
    return []


def _state(target: Any) -> Any:
    return {name: _described(value) for name, value in target.state_dict().items()}


def _seed() -> None:
    torch.default_generator.manual_seed(11)
    random.seed(11)
    np.random.seed(11)


def _random_state() -> Any:
    return torch.get_rng_state().numpy().tobytes(), hash(random.getstate()), np.random.get_state()[1].tobytes()  # type: ignore[index]


def _process() -> Any:
    return {
        "random numbers": _random_state(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def _held(root: Any) -> Any:
    """All that the modules of a root hold, in values that later changes leave as they are."""
    if not isinstance(root, torch.nn.Module):
        return None
    contents: dict[str, Any] = {}
    for path, module in root.named_modules():
        for name, value in {**module.__dict__, **module._parameters, **module._buffers}.items():
            if not name.startswith("_") and not isinstance(value, torch.nn.Module):
                contents[f"{path}.{name}"] = _described(value)
    return contents


def _described(value: Any) -> Any:
    """A value that compares equal if, and only if, the two things mean the same."""
    if isinstance(value, torch.Tensor):
        data = value.detach().clone()
        if data.is_quantized or data.is_sparse:
            data = data.dequantize() if data.is_quantized else data.to_dense()
        plain = data.double() if data.is_floating_point() else data
        return (
            "tensor", type(value).__name__, str(value.dtype), tuple(value.shape), value.requires_grad, plain.tolist(),
        )  # fmt: skip
    if isinstance(value, Mapping):
        return type(value).__name__, [(key, _described(element)) for key, element in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_described(element) for element in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _described(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return type(value).__name__, fields
    if isinstance(value, (int, float, str, bool, complex, type(None), torch.dtype, torch.device)):
        return type(value).__name__, value
    if hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value):
        return type(value).__name__, {name: _described(part) for name, part in vars(value).items()}
    return type(value).__name__


def _expect_same(expected: Any, found: Any, what: str) -> None:
    if not _same(expected, found):
        raise _Ended(WRONG, f"{what}: eager {expected!r:.300}, captured {found!r:.300}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other) or abs(one - other) <= 1e-5 * max(abs(one), abs(other))
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return type(one) is type(other) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return type(one) is type(other) and one == other


def names_in(file: Path) -> dict[str, str]:
    """The names that a list holds, each with the rest of its line."""
    lines = [line.split(maxsplit=1) for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {name: rest[0] if rest else "" for name, *rest in lines}

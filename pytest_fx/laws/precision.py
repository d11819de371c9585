"""Lower precision in a program than in the model: converted or rounded tensors, and approximations.

Lower precision distinguishes a pass that trades accuracy on purpose from a wrong pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fx import GraphModule, Node
from fx.errors import FxError
from pytest_fx.errors import ContractViolation, LawViolation
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.snapshot import listed, tensors_of
from pytest_fx.harness.structure import dtype_name, leaves
from pytest_fx.harness.subject import Inputs

INACCURATE = "a pass that trades accuracy for speed promises approximate(sqnr_db=…)"
LEAST_SIGNAL = 20.0
"""Signal-to-noise ratio, in decibels, below which an output is wrong in any case: a tenth of it is noise."""
MORE_ULP_IN_FLOAT64 = 1000
"""Factor by which a rounding error, in ulps, may be larger in float64 than in the working dtype."""
NARROW = (torch.float16, torch.bfloat16)
LEVELS = 256
"""Number of different values of an 8-bit tensor."""
_NAMES = ("quant", "half", "bfloat16", "hardswish", "hardsigmoid", "approx")
"""Parts of the names of functions and modules that approximate, or convert to lower precision."""
_OF_FORMULAS = (0.044715, 1.702)
"""Constants in approximations of GELU."""


def told_with_precision(
    pass_run: PassRun, law: LawViolation, violation: ContractViolation | None = None
) -> LawViolation:
    """Return ``law`` with a note on tensors of lower precision, and advice if the pass trades accuracy by its nature.

    ``violation`` has the numbers by which the contract is broken, if it is broken by numbers.
    """
    lines = [f"  note   {note}" for note in converted_tensors(pass_run)]
    if violation is not None and trades_accuracy(pass_run, violation, law.inputs):
        lines.append(f"  try    {INACCURATE}")
    return law.with_details("\n".join(lines)) if lines else law


def converted_tensors(pass_run: PassRun) -> list[str]:
    """Return a note for each change of dtype from the model to the program, or else on mixed dtypes in the model."""
    tensors, program = pass_run.subject.tensors, pass_run.program
    original = {name: tensor.dtype for name, tensor in tensors.items() if tensor.is_floating_point()}
    now = {} if program is None else {pass_run.names.get(name, name): t for name, t in tensors_of(program).items()}
    changed: dict[tuple[str, str], list[str]] = {}
    for name, tensor in now.items():
        if name in original and tensor.dtype != original[name]:
            changed.setdefault((dtype_name(tensor.dtype), dtype_name(original[name])), []).append(name)
    notes = [
        f"{listed(names)} {_are(names)} {dtype} in the program, {before} in the model"
        for (dtype, before), names in changed.items()
    ]
    return notes or mixed_dtypes(tensors)


def mixed_dtypes(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Return a note for each dtype in the model that is not its most frequent one."""
    names_by_dtype: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            names_by_dtype.setdefault(dtype_name(tensor.dtype), []).append(name)
    usual = max(names_by_dtype, key=lambda dtype: len(names_by_dtype[dtype]), default="")
    return [
        f"{listed(names)} of the model {_are(names)} {dtype}, others {usual}"
        for dtype, names in names_by_dtype.items()
        if dtype != usual
    ]


def trades_accuracy(pass_run: PassRun, violation: ContractViolation, inputs: Inputs) -> bool:
    """Return whether a contract seems to be broken by a pass that trades accuracy by its nature.

    Then the difference is small, and the program has lower precision or an approximation where the model has none; or
    the difference is only rounding.
    """
    if violation.sqnr_db is None or violation.sqnr_db < LEAST_SIGNAL:
        return False
    return (violation.kind.startswith("rounding") and _is_rounding(pass_run, inputs)) or _is_lower(pass_run)


def _is_rounding(pass_run: PassRun, inputs: Inputs) -> bool:
    """Return whether the error shrinks in float64 about as much as the ulp does.

    A missing operation causes the same error in both dtypes, which may be within the tolerance in float64: a batch norm
    with fresh statistics divides by the root of 1.00001.
    """
    if not pass_run.has_float64:
        return False
    eager = pass_run.eager(inputs, float64=True)
    runs = [pass_run.actual(inputs, float64=float64) for float64 in (True, False)]
    if any(run.error is not None for run in (eager, *runs)):
        return False
    in_float64, in_working_dtype = (_largest_error(eager.output, run.output) for run in runs)
    ulps = torch.finfo(torch.float64).eps / torch.finfo(pass_run.subject.dtype).eps
    return in_float64 <= MORE_ULP_IN_FLOAT64 * ulps * in_working_dtype


def _largest_error(expected: Any, actual: Any) -> float:
    pairs = pair_leaves(expected, actual, same_dtype=False)
    if isinstance(pairs, Mismatch):
        return math.inf
    return max((float(leaf.errors.max()) for leaf in pairs if leaf.errors.numel()), default=0.0)


def _is_lower(pass_run: PassRun) -> bool:
    program = pass_run.program
    if program is None:
        return False
    originals = pass_run.subject.tensors
    now = {pass_run.names.get(name, name): tensor for name, tensor in tensors_of(program).items()}
    if any(_is_coarser(tensor, originals.get(name)) for name, tensor in now.items()):
        return True
    if not isinstance(program, GraphModule) or pass_run.subject.capture_error is not None:
        return _approximations(program) > _approximations(pass_run.subject.shared_copy())
    try:
        return _approximations(program) > _approximations(pass_run.capture())
    except FxError:
        return False


def _is_coarser(tensor: torch.Tensor, original: torch.Tensor | None) -> bool:
    """Return whether a tensor has lower precision than its original: by its dtype, or by rounded values."""
    tensor = tensor.detach()
    if original is None or not original.is_floating_point():
        return original is None and tensor.dtype in (torch.int8, torch.uint8, torch.qint8, torch.quint8)
    if not tensor.is_floating_point() or torch.finfo(tensor.dtype).eps > torch.finfo(original.dtype).eps:
        return True
    if tensor.shape != original.shape or tensor.is_sparse or tensor.numel() < 2:
        return False
    fitting = (dtype for dtype in NARROW if torch.finfo(dtype).eps > torch.finfo(tensor.dtype).eps)
    if any(_fits(tensor, dtype) and not _fits(original, dtype) for dtype in fitting):
        return True
    # Float values that were rounded to 8 bits: few different values, but many in the original.
    is_rounded = tensor.numel() > 4 * LEVELS and _levels(_start(tensor)) <= LEVELS and _levels(tensor) <= LEVELS
    return is_rounded and 4 * _levels(tensor) < _levels(original)


def _start(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first elements of a tensor, which rule out most tensors that are not rounded."""
    return tensor.reshape(-1)[: 4 * LEVELS]


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return all(bool((part.to(dtype).to(part.dtype) == part).all()) for part in (_start(tensor), tensor))


def _levels(tensor: torch.Tensor) -> int:
    return tensor.unique().numel()


def _approximations(program: nn.Module) -> int:
    """Return the number of operations that reduce precision, or approximate by their name or constants."""
    if not isinstance(program, GraphModule):
        return sum(_is_named_so(_class_name(part)) for part in program.modules())
    return sum(_approximates(program, node) for node in program.graph.nodes)


def _approximates(program: GraphModule, node: Node) -> bool:
    if node.op == "call_module":
        part = program.get_submodule(str(node.target))
        return _is_named_so(_class_name(part)) or getattr(part, "approximate", None) == "tanh"
    if node.op not in ("call_function", "call_method"):
        return False
    name = f"{getattr(node.target, '__module__', '')}.{node.target}"
    return _is_named_so(name) or any(_is_coarse(leaf) for _, leaf in leaves((node.args, node.kwargs)))


def _is_coarse(value: Any) -> bool:
    """Return whether an argument requests lower precision or an approximation."""
    if isinstance(value, torch.dtype):
        return value in (*NARROW, torch.int8, torch.uint8) or "qint" in str(value) or "float8" in str(value)
    if isinstance(value, float):
        return any(math.isclose(value, constant, rel_tol=1e-3) for constant in _OF_FORMULAS)
    return isinstance(value, str) and value == "tanh"


def _class_name(part: nn.Module) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _is_named_so(name: str) -> bool:
    return any(part in name.lower() for part in _NAMES)


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"

"""A fault as a program of plain torch, which somebody without this library can run.

The program ends with an assertion that fails while the fault exists. It is run in a fresh process: a reproducer whose
assertion holds there, or that raises anything else, is not a reproducer.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_fx.search.counterexample import ALIKE
from pytest_fx.search.fault import Fault

MOST_LINES = 20
"""The lines that a reproducer should not exceed."""
LONGEST = 180.0
"""The most seconds of a reproducer."""
_VALUES = """\
exact, eager, actual = copied(model).double()(*double(args)), model(*copied(args)), compiled(*copied(args))
for right, plain, result in zip(leaves(exact), leaves(eager), leaves(actual), strict=True):
    assert result.shape == plain.shape and result.dtype == plain.dtype, (result, plain)
    error, usual = ((each.double() - right).nan_to_num(0, 9e99, 9e99).abs().max() for each in (result, plain))
    is_near = error <= 8 * usual + 1e-5 * right.double().nan_to_num(0, 0, 0).abs().max() + 1e-8
    assert is_near and torch.equal(result.isnan(), plain.isnan()), f"{result}\\ninstead of\\n{plain}"
"""
_INPUTS = """\
first, second = copied(args), copied(args)
model(*first), compiled(*second)
for plain, result in zip(leaves(first), leaves(second)):
    assert torch.allclose(plain, result, equal_nan=True), f"inputs afterwards: {result}\\ninstead of\\n{plain}"
"""
_STATE = """\
compiled(*copied(args))
after = {name: value.clone() for name, value in model.named_buffers()}
model.load_state_dict(state)
model(*copied(args))
for name, value in model.named_buffers():
    assert torch.allclose(value, after[name], equal_nan=True), f"{name}: {after[name]}\\ninstead of\\n{value}"
"""
_ALIASING = """\
def shares(program):
    inputs = copied(args)
    outputs = leaves(program(*inputs))
    places = [each.untyped_storage().data_ptr() for each in (*outputs, *leaves(inputs), *model.buffers())]
    return [[place == other for other in places] for place in places[: len(outputs)]]
assert shares(compiled) == shares(model), "an output shares memory with another tensor than in eager, or no longer does"
"""
_GRADIENTS = """\
def gradients(program, inputs):
    tracked = [each.requires_grad_() for each in leaves(inputs) if each.is_floating_point()]
    owner = program if isinstance(program, nn.Module) else model
    tracked += [each for _, each in sorted(owner.named_parameters()) if each.requires_grad]
    results = [each for each in leaves(program(*cloned(inputs))) if each.requires_grad]
    return torch.autograd.grad([each.sum() for each in results], tracked, allow_unused=True)
pairs = zip(gradients(model, copied(args)), gradients(compiled, copied(args)), strict=True)
for plain, result in pairs:
    assert plain is result is None or torch.allclose(plain, result, 1e-4, 1e-6, equal_nan=True), (result, plain)
"""
_CALLS = """\
for number in range(3):
    for plain, result in zip(leaves(other(*copied(args))), leaves(compiled(*copied(args))), strict=True):
        is_near = torch.allclose(plain.double(), result.double(), 1e-4, 1e-6, equal_nan=True)
        assert is_near, f"call {number}: {result}\\ninstead of\\n{plain}"
"""
_MAY_RAISE = """\
try:
    compiled(*copied(args))
except Exception as error:
    raise AssertionError("it raises on other inputs than the first") from error"""
_CRASH = "compiled(*copied(args))\n"
_CHECKS = {
    "inputs untouched": _INPUTS,
    "state": _STATE,
    "aliasing": _ALIASING,
    "gradients": _GRADIENTS,
    "calls in a row": _CALLS,
    "process untouched": _CRASH,
    "terminates": _CRASH,
}
"""By law, the lines that show whether it is broken; other laws are about the values."""
_FROM_PYTREE = {"leaves": "tree_leaves as leaves", "tree_map_only": "tree_map_only"}
"""Names of reproducers, with their import from ``torch.utils._pytree``."""
_HELPERS = {
    "cloned": "def cloned(args):\n    return tree_map_only(torch.Tensor, torch.clone, args)",
    "double": "def double(args):\n"
    "    return tree_map_only(torch.Tensor, lambda e: e.double() if e.is_floating_point() else e, args)",
}


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a reproducer in a fresh process."""

    shows: bool
    """Whether its assertion failed, or the process crashed where a crash is the fault."""
    last_line: str
    """The last line that it printed."""


def reproducer_of(fault: Fault, recipe: str, name: str, *, after_example: bool = False) -> str:
    """Return the text of a program that shows a fault of a compiler.

    Args:
        fault: the fault.
        recipe: lines that assign ``compiled``.
        name: the name of the compiler.
        after_example: whether it is compiled for the example inputs, and called with them first.
    """
    check = _CHECKS.get(fault.law, _VALUES)
    program = ALIKE.sub("", fault.source)
    program, _, inputs = program.partition("\ndef inputs")
    arguments = fault.inputs or _returned(inputs)
    state = "state = copied(model.state_dict())\n" if "state" in check else ""
    state += "other = copied(model)\n" if "other(" in check else ""
    if after_example:
        recipe += f"\ncompiled(*copied(args))\nargs = {arguments}\n{_MAY_RAISE}"
        arguments = _returned(inputs)
    mode = "train" if fault.mode == "train" else "eval"
    body = f"torch.manual_seed(0)\nmodel = Program().{mode}()\nargs = {arguments}\n{state}{recipe}\n{check}"
    used = [text for helper, text in _HELPERS.items() if re.search(rf"\b{helper}\(", body)]
    imports = re.findall(r"^(?:import|from) .*\n", fault.source, re.MULTILINE)
    called = [each for word, each in _FROM_PYTREE.items() if re.search(rf"\b{word}\(", "\n".join([*used, body]))]
    used = [*([f"from torch.utils._pytree import {', '.join(called)}"] if called else []), *used]
    head = f'"""{name}, law {fault.law!r}, with torch {torch.__version__}."""\nfrom copy import deepcopy as copied\n'
    return f"{head}{''.join(imports)}{chr(10).join(used)}\n\n{program.strip()}\n\n\n{body}"


def verify(path: Path, *, crashes: bool = False) -> Verified:
    """Run a reproducer in a fresh process, in a folder of its own, and return whether it shows its fault."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    if "import fx\n" in path.read_text(encoding="utf-8"):
        environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    try:
        run = subprocess.run(
            [sys.executable, "-W", "ignore", str(path.absolute())],
            capture_output=True, text=True, timeout=LONGEST, cwd=path.parent, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Verified(crashes, f"it ran longer than {LONGEST:g} s")
    lines = run.stderr.strip().splitlines()
    places = [line for line in lines if line.startswith('  File "')]
    is_own = bool(places) and path.name in places[-1]  # and not an assertion inside of the compiler
    failed = [line for line in lines if line.startswith("AssertionError")]
    line = failed[-1] if failed else lines[-1] if lines else ""
    return Verified(run.returncode < 0 if crashes else is_own and bool(failed), line[:300])


def write_reproducer(fault: Fault, recipe: str | None, name: str, folder: Path) -> str:
    """Write the reproducer of a fault into ``folder`` and verify it; return its path, or the reason for none."""
    if recipe is None:
        return "the pass is not one of pytest_fx.compilers"
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(fault.key.encode()).hexdigest()[:4]
    slug = re.sub(r"\W+", "_", f"{fault.key[:50]}").strip("_").lower()
    path = folder / f"{slug}_{digest}.py"
    result = Verified(False, "")
    for after_example in (False, True) if fault.inputs else (False,):
        path.write_text(reproducer_of(fault, recipe, name, after_example=after_example), encoding="utf-8")
        result = verify(path, crashes=fault.law in ("process untouched", "terminates"))
        if result.shows:
            return str(path)
    renamed = path.with_suffix(".unconfirmed")
    path.rename(renamed)
    return f"not confirmed by plain torch in a fresh process: {result.last_line or 'its assertion holds'} ({renamed})"


def _returned(inputs: str) -> str:
    """Return the expression of the positional arguments in the body of ``inputs()``."""
    statements = inputs.partition("\n")[2]
    match = re.search(r"return (\(.*\)), \{.*\}\s*$", statements, re.DOTALL)
    return match[1] if match else "inputs()[0]"

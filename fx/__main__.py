"""``python -m fx lower --dry-run``: what a backend would take of a program, without running or building anything."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, cast

import torch

from fx.arguments import expect_callable
from fx.capture.tracer import symbolic_trace
from fx.errors import FxError, LoweringError
from fx.graph_module import GraphModule
from fx.interpreter import positional
from fx.lowering import list_backends, lower
from fx.serialization import load

_DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64}


_WHAT = "a file written by fx.save, or package.module:factory of a module, or of a pair of a module and its inputs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, or 2 with a message for what cannot be done."""
    options = _parser().parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    try:
        program, inputs = _program(options.program)
        inputs = [_tensor(text) for text in options.input] or inputs
        coverage = lower(
            program, options.backend, inputs, min_size=options.min_size, veto=tuple(options.veto), dry_run=True
        )
    except FxError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{coverage}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fx", description="Programs of fx, from the command line.")
    commands = parser.add_subparsers(required=True, metavar="command")
    command = commands.add_parser("lower", help="what a backend would take of a program, and why not the rest")
    command.add_argument("program", help=_WHAT)
    command.add_argument("--dry-run", action="store_true", required=True, help="build nothing; the only mode there is")
    command.add_argument("--backend", default="onednn", help=f"one of {', '.join(list_backends())} (default onednn)")
    command.add_argument(
        "--input", action="append", default=[], metavar="1x3x224x224", help="shape of an input, :i64 etc. behind it"
    )
    command.add_argument("--min-size", type=int, default=None, help="operations that pay a part needs at least")
    command.add_argument("--veto", action="append", default=[], help="a node or a path of modules to keep out")
    return parser


def _program(text: str) -> tuple[GraphModule, Sequence[Any] | None]:
    """The program that ``text`` leads to, and the example inputs that come with it."""
    path, colon, name = text.partition(":")
    if not colon or os.path.exists(text):
        return load(text), None
    try:
        made: Any = getattr(importlib.import_module(path), name)
    except (ImportError, AttributeError) as error:
        raise LoweringError(f"there is no {text}", why=str(error), remedy="name it package.module:factory") from error
    module: Any = made if isinstance(made, (torch.nn.Module, tuple)) else _call(made, text)
    given: Any = None
    is_pair = isinstance(module, tuple) and len(cast("tuple[Any, ...]", module)) == 2
    if is_pair:
        module, given = module
    if not isinstance(module, torch.nn.Module):
        raise LoweringError(
            f"{text} made a {type(module).__name__}, not a module",
            remedy="let it return a module, or a pair of a module and its inputs",
        )
    program = module if isinstance(module, GraphModule) else symbolic_trace(module.eval())
    return program, _in_order(program, given, text) if is_pair else None


def _call(factory: Any, text: str) -> Any:
    """What a factory returns."""
    expect_callable(factory, f"{text} is a module or a factory of one", error=LoweringError)
    try:
        return factory()
    except FxError:
        raise
    except Exception as error:
        raise LoweringError(f"{text} cannot be called", why=f"{type(error).__name__}: {error}") from error


def _in_order(program: GraphModule, given: Any, text: str) -> tuple[Any, ...]:
    """Example inputs by position: of a tuple those in it, of a dict the named ones, of anything else that alone."""
    if not isinstance(given, dict):
        return cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given,)
    try:
        return positional(program, (), cast("dict[str, Any]", given))
    except TypeError as error:
        raise LoweringError(f"the inputs that {text} gives do not fit its module", why=str(error)) from error


def _tensor(text: str) -> torch.Tensor:
    """An input of the shape that ``text`` tells."""
    sizes, _, dtype = text.partition(":")
    if not re.fullmatch(r"\d+(x\d+)*", sizes) or (dtype or "f32") not in _DTYPES:
        raise LoweringError(
            f"cannot read the input {text!r}",
            remedy=f"write its sizes joined by x, as 1x3x224x224, and :{' or :'.join(_DTYPES)} where it is not :f32",
        )
    return torch.empty([int(size) for size in sizes.split("x")], dtype=_DTYPES[dtype or "f32"])


if __name__ == "__main__":
    sys.exit(main())

"""``python -m fx``: a program's code, cost and memory, its time on a device, and the part that a backend would run.

Each command has an example in its ``--help``. Only ``profile`` runs the program.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, cast

import torch

from fx.analysis.cost import estimate_cost
from fx.analysis.memory import activation_memory
from fx.analysis.symbolic_shapes import symbolic_shapes
from fx.arguments import expect_callable
from fx.capture.explanation import explain
from fx.capture.tracer import symbolic_trace
from fx.drawing.drawing_commands import add_drawing_commands
from fx.errors import FxError, LoweringError, PassError, note_lines
from fx.graph_module import GraphModule
from fx.interpreter import positional
from fx.lowering import list_backends, lower
from fx.serialization import load
from fx.simulation.time_commands import add_time_commands

_DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64}


_WHAT = (
    "a model of the zoo, a file written by fx.save, "
    "or package.module:factory of a module, or of a pair of a module and its inputs"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, or 2 with a message for an error of the user."""
    options = _parser().parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    try:
        with _errors_reported_once():
            text = _run(options)
    except FxError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(
            f"cannot read or write {error.filename or 'a file'}\n"
            f"  why    {error.strerror or error}\n  try    name a file in a folder that is there\n"
        )
        return 2
    except (RuntimeError, TypeError, ValueError) as error:  # raised by an operation, with the user's line in notes
        sys.stderr.write("\n".join([f"{type(error).__name__}: {error}", *note_lines(error), ""]))
        return 2
    sys.stdout.write(f"{text}\n")
    return 0


def _run(options: argparse.Namespace) -> str:
    command_line_inputs = [_tensor(text) for text in options.input]
    if options.run is _explain:
        module, examples = _module(options.program)
        return _explain(module, command_line_inputs or examples, options)
    program, inputs = _program(options.program)
    return options.run(program, command_line_inputs or inputs, options)


@contextmanager
def _errors_reported_once() -> Generator[None]:
    """Keep fake tensors from logging, with a traceback, errors that are raised and reported anyway."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _lower(program: GraphModule, inputs: Any, options: argparse.Namespace) -> str:
    lowering = lower(
        program, options.backend, inputs, min_size=options.min_size, veto=tuple(options.veto), dry_run=True
    )
    return str(lowering)


def _code(program: GraphModule, inputs: Any, options: argparse.Namespace) -> str:
    return json.dumps({"code": program.code}) if options.json else program.code.strip()


def _explain(module: torch.nn.Module, inputs: Any, options: argparse.Namespace) -> str:
    if inputs is not None and not isinstance(inputs, (tuple, list, dict)):
        inputs = (inputs,)
    explanation = explain(module, cast("Any", inputs))
    if not options.json:
        return str(explanation)
    parts = [{"operations": part.operations, "modules": part.modules} for part in explanation.parts]
    entries = {"obstacles": [asdict(obstacle) for obstacle in explanation.obstacles], "parts": parts}
    return json.dumps({**entries, "guards": explanation.guards, "not_looked_at": explanation.unseen})


def _cost(program: GraphModule, inputs: Any, options: argparse.Namespace) -> str:
    report = estimate_cost(program, *_needed(inputs), backward=options.backward)
    if not options.json:
        return str(report)
    nodes = [{"node": cost.node.name, "module": cost.module, **asdict(cost.total)} for cost in report.nodes]
    counts = {"parameters": report.parameters, "unknown": report.unknown}
    return json.dumps({"total": asdict(report.total), **counts, "nodes": nodes})


def _memory(program: GraphModule, inputs: Any, options: argparse.Namespace) -> str:
    report = activation_memory(program, *_needed(inputs), backward=options.backward)
    if not options.json:
        return str(report)
    names = ("peak", "peak_is_backward", "without_freeing", "peak_in_place", "left", "inputs", "state")
    node = None if report.peak_node is None else report.peak_node.name
    return json.dumps({"peak_node": node, **{name: getattr(report, name) for name in names}})


def _shapes(program: GraphModule, inputs: Any, options: argparse.Namespace) -> str:
    sizes = [tuple(int(size) if size.isdigit() else size for size in text.split(",")) for text in options.sizes]
    report = symbolic_shapes(program, *(sizes or _needed(inputs)))
    if not options.json:
        return str(report)
    shapes = {node.name: [tensor.shape for tensor in tensors] for node, tensors in report.tensors.items()}
    constraints = [constraint.text for constraint in report.needed]
    return json.dumps({"shapes": shapes, "constraints": constraints})


def _needed(inputs: Sequence[Any] | None) -> Sequence[Any]:
    if inputs is None:
        raise PassError(
            "there are no inputs to follow the program with",
            remedy="give --input 1x3x224x224, or a factory that returns a pair of a module and its inputs",
        )
    return inputs


def _with_inputs(run: Callable[..., str]) -> Callable[..., str]:
    """Return a command that refuses to run without inputs."""
    return lambda program, inputs, options: run(program, _needed(inputs), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fx", description="Programs of fx, from the command line.")
    commands = parser.add_subparsers(required=True, metavar="command")
    _add(commands, "code", _code, "the Python code of a program", "resnet50")
    what = "all obstacles to the capture of a model, and the parts that can be captured"
    _add(commands, "explain", _explain, what, "mypackage.models:make --input 1x3x224x224")
    add_drawing_commands(commands, _add)
    cost = _add(commands, "cost", _cost, "operations, bytes and parameters of each node", "resnet50")
    memory = _add(commands, "memory", _memory, "the peak of activations, and what would lower it", "unet --backward")
    for command in (cost, memory):
        command.add_argument("--backward", action="store_true", help="gradients, too")
    shapes = _add(commands, "shapes", _shapes, "sizes of each value", "resnet50 --sizes batch,3,h,w")
    shapes.add_argument(
        "--sizes", action="append", default=[], metavar="batch,3,h,w", help="sizes of an input, as expressions in names"
    )
    add_time_commands(lambda name, run, what, example: _add(commands, name, _with_inputs(run), what, example))
    command = _add(
        commands,
        "lower",
        _lower,
        "what a backend would take of a program, and why not the rest",
        "resnet50 --dry-run",
        json=False,
    )
    command.add_argument("--dry-run", action="store_true", required=True, help="build nothing; the only mode there is")
    command.add_argument("--backend", default="onednn", help=f"one of {', '.join(list_backends())} (default onednn)")
    command.add_argument(
        "--min-size",
        type=int,
        help="operations that a part needs at least; those that the backend is no faster for do not count",
    )
    command.add_argument("--veto", action="append", default=[], help="a node or a path of modules to keep out")
    return parser


def _add(
    commands: Any, name: str, run: Callable[..., str], what: str, example: str, *, json: bool = True
) -> argparse.ArgumentParser:
    """Add a command with the options that all commands have."""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"Show {what}.", epilog=f"example: python -m fx {name} {example}"
    )
    command.set_defaults(run=run)
    command.add_argument("program", help=_WHAT)
    command.add_argument(
        "--input", action="append", default=[], metavar="1x3x224x224", help="shape of an input, :i64 etc. behind it"
    )
    if json:
        command.add_argument("--json", action="store_true", help="print JSON, with sizes in bytes")
    return command


def _program(text: str) -> tuple[GraphModule, Sequence[Any] | None]:
    """Return the program that ``text`` names, and its example inputs."""
    module, inputs = _module(text)
    program = module if isinstance(module, GraphModule) else symbolic_trace(module)
    return program, None if inputs is None else _in_order(program, inputs, text)


def _module(text: str) -> tuple[torch.nn.Module, Any]:
    """Return the module that ``text`` names, and its example inputs, None if there are none."""
    path, colon, name = text.partition(":")
    if os.path.exists(text):
        return load(text), None
    if not colon:
        model = _model_of_the_zoo(text)
        return model.build(), model.example_inputs(batch=1)
    try:
        member: Any = getattr(importlib.import_module(path), name)
    except (ImportError, AttributeError) as error:
        raise LoweringError(f"there is no {text}", why=str(error), remedy="name it package.module:factory") from error
    module: Any = member if isinstance(member, (torch.nn.Module, tuple)) else _call(member, text)
    inputs: Any = None
    is_pair = isinstance(module, tuple) and len(cast("tuple[Any, ...]", module)) == 2
    if is_pair:
        module, inputs = module
    if not isinstance(module, torch.nn.Module):
        raise LoweringError(
            f"{text} made a value of type {type(module).__name__}, not a module",
            remedy="let it return a module, or a pair of a module and its inputs",
        )
    return module if isinstance(module, GraphModule) else module.eval(), inputs


def _model_of_the_zoo(name: str) -> Any:
    """Return the model with that name."""
    why = "no model of the zoo has the name"
    try:
        zoo: Any = importlib.import_module("model_zoo")
        return zoo.get_model(name)
    except ImportError:
        why = "the zoo, model_zoo, is not installed"
    except LookupError as error:  # the message lists the nearest names
        why = f"{why}; {' '.join(str(error).split()).partition(' try ')[2]}".removesuffix("; ")
    raise LoweringError(
        f"there is no model or file {name!r}", why=why, remedy="name a file of fx.save, or package.module:factory"
    )


def _call(factory: Any, text: str) -> Any:
    """Return the result of a factory."""
    expect_callable(factory, f"{text} is a module or a factory of one", error=LoweringError)
    try:
        return factory()
    except FxError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # without this one
        raise LoweringError(
            f"{text} cannot be called",
            where=f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None,
            why=f"{type(error).__name__}: {error}",
            remedy="name a function without arguments that returns a module" if not frames else None,
        ) from error


def _in_order(program: GraphModule, inputs: Any, text: str) -> tuple[Any, ...]:
    """Return example inputs by position: the elements of a tuple, the named values of a dict, or a single value."""
    if not isinstance(inputs, dict):
        return cast("tuple[Any, ...]", inputs) if isinstance(inputs, tuple) else (inputs,)
    try:
        return positional(program, (), cast("dict[str, Any]", inputs))
    except TypeError as error:
        raise LoweringError(f"the inputs that {text} gives do not fit its module", why=str(error)) from error


def _tensor(text: str) -> torch.Tensor:
    """Return an input of the shape given by ``text``."""
    sizes, _, dtype = text.partition(":")
    if not re.fullmatch(r"\d+(x\d+)*", sizes) or (dtype or "f32") not in _DTYPES:
        raise LoweringError(
            f"cannot read the input {text!r}",
            remedy=f"write its sizes joined by x, as 1x3x224x224, and :{' or :'.join(_DTYPES)} where it is not :f32",
        )
    return torch.empty([int(size) for size in sizes.split("x")], dtype=_DTYPES[dtype or "f32"])


if __name__ == "__main__":
    sys.exit(main())

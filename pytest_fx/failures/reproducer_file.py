"""A failing part of a model as a test file of its own, with its weights and inputs beside it."""

from __future__ import annotations

import ast
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fx import GraphModule
from fx.container_kinds import container_kind
from fx.errors import FxError
from fx.naming.printing import class_name
from pytest_fx.failures.failure import Failure
from pytest_fx.failures.reproducer import ProgramPart
from pytest_fx.forms import FormedPass
from pytest_fx.harness.capture import Tracing
from pytest_fx.harness.subject import is_training
from pytest_fx.loading import modules_in, name_without_hooks
from pytest_fx.named_objects import home_of, import_attribute

_LITERALS = (bool, int, float, str, bytes, type(None), type(...))

_TEMPLATE = '''\
"""{what}, cut out of {model}{where}.

Run it with pytest, from any folder; it passes once the pass is right.
"""

import pathlib
import sys

import pytest
from safetensors.torch import load_file

{path}{source}

def part_of_model():
    """The program and the inputs on which the pass goes wrong."""
    tensors = load_file(pathlib.Path(__file__).parent / "inputs.safetensors")
    return Program(), ({inputs})


@pytest.mark.fx({options})
def test_{slug}(fx_pass, fx_equal):
    fx_equal(fx_pass, small_test=False)
'''

_TEMPLATE_OF_MODEL = '''\
"""{what}: the whole model, since {why}.

Run it with pytest, from any folder; it passes once the pass is right.
"""

import pathlib
import sys

import pytest

{path}
@pytest.mark.fx({options})
def test_{slug}(fx_pass, fx_equal):
    fx_equal(fx_pass, leaves={leaves}, small_test=False)
'''


def write_test(folder: Path, failure: Failure, part: ProgramPart, where: object | None) -> Path:
    """Write ``part`` as a test file with its weights and inputs beside it, and return the path of the test.

    Args:
        folder: where to write; made if it does not exist.
        failure: the failure that the test shows; its pass has a name.
        part: the program and its inputs.
        where: the user's line.

    Raises:
        FxError: the program or an input cannot be written as source and tensors.
    """
    tensors: dict[str, torch.Tensor] = {}
    inputs = [spell_value(value, tensors) for value in part.inputs]
    with tempfile.TemporaryDirectory() as temporary:
        package = Path(temporary) / "package"
        part.program.to_folder(package, "Program")
        source = (package / "module.py").read_text(encoding="utf-8")
        source = source.partition('"""\n')[2] if source.startswith('"""') else source
        folder.mkdir(parents=True, exist_ok=True)
        for file in package.iterdir():
            if file.suffix in (".safetensors", ".pt"):
                shutil.copy(file, folder / file.name)
    save_file(tensors, folder / "inputs.safetensors")
    pass_name = name_without_hooks(str(failure.pass_name), failure.pass_)
    capturing, named = _capturing(failure.subject.tracing, part.program)
    of_model = type(failure.subject.shared_copy()).__module__  # the module of the pass may import it
    imports = [node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = [str(getattr(statement, "module", statement.names[0].name)) for statement in imports]
    modules = [*modules_in(pass_name), *imported, *named, of_model]
    options = [f"pass_={pass_name!r}", f"contract={str(failure.contract)!r}", *capturing]
    capture = 'capture="symbolic"'
    if isinstance(failure.pass_, FormedPass):  # it gets its own export
        capture = f'capture="auto", form={failure.pass_.form.name!r}'
    mode = "train" if is_training(part.program) else "eval"
    text = _TEMPLATE.format(
        what=failure.first_line, model=failure.subject.name, where="" if where is None else f" at {where}",
        source=source.strip() + "\n", path=import_paths(modules, folder),
        inputs="".join(f"{value}, " for value in inputs).rstrip(" "), slug=failure.slug,
        # The ini file's settings of models, their size and their capture do not apply to a part.
        options=", ".join(
            ["model=part_of_model", *options, 'size="full"', "batch=None", f"mode={mode!r}", capture]
        ),
    )  # fmt: skip
    path = folder / f"test_{failure.slug}.py"
    path.write_text(text, encoding="utf-8")
    return path


def written_part(path: Path) -> ProgramPart:
    """Return the program and the inputs of a test written by :func:`write_test`, as the test gets them."""
    before = list(sys.path)
    try:
        program, inputs = runpy.run_path(str(path))["part_of_model"]()
    finally:
        sys.path[:] = before
    return ProgramPart(program, inputs)


def write_test_of_model(folder: Path, failure: Failure, why: str) -> Path:
    """Write a test that names the whole model and the pass, and return its path; ``why``: the reason for no part."""
    pass_name = name_without_hooks(str(failure.pass_name), failure.pass_)
    named = [str(value) for key, value in failure.keywords.items() if key in ("model", "tracer")]
    modules = [*modules_in(pass_name), *(name.partition(":")[0] for name in named if ":" in name)]
    options = {**failure.keywords, "pass_": pass_name, "contract": str(failure.contract)}
    if isinstance(failure.pass_, FormedPass):
        options["form"] = failure.pass_.form.name
    text = _TEMPLATE_OF_MODEL.format(
        what=failure.first_line, why=why, path=import_paths(modules, folder), slug=failure.slug, leaves=failure.leaves,
        options=", ".join(f"{name}={value!r}" for name, value in options.items()),
    )  # fmt: skip
    path = folder / f"test_{failure.slug}.py"
    path.write_text(text, encoding="utf-8")
    return path


def _capturing(tracing: Tracing, program: GraphModule) -> tuple[list[str], list[str]]:
    """Return keywords that capture a program as the run did, and the modules of these objects and of its own modules.

    Only the leaves of the run that the program contains are named; others would be refused.
    """
    by_path = dict(program.named_modules())
    modules = [type(module).__module__ for module in by_path.values()]
    keywords: list[str] = []
    if tracing.leaves:
        leaves = [leaf for leaf in tracing.leaves if any(tracing.keeps(leaf, by_path[path], path) for path in by_path)]
        named = [f"{leaf.__module__}.{leaf.__name__}" if isinstance(leaf, type) else leaf for leaf in leaves]
        keywords.append(f"leaf={named!r}")
    if tracing.tracer is not None:
        tracer: Any = tracing.tracer
        name = f"{getattr(tracer, '__module__', '')}:{getattr(tracer, '__qualname__', '')}"
        if import_attribute(name, "tracer") is not tracer:
            raise FxError("the tracer of the run cannot be imported by name", value=repr(tracer)[:80])
        keywords.append(f"tracer={name!r}")
        modules.append(tracer.__module__)
    return keywords, modules


def import_paths(names: list[str], folder: Path) -> str:
    """Return lines that let the modules called ``names`` be imported from any folder if they are not installed.

    For modules above ``folder`` a relative path is added, too: the test can be moved together with them, or alone.
    """
    homes: dict[Path, str] = {}
    ours = home_of("pytest_fx")
    for name in names:
        home = home_of(name)
        if home is not None and home != ours:
            homes.setdefault(home, name.partition(".")[0])
    lines: list[str] = []
    for home, top in homes.items():
        above = folder.resolve().is_relative_to(home)
        depth = len(folder.resolve().relative_to(home).parts) if above else 0
        near = f"str(pathlib.Path(__file__).resolve().parents[{depth}]), " if above else ""
        lines.append(f"sys.path[:0] = [{near}{str(home)!r}]  # where {top} is\n")
    return "".join([*lines, "\n"] if lines else [])


def spell_value(value: Any, tensors: dict[str, torch.Tensor]) -> str:
    """Return a Python expression for ``value``; its tensors are added to ``tensors`` by the names in the text.

    Raises:
        FxError: a part of the value has no expression.
    """
    if isinstance(value, torch.Tensor):
        return _spell_tensor(value, tensors)
    if isinstance(value, float) and value - value != 0:  # infinite or not a number
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, (*_LITERALS, torch.dtype, complex)):
        return repr(value)
    kind = container_kind(value)
    if kind is None or kind.spelling is None:
        raise _unwritten(type(value))
    parts = [spell_value(part, tensors) for part in kind.parts(value)]
    return kind.written(value, parts, lambda key: spell_value(key, tensors), _class_name)


def _class_name(kind: type) -> str:
    if kind in (slice, torch.Size):
        return class_name(kind)
    raise _unwritten(kind)  # the file imports nothing of the user's


def _unwritten(kind: type) -> FxError:
    return FxError(
        "an input of the failing part cannot be written to a file",
        value=f"an object of type {kind.__name__}",
        remedy="the program after the pass is in the file of details",
    )


def _spell_tensor(tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> str:
    """Return an expression for a tensor with its strides, and add its values to ``tensors``."""
    repeated = [size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    if any(repeated):
        part = tensor[tuple(slice(1) if is_repeated else slice(None) for is_repeated in repeated)]
        return f"{_spell_tensor(part, tensors)}.expand({tuple(tensor.shape)})"
    name = str(len(tensors))
    text = f'tensors["{name}"]'
    values = tensor.contiguous()
    if tensor.is_complex():
        values, text = torch.view_as_real(values.resolve_conj()), f"torch.view_as_complex({text})"
    tensors[name] = values.clone()
    if not tensor.is_contiguous():
        return f"torch.empty_strided({tuple(tensor.shape)}, {tensor.stride()}, dtype={tensor.dtype}).copy_({text})"
    return text

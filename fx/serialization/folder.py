"""Programs on disk as a readable Python package (paper, section 5.4: ``GraphModule.to_folder``).

The package has two files. ``module.py`` has the generated code and a class that creates the modules. ``state_dict.pt``
has their content by path: tensors, and modules and attributes that are not source. Weights load onto the CPU.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import sys
import tempfile
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.arguments import shown
from fx.container_kinds import leaves_of
from fx.errors import CodegenError, type_in_words
from fx.graph_module import GraphModule
from fx.modules.attributes import has_hooks, prefixes
from fx.modules.calibrated_values import FixedNumbers
from fx.modules.containers import Container
from fx.modules.pickling import imported_name
from fx.naming.names import GENERATED_GLOBALS, NoneType, is_identifier
from fx.naming.printing import describe
from fx.serialization.module_state import Budget, constructor_arguments, tensor_slots

_MODULE = '''"""A captured program, written by fx.GraphModule.to_folder; edit it freely."""

{imports}


{forward}


class {name}(torch.nn.Module):
    """The captured program with its weights."""

    def __init__(self) -> None:
        {statements}

    forward = forward
'''
_PACKAGE = '"""A captured program."""\n\nfrom .module import {name}\n\n__all__ = ["{name}"]\n'
_LOADING = """state = torch.load(pathlib.Path(__file__).parent / "state_dict.pt", "cpu", weights_only={is_plain})
for path, value in state.items():
    owner, _, name = path.rpartition(".")
    setattr(self.get_submodule(owner), name, value)"""
_LITERALS = frozenset({bool, int, float, str, NoneType})


def write_folder(program: GraphModule, folder: str, module_name: str) -> None:
    """Write ``program``, as of its last ``recompile``, as a package whose class ``module_name`` needs no tracing.

    An object with several names stays one object. Either all files are written, or none. Files of an earlier package
    are replaced, others are left alone.

    Raises:
        CodegenError: the name is not an identifier, the code uses an object that cannot be imported (the message names
            the node), or the program holds a value that cannot be stored.
    """
    imports = _imports(program, module_name)
    statements, values = _state(program)
    source = _MODULE.format(
        imports=imports, forward=program._python_code.src.strip(), name=module_name,
        statements=textwrap.indent("\n".join(statements), " " * 8).lstrip(),
    )  # fmt: skip
    compile(source, "module.py", "exec", dont_inherit=True)
    target = Path(os.path.abspath(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        staging = Path(temporary)
        if values:
            torch.save(values, staging / "state_dict.pt")
        (staging / "module.py").write_text(source, encoding="utf-8")
        (staging / "__init__.py").write_text(_PACKAGE.format(name=module_name), encoding="utf-8")
        target.mkdir(exist_ok=True)
        # weights come first, so that source never lies beside weights of another program
        for path in sorted(staging.iterdir(), key=lambda path: path.suffix == ".py"):
            path.replace(target / path.name)


def _state(program: GraphModule) -> tuple[list[str], dict[str, Any]]:
    """Return the statements of ``__init__``, and the values that it loads, by path."""
    created, values = _modules(program)
    whole = frozenset(values)
    for path, _, _, tensor in tensor_slots(program):
        if tensor is not None and whole.isdisjoint(prefixes(path)):
            values[path] = tensor
    for node in program.graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        attributes = {} if not whole.isdisjoint(prefixes(path)) else vars(program.get_submodule(path))
        if name in attributes and name != "training" and not isinstance(attributes[name], torch.nn.Module):
            values[str(node.target)] = attributes[name]
    others = {path: value for path, value in values.items() if not _is_plain(value)}
    try:
        torch.save(others, io.BytesIO())
    except Exception as error:
        raise _refused(f"one of its attributes {', '.join(others)} cannot be pickled", error) from error
    lines = ["super().__init__()"]
    if created:
        lines += ['with torch.device("meta"):  # the values are loaded below', *(f"    {line}" for line in created)]
    if values:  # the import is inside, since names at the top belong to the program
        lines = ["import pathlib", "", *lines, *_LOADING.format(is_plain=not others).splitlines()]
    if not program.training:
        lines.append("self.eval()")
    lines += [
        f"self.get_submodule({path!r}).training = {bool(module.training)}"
        for path, module in program.named_modules()
        if module.training != program.training
    ]
    lines += [
        f"self.{name} = {_spec(vars(program)[name])}" for name in ("_in_spec", "_out_spec") if name in vars(program)
    ]
    if (numbers := FixedNumbers.of_program(program)) is not None:
        lines = ["from fx.modules.calibrated_values import FixedNumbers", "", *lines, f"{numbers!r}.hold(self)"]
    return lines, values


def _modules(program: GraphModule) -> tuple[list[str], dict[str, Any]]:
    """Return the statements that create the modules without values, and the modules that are pickled, by path."""
    lines: list[str] = []
    pickled: dict[str, Any] = {}
    first_paths: dict[int, str] = {}
    holders = {""}
    for path, module in program.named_modules(remove_duplicate=False):
        if path.rpartition(".")[0] not in holders:
            continue  # a part of a module that is created, or pickled, as a whole
        first_path = first_paths.setdefault(id(module), path)
        is_holder = not path or type(module) is torch.nn.Module or isinstance(module, Container)
        call = "torch.nn.Module()" if is_holder else constructor_call(module)
        if call is None:
            pickled[path] = module
            call = "torch.nn.Module()"  # keeps its place
        elif first_path != path:
            call = f"self.get_submodule({first_path!r})"
        if path:
            lines.append(f"self.set_submodule({path!r}, {call})")
        if is_holder and first_path == path:
            holders.add(path)
            lines += _registrations(path, module)
    return lines, pickled


def _registrations(path: str, module: torch.nn.Module) -> list[str]:
    """Return statements that register the names of the parameters and buffers of ``module`` at ``path``."""
    if has_hooks(module):
        raise _refused(f"{path or 'the module'} has hooks", "they would be lost")
    owner = f"self.get_submodule({path!r})" if path else "self"
    lines: list[str] = []
    for name, value in (*module._parameters.items(), *module._buffers.items()):
        kind = "parameter" if name in module._parameters else "buffer"
        more = ", persistent=False" if name in module._non_persistent_buffers_set else ""
        comment = "" if value is None else f"  # {value.dtype} of shape {list(value.shape)}"
        # as a plain string: a subclass could put anything into its repr
        lines.append(f"{owner}.register_{kind}({str.__str__(name)!r}, None{more}){comment}")
    return lines


def constructor_call(module: torch.nn.Module) -> str | None:
    """Return source that recreates a module of ``torch.nn`` without its values; None if no such call of literals does.

    >>> constructor_call(torch.nn.GRU(3, 4, bidirectional=True))
    'torch.nn.GRU(input_size=3, hidden_size=4, bidirectional=True)'
    """
    kind = type(module)
    if getattr(torch.nn, kind.__name__, None) is not kind:
        return None
    try:
        arguments = constructor_arguments(module, Budget())
        is_literal = all(type(leaf) in _LITERALS for leaf in leaves_of(arguments))
        if not is_literal or ast.literal_eval(repr(arguments)) != arguments:  # inf, for one, is no literal
            return None
    except Exception:  # after any failure, the module is pickled instead
        return None
    return f"torch.nn.{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _is_plain(value: Any) -> bool:
    """Return whether ``torch.load`` can load ``value`` without running code."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and not vars(value)


def _spec(spec: pytree.TreeSpec | None) -> str:
    """Return the source of the structure of inputs or an output."""
    try:
        return "None" if spec is None else f"pytree.treespec_loads({str(pytree.treespec_dumps(spec))!r})"
    except (NotImplementedError, TypeError, ValueError) as error:
        raise _refused("its inputs or output have a structure that cannot be stored", error) from error


def _refused(what: str, why: Exception | str) -> CodegenError:
    return CodegenError(
        f"cannot write the program: {what}",
        why=why if isinstance(why, str) else f"{type(why).__name__}: {why}",
        remedy="fx.save(program, file), or keep tensors, and modules of classes at the top level of a Python module",
    )


# Imports.


def _imports(module: GraphModule, module_name: str) -> str:
    """Return one or two lines for each global that the code uses."""
    code = module._python_code
    used = {part.id for part in ast.walk(ast.parse(code.src)) if isinstance(part, ast.Name)} & code.globals.keys()
    used_names = used | GENERATED_GLOBALS.keys() | {"forward", "wrap", *dir(builtins)}
    if not is_identifier(module_name) or module_name in used_names:
        raise CodegenError(
            f"module_name is not a name for the class: {shown(module_name)}",
            why="it is a Python identifier that the generated code does not use for something else",
            remedy='pass another: to_folder(folder, module_name="FxModule")',
        )
    lines = {"import torch"}
    if "_in_spec" in vars(module):
        used.add("pytree")
    for name in used - {"torch"}:
        value = code.globals[name]
        line = "from fx import wrap" if name == "wrap" and value is None else _import(name, value)
        if line is None:
            raise _not_importable(module, name, value)
        lines.add(line)
    return "\n".join(sorted(lines))


def _import(name: str, value: Any) -> str | None:
    """Return source that binds ``name`` to ``value``, or None if there is none."""
    if isinstance(value, ModuleType):
        path = value.__name__
        is_found = _is_dotted(path) and sys.modules.get(path) is value
        return (f"import {path}" if path == name else f"import {path} as {name}") if is_found else None
    if type(value) is float:  # nan or inf
        return f'{name} = float("{value}")'
    if value is NoneType:
        return f"{name} = type(None)"
    if type(value) is str:
        return f"{name} = {value!r}"
    imported = imported_name(value)
    if imported is None or not _is_dotted(f"{imported.module}.{imported.path}") or imported.module == "__main__":
        return None
    first, _, rest = imported.path.partition(".")
    line = f"from {imported.module} import {first}" + ("" if first == name else f" as {name}")
    return f"{line}\n{name} = {name}.{rest}" if rest else line


def _is_dotted(path: str) -> bool:
    return all(map(is_identifier, path.split(".")))


def _not_importable(module: GraphModule, name: str, value: Any) -> CodegenError:
    parts = {node: (node.target, node.type, *leaves_of((node.args, node.kwargs))) for node in module.graph.nodes}
    users = [node for node, leaves in parts.items() if any(leaf is value or type(leaf) is value for leaf in leaves)]
    return CodegenError(
        f"cannot write the program: {f'node {users[0].name}' if users else 'its code'} uses {name}, "
        "which a package cannot import",
        where=users[0].source if users else None,
        value=describe(users[0]) if users else None,
        why=f"{name} is {type_in_words(value)} that is not an attribute of an importable module (the main "
        "program is none)",
        remedy="define it at the top level of a module, or make it an attribute of the module that is traced",
    )

"""Programs on disk as a readable Python package (paper, section 5.4: ``GraphModule.to_folder``).

``module.py`` has the generated code and a class that creates the modules. ``state_dict.pt`` has their tensors by path,
and the modules that are not source. Weights load onto the CPU. ``fx.save`` writes what such a package cannot hold.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fx.arguments import shown
from fx.container_kinds import leaves_of
from fx.errors import CodegenError, type_in_words
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute, has_hooks, prefixes
from fx.modules.calibrated_values import FixedNumbers
from fx.modules.containers import Container
from fx.modules.pickling import imported_name
from fx.naming.names import GENERATED_GLOBALS, NoneType, is_identifier
from fx.node import Node
from fx.serialization.module_state import Budget, constructor_arguments, tensor_slots

_MODULE = '''"""A captured program, written by fx.GraphModule.to_folder; edit it freely."""

{imports}


{forward}


class {name}(torch.nn.Module):
    """The captured program with its weights."""

    def __init__(self) -> None:
        import pathlib

        super().__init__()
        with torch.device("meta"):  # the values are loaded below
            {created}
        state = torch.load(pathlib.Path(__file__).parent / "state_dict.pt", "cpu", weights_only={is_plain})
        for path, value in state.items():
            owner, _, name = path.rpartition(".")
            setattr(self.get_submodule(owner), name, value)
        for path in {evaluated}:
            self.get_submodule(path).training = False
{calibrated}
    forward = forward
'''
_CALIBRATED = """
        from fx.modules.calibrated_values import FixedNumbers

        {numbers!r}.hold(self)
"""
_LITERALS = frozenset({bool, int, float, str, NoneType})


def write_folder(program: GraphModule, folder: str, module_name: str) -> None:
    """Write ``program``, as of its last ``recompile``, as a package whose class ``module_name`` needs no tracing.

    Either all files are written, or none. Files of an earlier package are replaced, others are left alone.

    Raises:
        CodegenError: the name is not an identifier, or the program uses what source and tensors do not express.
    """
    imports = _imports(program, module_name)
    created, state = _state(program)
    numbers = FixedNumbers.of_program(program)
    source = _MODULE.format(
        imports=imports,
        forward=program._python_code.src.strip(),
        name=module_name,
        created="\n            ".join(created or ["pass"]),
        is_plain=all(type(value) in (torch.Tensor, torch.nn.Parameter) and not vars(value) for value in state.values()),
        evaluated=[str.__str__(path) for path, module in program.named_modules() if not module.training],
        calibrated="" if numbers is None else _CALIBRATED.format(numbers=numbers),
    )
    target = Path(os.path.abspath(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        staging = Path(temporary)
        torch.save(state, staging / "state_dict.pt")
        (staging / "module.py").write_text(source, encoding="utf-8")
        (staging / "__init__.py").write_text(f"from .module import {module_name}\n", encoding="utf-8")
        target.mkdir(exist_ok=True)
        # weights come first, so that source never lies beside weights of another program
        for path in sorted(staging.iterdir(), key=lambda path: path.suffix == ".py"):
            path.replace(target / path.name)


def _state(program: GraphModule) -> tuple[list[str], dict[str, Any]]:
    """Return the statements that create the modules without values, and the tensors and pickled modules, by path."""
    created: list[str] = []
    pickled: dict[str, Any] = {}
    first_paths: dict[torch.nn.Module, str] = {}
    holders = {""}
    for path, module in program.named_modules(remove_duplicate=False):
        if path.rpartition(".")[0] not in holders:
            continue  # a part of a module that is created, or pickled, as a whole
        is_holder = module is program or type(module) is torch.nn.Module or isinstance(module, Container)
        call = "torch.nn.Module()" if is_holder else _constructor_call(module)
        if call is None:
            pickled[path], call = module, "torch.nn.Module()"  # keeps its place
        elif first_paths.setdefault(module, path) != path:
            call, is_holder = f"self.get_submodule({first_paths[module]!r})", False
        if path:
            created.append(f"self.set_submodule({path!r}, {call})")
        if is_holder:
            holders.add(path)
            created += _registrations(path, module)
    try:
        torch.save(pickled, io.BytesIO())
    except Exception as error:
        raise _refused(f"one of its modules {', '.join(pickled)} cannot be pickled: {error}") from error
    slots = [(path, value) for path, _, _, value in tensor_slots(program) if pickled.keys().isdisjoint(prefixes(path))]
    state = {**pickled, **{path: value for path, value in slots if value is not None}}
    for path in [str(node.target) for node in program.graph.find_nodes(op="get_attr")]:
        value, (owner, _, name) = fetch_attribute(program, path), path.rpartition(".")
        is_stored = path in state or name == "training" or owner not in holders  # other modules keep their attributes
        if not is_stored and not isinstance(value, torch.nn.Module):
            raise _refused(f"it reads the attribute {path}, {type_in_words(value)}")
    if "_in_spec" in vars(program):
        raise _refused("its inputs are structured")
    return created, state


def _registrations(path: str, module: torch.nn.Module) -> list[str]:
    """Return the statements that register the names of the parameters and buffers of ``module``."""
    if has_hooks(module):
        raise _refused(f"{path or 'the module'} has hooks, which would be lost")
    owner = f"self.get_submodule({path!r})" if path else "self"
    more = dict.fromkeys(module._non_persistent_buffers_set, ", persistent=False")
    # as plain strings: a subclass could put anything into its repr
    return [
        *(f"{owner}.register_parameter({str.__str__(name)!r}, None)" for name in module._parameters),
        *(f"{owner}.register_buffer({str.__str__(name)!r}, None{more.get(name, '')})" for name in module._buffers),
    ]


def _constructor_call(module: torch.nn.Module) -> str | None:
    """Return source that creates a module of ``torch.nn`` without its values; None if no such call of literals does."""
    name = type(module).__name__
    if getattr(torch.nn, name, None) is not type(module):
        return None
    try:
        arguments = constructor_arguments(module, Budget())
        is_literal = _LITERALS.issuperset(map(type, leaves_of(arguments)))
        if not is_literal or ast.literal_eval(repr(arguments)) != arguments:  # inf, for one, is no literal
            return None
    except Exception:  # after any failure, the module is pickled instead
        return None
    return f"torch.nn.{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _imports(program: GraphModule, module_name: str) -> str:
    """Return one or two lines for each global that the code uses."""
    code = program._python_code
    used = {part.id for part in ast.walk(ast.parse(code.src)) if isinstance(part, ast.Name)} & code.globals.keys()
    used_names = used | GENERATED_GLOBALS.keys() | {"forward", "wrap", *dir(builtins)}
    if not is_identifier(module_name) or module_name in used_names:
        raise CodegenError(
            f"module_name is not a name for the class: {shown(module_name)}",
            why="it is a Python identifier that the generated code does not use for something else",
            remedy='pass another: to_folder(folder, module_name="FxModule")',
        )
    lines = {"import torch"}
    for name in used - {"torch"}:
        value = code.globals[name]
        line = "from fx import wrap" if name == "wrap" and value is None else _import(name, value)
        if line is None:
            leaves = {node: (node.target, *leaves_of((node.args, node.kwargs))) for node in program.graph.nodes}
            users = [node for node in leaves if any(value is leaf or type(leaf) is value for leaf in leaves[node])]
            user = f"node {users[0].name}" if users else "its code"
            raise _refused(f"{user} uses {name}, {type_in_words(value)} that a package cannot import", *users[:1])
        lines.add(line)
    return "\n".join(sorted(lines))


def _import(name: str, value: Any) -> str | None:
    """Return source that binds ``name`` to ``value``, or None if there is none."""
    if isinstance(value, ModuleType):
        path = value.__name__
        is_found = _is_dotted(path) and sys.modules.get(path) is value
        return (f"import {path}" if path == name else f"import {path} as {name}") if is_found else None
    if type(value) in (float, str):  # nan or inf, or an annotation
        return f"{name} = {type(value).__name__}({str(value)!r})"
    if value is NoneType:
        return f"{name} = type(None)"
    imported = imported_name(value)
    if imported is None or not _is_dotted(f"{imported.module}.{imported.path}") or imported.module == "__main__":
        return None
    first, _, rest = imported.path.partition(".")
    line = f"from {imported.module} import {first}" + ("" if first == name else f" as {name}")
    return f"{line}\n{name} = {name}.{rest}" if rest else line


def _is_dotted(path: str) -> bool:
    return all(map(is_identifier, path.split(".")))


def _refused(what: str, node: Node | None = None) -> CodegenError:
    return CodegenError(
        f"cannot write the program: {what}",
        where=None if node is None else node.source,
        why="a package has source, tensors, and modules; their classes are at the top level of an importable module",
        remedy="fx.save(program, file)",
    )

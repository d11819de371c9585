"""Programs on disk as a readable Python package (paper, section 5.4: ``GraphModule.to_folder``).

The package holds ``module.py`` (the generated code and a class that rebuilds the state), ``weights.safetensors`` or,
where safetensors is not installed or cannot hold a tensor, ``state_dict.pt``, and ``objects.pt`` for what is neither
source nor a tensor. It imports torch, the modules of the functions that the program calls, and ``fx`` only where the
program has wrapped functions or structured inputs. Weights load onto the CPU.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import math
import os
import shutil
import sys
import uuid
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from fx.arguments import shown
from fx.code.folder_state import FolderState, statement
from fx.code.pytree_codegen import PyTreeCodeGen
from fx.errors import CodegenError, type_in_words
from fx.modules.calibrated_values import FixedNumbers
from fx.modules.pickling import imported_name
from fx.naming.names import GENERATED_GLOBALS, NoneType, is_identifier
from fx.naming.printing import describe
from fx.node import map_aggregate

if TYPE_CHECKING:
    from fx.graph_module import GraphModule
    from fx.node import Node

_HEADER = '"""A captured program, written by fx.GraphModule.to_folder; edit it freely."""\n'
_SAFE_DTYPES = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
     torch.uint8, torch.bool}
)  # fmt: skip


def write_folder(module: GraphModule, folder: Any, module_name: str) -> None:
    """Write ``module`` as the package ``folder``, whose class ``module_name`` rebuilds it without tracing.

    Tensors and modules that are one object under several names stay one; views of one storage become tensors of their
    own. Nothing is written unless everything can be; files of an earlier package are replaced, others are left alone.
    What is written is the program as of its last ``recompile``.

    Raises:
        CodegenError: the name is not an identifier, the code uses something that cannot be imported (the message names
            the node), or the module holds something that cannot be stored.
    """
    lines = [*_imports(module, module_name), "", "", module._python_code.src.strip(), "", ""]
    state = FolderState(module)
    objects = state.pickled_objects()
    in_safetensors = _fits_safetensors(state.tensors)
    lines += [f"class {module_name}(torch.nn.Module):", '    """The captured program with its weights."""', ""]
    lines.append("    def __init__(self) -> None:")
    lines += [f"        {line}" if line else "" for line in _init(module, state, in_safetensors)]
    lines += ["", "    forward = forward", ""]
    source = _HEADER + "\n" + "\n".join(lines)
    compile(source, "module.py", "exec", dont_inherit=True)
    target = Path(os.path.abspath(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    staging.mkdir()
    try:
        package = f'"""A captured program."""\n\nfrom .module import {module_name}\n\n__all__ = ["{module_name}"]\n'
        _write_tensors(staging, state.tensors, in_safetensors)
        if objects is not None:
            (staging / "objects.pt").write_bytes(objects)
        (staging / "module.py").write_text(source, encoding="utf-8")
        (staging / "__init__.py").write_text(package, encoding="utf-8")
        _move_into_place(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move_into_place(staging: Path, target: Path) -> None:
    if not target.exists():
        staging.rename(target)
        return
    # weights come first, so that source never stands beside weights it does not know
    for name in sorted((entry.name for entry in staging.iterdir()), key=lambda name: name.endswith(".py")):
        (staging / name).replace(target / name)


def _fits_safetensors(tensors: dict[str, torch.Tensor]) -> bool:
    """Return whether every tensor is one that safetensors stores with all that matters here."""
    return importlib.util.find_spec("safetensors") is not None and all(
        tensor.dtype in _SAFE_DTYPES and tensor.device.type != "meta" and tensor.is_contiguous()
        for tensor in tensors.values()
    )


def _write_tensors(folder: Path, tensors: dict[str, torch.Tensor], in_safetensors: bool) -> None:
    if not tensors:
        return
    if in_safetensors:
        from safetensors.torch import save_file  # noqa: PLC0415  an optional dependency

        # safetensors refuses views of one storage; copies hold the same values
        storages = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors.items()}
        views = Counter(storages.values())
        apart = {name: tensor.clone() for name, tensor in tensors.items() if views[storages[name]] > 1}
        save_file(tensors | apart, folder / "weights.safetensors")
    else:
        torch.save(tensors, folder / "state_dict.pt")


# The source.


def _init(module: GraphModule, state: FolderState, in_safetensors: bool) -> list[str]:
    """The lines of ``__init__`` below its ``def``."""
    # imported inside, since names at the top belong to the program
    imports: list[str] = []
    lines = ["super().__init__()"]
    if state.tensors or state.objects:
        imports.append("import pathlib")
        lines.append("folder = pathlib.Path(__file__).parent")
    if state.shapes:
        lines.append('with torch.device("meta"):  # shapes only: the values are loaded below')
        lines += [f"    {line}" for line in state.shapes]
    lines += state.flags
    if state.tensors and in_safetensors:
        imports += ["", "from safetensors.torch import load_file"]
        lines.append('tensors = load_file(folder / "weights.safetensors")')
    elif state.tensors:
        lines.append('tensors = torch.load(folder / "state_dict.pt", map_location="cpu", weights_only=True)')
    if state.tensors:
        lines.append("self.load_state_dict(tensors, strict=False, assign=True)")
        lines += state.transient
    if state.objects:
        lines.append('objects = torch.load(folder / "objects.pt", map_location="cpu", weights_only=False)')
        lines += state.attached
    numbers = FixedNumbers.of_program(module)
    if numbers is not None:
        imports += ["", "from fx.modules.calibrated_values import FixedNumbers"]
    hooks = [] if numbers is None else [f"{numbers!r}.hold(self)"]
    return [*imports, *([""] if imports else []), *lines, *state.ties, *_specs(module), *hooks]


def _specs(module: GraphModule) -> list[str]:
    codegen = module.graph._codegen
    if not isinstance(codegen, PyTreeCodeGen):
        return []
    lines: list[str] = []
    for name, spec in (("_in_spec", codegen.pytree_info.in_spec), ("_out_spec", codegen.pytree_info.out_spec)):
        try:
            value = "None" if spec is None else f"pytree.treespec_loads({str(pytree.treespec_dumps(spec))!r})"
        except (NotImplementedError, TypeError, ValueError) as error:
            raise CodegenError(
                "cannot write the program: its inputs or output have a structure that cannot be stored",
                value=spec,
                why=f"{type(error).__name__}: {error}",
                remedy="register the container with a serialized_type_name in torch.utils._pytree",
            ) from error
        lines.append(statement("self", name, value))
    return lines


def _imports(module: GraphModule, module_name: str) -> list[str]:
    """A line or two for each global that the code uses."""
    code = module._python_code
    used = {part.id for part in ast.walk(ast.parse(code.src)) if isinstance(part, ast.Name)} & code.globals.keys()
    taken = used | GENERATED_GLOBALS.keys() | {"forward", "wrap"}
    if (
        type(module_name) is not str
        or not is_identifier(module_name)
        or module_name in taken
        or hasattr(builtins, module_name)
    ):
        raise CodegenError(
            f"module_name is not a name for the class: {shown(module_name)}",
            why="it is a Python identifier that the generated code does not use for something else",
            remedy='pass another: to_folder(folder, module_name="FxModule")',
        )
    if isinstance(module.graph._codegen, PyTreeCodeGen):
        used.add("pytree")
    lines = {"import torch"}
    for name in used - {"torch"}:
        value = code.globals[name]
        found = ["from fx import wrap"] if name == "wrap" and value is None else _import(name, value)
        if found is None:
            raise _not_importable(module, name, value)
        lines.add("\n".join(found))
    return sorted(lines)


def _import(name: str, value: Any) -> list[str] | None:
    """Source that binds ``name`` to ``value``, or None where there is none."""
    if isinstance(value, ModuleType):
        path = value.__name__
        if not _is_dotted(path) or sys.modules.get(path) is not value:
            return None
        return [f"import {path}" if path == name else f"import {path} as {name}"]
    if type(value) is float and not math.isfinite(value):
        return [_from_import("math", "nan" if math.isnan(value) else "inf", name)]
    if value is NoneType:
        return [f"{name} = type(None)"]
    if type(value) is str:
        return [f"{name} = {value!r}"]
    found = imported_name(value)
    if found is None or not (_is_dotted(found.module) and _is_dotted(found.path)) or found.module == "__main__":
        return None
    first, _, rest = found.path.partition(".")
    line = _from_import(found.module, first, name)
    return [line, f"{name} = {name}.{rest}"] if rest else [line]


def _from_import(module: str, attribute: str, name: str) -> str:
    return f"from {module} import {attribute}" if attribute == name else f"from {module} import {attribute} as {name}"


def _is_dotted(path: Any) -> bool:
    return type(path) is str and all(map(is_identifier, path.split(".")))


def _not_importable(module: GraphModule, name: str, value: Any) -> CodegenError:
    node = next((node for node in module.graph.nodes if _mentions(node, value)), None)
    return CodegenError(
        f"cannot write the program: {f'node {node.name}' if node is not None else 'its code'} uses {name}, "
        "which a package cannot import",
        where=node.source if node is not None else None,
        value=describe(node) if node is not None else None,
        why=f"{name} stands for {type_in_words(value)} that is not an attribute of an importable module (the main "
        "program is none)",
        remedy="define it at the top level of a module, or make it an attribute of the module that is traced",
    )


def _mentions(node: Node, value: Any) -> bool:
    found = [node.target is value or node.type is value]

    def look(leaf: Any) -> Any:
        found.append(leaf is value or type(leaf) is value)
        return leaf

    map_aggregate((node.args, node.kwargs), look)
    return any(found)

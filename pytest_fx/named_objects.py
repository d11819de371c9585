"""Import ``package.module:attribute``; on failure, suggest similar names and list the searched folders."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import inspect
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pytest_fx.errors import CannotLoadError
from pytest_fx.tracebacks import line_of_import

_NEAR = 0.6
"""Least similarity, from 0 to 1, of a name that is suggested."""


def is_path(name: Any) -> bool:
    """Return whether ``name`` is of the form ``package.module:attribute``."""
    return isinstance(name, str) and ":" in name and not name.startswith("tag:")


def is_nearly_path(name: Any) -> bool:
    """Return whether ``name`` is a path, or would be with a colon in place of a dot or slash."""
    return isinstance(name, str) and (is_path(name) or re.search(r"\w[./\\]\w", name) is not None)


def class_called(path: str) -> type[Any] | None:
    """Return the class ``module:name``; None if its module is not imported, so that it has no instances."""
    module, _, name = path.partition(":")
    value = getattr(sys.modules.get(module), name, None)
    return value if isinstance(value, type) else None


def is_one_of(value: Any, *paths: str) -> bool:
    """Return whether a value is an instance of one of the classes ``module:name``, none of which is imported."""
    classes = tuple(kind for path in paths if (kind := class_called(path)) is not None)
    return isinstance(value, classes)


def import_from(folder: Path) -> None:
    """Add ``folder`` to the import path."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def home_of(module_name: str) -> Path | None:
    """Return the folder from which a module is imported; None if it is installed, or has no file.

    A module of a package that is not imported yet is not imported for that, unless its package has no file.

    >>> home_of("torch.nn") is None
    True
    """
    try:
        name = module_name if module_name in sys.modules else module_name.partition(".")[0]
        file = getattr(sys.modules.get(name), "__file__", None) or _file_of(name)
        if file is None:
            name = module_name
            file = getattr(importlib.import_module(name), "__file__", None)
    except (ImportError, ValueError):
        return None
    if file is None:
        return None
    path = Path(file).resolve()
    installed = {"site-packages", "dist-packages"}.intersection(path.parts)
    if installed or path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve()):
        return None
    return path.parents[name.count(".") + (path.name == "__init__.py")]


def _file_of(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    return spec.origin if spec is not None and spec.has_location else None


def by_module(name: str, kind: str) -> str:
    """Return ``module:attribute`` for ``folder/file.py:attribute``, whose folder is put first on the import path.

    Raises ``CannotLoadError`` if there is no such file, or another module of its name is imported. Other names are
    returned as they are.
    """
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py"):
        return name
    path = Path(file).resolve()
    if not path.is_file():
        raise CannotLoadError(f"there is no file of the {kind} {name!r}", remedy="correct the path")
    imported = getattr(sys.modules.get(path.stem), "__file__", None)
    if path.stem in sys.modules and imported != str(path):
        raise CannotLoadError(
            f"the file of the {kind} {name!r} cannot be imported",
            why=f"a module {path.stem!r} is imported already, from {imported}",
            remedy="rename the file",
        )
    sys.path[:] = [str(path.parent), *(folder for folder in sys.path if folder != str(path.parent))]
    return f"{path.stem}:{attribute}"


def import_attribute(name: str, kind: str, accepts: Callable[[Any], bool] = callable) -> Any:
    """Import ``package.module:attribute``, which ``accepts`` must accept: by default, a callable.

    Raises ``CannotLoadError``, with suggestions, if it cannot be imported or is not accepted.
    """
    module_name, _, attribute = name.partition(":")
    value: Any = _import_module(module_name, name, kind)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise CannotLoadError(
                f"there is no {kind} named {name!r}",
                why=f"{module_name} has no attribute {part!r}",
                remedy=_did_you_mean(_nearest(name)),
            )
        value = getattr(value, part)
    if not accepts(value):
        raise CannotLoadError(f"the {kind} {name!r} cannot be called", value=repr(value)[:80])
    return value


def refuse_without_colon(name: str, kind: str, known: Iterable[str]) -> None:
    """Raise ``CannotLoadError`` if ``name``, which is not ``known``, seems to be a path without its colon."""
    nearest = _nearest(name)
    if nearest or not difflib.get_close_matches(name, list(known), cutoff=_NEAR):
        raise CannotLoadError(
            f"there is no {kind} named {name!r}",
            where=None if nearest else _searched(""),
            why=f"a {kind} of one's own is named package.module:attribute, with a colon before the attribute",
            remedy=_did_you_mean(nearest),
        )


def _import_module(module_name: str, name: str, kind: str) -> Any:
    what = f"cannot import the module of the {kind} {name!r}"
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script that reads its command line raises SystemExit
        # Show the error of a user's module in a few lines, without our frames.
        why = f"{type(error).__name__}: {error}"
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            nearest = _nearest(name)
            raise CannotLoadError(what, where=_searched(missing), why=why, remedy=_did_you_mean(nearest)) from error
        raise CannotLoadError(what, where=line_of_import(error), why=why, remedy=_install(missing)) from error


def place_of(function: Any) -> str:
    """Return the file and line of a function's definition, with its signature."""
    code = getattr(function, "__code__", None)
    place = "" if code is None else f"{code.co_filename}:{code.co_firstlineno}, in "
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{place}{name}{inspect.signature(function)}"


def require_call(function: Any, what: str, *given: Any) -> None:
    """Raise ``CannotLoadError``, which begins with ``what``, if a function cannot be called with ``given`` alone."""
    is_function = inspect.isroutine(function) or isinstance(function, (type, functools.partial))
    try:  # the signature of an object whose __call__ is a static method lacks a parameter
        signature = inspect.signature(function if is_function else function.__call__)
    except (TypeError, ValueError):  # it has no signature
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        raise CannotLoadError(
            what,
            where=place_of(function),
            why=str(error),
            remedy="give its other parameters defaults, or name a function that calls it with what it needs",
        ) from None


def _install(missing: str | None) -> str | None:
    """Return advice for a user's module that imports a missing one."""
    if missing is None or "." in missing:
        return None
    return f"correct the name, or install the package that has {missing!r} into the environment of pytest"


def _searched(missing: str) -> str:
    """Return the folders in which ``missing`` was searched: those of its package, or those on the path but Python's."""
    package = sys.modules.get(missing.rpartition(".")[0])
    if package is not None:
        folders = list(getattr(package, "__path__", []))
        return f"searched in {', '.join(folders)}" if folders else f"{package.__name__} is a module, and no package"
    prefixes = tuple(f"{Path(prefix)}/" for prefix in {sys.prefix, sys.base_prefix})
    folders = [folder for folder in dict.fromkeys(sys.path) if not f"{folder}/".startswith(prefixes)]
    own = ", ".join(folder for folder in folders if Path(folder).is_dir())
    return f"searched in {own} and among what is installed"


def _did_you_mean(nearest: list[str]) -> str | None:
    return f"did you mean {' or '.join(map(repr, nearest))}?" if nearest else None


def _nearest(name: str) -> list[str]:
    """Return up to three existing paths that are similar to ``name``, the nearest first."""
    before, colon, attribute = name.partition(":")
    parts = [part for part in re.split(r"[./\\]+", before.replace(".py", "") if colon else before) if part]
    if colon:
        readings = [(parts, attribute)]
    else:
        parts = [part for part in parts if part != "py"]
        readings = [(parts[:size], ".".join(parts[size:])) for size in range(len(parts) - 1, 0, -1)]
    candidates = [near for modules, wanted in readings for near in _nearest_attributes(modules, wanted)]
    return [near for near in dict.fromkeys(candidates) if near != name][:3]


def _nearest_attributes(modules: list[str], attribute: str) -> Iterator[str]:
    for module, source in _modules_like(modules, sys.path):
        attributes = _attributes_of(module, source, is_exact=module == ".".join(modules))
        if attribute in attributes:
            yield f"{module}:{attribute}"
        elif module == ".".join(modules):
            public = [key for key in attributes if key[:1] != "_"]
            for near in difflib.get_close_matches(attribute, public, n=3, cutoff=_NEAR):
                yield f"{module}:{near}"


def _attributes_of(module: str, source: Path, *, is_exact: bool) -> list[str]:
    """Return the names in a module and its classes: from its import if the user named it, or else from its source."""
    imported = sys.modules.get(module)
    if imported is None and is_exact:
        try:
            imported = importlib.import_module(module)
        except (Exception, SystemExit):  # the error is reported where the user's own name is imported
            imported = None
    if imported is not None:
        classes = {key: value for key, value in vars(imported).items() if isinstance(value, type)}
        return [*dir(imported), *(f"{key}.{inner}" for key, value in classes.items() for inner in vars(value))]
    try:
        with tokenize.open(source) as file:
            return list(_names_in(ast.parse(file.read()).body))
    except (OSError, SyntaxError, ValueError):
        return []


def _names_in(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements define; names in a class are prefixed with its name."""
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
            if isinstance(statement, ast.ClassDef):
                yield from (f"{statement.name}.{inner}" for inner in _names_in(statement.body))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _modules_like(parts: list[str], folders: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the modules in ``folders`` with names similar to ``parts``, the nearest first, each with its file."""
    if not parts:
        return
    there = _children(folders)
    wanted = [parts[0]] if parts[0] in there else difflib.get_close_matches(parts[0], there, n=3, cutoff=_NEAR)
    for name in wanted:
        if len(parts) == 1:
            files = (path / "__init__.py" if path.is_dir() else path for path in there[name])
            yield from ((name, file) for file in files if file.is_file())
            continue
        inside = [str(path) for path in there[name] if path.is_dir()]
        yield from ((f"{name}.{rest}", file) for rest, file in _modules_like(parts[1:], inside))


def _children(folders: Iterable[str]) -> dict[str, list[Path]]:
    """Return the modules and packages in folders by name; those of the first folder come first."""
    paths: dict[str, list[Path]] = {}
    for folder in folders:
        if (path := Path(folder)).is_dir():
            for child in sorted(path.iterdir()):
                name = child.name.partition(".")[0]
                if name.isidentifier() and (child.suffix in (".py", ".so", ".pyd") or child.is_dir()):
                    paths.setdefault(name, []).append(child)
    return paths
